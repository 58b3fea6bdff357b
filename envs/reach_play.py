"""Scripted play in Reach: waypoints, pushes and random motion, without a download.

Episode ``i`` of seed ``s`` is the same whatever else is collected beside it: all its random numbers
come from its own stream.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.reach_worlds import (
    BLOCK_SIDE,
    GRIPPER_RADIUS,
    HIGH,
    LOW,
    MAX_STEP,
    POSE_SIZE,
    STATE_SIZE,
    ReachWorlds,
    euler_angles,
    rotation_matrices,
)

Floats = NDArray[np.float64]

_WAYPOINT, _JITTER, _ABOVE, _DOWN, _PUSH = range(5)
_DRAWS = 12  # uniform numbers a decision may use
_CARRY = 0.15  # metres: height at which the arm travels over the block
_LOW_Z = 0.035  # metres: height at which it pushes
_ARRIVED = 0.02  # metres


@dataclass(frozen=True)
class ReachEpisodes:
    """Recorded play, E episodes of K steps.

    Attributes:
        states: Before each step and after the last, float64 [E,K+1,10] (``ReachWorlds``).
        actions: Differences of poses as commanded, float32 [E,K,7], metres and radians.
    """

    states: Floats
    actions: NDArray[np.float32]


def start_states(streams: list[np.random.Generator]) -> Floats:
    """Draw one start state [N,10] a stream: the arm anywhere clear of the block."""
    states = np.zeros((len(streams), STATE_SIZE))
    clear = BLOCK_SIDE / np.sqrt(2) + GRIPPER_RADIUS + 0.01
    for row, rng in zip(states, streams, strict=True):
        row[7:9] = rng.uniform([0.38, -0.12], [0.62, 0.12])
        row[9] = rng.uniform(-np.pi, np.pi)
        while True:
            row[:3] = rng.uniform(LOW, HIGH)
            if row[2] > 0.1 or np.hypot(*(row[:2] - row[7:9])) > clear:
                break
        row[3:6] = rng.normal(0.0, 0.15, 3)
        row[6] = rng.random()
    return states


class ReachPolicy:
    """The scripted policy for N worlds at once.

    Args:
        streams: One random stream a world; drawn from once, here.
        steps: Steps the policy will be asked for.
        push: Share of behaviours that push the block, 0..1.
        jitter: Share that moves at random, like a planner's candidates, 0..1.
    """

    def __init__(
        self, streams: list[np.random.Generator], steps: int, push: float, jitter: float
    ) -> None:
        N = len(streams)
        self._push_share, self._jitter_share = push, jitter
        self._uniform = np.stack([rng.random((steps, _DRAWS)) for rng in streams], 1)
        self._normal = np.stack([rng.standard_normal((steps, POSE_SIZE)) for rng in streams], 1)
        self._mode, self._left = np.zeros(N, int), np.zeros(N, int)
        self._target = np.zeros((N, 3))
        self._turn, self._grip = np.zeros((N, 3)), np.zeros(N)
        self._limit, self._noise = np.full(N, MAX_STEP), np.zeros(N)
        self._direction, self._reach = np.zeros(N), np.zeros(N)
        self._mean = np.zeros((N, 3))
        self._step = 0

    def act(self, states: Floats) -> NDArray[np.float32]:
        """Return differences of poses float32 [N,7] for states [N,10]."""
        u, normal = self._uniform[self._step], self._normal[self._step]
        self._step += 1
        self._left -= 1
        self._decide(states, u)
        towards = self._target - states[:, :3]
        size = np.linalg.norm(towards, axis=1, keepdims=True)
        move = towards * np.minimum(1.0, self._limit[:, None] / np.maximum(size, 1e-9))
        move = move + self._noise[:, None] * normal[:, :3]
        is_jitter = (self._mode == _JITTER)[:, None]
        move = np.where(is_jitter, self._mean + 0.03 * normal[:, :3], move)
        actions = np.zeros((len(states), POSE_SIZE))
        actions[:, :3] = np.clip(move, -MAX_STEP, MAX_STEP)
        actions[:, 3:6] = self._turning(states)
        actions[:, 6] = np.clip(self._grip - states[:, 6], -0.4, 0.4)
        return actions.astype(np.float32)

    def _turning(self, states: Floats) -> Floats:
        """Turn towards the wanted orientation, at most 0.12 radians an axis; often not at all."""
        wanted, now = rotation_matrices(self._turn), rotation_matrices(states[:, 3:6])
        return np.clip(euler_angles(wanted @ now.swapaxes(-1, -2)), -0.12, 0.12)

    def _decide(self, states: Floats, u: Floats) -> None:
        """Go on with pushes that have arrived at their next stage; start anew what has ended."""
        is_near = np.linalg.norm(states[:, :3] - self._target, axis=1) < _ARRIVED
        is_there = is_near & np.isin(self._mode, (_WAYPOINT, _PUSH))  # of its last target
        for stage in (_DOWN, _ABOVE):  # latest first: a world moves on by one stage a step
            rows = is_near & (self._mode == stage)
            if stage == _DOWN and rows.any():
                along = np.stack([np.cos(self._direction), np.sin(self._direction)], 1)
                target = states[:, :2] + self._reach[:, None] * along
                self._target[rows, :2] = np.clip(target, LOW[:2], HIGH[:2])[rows]
                self._limit[rows] = 0.03 + 0.045 * u[rows, 0]
                self._mode[rows], self._left[rows] = _PUSH, 10
            elif rows.any():
                self._target[rows, 2], self._mode[rows] = _LOW_Z, _DOWN
                self._left[rows] = 8
        ended = (self._left <= 0) | is_there
        if ended.any():
            self._begin(states, ended, u)

    def _begin(self, states: Floats, rows: NDArray[np.bool_], u: Floats) -> None:
        """Draw a new behaviour for some worlds."""
        choice = u[:, 1]
        is_push = rows & (choice < self._push_share)
        is_jitter = rows & ~is_push & (choice > 1 - self._jitter_share)
        self._mode[rows] = _WAYPOINT
        self._mode[is_jitter], self._mode[is_push] = _JITTER, _ABOVE
        self._left[rows] = np.where(is_jitter, 4 + 8 * u[:, 2], 16).astype(int)[rows]
        self._target[rows] = (LOW + (HIGH - LOW) * u[:, 3:6])[rows]
        self._limit[rows] = (0.025 + 0.05 * u[:, 6])[rows]
        self._noise[rows] = (0.012 * u[:, 7])[rows]
        self._mean[rows] = (0.08 * (u[:, 3:6] - 0.5))[rows]
        # half of the behaviours turn or grip
        angles = 0.8 * (u[:, 9:12] - 0.5)
        self._turn[rows] = np.where((u[:, 8] < 0.5)[:, None], states[:, 3:6], angles)[rows]
        self._grip[rows] = np.where(u[:, 8] % 0.5 < 0.25, states[:, 6], u[:, 0])[rows]
        self._aim(states, is_push, u)

    def _aim(self, states: Floats, rows: NDArray[np.bool_], u: Floats) -> None:
        """Choose where to push the block, rather towards the middle, and go to the other side."""
        middle = np.stack([0.40 + 0.2 * u[:, 3], -0.12 + 0.24 * u[:, 4]], 1)
        gap = middle - states[:, 7:9]
        direction = np.arctan2(gap[:, 1], gap[:, 0]) + 0.8 * (u[:, 5] - 0.5)
        along = np.stack([np.cos(direction), np.sin(direction)], 1)
        behind = states[:, 7:9] - (BLOCK_SIDE / 2 + 2.2 * GRIPPER_RADIUS + 0.02) * along
        self._direction[rows] = direction[rows]
        self._reach[rows] = (0.08 + 0.18 * u[:, 2])[rows]
        self._target[rows, :2] = np.clip(behind, LOW[:2], HIGH[:2])[rows]
        self._target[rows, 2] = _CARRY
        self._limit[rows] = 0.07


def play(
    seed: int,
    episodes: int,
    steps: int,
    first: int = 0,
    push: float = 0.35,
    jitter: float = 0.25,
) -> ReachEpisodes:
    """Record play episodes.

    Args:
        seed: Collection seed; different seeds give disjoint random streams.
        episodes: How many.
        steps: Steps in each.
        first: Index of the first episode, so that a collection can be made in parts.
        push: Share of behaviours that push the block, 0..1.
        jitter: Share that moves at random, 0..1.
    """
    streams = [np.random.default_rng([seed, first + i]) for i in range(episodes)]
    worlds = ReachWorlds(episodes)
    worlds.set_states(start_states(streams))
    policy = ReachPolicy(streams, steps, push, jitter)
    states = np.empty((episodes, steps + 1, STATE_SIZE))
    actions = np.empty((episodes, steps, POSE_SIZE), np.float32)
    states[:, 0] = worlds.states()
    for t in range(steps):
        actions[:, t] = policy.act(states[:, t])
        worlds.act(actions[:, t])
        states[:, t + 1] = worlds.states()
    return ReachEpisodes(states, actions)
