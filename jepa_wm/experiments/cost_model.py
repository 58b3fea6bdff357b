"""What one decision costs: its arithmetic, the time that takes at least, and the time it took.

Where measured time and floor are close, only less arithmetic or fewer bits help; where they are far
apart, the time goes into launches, memory or Python. The floor is of arithmetic alone. The bytes
are what products would move if no operand stayed in a cache; most do, so the time of moving them is
told beside the floor and is none: a stage may well be faster.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.interfaces import Plan
from jepa_wm.control.mpc import MPC
from jepa_wm.experiments.first_cost import Seen, first_cost
from jepa_wm.experiments.work import Speed, Work, count
from jepa_wm.runtime import synchronised_seconds

REPEATS = 5


@dataclass(frozen=True)
class Stage:
    """One part of a decision.

    Attributes:
        name: ``encode``, ``rollout``, ``update`` or ``decision``.
        work: Its arithmetic; None where it is none worth counting.
        floor: Seconds the arithmetic takes at the measured speed.
        uncached: Seconds its bytes would take to move if none were in a cache: no floor.
        seconds: Median seconds it took.
    """

    name: str
    work: Work | None
    floor: float
    uncached: float
    seconds: float

    @classmethod
    def of(cls, name: str, work: Work, speed: Speed, seconds: float) -> "Stage":
        """Return a stage with what its work takes at a speed."""
        return cls(name, work, speed.floor(work), speed.uncached(work), seconds)

    def record(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        work = self.work
        return {
            "stage": self.name,
            "flops": None if work is None else work.flops,
            "bytes": None if work is None else work.bytes,
            "floor_seconds": self.floor,
            "uncached_seconds": self.uncached,
            "seconds": self.seconds,
        }


@dataclass(frozen=True)
class Costs:
    """What a decision of one problem costs.

    Attributes:
        stages: Encoding the new frame, rolling out, everything else of the planner, the whole.
        evaluations: Candidates scored.
        horizon: Blocks planned.
        speed: Of the device.
    """

    stages: tuple[Stage, ...]
    evaluations: int
    horizon: int
    speed: Speed

    def record(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        return {
            "evaluations": self.evaluations,
            "horizon": self.horizon,
            "matmul_flops_per_second": self.speed.flops,
            "copy_bytes_per_second": self.speed.bytes,
            "stages": [stage.record() for stage in self.stages],
            "notes": self.notes(),
        }

    def notes(self) -> list[str]:
        """Say which stages were measured below their floor, which no stage can be."""
        below = [stage.name for stage in self.stages if stage.seconds < stage.floor]
        if not below:
            return []
        return [
            f"{', '.join(below)}: measured below the floor, so the machine was busier when its "
            "speed was measured than after; run this again when it is quiet"
        ]

    def table(self) -> str:
        """Return it as a table for people."""
        head = ["stage", "GFLOP", "floor ms", "MB", "uncached ms", "measured ms",
                "measured / floor"]  # fmt: skip
        rows = [head, *(_row(stage) for stage in self.stages)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in rows
        ]
        speed = (
            f"{self.evaluations} candidates over {self.horizon} blocks; this machine multiplies "
            f"{self.speed.flops / 1e9:.0f} GFLOP/s and copies {self.speed.bytes / 1e9:.0f} GB/s"
        )
        return "\n".join([*lines, speed, *(f"note: {note}" for note in self.notes())])


def measure_costs(agent: MPC, seen: Seen, speed: Speed) -> Costs:
    """Count and time one cold decision of one problem.

    Args:
        agent: The control loop, whose settings count.
        seen: What it sees; also the goal.
        speed: Of the device, with the dtype and threads of the agent (``probe``).
    """
    device = agent.device

    def encode() -> RolloutCost:
        return first_cost(agent, seen)

    encoding, encode_seconds = count(encode), _median(encode, device)
    cost = encode()

    def decide() -> tuple[Plan, _Watched]:
        watched = _Watched(replace(cost), device)  # counts from zero
        start = agent.planner.start(1, agent.codec.action_dim, device)
        low, high = agent.codec.bounds()
        bounds = (low.to(device), high.to(device))
        generators = [torch.Generator().manual_seed(0)]
        return agent.planner.plan(watched, start, bounds, generators), watched

    planning = count(decide)
    totals, inside = [], []
    for _ in range(REPEATS + 1):
        began = synchronised_seconds(device)
        plan, watched = decide()
        totals.append(synchronised_seconds(device) - began)
        inside.append(watched.seconds)
    plan_seconds, rollout_seconds = float(np.median(totals[1:])), float(np.median(inside[1:]))
    stages = (
        Stage.of("encode", encoding, speed, encode_seconds),
        Stage.of("rollout", planning, speed, rollout_seconds),
        Stage("update", None, 0.0, 0.0, max(0.0, plan_seconds - rollout_seconds)),
        Stage.of("decision", encoding + planning, speed, encode_seconds + plan_seconds),
    )
    return Costs(stages, watched.cost.evaluations, plan.actions.shape[1], speed)


class _Watched:
    """A cost function that adds up the time spent in it; a ``LatentCost`` too."""

    def __init__(self, cost: RolloutCost, device: torch.device) -> None:
        self.cost, self.device, self.seconds = cost, device, 0.0
        self.z, self.goal_z = cost.z, cost.goal_z

    def __call__(self, actions: Tensor) -> Tensor:
        return self._timed(lambda: self.cost(actions))

    def latents(self, actions: Tensor) -> Tensor:
        return self._timed(lambda: self.cost.latents(actions))

    def step(self, z: Tensor, actions: Tensor) -> Tensor:
        return self._timed(lambda: self.cost.step(z, actions))

    def score(self, z: Tensor, actions: Tensor) -> Tensor:
        return self._timed(lambda: self.cost.score(z, actions))

    def _timed(self, run: Callable[[], Tensor]) -> Tensor:
        began = synchronised_seconds(self.device)
        found = run()
        self.seconds += synchronised_seconds(self.device) - began
        return found


def _median(run: Callable[[], Any], device: torch.device) -> float:
    seconds = []
    for _ in range(REPEATS + 1):
        began = synchronised_seconds(device)
        run()
        seconds.append(synchronised_seconds(device) - began)
    return float(np.median(seconds[1:]))


def _row(stage: Stage) -> list[str]:
    work = stage.work
    ratio = stage.seconds / stage.floor if stage.floor else math.nan
    return [
        stage.name,
        "-" if work is None else f"{work.flops / 1e9:.3g}",
        "-" if work is None else f"{1e3 * stage.floor:.3g}",
        "-" if work is None else f"{work.bytes / 1e6:.3g}",
        "-" if work is None else f"{1e3 * stage.uncached:.3g}",
        f"{1e3 * stage.seconds:.3g}",
        "-" if math.isnan(ratio) else f"{ratio:.2f}",
    ]
