"""Checkpoint files: read without running their code, the model found inside its wrappers."""

import json
import pickle
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from jepa_wm.errors import ConversionError
from jepa_wm.models.source import Source

WEIGHT_FILES = ("model.safetensors", "weights.pt", "pytorch_model.bin")
WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar")
LFS_MAGIC = b"version https://git-lfs"
UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError)
WRAPPERS = ("module", "backbone", "_orig_mod")  # added by DDP, multi-mask and compile


def open_source(path: Path, anchors: Iterable[str], encoder_key: str | None = None) -> Source:
    """Open a checkpoint file, or a folder holding exactly one, and find the model in it.

    Args:
        path: Folder or file; config.json and preprocessor_config.json are read from beside the
            weights.
        anchors: Names at least one of which the family's state dict always has; what stands before
            it in a file is the prefix.
        encoder_key: Which entry to use when the file holds several.

    Raises:
        ConversionError: nothing or several things to choose from, git-lfs pointer, truncated or
            unsafe file.
    """
    weights = _weights_file(path)
    loaded = _load(weights)
    tensors, entry = _choose_entry(loaded, list(anchors), encoder_key, weights)
    config = _read_json(weights.parent / "config.json")
    processor = _read_json(weights.parent / "preprocessor_config.json")
    return Source(tensors, entry, config, processor)


def _weights_file(path: Path) -> Path:
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
    if any(p.name.endswith(".index.json") for p in path.iterdir()):
        raise ConversionError(f"{path}: the weights are sharded; merge them into one file first")
    names = ", ".join(p.name for p in found) or "none"
    raise ConversionError(
        f"{path}: need one weights file ({', '.join(WEIGHT_FILES)}), found {names}"
    )


def _load(path: Path) -> Any:
    """Read a weights file without running code from it."""
    with path.open("rb") as file:
        head = file.read(len(LFS_MAGIC))
    if head == LFS_MAGIC:
        raise ConversionError(
            f"{path} is a git LFS pointer, not the weights; fetch them with `git lfs pull`"
        )
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, zipfile.BadZipFile, *UNREADABLE) as error:
        first_line = str(error).strip().split("\n")[0][:160]
        raise ConversionError(
            f"{path} cannot be read: truncated, not a checkpoint, or it needs code to load "
            f"({first_line})"
        ) from error


def _flatten(value: Mapping[Any, Any], prefix: str = "") -> Iterable[tuple[str, Tensor]]:
    for key, item in value.items():
        if isinstance(item, Tensor):
            yield f"{prefix}{key}", item
        elif isinstance(item, Mapping):
            yield from _flatten(item, f"{prefix}{key}.")


def _choose_entry(
    loaded: Any, anchors: list[str], encoder_key: str | None, path: Path
) -> tuple[dict[str, Tensor], str]:
    """Find the one state dict holding an anchor and strip its prefix.

    Entries are the nested dicts of the file; a plain state dict is one entry called "".
    """
    if not isinstance(loaded, Mapping):
        raise ConversionError(f"{path} holds a {type(loaded).__name__}, not a dict of tensors")
    nested = {str(k): v for k, v in loaded.items() if isinstance(v, Mapping)}
    plain = {str(k): v for k, v in loaded.items() if isinstance(v, Tensor)}
    entries = {name: dict(_flatten(value)) for name, value in nested.items()} | {"": plain}
    found: dict[str, dict[str, Tensor]] = {}
    for entry, tensors in entries.items():
        prefixes = sorted({p for n in tensors if (p := _prefix(n, anchors)) is not None})
        for prefix in prefixes:
            # tensors beside the prefixed ones (a head, a loss) stay in sight of the accounting,
            # a sibling model under its own prefix does not
            others = tuple(p for p in prefixes if p != prefix and p)
            found[_entry_name(entry, prefix)] = {
                n.removeprefix(prefix): t
                for n, t in tensors.items()
                if not n.startswith(others or "\0")
            }
    return _one_of(found, encoder_key, path)


def _entry_name(entry: str, prefix: str) -> str:
    """Name an entry without the wrappers: ``encoder`` and ``module.backbone.`` -> ``encoder``."""
    parts = [p for p in (entry, *prefix.split(".")) if p and p not in WRAPPERS]
    return ".".join(parts)


def _prefix(name: str, anchors: list[str]) -> str | None:
    """Return what stands before an anchor: ``module.cls_token`` -> ``module.``."""
    for anchor in anchors:
        head = name.removesuffix(anchor)
        if head != name and (not head or head.endswith(".")):
            return head
    return None


def _one_of(
    found: dict[str, dict[str, Tensor]], encoder_key: str | None, path: Path
) -> tuple[dict[str, Tensor], str]:
    if encoder_key is not None:
        if encoder_key not in found:
            have = ", ".join(repr(k) for k in found) or "none"
            raise ConversionError(
                f"{path}: --encoder-key {encoder_key!r} not found; entries: {have}"
            )
        return found[encoder_key], encoder_key
    if not found:
        raise ConversionError(f"{path}: no tensors of this family found (0 tensors matched)")
    (entry, tensors), *others = found.items()
    for _, other in others:
        same = tensors.keys() == other.keys() and all(
            torch.equal(t, other[n]) for n, t in tensors.items()
        )
        if not same:
            names = ", ".join(repr(k) for k in found)
            raise ConversionError(
                f"{path} holds several different models ({names}): choose one with --encoder-key"
            )
    return tensors, entry


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConversionError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConversionError(f"{path} holds a {type(value).__name__}, not an object")
    return value
