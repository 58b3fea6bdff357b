"""Bundle in, bundle out, in another stored type: one tensor at a time, the rest byte for byte.

Metadata is copied as bytes apart from the two keys that state the types, and a tensor whose type
does not change is copied as bytes. Tensors that change are decoded and encoded in groups of rows,
so memory holds one stored tensor and a few megabytes.
"""

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFValueType

from jepa_wm.bundle import quant
from jepa_wm.bundle.faults import bundle_error, printable
from jepa_wm.bundle.header import Header, parse_header
from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.templates import PARTS
from jepa_wm.bundle.writer import replacing

Q = GGMLQuantizationType

_GROUP = 1 << 18  # values decoded at a time


@dataclass(frozen=True)
class Recipe:
    """What to do.

    Attributes:
        file_type: One of ``quant.FILE_TYPES``.
        keep: Parts of names; tensors whose name holds one are left as they are stored.
        allow_requant: Let a tensor lose bits a second time.
    """

    file_type: str
    keep: tuple[str, ...] = ()
    allow_requant: bool = False


@dataclass(frozen=True)
class Change:
    """What became of one tensor.

    Attributes:
        name: Its name.
        shape: Torch order.
        before: Type in the input, ``F32`` for one.
        after: Type in the output.
        bytes_before: Size of the data in the input.
        bytes_after: Size of the data in the output.
        rms_error: Root of the mean squared error over that of the values; 0 where copied.
        worst_error: Largest error over the largest magnitude; 0 where copied.
    """

    name: str
    shape: tuple[int, ...]
    before: str
    after: str
    bytes_before: int
    bytes_after: int
    rms_error: float
    worst_error: float


@dataclass(frozen=True)
class Rewritten:
    """What became of a file: its tensors in file order, and its size before and after in bytes."""

    changes: tuple[Change, ...]
    bytes_before: int
    bytes_after: int


def planned_types(bundle: Bundle, recipe: Recipe) -> dict[str, GGMLQuantizationType]:
    """Return the type each tensor is to get, in file order.

    Tensors that may not be quantised stay as they are; for ``f32`` all become F32 that the schema
    has.

    Raises:
        BundleError: an unknown file type, a ``keep`` that fits no tensor, tensors that cannot be
            decoded, or quantised ones that would lose bits again.
    """
    quant.storage_type("", (), recipe.file_type)  # refuses an unknown one
    names = bundle.names()
    faults = [
        f"no tensor's name holds {printable(part)!r}, given to be kept"
        for part in recipe.keep
        if not any(part in name for name in names)
    ]
    faults += [
        f"tensor {printable(name)} has the type {kind}, which cannot be decoded"
        for name, kind in bundle.unsupported.items()
    ]
    if faults:
        raise bundle_error(bundle.path, faults)
    stored = {name: GGMLQuantizationType[bundle.type_name(name)] for name in names}
    planned = {name: _planned_type(bundle, name, recipe, stored[name]) for name in names}
    lossy = [
        name
        for name, kind in planned.items()
        if kind not in (Q.F32, stored[name]) and quant.is_block_type(stored[name])
    ]
    if lossy and not recipe.allow_requant:
        first = f"{printable(lossy[0])} is {bundle.type_name(lossy[0])}"
        more = f" and {len(lossy) - 1} more are quantised" if len(lossy) > 1 else ""
        fault = (
            f"tensor {first} already{more}: quantising again adds error to error; "
            "start from the f32 or f16 file, or allow it (--allow-requant)"
        )
        raise bundle_error(bundle.path, [fault])
    return planned


def rewrite(
    bundle: Bundle,
    path: Path | None,
    recipe: Recipe,
    tell: Callable[[Change], None] = lambda change: None,
) -> Rewritten:
    """Write the bundle again with its quantisable tensors in another type.

    A tensor that its new type could not hold (``quant.can_hold``) stays as it is stored.

    Args:
        bundle: An opened bundle.
        path: Where, replacing a file of that name; None: only find out what would come of it.
        recipe: What to do.
        tell: Called with every tensor that is done.

    Raises:
        BundleError: as ``planned_types``; the place is the input itself or cannot be written; a
            tensor to encode holds NaN or infinite values. No output is left behind.
    """
    planned = planned_types(bundle, recipe)
    if path is None:
        with open(os.devnull, "wb") as file:
            return _stream(bundle, file, recipe, planned, tell)
    if os.path.exists(path) and os.path.samefile(path, bundle.path):
        raise bundle_error(path, ["is the input itself; give the output another name"])
    with replacing(path) as temporary:
        with open(temporary, "wb") as file:
            done = _stream(bundle, file, recipe, planned, tell)
        Bundle.open(temporary)
    return done


