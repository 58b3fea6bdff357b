"""Build GGUF bytes by hand, so that any single thing in them can be wrong."""

import struct
from dataclasses import dataclass, field

import numpy as np
from bundle.tiny import TINY_LEWM, random_tensors

U8, U32, I32, F32, BOOL, STR, ARR, U64, F64 = 0, 4, 5, 6, 7, 8, 9, 10, 12


def string(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def array(kind, n, payload):
    return struct.pack("<IQ", kind, n) + payload


def packed(value):
    """The type and payload of a plain value, as the stock writer stores it."""
    if isinstance(value, bool):
        return BOOL, struct.pack("<B", value)
    if isinstance(value, int):
        return U32, struct.pack("<I", value)
    if isinstance(value, float):
        return F32, struct.pack("<f", value)
    if isinstance(value, str):
        return STR, string(value)
    if isinstance(value[0], str):
        return ARR, array(STR, len(value), b"".join(map(string, value)))
    if isinstance(value[0], int):
        return ARR, array(U32, len(value), np.array(value, "<u4").tobytes())
    return ARR, array(F32, len(value), np.array(value, "<f4").tobytes())


@dataclass
class Entry:
    """One tensor of a forged file; ``dims`` in file order, ``raw_dims`` in place of them."""

    name: str | bytes
    dims: list[int]
    kind: int
    offset: int
    data: bytes = b""
    raw_dims: bytes | None = None

    def pack(self):
        dims = struct.pack(f"<I{len(self.dims)}Q", len(self.dims), *self.dims)
        dims = dims if self.raw_dims is None else self.raw_dims
        return string(self.name) + dims + struct.pack("<IQ", self.kind, self.offset)


@dataclass
class Forge:
    """A GGUF file in parts."""

    pairs: dict[str | bytes, tuple[int, bytes]] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    extra_pairs: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    n_pairs: int | None = None
    n_tensors: int | None = None
    tail: bytes = b""

    @classmethod
    def tiny(cls, meta=None, **changes):
        """The tiny lewm bundle; ``changes`` as in ``write_tiny``."""
        meta = dict(TINY_LEWM if meta is None else meta)
        meta |= {name.replace("__", "."): v for name, v in changes.items()}
        made = cls({name: packed(v) for name, v in meta.items() if v is not None})
        offset = 0
        for name, values in random_tensors(TINY_LEWM).items():
            data = values.tobytes()
            made.entries.append(Entry(name, list(values.shape[::-1]), 0, offset, data))
            offset += -(-len(data) // 32) * 32
        return made

    def entry(self, name):
        return next(entry for entry in self.entries if entry.name == name)

    def header(self):
        n_pairs = len(self.pairs) if self.n_pairs is None else self.n_pairs
        n_tensors = len(self.entries) if self.n_tensors is None else self.n_tensors
        parts = [self.magic, struct.pack("<IQQ", self.version, n_tensors, n_pairs)]
        parts += [
            string(k) + struct.pack("<I", kind) + raw for k, (kind, raw) in self.pairs.items()
        ]
        return b"".join([*parts, self.extra_pairs, *(entry.pack() for entry in self.entries)])

    def bytes(self):
        header = self.header()
        body = bytearray(b"".join([header, bytes(-len(header) % 32)]))
        start = len(body)
        for entry in self.entries:
            end = start + entry.offset + len(entry.data)
            if entry.data and end < 1 << 24:
                body += bytes(max(0, end - len(body)))
                body[start + entry.offset : end] = entry.data
        return bytes(body) + self.tail

    def write(self, path):
        path.write_bytes(self.bytes())
        return path
