"""Hybrid: one planner searches, another polishes what it found, e.g. CEM and then gradients."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Bounds, CostFn, Plan, Planner, Scored
from jepa_wm.control.streams import Streams
from jepa_wm.planners.rounds import join


@dataclass(frozen=True, kw_only=True)
class Hybrid:
    """Two planners in a row; the plan is never worse than the first one's.

    ``polish`` starts from the first planner's plan with its own spread, and tries the best
    candidate of the first one too. A row takes its plan only where that costs less. Starts, warm
    starts and what is kept from solve to solve are the first planner's, and a row that failed there
    starts cold next time.

    Attributes:
        first: Searches.
        polish: Improves; as long a horizon.

    Raises:
        ValueError: the two do not fit together.
    """

    first: Planner
    polish: Planner

    def __post_init__(self) -> None:
        names = [name for name in ("first", "polish") if not hasattr(getattr(self, name), "plan")]
        if names:
            raise ValueError(f"Hybrid: {' and '.join(names)} must be a planner")
        lengths = self.first.horizon, self.polish.horizon
        if lengths[0] != lengths[1]:
            raise ValueError(
                f"Hybrid: first.horizon={lengths[0]} and polish.horizon={lengths[1]} must be equal"
            )
        kinds = [getattr(one, "is_discrete", False) for one in (self.first, self.polish)]
        if kinds[0] != kinds[1]:
            raise ValueError("Hybrid: one planner is for discrete actions, the other is not")

    @property
    def horizon(self) -> int:
        """Blocks in a cold start."""
        return self.first.horizon

    @property
    def num_samples(self) -> int:
        """Most candidates in one round of either."""
        return max(getattr(one, "num_samples", 1) for one in (self.first, self.polish))

    @property
    def is_discrete(self) -> bool:
        """Whether both are for discrete actions."""
        return bool(getattr(self.first, "is_discrete", False))

    @property
    def needs_gradient(self) -> bool:
        """Whether either follows the gradient of the cost."""
        return any(getattr(one, "needs_gradient", False) for one in (self.first, self.polish))

    def start(
        self, batch: int, action_dim: int, device: torch.device, actions: object = None
    ) -> Plan:
        """Make the first planner's start; see ``ContinuousPlanner.start``.

        Raises:
            ValueError: a setting of either does not fit the action.
        """
        self.polish.start(batch, action_dim, device)
        if actions is None:
            return self.first.start(batch, action_dim, device)
        return self.first.start(batch, action_dim, device, actions)  # type: ignore[call-arg]

    def shift(self, plan: Plan, n: int) -> Plan:
        """Make the first planner's next start."""
        return self.first.shift(plan, n)

    def plan(self, cost: CostFn, start: Plan, bounds: Bounds, generators: Streams) -> Plan:
        """Search, then polish; the trace is that of both, one after the other."""
        found = self.first.plan(cost, start, bounds, generators)
        (B, H, A), device = found.actions.shape, found.actions.device
        begin = self.polish.start(B, A, device).cut(H)
        tried = found.actions if found.best is None else found.best.actions
        begin = replace(begin, actions=found.actions, candidates=tried[:, None])
        polished = self.polish.plan(cost, begin, bounds, generators)
        failed, wins = found.cost.isinf(), polished.cost < found.cost  # [B]
        best = _cheaper(found, polished)
        trace = None
        if found.trace is not None and polished.trace is not None:
            trace = join([found.trace, polished.trace])
        return replace(
            found,
            actions=torch.where(wins[:, None, None], polished.actions, found.actions),
            cost=torch.where(wins & ~failed, polished.cost, found.cost),
            trace=trace,
            best=best,
        )


def _cheaper(found: Plan, polished: Plan) -> Scored | None:
    """Return the cheaper of the best candidates of both."""
    if found.best is None or polished.best is None:
        return found.best or polished.best
    wins: Tensor = polished.best.cost < found.best.cost
    actions = torch.where(wins[:, None, None], polished.best.actions, found.best.actions)
    return Scored(actions, torch.where(wins, polished.best.cost, found.best.cost))
