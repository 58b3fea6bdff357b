"""MPPI: model-predictive path integrals. Average candidates by exp(-cost / temperature)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Plan
from jepa_wm.planners.rounds import take
from jepa_wm.planners.sampling import SamplingPlanner


@dataclass(frozen=True, kw_only=True)
class MPPI(SamplingPlanner):
    """Path-integral averaging over the K candidates of lowest cost.

    w_k = softmax(-(c_k - min c) / (temperature * s)), mu' = sum_k w_k x_k. With ``normalise`` s is
    the standard deviation of the K costs of that row, so the plan is unchanged when the cost is
    scaled or shifted and one temperature serves every model; without it s = 1 and the temperature
    is in the cost's own units.

    Attributes:
        num_elites: Candidates that are averaged, K <= num_samples.
        temperature: Weight falloff, > 0; low is greedy. The trace's ``effective_samples`` shows
            what it does.
        normalise: Divide costs by their spread in each row.
        adapt_std: Refit std with the same weights; False keeps it, as the published solver does.

    Source: Williams et al. 2017; stable-worldmodel ``planning/solver/mppi.py``
        (``conf/planner/mppi_swm.yaml``), whose raw temperature leaves about one effective sample on
        latent distances; refitting std as in TD-MPC2.
    """

    num_elites: int
    temperature: float
    normalise: bool
    adapt_std: bool

    def faults(self) -> list[str]:
        """Name every impossible setting."""
        faults = super().faults()
        if not isinstance(self.temperature, int | float) or not 0 < self.temperature < torch.inf:
            faults.append(f"temperature={self.temperature!r} must be a number > 0")
        return faults

    def update(self, plan: Plan, samples: Tensor, costs: Tensor) -> Plan:
        """Refit to the weighted candidates [B,S,H,A] with costs [B,S]."""
        elite_costs, index = costs.topk(self.num_elites, dim=1, largest=False)  # [B,K], ascending
        excess = elite_costs - elite_costs[:, :1]
        scale = _spread(excess) if self.normalise else 1.0
        weights = torch.softmax(-excess / (self.temperature * scale), dim=1)
        fit = self.fit(take(samples, index), weights, elite_costs)
        return fit if self.adapt_std else replace(fit, std=plan.std)


def _spread(excess: Tensor) -> Tensor:
    """Standard deviation of each row's finite costs, [B,1]; not zero: equal costs weigh equally."""
    finite = excess.isfinite()
    count = finite.sum(1, keepdim=True)
    values = torch.where(finite, excess, 0)
    mean = values.sum(1, keepdim=True) / count
    squares = torch.where(finite, (values - mean).square(), 0).sum(1, keepdim=True)
    return (squares / count).sqrt().clamp_min(torch.finfo(torch.float32).tiny)
