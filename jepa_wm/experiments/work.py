"""How much arithmetic a piece of code does, counted while it runs, and how fast a machine does it.

The counter sees every matrix product and fused attention that PyTorch is asked for, so it counts
what the code does, not what a formula says it should.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from jepa_wm.models.packed import PackedLinear
from jepa_wm.runtime import synchronised_seconds

PROBE_ROWS = 2048  # of the matrix products that measure a device
PROBE_WIDTHS = (2048, 512)  # of their square weights: one for large models, one that caches hold
PROBE_BYTES = 256 << 20  # of the copy, larger than any cache
PROBE_SECONDS = 0.2
PROBE_ROUNDS = 3  # what disturbs one of them need not disturb the next


@dataclass(frozen=True)
class Work:
    """Arithmetic and traffic.

    Attributes:
        flops: Operations of matrix products and attention, a multiply-add counting as two.
        bytes: What those read and wrote if nothing stayed in a cache between two of them. Much
            does (that is what pieces of a rollout are cut for), so it bounds the traffic from
            above, not from below.
    """

    flops: float
    bytes: float

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.bytes + other.bytes)

    def __sub__(self, other: "Work") -> "Work":
        return Work(self.flops - other.flops, self.bytes - other.bytes)

    def times(self, factor: float) -> "Work":
        """Return the work of doing it ``factor`` times."""
        return Work(self.flops * factor, self.bytes * factor)


@dataclass(frozen=True)
class Speed:
    """What a device reaches.

    Attributes:
        flops: Operations a second in large matrix products of a dtype, the most found.
        bytes: Bytes a second, read and written, in a large copy.
    """

    flops: float
    bytes: float

    def floor(self, work: Work) -> float:
        """Seconds the arithmetic of some work takes at this speed."""
        return work.flops / self.flops

    def uncached(self, work: Work) -> float:
        """Seconds its bytes take to move if none are in a cache: no floor, see ``Work``."""
        return work.bytes / self.bytes


def count(run: Callable[[], Any]) -> Work:
    """Run once and count; on one thread, since other threads are not seen."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with _Counter() as counter:
            run()
    finally:
        torch.set_num_threads(threads)
    return counter.work


def probe(device: torch.device, dtype: torch.dtype) -> Speed:
    """Measure a device: large matrix products in ``dtype`` and a large copy, best of several.

    Products are those of the models' own layers, with the threads PyTorch is set to use.
    """
    rows = PROBE_ROWS
    source = torch.empty(PROBE_BYTES // 4, device=device)
    target = torch.empty_like(source)
    inputs = [torch.randn(rows, width, device=device).to(dtype) for width in PROBE_WIDTHS]
    layers = [
        PackedLinear(torch.randn(width, width, device=device), None, dtype)
        for width in PROBE_WIDTHS
    ]
    flops, moved = 0.0, 0.0
    with torch.inference_mode():
        for _ in range(PROBE_ROUNDS):
            for width, layer, x in zip(PROBE_WIDTHS, layers, inputs, strict=True):
                product = _best(partial(layer, x), device)
                flops = max(flops, 2 * rows * width**2 / product)
            moved = max(moved, 2 * PROBE_BYTES / _best(lambda: target.copy_(source), device))
    return Speed(flops, moved)


def _best(run: Callable[[], Any], device: torch.device) -> float:
    seconds: list[float] = []
    began = time.perf_counter()
    while len(seconds) < 3 or time.perf_counter() - began < PROBE_SECONDS:
        start = synchronised_seconds(device)
        run()
        seconds.append(synchronised_seconds(device) - start)
    return min(seconds[1:])


class _Counter(TorchDispatchMode):
    """Adds up the matrix products that pass through."""

    def __init__(self) -> None:
        super().__init__()
        self.work = Work(0.0, 0.0)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        flops = _flops(func.name(), args)
        if flops:
            operands = [*args, *(found if isinstance(found, tuple) else (found,))]
            moved = sum(_size(x) for x in operands if isinstance(x, Tensor))
            self.work = self.work + Work(flops, moved)
        return found


def _size(x: Tensor) -> float:
    """Bytes of a tensor, each element once however it is expanded."""
    shape = x.shape
    if x.layout == torch.strided:
        shape = torch.Size(
            n for n, stride in zip(x.shape, x.stride(), strict=True) if stride or n == 1
        )
    return prod(shape) * x.element_size()


def _flops(name: str, args: tuple[Any, ...]) -> float:
    """Operations of one call of an operator; 0 for what is no matrix product."""
    kind = name.partition(".")[0]
    if kind == "mkldnn::_linear_pointwise":
        return 2.0 * prod(args[0].shape) * args[1].shape[0]
    if kind in ("aten::mm", "aten::bmm"):
        return 2.0 * prod(args[0].shape) * args[1].shape[-1]
    if kind in ("aten::addmm", "aten::baddbmm"):
        return 2.0 * prod(args[1].shape) * args[2].shape[-1]
    if kind == "aten::linear":
        return 2.0 * prod(args[0].shape) * args[1].shape[0]
    if kind.startswith("aten::_scaled_dot_product"):
        q, k = args[0], args[1]
        return 4.0 * prod(q.shape) * k.shape[-2]
    if kind == "aten::convolution":
        raise NotImplementedError("convolutions are not counted; no model here has one")
    return 0.0
