"""Where episodes of Maze begin, an expert that reaches any goal, and scripted play."""

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.maze_worlds import STATE_SIZE, Floats, MazeMap, MazeWorlds
from jepa_wm.envs.point_play import PointEpisodes, episode_streams, record

CLEAR = 0.2  # m between the middle of a ball at the start and the walls
_GAIN, _BRAKE = 10.0, 1.0  # of the expert: action a metre to go, and a metre per second
_VISIT, _JITTER = range(2)
_VISIT_STEPS = 60
_ARRIVED = 0.25  # m
_JITTER_STEPS = 5  # a jitter's mean command changes at this interval
_DRIFT_KEPT, _DRIFT_NEW = 0.8, 0.6  # Ornstein-Uhlenbeck noise of variance 1
_START_STD = 0.5  # m/s


def draw_place(rng: np.random.Generator, maze: MazeMap) -> Floats:
    """Draw a position [2], uniform over what is clear of the walls by 0.2 m on both axes.

    In ``u`` that is the region DINO-WM draws from.
    """
    low, high = maze.centres.min(0) - 0.5, maze.centres.max(0) + 0.5
    while True:
        place = rng.uniform(low, high)
        if not maze.overlaps(place[None], CLEAR)[0]:
            return np.asarray(place)


def start_states(streams: list[np.random.Generator], maze: MazeMap) -> Floats:
    """Draw one start state [N,4] a stream, moving a little."""
    rows = [[*draw_place(rng, maze), *rng.normal(0, _START_STD, 2)] for rng in streams]
    return np.array(rows).reshape(-1, STATE_SIZE)


def maze_expert(states: Floats, goals: Floats, maze: MazeMap | None = None) -> NDArray[np.float32]:
    """Return the actions float32 [N,2] that lead to the goals: from cell to cell, and brake there.

    Args:
        states: Where the worlds are, [N,4].
        goals: Where they should be; positions [N,2] or more numbers, of which the first two count.
        maze: The maze; None is ``u``.
    """
    aim = aims(states, goals, maze or MazeMap())
    command = _GAIN * (aim - states[:, :2]) - _BRAKE * states[:, 2:]
    return np.clip(command, -1, 1).astype(np.float32)


def aims(states: Floats, goals: Floats, maze: MazeMap) -> Floats:
    """Return the points [N,2] to head for now: the goal, or the next cell on the way to its own."""
    here, there = maze.cells(states[:, :2]), maze.cells(goals[:, :2])
    following = maze.next_cell[here, there]
    is_near = (following == there)[:, None]
    return np.where(is_near, goals[:, :2], maze.centres[following])


class MazePolicy:
    """The scripted policy for N worlds at once.

    Args:
        streams: One random stream a world; drawn from once, here.
        steps: Steps the policy will be asked for.
        jitter: Share of behaviours that are jitter, 0..1.
        maze: The maze.
    """

    def __init__(
        self, streams: list[np.random.Generator], steps: int, jitter: float, maze: MazeMap
    ) -> None:
        N = len(streams)
        self._jitter_share, self._maze = jitter, maze
        self._uniform = np.stack([rng.random((steps, 9)) for rng in streams], 1)
        self._normal = np.stack([rng.standard_normal((steps, 2)) for rng in streams], 1)
        self._mode, self._left = np.zeros(N, int), np.zeros(N, int)
        self._target, self._mean, self._drift = (np.zeros((N, 2)) for _ in range(3))
        self._noise, self._limit = np.zeros(N), np.ones(N)
        self._step = 0

    def act(self, states: Floats) -> NDArray[np.float32]:
        """Return actions float32 [N,2] for states [N,4]."""
        t = self._step
        u, normal = self._uniform[t], self._normal[t]
        self._step += 1
        self._left -= 1
        near = np.linalg.norm(self._target - states[:, :2], axis=1) < _ARRIVED
        self._begin((self._left <= 0) | (near & (self._mode == _VISIT)), u)

        self._drift = _DRIFT_KEPT * self._drift + _DRIFT_NEW * normal
        command = maze_expert(states, self._target, self._maze) * self._limit[:, None]
        command = command + self._noise[:, None] * self._drift
        if t % _JITTER_STEPS == 0:
            self._mean = 2 * u[:, 4:6] - 1
        jitter = self._mean + (0.1 + self._noise[:, None]) * normal
        command = np.where((self._mode == _JITTER)[:, None], jitter, command)
        return np.clip(command, -1, 1).astype(np.float32)

    def _begin(self, rows: NDArray[np.bool_], u: Floats) -> None:
        """Draw a new behaviour for some worlds; a visit is to anywhere in any cell."""
        cells = (u[:, 6] * len(self._maze.centres)).astype(int)
        places = self._maze.centres[cells] + (1 - 2 * CLEAR) * (u[:, 7:9] - 0.5)
        mode = np.where(u[:, 0] < self._jitter_share, _JITTER, _VISIT)
        length = np.where(mode == _JITTER, 5 + 15 * u[:, 1], _VISIT_STEPS)
        self._mode = np.where(rows, mode, self._mode)
        self._left = np.where(rows, length, self._left)
        self._target = np.where(rows[:, None], places, self._target)
        self._noise = np.where(rows, 0.6 * u[:, 2], self._noise)
        self._limit = np.where(rows, 0.3 + 0.7 * u[:, 3], self._limit)


def play(
    seed: int, episodes: int, steps: int, first: int = 0, jitter: float = 0.0, layout: str = "u"
) -> PointEpisodes:
    """Record play episodes.

    Args:
        seed: Collection seed; different seeds give disjoint random streams.
        episodes: How many.
        steps: Environment steps in each.
        first: Index of the first episode, so that a collection can be made in parts.
        jitter: Share of behaviours that are jitter, 0..1.
        layout: ``u`` or ``medium``.
    """
    worlds, streams = MazeWorlds(episodes, layout=layout), episode_streams(seed, first, episodes)
    starts = start_states(streams, worlds.map)
    return record(worlds, MazePolicy(streams, steps, jitter, worlds.map), starts, steps)
