"""Constraints: what candidates may be, beside the environment's box.

A planner applies its constraints in order to every candidate it draws, in solver space, then the
environment's box. They are settings, so every planner shares them: limits of a step's length, pins,
values forced from some step of the plan on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

SHAPES = ("box", "l1", "l2")
Named = tuple[tuple[str, "Constraint"], ...]
"""Constraints in the order they are applied, by name."""


class Constraint(Protocol):
    """Maps actions to the nearest allowed ones; given actions are not changed."""

    @property
    def dims(self) -> Sequence[int]:
        """Solver dimensions it touches."""
        ...

    def __call__(self, actions: Tensor) -> Tensor:
        """Return allowed candidates, float [..,H,A], of any."""
        ...

    def start(self, mean: Tensor) -> Tensor:
        """Return where a search from the mean [..,H,A] may begin."""
        ...


@dataclass(frozen=True, kw_only=True)
class Limit:
    """Keeps some dimensions of every step near zero, moving what is outside to the nearest point.

    Attributes:
        dims: Solver dimensions.
        limit: Half the side of the box or radius of the ball, > 0, solver units.
        shape: ``box`` bounds each |a_i|, ``l1`` their sum, ``l2`` the root of their squares' sum.

    Raises:
        ValueError: a setting is impossible; all faults at once.
    """

    dims: Sequence[int]
    limit: float
    shape: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "dims", tuple(self.dims))
        faults = _dim_faults(self.dims)
        if isinstance(self.limit, bool | str) or not 0 < self.limit < torch.inf:
            faults.append(f"limit={self.limit!r} must be a number > 0")
        if self.shape not in SHAPES:
            faults.append(f"shape={self.shape!r} must be one of {', '.join(SHAPES)}")
        _refuse(self, faults)

    def __call__(self, actions: Tensor) -> Tensor:
        """Return the nearest actions within the limit."""
        part = torch.stack([actions[..., dim] for dim in self.dims], -1)
        near = self._nearest(part)
        return _set(actions, dict(zip(self.dims, near.unbind(-1), strict=True)))

    def start(self, mean: Tensor) -> Tensor:
        """Begin within the limit."""
        return self(mean)

    def _nearest(self, part: Tensor) -> Tensor:
        """Clip to the box, scale into the l2 ball, or shrink all magnitudes into the l1 ball.

        By what the largest j of them exceed it, for the j where that is most.
        """
        if self.shape == "box":
            return part.clamp(-self.limit, self.limit)
        if self.shape == "l2":
            size = torch.linalg.vector_norm(part, dim=-1, keepdim=True)
            return torch.where(size > self.limit, part * (self.limit / size), part)
        sizes = part.abs()
        excess = sizes.sort(-1, descending=True).values.cumsum(-1) - self.limit
        counts = torch.arange(1, part.shape[-1] + 1, device=part.device, dtype=part.dtype)
        shrink = (excess / counts).amax(-1, keepdim=True).clamp_min(0)
        return part.sign() * (sizes - shrink).clamp_min(0)


@dataclass(frozen=True, kw_only=True)
class Pin:
    """Fixes dimensions in every step, in candidates and mean alike, whatever their spread.

    Attributes:
        values: Solver dimension -> value, solver units; empty pins nothing.

    Raises:
        ValueError: a dimension or a value is none.
    """

    values: Mapping[int, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _by_dimension(self.values))
        _refuse(self, _value_faults(self.values))

    @property
    def dims(self) -> Sequence[int]:
        """Pinned dimensions."""
        return tuple(self.values)

    def __call__(self, actions: Tensor) -> Tensor:
        """Return the actions with the dimensions fixed."""
        return _set(actions, self.values)

    def start(self, mean: Tensor) -> Tensor:
        """Begin pinned."""
        return self(mean)


@dataclass(frozen=True, kw_only=True)
class FromStep:
    """Forces values from some step of the plan on, as ``close_gripper`` does.

    The mean is not forced, it follows the candidates: with momentum m it is within m^k of the value
    after k iterations, as in the reference.

    Attributes:
        step: First block of the plan, 0-based, or None for never.
        values: Solver dimension -> value, solver units.

    Raises:
        ValueError: a setting is impossible; all faults at once.

    Source: facebookresearch/vjepa2 ``notebooks/utils/mpc_utils.py``, ``close_gripper``, which sets
        1 after the clip to 0.75.
    """

    step: int | None
    values: Mapping[int, float]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", _by_dimension(self.values))
        faults = _value_faults(self.values)
        if self.step is not None and (type(self.step) is not int or self.step < 0):
            faults.append(f"step={self.step!r} must be a whole number >= 0 or null")
        _refuse(self, faults)

    @property
    def dims(self) -> Sequence[int]:
        """Forced dimensions."""
        return tuple(self.values)

    def __call__(self, actions: Tensor) -> Tensor:
        """Return the actions with the values forced from the step on."""
        if self.step is None:
            return actions
        first, forced = actions.split([min(self.step, actions.shape[-2]), self._after(actions)], -2)
        return torch.cat([first, _set(forced, self.values)], -2)

    def start(self, mean: Tensor) -> Tensor:
        """Begin anywhere."""
        return mean

    def _after(self, actions: Tensor) -> int:
        assert self.step is not None  # asked for after the check
        return max(0, actions.shape[-2] - self.step)


def named(constraints: Mapping[str, Constraint] | Named) -> Named:
    """Put constraints, a mapping or its items, into their immutable form."""
    return tuple(dict(constraints).items())


def allowed(actions: Tensor, constraints: Named) -> Tensor:
    """Apply constraints in order to candidates [..,H,A]."""
    for _, constraint in constraints:
        actions = constraint(actions)
    return actions


def starting(mean: Tensor, constraints: Named) -> Tensor:
    """Return where a search from the mean [..,H,A] may begin."""
    for _, constraint in constraints:
        mean = constraint.start(mean)
    return mean


def misfits(constraints: Named, action_dim: int) -> list[str]:
    """Name the constraints on dimensions a solver action [A] does not have."""
    return [
        f"constraint {name} is on dimension {max(constraint.dims)}, the solver action has "
        f"{action_dim} (0 to {action_dim - 1})"
        for name, constraint in constraints
        if constraint.dims and max(constraint.dims) >= action_dim
    ]


def _set(actions: Tensor, values: Mapping[int, float | Tensor]) -> Tensor:
    """Copy the actions with some dimensions replaced; by plain numbers, so no device waits."""
    changed = actions.clone()
    for dim, value in values.items():
        changed[..., dim] = value
    return changed


def _by_dimension(values: Mapping[int, float]) -> dict[int, float]:
    """Copy values by dimension; JSON keeps numbers that are keys as text."""
    return {int(k) if isinstance(k, str) and k.isdigit() else k: v for k, v in values.items()}


def _dim_faults(dims: Sequence[int]) -> list[str]:
    if not all(type(dim) is int and dim >= 0 for dim in dims) or len(set(dims)) < len(dims):
        return [f"{list(dims)} must be different dimensions, whole numbers >= 0"]
    return []


def _value_faults(values: Mapping[int, float]) -> list[str]:
    faults = _dim_faults(tuple(values))
    wrong = [v for v in values.values() if type(v) not in (int, float) or not abs(v) < torch.inf]
    return [*faults, *(f"values: {value!r} must be a finite number" for value in wrong)]


def _refuse(constraint: Constraint, faults: list[str]) -> None:
    if faults:
        raise ValueError(f"{type(constraint).__name__}: " + "; ".join(faults))
