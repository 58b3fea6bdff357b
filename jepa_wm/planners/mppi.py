"""MPPI: model-predictive path integrals. Average candidates by exp(-cost / temperature)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Plan, Scored
from jepa_wm.control.streams import Streams, draw_exponential
from jepa_wm.planners.base import PerDim
from jepa_wm.planners.rounds import Pool, Round, take
from jepa_wm.planners.sampling import SamplingPlanner
from jepa_wm.planners.settings import flag_faults, number_faults, range_faults
from jepa_wm.planners.temperature import spread, temperature_for


@dataclass(frozen=True, kw_only=True)
class MPPI(SamplingPlanner):
    """Path-integral averaging over the K candidates of lowest cost.

    w_k = softmax(-(c_k - min c) / t), mu' = sum_k w_k x_k, with the temperature t of a row one of
    ``temperature``, in the cost's own units; ``temperature`` times the standard deviation of the K
    costs (``normalise``), so that the plan is the same when the cost is scaled or shifted and one
    number serves every model; or what gives ``target_ess`` effective samples.

    With ``control_cost``, K = S and a kept spread this is the information-theoretic form: it weighs
    c_k + t sum mu eps_k / sigma^2, where eps_k = x_k - mu is what is left of the noise within the
    bounds.

    Attributes:
        num_elites: Candidates that are averaged, K <= num_samples.
        temperature: Weight falloff, > 0; low is greedy. None with ``target_ess``. The trace's
            ``effective_samples`` shows what it does.
        normalise: Take ``temperature`` in standard deviations of each row's costs.
        target_ess: Effective samples 1 / sum w^2 that the temperature is solved for, >= 1, or None.
        control_cost: Add the control cost of the information-theoretic form.
        adapt_std: Refit std with the same weights; False keeps it, as the published solvers do.
        max_std: Ceiling of the refitted std, solver units, a number or [A], or None.
        repeat_candidates: Let the start's candidates be among those of every round, as TD-MPC2 does
            with its policy's plans; else of the first.
        returns: ``mean`` or ``best``, as everywhere, or ``sample``: a candidate of the last round,
            drawn by its weight; the next solve then still starts from the mean.

    Source: Williams et al. 2017; stable-worldmodel ``planning/solver/mppi.py``
        (``conf/planner/mppi_swm.yaml``), whose raw temperature leaves about one effective sample on
        latent distances; UM-ARM-Lab/pytorch_mppi ``mppi.py`` (``mppi_it.yaml``);
        nicklashansen/tdmpc2 ``tdmpc2.py`` (``tdmpc2.yaml``).
    """

    num_elites: int
    temperature: float | None
    normalise: bool
    target_ess: float | None
    control_cost: bool
    adapt_std: bool
    max_std: PerDim | None
    repeat_candidates: bool

    def faults(self) -> list[str]:
        """Name every impossible setting."""
        values = self._values()
        solved = self.target_ess is not None
        faults = [
            *super().faults(),
            *flag_faults(values, ("control_cost", "repeat_candidates")),
            *number_faults(values, ("target_ess",) if solved else (), least=1.0),
            *number_faults(values, () if solved else ("temperature",), above=0.0),
            *range_faults(values, {} if self.max_std is None else {"max_std": torch.inf}),
        ]
        if solved and (self.temperature is not None or self.normalise is not False):
            faults.append("target_ess replaces temperature and normalise: they must be null, false")
        if self.control_cost is True and self.returns == "sample":
            faults.append("returns=sample is not for control_cost: it has no weights of candidates")
        return faults

    def update(self, plan: Plan, samples: Tensor, costs: Tensor) -> Plan:
        """Refit to the weighted candidates [B,S,H,A] with costs [B,S]."""
        elites = Pool(samples, costs).cheapest(self.num_elites)
        pull = _control(plan, elites.samples) if self.control_cost else None
        fit = self.fit(elites.samples, self._weights(elites.costs, pull), elites.costs)
        if not self.adapt_std:
            return replace(fit, std=plan.std)
        if self.max_std is None:
            return fit
        ceiling = self._per_dim("max_std", samples.shape[-1], samples.device)
        return replace(fit, std=torch.minimum(fit.std, ceiling))

    def shift(self, plan: Plan, n: int) -> Plan:
        """Make the next start, after a sampled plan from the mean; see ``ContinuousPlanner``."""
        if self.returns == "sample" and plan.mean is not None:
            plan = replace(plan, actions=plan.mean.actions)
        return super().shift(plan, n)

    def _weights(self, costs: Tensor, pull: Tensor | None) -> Tensor:
        """Weigh candidates by ascending costs [B,K] and control costs over the temperature."""
        excess = costs - costs[:, :1]
        pull = torch.zeros_like(excess) if pull is None else pull
        if self.target_ess is not None:
            temperature = temperature_for(self.target_ess, excess, pull)
        else:
            assert self.temperature is not None  # checked
            scale = spread(excess) if self.normalise else torch.ones_like(excess[:, :1])
            temperature = self.temperature * scale
        return torch.softmax(-excess / temperature - pull, dim=1)

    def _round(self, index: int, start: Plan) -> Round:
        """Say what is drawn in round ``index`` of a solve."""
        now = super()._round(index, start)
        return replace(now, tried=start.candidates) if self.repeat_candidates else now

    def _ways(self) -> tuple[str, ...]:
        """Name what ``returns`` may be."""
        return (*super()._ways(), "sample")

    def _choose(self, mean: Scored, best: Scored, last: Pool, generators: Streams) -> Scored:
        """Return the plan of a solve; a sample by the Gumbel trick, argmax of log w - log e."""
        if self.returns != "sample":
            return super()._choose(mean, best, last, generators)
        elites = last.cheapest(self.num_elites)
        waits = self._waits(generators, elites.costs)
        index = (self._weights(elites.costs, None).log() - waits.log()).argmax(1, keepdim=True)
        drawn, cost = take(elites.samples, index)[:, 0], elites.costs.gather(1, index)[:, 0]
        failed = ~elites.costs[:, 0].isfinite()  # [B]: nothing to draw from
        actions = torch.where(failed[:, None, None], mean.actions, drawn)
        return Scored(actions, torch.where(failed, mean.cost, cost))

    def _waits(self, generators: Streams, like: Tensor) -> Tensor:
        """Draw standard exponential numbers [B,K]."""
        return draw_exponential(generators, (self.num_elites,), like)


def _control(plan: Plan, samples: Tensor) -> Tensor:
    """Return sum mu eps / sigma^2 of candidates [B,K,H,A] around a plan, [B,K]; 0 where pinned."""
    per_noise = torch.where(plan.std > 0, plan.actions / plan.std.square(), 0)
    return ((samples - plan.actions[:, None]) * per_noise[:, None]).sum((2, 3))
