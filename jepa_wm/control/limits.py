"""Limits: what environment actions may be, in their own units, beside the environment's box.

A planner works in solver units and knows constraints (``jepa_wm.planners.constraints``); here one
is made that decodes, moves what is outside, and encodes. All sets are convex, so a mean of allowed
plans is allowed; and whatever a planner returns, ``MPC`` executes only what ``Limits.apply`` gives.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.discrete import Codec
from jepa_wm.control.interfaces import Planner
from jepa_wm.control.nearest import Ball, Steps
from jepa_wm.errors import ConfigError

SHAPES = ("box", "l1", "l2", "rate")
Numbers = float | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class ActionLimit:
    """One limit of environment actions.

    Attributes:
        shape: ``box`` bounds each number, ``l1`` and ``l2`` the norm of a step's numbers, ``rate``
            the change of each number from one environment step to the next.
        limit: Of a ball its radius; of a box or a rate a number, or one for each of ``dims``, that
            |a_i| or |a_i - a_i before| may be. >= 0, env units; 0 leaves no room.
        low: Of a box in place of ``limit``: its lower ends, likewise.
        high: Its upper ends.
        dims: Dimensions of the environment's action, or None for all.
    """

    shape: str
    limit: Numbers | None = None
    low: Numbers | None = None
    high: Numbers | None = None
    dims: Sequence[int] | None = None

    @property
    def is_ball(self) -> bool:
        """Whether it bounds a norm."""
        return self.shape in ("l1", "l2")

    def of(self, size: int) -> list[int]:
        """Return its dimensions of an action of ``size`` numbers."""
        return list(range(size)) if self.dims is None else list(self.dims)

    def ends(self, size: int) -> tuple[Tensor, Tensor]:
        """Return the ends of a box or a rate [size]; infinite in other dimensions."""
        dims = self.of(size)
        low, high = torch.full((size,), -torch.inf), torch.full((size,), torch.inf)
        if self.limit is not None:
            high[dims] = torch.as_tensor(self.limit, dtype=torch.float32)
            low[dims] = -high[dims]
        for end, value in ((low, self.low), (high, self.high)):
            if value is not None:
                end[dims] = torch.as_tensor(value, dtype=torch.float32)
        return low, high

    def faults(self, size: int) -> list[str]:
        """Name what is wrong for actions of ``size`` numbers."""
        if self.shape not in SHAPES:
            return [f"shape={self.shape!r} must be one of {', '.join(SHAPES)}"]
        try:
            dims = self.of(size)
        except TypeError:
            dims = []
        valid = dims and all(type(dim) is int and 0 <= dim < size for dim in dims)
        if not valid or len(set(dims)) < len(dims):
            return [
                f"dims={self.dims!r} must be different dimensions of the environment's action, "
                f"0 to {size - 1}, or null for all"
            ]
        ends = self.low is not None or self.high is not None
        if ends and self.shape != "box":
            return [f"low and high are for shape=box; shape={self.shape} takes limit"]
        if (self.limit is None) != ends:
            return ["give limit" + (", or low and high" if self.shape == "box" else "")]
        return [
            fault for name in ("limit", "low", "high") for fault in self._wrong(name, len(dims))
        ]

    def _wrong(self, name: str, count: int) -> list[str]:
        value, least = getattr(self, name), 0.0 if name == "limit" else -torch.inf
        one_each = isinstance(value, list | tuple) and not self.is_ball and len(value) == count
        for number in value if one_each else [value]:
            plain = isinstance(number, int | float) and not isinstance(number, bool)
            if number is not None and not (plain and least <= number and abs(number) < torch.inf):
                each = "" if self.is_ball else f", or {count} of them"
                sign = " >= 0" if name == "limit" else ""
                return [f"{name}={value!r} must be a finite number{sign}{each}"]
        return []


@dataclass(frozen=True, eq=False)
class Limits:
    """All limits of a run, by name.

    Attributes:
        codec: Between solver and environment actions; its box is one of the limits.
        limits: Each the limit of that name.

    Raises:
        ConfigError: a limit is impossible, or together they are; all faults at once, by name.
    """

    codec: ActionCodec
    limits: Mapping[str, ActionLimit]

    def __post_init__(self) -> None:
        a = self.codec.env_dim
        faults = [f"limits.{name}: {f}" for name, one in self.limits.items() for f in one.faults(a)]
        faults = faults or self._apart() or self._empty()
        if faults:
            raise ConfigError("; ".join(faults))

    @property
    def steps(self) -> Steps:
        """The set of allowed sequences of environment actions."""
        a, low, high = self.codec.env_dim, self.codec.low, self.codec.high
        reach: Tensor | None = None
        balls = []
        for one in self.limits.values():
            if one.is_ball:
                balls.append(Ball(torch.tensor(one.of(a)), float(one.limit), one.shape))  # type: ignore[arg-type]
                continue
            lower, upper = one.ends(a)
            if one.shape == "box":
                low, high = low.maximum(lower), high.minimum(upper)
            else:
                reach = upper if reach is None else reach.minimum(upper)
        return Steps(low, high, reach, tuple(balls))

    def bind(self, planner: Planner, before: Tensor | None, device: torch.device) -> Planner:
        """Return a planner with these limits as the last of its constraints.

        A planner made of others passes them on. One that has no constraints searches without; what
        is executed keeps the limits all the same.

        Args:
            planner: A dataclass with ``constraints`` or with planners that have them, or any other.
            before: Environment actions executed last, [B,a], or None.
            device: Where it plans.
        """
        within = WithinLimits(self.codec, self.steps.to(device), before)
        return _constrained(planner, within)

    def apply(self, actions: Tensor, before: Tensor | None) -> Tensor:
        """Return what is executed of decoded environment actions [B,K,a]."""
        zone = self.codec.dead_zone
        assert zone is not None  # filled in by the codec
        near = self.steps.to(actions.device).nearest(actions, before)
        return near.masked_fill(near.abs() < zone.to(near.device), 0)

    def _apart(self) -> list[str]:
        """Name what cannot be together: two balls of a number, a rate and a dead zone."""
        a, zone = self.codec.env_dim, self.codec.dead_zone
        assert zone is not None  # filled in by the codec
        faults, owner = [], dict[int, str]()
        for name, one in self.limits.items():
            for dim in one.of(a):
                if one.is_ball and owner.setdefault(dim, name) != name:
                    faults.append(
                        f"limits.{owner[dim]} and limits.{name} are both balls of dimension {dim}; "
                        "give it one"
                    )
                if one.shape == "rate" and zone[dim] > 0:
                    faults.append(
                        f"limits.{name}: dimension {dim} has a dead zone of {zone[dim]:g}, which "
                        f"is a jump; leave it out of dims={one.of(a)}"
                    )
        return faults

    def _empty(self) -> list[str]:
        """Name the limits that leave nothing, or not the zero a dead zone makes."""
        faults, steps, zone = [], self.steps, self.codec.dead_zone
        assert zone is not None  # filled in by the codec
        bounds = list(zip(steps.low.tolist(), steps.high.tolist(), strict=True))
        boxes = [(name, one) for name, one in self.limits.items() if one.shape == "box"]
        for dim, (low, high) in enumerate(bounds):
            names = [f"limits.{name}" for name, one in boxes if dim in one.of(self.codec.env_dim)]
            what = f"{' and '.join(names)}: dimension {dim} is left {low:g} to {high:g}"
            if names and low > high:
                faults.append(f"{what}, nothing, with the environment's box")
            elif names and zone[dim] > 0 and not low <= 0 <= high:
                faults.append(f"{what}, without 0, which its dead zone makes")
        if faults:
            return faults
        for name, one in self.limits.items():
            least = torch.zeros(len(bounds)).clamp(steps.low, steps.high)[one.of(len(bounds))]
            size = least.norm(p=1 if one.shape == "l1" else 2)
            if one.is_ball and size > one.limit:
                faults.append(f"limits.{name}: limit={one.limit} but the box begins at {size:g}")
        return faults


@dataclass(frozen=True, eq=False)
class WithinLimits:
    """Limits as a planner's constraint, for one solve.

    Attributes:
        codec: Between solver and environment actions.
        allowed: What sequences of environment actions may be, on the planner's device.
        before: Environment actions executed last, [B,a], or None.
    """

    codec: ActionCodec
    allowed: Steps
    before: Tensor | None

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            there = getattr(self.codec, name).to(self.allowed.low.device)
            object.__setattr__(self, f"_{name}", there)

    @property
    def dims(self) -> Sequence[int]:
        """Solver dimensions it touches: all."""
        return tuple(range(self.codec.action_dim))

    def __call__(self, actions: Tensor) -> Tensor:
        """Return allowed plans [B,..,H,A], solver units; what is allowed stays, to the bit."""
        mean: Tensor = self._mean  # type: ignore[attr-defined]
        std: Tensor = self._std  # type: ignore[attr-defined]
        blocks = (self.codec.block, self.codec.env_dim)
        raw = mean + std * actions.unflatten(-1, blocks).flatten(-3, -2)  # [B,..,H*block,a]
        near = self.allowed.nearest(raw, self.before)
        moved = ((near - mean) / std).reshape(actions.shape)
        return torch.where((near == raw).reshape(actions.shape), actions, moved)

    def start(self, mean: Tensor) -> Tensor:
        """Begin a search within the limits."""
        return self(mean)


def _constrained(planner: Any, within: WithinLimits) -> Any:
    changes: dict[str, Any] = {}
    for field in fields(planner) if is_dataclass(planner) else ():
        value = getattr(planner, field.name)
        if field.name == "constraints":
            changes[field.name] = {**dict(value), "limits": within}
        elif hasattr(value, "plan"):
            changes[field.name] = _constrained(value, within)
    return replace(planner, **changes) if changes else planner


def read_limits(nodes: Mapping[str, Mapping[str, Any]] | None, codec: Codec) -> Limits | None:
    """Make the limits of ``limits={name: {shape: .., limit: ..}}``, or None where there are none.

    Raises:
        ConfigError: an entry is not one, by name.
    """
    if not nodes:
        return None
    known, limits = [field.name for field in fields(ActionLimit)], {}
    if not isinstance(nodes, Mapping):
        raise ConfigError(f"limits={nodes!r} must be named: limits.speed={{shape: l2, limit: 1}}")
    if not isinstance(codec, ActionCodec):
        raise ConfigError(f"limits: the action space is {codec}, choices have no size to limit")
    for name, node in nodes.items():
        if not isinstance(node, Mapping) or "shape" not in node or set(node) - set(known):
            raise ConfigError(f"limits.{name}={node!r} must have shape and others of {known}")
        limits[str(name)] = ActionLimit(**node)
    return Limits(codec, limits)
