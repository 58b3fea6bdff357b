"""Checkpoints of every layout: the model found inside its wrappers, other entries within reach.

A file is a flat dict of tensors, or a dict of such dicts (``encoder``, ``predictor`` ...) beside
an optimiser and counters. An entry belongs to a family where it holds one of the family's anchors.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from jepa_wm.errors import ConversionError
from jepa_wm.models.source import Source
from jepa_wm.models.weights import find_weights, read_json, read_weights

Tensors = dict[str, Tensor]

WRAPPERS = ("module", "backbone", "_orig_mod")  # added by DDP, multi-mask and compile
PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json")
PROBES = ("classifiers", "classifier")  # where a probe's file holds the head
MAX_DEPTH = 8  # of dicts in dicts; an optimiser's state is three deep


class UnmatchedError(ConversionError):
    """No anchor was found.

    Attributes:
        names: Every tensor name of the file, without wrappers.
    """

    def __init__(self, message: str, names: list[str]) -> None:
        super().__init__(message)
        self.names = names


def open_source(
    path: Path,
    anchors: Iterable[str],
    entry: str | None = None,
    default_entry: str | tuple[str, ...] = "",
    head: Path | None = None,
    unsafe_pickle: bool = False,
) -> Source:
    """Open a checkpoint file, or a folder holding one, and find the model in it.

    Args:
        path: Folder or file; config.json and the processor's configuration are read from beside
            the weights.
        anchors: Names at least one of which the family's state dict always has; what stands before
            it in a file is the prefix.
        entry: Which entry to use when the file holds several.
        default_entry: The family's choice where ``entry`` is None; the first that is there.
        head: Folder or file with a head for this model.
        unsafe_pickle: Let a pickle run the code it asks for.

    Raises:
        UnmatchedError: none of the anchors is there.
        ConversionError: nothing or several things to choose from, git-lfs pointer, truncated or
            unsafe file.
    """
    weights = find_weights(path)
    entries = _entries(read_weights(weights, unsafe_pickle))
    with _naming(weights):
        found = _candidates(entries, list(anchors))
    if not found:
        names = [name for tensors in entries.values() for name in tensors]
        wanted = " or ".join(anchors)
        raise UnmatchedError(
            f"{path}: 0 of {len(names)} tensors matched: looked for {wanted}", names
        )
    defaults = (default_entry,) if isinstance(default_entry, str) else default_entry
    source = _one_of(found, entry, defaults, path)
    source.config = read_json(weights.parent / "config.json")
    source.processor = _read_processor(weights.parent)
    source.head = None if head is None else _open_head(head, unsafe_pickle)
    return source


def fits(names: Iterable[str], anchors: Iterable[str]) -> bool:
    """Say whether one of the names is an anchor, under any prefix."""
    known = list(anchors)
    return any(_prefix(name, known) is not None for name in names)


def _open_head(path: Path, unsafe_pickle: bool) -> Source:
    """Open a probe's file (the first of its classifiers), or a file with one model."""
    weights = find_weights(path)
    loaded = read_weights(weights, unsafe_pickle)
    entries = _entries(loaded)
    for name in PROBES:
        probe, entry = loaded.get(name), name
        if isinstance(probe, list) and probe:
            probe, entry = probe[0], f"{name}.0"
        if isinstance(probe, Mapping):
            entries = {entry: _clean(_flatten(probe))}
            break
    if len(entries) != 1 or not all(entries.values()):
        names = ", ".join(repr(name) for name in entries if entries[name]) or "no tensors"
        raise ConversionError(f"{path}: no head found: wanted {' or '.join(PROBES)}, found {names}")
    ((entry, tensors),) = entries.items()
    # what lies beside a lone file may describe another model
    config = read_json(weights.parent / "config.json") if path.is_dir() else {}
    with _naming(weights):
        return Source(tensors, entry, config)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Put the file's name in front of what a source says of its tensors."""
    try:
        yield
    except ConversionError as error:
        raise ConversionError(f"{path}: {error}") from error


