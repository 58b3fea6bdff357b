"""When is PushT solved: pure functions on state arrays, used by the environment and by evaluation.

States are float [..,7] (or [..,5]): agent x, y; block x, y; angle in radians; agent velocity. All
functions broadcast over the leading axes. Two published criteria are not comparable: the pose
criterion asks for the agent and the block, loosely; coverage asks for the block alone, within
about 2 px and 1.5 degrees.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jepa_wm.envs.physics import AGENT_RADIUS, WALL_RADIUS, WALLS
from jepa_wm.envs.shapes import BlockShape, place_polygons

POSITION_TOLERANCE = 20.0  # px
ANGLE_TOLERANCE = np.pi / 9  # rad
COVERAGE_THRESHOLD = 0.95
TURN = 2 * np.pi

Floats = NDArray[np.float64]


def position_error(state: ArrayLike, goal: ArrayLike) -> Floats:
    """Return the joint distance of agent and block, |(ax, ay, bx, by) - goal|, px [..]."""
    gap = np.asarray(state, dtype=np.float64)[..., :4] - np.asarray(goal)[..., :4]
    return np.sqrt(np.square(gap).sum(-1))


def block_error(state: ArrayLike, goal: ArrayLike) -> Floats:
    """Return the distance of the block's origin from the goal's, px [..]."""
    gap = np.asarray(state, dtype=np.float64)[..., 2:4] - np.asarray(goal)[..., 2:4]
    return np.sqrt(np.square(gap).sum(-1))


def angle_error(state: ArrayLike, goal: ArrayLike, symmetry_rad: float = TURN) -> Floats:
    """Return the smallest turn between block and goal, rad in [0, symmetry_rad / 2], [..].

    Args:
        state: Angles need not be wrapped.
        goal: Likewise.
        symmetry_rad: Turn that maps the block onto itself (``BlockShape.symmetry_rad``).

    Source: stable-worldmodel ``envs/pusht/env.py`` (eval_state). dino_wm forgets the modulo, which
    lets most goals with unwrapped angles count as reached.
    """
    gap = np.abs(np.asarray(state, dtype=np.float64)[..., 4] - np.asarray(goal)[..., 4])
    gap = gap % symmetry_rad
    return np.minimum(gap, symmetry_rad - gap)


def is_pose_reached(
    state: ArrayLike, goal: ArrayLike, symmetry_rad: float = TURN
) -> NDArray[np.bool_]:
    """Say whether agent and block are within 20 px jointly and the angle within pi/9, [..]."""
    turned = angle_error(state, goal, symmetry_rad)
    return (position_error(state, goal) < POSITION_TOLERANCE) & (turned < ANGLE_TOLERANCE)


def is_block_reached(
    state: ArrayLike, goal: ArrayLike, symmetry_rad: float = TURN
) -> NDArray[np.bool_]:
    """Say whether the block alone is within 20 px and the angle within pi/9, [..]."""
    turned = angle_error(state, goal, symmetry_rad)
    return (block_error(state, goal) < POSITION_TOLERANCE) & (turned < ANGLE_TOLERANCE)


def coverage(shape: BlockShape, pose: Sequence[float], goal_pose: Sequence[float]) -> float:
    """Return the area of block and goal block in common, as a share of the block's area, 0 to 1.

    The goal's rectangles are axis-aligned in the goal's own frame, so every pair of parts is one
    rectangle clipped by four lines.

    Args:
        shape: The block.
        pose: Its x, y in px and angle in rad (``state[2:5]``).
        goal_pose: Likewise.

    Source: gym-pusht ``envs/pusht.py`` (_get_coverage), without shapely.
    """
    x, y, angle = (float(value) for value in pose)
    goal_x, goal_y, goal_angle = (float(value) for value in goal_pose)
    dx, dy = x - goal_x, y - goal_y
    if dx * dx + dy * dy >= 4 * shape.reach * shape.reach:
        return 0.0
    c, s = np.cos(goal_angle), np.sin(goal_angle)
    local = (c * dx + s * dy, c * dy - s * dx, angle - goal_angle)
    area = 0.0
    for outline in place_polygons(shape, local):
        for left, top, right, bottom in shape.rectangles:
            area += _clipped_area(outline, left, top, right, bottom)
    return float(area / shape.area)


def _clipped_area(
    polygon: list[tuple[float, float]], left: float, top: float, right: float, bottom: float
) -> float:
    """Return the area of a convex polygon inside a rectangle (Sutherland-Hodgman, shoelace)."""
    for axis, bound, sign in ((0, left, 1.0), (0, right, -1.0), (1, top, 1.0), (1, bottom, -1.0)):
        polygon = _cut(polygon, axis, bound, sign)
        if len(polygon) < 3:
            return 0.0
    ends = polygon[1:] + polygon[:1]
    return abs(sum(a[0] * b[1] - b[0] * a[1] for a, b in zip(polygon, ends, strict=True))) / 2


def _cut(
    polygon: list[tuple[float, float]], axis: int, bound: float, sign: float
) -> list[tuple[float, float]]:
    """Keep the part of a convex polygon where sign * (coordinate - bound) >= 0."""
    depths = [sign * (point[axis] - bound) for point in polygon]
    if min(depths) >= 0:
        return polygon
    if max(depths) <= 0:
        return []
    kept = []
    for index, (point, depth) in enumerate(zip(polygon, depths, strict=True)):
        before, depth_before = polygon[index - 1], depths[index - 1]
        if (depth >= 0) != (depth_before >= 0):
            share = depth_before / (depth_before - depth)
            kept.append(
                (
                    before[0] + share * (point[0] - before[0]),
                    before[1] + share * (point[1] - before[1]),
                )
            )
        if depth >= 0:
            kept.append(point)
    return kept


def clearance(shape: BlockShape, state: Sequence[float]) -> float:
    """Return the gap between agent and block, px; negative is the depth of penetration.

    Args:
        shape: The block.
        state: At least (agent x, y, block x, y, angle).
    """
    ax, ay, x, y, angle = (float(value) for value in state[:5])
    c, s = np.cos(angle), np.sin(angle)
    u, v = c * (ax - x) + s * (ay - y), c * (ay - y) - s * (ax - x)
    gaps = []
    for left, top, right, bottom in shape.rectangles:
        dx, dy = max(left - u, u - right), max(top - v, v - bottom)
        gaps.append(np.hypot(max(dx, 0.0), max(dy, 0.0)) + min(max(dx, dy), 0.0))
    return float(min(gaps) - AGENT_RADIUS)


def is_block_inside(shape: BlockShape, state: Sequence[float]) -> bool:
    """Say whether no corner of the block reaches into a wall."""
    low, high = WALLS[0][1][0] + WALL_RADIUS, WALLS[0][0][1] - WALL_RADIUS
    corners = [value for part in place_polygons(shape, state[2:5]) for at in part for value in at]
    return min(corners) >= low and max(corners) <= high
