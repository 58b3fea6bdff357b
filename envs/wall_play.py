"""Where episodes of Wall begin, an expert that reaches any goal, and scripted play.

Play steps as the published data do (lengths from N(1, 0.4) cut to [0.2, 1.8], headings that wander
by von Mises noise of concentration 1 / 0.2), but half of its behaviours go through the door, which
a wandering dot seldom finds, and some are jitter: commands like a planner's candidates.
"""

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.point_play import PointEpisodes, episode_streams, record
from jepa_wm.envs.wall_worlds import HIGH, LOW, SPEED, Floats, Layout, WallWorlds

CLEAR = 3.4  # px: two standard deviations of the dot, between a start and the walls
LONGEST, SHORTEST, MEAN_STEP, STEP_STD = 1.8, 0.2, 1.0, 0.4
ANGLE_NOISE = 0.2  # 1 / the concentration of a heading's change, radians squared
_MOUTH = 2.0  # px before the wall, where a way through the door begins
_ALIGNED = 2.0  # px beside the middle of the door from where one may go through
_CROSS, _VISIT, _WANDER, _JITTER = range(4)
_CROSS_SHARE, _VISIT_SHARE = 0.5, 0.25  # the rest wanders
_JITTER_STEPS = 5  # a jitter's mean command changes at this interval
_TRIES = 8  # draws of a step's length before it is cut


def draw_task(
    rng: np.random.Generator | np.random.RandomState, layout: Layout
) -> tuple[Floats, Floats]:
    """Draw a start and a goal [2] in opposite rooms, left to right half of the time.

    Source: DINO-WM ``env/wall/envs/wall.py`` (generate_random_state), in its order of draws.
    """
    low, high = LOW + CLEAR, HIGH - CLEAR
    left, right = rng.uniform(low, layout.left - CLEAR), rng.uniform(layout.right + CLEAR, high)
    one_y, other_y = rng.uniform(low, high), rng.uniform(low, high)
    if rng.uniform() < 0.5:
        left, right = right, left
    return np.array([left, one_y]), np.array([right, other_y])


def wall_expert(states: Floats, goals: Floats, layout: Layout | None = None) -> NDArray[np.float32]:
    """Return the actions float32 [N,2] that lead to the goals, through the door where need be.

    Args:
        states: Where the dots are, [N,2].
        goals: Where they should be, [N,2]; free of the walls.
        layout: Where wall and door are; None is the published place.
    """
    move = (aims(states, goals, layout or Layout()) - states) / SPEED
    length = np.linalg.norm(move, axis=1, keepdims=True)
    return (move * np.minimum(1.0, LONGEST / np.maximum(length, 1e-9))).astype(np.float32)


def aims(states: Floats, goals: Floats, layout: Layout) -> Floats:
    """Return the points [N,2] to head for now, in a straight line that meets no wall."""
    side, goal_side = (_sides(points[:, 0], layout) for points in (states, goals))
    to_right = np.where(side == 0, goal_side > 0, side < 0)
    mouths = np.array([layout.left - _MOUTH, layout.right + _MOUTH])
    near = np.where(side < 0, *mouths)
    beyond = np.where(to_right, mouths[1], mouths[0])
    middle = np.full(len(states), float(layout.door_y))

    through = np.where((goal_side == 0)[:, None], goals, np.stack([beyond, middle], 1))
    is_aligned = np.abs(states[:, 1] - middle) <= _ALIGNED
    enter = np.where(is_aligned[:, None], through, np.stack([near, middle], 1))
    leave = np.stack([beyond, states[:, 1]], 1)
    apart = np.where((side == 0)[:, None], leave, enter)
    return np.where((side == goal_side)[:, None], goals, apart)


def _sides(x: Floats, layout: Layout) -> NDArray[np.int_]:
    """Say which are left (-1) and right (1) of the wall, and which between its faces (0)."""
    return np.asarray((x > layout.right).astype(int) - (x < layout.left))


def start_states(streams: list[np.random.Generator], layout: Layout) -> Floats:
    """Draw one start state [N,2] a stream, anywhere free of the walls."""
    states = np.zeros((len(streams), 2))
    for row, rng in zip(states, streams, strict=True):
        while True:
            row[:] = rng.uniform(LOW + 0.5, HIGH - 0.5, 2)
            low, high = layout.door
            if _sides(row[:1], layout)[0] or low + 0.5 < row[1] < high - 0.5:
                break
    return states


