"""Random shooting: draw once around the start, take the best. The floor any planner has to beat."""

from dataclasses import dataclass

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Plan
from jepa_wm.planners.rounds import Pool
from jepa_wm.planners.sampling import SamplingPlanner


@dataclass(frozen=True, kw_only=True)
class RandomShooting(SamplingPlanner):
    """Best of ``iterations`` x ``num_samples`` candidates around a start that never moves.

    The next solve starts from the best. ``PredictiveSampling`` moves from round to round.
    """

    def faults(self) -> list[str]:
        """Name every impossible setting."""
        wrong = [] if self.returns == "best" else ["returns must be best: the mean is no fit"]
        return super().faults() + wrong

    def update(self, plan: Plan, samples: Tensor, costs: Tensor) -> Plan:
        """Keep the proposal; the trace still sees the candidates [B,S,H,A] with costs [B,S]."""
        fit = self._lowest(samples, costs)
        return Plan(plan.actions, plan.std, fit.cost, fit.trace)

    def _lowest(self, samples: Tensor, costs: Tensor) -> Plan:
        """Return the best of the samples, a mean without spread."""
        best = Pool(samples, costs).cheapest(1)
        return self.fit(best.samples, torch.ones_like(best.costs), best.costs)
