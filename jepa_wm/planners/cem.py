"""CEM: the cross-entropy method. Refit the Gaussian to the best K candidates, equally weighted."""

from dataclasses import dataclass

from torch import Tensor

from jepa_wm.control.interfaces import Plan
from jepa_wm.planners.rounds import Pool
from jepa_wm.planners.sampling import SamplingPlanner


@dataclass(frozen=True, kw_only=True)
class CEM(SamplingPlanner):
    """Cross-entropy method: mean and std become those of the elites E, the K cheapest candidates.

    mu' = 1/K sum_{x in E} x and sigma'^2 = 1/(K-1) sum_{x in E} (x - mu')^2 (``population``: 1/K).
    Candidates whose cost is not finite are never elites, even when fewer than K remain.

    Attributes:
        num_elites: Candidates kept, K <= num_samples.

    Source: stable-worldmodel ``planning/solver/cem.py``; ``conf/planner/lewm.yaml`` holds its
        settings.
    """

    num_elites: int

    def update(self, plan: Plan, samples: Tensor, costs: Tensor) -> Plan:
        """Refit to the elites of samples [B,S,H,A] with costs [B,S]."""
        elites = Pool(samples, costs).cheapest(self.num_elites)
        finite = elites.costs.isfinite().float()
        weights = finite / finite.sum(1, keepdim=True)
        return self.fit(elites.samples, weights, elites.costs)
