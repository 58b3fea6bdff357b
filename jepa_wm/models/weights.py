"""Files of weights: found, and read without running code that they carry.

safetensors in one file or in shards, and pickles written by torch. Tensors are views of the mapped
file where its format allows: the bytes of one are read when it is converted.
"""

import json
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from jepa_wm.bundle.faults import printable
from jepa_wm.errors import ConversionError
from jepa_wm.models.source import listed

INDEX = ".index.json"
WEIGHT_FILES = (
    "model.safetensors",
    f"model.safetensors{INDEX}",
    "weights.pt",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX}",
)
WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar")
MAX_JSON = 64 << 20  # bytes; an index of 10,000 tensors has one
NOT_WEIGHTS = {
    b"version https://git-lfs": "is a git LFS pointer, not the weights; fetch them with "
    "`git lfs pull`",
    b"GGUF": "is a GGUF file already, not a checkpoint to convert",
}
PYTORCH = (b"PK", b"\x80")  # a zip file, or a pickle as torch wrote it before
# what torch and pickle raise on bytes that were never a pickle, or are half of one
UNREADABLE = (
    pickle.UnpicklingError, SafetensorError, zipfile.BadZipFile, struct.error, RuntimeError,
    EOFError, OSError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
    OverflowError, MemoryError, ImportError,
)  # fmt: skip


def find_weights(path: Path) -> Path:
    """Return the weights file, or the index of the shards, that a path stands for.

    Raises:
        ConversionError: nothing there, or several files and none of a known name.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise ConversionError(f"{path}: no such file or folder")
    for name in WEIGHT_FILES:
        if (path / name).is_file():
            return path / name
    found = sorted(p for p in path.iterdir() if p.suffix in WEIGHT_SUFFIXES)
    if len(found) == 1:
        return found[0]
    names = ", ".join(p.name for p in found) or "none"
    raise ConversionError(
        f"{path}: need one weights file ({', '.join(WEIGHT_FILES)}), found {names}"
    )


def read_weights(path: Path, unsafe_pickle: bool = False) -> Mapping[Any, Any]:
    """Read a file of weights, or all shards of an index.

    Args:
        path: As ``find_weights`` returns it.
        unsafe_pickle: Let a pickle run the code it asks for.

    Raises:
        ConversionError: the file is truncated, empty, a git-lfs pointer, needs code, holds no
            dict, or shards and index disagree.
    """
    if path.name.endswith(INDEX):
        return _read_shards(path, unsafe_pickle)
    try:
        with path.open("rb") as file:
            head = file.read(max(map(len, NOT_WEIGHTS)))
    except OSError as error:
        raise ConversionError(f"{path} cannot be read: {error.strerror or error}") from error
    if not head:
        raise ConversionError(f"{path} cannot be read: it is empty")
    for magic, what in NOT_WEIGHTS.items():
        if head.startswith(magic):
            raise ConversionError(f"{path} {what}")
    try:
        is_safe = path.suffix == ".safetensors"
        loaded = load_file(path) if is_safe else _unpickle(path, unsafe_pickle)
    except UNREADABLE as error:
        raise ConversionError(f"{path} {_reason(error, path, head)}") from error
    if isinstance(loaded, torch.nn.Module):
        loaded = loaded.state_dict()
    if not isinstance(loaded, Mapping):
        raise ConversionError(f"{path} holds a {type(loaded).__name__}, not a dict of tensors")
    return loaded


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; a file that is not there is an empty one.

    Raises:
        ConversionError: it is not JSON, not an object, or absurdly large.
    """
    if not path.is_file():
        return {}
    if path.stat().st_size > MAX_JSON:
        raise ConversionError(f"{path} has {path.stat().st_size} bytes, wanted <= {MAX_JSON}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ConversionError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConversionError(f"{path} holds a {type(value).__name__}, not an object")
    return value


def _unpickle(path: Path, unsafe: bool) -> Any:
    """Load a pickle; only the zip format can be mapped."""
    mapped = zipfile.is_zipfile(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on oddities of a file that nothing here depends on
        return torch.load(path, map_location="cpu", weights_only=not unsafe, mmap=mapped)


def _reason(error: BaseException, path: Path, head: bytes) -> str:
    """Say in one line why a file that starts with ``head`` could not be loaded."""
    wanted = re.search(r"GLOBAL ([\w.]+)", str(error))
    if isinstance(error, pickle.UnpicklingError) and wanted is not None:
        return (
            f"needs code to load: its pickle asks for {printable(wanted[1])}; if you trust where "
            "it comes from, let it run with --unsafe-pickle"
        )
    if path.suffix != ".safetensors" and head[8:9] == b"{":
        return "is safetensors by its content; give it a name that ends in .safetensors"
    if path.suffix != ".safetensors" and not head.startswith(PYTORCH):
        return "is no checkpoint: neither safetensors nor a PyTorch file"
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    if isinstance(error, ImportError):
        return f"needs code that is not installed ({printable(first_line)})"
    first = first_line.split(". ")[0]  # advice on torch's own arguments follows
    return f"cannot be read: truncated or not a checkpoint ({printable(first, 160)})"


def _read_shards(index: Path, unsafe_pickle: bool) -> dict[str, Tensor]:
    """Read the shards an index names; each must hold exactly what the index says."""
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ConversionError(f"{index} has no weight_map of tensor names to shards")
    shards: dict[str, set[str]] = {}
    for name, shard in places.items():
        is_name = isinstance(shard, str) and shard and Path(shard).name == shard
        if not is_name or shard.endswith(INDEX):  # an index that names itself has no end
            raise ConversionError(
                f"{index}: {printable(name)} lies in {printable(shard)}, wanted a file's name"
            )
        shards.setdefault(shard, set()).add(name)
    missing = [shard for shard in sorted(shards) if not (index.parent / shard).is_file()]
    if missing:
        raise ConversionError(
            f"{index}: {len(missing)} of {len(shards)} shards missing: {listed(missing)}"
        )
    tensors: dict[str, Tensor] = {}
    for shard, names in sorted(shards.items()):
        tensors |= _read_shard(index, shard, names, unsafe_pickle)
    return tensors


def _read_shard(index: Path, shard: str, names: set[str], unsafe: bool) -> dict[str, Tensor]:
    loaded = read_weights(index.parent / shard, unsafe)
    lacking, strange = sorted(names - loaded.keys()), sorted(loaded.keys() - names)
    wrong = [f"lacks {listed(lacking)}"] if lacking else []
    wrong += [f"holds {listed(strange)} besides"] if strange else []
    if wrong:
        raise ConversionError(f"{index.parent / shard} {' and '.join(wrong)}, by {index.name}")
    return dict(loaded)
