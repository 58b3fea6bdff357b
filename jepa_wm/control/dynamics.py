"""Exact world models in torch: dynamics known in closed form, for planners and their tests.

A latent is the state itself. Each is a ``WorldModel`` without weights that equals what it models
step by step, runs thousands of candidates at once and can be differentiated. What a planner misses
on them is the planner's.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from jepa_wm.control.discrete import StepCodec
from jepa_wm.control.interfaces import Context

ACTION_SCALE = 100.0  # px per unit of a relative action of PushT
_SUBSTEPS, _SUBSTEP_SECONDS = 10, 0.01
_STIFFNESS, _DAMPING = 100.0, 20.0  # of PushT's controller


class ExactModel(ABC):
    """A ``WorldModel`` whose latent is a state, [..,P], stepped by ``step``.

    Args:
        codec: Between solver and environment actions.

    Attributes:
        state_dim: Size P of a state.
        dtype: Of the arithmetic, as in what is modelled.
    """

    history = 1
    reads_host = True  # the codec's numbers lie there
    state_dim: int
    dtype: ClassVar[torch.dtype] = torch.float64

    def __init__(self, codec: StepCodec) -> None:
        self.codec, self.action_dim = codec, codec.action_dim

    @abstractmethod
    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        """Move states [..,P] by one environment action each [..,a]."""

    def preprocess(self, frames: Tensor) -> Tensor:
        """Take states [B,T,P] as they are.

        Raises:
            ValueError: the last dimension is not the state's.
        """
        if frames.ndim != 3 or frames.shape[-1] != self.state_dim:
            raise ValueError(
                f"{type(self).__name__} plans from states [B,T,{self.state_dim}], "
                f"got {list(frames.shape)}"
            )
        return frames.to(self.dtype)

    def encode(self, frames: Tensor) -> Tensor:
        """Return states [B,T,P] unchanged."""
        return frames

    def rollout(self, context: Context, actions: Tensor) -> Tensor:
        """Step solver-space actions [B,S,H,A] from the last state: [B,S,H,P]; gradients pass."""
        B, S = actions.shape[:2]
        moves = self.codec.decode(actions).to(self.dtype)  # [B,S,H*block,a]
        states = context.z[:, -1:].to(self.dtype).expand(B, S, self.state_dim)
        seen = []
        for move in moves.unbind(2):
            states = self.step(states, move)
            seen.append(states)
        return torch.stack(seen[self.codec.block - 1 :: self.codec.block], 2)


class Quadratic(ExactModel):
    """A point mass that goes where it is told: z' = z + a.

    With a squared distance a plan's cost is a quadratic of its actions, with an optimum in closed
    form.
    """

    def __init__(self, codec: StepCodec) -> None:
        super().__init__(codec)
        self.state_dim = codec.env_dim

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        """Add the actions."""
        return states + actions


class PushTAgent(ExactModel):
    """PushT's agent while it touches nothing: the state [7] of PushT, the block at rest.

    Ten substeps of 0.01 s of v += (100 (target - p) - 20 v) dt, p += v dt towards the target
    p + 100 a are one linear map of the gap to the target and the velocity. From rest the agent
    covers 29.6 % of an action, at a steady pace 40.7 %.

    Source: gym-pusht ``envs/pusht.py`` (step).
    """

    state_dim = 7

    def __init__(self, codec: StepCodec) -> None:
        super().__init__(codec)
        dt = _SUBSTEP_SECONDS
        pull, keep = -_STIFFNESS * dt, 1 - _DAMPING * dt
        once = torch.tensor([[1 + pull * dt, keep * dt], [pull, keep]], dtype=self.dtype)
        self._map = torch.linalg.matrix_power(once, _SUBSTEPS).tolist()  # of (gap, velocity)

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        """Move the agent by relative actions, in units of 100 px."""
        place, block, velocity = states.split([2, 3, 2], -1)
        move = ACTION_SCALE * actions  # the gap to the target is -move
        (gap_gap, gap_speed), (speed_gap, speed_speed) = self._map
        after = place + (1 - gap_gap) * move + gap_speed * velocity
        return torch.cat([after, block, speed_speed * velocity - speed_gap * move], -1)


class RoomsLike(Protocol):
    """What must be known of two rooms, px; an environment's record of them.

    Attributes:
        across: Coordinate that tells the rooms apart, 0 or 1.
        speed: Way of an action of 1 in one step.
        reach: Distance from the middle within which the dot touches the wall.
        doors: Centre along the wall and half width of each door.
        low: Least coordinate the dot can have.
        high: Greatest coordinate.
        middle: Centre of the wall.
        door_margin: By which an opening is wider than its half width says.
        push_back: Between the wall and a dot that ran into it.
    """

    @property
    def across(self) -> int: ...  # noqa: D102
    @property
    def speed(self) -> float: ...  # noqa: D102
    @property
    def reach(self) -> int: ...  # noqa: D102
    @property
    def doors(self) -> Sequence[Sequence[float]]: ...  # noqa: D102

    low: ClassVar[float]
    high: ClassVar[float]
    middle: ClassVar[float]
    door_margin: ClassVar[float]
    push_back: ClassVar[float]


class TwoRoomDynamics(ExactModel):
    """TwoRoom to the bit: float32 positions [2] in px, borders, a wall and its doors.

    The gradient of a step is that of its free part: 0 along an axis that a border or the wall
    stopped. Which side of the wall a dot is on has none.

    Args:
        codec: Between solver and environment actions.
        rooms: What the environment is made of.

    Source: stable-worldmodel ``envs/two_room/env.py`` (step, _apply_collisions).
    """

    state_dim = 2
    dtype = torch.float32

    def __init__(self, codec: StepCodec, rooms: RoomsLike) -> None:
        super().__init__(codec)
        self.rooms = rooms

    def step(self, states: Tensor, actions: Tensor) -> Tensor:
        """Move positions by actions, cut to [-1, 1]."""
        r = self.rooms
        moved = (states + actions.clamp(-1, 1) * r.speed).clamp(r.low, r.high)
        across, along = moved[..., r.across], moved[..., 1 - r.across]
        is_first = states[..., r.across] < r.middle
        shut = ~self._is_open(along)
        low, high = r.middle - r.reach, r.middle + r.reach
        across = torch.where(is_first & shut & (across > low), low - r.push_back, across)
        across = torch.where(~is_first & shut & (across < high), high + r.push_back, across)
        return torch.stack([across, along] if r.across == 0 else [along, across], -1)

    def _is_open(self, along: Tensor) -> Tensor:
        """Say of coordinates along the wall whether they lie in the opening of a door."""
        margin = self.rooms.door_margin
        spans = [(c - half - margin, c + half + margin) for c, half in self.rooms.doors]
        return torch.stack([(low <= along) & (along <= high) for low, high in spans]).any(0)


class RoomDistance:
    """Length of the way to the goal through the best door, in tolerances, squared.

    Inside a room it is the straight distance; between rooms the way bends at the opening, so that
    a wall between two near places counts. 1 is about the edge of success.

    Args:
        goal_z: Goal positions, [B,2], px.
        rooms: What the environment is made of.
        tolerance: The distance that counts as 1, px.
    """

    def __init__(self, goal_z: Tensor, rooms: RoomsLike, tolerance: float) -> None:
        self.goal_z, self.rooms, self.tolerance = goal_z, rooms, tolerance

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of states [B,S,H,2] after the last block; ``actions`` do not count."""
        place, goal = z[:, :, -1], self.goal_z[:, None].to(z.dtype)
        u, middle = self.rooms.across, self.rooms.middle
        same = (place[..., u] < middle) == (goal[..., u] < middle)
        gap = (goal - place)[..., u]
        share = (middle - place[..., u]) / torch.where(same, 1.0, gap)  # where the wall is crossed
        crossing = place[..., 1 - u] + share * (goal - place)[..., 1 - u]
        ways = [self._over(crossing, place, goal, *door) for door in self.rooms.doors]
        way = torch.where(same, (place - goal).norm(dim=-1), torch.stack(ways).amin(0))
        return (way / self.tolerance).square().float()

    def _over(
        self, crossing: Tensor, place: Tensor, goal: Tensor, centre: float, half: float
    ) -> Tensor:
        """Return the length [B,S] of the way that crosses the wall in the middle of a door."""
        along = crossing.clamp(centre - half / 2, centre + half / 2)
        across = torch.full_like(along, self.rooms.middle)
        door = torch.stack([across, along] if self.rooms.across == 0 else [along, across], -1)
        return (place - door).norm(dim=-1) + (door - goal).norm(dim=-1)
