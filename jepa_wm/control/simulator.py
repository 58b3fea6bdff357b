"""The simulator as the world model: what a planner reaches when its predictions are right.

"Latents" are simulator states and a rollout steps copies of the environment, so the success of the
same planner on the same episodes is the ceiling of any learned model with this planner. The
simulator arrives as a factory; this module knows no environment.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jepa_wm.control.discrete import StepCodec
from jepa_wm.control.interfaces import Context
from jepa_wm.errors import ConfigError

Floats = NDArray[np.float64]


class Worlds(Protocol):
    """N simulators side by side that can be put into any state."""

    def set_states(self, states: Floats) -> None:
        """Put world n into ``states[n]``, float64 [N,P]."""
        ...

    def act(self, actions: Floats) -> None:
        """Execute one environment action in each world, float64 [N,a]."""
        ...

    def states(self) -> Floats:
        """Return the states, float64 [N,P]."""
        ...


class SimulatorModel:
    """A ``WorldModel`` whose latent is the simulator's state, float64 [..,P].

    The state is not Markov while bodies touch (the solver caches contact forces), so even this
    model errs a little; see the environment's notes on exact resets.

    Args:
        make_worlds: Count -> that many simulators.
        codec: Between solver and environment actions.
    """

    history = 1
    reads_host = True  # the simulators live there

    def __init__(self, make_worlds: Callable[[int], Worlds], codec: StepCodec) -> None:
        self.make_worlds, self.codec = make_worlds, codec
        self.state_dim = make_worlds(1).states().shape[1]  # P
        self.action_dim = codec.action_dim

    def preprocess(self, frames: Tensor) -> Tensor:
        """Take states [B,T,P] as they are.

        Raises:
            ValueError: the last dimension is not the simulator's.
        """
        if frames.ndim != 3 or frames.shape[-1] != self.state_dim:
            raise ValueError(
                f"the simulator plans from states [B,T,{self.state_dim}], got {list(frames.shape)}"
            )
        return frames.double()

    def encode(self, frames: Tensor) -> Tensor:
        """Return states float64 [B,T,P] unchanged."""
        return frames

    def rollout(self, context: Context, actions: Tensor) -> Tensor:
        """Simulate solver-space actions [B,S,H,A] from the last state: float64 [B,S,H,P]."""
        B, S, H, _ = actions.shape
        env_actions = self.codec.decode(actions).double().cpu().numpy()  # [B,S,H*block,a]
        start = context.z[:, -1].double().cpu().numpy()
        reached = np.stack([self._simulate(start[b], env_actions[b]) for b in range(B)])
        return torch.from_numpy(reached).view(B, S, H, self.state_dim).to(context.z.device)

    def _simulate(self, start: Floats, actions: Floats) -> Floats:
        """Run S candidates [S,K,a] from one state; return the state after each block [S,H,P]."""
        worlds = self.make_worlds(len(actions))
        worlds.set_states(np.tile(start, (len(actions), 1)))
        seen = []
        for step in range(actions.shape[1]):
            worlds.act(actions[:, step])
            if (step + 1) % self.codec.block == 0:
                seen.append(worlds.states())
        return np.stack(seen, 1)


@dataclass(frozen=True, kw_only=True)
class Term:
    """One part of a distance between states, in units of a tolerance.

    Attributes:
        at: Numbers of the state that are measured.
        tolerance: The distance that counts as 1, in the state's units.
        to: None measures from the goal's own numbers; else from these numbers of the state itself,
            one for each of ``at``.
        wraps: The numbers are angles in radians: the shorter way round counts.

    Raises:
        ConfigError: nothing is measured, ``to`` does not fit ``at``, or the tolerance is not above
            0.
    """

    at: Sequence[int]
    tolerance: float
    to: Sequence[int] | None = None
    wraps: bool = False

    def __post_init__(self) -> None:
        if not self.at or (self.to is not None and len(self.to) != len(self.at)):
            raise ConfigError(f"at={list(self.at)} and to={self.to} must name as many numbers")
        if not self.tolerance > 0:
            raise ConfigError(f"tolerance={self.tolerance} must be above 0")

    def __call__(self, states: Tensor, goals: Tensor) -> Tensor:
        """Squared distance [B,S] of states [B,S,P] from their goals [B,P], in tolerances."""
        aim = goals[:, None, list(self.at)] if self.to is None else states[..., list(self.to)]
        gap = states[..., list(self.at)] - aim
        if self.wraps:
            gap = torch.remainder(gap + torch.pi, 2 * torch.pi) - torch.pi
        return (gap / self.tolerance).square().sum(-1)


class StateDistance:
    """Distance of the simulator's state after the last block from the goal: the sum of its terms.

    Where every term measures from the goal, 1 is about the edge of success.

    Args:
        goal_z: Goal states, float64 [B,P].
        terms: What is measured, each the fields of a ``Term``.

    Raises:
        ConfigError: a term is not one.
    """

    def __init__(self, goal_z: Tensor, terms: Sequence[Mapping[str, Any]]) -> None:
        self.goal_z, self.terms = goal_z, [Term(**term) for term in terms]

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of states [B,S,H,P]; ``actions`` do not matter here."""
        parts = [term(z[:, :, -1], self.goal_z) for term in self.terms]
        return torch.stack(parts).sum(0).float()
