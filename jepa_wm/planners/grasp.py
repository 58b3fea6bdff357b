"""GRASP: latents and actions are searched together, so that no gradient runs through time."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Bounds, CostFn, LatentCost, Plan, PlanTrace, Scored
from jepa_wm.control.streams import Streams, draw_normal
from jepa_wm.errors import ConfigError
from jepa_wm.planners.base import ContinuousPlanner
from jepa_wm.planners.constraints import named, starting
from jepa_wm.planners.descent import (
    FLAT,
    OPTIMIZERS,
    Optimizer,
    finite,
    restarts,
    seen,
    slope,
)
from jepa_wm.planners.rounds import better, clamp, join, score
from jepa_wm.planners.settings import choice_faults, count_faults, flag_faults, number_faults


@dataclass(frozen=True, kw_only=True)
class GRASP(ContinuousPlanner):
    """Gradient-relaxed stochastic planning with virtual states z_1 .. z_H.

    Each iteration takes one step down sum_h |z_h - F(sg z_{h-1}, a_h)|^2 + g c(F(sg z_{h-1}, a_h))
    in all z_h and a_h, with F one step of the model, sg no gradient, c the objective at that step
    alone and g the goal's weight; then the states get noise. All H steps are predicted side by
    side. After every ``sync_every`` iterations the actions take ``sync_steps`` steps down the cost
    of their true rollout, and the states are those of that rollout again.

    The returned plan is the best of all true rollouts, the start's own among them. Sample 0 begins
    at the start's mean, its candidates come next, the others are drawn around it.

    Needs a ``LatentCost`` with a gradient.

    Attributes:
        num_samples: Searches side by side, S; the paper has one.
        iterations: Relaxed steps.
        optimizer: ``adam``, ``adamw`` or ``sgd``, for all three kinds of step.
        learning_rate: Of the actions in a relaxed step.
        state_learning_rate: Of the states.
        state_noise: Standard deviation of their noise, in the latents' units.
        goal_weight: g >= 0.
        sync_every: Relaxed steps between two looks at the true rollout; the last step is followed
            by one in any case.
        sync_steps: Steps down its cost each time.
        sync_learning_rate: Of these steps.
        include_mean: Let sample 0 begin at the start's mean; False draws it like the others.

    Source: Psenka et al., arXiv 2602.00475. Ours: c is whatever objective the run has (there the
        squared distance to the goal), and the last state is free (there it is the goal), since an
        objective need not be a point; F sees one frame, not the model's full history; actions are
        kept within constraints and box.
    """

    num_samples: int
    iterations: int
    optimizer: str
    learning_rate: float
    state_learning_rate: float
    state_noise: float
    goal_weight: float
    sync_every: int
    sync_steps: int
    sync_learning_rate: float
    include_mean: bool

    needs_gradient: ClassVar[bool] = True

    def faults(self) -> list[str]:
        """Name every impossible setting."""
        values = self._values()
        counts = ("num_samples", "iterations", "sync_every", "sync_steps")
        rates = ("learning_rate", "state_learning_rate", "sync_learning_rate")
        return [
            *super().faults(),
            *count_faults(values, counts),
            *number_faults(values, rates, above=0.0),
            *number_faults(values, ("state_noise", "goal_weight"), least=0.0),
            *flag_faults(values, ("include_mean",)),
            *choice_faults(values, {"optimizer": OPTIMIZERS}),
        ]

    def plan(self, cost: CostFn, start: Plan, bounds: Bounds, generators: Streams) -> Plan:
        """Improve ``start``; see ``SamplingPlanner.plan``. The trace is that of true rollouts.

        Raises:
            ValueError: a shape is not as it should be.
            ConfigError: the cost shows no latents or has no gradient.
        """
        latent = _latent(cost)
        with torch.inference_mode(False), torch.no_grad():
            box = self._box(start, bounds, generators)
            mean = clamp(starting(start.actions.float(), named(self.constraints)), box)
            never = torch.full_like(mean[:, 0, 0], torch.inf)
            plan = Plan(mean.clone(), start.std.float().clone(), never)
            actions = restarts(plan, start.candidates, self, generators)
            run = _Run(self, latent, plan, self._allowed(actions, box), box)
            for iteration in range(1, self.iterations + 1):
                run.relaxed(generators)
                if iteration % self.sync_every == 0 or iteration == self.iterations:
                    run.sync()
            return run.finish()


class _Run:
    """One solve: actions [B,S,H,A], virtual states [B,S,H,*L] and what was met."""

    def __init__(
        self, settings: GRASP, cost: LatentCost, plan: Plan, actions: Tensor, box: Bounds | None
    ) -> None:
        self.settings, self.cost, self.plan, self.box = settings, cost, plan, box
        self.actions = self.good = actions
        self.best = plan
        self.alive = torch.ones(actions.shape[:2], dtype=torch.bool, device=actions.device)
        self.free = (plan.std > 0)[:, None]
        self.traces: list[PlanTrace] = []
        rates = (settings.learning_rate, settings.state_learning_rate)
        self.of_actions, self.of_states = (Optimizer(settings.optimizer, rate) for rate in rates)
        self.states = self._rolled()

    def relaxed(self, generators: Streams) -> None:
        """Step actions and states down the relaxed loss, each step of the plan by itself."""
        actions, states = (x.detach().requires_grad_() for x in (self.actions, self.states))
        with torch.enable_grad():
            loss = self._loss(actions, states)
            by_actions, by_states = torch.autograd.grad(
                loss.sum(), (actions, states), allow_unused=True
            )
        if by_actions is None or by_states is None:
            raise ConfigError(FLAT)
        self._judge(loss.isfinite() & finite(by_actions) & finite(by_states))
        self._move(self.of_actions.step(self.actions, _zeroed(by_actions)))
        states = self.of_states.step(self.states, _zeroed(by_states))
        if self.settings.state_noise:
            drawn = draw_normal(generators, states.shape[1:], states)
            states = states + self.settings.state_noise * drawn
        self.states = states

    def sync(self) -> None:
        """Step the actions down the cost of their true rollout and take its states."""
        optimizer = Optimizer(self.settings.optimizer, self.settings.sync_learning_rate)
        for _ in range(self.settings.sync_steps):
            with torch.enable_grad():
                costs, gradient = slope(self.cost, self.actions)
            self._judge(costs.isfinite() & finite(gradient))
            self.best = better(self.best, self.actions, costs)
            self.traces.append(seen(costs, self.actions))
            self._move(optimizer.step(self.actions, _zeroed(gradient)))
        self.states = self._rolled()

    def finish(self) -> Plan:
        """Return the plan."""
        best, trace = self.best, join(self.traces)
        failed = ~trace.best.isfinite().all(0)  # [B]
        cost = best.cost.masked_fill(failed, torch.inf)
        scored = Scored(best.actions, best.cost)
        return Plan(best.actions, self.plan.std, cost, trace, best=scored)

    def _loss(self, actions: Tensor, states: Tensor) -> Tensor:
        """Relaxed loss [B,S] of actions [B,S,H,A] and states [B,S,H,*L]."""
        (B, S, H, _), weight = actions.shape, self.settings.goal_weight
        first = self.cost.z[:, None, None].expand(B, S, 1, *states.shape[3:])
        before = torch.cat([first.to(states), states[:, :, :-1]], 2).detach()
        after = self.cost.step(before.to(self.cost.z.dtype), actions)  # [B,S,H,*L]
        misfit = (states - after.to(states)).square().flatten(2).sum(2)
        goal = self.cost.score(after.flatten(1, 2)[:, :, None], actions.flatten(1, 2)[:, :, None])
        return misfit + weight * goal.view(B, S, H).sum(2)

    def _rolled(self) -> Tensor:
        """Roll the actions out and score them; states are at least float32."""
        latents = self.cost.latents(self.actions)
        costs = score(lambda actions: self.cost.score(latents, actions), self.actions)
        self.best = better(self.best, self.actions, costs)
        return latents.to(torch.promote_types(latents.dtype, torch.float32))

    def _judge(self, fit: Tensor) -> None:
        """Leave behind, for good, what met a number that is not finite."""
        self.alive &= fit
        self.good = torch.where(self.alive[:, :, None, None], self.actions, self.good)

    def _move(self, actions: Tensor) -> None:
        moves = self.alive[:, :, None, None] & self.free
        allowed = self.settings._allowed(actions, self.box)
        self.actions = torch.where(moves, allowed, self.good)


def _latent(cost: CostFn) -> LatentCost:
    missing = [name for name in ("z", "latents", "step", "score") if not hasattr(cost, name)]
    if missing:
        raise ConfigError(
            f"GRASP searches among latents; this cost shows none (no {', '.join(missing)}), "
            "RolloutCost does"
        )
    return cost  # type: ignore[return-value]


def _zeroed(gradient: Tensor) -> Tensor:
    """Replace what is not finite; its row does not move anyway."""
    return gradient.nan_to_num(0.0, 0.0, 0.0)