class WallPolicy:
    """The scripted policy for N worlds at once.

    Args:
        streams: One random stream a world; drawn from once, here.
        steps: Steps the policy will be asked for.
        jitter: Share of behaviours that are jitter, 0..1.
        layout: Where wall and door are.
    """

    def __init__(
        self, streams: list[np.random.Generator], steps: int, jitter: float, layout: Layout
    ) -> None:
        N = len(streams)
        self._jitter_share, self._layout = jitter, layout
        self._uniform = np.stack([rng.random((steps, 7)) for rng in streams], 1)
        self._normal = np.stack([rng.standard_normal((steps, 2)) for rng in streams], 1)
        noise = [rng.vonmises(0, 1 / ANGLE_NOISE, steps) for rng in streams]
        self._turn = np.stack(noise, 1)
        self._length = np.stack([_lengths(rng, steps) for rng in streams], 1)
        self._mode, self._left = np.zeros(N, int), np.zeros(N, int)
        self._target, self._mean = np.zeros((N, 2)), np.zeros((N, 2))
        self._heading, self._noise = np.zeros(N), np.zeros(N)
        self._step = 0

    def act(self, states: Floats) -> NDArray[np.float32]:
        """Return actions float32 [N,2] for states [N,2]."""
        t = self._step
        u, turn, length = self._uniform[t], self._turn[t], self._length[t]
        self._step += 1
        self._left -= 1
        arrived = np.linalg.norm(self._target - states, axis=1) < SPEED
        ended = (self._left <= 0) | (arrived & np.isin(self._mode, (_CROSS, _VISIT)))
        self._begin(states, ended, u)

        gap = aims(states, self._target, self._layout) - states
        aimed = np.arctan2(gap[:, 1], gap[:, 0]) + self._noise * turn
        self._heading = np.where(self._mode == _WANDER, self._heading + turn, aimed)
        steps = length[:, None] * np.stack([np.cos(self._heading), np.sin(self._heading)], 1)
        if t % _JITTER_STEPS == 0:
            self._mean = 2 * u[:, 5:7] - 1
        jitter = self._mean + (0.2 + 0.6 * self._noise[:, None]) * self._normal[t]
        steps = np.where((self._mode == _JITTER)[:, None], jitter, steps)
        return np.clip(steps, -LONGEST, LONGEST).astype(np.float32)

    def _begin(self, states: Floats, rows: NDArray[np.bool_], u: Floats) -> None:
        """Draw a new behaviour for some worlds."""
        choice = u[:, 0]
        mode = np.where(choice < _CROSS_SHARE, _CROSS, _WANDER)
        mode[(choice >= _CROSS_SHARE) & (choice < _CROSS_SHARE + _VISIT_SHARE)] = _VISIT
        mode[u[:, 4] < self._jitter_share] = _JITTER
        is_aimed = (mode == _CROSS) | (mode == _VISIT)
        to_left = (states[:, 0] >= self._layout.wall_x) == (mode == _CROSS)
        room = (
            np.where(to_left, LOW, self._layout.right),
            np.where(to_left, self._layout.left, HIGH),
        )
        x = room[0] + 1 + (room[1] - room[0] - 2) * u[:, 1]
        y = LOW + 1 + (HIGH - LOW - 2) * u[:, 2]
        self._mode = np.where(rows, mode, self._mode)
        self._left = np.where(rows, np.where(is_aimed, 40, 5 + 15 * u[:, 3]), self._left)
        self._target = np.where(rows[:, None], np.stack([x, y], 1), self._target)
        self._noise = np.where(rows, u[:, 3], self._noise)
        self._heading = np.where(rows, 2 * np.pi * u[:, 2], self._heading)


def _lengths(rng: np.random.Generator, steps: int) -> Floats:
    """Draw step lengths [steps] from the published normal, cut by drawing again."""
    drawn = rng.normal(MEAN_STEP, STEP_STD, (steps, _TRIES))
    inside = (drawn >= SHORTEST) & (drawn <= LONGEST)
    first = drawn[np.arange(steps), inside.argmax(1)]
    return np.clip(first, SHORTEST, LONGEST)


def play(
    seed: int,
    episodes: int,
    steps: int,
    first: int = 0,
    jitter: float = 0.0,
    wall_x: int = 32,
    door_y: int = 30,
) -> PointEpisodes:
    """Record play episodes.

    Args:
        seed: Collection seed; different seeds give disjoint random streams.
        episodes: How many.
        steps: Environment steps in each.
        first: Index of the first episode, so that a collection can be made in parts.
        jitter: Share of behaviours that are jitter, 0..1.
        wall_x: Middle of the wall, px.
        door_y: Middle of the door, px.
    """
    layout, streams = Layout(wall_x, door_y), episode_streams(seed, first, episodes)
    starts = start_states(streams, layout)
    policy = WallPolicy(streams, steps, jitter, layout)
    worlds = WallWorlds(episodes, wall_x=wall_x, door_y=door_y)
    return record(worlds, policy, starts, steps)
