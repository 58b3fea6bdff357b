"""The GGUF container: header, metadata and tensor table of a file nobody vouches for.

Parsed here and not by ``gguf.GGUFReader``, which allocates and loops on counts before it compares
them with the file: here every count and length is checked against the bytes that are left first.
Knows the container, not the schema. From ``gguf`` come the constants only.

Source: ggml docs/gguf.md, versions 2 and 3, little-endian.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from jepa_wm.bundle.faults import printable
from jepa_wm.errors import BundleError

VERSIONS = (2, 3)
MAX_HEADER = 32 << 20  # bytes of metadata and tensor table; 200,000 long labels take 14 MiB
MAX_STRING = 1 << 20  # bytes
MAX_STRINGS = 1 << 18  # in all arrays of a file together
MAX_PAIRS = 1 << 14
MAX_TENSORS = 1 << 14
MAX_DIMS = 4
_CHUNK = 1 << 20
_MIN_PAIR, _MIN_TENSOR = 14, 33  # bytes of the smallest metadata pair and tensor entry

_TYPES = {int(kind): kind for kind in GGMLQuantizationType}
_SCALARS: dict[int, np.dtype] = {
    GGUFValueType.UINT8: np.dtype("<u1"),
    GGUFValueType.INT8: np.dtype("<i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("?"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True)
class StoredTensor:
    """One entry of the tensor table.

    Attributes:
        shape: Torch order (the file stores it reversed).
        type_id: ggml type number.
        start: Position of the data in the file, bytes.
        n_bytes: Size of the data, or None where the type is unknown.
    """

    shape: tuple[int, ...]
    type_id: int
    start: int
    n_bytes: int | None

    @property
    def type_name(self) -> str:
        """The ggml name of the type, or its number."""
        return type_name(self.type_id)


@dataclass(frozen=True)
class Header:
    """Everything in front of the tensor data.

    Attributes:
        version: GGUF version.
        values: Metadata: Python scalars, tuples of strings, read-only number arrays.
        tensors: Tensor table in file order.
        end: Position after the last tensor, bytes.
        alignment: Alignment of tensor data, bytes.
        faults: What is wrong although the rest could be read.
        spans: First and past-the-last byte of every metadata pair, in file order.
    """

    version: int
    values: dict[str, Any]
    tensors: dict[str, StoredTensor]
    end: int
    alignment: int
    faults: tuple[str, ...]
    spans: dict[str, tuple[int, int]]


def type_name(type_id: int) -> str:
    """Return the ggml name of a tensor type, or ``type N`` for one this gguf does not know."""
    known = _TYPES.get(type_id)
    return f"type {type_id}" if known is None else known.name


def parse_header(file: BinaryIO, size: int, values: dict[str, Any] | None = None) -> Header:
    """Read and check the header of a GGUF file.

    Args:
        file: Binary file at its start.
        size: Its length in bytes.
        values: Filled with the metadata as it is read: what there was before a fault.

    Raises:
        BundleError: the bytes cannot be followed any further (the text says where and why; no
            path).
    """
    if size == 0:
        raise BundleError("is empty")
    cursor = _Cursor(file, size)
    version = _preamble(cursor)
    n_tensors, n_pairs = cursor.number("<Q", "tensor count"), cursor.number("<Q", "metadata count")
    cursor.check_count(n_pairs, _MIN_PAIR, MAX_PAIRS, "metadata pairs")
    cursor.check_count(n_tensors, _MIN_TENSOR, MAX_TENSORS, "tensors")
    faults: list[str] = []
    values = {} if values is None else values
    spans = _pairs(cursor, n_pairs, values, faults)
    alignment = values.get("general.alignment", 32)
    if type(alignment) is not int or not 8 <= alignment <= 65_536 or alignment & (alignment - 1):
        shown = printable(alignment, 40)
        raise BundleError(f"general.alignment is {shown}, wanted a power of two from 8 to 65536")
    entries = [_tensor_entry(cursor, at, faults) for at in range(n_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, StoredTensor] = {}
    for name, shape, type_id, offset in entries:
        if name in tensors:
            faults.append(f"tensor {printable(name)} is stored twice")
        n_bytes, fault = _extent(shape, type_id)
        tensors[name] = StoredTensor(shape, type_id, data_start + offset, n_bytes)
        if offset % alignment:
            fault = fault or f"offset {offset} is not aligned to {alignment}"
        if fault:
            faults.append(f"tensor {printable(name)}: {fault}")
    faults += [*_cut_short(tensors, size), *_overlaps(tensors)]
    end = max((t.start + (t.n_bytes or 0) for t in tensors.values()), default=data_start)
    return Header(version, values, tensors, end, alignment, tuple(faults), spans)


class _Cursor:
    """Reads forward in chunks; refuses to pass the end of the file or ``MAX_HEADER``."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self._buffer = bytearray()
        self.position = 0
        self._strings_left = MAX_STRINGS

    def take(self, n: int, what: str) -> bytes:
        """Return the next ``n`` bytes."""
        end = self.position + n
        if end > self._size:
            raise BundleError(
                f"truncated: {what} needs {n} bytes at {self.position}, "
                f"the file ends at {self._size}"
            )
        if end > MAX_HEADER:
            raise BundleError(
                f"{what} at {self.position} exceeds the header limit of {MAX_HEADER} bytes"
            )
        if end > len(self._buffer):
            self._buffer += self._file.read(max(_CHUNK, end - len(self._buffer)))
            if end > len(self._buffer):
                raise BundleError(f"truncated while it was read: {what} at {self.position}")
        start, self.position = self.position, end
        return bytes(self._buffer[start:end])

    def number(self, fmt: str, what: str) -> int:
        """Return one number of a ``struct`` format."""
        return int(struct.unpack(fmt, self.take(struct.calcsize(fmt), what))[0])

    def string(self, what: str) -> str:
        """Return one UTF-8 string with its 64-bit length in front."""
        n = self.number("<Q", what)
        if n > MAX_STRING:
            raise BundleError(f"{what} claims {n} bytes, at most {MAX_STRING} are allowed")
        raw = self.take(n, what)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise BundleError(f"{what} is not UTF-8: bytes {raw[:16].hex(' ')}") from error

    def check_count(self, n: int, least: int, most: int, what: str) -> None:
        """Refuse a count that the rest of the file or the limit cannot hold."""
        if n * least > self._size - self.position:
            raise BundleError(
                f"claims {n} {what}, more than its {self._size} bytes can hold: truncated?"
            )
        if n > most:
            raise BundleError(f"claims {n} {what}, at most {most} are allowed")

    def strings(self, n: int, what: str) -> tuple[str, ...]:
        """Return ``n`` strings."""
        self.check_count(n, 8, self._strings_left, what)
        self._strings_left -= n
        return tuple(self.string(what) for _ in range(n))


