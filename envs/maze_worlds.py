"""The world behind Maze: a ball pushed through a maze of square cells, N of them side by side.

A stand-in for PointMaze without MuJoCo: the same ball (mass, motor, damping, time step), but walls
that are met exactly, a circle against rectangles, without friction or bounce. MuJoCo's contacts
give a little; near walls the two part. Nothing here claims to be compatible.
"""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# rows are x, columns y; names and maps as D4RL's maze2d
LAYOUTS = {
    "u": ("#####", "#...#", "###.#", "#...#", "#####"),
    "medium": (
        "########",
        "#..##..#",
        "#..#...#",
        "##...###",
        "#..#...#",
        "#.#..#.#",
        "#...#..#",
        "########",
    ),
}
ORIGIN = -0.7  # m, the low edges of cell 0
RADIUS = 0.1  # m, of the ball
MASS = 1000 * 4 / 3 * math.pi * RADIUS**3  # kg
FORCE, DAMPING = 100.0, 1.0  # N a unit of action, N s/m
MAX_SPEED = 5.0  # m/s an axis, to which a velocity is cut before a step
STEP_SECONDS, SUBSTEPS = 0.01, 5
STATE_SIZE = 4
_TOUCH = 1e-12  # m of overlap that count as touching only
_CONTACTS = 4  # walls met in a substep at most; two in a corner


class MazeMap:
    """Where the walls of a maze are, and which way leads from cell to cell.

    Args:
        layout: ``u`` or ``medium``.

    Attributes:
        centres: Middles of the free cells, float64 [C,2], m.
        low: Low corners of the walls, float64 [M,2], m.
        high: High corners, float64 [M,2], m.
        next_cell: Int [C,C]: the cell after ``i`` on a shortest way to ``j``.

    Raises:
        ValueError: there is no such layout.
    """

    def __init__(self, layout: str = "u") -> None:
        if layout not in LAYOUTS:
            raise ValueError(f"layout={layout!r} is unknown; use one of {', '.join(LAYOUTS)}")
        rows = LAYOUTS[layout]
        free = [(i, j) for i, row in enumerate(rows) for j, tile in enumerate(row) if tile == "."]
        self.centres = ORIGIN + 0.5 + np.array(free, float)
        corners = np.array(_wall_boxes(rows), float)
        self.low, self.high = ORIGIN + corners[:, :2], ORIGIN + corners[:, 2:]
        self.next_cell = _next_cells(free)

    def cells(self, places: Floats) -> NDArray[np.int_]:
        """Return the free cells [N] that hold places [N,2]; for one in a wall, the nearest."""
        gaps = np.abs(places[:, None] - self.centres).max(2)
        return np.asarray(gaps.argmin(1))

    def overlaps(self, places: Floats, margin: float) -> NDArray[np.bool_]:
        """Say which squares of half side ``margin`` around places [N,2] reach into a wall."""
        reach = (self.low - margin < places[:, None]) & (places[:, None] < self.high + margin)
        return np.asarray(np.any(np.all(reach, axis=2), axis=1))

    def gaps(self, places: Floats) -> tuple[Floats, Floats]:
        """Return the vectors [N,2] from the nearest point of a wall to places [N,2], and lengths.

        Both are zero within a wall.
        """
        offsets = places[:, None] - np.clip(places[:, None], self.low, self.high)
        squares = (offsets**2).sum(2)
        nearest = squares.argmin(1)
        rows = np.arange(len(places))
        return offsets[rows, nearest], np.sqrt(squares[rows, nearest])


class MazeWorlds:
    """N copies of the world.

    The state of a world is float64 [4]: the ball's x, y (m) and velocity x, y (m/s).

    Args:
        count: Number of worlds N, at least 1.
        layout: ``u`` or ``medium``.

    Raises:
        ValueError: ``count`` is below 1, or there is no such layout.

    Source: constants of PointMaze as DINO-WM uses it (gaoyuezhou/dino_wm ``env/pointmaze``).
    """

    def __init__(self, count: int, *, layout: str = "u") -> None:
        if count < 1:
            raise ValueError(f"count={count} must be at least 1")
        self.count, self.map = count, MazeMap(layout)
        self._states = np.tile(np.append(self.map.centres[0], [0.0, 0.0]), (count, 1))

    def set_states(self, states: Floats) -> None:
        """Put every world into its state [N,4]; ``states()`` gives back exactly that.

        Raises:
            ValueError: the states are not N rows of 4 finite numbers.
        """
        states = np.array(states, dtype=np.float64)
        if states.shape != (self.count, STATE_SIZE) or not np.isfinite(states).all():
            raise ValueError(
                f"states must be finite [{self.count}, {STATE_SIZE}], got {list(states.shape)}"
            )
        self._states = states

    def states(self) -> Floats:
        """Return the states, float64 [N,4]."""
        return self._states.copy()

    def act(self, actions: NDArray[np.floating]) -> None:
        """Push each ball for 0.05 s with a force of 100 N times its action [N,2], cut to +-1.

        v' = (v + h F / m) / (1 + h c / m), x' = x + h v', five times: MuJoCo's Euler step, in which
        the damping is implicit.
        """
        force = FORCE * np.clip(np.asarray(actions, np.float64).reshape(self.count, 2), -1, 1)
        place = self._states[:, :2].copy()
        speed = np.clip(self._states[:, 2:], -MAX_SPEED, MAX_SPEED)
        for _ in range(SUBSTEPS):
            speed = (speed + STEP_SECONDS / MASS * force) / (1 + STEP_SECONDS / MASS * DAMPING)
            place = place + STEP_SECONDS * speed
            self._meet_walls(place, speed)
        self._states = np.concatenate([place, speed], 1)

    def _meet_walls(self, place: Floats, speed: Floats) -> None:
        """Push balls out of the walls they overlap, the deepest first, and stop them there."""
        rows = np.arange(self.count)
        for _ in range(_CONTACTS):
            offset, length = self.map.gaps(place[rows])
            meets = (length < RADIUS - _TOUCH) & (length > 0)  # what is within a wall stays so
            rows, offset, length = rows[meets], offset[meets], length[meets, None]
            if not len(rows):
                return
            normal = offset / length
            place[rows] += (RADIUS - length) * normal
            inward = np.minimum((speed[rows] * normal).sum(1, keepdims=True), 0)
            speed[rows] -= inward * normal


def _wall_boxes(rows: Sequence[str]) -> list[list[int]]:
    """Merge wall tiles into boxes (x, y, x end, y end): runs of a row, then rows of equal runs."""
    boxes: list[list[int]] = []
    for i, row in enumerate(rows):
        start = 0
        while (start := row.find("#", start)) >= 0:
            end = start + len(row[start:]) - len(row[start:].lstrip("#"))
            above = [box for box in boxes if box[1:] == [start, i, end]]
            if above:
                above[0][2] = i + 1
            else:
                boxes.append([i, start, i + 1, end])
            start = end
    return boxes


def _next_cells(free: list[tuple[int, int]]) -> NDArray[np.int_]:
    """Return [C,C]: the first step from each cell on a shortest way to each other, or itself."""
    index = {cell: number for number, cell in enumerate(free)}
    table = np.tile(np.arange(len(free))[:, None], (1, len(free)))
    for goal, cell in enumerate(free):
        queue, seen = deque([cell]), {cell}
        while queue:
            i, j = queue.popleft()
            for near in ((i + 1, j), (i - 1, j), (i, j + 1), (i, j - 1)):
                if near in index and near not in seen:
                    table[index[near], goal] = index[i, j]
                    seen.add(near)
                    queue.append(near)
    return table
