"""Source checkpoints for the converters: read safely, unwrap, and account for every tensor.

A ``Source`` is a mapping that remembers what was taken. A family converts by filling its source map from it; whatever is
missing or left over at the end is reported in one error, so a prefix mismatch can never pass as a conversion.
"""

import hashlib
import json
import pickle
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from jepa_wm.errors import ConversionError

WEIGHT_FILES = ("model.safetensors", "weights.pt", "pytorch_model.bin")
WEIGHT_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar")
LFS_MAGIC = b"version https://git-lfs"
UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError)
WRAPPERS = ("module", "backbone", "_orig_mod")  # added by DDP, multi-mask and compile
SHOWN = 20  # names listed in an error before "and N more"

SourceMap = Mapping[str, tuple[str, ...]]
"""Target name -> source names it may have, ``{i}`` the layer, a final ``.*`` weight and bias, ``[a,b,c]`` rows to stack."""


@dataclass
class Source:
    """The tensors of one entry of a checkpoint, with the prefix removed.

    Attributes:
        tensors: Name -> tensor as stored.
        entry: Where they lay in the file (``encoder``, ``state_dict`` ...), empty for the top level.
        config: The checkpoint's config.json, empty if there is none.
        processor: The checkpoint's preprocessor_config.json, empty if there is none.
        taken: Names a family has used or deliberately skipped.
        skipped: Those of them that were skipped.
        missing: Targets that no source name could fill.
    """

    tensors: dict[str, Tensor]
    entry: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    processor: dict[str, Any] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, empty if it is absent."""
        return tuple(self.tensors[name].shape) if name in self.tensors else ()

    def take(self, name: str) -> Tensor:
        """Return a tensor as float32 and mark it used."""
        self.taken.add(name)
        return self.tensors[name].detach().to(torch.float32)

    def skip(self, patterns: Iterable[str]) -> None:
        """Mark tensors whose whole name matches a regular expression as deliberately unused."""
        self.skipped |= {n for n in self.tensors if any(re.fullmatch(p, n) for p in patterns)}
        self.taken |= self.skipped

    def layers(self, names: Iterable[str]) -> int:
        """Count the consecutive ``{i}`` for which one of the name templates exists."""
        templates = [alternatives(n)[0].replace(".*", ".weight") for n in names]
        count = 0
        while any(t.replace("{i}", str(count)) in self.tensors for t in templates):
            count += 1
        return count

    def fill(self, source_map: SourceMap, n_layer: int, prefix: str = "") -> dict[str, Tensor]:
        """Take every target of a map; targets that cannot be filled are noted in ``missing``.

        Args:
            source_map: Target -> source names, see ``SourceMap``; the first that exists wins.
            n_layer: How often a ``{i}`` row is repeated.
            prefix: Put in front of every source name.
        """
        filled = {}
        for target, names in expand(source_map, n_layer):
            options = [[prefix + part for part in alternatives(name)] for name in names]
            parts = next((o for o in options if all(p in self.tensors for p in o)), None)
            if parts is None:
                self.missing.append(f"{target} (from {' or '.join(o[0] for o in options)})")
            else:
                taken = [self.take(p) for p in parts]
                filled[target] = taken[0] if len(taken) == 1 else torch.cat(taken)
        return filled

    def finish(self, reasons: Mapping[str, str]) -> None:
        """Refuse if anything is missing or left over.

        Args:
            reasons: Regular expression -> why a left-over of that name cannot be represented.

        Raises:
            ConversionError: naming all of them.
        """
        left = sorted(set(self.tensors) - self.taken)
        if not (left or self.missing):
            return
        why = sorted({r for p, r in reasons.items() if any(re.fullmatch(p, n) for n in left)})
        used = len(self.tensors) - len(left)
        parts = [f"{used} of {len(self.tensors)} source tensors used", *why]
        if self.missing:
            parts.append(f"{len(self.missing)} missing: {listed(self.missing)}")
        if left:
            parts.append(f"{len(left)} left over: {listed(left)}")
        raise ConversionError("; ".join(parts))

    def sha256(self) -> str:
        """Hash names, dtypes, shapes and bytes of this entry's tensors, in name order."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.tensors.items()):
            digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
        return digest.hexdigest()


def alternatives(name: str) -> list[str]:
    """Expand ``a.[q,k,v].b`` into its three names; a plain name is returned alone."""
    head, bracket, rest = name.partition("[")
    if not bracket:
        return [name]
    options, _, tail = rest.partition("]")
    return [head + option + tail for option in options.split(",")]


def expand(source_map: SourceMap, n_layer: int) -> Iterable[tuple[str, list[str]]]:
    """Yield (target, source names) with ``{i}`` and ``.*`` written out."""
    for target, names in source_map.items():
        endings = (".weight", ".bias") if target.endswith(".*") else ("",)
        for i in range(n_layer if "{i}" in target else 1):
            for ending in endings:
                target_name, *source_names = (
                    n.removesuffix(".*").replace("{i}", str(i)) + ending for n in (target, *names)
                )
                yield target_name, source_names


def listed(names: list[str]) -> str:
    """Join names for an error, at most ``SHOWN`` of them."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def open_source(path: Path, anchors: Iterable[str], encoder_key: str | None = None) -> Source:
    """Open a checkpoint file, or a folder holding exactly one, and find the model in it.

    Args:
        path: Folder or file; config.json and preprocessor_config.json are read from beside the weights.
        anchors: Names at least one of which the family's state dict always has; what stands before it in a file is
            the prefix.
        encoder_key: Which entry to use when the file holds several.

    Raises:
        ConversionError: nothing or several things to choose from, git-lfs pointer, truncated or unsafe file.
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
    raise ConversionError(f"{path}: need one weights file ({', '.join(WEIGHT_FILES)}), found {names}")


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
            f"{path} cannot be read: truncated, not a checkpoint, or needs code to load ({first_line})"
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
                n.removeprefix(prefix): t for n, t in tensors.items() if not n.startswith(others or "\0")
            }
    return _one_of(found, encoder_key, path)


def _entry_name(entry: str, prefix: str) -> str:
    """Name an entry without the wrappers: ``encoder`` and ``module.backbone.`` -> ``encoder``."""
    parts = [p for p in (entry, *prefix.split(".")) if p and p not in WRAPPERS]
    return ".".join(parts)


def _prefix(name: str, anchors: list[str]) -> str | None:
    """Return what stands before an anchor: name ``module.backbone.cls_token`` -> ``module.backbone.``."""
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
            raise ConversionError(f"{path}: --encoder-key {encoder_key!r} not found; entries: {have}")
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
