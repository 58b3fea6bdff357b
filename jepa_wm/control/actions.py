"""ActionCodec: the one place where solver actions and environment actions meet.

A planner works on blocks: ``block`` environment actions, z-scored and flattened time-major
(``a_t(x, y), a_{t+1}(x, y), ...``) into one vector of A = block * a numbers. The codec turns such
blocks into clipped environment actions and back, and carries the environment's box into solver
space, so that no planner ever compares a z-scored number with a raw bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from jepa_wm.errors import ConfigError

ArrayLike: TypeAlias = Tensor | np.ndarray | Sequence[float]
"""Numbers from any caller: a torch tensor, a numpy array or (nested) Python lists."""


def as_float32(values: ArrayLike) -> Tensor:
    """Return ``values`` as a float32 tensor, on its own device where it has one."""
    if isinstance(values, Tensor):
        return values.detach().to(torch.float32)
    return torch.from_numpy(
        np.array(values, dtype=np.float32)
    )  # a copy: the caller's array stays free


@dataclass(frozen=True, eq=False, kw_only=True)
class ActionCodec:
    """Maps solver blocks to environment actions: ``a = clip(mean + std * z, low, high)``.

    Attributes:
        block: Environment steps per solver block, >= 1.
        mean: Action mean [a], env units. A tiled statistic [block * a] is accepted and stored as
            [a].
        std: Action standard deviation [a], env units, > 0; tiled statistics likewise.
        low: Lower end of the env's box [a], env units; -inf where unbounded.
        high: Upper end of the env's box [a], env units; inf where unbounded.
        dead_zone: Sizes [a], env units, below which an action is executed as 0 (V-JEPA 2-AC's arm:
            a quarter of the gripper's way); None has none.

    Raises:
        ConfigError: a length, a sign or an order is wrong; all faults at once.

    Source: per-column z-score over the raw action, un-scaled before ``env.step``, as
        stable-worldmodel's ``policy.py`` does; the clip is ours (there, nothing clips).
    """

    block: int
    mean: Tensor
    std: Tensor
    low: Tensor
    high: Tensor
    dead_zone: Tensor | None = None

    is_discrete: ClassVar[bool] = False

    def __str__(self) -> str:
        return f"Box({self.env_dim},)"

    def __post_init__(self) -> None:
        for name in ("mean", "std", "low", "high"):
            object.__setattr__(self, name, as_float32(getattr(self, name)).cpu().reshape(-1))
        zone = torch.zeros_like(self.low) if self.dead_zone is None else self.dead_zone
        object.__setattr__(self, "dead_zone", as_float32(zone).cpu().reshape(-1))
        if isinstance(self.block, bool) or not isinstance(self.block, int) or self.block < 1:
            raise ConfigError(f"action block must be a whole number >= 1, got {self.block!r}")
        faults = self._untile() or self._value_faults()
        if faults:
            raise ConfigError("action codec: " + "; ".join(faults))

    def _untile(self) -> list[str]:
        size = len(self.low)
        faults = [] if size else ["low is empty"]
        if len(self.high) != size:
            faults.append(f"low has {size} numbers, high {len(self.high)}")
        for name in ("mean", "std"):
            values: Tensor = getattr(self, name)
            if len(values) == self.block * size and size:
                if not torch.equal(values, values[:size].repeat(self.block)):
                    faults.append(f"{name} [{len(values)}] differs between the steps of a block")
                object.__setattr__(self, name, values[:size])
            elif len(values) != size:
                faults.append(
                    f"{name} has {len(values)} numbers; the env action has {size}, "
                    f"its block of {self.block} steps {self.block * size}"
                )
        return faults

    def _value_faults(self) -> list[str]:
        faults = []
        if not bool(torch.isfinite(self.mean).all()):
            faults.append(f"mean is not finite: {self.mean.tolist()}")
        if not bool((torch.isfinite(self.std) & (self.std > 0)).all()):
            faults.append(f"std must be finite and > 0: {self.std.tolist()}")
        zone = self.dead_zone
        if zone is None or len(zone) != self.env_dim or not bool((zone >= 0).all()):
            faults.append(f"dead_zone must be {self.env_dim} numbers >= 0, got {zone}")
        if not bool((self.low <= self.high).all()):
            faults.append(f"low {self.low.tolist()} must not exceed high {self.high.tolist()}")
        return faults

    @property
    def env_dim(self) -> int:
        """Environment action size a."""
        return len(self.low)

    @property
    def action_dim(self) -> int:
        """Solver action size A = block * a."""
        return self.block * self.env_dim

    def encode(self, actions: ArrayLike) -> Tensor:
        """Z-score environment actions and flatten them into solver blocks; nothing is clipped.

        Args:
            actions: [..., n * block, a], env units.

        Returns:
            Blocks, float32 [..., n, A], time-major inside a block.

        Raises:
            ValueError: the last dimension is not a, or the steps do not fill whole blocks.
        """
        steps = as_float32(actions)
        if steps.ndim < 2 or steps.shape[-1] != self.env_dim or steps.shape[-2] % self.block:
            raise ValueError(
                f"env actions must be [..., n*{self.block}, {self.env_dim}], "
                f"got {list(steps.shape)}"
            )
        scaled = (steps - self.mean.to(steps.device)) / self.std.to(steps.device)
        return scaled.reshape(*steps.shape[:-2], -1, self.action_dim)

    def decode(self, blocks: ArrayLike) -> Tensor:
        """Turn solver blocks into environment actions inside the env's box; gradients pass.

        Args:
            blocks: [..., n, A], solver units.

        Returns:
            Env actions, float32 [..., n * block, a], 0 in the dead zone, clipped to [low, high].

        Raises:
            ValueError: the last dimension is not A.
        """
        packed = blocks.float() if isinstance(blocks, Tensor) else as_float32(blocks)
        if packed.ndim < 2 or packed.shape[-1] != self.action_dim:
            raise ValueError(
                f"solver blocks must be [..., n, {self.action_dim}] (block {self.block} x "
                f"{self.env_dim} env dimensions), got {list(packed.shape)}"
            )
        device = packed.device
        steps = packed.reshape(*packed.shape[:-2], -1, self.env_dim)
        raw = self.mean.to(device) + self.std.to(device) * steps
        assert self.dead_zone is not None  # filled in by the constructor
        raw = raw.masked_fill(raw.abs() < self.dead_zone.to(device), 0)
        return torch.clamp(raw, self.low.to(device), self.high.to(device))

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the env's box in solver space, (low [A], high [A]); infinite where unbounded."""
        low, high = (
            ((end - self.mean) / self.std).repeat(self.block) for end in (self.low, self.high)
        )
        return low, high
