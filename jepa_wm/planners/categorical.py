"""Categorical CEM: the cross-entropy method over choices instead of numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Bounds, CostFn, Plan, PlanTrace, Scored
from jepa_wm.control.streams import Streams, draw_exponential
from jepa_wm.planners.rounds import better, constant, join, score, take
from jepa_wm.planners.settings import (
    choice_faults,
    count_faults,
    elite_faults,
    flag_faults,
    number_faults,
)


@dataclass(frozen=True, kw_only=True)
class CategoricalCEM:
    """Cross-entropy method with one categorical per step of a block and choice, all independent.

    Candidates are one-hot [H,A]; A is a block's steps times the options of all choices. An option
    is drawn as argmax(log p + Gumbel noise). p becomes the option's frequency among the elites,
    then (f + smoothing / options) / (1 + smoothing), then momentum p + (1 - momentum) times that.

    A plan's ``actions`` are one-hot, its ``std`` is that of an option's indicator,
    sqrt(p (1 - p)); a start's ``actions`` are probabilities.

    Attributes:
        choices: Options of each choice in one environment action, a number or one per choice; None
            must be filled in with the action space's own before planning.
        horizon: Blocks in a cold start, H.
        num_samples: Candidates per iteration, S.
        num_elites: Candidates kept, K <= num_samples.
        iterations: Rounds of draw, score, refit.
        smoothing: Share of the uniform distribution mixed into the frequencies, >= 0.
        momentum: In [0, 1).
        restart: Share of the uniform distribution in a warm start, in (0, 1]; the rest is the last
            plan. 1 starts cold each time, as published.
        include_mode: Let candidate 0 be the most likely plan.
        returns: ``mode`` gives the most likely plan of the last round, scored once more on its own;
            ``best`` the best candidate seen.

    Raises:
        ValueError: a setting is impossible; all faults at once, by name.

    Source: stable-worldmodel ``planning/solver/categorical_cem.py``, which knows no warm start.
    """

    choices: int | Sequence[int] | None
    horizon: int
    num_samples: int
    num_elites: int
    iterations: int
    smoothing: float
    momentum: float
    restart: float
    include_mode: bool
    returns: str

    is_discrete: ClassVar[bool] = True
    is_recordable: ClassVar[bool] = True  # never waits for the device

    def __post_init__(self) -> None:
        if isinstance(self.choices, Sequence):
            object.__setattr__(self, "choices", tuple(self.choices))
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        faults = [
            *count_faults(values, ("horizon", "num_samples", "num_elites", "iterations")),
            *elite_faults(values),
            *number_faults(values, ("smoothing", "momentum"), least=0.0),
            *number_faults(values, ("restart",), above=0.0),
            *flag_faults(values, ("include_mode",)),
            *choice_faults(values, {"returns": ("mode", "best")}),
        ]
        if self.choices is not None and not all(type(n) is int and n >= 2 for n in self._options):
            faults.append(f"choices={self.choices!r} must be whole numbers >= 2 or null")
        if not faults and (self.momentum >= 1 or self.restart > 1):
            faults.append(f"momentum={self.momentum} must be < 1, restart={self.restart} <= 1")
        if faults:
            raise ValueError(f"{type(self).__name__}: " + "; ".join(faults))

    def start(
        self, batch: int, action_dim: int, device: torch.device, actions: object = None
    ) -> Plan:
        """Make a start for ``batch`` problems: uniform, or mixed with given actions.

        Args:
            batch: Number of problems, B.
            action_dim: Solver action size, A.
            device: Where to plan.
            actions: A warm start, one-hot or probabilities [B,h,A] with h <= horizon.

        Raises:
            ValueError: ``actions`` has another shape, or A is no block of these choices.
        """
        uniform = self._uniform(action_dim, device).expand(batch, self.horizon, action_dim).clone()
        if actions is not None:
            given = torch.as_tensor(actions).to(device, torch.float32)
            if (
                given.ndim != 3
                or given.shape[::2] != (batch, action_dim)
                or given.shape[1] > self.horizon
            ):
                raise ValueError(
                    f"warm start must be [{batch}, <={self.horizon}, {action_dim}], "
                    f"got {list(given.shape)}"
                )
            steps = given.shape[1]
            uniform[:, :steps] = self.restart * uniform[:, :steps] + (1 - self.restart) * given
        return Plan(uniform, _std(uniform), torch.full((batch,), torch.inf, device=device))

    def shift(self, plan: Plan, n: int) -> Plan:
        """Make the next start: drop ``n`` executed blocks, mix the rest with uniform options.

        A row whose cost is infinite (its solve met costs that were not finite) starts cold.
        """
        B, _, A = plan.actions.shape
        kept = plan.actions[:, n : n + self.horizon]
        cold = self._uniform(A, plan.actions.device).expand_as(kept)
        kept = torch.where(plan.cost.isfinite()[:, None, None], kept, cold)
        return self.start(B, A, plan.actions.device, kept)

    @torch.inference_mode()
    def plan(self, cost: CostFn, start: Plan, bounds: Bounds, generators: Streams) -> Plan:
        """Improve ``start``; its candidates take the place of draws in the first round.

        ``bounds`` do not matter. A round in which a row has no finite cost leaves that row as it
        was and marks its cost infinite.

        Raises:
            ValueError: a shape is not as above.
            TypeError: ``cost`` returned something else than a tensor.
        """
        B, _, A = start.actions.shape
        self._uniform(A, start.actions.device)  # refuses another action
        if len(generators) != B:
            raise ValueError(f"{B} problems need {B} generators, got {len(generators)}")
        chances = start.actions.float()  # [B,H,A]
        begin = self._picked(chances)
        best = Plan(begin, _std(chances), torch.full((B,), torch.inf, device=chances.device))
        traces: list[PlanTrace | None] = []
        for index in range(self.iterations):
            samples = self._sample(chances, generators, start.candidates if index == 0 else None)
            costs = score(cost, samples)
            best = better(best, samples, costs)
            chances, trace = self._refit(chances, samples, costs)
            traces.append(trace)
        trace = join(traces)
        mode = self._picked(chances)
        last = Scored(mode, score(cost, mode[:, None])[:, 0])
        top = Scored(best.actions, best.cost)
        chosen = top if self.returns == "best" else last
        failed = ~trace.best.isfinite().all(0)  # [B]
        final = chosen.cost.masked_fill(failed, torch.inf)
        return Plan(chosen.actions, _std(chances), final, trace, mean=last, best=top)

    @property
    def _options(self) -> tuple[int, ...]:
        return (self.choices,) if isinstance(self.choices, int) else tuple(self.choices or ())

    def _groups(self, values: Tensor) -> list[Tensor]:
        """Split [..,A] into the options of each step and choice, [..,options]."""
        return list(
            values.split(list(self._options) * (values.shape[-1] // sum(self._options)), -1)
        )

    def _uniform(self, action_dim: int, device: torch.device) -> Tensor:
        """Return uniform probabilities [A]."""
        if self.choices is None:
            raise ValueError("CategoricalCEM: choices is not known; it is the action space's own")
        if action_dim % sum(self._options):
            raise ValueError(
                f"choices={list(self._options)} are {sum(self._options)} numbers a step, the solver"
                f" action has {action_dim}, no multiple"
            )
        shares = [1 / n for n in self._options for _ in range(n)]
        shares *= action_dim // len(shares)
        return constant(shares, device)

    def _picked(self, values: Tensor) -> Tensor:
        """Return the largest option of each group, one-hot float32 [..,A]."""
        hot = [_one_hot(group) for group in self._groups(values)]
        return torch.cat(hot, -1)

    def _sample(self, chances: Tensor, generators: Streams, tried: Tensor | None) -> Tensor:
        """Draw candidates [B,S,H,A] from probabilities [B,H,A]."""
        H, A = chances.shape[1:]
        drawn = draw_exponential(generators, (self.num_samples, H, A), chances)
        gumbel = -drawn.clamp_min(torch.finfo(drawn.dtype).tiny).log()  # no infinite noise
        samples = self._picked(chances.log()[:, None] + gumbel)
        at = int(self.include_mode)
        if tried is not None:
            place = samples[:, at : at + tried.shape[1]]
            given = tried[:, : place.shape[1]]
            samples[:, at : at + place.shape[1]] = torch.where(given.isnan(), place, given)
        if self.include_mode:
            samples[:, 0] = self._picked(chances)
        return samples

    def _refit(self, chances: Tensor, samples: Tensor, costs: Tensor) -> tuple[Tensor, PlanTrace]:
        """Return the probabilities after a round and the round's trace [1,B]."""
        elite_costs, index = costs.topk(self.num_elites, dim=1, largest=False)  # [B,K]
        good = elite_costs.isfinite()
        count = good.sum(1)  # [B]
        weights = good.float() / count.clamp_min(1)[:, None]
        fit = (weights[:, :, None, None] * take(samples, index)).sum(1)
        uniform = self._uniform(chances.shape[-1], chances.device)
        fit = (fit + self.smoothing * uniform) / (1 + self.smoothing)
        fit = self.momentum * chances + (1 - self.momentum) * fit
        chances = torch.where((count > 0)[:, None, None], fit, chances)
        average = torch.where(good, weights * elite_costs, 0).sum(1)
        spread = _std(chances).mean((1, 2))
        trace = PlanTrace(elite_costs[:, 0][None], average[None], spread[None], count.float()[None])
        return chances, trace


def _one_hot(values: Tensor) -> Tensor:
    """Mark the largest of [..,n] with 1."""
    marks = torch.arange(values.shape[-1], device=values.device)
    return (values.argmax(-1, keepdim=True) == marks).float()


def _std(chances: Tensor) -> Tensor:
    """Standard deviation of the indicators of options, sqrt(p (1 - p))."""
    return (chances * (1 - chances)).clamp_min(0).sqrt()
