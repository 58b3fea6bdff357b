"""SamplingPlanner: the loop every sampling planner shares.

Draw candidates around the plan, clip them, score them, refit, repeat. A planner sees one function,
``cost(actions [B,S,H,A]) -> [B,S]``, and writes one method, ``update(plan, samples, costs) ->
Plan``. All B problems are solved at once; row b draws from its own stream, so its plan depends not
on the rows beside it. Nothing in the loop waits for the device.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Bounds, CostFn, Plan, PlanTrace, Scored
from jepa_wm.control.streams import Streams, draw_normal
from jepa_wm.planners.base import ContinuousPlanner, PerDim
from jepa_wm.planners.constraints import named, starting
from jepa_wm.planners.rounds import Pool, Round, better, blend, clamp, join, score
from jepa_wm.planners.settings import (
    choice_faults,
    count_faults,
    elite_faults,
    flag_faults,
    range_faults,
)


@dataclass(frozen=True, kw_only=True)
class SamplingPlanner(ContinuousPlanner):
    """Diagonal-Gaussian search over [H,A]; subclasses say how the candidates refit the proposal.

    Attributes:
        num_samples: Candidates per iteration, S.
        iterations: Rounds of draw, score, refit.
        min_std: Floor of the standard deviation after a refit, solver units, a number or [A];
            pinned dimensions stay pinned.
        momentum: new = momentum * old + (1 - momentum) * fit, in [0, 1); a number or [A].
        momentum_std: The same for std; None takes ``momentum``.
        include_mean: Let candidate 0 be the current mean.
        returns: ``mean`` gives the last mean, scored once more on its own; ``best`` the best
            candidate seen.
        std_estimator: ``unbiased`` divides by n - 1 (torch's default), ``population`` by n.

    Raises:
        ValueError: a setting is impossible; all faults at once, by name.
    """

    is_recordable: ClassVar[bool] = True  # never waits for the device: a solve fits a CUDA graph

    num_samples: int
    iterations: int
    min_std: PerDim
    momentum: PerDim
    momentum_std: PerDim | None
    include_mean: bool
    returns: str
    std_estimator: str

    def faults(self) -> list[str]:
        """Name every impossible setting; a subclass may add its own."""
        values = self._values()
        words = {"returns": self._ways(), "std_estimator": ("unbiased", "population")}
        tops = {"min_std": torch.inf, "momentum": 1.0}
        if self.momentum_std is not None:
            tops["momentum_std"] = 1.0
        return [
            *super().faults(),
            *count_faults(values, ("num_samples", "iterations", "num_elites")),
            *elite_faults(values),
            *range_faults(values, tops),
            *flag_faults(values, ("include_mean", "normalise", "adapt_std")),
            *choice_faults(values, words),
        ]

    @abstractmethod
    def update(self, plan: Plan, samples: Tensor, costs: Tensor) -> Plan:
        """Fit the proposal to scored candidates; momentum, floor and pins are the loop's business.

        End it with ``return self.fit(chosen samples, their weights, their costs)``.

        Args:
            plan: The proposal the candidates came from, [B,H,A].
            samples: Candidates, [B,S,H,A].
            costs: Their costs, float32 [B,S]; infinite where they were not finite.
        """

    @torch.inference_mode()
    def plan(self, cost: CostFn, start: Plan, bounds: Bounds, generators: Streams) -> Plan:
        """Improve ``start`` for ``iterations`` rounds; the horizon is the start's own.

        A round in which a row has no finite cost leaves that row as it was and marks its cost
        infinite.

        Args:
            cost: Scores candidates, float32 [B,S,H,A] -> [B,S]; called once more with S = 1 for
                the last mean.
            start: Where to search, actions and std [B,H,A]; its candidates [B,K,H,A] take the
                place of draws in the first round, except where they are NaN.
            bounds: Solver-space box (low [A], high [A]); used only with ``clip``.
            generators: One stream of random numbers a row.

        Returns:
            The plan, its std and cost, with a trace of [I,B] tensors, and the candidates kept for
            the next solve.

        Raises:
            ValueError: a shape is not as above.
            TypeError: ``cost`` returned something else than a tensor.
        """
        box = self._box(start, bounds, generators)
        A, device = start.actions.shape[-1], start.actions.device
        momentum, floor = (self._per_dim(name, A, device) for name in ("momentum", "min_std"))
        follows = self.momentum_std is None
        momenta = (momentum, momentum if follows else self._per_dim("momentum_std", A, device))
        first = clamp(starting(start.actions.float(), named(self.constraints)), box)
        plan = Plan(first, start.std.float(), start.cost)
        best = Plan(plan.actions, plan.std, torch.full_like(plan.cost, torch.inf))
        traces: list[PlanTrace | None] = []
        kept: Pool | None = None
        for index in range(self.iterations):
            samples = self._sample(plan, box, generators, self._round(index, start))  # [B,S,H,A]
            pool = Pool(samples, score(cost, samples)).joined(kept)
            best = better(best, pool.samples, pool.costs)
            fit = self.update(plan, pool.samples, pool.costs)
            kept = self._keep(pool)
            plan = blend(plan, fit, momenta, floor)
            traces.append(plan.trace)
        trace = join(traces)
        actions = clamp(plan.actions, box)  # an average may round past a side
        mean = Scored(actions, score(cost, actions[:, None])[:, 0])
        best_seen = Scored(best.actions, best.cost)
        chosen = self._choose(mean, best_seen, pool, generators)
        failed = ~trace.best.isfinite().all(0)  # [B]
        final = chosen.cost.masked_fill(failed, torch.inf)
        again = None if kept is None else kept.samples
        return Plan(chosen.actions, plan.std, final, trace, again, mean, best_seen)

    def fit(self, samples: Tensor, weights: Tensor, costs: Tensor) -> Plan:
        """Return the weighted moments of candidates as a proposal.

        Args:
            samples: Chosen candidates, [B,K,H,A].
            weights: Their weights [B,K], rows summing to 1; ignored where the cost is infinite.
            costs: Their costs, float32 [B,K].

        Returns:
            Mean and std [B,H,A]; ``cost`` is the weighted mean cost, the trace this round's [1,B].
        """
        weights = torch.where(costs.isfinite(), weights, 0)
        w = weights[:, :, None, None]
        mean = (w * samples).sum(1)  # [B,H,A]
        variance = (w * (samples - mean[:, None]).square()).sum(1)
        mass = weights.square().sum(1)  # [B], one over the effective number of samples
        if self.std_estimator == "unbiased":  # n / (n - 1) for n equal weights; one has no spread
            variance = variance / (1 - mass).clamp_min(1e-6)[:, None, None]
        average = torch.where(costs.isfinite(), weights * costs, 0).sum(1)  # [B]
        effective = torch.where(mass > 0, 1 / mass, 0)
        spread = variance.sqrt()
        trace = PlanTrace(
            costs.amin(1)[None], average[None], spread.mean((1, 2))[None], effective[None]
        )
        return Plan(mean, spread, average, trace)

    def _round(self, index: int, start: Plan) -> Round:
        """Say what is drawn in round ``index`` of a solve."""
        tried = start.candidates if index == 0 else None
        return Round(self.num_samples, self.include_mean, tried)

    def _keep(self, pool: Pool) -> Pool | None:
        """Return the candidates that join the next round, and the next solve, without a draw."""
        return None

    def _ways(self) -> tuple[str, ...]:
        """Name what ``returns`` may be."""
        return ("mean", "best")

    def _choose(self, mean: Scored, best: Scored, last: Pool, generators: Streams) -> Scored:
        """Return the plan of a solve, as ``returns`` says; ``last`` is the last round's pool."""
        return best if self.returns == "best" else mean

    def _sample(self, plan: Plan, box: Bounds | None, generators: Streams, now: Round) -> Tensor:
        """Draw the candidates of a round, [B,S,H,A]."""
        noise = self._noise(plan.actions, generators, now.count)
        samples = noise * plan.std[:, None] + plan.actions[:, None]
        if now.tried is not None:
            at = int(now.with_mean)
            place = samples[:, at : at + now.tried.shape[1]]
            tried = now.tried[:, : place.shape[1]]
            samples[:, at : at + place.shape[1]] = torch.where(tried.isnan(), place, tried)
        if now.with_mean:
            samples[:, 0] = plan.actions
        return self._allowed(samples, box)

    def _noise(self, mean: Tensor, generators: Streams, count: int) -> Tensor:
        """Draw standard normal noise [B,S,H,A] for a mean [B,H,A], each row from its stream."""
        return draw_normal(generators, (count, *mean.shape[1:]), mean)
