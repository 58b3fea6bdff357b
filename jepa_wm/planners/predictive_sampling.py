"""Predictive sampling: noise around the nominal plan; the best candidate is the next nominal."""

from dataclasses import dataclass

from torch import Tensor

from jepa_wm.control.interfaces import Plan
from jepa_wm.planners.random_shooting import RandomShooting


@dataclass(frozen=True, kw_only=True)
class PredictiveSampling(RandomShooting):
    """Best of a round of candidates, which the next round is drawn around; the spread stays.

    With ``include_mean`` candidate 0 is the nominal plan, so no round makes it worse.

    Source: Howell et al. 2022, "Predictive Sampling"; stable-worldmodel
        ``planning/solver/predictive_sampling.py``, of one round. The paper draws the knots of a
        spline where we draw blocks.
    """

    def update(self, plan: Plan, samples: Tensor, costs: Tensor) -> Plan:
        """Move to the best of the samples [B,S,H,A] with costs [B,S]; keep the spread."""
        fit = self._lowest(samples, costs)
        return Plan(fit.actions, plan.std, fit.cost, fit.trace)
