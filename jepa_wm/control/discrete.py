"""DiscreteCodec: solver actions of environments whose actions are choices, not numbers.

A block is one-hot: for each of its ``block`` steps and each of the environment's choices one group
of numbers, one of them 1. A planner may also speak of probabilities; the largest is executed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import gymnasium
import torch
from torch import Tensor

from jepa_wm.control.actions import ActionCodec, ArrayLike, as_float32
from jepa_wm.errors import ConfigError


@dataclass(frozen=True, eq=False, kw_only=True)
class DiscreteCodec:
    """Maps one-hot blocks to the choices of a ``Discrete`` or ``MultiDiscrete`` space.

    Attributes:
        block: Environment steps per solver block, >= 1.
        choices: Number of options of each of the environment's a choices, [a], each >= 2.
        first: The lowest value of each choice, [a]; None counts from 0.

    Raises:
        ConfigError: a setting is impossible; all faults at once.
    """

    block: int
    choices: Sequence[int]
    first: Sequence[int] | None = None

    is_discrete: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(int(n) for n in self.choices))
        first = [0] * len(self.choices) if self.first is None else self.first
        object.__setattr__(self, "first", tuple(int(n) for n in first))
        faults = []
        if type(self.block) is not int or self.block < 1:
            faults.append(f"block={self.block!r} must be a whole number >= 1")
        if not self.choices or min(self.choices) < 2:
            faults.append(f"choices={list(self.choices)} must be whole numbers >= 2")
        if len(first) != len(self.choices):
            faults.append(f"first has {len(first)} numbers, choices {len(self.choices)}")
        if faults:
            raise ConfigError("discrete codec: " + "; ".join(faults))

    @classmethod
    def of(cls, space: gymnasium.Space, block: int) -> "DiscreteCodec":
        """Make the codec of a ``Discrete`` or one-dimensional ``MultiDiscrete`` space.

        Raises:
            ConfigError: it is another space.
        """
        if isinstance(space, gymnasium.spaces.Discrete):
            return cls(block=block, choices=[int(space.n)], first=[int(space.start)])
        if isinstance(space, gymnasium.spaces.MultiDiscrete) and space.nvec.ndim == 1:
            return cls(block=block, choices=space.nvec.tolist(), first=space.start.tolist())
        raise ConfigError(f"action space {space} is no choice; Discrete and MultiDiscrete are")

    def __str__(self) -> str:
        return (
            f"Discrete({self.choices[0]})"
            if self.env_dim == 1
            else f"MultiDiscrete({list(self.choices)})"
        )

    @property
    def env_dim(self) -> int:
        """Choices in one environment action, a."""
        return len(self.choices)

    @property
    def action_dim(self) -> int:
        """Solver action size A = block * (sum of the options)."""
        return self.block * sum(self.choices)

    @property
    def low(self) -> Tensor:
        """The lowest values, float32 [a]."""
        return torch.tensor(self.first, dtype=torch.float32)

    @property
    def high(self) -> Tensor:
        """The highest values, float32 [a]."""
        return self.low + torch.tensor(self.choices) - 1

    def encode(self, actions: ArrayLike) -> Tensor:
        """Turn environment actions [..., n * block, a], whole numbers, into blocks [..., n, A].

        Raises:
            ValueError: the last dimension is not a, the steps do not fill whole blocks, or a value
                is none of the options.
        """
        steps = as_float32(actions)
        if steps.ndim < 2 or steps.shape[-1] != self.env_dim or steps.shape[-2] % self.block:
            raise ValueError(
                f"env actions must be [..., n*{self.block}, {self.env_dim}], "
                f"got {list(steps.shape)}"
            )
        picked = (steps - self.low.to(steps.device)).long()
        for index, count in enumerate(self.choices):
            wrong = steps[..., index][(picked[..., index] < 0) | (picked[..., index] >= count)]
            if len(wrong):
                low, high = int(self.low[index]), int(self.high[index])
                raise ValueError(f"{wrong[0]:g} of choice {index} is none of {low} to {high}")
        groups = [
            torch.nn.functional.one_hot(value, count)
            for value, count in zip(picked.unbind(-1), self.choices, strict=True)
        ]
        return torch.cat(groups, -1).float().reshape(*steps.shape[:-2], -1, self.action_dim)

    def decode(self, blocks: ArrayLike) -> Tensor:
        """Turn blocks [..., n, A] into environment actions [..., n*block, a], each group's largest.

        Returns:
            Whole numbers as float32.

        Raises:
            ValueError: the last dimension is not A.
        """
        groups = self.groups(blocks)
        picked = torch.stack([group.argmax(-1) for group in groups], -1)
        return picked + self.low.to(picked.device)

    def groups(self, blocks: ArrayLike) -> tuple[Tensor, ...]:
        """Split blocks [..., n, A] into the options of each choice, [..., n*block, options].

        Raises:
            ValueError: the last dimension is not A.
        """
        packed = blocks.float() if isinstance(blocks, Tensor) else as_float32(blocks)
        if packed.ndim < 2 or packed.shape[-1] != self.action_dim:
            raise ValueError(
                f"solver blocks must be [..., n, {self.action_dim}] (block {self.block} x "
                f"{sum(self.choices)} options), got {list(packed.shape)}"
            )
        steps = packed.reshape(*packed.shape[:-2], -1, sum(self.choices))
        return steps.split(list(self.choices), -1)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Return the box of one-hot numbers, zeros [A] and ones [A]."""
        return torch.zeros(self.action_dim), torch.ones(self.action_dim)


Codec = ActionCodec | DiscreteCodec
"""Between solver and environment actions, numbers or choices."""


@dataclass(frozen=True, eq=False, kw_only=True)
class MovesCodec:
    """Reads one-hot blocks as the continuous actions they stand for, for models that step those.

    Attributes:
        codec: Of the discrete space, with one choice.
        moves: The continuous action [a] of each option, [options, a].

    Raises:
        ConfigError: there is not one move an option.
    """

    codec: DiscreteCodec
    moves: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "moves", as_float32(self.moves))
        if (
            self.codec.env_dim != 1
            or self.moves.ndim != 2
            or len(self.moves) != self.codec.choices[0]
        ):
            raise ConfigError(
                f"moves {list(self.moves.shape)} must hold one action for each option of "
                f"{self.codec}"
            )

    @property
    def block(self) -> int:
        """Environment steps per solver block."""
        return self.codec.block

    @property
    def env_dim(self) -> int:
        """Size a of a move."""
        return self.moves.shape[1]

    @property
    def action_dim(self) -> int:
        """Solver action size A."""
        return self.codec.action_dim

    def decode(self, blocks: ArrayLike) -> Tensor:
        """Turn blocks [..., n, A] into moves [..., n*block, a]; of probabilities, the mean move."""
        (steps,) = self.codec.groups(blocks)
        return steps @ self.moves.to(steps)


StepCodec = ActionCodec | MovesCodec
"""From solver actions to what a model of states steps by."""