def _preamble(cursor: _Cursor) -> int:
    magic = cursor.take(4, "magic")
    if magic != b"GGUF":
        raise BundleError(_magic_fault(magic))
    version = cursor.number("<I", "version")
    if version not in VERSIONS:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in VERSIONS:
            raise BundleError("is a big-endian GGUF file; convert it to little-endian first")
        age = "too old" if version < min(VERSIONS) else "unknown"
        raise BundleError(f"GGUF version {version} is {age}; versions 2 and 3 can be read")
    return version


def _magic_fault(magic: bytes) -> str:
    if magic == b"vers":  # "version https://git-lfs..."
        return (
            "is a Git LFS pointer or other text, not the file itself; fetch it with `git lfs pull`"
        )
    if magic in (b"lmgg", b"GGML", b"tjgg", b"GGJT", b"fmgg", b"algg"):
        return "is an old GGML file, not GGUF"
    return f"is no GGUF file: it starts with {magic!r}, wanted b'GGUF'"


def _pairs(
    cursor: _Cursor, n: int, values: dict[str, Any], faults: list[str]
) -> dict[str, tuple[int, int]]:
    spans: dict[str, tuple[int, int]] = {}
    for at in range(n):
        start = cursor.position
        key = cursor.string(f"key {at}")
        if not key:
            faults.append(f"key {at} is empty")
        if key in values:
            faults.append(f"key {printable(key)} is stored twice")
        values[key] = _value(cursor, key)
        spans[key] = start, cursor.position
    return spans


