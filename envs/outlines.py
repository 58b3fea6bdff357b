"""Where things are in a picture: outlines of a state, to be drawn over the frame a camera took.

Outlines are curves float [n,2] in units of the frame's side, x to the right and y down from the
upper left corner, one a thing; NaN rows lift the pen.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jepa_wm.envs.maze_rendering import MARGIN
from jepa_wm.envs.maze_worlds import RADIUS, MazeMap
from jepa_wm.envs.physics import AGENT_RADIUS
from jepa_wm.envs.reach_rendering import CANVAS as REACH_CANVAS
from jepa_wm.envs.reach_rendering import project
from jepa_wm.envs.reach_worlds import BLOCK_HEIGHT, BLOCK_SIDE, GRIPPER_RADIUS
from jepa_wm.envs.rendering import CANVAS
from jepa_wm.envs.shapes import Rectangle, make_block

Floats = NDArray[np.float64]

_POINTS = 48  # of a ring, and of every side of a rectangle
_LIFT = np.full((1, 2), np.nan)


def ring(centre: ArrayLike, radius: float) -> Floats:
    """Return a circle [n,2] around a centre (x, y)."""
    turn = np.linspace(0, 2 * np.pi, _POINTS)
    return np.asarray(centre, np.float64) + radius * np.stack([np.cos(turn), np.sin(turn)], 1)


def pusht(state: ArrayLike, shape: str = "T", scale: float = 30.0) -> Mapping[str, Floats]:
    """Return the outlines of PushT's ``agent`` and ``block`` in a state, float [5] or more.

    Args:
        state: Agent x, y; block x, y (px); angle (rad).
        shape: Name of the block (``BLOCK_NAMES``).
        scale: Thickness of its bars, px.
    """
    x = np.asarray(state, np.float64)
    c, s = np.cos(x[4]), np.sin(x[4])
    body = _union(make_block(shape, scale).rectangles)
    block = body @ np.array([[c, s], [-s, c]]) + x[2:4]
    return {"agent": ring(x[:2], AGENT_RADIUS) / CANVAS, "block": block / CANVAS}


def reach(state: ArrayLike) -> Mapping[str, Floats]:
    """Return the outlines of Reach's ``gripper``, with its plumb line, and of its ``block``.

    Args:
        state: float [10], see ``ReachWorlds``.
    """
    x = np.asarray(state, np.float64)
    beside = x[:3] + np.array([0.0, GRIPPER_RADIUS, 0.0])
    tip, foot, edge = project(np.array([x[:3], [x[0], x[1], 0.0], beside]))[0]
    gripper = np.concatenate([ring(tip, float(np.linalg.norm(edge - tip))), _LIFT, [tip, foot]])
    c, s = np.cos(x[9]), np.sin(x[9])
    half = BLOCK_SIDE / 2
    square = np.array([[-half, -half], [half, -half], [half, half], [-half, half], [-half, -half]])
    flat = square @ np.array([[c, s], [-s, c]]) + x[7:9]
    low, high = (project(np.column_stack([flat, np.full(5, z)]))[0] for z in (0.0, BLOCK_HEIGHT))
    return {
        "gripper": gripper / REACH_CANVAS,
        "block": np.concatenate([high, _LIFT, low]) / REACH_CANVAS,
    }


def dot(
    state: ArrayLike, low: Sequence[float], high: Sequence[float], radius: float
) -> Mapping[str, Floats]:
    """Return a ring around the ``dot`` of a plane the whole frame shows.

    Args:
        state: float [P]; the first two are the dot's x and y.
        low: What the frame's left and upper edges are, in the state's units.
        high: What its right and lower edges are; below ``low`` where the axis is flipped.
        radius: Of the ring, in the state's units.
    """
    near, far = np.asarray(low, np.float64), np.asarray(high, np.float64)
    place = (np.asarray(state, np.float64)[:2] - near) / (far - near)
    return {"dot": ring(place, radius / abs(float(far[0] - near[0])))}


def maze(state: ArrayLike, layout: str = "u") -> Mapping[str, Floats]:
    """Return a ring around Maze's ball, the ``dot``, in a state, float [4], of a layout."""
    centres = MazeMap(layout).centres
    left, bottom = centres.min(0) - 0.5 - MARGIN
    side = float((centres.max(0) + 0.5 + MARGIN - (left, bottom)).max())
    return dot(state, (left, bottom + side), (left + side, bottom), RADIUS)


def _union(rectangles: Sequence[Rectangle]) -> Floats:
    """Trace the border of rectangles that share edges, but not the edges within."""
    pieces = []
    for own in rectangles:
        left, top, right, bottom = own
        corners = np.array(
            [[left, top], [right, top], [right, bottom], [left, bottom], [left, top]]
        )
        steps = np.linspace(0, 1, 4 * _POINTS)[:, None]
        path = np.concatenate([a + steps * (b - a) for a, b in pairwise(corners)])
        for other in rectangles:
            if other != own:
                x, y = path.T
                within = (x >= other[0]) & (x <= other[2]) & (y >= other[1]) & (y <= other[3])
                path = np.where(within[:, None], np.nan, path)
        pieces += [path, _LIFT]
    return np.concatenate(pieces)
