"""ContinuousPlanner: what every planner over real-valued actions shares, whatever its search.

A start and its shift from solve to solve, the bounds and constraints a candidate has to meet, and
the checks at the door. The search itself is the subclass's ``plan``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Bounds, CostFn, Plan
from jepa_wm.control.streams import Streams
from jepa_wm.planners.constraints import Constraint, Named, allowed, misfits, named
from jepa_wm.planners.rounds import clamp, constant
from jepa_wm.planners.settings import count_faults, flag_faults, range_faults

PerDim = float | Sequence[float]
"""A setting for all solver dimensions, or one number per dimension [A]."""


@dataclass(frozen=True, kw_only=True)
class ContinuousPlanner(ABC):
    """Plans real-valued actions [H,A] from a mean and a spread.

    Attributes:
        horizon: Blocks in a cold start, H.
        init_std: Standard deviation of a cold start, solver units; a number or [A]. 0 pins a
            dimension.
        constraints: What candidates may be beside the bounds, by name, applied in order before
            them; see ``jepa_wm.planners.constraints``.
        clip: Clip candidates (and a warm start's mean) to the bounds; False ignores them.

    Raises:
        ValueError: a setting is impossible; all faults at once, by name.
    """

    horizon: int
    init_std: PerDim
    constraints: Mapping[str, Constraint] | Named
    clip: bool

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraints", named(self.constraints))
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Sequence) and not isinstance(value, str):  # hashable, and plain
                object.__setattr__(self, field.name, tuple(value))
        faults = self.faults()
        if faults:
            raise ValueError(f"{type(self).__name__}: " + "; ".join(faults))

    def faults(self) -> list[str]:
        """Name every impossible setting; a subclass may add its own."""
        values = self._values()
        return [
            *count_faults(values, ("horizon",)),
            *range_faults(values, {"init_std": torch.inf}),
            *flag_faults(values, ("clip",)),
        ]

    @abstractmethod
    def plan(self, cost: CostFn, start: Plan, bounds: Bounds, generators: Streams) -> Plan:
        """Improve ``start``; see ``jepa_wm.control.interfaces.Planner``."""

    def start(
        self, batch: int, action_dim: int, device: torch.device, actions: object = None
    ) -> Plan:
        """Make a start for ``batch`` problems: zero or given actions, and the initial spread.

        Args:
            batch: Number of problems, B.
            action_dim: Solver action size, A.
            device: Where to plan.
            actions: A warm start, [B,h,A] with h <= horizon: a tensor of any dtype and device,
                numpy or lists.

        Raises:
            ValueError: ``actions`` or a per-dimension setting has another shape, or a constraint is
                on a dimension that is not there.
        """
        faults = misfits(named(self.constraints), action_dim)
        if faults:
            raise ValueError("; ".join(faults))
        mean = torch.zeros(batch, self.horizon, action_dim, device=device)
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
            mean[:, : given.shape[1]] = given
        std = self._per_dim("init_std", action_dim, device).expand_as(mean).clone()
        return Plan(mean, std, torch.full((batch,), torch.inf, device=device))

    def shift(self, plan: Plan, n: int) -> Plan:
        """Make the next start: drop ``n`` executed blocks, pad with zeros, spread anew.

        A row whose cost is infinite (its solve met costs that were not finite) starts cold.
        """
        B, _, A = plan.actions.shape
        kept = plan.actions[:, n : n + self.horizon]
        kept = torch.where(plan.cost.isfinite()[:, None, None], kept, torch.zeros_like(kept))
        return self.start(B, A, plan.actions.device, kept)

    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def _allowed(self, actions: Tensor, box: Bounds | None) -> Tensor:
        """Bring candidates [..,H,A] within the constraints, then the box."""
        return clamp(allowed(actions, named(self.constraints)), box)

    def _per_dim(self, name: str, action_dim: int, device: torch.device) -> Tensor:
        values = getattr(self, name)
        if isinstance(values, Sequence) and len(values) != action_dim:
            raise ValueError(
                f"{name} has {len(values)} numbers, the solver action {action_dim}; "
                "give one number for all, or one for each"
            )
        return constant(values, device)

    def _box(self, start: Plan, bounds: Bounds, generators: Streams) -> Bounds | None:
        """Check that the parts of a problem fit; return the box that candidates are clipped to."""
        B, _, A = start.actions.shape
        if start.std.shape != start.actions.shape or start.cost.shape != (B,):
            raise ValueError(
                f"start needs actions and std [B,H,A] and cost [B], got {start.std.shape}"
            )
        if len(generators) != B:
            raise ValueError(f"{B} problems need {B} generators, got {len(generators)}")
        if any(len(end) != A for end in bounds):
            raise ValueError(
                f"bounds must be two [{A}] tensors, got {[len(end) for end in bounds]}"
            )
        low, high = (end.to(start.actions.device, torch.float32) for end in bounds)
        return (low, high) if self.clip else None
