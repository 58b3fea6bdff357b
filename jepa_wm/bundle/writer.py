"""Write a bundle: metadata and tensors, checked by the rules the reader checks, in one step.

The file appears complete or not at all: it is written beside its place under a temporary name,
opened once as a reader would, and moved.
"""

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFValueType

from jepa_wm.bundle import quant
from jepa_wm.bundle.faults import bundle_error, printable
from jepa_wm.bundle.header import MAX_DIMS
from jepa_wm.bundle.quant import (
    FILE_TYPES,
    Encoded,
    can_hold,
    decode,
    encode_as,
    peak_of,
    storage_type,
)
from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.rules import check_meta
from jepa_wm.bundle.schema import key_for, nearest
from jepa_wm.bundle.templates import tensor_faults

TensorLike = np.ndarray | torch.Tensor | Encoded

MAX_NAME = 63  # bytes; ggml's C readers hold a name in 64 with the closing zero

_TYPES = {
    "u32": GGUFValueType.UINT32,
    "f32": GGUFValueType.FLOAT32,
    "bool": GGUFValueType.BOOL,
    "str": GGUFValueType.STRING,
}


def write_bundle(
    path: Path | str,
    meta: Mapping[str, Any],
    tensors: Mapping[str, TensorLike],
    file_type: str = "f32",
    check: Callable[[Bundle], object] | None = None,
) -> Path:
    """Write a GGUF bundle, replacing a file of that name.

    Args:
        path: Where; the folder must exist.
        meta: Schema keys to values. ``general.architecture``, ``jepa.schema_version``,
            ``general.file_type`` and the quantisation version are filled in. Foreign keys (outside
            ``jepa.`` and ``jepa_wm.``) keep their Python type.
        tensors: Schema names to floating arrays in torch order; an ``Encoded`` one
            (``Bundle.encoded``) is written byte for byte.
        file_type: Type of the quantisable weights, one of ``quant.FILE_TYPES``; all other tensors
            are F32.
        check: Called with the finished bundle before it takes its place; what it raises leaves
            nothing behind.

    Returns:
        The path.

    Raises:
        BundleError: the file type, a key, a tensor or the place is not possible; all faults at
            once, nothing is written.
    """
    path = Path(path)
    known, faults = check_meta(_filled(meta, tensors, file_type))
    faults += _key_faults(meta)
    faults += [fault for name, tensor in tensors.items() for fault in _value_faults(name, tensor)]
    faults += tensor_faults(known, {name: tuple(tensor.shape) for name, tensor in tensors.items()})[
        1
    ]
    if faults:
        raise bundle_error(path, [f"cannot be written: {faults[0]}", *faults[1:]])
    with replacing(path) as temporary:
        writer = GGUFWriter(temporary, "jepa")
        _add_meta(writer, known)
        kinds = {name: _kind(name, tensor, file_type) for name, tensor in tensors.items()}
        for name, kind in kinds.items():
            shape = tensors[name].shape
            n_bytes = quant.n_bytes(shape, kind)
            writer.add_tensor_info(name, shape, np.dtype(np.float32), n_bytes, raw_dtype=kind)
        try:
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for name, tensor in tensors.items():  # only one is held in its stored form
                writer.write_tensor_data(_encoded(tensor, kinds[name]).data)
        finally:
            writer.close()
        written = Bundle.open(temporary)
        if check is not None:
            check(written)
    return path


def _filled(
    meta: Mapping[str, Any], tensors: Mapping[str, TensorLike], file_type: str
) -> dict[str, Any]:
    """Return ``meta`` plus the writer's own keys; a contradiction stays, to be refused."""
    storage_type("", (), file_type)  # refuses an unknown file type
    own: dict[str, Any] = {
        "general.architecture": "jepa",
        "jepa.schema_version": 1,
        "general.file_type": FILE_TYPES[file_type][0],
    }
    if file_type.startswith("q"):
        own["general.quantization_version"] = GGML_QUANT_VERSION
    dropped = {"general.alignment"}  # the writer's own
    if not any(isinstance(tensor, Encoded) for tensor in tensors.values()):
        dropped |= {
            "general.file_type",
            "general.quantization_version",
        }  # of the file it was read from
    # an empty array cannot be stored; its absence says the same
    given = {
        k: v for k, v in meta.items() if k not in dropped and not _is_empty(v) and v is not None
    }
    return {**own, **given}


def _is_empty(found: Any) -> bool:
    return isinstance(found, list | tuple | np.ndarray) and len(found) == 0