def _read_processor(folder: Path) -> dict[str, Any]:
    found = (read_json(folder / name) for name in PROCESSORS)
    return next(filter(None, found), {})


def _flatten(value: Mapping[Any, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple]:
    """Yield (dotted name, tensor); deeper than any checkpoint goes, a dict may hold itself."""
    for key, item in value.items():
        if isinstance(item, Tensor):
            yield f"{prefix}{key}", item
        elif isinstance(item, Mapping) and depth < MAX_DEPTH:
            yield from _flatten(item, f"{prefix}{key}.", depth + 1)


def _clean(named: Iterable[tuple[str, Tensor]]) -> Tensors:
    """Drop wrappers anywhere in a name; a name that would then stand for two tensors stays."""
    cleaned: Tensors = {}
    for name, tensor in named:
        short = ".".join(part for part in name.split(".") if part not in WRAPPERS)
        cleaned[name if short in cleaned else short] = tensor
    return cleaned


def _entries(loaded: Mapping[Any, Any]) -> dict[str, Tensors]:
    """Split a file into its dicts of tensors; a plain state dict is one entry called ""."""
    states = {k: v.state_dict() if isinstance(v, Module) else v for k, v in loaded.items()}
    nested = {str(k): v for k, v in states.items() if isinstance(v, Mapping)}
    entries = {name: _clean(_flatten(value)) for name, value in nested.items()}
    plain = _clean((str(k), v) for k, v in loaded.items() if isinstance(v, Tensor))
    return {name: tensors for name, tensors in (entries | {"": plain}).items() if tensors}


def _candidates(entries: dict[str, Tensors], anchors: list[str]) -> dict[str, Source]:
    """Return every place where an anchor is found, by name, its prefix stripped."""
    found: dict[str, Source] = {}
    for entry, tensors in entries.items():
        prefixes = sorted({p for n in tensors if (p := _prefix(n, anchors)) is not None})
        siblings = {name: other for name, other in entries.items() if name not in (entry, "")}
        for prefix in prefixes:
            # tensors beside the prefixed ones (a head, a loss) stay in sight of the accounting,
            # a sibling model under its own prefix does not
            others = tuple(p for p in prefixes if p != prefix and p)
            mine = {n: t for n, t in tensors.items() if not n.startswith(others or "\0")}
            name = ".".join(p for p in (entry, *prefix.split(".")) if p and p not in WRAPPERS)
            found[name] = Source(
                {n.removeprefix(prefix): t for n, t in mine.items()},
                name,
                siblings=siblings,
                beside=frozenset(n for n in mine if not n.startswith(prefix)),
            )
    return found


def _prefix(name: str, anchors: list[str]) -> str | None:
    """Return what stands before an anchor: ``model.cls_token`` -> ``model.``."""
    for anchor in anchors:
        head = name.removesuffix(anchor)
        if head != name and (not head or head.endswith(".")):
            return head
    return None


def _one_of(
    found: dict[str, Source], entry: str | None, defaults: Iterable[str], path: Path
) -> Source:
    """Return the entry asked for, the family's default, or the only one there is."""
    names = ", ".join(repr(name) for name in found)
    if entry is not None:
        chosen = _named(found, entry)
        if chosen is None:
            raise ConversionError(f"{path}: --entry {entry!r} not found; entries: {names}")
        return chosen
    for default in filter(None, defaults):
        chosen = _named(found, default)
        if chosen is not None:
            return chosen
    first, *others = found.values()
    if not all(_same(first.tensors, other.tensors) for other in others):
        raise ConversionError(
            f"{path} holds several different models ({names}): choose one with --entry"
        )
    return first


def _named(found: dict[str, Source], name: str) -> Source | None:
    """Find an entry by its name, or by how its name ends (``encoder`` for ``model.encoder``)."""
    ending = [source for entry, source in found.items() if entry.endswith(f".{name}")]
    return found.get(name) or (ending[0] if len(ending) == 1 else None)


def _same(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(
        t.dtype == b[n].dtype and torch.equal(t, b[n]) for n, t in a.items()
    )
