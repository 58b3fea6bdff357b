"""Random shooting: draw once around the start, take the best. The floor any planner has to beat."""

from dataclasses import dataclass

from torch import Tensor

from jepa_wm.control.interfaces import Plan
from jepa_wm.planners.rounds import take
from jepa_wm.planners.sampling import SamplingPlanner


@dataclass(frozen=True, kw_only=True)
class RandomShooting(SamplingPlanner):
    """Best of ``iterations`` x ``num_samples`` candidates around a start that never moves.

    With ``returns: best`` and candidate 0 as the start's own mean, this is predictive sampling.

    Source: Howell et al. 2022, "Predictive Sampling".
    """

    def faults(self) -> list[str]:
        """Name every impossible setting."""
        wrong = [] if self.returns == "best" else ["returns must be best: the mean never moves"]
        return super().faults() + wrong

    def update(self, plan: Plan, samples: Tensor, costs: Tensor) -> Plan:
        """Keep the proposal; the trace still sees the candidates [B,S,H,A] with costs [B,S]."""
        lowest, index = costs.topk(1, dim=1, largest=False)
        fit = self.fit(take(samples, index), lowest.new_ones(lowest.shape), lowest)
        return Plan(plan.actions, plan.std, fit.cost, fit.trace)