def _planned_type(
    bundle: Bundle, name: str, recipe: Recipe, stored: GGMLQuantizationType
) -> GGMLQuantizationType:
    shape = bundle.shape(name)
    is_kept = not name.startswith(PARTS) or any(part in name for part in recipe.keep)
    if not is_kept and (recipe.file_type == "f32" or quant.is_quantisable(name, shape)):
        return quant.storage_type(name, shape, recipe.file_type)
    return stored


def _stream(
    bundle: Bundle,
    file: BinaryIO,
    recipe: Recipe,
    planned: Mapping[str, GGMLQuantizationType],
    tell: Callable[[Change], None],
) -> Rewritten:
    """Write front, tensors and then the table of tensors, whose place and size are known before."""
    header, size, pairs = _parts(bundle)
    pairs |= _type_pairs(recipe.file_type, any(map(quant.is_block_type, planned.values())))
    counts = struct.pack("<IQQ", header.version, len(planned), len(pairs))
    front = b"".join([b"GGUF", counts, *pairs.values()])
    entries = {name: _entry(name, header.tensors[name].shape) for name in planned}
    end = len(front) + sum(len(entry) + 12 for entry in entries.values())
    start = _aligned(end, header.alignment)
    file.write(front + bytes(start - len(front)))
    changes, table, offset = [], [], 0
    for name, kind in planned.items():
        change = _write_tensor(bundle, name, kind, file)
        table.append(entries[name] + struct.pack("<IQ", GGMLQuantizationType[change.after], offset))
        padded = _aligned(change.bytes_after, header.alignment)
        file.write(bytes(padded - change.bytes_after))
        offset += padded
        changes.append(change)
        tell(change)
    file.seek(len(front))
    file.write(b"".join(table))
    return Rewritten(tuple(changes), size, start + offset)


def _parts(bundle: Bundle) -> tuple[Header, int, dict[str, bytes]]:
    """Return the header, the file's size and the bytes of every metadata pair.

    ``Bundle.encoded`` refuses a file that is changed from here on.
    """
    with open(bundle.path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = parse_header(file, size)
        file.seek(0)
        front = file.read(max((end for _, end in header.spans.values()), default=0))
    return header, size, {name: front[at:end] for name, (at, end) in header.spans.items()}


def _type_pairs(file_type: str, has_blocks: bool) -> dict[str, bytes]:
    found = {"general.file_type": quant.FILE_TYPES[file_type][0]}
    if has_blocks:
        found["general.quantization_version"] = GGML_QUANT_VERSION
    return {
        name: _string(name) + struct.pack("<II", GGUFValueType.UINT32, number)
        for name, number in found.items()
    }


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _entry(name: str, shape: tuple[int, ...]) -> bytes:
    """Return the first part of a tensor's row in the table; type and offset follow."""
    return _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1])


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment


def _write_tensor(bundle: Bundle, name: str, kind: GGMLQuantizationType, file: BinaryIO) -> Change:
    stored = bundle.encoded(name)
    if kind != stored.type:
        peak = max(quant.peak_of(values) for values in _groups(stored))
        if not np.isfinite(peak):
            fault = f"tensor {printable(name)} holds NaN or infinite values"
            raise bundle_error(bundle.path, [fault])
        kind = kind if quant.can_hold(kind, peak) else stored.type
    errors = (0.0, 0.0)
    if kind == stored.type:
        file.write(stored.data.data)
    else:
        errors = _write_encoded(stored, kind, peak, file)
    written = quant.n_bytes(stored.shape, kind)
    return Change(
        name, stored.shape, stored.type.name, kind.name, stored.data.nbytes, written, *errors
    )


def _write_encoded(
    stored: quant.Encoded, kind: GGMLQuantizationType, peak: float, file: BinaryIO
) -> tuple[float, float]:
    """Write a tensor in another type and return its relative rms and worst error."""
    lost = power = worst = 0.0
    for values in _groups(stored):
        encoded = quant.encode_as(values, kind)
        file.write(encoded.data.data)
        error = quant.decode(encoded) - values
        lost += float(np.sum(np.square(error, dtype=np.float64)))
        power += float(np.sum(np.square(values, dtype=np.float64)))
        worst = max(worst, quant.peak_of(error))
    return ((lost / power) ** 0.5, worst / peak) if power else (0.0, 0.0)


def _groups(stored: quant.Encoded) -> Iterator[np.ndarray]:
    """Yield the values in groups of whole rows, float32 [rows, columns]."""
    columns = stored.shape[-1]
    step = max(1, _GROUP // columns)
    for at in range(0, len(stored.data), step):
        data = stored.data[at : at + step]
        yield quant.decode(quant.Encoded(data, (len(data), columns), stored.type))
