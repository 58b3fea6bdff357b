"""Maze pictures: the maze from above, x to the right and y up, an orange ball, grey walls.

Edges are drawn by how much of a pixel they cover, so that small pictures tell where the ball is
between pixels. Velocities are not seen.
"""

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.checks import check_size
from jepa_wm.envs.maze_worlds import RADIUS, Floats, MazeMap

CANVAS = 512  # px, of a window
MARGIN = 0.2  # m of wall around the free cells that is in the picture
SMALLEST = 1.0  # px, the ball's radius in small pictures of large mazes
FLOOR, WALL = (255, 255, 255), (88, 92, 100)
BALL, GOAL = (213, 94, 0), (0, 158, 115)

Frame = NDArray[np.uint8]


class MazeRenderer:
    """Draws positions in a maze as RGB frames.

    Args:
        size: Side of the frames, px.
        maze: Where the walls are.

    Raises:
        ValueError: ``size`` is below 1.
    """

    def __init__(self, size: int, maze: MazeMap) -> None:
        check_size(size)
        self.size = size
        self._view, self._canvas_view = (_View(pixels, maze) for pixels in (size, CANVAS))
        self._goal: Floats | None = None

    def set_goal(self, place: Floats | None) -> None:
        """Mark a goal position [2] with a green ball in the pictures to come, or none."""
        self._goal = place

    def render(self, place: Floats) -> Frame:
        """Draw a position [2] as uint8 [size,size,3] RGB."""
        return self._view.draw(place, self._goal)

    def canvas(self, place: Floats) -> Frame:
        """Draw a position [2] for a window, uint8 [512,512,3] RGB."""
        return self._canvas_view.draw(place, self._goal)


class _View:
    """Pictures of one size."""

    def __init__(self, size: int, maze: MazeMap) -> None:
        low = maze.centres.min(0) - 0.5 - MARGIN
        side = (maze.centres.max(0) + 0.5 + MARGIN - low).max()
        self._scale = size / side  # px a metre
        edges = np.arange(size + 1) / self._scale
        self._x, self._y = low[0] + edges, low[1] + side - edges  # m; rows go down, y up
        covered = np.zeros((size, size))
        for first, last in zip(maze.low, maze.high, strict=True):
            columns = self._covered(self._x, first[0], last[0])
            covered += self._covered(self._y[::-1], first[1], last[1])[::-1, None] * columns
        self._floor = _blend(np.array(FLOOR, float), WALL, np.minimum(covered, 1))

    def _covered(self, edges: Floats, low: float, high: float) -> Floats:
        """Return the share of each pixel of an axis that lies between two points."""
        inside = np.minimum(edges[1:], high) - np.maximum(edges[:-1], low)
        return np.asarray(np.maximum(inside, 0) * self._scale)

    def draw(self, place: Floats, goal: Floats | None) -> Frame:
        picture = self._floor
        if goal is not None:
            picture = _blend(picture, GOAL, self._disc(goal))
        return np.rint(_blend(picture, BALL, self._disc(place))).astype(np.uint8)

    def _disc(self, place: Floats) -> Floats:
        """Return about how much of each pixel the ball covers, [size,size]."""
        dx = ((self._x[1:] + self._x[:-1]) / 2 - place[0]) * self._scale
        dy = ((self._y[1:] + self._y[:-1]) / 2 - place[1]) * self._scale
        radius = max(RADIUS * self._scale, SMALLEST)
        return np.clip(radius + 0.5 - np.hypot(dx, dy[:, None]), 0, 1)


def _blend(picture: Floats, colour: tuple[int, int, int], share: Floats) -> Floats:
    return np.asarray(picture + share[..., None] * (np.array(colour, float) - picture))
