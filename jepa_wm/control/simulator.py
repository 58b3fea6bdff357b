"""The simulator as the world model: what a planner reaches when its predictions are right.

"Latents" are simulator states and a rollout steps copies of the environment, so the success of the
same planner on the same episodes is the ceiling of any learned model with this planner. The
simulator arrives as a factory; this module knows no environment.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.interfaces import Context

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
        state_dim: Size P of a state.
    """

    history = 1

    def __init__(
        self, make_worlds: Callable[[int], Worlds], codec: ActionCodec, state_dim: int
    ) -> None:
        self.make_worlds, self.codec, self.state_dim = make_worlds, codec, state_dim
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


@dataclass(frozen=True, eq=False)
class PoseDistance:
    """Squared pose error in units of the success tolerances, after the last block.

    cost = |position - goal position|^2 / position_px^2 + wrap(angle - goal angle)^2 / angle_rad^2
    with the four positions (agent x, y, block x, y); 1 is about the edge of success.

    Attributes:
        goal_z: Goal states (ax, ay, bx, by, angle, ...), float64 [B,P]; pixels, radians.
        position_px: Tolerance of the joint position.
        angle_rad: Tolerance of the block's angle.
    """

    goal_z: Tensor
    position_px: float = 20.0
    angle_rad: float = float(np.pi / 9)

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of states [B,S,H,P]; ``actions`` do not matter here."""
        gap = z[:, :, -1] - self.goal_z[:, None]
        turn = torch.remainder(gap[..., 4] + torch.pi, 2 * torch.pi) - torch.pi
        place = gap[..., :4].square().sum(-1) / self.position_px**2
        return (place + turn.square() / self.angle_rad**2).float()