def _key_faults(meta: Mapping[str, Any]) -> Iterator[str]:
    for name, found in meta.items():
        if not name or not name.isascii() or not name.isprintable():
            yield f"key '{printable(name)}' is not printable ASCII"
        elif name.startswith(("jepa.", "jepa_wm.")) and key_for(name) is None:
            yield f"{name} is not a key of the schema{nearest(name)}"
        elif key_for(name) is None and found is not None and not _is_empty(found):
            try:
                _foreign_type(found)
            except ValueError as error:
                yield f"{name} {error}"


def _value_faults(name: str, tensor: TensorLike) -> Iterator[str]:
    if len(name.encode()) > MAX_NAME:
        yield f"tensor name {printable(name)} has {len(name.encode())} bytes, wanted <= {MAX_NAME}"
    if not name or not name.isprintable():
        yield f"tensor name '{printable(name)}' is empty or not printable"
    if not 1 <= len(tensor.shape) <= MAX_DIMS or 0 in tensor.shape:
        shape = list(tensor.shape)
        yield f"tensor {printable(name)} has shape {shape}, wanted 1 to 4 dimensions above 0"
        return
    if isinstance(tensor, Encoded):
        values = decode(tensor)
    elif (
        tensor.is_floating_point() if isinstance(tensor, torch.Tensor) else tensor.dtype.kind == "f"
    ):
        values = _array(tensor)
    else:
        yield f"tensor {printable(name)} is {tensor.dtype}, wanted a floating type"
        return
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        yield f"tensor {printable(name)} holds values that are NaN, infinite or beyond float32"


def _array(tensor: np.ndarray | torch.Tensor) -> np.ndarray:
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().to("cpu", torch.float32).numpy()
    with np.errstate(over="ignore"):  # ends as Inf, which is refused
        return np.asarray(tensor, np.float32)


def _add_meta(writer: GGUFWriter, meta: Mapping[str, Any]) -> None:
    for name, found in meta.items():
        row = key_for(name)
        if name == "general.architecture":  # GGUFWriter's constructor has added it
            continue
        if row is None:
            kind, entries = _foreign_type(found)
        elif row.kind.startswith("["):
            kind, entries = GGUFValueType.ARRAY, _TYPES[row.kind[1:-1]]
        else:
            kind, entries = _TYPES[row.kind], None
        plain = found.tolist() if isinstance(found, np.ndarray | np.generic) else found
        writer.add_key_value(name, plain, kind, entries)


def _foreign_type(found: Any) -> tuple[GGUFValueType, GGUFValueType | None]:
    """Return the type for a key outside the schema: as wide as it comes."""
    if isinstance(found, np.ndarray):
        found = found.tolist()
    if isinstance(found, list | tuple):
        kinds = {_foreign_type(entry)[0] for entry in found}
        if len(kinds) != 1 or GGUFValueType.ARRAY in kinds:
            raise ValueError("is an array of mixed or nested values")
        return GGUFValueType.ARRAY, kinds.pop()
    if isinstance(found, bool | np.bool_):
        return GGUFValueType.BOOL, None
    if isinstance(found, int | np.integer) and -(1 << 63) <= found < 1 << 64:
        return (GGUFValueType.UINT64 if found >= 1 << 63 else GGUFValueType.INT64), None
    if isinstance(found, float | np.floating):
        return GGUFValueType.FLOAT64, None
    if isinstance(found, str):
        return GGUFValueType.STRING, None
    raise ValueError(f"is {type(found).__name__}, which metadata cannot hold")


def _kind(name: str, tensor: TensorLike, file_type: str) -> GGMLQuantizationType:
    if isinstance(tensor, Encoded):
        return tensor.type
    kind = storage_type(name, tuple(tensor.shape), file_type)
    is_plain = kind == GGMLQuantizationType.F32
    return kind if is_plain or can_hold(kind, peak_of(_array(tensor))) else GGMLQuantizationType.F32


def _encoded(tensor: TensorLike, kind: GGMLQuantizationType) -> Encoded:
    return tensor if isinstance(tensor, Encoded) else encode_as(_array(tensor), kind)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path``; move it there on success, else remove it.

    Raises:
        BundleError: the place is a directory or device, or cannot be written.
    """
    if not path.name or "\0" in path.name:
        raise bundle_error(path, ["is no name of a file"])
    temporary = path.with_name(f".{path.name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        if path.is_dir():
            raise bundle_error(path, ["is a directory; give the name of a file"])
        if path.exists() and not path.is_file():
            raise bundle_error(path, ["is no regular file; give the name of one"])
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise bundle_error(path, [f"cannot be written: {error.strerror or error}"]) from error
    finally:
        with suppress(OSError):  # not there after success, or its folder never was
            temporary.unlink()
