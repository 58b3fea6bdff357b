"""Solver: one solve of a planner, launched kernel by kernel or replayed as a CUDA graph."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.graphs import Problem, Recorder, SolveGraphs, record_cuda_graph
from jepa_wm.control.interfaces import Bounds, Plan, Planner
from jepa_wm.control.limits import Limits
from jepa_wm.control.streams import CounterStreams, Streams


class Solver:
    """Runs a planner with its bounds and limits.

    On a CPU every row draws from a generator of its own. On another device a planner that never
    waits for it (``is_recordable``) draws from counters there, and its solves are recorded as
    graphs, unless limits or the objective need to know what happened before the solve or the world
    model computes on the host.

    Args:
        planner: Searches.
        bounds: Solver-space box, on the device.
        device: Where plans live.
        limits: What environment actions may be beside the environment's box, or None.
        record: Records solves, or None to launch every kernel.
    """

    def __init__(
        self,
        planner: Planner,
        bounds: Bounds,
        device: torch.device,
        limits: Limits | None = None,
        record: Recorder | None = record_cuda_graph,
    ) -> None:
        self.planner, self.bounds, self.device, self.limits = planner, bounds, device, limits
        self._draws_there = device.type != "cpu" and bool(getattr(planner, "is_recordable", False))
        self._record = record if self._draws_there and limits is None else None
        self._graphs: SolveGraphs | None = None

    def solve(
        self,
        cost: RolloutCost,
        start: Plan,
        seeds: Sequence[int],
        last: torch.Tensor | None = None,
    ) -> tuple[Plan, int]:
        """Solve one problem a row.

        Args:
            cost: Of this solve; costs of one loop differ in past, goals and situation only.
            start: Where to begin.
            seeds: One a row.
            last: Environment actions executed last [B,a], for limits; None where there were none.

        Returns:
            The plan, and how many candidates were scored.
        """
        if self._record is not None and cost.is_recordable:
            if self._graphs is None:
                self._graphs = SolveGraphs(self._recorded(cost), self._record)
            row_seeds = CounterStreams(seeds, self.device).seeds
            return self._graphs(Problem(cost.context, cost.goal_z, start, row_seeds))
        planner = self.planner
        if self.limits is not None:
            planner = self.limits.bind(planner, last, self.device)
        plan = planner.plan(cost, start, self.bounds, self._streams(seeds))
        return plan, cost.evaluations

    def _streams(self, seeds: Sequence[int]) -> Streams:
        if self._draws_there:
            return CounterStreams(seeds, self.device)
        return [torch.Generator().manual_seed(seed) for seed in seeds]

    def _recorded(self, example: RolloutCost) -> "_Recorded":
        return _Recorded(self.planner, self.bounds, example)


class _Recorded:
    """The solve that is recorded: everything but the problem is fixed."""

    def __init__(self, planner: Planner, bounds: Bounds, example: RolloutCost) -> None:
        self.planner, self.bounds, self.example = planner, bounds, example

    def __call__(self, problem: Problem, streams: CounterStreams) -> tuple[Plan, int]:
        cost = replace(self.example, context=problem.context, goal_z=problem.goal_z, situation=None)
        plan = self.planner.plan(cost, problem.start, self.bounds, streams)
        return plan, cost.evaluations
