"""Scripted play in PushT: the data a small world model learns from, without a download.

A vectorised policy wanders, pokes at the block and, most of the time, walks round it, touches a
random point of its outline and pushes; it stays in the picture. On demand it also jitters: random
commands like a planner's candidates, which may leave the picture, so that a model learns what
comes of them and a planner cannot dream them up. Episode ``i`` of seed ``s`` is the same whatever
else is collected beside it: all its random numbers come from its own stream.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.physics import PushTWorlds

Floats = NDArray[np.float64]

ACTION_SCALE_PX = 100.0  # one unit of a relative action
_AGENT_RADIUS_PX = 15.0
_ORBIT_PX = 106.0  # clears the farthest corner of the T (81 px) and the agent's radius
_LOW_PX, _HIGH_PX = 14.0, 498.0  # where deliberate targets stay: the agent is always seen
_WEAK, _WAYPOINT, _APPROACH, _PUSH, _JITTER = range(5)
_JITTER_STEPS = 5  # a jitter's mean command changes at this interval
_WEAK_SHARE, _WAYPOINT_SHARE = 0.12, 0.18  # the rest approaches and pushes
_DRAWS = 12  # uniform numbers a decision may use

# Outline of the T in body coordinates, counter-clockwise seen with y down: corners in pixels.
_CORNERS = np.array(
    [[-60, 0], [60, 0], [60, 30], [15, 30], [15, 120], [-15, 120], [-15, 30], [-60, 30]], float
)
_CENTROID = np.array([0.0, 285.0 / 7.0])  # area centre of bar and stem


@dataclass(frozen=True)
class PlayEpisodes:
    """Recorded play, E episodes of K environment steps.

    Attributes:
        states: (ax, ay, bx, by, angle, vx, vy) before each step and after the last, float64
            [E,K+1,7]; pixels, radians (unwrapped), pixels per second.
        actions: Relative actions in units of 100 px, float32 [E,K,2], within [-1, 1].
    """

    states: Floats
    actions: NDArray[np.float32]


def _outline() -> tuple[Floats, Floats, Floats]:
    """Return edge starts [8,2], edge vectors [8,2] and outward normals [8,2] of the T."""
    edges = np.roll(_CORNERS, -1, 0) - _CORNERS
    normals = np.stack([edges[:, 1], -edges[:, 0]], 1) / np.linalg.norm(edges, axis=1)[:, None]
    return _CORNERS, edges, normals


def _rotate(points: Floats, angle: Floats) -> Floats:
    """Rotate points [N,2] by angles [N] in radians."""
    c, s = np.cos(angle), np.sin(angle)
    return np.stack([c * points[:, 0] - s * points[:, 1], s * points[:, 0] + c * points[:, 1]], 1)


def start_states(streams: list[np.random.Generator]) -> Floats:
    """Draw one start state [N,7] a stream: agent in [50,450]^2, block in [100,400]^2, any angle.

    The agent starts at least one orbit radius from the block's centre, at rest.
    """
    states = np.zeros((len(streams), 7))
    for row, rng in zip(states, streams, strict=True):
        row[2:4] = rng.uniform(100, 400, 2)
        row[4] = rng.uniform(-np.pi, np.pi)
        centre = row[2:4] + _rotate(_CENTROID[None], row[4:5])[0]
        while True:
            row[:2] = rng.uniform(50, 450, 2)
            if np.linalg.norm(row[:2] - centre) > _ORBIT_PX:
                break
    return states


class PlayPolicy:
    """The scripted policy for N worlds at once.

    Args:
        streams: One random stream a world; drawn from once, here.
        steps: Environment steps the policy will be asked for.
        jitter: Share of behaviours that are jitter, 0..1.
    """

    def __init__(self, streams: list[np.random.Generator], steps: int, jitter: float = 0.0) -> None:
        N = len(streams)
        self._jitter_share = jitter
        self._jitter_mean = np.zeros((N, 2))
        self._uniform = np.stack([rng.random((steps, _DRAWS)) for rng in streams], 1)
        self._normal = np.stack([rng.standard_normal((steps, 4)) for rng in streams], 1)
        self._mode = np.zeros(N, int)
        self._left = np.zeros(N, int)  # steps until the next decision
        self._target = np.zeros((N, 2))
        self._contact = np.zeros((N, 2))  # touched point in body coordinates
        self._normal_body = np.zeros((N, 2))
        self._turn = np.zeros(N)  # push direction relative to the inward normal, radians
        self._reach = np.zeros(N)  # push length, pixels
        self._gain = np.ones(N)
        self._limit = np.ones(N)
        self._drift = np.zeros((N, 2))  # Ornstein-Uhlenbeck noise
        self._drift_std = np.zeros(N)
        self._white_std = np.zeros(N)
        self._step = 0

    def act(self, states: Floats) -> NDArray[np.float32]:
        """Return relative actions float32 [N,2] for states [N,7], within [-1, 1]."""
        u, normal = self._uniform[self._step], self._normal[self._step]
        self._step += 1
        self._left -= 1
        self._decide(states, u)
        agent = states[:, :2]
        goal = self._steer(states)
        self._drift = 0.8 * self._drift + 0.6 * normal[:, :2]  # stationary variance 1
        noise = self._drift_std[:, None] * self._drift + self._white_std[:, None] * normal[:, 2:]
        command = self._gain[:, None] * (goal - agent) / ACTION_SCALE_PX
        size = np.linalg.norm(command, axis=1, keepdims=True)
        command *= np.minimum(1.0, self._limit[:, None] / np.maximum(size, 1e-9))
        command = np.where((self._mode == _WEAK)[:, None], self._weak(states, u), command + noise)
        target = np.clip(agent + ACTION_SCALE_PX * command, _LOW_PX, _HIGH_PX)
        command = (target - agent) / ACTION_SCALE_PX
        command = np.where((self._mode == _JITTER)[:, None], self._jitter(u, normal), command)
        return np.clip(command, -1, 1).astype(np.float32)

    def _jitter(self, u: Floats, normal: Floats) -> Floats:
        """Commands like a planner's candidates: a mean for some steps, white noise on top."""
        if self._step % _JITTER_STEPS == 1:
            self._jitter_mean = 1.2 * (u[:, :2] - 0.5)
        return self._jitter_mean + (0.05 + 2 * self._white_std[:, None]) * normal[:, 2:]

    def _weak(self, states: Floats, u: Floats) -> Floats:
        """Uniform actions whose target stays within 100 px of the block on each axis."""
        agent, block = states[:, :2], states[:, 2:4]
        target = agent + ACTION_SCALE_PX * (2 * u[:, :2] - 1)
        return (np.clip(target, block - 100, block + 100) - agent) / ACTION_SCALE_PX

    def _decide(self, states: Floats, u: Floats) -> None:
        """Finish approaches that arrived, and draw a new behaviour where the old one ended."""
        agent = states[:, :2]
        near = np.linalg.norm(agent - self._target, axis=1) < 14
        arrived = (self._mode == _APPROACH) & near
        if arrived.any():
            self._begin_push(states, arrived, u)
        ended = (self._left <= 0) | (
            near & ~arrived & (self._mode != _WEAK) & (self._mode != _JITTER)
        )
        if not ended.any():
            return
        choice = u[:, 2]
        mode = np.where(choice < _WEAK_SHARE, _WEAK, _APPROACH)
        mode[(choice >= _WEAK_SHARE) & (choice < _WEAK_SHARE + _WAYPOINT_SHARE)] = _WAYPOINT
        mode[choice > 1 - self._jitter_share] = _JITTER
        short = (mode == _WEAK) | (mode == _JITTER)
        length = np.select([short, mode == _WAYPOINT], [5 + 15 * u[:, 3], 15.0], 30.0)
        self._mode = np.where(ended, mode, self._mode)
        self._left = np.where(ended, length.astype(int), self._left)
        waypoint = 30 + 452 * u[:, 4:6]
        self._target = np.where(ended[:, None], waypoint, self._target)
        self._gain = np.where(ended, 0.4 + 0.9 * u[:, 6], self._gain)
        self._limit = np.where(ended, 0.15 + 0.45 * u[:, 7], self._limit)
        self._drift_std = np.where(ended, 0.25 * u[:, 8] ** 2, self._drift_std)
        self._white_std = np.where(ended, 0.20 * u[:, 9], self._white_std)
        self._choose_contact(states, ended, u)

    def _choose_contact(self, states: Floats, rows: NDArray[np.bool_], u: Floats) -> None:
        """Pick a point of the outline, of two candidates the one that pushes more to the middle."""
        starts, edges, normals = _outline()
        lengths = np.linalg.norm(edges, axis=1)
        ends = np.cumsum(lengths) / lengths.sum()
        best_score = np.full(len(states), -np.inf)
        middle = 156 + 200 * u[:, 4:6]
        for draw in (u[:, 0], u[:, 1]):
            edge = np.searchsorted(ends, draw, side="right").clip(max=len(ends) - 1)
            begin = ends[edge] - lengths[edge] / lengths.sum()
            along = (draw - begin) / (ends[edge] - begin)
            point = starts[edge] + along[:, None] * edges[edge]
            inward = -_rotate(normals[edge], states[:, 4])
            score = ((middle - states[:, 2:4]) * inward).sum(1)
            take = rows & (score > best_score)
            best_score = np.where(take, score, best_score)
            self._contact[take] = point[take]
            self._normal_body[take] = normals[edge][take]
        self._turn = np.where(rows, np.radians(70) * (u[:, 10] - 0.5), self._turn)
        self._reach = np.where(rows, 20 + 110 * u[:, 11], self._reach)

    def _begin_push(self, states: Floats, rows: NDArray[np.bool_], u: Floats) -> None:
        """Turn arrived approaches into pushes through the contact point."""
        touch = states[:, 2:4] + _rotate(self._contact, states[:, 4])
        direction = -_rotate(self._normal_body, states[:, 4] + self._turn)
        target = np.clip(touch + self._reach[:, None] * direction, 40, 472)
        self._mode = np.where(rows, _PUSH, self._mode)
        self._target = np.where(rows[:, None], target, self._target)
        self._left = np.where(rows, 8 + (12 * u[:, 3]).astype(int), self._left)

    def _steer(self, states: Floats) -> Floats:
        """Return where to head now [N,2]: round the block while approaching, else the target."""
        angle = states[:, 4]
        centre = states[:, 2:4] + _rotate(np.broadcast_to(_CENTROID, (len(states), 2)), angle)
        touch = states[:, 2:4] + _rotate(self._contact, angle)
        standoff = touch + (_AGENT_RADIUS_PX + 10) * _rotate(self._normal_body, angle)
        approaching = self._mode == _APPROACH
        self._target = np.where(approaching[:, None], standoff, self._target)
        from_centre, to_goal = states[:, :2] - centre, standoff - centre
        here = np.arctan2(from_centre[:, 1], from_centre[:, 0])
        there = np.arctan2(to_goal[:, 1], to_goal[:, 0])
        around = (there - here + np.pi) % (2 * np.pi) - np.pi
        orbit = here + np.clip(around, -0.7, 0.7)
        detour = centre + _ORBIT_PX * np.stack([np.cos(orbit), np.sin(orbit)], 1)
        detour = np.where((np.abs(around) > 0.45)[:, None], detour, standoff)
        return np.where(approaching[:, None], detour, self._target)


