"""A source checkpoint in the hands of a converter: every tensor is accounted for.

A ``Source`` is a mapping that remembers what was taken. A family converts by filling its source map
from it; whatever is missing or left over at the end is reported in one error, so a prefix mismatch
can never pass as a conversion.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from jepa_wm.bundle.faults import printable
from jepa_wm.errors import ConversionError

SHOWN = 20  # names listed in an error before "and N more"

SourceMap = Mapping[str, tuple[str, ...]]
"""Target -> names it may have; ``{i}`` layer, ``.*`` weight and bias, ``[a,b,c]`` rows to stack."""


@dataclass
class Source:
    """The tensors of one entry of a checkpoint, with wrappers and prefix removed.

    Attributes:
        tensors: Name -> tensor as stored.
        entry: Where they lay in the file (``encoder``, ``state_dict`` ...), empty for the top
            level.
        config: The checkpoint's config.json, empty if there is none.
        processor: The checkpoint's preprocessor_config.json (or that of videos), empty if there is
            none.
        head: The file the user gave for the head, None if none was given. Whatever lies in it has
            to be used as well.
        siblings: Other entries of the file; ``part`` opens them, those left closed do not count.
        beside: Names in ``tensors`` that did not stand under the prefix.
        parts: Entries that were opened.
        taken: Names a family has used or deliberately skipped.
        skipped: Those of them that were skipped.
        missing: Targets that no source name could fill.
    """

    tensors: dict[str, Tensor]
    entry: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    processor: dict[str, Any] = field(default_factory=dict)
    head: "Source | None" = None
    siblings: Mapping[str, dict[str, Tensor]] = field(default_factory=dict)
    beside: frozenset[str] = frozenset()
    parts: dict[str, "Source"] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        wrong = [name for name, tensor in self.tensors.items() if not _is_plain(tensor)]
        if wrong:
            raise ConversionError(
                f"{len(wrong)} tensors are sparse, quantised, without data or larger than their "
                f"storage: {listed(wrong)}"
            )

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def part(self, name: str) -> "Source | None":
        """Return another entry of the same file (``predictor``), None if the file has none.

        An entry is a dict beside this one, or, in a flat file, the tensors ``name.*`` beside this
        one's prefix. What is opened is part of the accounting: ``finish`` wants all of it used.
        """
        if name not in self.parts:
            start = f"{name}."
            inside = [n for n in self.beside if n.startswith(start) and n in self.tensors]
            tensors = self.siblings.get(name) or {
                n.removeprefix(start): self.tensors.pop(n) for n in inside
            }
            if not tensors:
                return None
            self.parts[name] = Source(tensors, name, self.config, self.processor)
        return self.parts[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, empty if it is absent."""
        return tuple(self.tensors[name].shape) if name in self.tensors else ()

    def take(self, name: str) -> Tensor:
        """Return a tensor as float32 and mark it used.

        Raises:
            ConversionError: it holds no floating numbers; the scale of integers lies elsewhere.
        """
        tensor = self.tensors[name].detach()
        if not tensor.is_floating_point():
            raise ConversionError(f"{printable(name)} is {tensor.dtype}, wanted floating numbers")
        self.taken.add(name)
        return tensor.to(torch.float32)

    def skip(self, patterns: Iterable[str]) -> None:
        """Mark unused tensors whose whole name matches a regular expression as not needed."""
        unused = self.tensors.keys() - self.taken
        self.skipped |= {n for n in unused if any(re.fullmatch(p, n) for p in patterns)}
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

        Raises:
            ConversionError: single numbers, or rows to stack that are of several widths.
        """
        filled = {}
        for target, names in expand(source_map, n_layer):
            options = [[prefix + part for part in alternatives(name)] for name in names]
            parts = next((o for o in options if all(p in self.tensors for p in o)), None)
            if parts is None:
                self.missing.append(f"{target} (from {' or '.join(o[0] for o in options)})")
            else:
                filled[target] = self._stacked(parts)
        return filled

    def _stacked(self, parts: list[str]) -> Tensor:
        """Take tensors and put their rows below each other."""
        taken = [self.take(part) for part in parts]
        single = [part for part, tensor in zip(parts, taken, strict=True) if not tensor.ndim]
        if single:
            raise ConversionError(f"{listed(single)} is a single number")
        shapes = [list(tensor.shape) for tensor in taken]
        if any(shape[1:] != shapes[0][1:] for shape in shapes):
            raise ConversionError(
                f"{listed(parts)}: shapes {', '.join(map(str, shapes))}, wanted rows of one width"
            )
        return taken[0] if len(taken) == 1 else torch.cat(taken)

    def finish(self, reasons: Mapping[str, str]) -> None:
        """Refuse if anything is missing or left over, here, in an opened part or in the head.

        Args:
            reasons: Regular expression -> why a left-over of that name cannot be represented.

        Raises:
            ConversionError: naming all of them.
        """
        missing, left, why = [], [], set()
        for label, source in self._opened():
            missing += [label + target for target in source.missing]
            unused = sorted(set(source.tensors) - source.taken)
            left += [label + name for name in unused]
            why |= {r for p, r in reasons.items() if any(re.fullmatch(p, n) for n in unused)}
        if not (left or missing):
            return
        if self.head is not None and not self.head.taken:
            why.add("the file given as head holds nothing this model can use")
        total = sum(len(source.tensors) for _, source in self._opened())
        faults = [f"{total - len(left)} of {total} source tensors used", *sorted(why)]
        if missing:
            faults.append(f"{len(missing)} missing: {listed(missing)}")
        if left:
            faults.append(f"{len(left)} left over: {listed(left)}")
        raise ConversionError("; ".join(faults))

    def counts(self) -> tuple[int, int]:
        """Return how many tensors were used and how many skipped, opened parts and head included.

        Call it after ``finish``.
        """
        skipped = sum(len(source.skipped) for _, source in self._opened())
        return sum(len(source.taken) for _, source in self._opened()) - skipped, skipped

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors, opened parts and head included."""
        return sum(t.nbytes for _, source in self._opened() for t in source.tensors.values())

    def sha256(self, progress: Callable[[int], object] = int) -> str:
        """Hash names, dtypes, shapes and bytes of all tensors, opened parts and head included.

        Args:
            progress: Called with the number of bytes after every tensor.
        """
        digest = hashlib.sha256()
        for label, source in sorted(self._opened(), key=lambda pair: pair[0]):
            for name, tensor in sorted(source.tensors.items()):
                digest.update(f"{label}{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
                stored = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
                digest.update(stored.numpy().data)
                progress(tensor.nbytes)
        return digest.hexdigest()

    def _opened(self) -> Iterator[tuple[str, "Source"]]:
        """Yield this entry, the opened parts and the head, each with what its names start with."""
        yield "", self
        for name, part in self.parts.items():
            yield f"{name}: ", part
        if self.head is not None:
            yield "head: ", self.head


def _is_plain(tensor: Tensor) -> bool:
    """Say whether a tensor's numbers lie in memory; a forged shape asks for more than there is."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return False
    return tensor.nbytes <= tensor.untyped_storage().nbytes()


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
    return ", ".join(map(printable, names[:SHOWN])) + more
