"""Scripted play in TwoRoom, and the expert it is made of: through the door to anywhere.

Play wanders from one random place to the next, mostly in the other room, with smooth and white
noise; on demand it also jitters: random commands like a planner's candidates, against walls too.
Episode ``i`` of seed ``s`` is the same whatever else is collected beside it: all its random numbers
come from its own stream.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.tworoom import draw_place
from jepa_wm.envs.tworoom_worlds import HIGH, LOW, MIDDLE, RADIUS, Rooms, TwoRoomWorlds

Floats = NDArray[np.float64]

_DRAWS = 10  # uniform numbers a decision may use
_CLEAR = 2.0  # px that a path keeps from the wall and from the edges of a door
_FITS = 1.1  # radii a door's half width must be to be passed
_CROSSING = 0.85  # share of the walks that lead into the other room
_JITTER_STEPS = 5  # a jitter's mean command changes at this interval
_ARRIVED = 5.0  # px


@dataclass(frozen=True)
class TwoRoomEpisodes:
    """Recorded play, E episodes of K steps.

    Attributes:
        states: Before each step and after the last, float64 [E,K+1,2], px.
        actions: As commanded, float32 [E,K,2], within [-1, 1].
    """

    states: Floats
    actions: NDArray[np.float32]


def expert(
    states: Floats, goals: Floats, rooms: Mapping[str, Any] | Rooms | None = None
) -> NDArray[np.float32]:
    """Return the actions float32 [N,2] that lead to the goals: the golden path.

    Straight to the goal inside a room; else to the best door that fits, straight through it, and
    on to the goal. It looks at the present state alone.

    Args:
        states: Where the dots are, [N,2], px.
        goals: Where they should be, [N,2].
        rooms: ``Rooms``, their plain values, or None for the published ones.
    """
    rooms = Rooms.of(rooms)
    return _towards(states, waypoints(states, goals, rooms), rooms).astype(np.float32)


def _towards(states: Floats, targets: Floats, rooms: Rooms) -> Floats:
    """Return actions [N,2] straight at the targets; a longer way is shortened, not bent."""
    moves = (targets - states) / rooms.speed
    return moves / np.maximum(1.0, np.abs(moves).max(1, keepdims=True))


def waypoints(states: Floats, goals: Floats, rooms: Rooms) -> Floats:
    """Return where to head now [N,2] on the way to the goals [N,2].

    Raises:
        ValueError: no door is wide enough for the dot.
    """
    u, v = rooms.across, 1 - rooms.across
    centre, half = _doors(states, goals, rooms)
    side, goal_side = (np.where(at[:, u] < MIDDLE, -1.0, 1.0) for at in (states, goals))
    inside, goal_inside = rooms.in_wall(states), rooms.in_wall(goals)
    mouth = rooms.reach + _CLEAR  # px from the middle
    lane = np.abs(states[:, v] - centre) <= half - _CLEAR
    target = goals.copy()
    passing = (side != goal_side) | inside | goal_inside
    # in front of a door or in it: straight through; else first to its mouth on this side
    through = passing & (lane | inside) & ~goal_inside
    target[through, u] = (MIDDLE + goal_side * mouth)[through]
    target[through, v] = np.clip(states[:, v], centre - half + _CLEAR, centre + half - _CLEAR)[
        through
    ]
    to_mouth = passing & ~lane & ~inside
    target[to_mouth, u] = (MIDDLE + side * mouth)[to_mouth]
    target[to_mouth, v] = centre[to_mouth]
    return target


def _doors(states: Floats, goals: Floats, rooms: Rooms) -> tuple[Floats, Floats]:
    """Return centre and half width [N] of the door on the shortest way to each goal."""
    doors = np.array([door for door in rooms.doors if door[1] >= _FITS * RADIUS], float)
    if not len(doors):
        raise ValueError(f"no door of {rooms.doors} is {_FITS * RADIUS:.1f} px or more half wide")
    places = np.empty((len(doors), 2))
    places[:, rooms.across], places[:, 1 - rooms.across] = MIDDLE, doors[:, 0]
    ways = sum(np.linalg.norm(at[:, None] - places, axis=2) for at in (states, goals))
    # a dot in a door stays in it
    offsets = np.abs(states[:, None, 1 - rooms.across] - doors[:, 0])
    ways = np.where(rooms.in_wall(states)[:, None], offsets, ways)
    best = np.argmin(ways, 1)
    return doors[best, 0], doors[best, 1]


class TwoRoomPolicy:
    """The scripted policy for N worlds at once.

    Args:
        streams: One random stream a world; drawn from once, here.
        steps: Steps the policy will be asked for.
        rooms: Where it plays.
        jitter: Share of behaviours that are jitter, 0..1.
    """

    def __init__(
        self, streams: list[np.random.Generator], steps: int, rooms: Rooms, jitter: float
    ) -> None:
        N = len(streams)
        self._rooms, self._jitter_share = rooms, jitter
        self._uniform = np.stack([rng.random((steps, _DRAWS)) for rng in streams], 1)
        self._normal = np.stack([rng.standard_normal((steps, 4)) for rng in streams], 1)
        self._left = np.zeros(N, int)  # steps until the next decision
        self._jitters = np.zeros(N, bool)
        self._target, self._mean = np.zeros((N, 2)), np.zeros((N, 2))
        self._limit = np.ones(N)
        self._drift, self._drift_std = np.zeros((N, 2)), np.zeros(N)  # Ornstein-Uhlenbeck noise
        self._white_std = np.zeros(N)
        self._step = 0

    def act(self, states: Floats) -> NDArray[np.float32]:
        """Return actions float32 [N,2] for states [N,2], within [-1, 1]."""
        u, normal = self._uniform[self._step], self._normal[self._step]
        if self._step % _JITTER_STEPS == 0:
            self._mean = 2.4 * (u[:, :2] - 0.5)
        self._step += 1
        self._left -= 1
        self._decide(states, u)
        command = _towards(states, waypoints(states, self._target, self._rooms), self._rooms)
        self._drift = 0.8 * self._drift + 0.6 * normal[:, :2]  # stationary variance 1
        command = self._limit[:, None] * command + self._drift_std[:, None] * self._drift
        command = np.where(self._jitters[:, None], self._mean, command)
        return np.clip(command + self._white_std[:, None] * normal[:, 2:], -1, 1).astype(np.float32)

    def _decide(self, states: Floats, u: Floats) -> None:
        """Draw a new behaviour where the old one has ended or arrived."""
        is_there = np.linalg.norm(states - self._target, axis=1) < _ARRIVED
        ended = (self._left <= 0) | (is_there & ~self._jitters)
        jitters = u[:, 2] < self._jitter_share
        length = np.where(jitters, 5 + 15 * u[:, 3], 60.0).astype(int)
        self._left = np.where(ended, length, self._left)
        self._jitters = np.where(ended, jitters, self._jitters)
        self._target = np.where(ended[:, None], self._draw_target(states, u), self._target)
        self._limit = np.where(ended, 0.6 + 0.4 * u[:, 4], self._limit)
        self._drift_std = np.where(ended, 0.6 * u[:, 5] ** 2, self._drift_std)
        white = np.where(jitters, 0.1 + 0.9 * u[:, 6], 0.5 * u[:, 6] ** 2)
        self._white_std = np.where(ended, white, self._white_std)

    def _draw_target(self, states: Floats, u: Floats) -> Floats:
        """Draw a place in the other room, or now and then in the same one."""
        across, edge = self._rooms.across, self._rooms.reach + 1.0
        is_first = (states[:, across] < MIDDLE) ^ (u[:, 7] < _CROSSING)
        depth = u[:, 8] * (MIDDLE - edge - LOW)  # from the outer border
        target = np.empty_like(states)
        target[:, across] = np.where(is_first, LOW + depth, HIGH - depth)
        target[:, 1 - across] = LOW + (HIGH - LOW) * u[:, 9]
        return target


def play(
    seed: int,
    episodes: int,
    steps: int,
    first: int = 0,
    jitter: float = 0.0,
    rooms: Mapping[str, Any] | Rooms | None = None,
) -> TwoRoomEpisodes:
    """Record play episodes.

    Args:
        seed: Collection seed; different seeds give disjoint random streams.
        episodes: How many.
        steps: Steps in each.
        first: Index of the first episode, so that a collection can be made in parts.
        jitter: Share of behaviours that are jitter, 0..1.
        rooms: ``Rooms``, their plain values, or None for the published ones.
    """
    rooms = Rooms.of(rooms)
    streams = [np.random.default_rng([seed, first + i]) for i in range(episodes)]
    worlds = TwoRoomWorlds(episodes, rooms)
    worlds.set_states(np.stack([draw_place(rng, rooms) for rng in streams]))
    policy = TwoRoomPolicy(streams, steps, rooms, jitter)
    states = np.empty((episodes, steps + 1, 2))
    actions = np.empty((episodes, steps, 2), np.float32)
    states[:, 0] = worlds.states()
    for t in range(steps):
        actions[:, t] = policy.act(states[:, t])
        worlds.act(actions[:, t])
        states[:, t + 1] = worlds.states()
    return TwoRoomEpisodes(states, actions)