class PlayWorlds(PushTWorlds):
    """PushT worlds that take the environment's relative actions."""

    def act(self, actions: NDArray[np.floating]) -> None:
        """Execute one relative action in each world, [N,2] in units of 100 px."""
        self.step(self.states()[:, :2] + ACTION_SCALE_PX * np.asarray(actions, np.float64))


def play(seed: int, episodes: int, steps: int, first: int = 0, jitter: float = 0.0) -> PlayEpisodes:
    """Record ``episodes`` play episodes of ``steps`` environment steps.

    Args:
        seed: Collection seed; different seeds give disjoint random streams.
        episodes: How many.
        steps: Environment steps in each.
        first: Index of the first episode, so that a collection can be made in parts.
        jitter: Share of behaviours that are jitter, 0..1.
    """
    streams = [np.random.default_rng([seed, first + i]) for i in range(episodes)]
    worlds = PlayWorlds(episodes)
    worlds.set_states(start_states(streams))
    policy = PlayPolicy(streams, steps, jitter)
    states = np.empty((episodes, steps + 1, 7))
    actions = np.empty((episodes, steps, 2), np.float32)
    states[:, 0] = worlds.states()
    for t in range(steps):
        actions[:, t] = policy.act(states[:, t])
        worlds.act(actions[:, t])
        states[:, t + 1] = worlds.states()
    return PlayEpisodes(states, actions)
