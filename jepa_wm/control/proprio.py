"""ProprioDistance: the objective that looks at where a plan leads the body, not at the picture."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from jepa_wm.control.distances import Distance, exact, is_positive, refuse
from jepa_wm.control.situation import Situation
from jepa_wm.errors import ConfigError


@dataclass(frozen=True, eq=False)
class ProprioDistance(Distance):
    """Distance between the proprioception a plan leads to and the goal's (``Distance``).

    For models that predict it, as that of an arm, whose pose moves with its actions. Weigh it
    against the latents in a ``WeightedSum``.

    Attributes:
        goal_z: Ignored; here so that every objective is made the same way.
        dims: Numbers of the proprioception that count, or None for all.
        scale: What counts as 1: one number > 0 for all or one for each of ``dims``, env units.
        wraps: Those of the numbers that are angles in radians: the shorter way round counts.
        situation: Knows the goals' proprioception and predicts the plan's; see ``given``.

    Raises:
        ValueError: a setting is impossible.

    Source: the proprioceptive part, weight alpha, of DINO-WM's ``objectives.py``; there both are
        embedded, here they are compared in their own units.
    """

    goal_z: Tensor
    _: KW_ONLY
    dims: Sequence[int] | None = None
    scale: float | Sequence[float] = 1.0
    wraps: Sequence[int] = ()
    situation: Situation | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        scales = self.scale if isinstance(self.scale, Sequence) else [self.scale]
        faults = [] if all(map(is_positive, scales)) else [f"scale={self.scale!r} must be > 0"]
        for name, dims in (("dims", self.dims or ()), ("wraps", self.wraps)):
            if not all(type(dim) is int and dim >= 0 for dim in dims):
                faults.append(f"{name}={dims!r} must be whole numbers >= 0")
        if self.norm == "cosine":
            faults.append("norm='cosine' tells nothing of a place (one of l2, l1, huber)")
        refuse(faults)

    def given(self, situation: Situation) -> "ProprioDistance":
        """Return this objective in a situation."""
        return replace(self, situation=situation)

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost [B,S], float32 or wider, of solver-space actions [B,S,H,A] from where we are.

        Raises:
            ConfigError: the model predicts no proprioception, the goal's is unknown, or they do not
                fit the settings.
        """
        now = self.situation
        if now is None or now.predict is None:
            raise ConfigError("objective: the model predicts no proprioception to be compared")
        if now.goal_proprio is None:
            raise ConfigError("objective: the goal's proprioception is not known; give it at reset")
        found = exact(now.predict(actions))  # [B,S,H,P]
        goal = now.goal_proprio.to(found.dtype)
        dims = list(range(goal.shape[1])) if self.dims is None else list(self.dims)
        self._check(found, goal, dims)
        gap = found - goal[:, None, None]
        parts = [_turn(gap[..., dim]) if dim in self.wraps else gap[..., dim] for dim in dims]
        scales = self.scale if isinstance(self.scale, Sequence) else [self.scale] * len(dims)
        scaled = torch.stack([p / s for p, s in zip(parts, scales, strict=True)], -1)
        return self.over(self.between(scaled, torch.zeros_like(scaled[:, 0, 0])))

    def _check(self, found: Tensor, goal: Tensor, dims: Sequence[int]) -> None:
        size = goal.shape[1]
        faults = []
        if found.shape[::3] != goal.shape:
            faults.append(f"{list(found.shape)} predicted does not fit the goal's {[*goal.shape]}")
        if max([*dims, *self.wraps], default=0) >= size:
            faults.append(f"dims={dims} and wraps={list(self.wraps)} must be below {size}")
        if isinstance(self.scale, Sequence) and len(self.scale) != len(dims):
            faults.append(f"scale has {len(self.scale)} numbers for {len(dims)} of proprioception")
        if faults:
            raise ConfigError("objective: proprioception: " + "; ".join(faults))


def _turn(angle: Tensor) -> Tensor:
    """Turn angles, radians, into the shorter way round, [-pi, pi)."""
    return torch.remainder(angle + torch.pi, 2 * torch.pi) - torch.pi
