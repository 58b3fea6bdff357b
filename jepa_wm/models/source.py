"""A source checkpoint in the hands of a converter: every tensor is accounted for.

A ``Source`` is a mapping that remembers what was taken. A family converts by filling its source map
from it; whatever is missing or left over at the end is reported in one error, so a prefix mismatch
can never pass as a conversion.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from jepa_wm.errors import ConversionError

SHOWN = 20  # names listed in an error before "and N more"

SourceMap = Mapping[str, tuple[str, ...]]
"""Target -> names it may have; ``{i}`` layer, ``.*`` weight and bias, ``[a,b,c]`` rows to stack."""


@dataclass
class Source:
    """The tensors of one entry of a checkpoint, with the prefix removed.

    Attributes:
        tensors: Name -> tensor as stored.
        entry: Where they lay in the file (``encoder``, ``state_dict`` ...), empty for the top
            level.
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
            digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)
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
