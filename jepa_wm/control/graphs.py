"""SolveGraphs: whole solves recorded once as CUDA graphs and replayed with one launch.

A small model's solve is thousands of kernels of a few microseconds, and the host needs longer to
launch them than the device to run them. A graph holds them all: the host copies the problem into
fixed memory, launches once, and copies the plan out. One graph serves one set of shapes, so rows
are padded up to a power of two as episodes end.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Context, Plan, PlanTrace, Scored
from jepa_wm.control.streams import CounterStreams

KEPT = 12  # graphs, the longest unused going first; each holds a solve's memory
WARM_UP = 2  # runs before recording, in which libraries choose their kernels


@dataclass(frozen=True)
class Problem:
    """Everything a solve reads that changes from one to the next; B rows.

    Attributes:
        context: The past.
        goal_z: Goal latents [B,*L].
        start: Where the planner begins.
        seeds: One a row, int64 [B].
    """

    context: Context
    goal_z: Tensor
    start: Plan
    seeds: Tensor


Solve = Callable[[Problem, CounterStreams], tuple[Plan, int]]
"""Solves a problem without ever waiting for the device; says how many candidates it scored."""


class Recorder(Protocol):
    """Runs a function and returns what repeats its work into the same memory."""

    def __call__(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record ``run``."""
        ...


def record_cuda_graph(run: Callable[[], None]) -> Callable[[], None]:
    """Record ``run`` as a CUDA graph; return its replay."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], None] = graph.replay
    return replay


class SolveGraphs:
    """Solves problems through graphs, one for each set of shapes.

    Args:
        solve: What is recorded.
        record: How; ``record_cuda_graph`` on a device.
    """

    def __init__(self, solve: Solve, record: Recorder = record_cuda_graph) -> None:
        self.solve, self.record = solve, record
        self._graphs: OrderedDict[tuple, _Graph] = OrderedDict()

    def __call__(self, problem: Problem) -> tuple[Plan, int]:
        """Solve; the plan owns its memory and keeps its values when the graph runs again."""
        rows = len(problem.seeds)
        padded = _map(problem, lambda values: _pad(values, 1 << (rows - 1).bit_length()))
        key = tuple((tuple(leaf.shape), leaf.dtype) if leaf is not None else None
                    for leaf in _leaves(padded))  # fmt: skip
        if key not in self._graphs:
            self._graphs[key] = _Graph(self.solve, padded, self.record)
            while len(self._graphs) > KEPT:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        plan, evaluations = self._graphs[key](padded)
        trace = plan.trace and PlanTrace(
            *(x[:, :rows].clone() for x in _leaves(plan.trace) if x is not None)
        )
        return replace(_map(plan, lambda values: values[:rows].clone()), trace=trace), evaluations


class _Graph:
    """One recorded solve with its own memory for the problem and the plan."""

    def __init__(self, solve: Solve, example: Problem, record: Recorder) -> None:
        self._problem = _map(example, Tensor.clone)
        self._solved: tuple[Plan, int] | None = None

        def run() -> None:
            seeds = self._problem.seeds
            self._solved = solve(self._problem, CounterStreams(seeds, seeds.device))

        # what is recorded is what is launched on the current device: it must be the problem's
        with torch.cuda.device_of(self._problem.seeds):  # changes nothing without CUDA
            self._replay = record(run)

    def __call__(self, problem: Problem) -> tuple[Plan, int]:
        for mine, theirs in zip(_leaves(self._problem), _leaves(problem), strict=True):
            if mine is not None and theirs is not None:
                mine.copy_(theirs, non_blocking=True)
        self._replay()
        assert self._solved is not None  # recording ran it
        return self._solved


def _pad(values: Tensor, rows: int) -> Tensor:
    """Repeat the first row at the end until there are ``rows``."""
    missing = rows - len(values)
    if not missing:
        return values
    return torch.cat([values, values[:1].expand(missing, *values.shape[1:])])


def _leaves(record: Any) -> Sequence[Tensor | None]:
    """Return the tensors of a record and of those within it, in order."""
    found: list[Tensor | None] = []
    for field in fields(record):
        value = getattr(record, field.name)
        found.extend([value] if value is None or isinstance(value, Tensor) else _leaves(value))
    return found


def _map(record: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor of a record and of those within it; traces stay out."""
    changes: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, Tensor):
            changes[field.name] = function(value)
        elif isinstance(value, Context | Plan | Scored):
            changes[field.name] = _map(value, function)
    return replace(record, **changes)