def _value(cursor: _Cursor, key: str) -> Any:
    what = f"value of {printable(key, 80)}"
    type_id = cursor.number("<I", what)
    if type_id == GGUFValueType.ARRAY:
        return _array(cursor, what)
    if type_id == GGUFValueType.STRING:
        return cursor.string(what)
    dtype = _SCALARS.get(type_id)
    if dtype is None:
        raise BundleError(f"{what} has the unknown type {type_id}")
    raw = cursor.take(dtype.itemsize, what)
    if type_id == GGUFValueType.BOOL and raw[0] > 1:
        raise BundleError(f"{what} is the byte {raw[0]}, wanted a bool (0 or 1)")
    return np.frombuffer(raw, dtype)[0].item()


def _array(cursor: _Cursor, what: str) -> Any:
    type_id, n = cursor.number("<I", what), cursor.number("<Q", what)
    if type_id == GGUFValueType.ARRAY:
        raise BundleError(f"{what} is a nested array; arrays hold numbers or strings here")
    if type_id == GGUFValueType.STRING:
        return cursor.strings(n, f"strings in the {what}")
    dtype = _SCALARS.get(type_id)
    if dtype is None:
        raise BundleError(f"{what} is an array of the unknown type {type_id}")
    cursor.check_count(n, dtype.itemsize, MAX_HEADER // dtype.itemsize, f"numbers in the {what}")
    found = np.frombuffer(cursor.take(n * dtype.itemsize, what), dtype)  # read-only: it wraps bytes
    return found.view(np.uint8) != 0 if type_id == GGUFValueType.BOOL else found


def _tensor_entry(
    cursor: _Cursor, at: int, faults: list[str]
) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string(f"name of tensor {at}")
    what = f"entry of tensor {printable(name, 80)}"
    n_dims = cursor.number("<I", what)
    if not 1 <= n_dims <= MAX_DIMS:
        raise BundleError(f"{what} has {n_dims} dimensions, allowed is 1 to {MAX_DIMS}")
    dims = struct.unpack(f"<{n_dims}Q", cursor.take(8 * n_dims, what))
    type_id, offset = cursor.number("<I", what), cursor.number("<Q", what)
    if not name:
        faults.append(f"the name of tensor {at} is empty")
    return name, dims[::-1], type_id, offset


def _extent(shape: tuple[int, ...], type_id: int) -> tuple[int | None, str]:
    """Return the size of a tensor's data in bytes (None: unknown type) and a fault or ""."""
    if 0 in shape:
        return None, f"shape {list(shape)} has a dimension of 0"
    if type_id not in _TYPES:
        return None, ""
    block, block_bytes = GGML_QUANT_SIZES[_TYPES[type_id]]
    if shape[-1] % block:
        return None, f"row of {shape[-1]} is no multiple of the {block} of {type_name(type_id)}"
    return prod(shape) // block * block_bytes, ""


def _cut_short(tensors: dict[str, StoredTensor], size: int) -> Iterator[str]:
    """Yield one fault for all tensors that reach beyond the file; one alone says how it does."""
    ends = {name: tensor.start + (tensor.n_bytes or 0) for name, tensor in tensors.items()}
    short = [name for name, end in ends.items() if end > size]
    if len(short) > 1:
        wanted = max(ends.values())
        yield f"cut short: {size:,} of {wanted:,} bytes, {len(short)} tensors missing data"
    for name in short if len(short) == 1 else ():
        shape = list(tensors[name].shape)
        yield (
            f"tensor {printable(name)}: shape {shape} ends at byte {ends[name]}, "
            f"the file has {size}"
        )


def _overlaps(tensors: dict[str, StoredTensor]) -> Iterator[str]:
    ordered = sorted(tensors.items(), key=lambda item: item[1].start)
    reach, owner = -1, ""
    for name, tensor in ordered:
        if tensor.start < reach:
            yield f"tensors {printable(owner)} and {printable(name)} overlap in the file"
        end = tensor.start + (tensor.n_bytes or 1)
        if end > reach:
            reach, owner = end, name
