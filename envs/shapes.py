"""The blocks a PushT agent can push: their outlines, inertia and rotational symmetry.

A block is a union of rectangles that share edges but no area, in body coordinates (pixels, y
down). The origin is the point that ``state[2:4]`` names; it is neither the centroid nor the centre
of gravity.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pymunk

from jepa_wm.envs.checks import is_number

Points = tuple[tuple[float, float], ...]
Rectangle = tuple[float, float, float, float]


@dataclass(frozen=True)
class BlockShape:
    """Outline, inertia and symmetry of one block.

    Attributes:
        name: One of ``BLOCK_NAMES``.
        rectangles: Its parts (left, top, right, bottom) in body coordinates, px.
        polygons: The same parts as corners, px, in pymunk's hull order.
        moment: Moment of inertia for mass 1, px^2.
        centre_of_gravity: Pivot of free rotation in body coordinates, px.
        symmetry_rad: Smallest rotation that maps the block onto itself, as the pose metric uses it.
        area: Sum of the polygons' areas, px^2.
        reach: Largest distance of a vertex from the body origin, px.
    """

    name: str
    rectangles: tuple[Rectangle, ...]
    polygons: tuple[Points, ...]
    moment: float
    centre_of_gravity: tuple[float, float]
    symmetry_rad: float
    area: float
    reach: float


def _corners(left: float, top: float, right: float, bottom: float) -> Points:
    return ((left, top), (right, top), (right, bottom), (left, bottom))


# Rectangles (left, top, right, bottom) in units of the scale; which rectangle each moment is taken
# from; the symmetry. The T and the plus take every moment from their bar: a slip of the reference
# that the dynamics of its data depend on.
_PARTS: dict[str, tuple[list[Rectangle], list[int], float]] = {
    "T": ([(-2, 0, 2, 1), (-0.5, 1, 0.5, 4)], [0, 0], 2 * np.pi),
    "small_tee": ([(-1.5, 0, 1.5, 1), (-0.5, 1, 0.5, 2)], [0, 1], 2 * np.pi),
    "L": ([(0, 0, 1, 2), (0, -1, 2, 0)], [0, 1], 2 * np.pi),
    "Z": ([(-0.5, 0, 1.5, 1), (-1.5, -1, 0.5, 0)], [0, 1], np.pi),
    "I": ([(-0.5, -2, 0.5, 2)], [0], np.pi),
    "square": ([(-1, -1, 1, 1)], [0], np.pi / 2),
    "+": (
        [(-1.5, -0.5, 1.5, 0.5), (-0.5, 0.5, 0.5, 1.5), (-0.5, -1.5, 0.5, -0.5)],
        [0, 0, 0],
        np.pi / 2,
    ),
}

BLOCK_NAMES = tuple(_PARTS)


def make_block(name: str, scale: float = 30.0) -> BlockShape:
    """Return the block called ``name``.

    Args:
        name: One of ``BLOCK_NAMES``.
        scale: Thickness of a bar, px; 30 makes the published T (bar 120x30, stem 30x90).

    Raises:
        ValueError: unknown name, or a scale that is not a positive number.

    Source: gym-pusht ``envs/pusht.py`` (add_tee), stable-worldmodel ``envs/pusht/env.py`` (the
    other shapes and the symmetries). Its eighth shape, the disc "o", is the agent's.
    """
    if name not in _PARTS:
        raise ValueError(f"block_shape={name!r} is unknown; use one of {', '.join(BLOCK_NAMES)}")
    if not (is_number(scale) and np.isfinite(scale) and scale > 0):
        raise ValueError(f"block_scale={scale!r} must be a positive number of pixels")
    rectangles, moments_of, symmetry = _PARTS[name]
    scaled = [(scale * a, scale * b, scale * c, scale * d) for a, b, c, d in rectangles]
    outlines = [_corners(*part) for part in scaled]
    polygons = [pymunk.Poly(None, outline) for outline in outlines]
    centres = np.array([polygon.center_of_gravity for polygon in polygons])
    hulls = tuple(tuple((v.x, v.y) for v in polygon.get_vertices()) for polygon in polygons)
    return BlockShape(
        name=name,
        rectangles=tuple(scaled),
        polygons=hulls,
        moment=sum(pymunk.moment_for_poly(1.0, outlines[index]) for index in moments_of),
        centre_of_gravity=(float(centres[:, 0].mean()), float(centres[:, 1].mean())),
        symmetry_rad=symmetry,
        area=float(sum(polygon.area for polygon in polygons)),
        reach=float(max(np.hypot(x, y) for hull in hulls for x, y in hull)),
    )


def place_polygons(shape: BlockShape, pose: Sequence[float]) -> list[list[tuple[float, float]]]:
    """Return the block's polygons in world coordinates, px, for a pose (x, y, angle in radians)."""
    x, y, angle = (float(value) for value in pose)
    c, s = math.cos(angle), math.sin(angle)
    return [
        [(c * u - s * v + x, s * u + c * v + y) for u, v in outline] for outline in shape.polygons
    ]
