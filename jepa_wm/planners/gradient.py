"""Gradient planning: several plans at once follow the gradient of the cost, the best is taken."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Bounds, CostFn, Plan, PlanTrace, Scored
from jepa_wm.control.streams import Streams, draw_normal
from jepa_wm.planners.base import ContinuousPlanner
from jepa_wm.planners.constraints import named, starting
from jepa_wm.planners.descent import (
    OPTIMIZERS,
    Optimizer,
    finite,
    limit_norm,
    restarts,
    seen,
    slope,
)
from jepa_wm.planners.rounds import better, clamp, join, score
from jepa_wm.planners.settings import choice_faults, count_faults, flag_faults, number_faults


@dataclass(frozen=True, kw_only=True)
class GradientPlanner(ContinuousPlanner):
    """Descends the cost from ``num_samples`` restarts, each on its own.

    x <- project(step(x, clip(dc/dx)) + noise). Restart 0 is the start's mean, the start's
    candidates come next, the others are drawn around the mean. After each step a restart is brought
    back within constraints and box, the nearest point of each in turn. A restart whose cost or
    gradient is not finite stays where both last were, and the others go on.

    Needs a cost with a gradient. An evaluation with its gradient takes the time of several without
    (about five on a CPU, with LeWM) and is counted as one.

    Attributes:
        num_samples: Restarts, S.
        iterations: Steps of the optimiser.
        optimizer: ``adam``, ``adamw`` or ``sgd``.
        learning_rate: Step size, > 0; for Adam about the change of an action per step, solver
            units.
        weight_decay: The optimiser's, >= 0.
        max_grad_norm: Longest gradient of a restart [H,A], longer ones are scaled down; None has no
            limit.
        action_noise: Standard deviation of the noise added after each step, solver units.
        include_mean: Let restart 0 be the start's mean; False draws it like the others.
        returns: ``best`` gives the cheapest plan met on any way, ``final`` the cheapest of those
            where the restarts end, as published planners do.

    Source: stable-worldmodel ``planning/solver/gd.py``, gaoyuezhou/dino_wm ``planning/gd.py``;
        ``conf/planner/adam_swm.yaml`` and ``gd_dino_wm.yaml`` hold their settings. Unlike the
        first, the norm is limited for each restart, not over a whole batch.
    """

    num_samples: int
    iterations: int
    optimizer: str
    learning_rate: float
    weight_decay: float
    max_grad_norm: float | None
    action_noise: float
    include_mean: bool
    returns: str

    needs_gradient: ClassVar[bool] = True

    def faults(self) -> list[str]:
        """Name every impossible setting."""
        values = self._values()
        above = ["learning_rate"] + ["max_grad_norm"] * (self.max_grad_norm is not None)
        words = {"optimizer": OPTIMIZERS, "returns": ("best", "final")}
        return [
            *super().faults(),
            *count_faults(values, ("num_samples", "iterations")),
            *number_faults(values, above, above=0.0),
            *number_faults(values, ("weight_decay", "action_noise"), least=0.0),
            *flag_faults(values, ("include_mean",)),
            *choice_faults(values, words),
        ]

    def plan(self, cost: CostFn, start: Plan, bounds: Bounds, generators: Streams) -> Plan:
        """Improve ``start``; see ``SamplingPlanner.plan``.

        A row that in some step has no finite cost at all keeps what it found, or its mean, and its
        cost is infinite.

        Raises:
            ValueError: a shape is not as it should be.
            TypeError: ``cost`` returned something else than a tensor.
            ConfigError: the cost has no gradient.
        """
        with torch.inference_mode(False), torch.no_grad():
            box = self._box(start, bounds, generators)
            mean = clamp(starting(start.actions.float(), named(self.constraints)), box)
            never = torch.full_like(mean[:, 0, 0], torch.inf)
            plan = Plan(mean.clone(), start.std.float().clone(), never)
            now = restarts(plan, start.candidates, self, generators)
            way = _Way(self._allowed(now, box), plan, self)
            for _ in range(self.iterations):
                way.look(cost)
                self._move(way, box, generators)
            return self._chosen(cost, plan, way)

    def _move(self, way: "_Way", box: Bounds | None, generators: Streams) -> None:
        """Take one step of every restart that may go on."""
        stepped = way.optimizer.step(way.now, way.gradient)
        if self.action_noise:
            drawn = draw_normal(generators, stepped.shape[1:], stepped)
            stepped = stepped + self.action_noise * drawn
        way.now = torch.where(way.moves, self._allowed(stepped, box), way.good)

    def _chosen(self, cost: CostFn, plan: Plan, way: "_Way") -> Plan:
        """Score where the restarts ended and return the plan."""
        costs, trace = score(cost, way.now), join(way.traces)
        best = better(way.best, way.now, costs)
        chosen = best if self.returns == "best" else better(plan, way.now, costs)
        failed = ~trace.best.isfinite().all(0)  # [B]
        return Plan(
            chosen.actions,
            plan.std,
            chosen.cost.masked_fill(failed, torch.inf),
            trace,
            best=Scored(best.actions, best.cost),
        )


class _Way:
    """Where the restarts of one solve are, [B,S,H,A], and what they met."""

    def __init__(self, now: Tensor, plan: Plan, settings: GradientPlanner) -> None:
        self.now, self.good, self.best = now, now, plan
        self.most = settings.max_grad_norm
        self.alive = torch.ones(now.shape[:2], dtype=torch.bool, device=now.device)
        self.free = (plan.std > 0)[:, None]
        self.traces: list[PlanTrace] = []
        self.gradient = torch.zeros_like(now)
        self.optimizer = Optimizer(
            settings.optimizer, settings.learning_rate, settings.weight_decay
        )

    @property
    def moves(self) -> Tensor:
        """Which numbers may change: neither pinned nor of a restart left behind."""
        return self.alive[:, :, None, None] & self.free

    def look(self, cost: CostFn) -> None:
        """Score the restarts and keep their gradients."""
        with torch.enable_grad():
            costs, gradient = slope(cost, self.now)
        self.alive &= costs.isfinite() & finite(gradient)
        self.good = torch.where(self.alive[:, :, None, None], self.now, self.good)
        self.best = better(self.best, self.now, costs)
        self.traces.append(seen(costs, self.now))
        self.gradient = limit_norm(gradient.nan_to_num(0.0, 0.0, 0.0), self.most)
