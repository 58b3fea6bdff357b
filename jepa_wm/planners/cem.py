"""CEM: the cross-entropy method. Refit the Gaussian to the best K candidates, equally weighted."""

from dataclasses import dataclass

from torch import Tensor

from jepa_wm.control.interfaces import Plan
from jepa_wm.planners.rounds import take
from jepa_wm.planners.sampling import SamplingPlanner


@dataclass(frozen=True, kw_only=True)
class CEM(SamplingPlanner):
    """Cross-entropy method: mean and std become those of the elites E, the K cheapest candidates.

    mu' = 1/K sum_{x in E} x and sigma'^2 = 1/(K-1) sum_{x in E} (x - mu')^2 (``population``: 1/K).
    Candidates whose cost is not finite are never elites, even when fewer than K remain.

    Attributes:
        num_elites: Candidates kept, K <= num_samples.

    Source: stable-worldmodel ``planning/solver/cem.py``; ``conf/planner/cem_lewm.yaml`` holds its
        settings.
    """

    num_elites: int

    def update(self, plan: Plan, samples: Tensor, costs: Tensor) -> Plan:
        """Refit to the elites of samples [B,S,H,A] with costs [B,S]."""
        elite_costs, index = costs.topk(self.num_elites, dim=1, largest=False)  # [B,K]
        finite = elite_costs.isfinite().float()
        weights = finite / finite.sum(1, keepdim=True)
        return self.fit(take(samples, index), weights, elite_costs)
