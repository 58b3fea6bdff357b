"""Pictures of Reach: a table seen from above and in front, the arm, its shadow and the block.

A still camera looks over the table towards the arm's base. What tells the height of the gripper is
drawn large: its shadow straight below it and a thin plumb line between the two. Everything is drawn
at 512 px and averaged down, and depends on the state alone.
"""

import contextlib
import io
import math
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.checks import check_size
from jepa_wm.envs.reach_worlds import BLOCK_HEIGHT, BLOCK_SIDE, HIGH, LOW, rotation_matrices

with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
    # pygame greets on stdout when imported, which belongs to the caller, and warns of its imports.
    warnings.simplefilter("ignore")
    import pygame

CANVAS = 512
CAMERA = np.array([1.30, -0.42, 0.78])  # metres, base frame
TARGET = np.array([0.48, 0.0, 0.115])
FOCAL = 650.0  # canvas pixels
FARTHEST = 1e4  # canvas pixels: beyond it pygame draws what nobody sees, for seconds
NEAREST = 0.05  # metres: what is nearer to the camera, or behind it, is drawn as if there
SHOULDER = np.array([0.0, 0.0, 0.30])
UPPER, FORE = 0.48, 0.44  # metres, the links from shoulder to elbow to wrist
HAND = 0.10  # metres from the wrist to the tip
FINGER, OPENING = 0.055, 0.05  # metres: length of the fingers, distance between them when open

WALL, FLOOR = (226, 230, 236), (172, 176, 186)
TABLE, LINE = (240, 226, 204), (214, 198, 172)
SHADOW = (150, 134, 112)
ARM, JOINT, HAND_COLOUR, FINGERS = (70, 90, 120), (40, 52, 72), (214, 60, 48), (30, 30, 34)
BLOCK_TOP, BLOCK_SIDES = (66, 150, 92), ((44, 108, 66), (52, 124, 76))
PLUMB = (190, 90, 80)

Frame = NDArray[np.uint8]
Floats = NDArray[np.float64]
Colour = tuple[int, int, int]


def _axes() -> Floats:
    """Return the camera's right, down and forward axes as rows [3,3]."""
    forward = TARGET - CAMERA
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(forward, right), forward])


_AXES = _axes()


def project(points: Floats) -> tuple[Floats, Floats]:
    """Return canvas pixels [N,2] and depths [N] in metres of points [N,3] in the base frame."""
    seen = (np.atleast_2d(points) - CAMERA) @ _AXES.T
    depths = np.maximum(seen[:, 2], NEAREST)
    places = CANVAS / 2 + FOCAL * seen[:, :2] / depths[:, None]
    return np.clip(places, -FARTHEST, FARTHEST), depths


class ReachRenderer:
    """Draws states as square pictures.

    Args:
        size: Side of the pictures, px; at most 512.

    Raises:
        ValueError: ``size`` is out of range.
    """

    def __init__(self, size: int) -> None:
        check_size(size, CANVAS)
        self.size = size
        self._goal: Floats | None = None
        self._scene = pygame.Surface((CANVAS, CANVAS))
        self._canvas = pygame.Surface((CANVAS, CANVAS))
        _draw_scene(self._scene)

    def set_goal(self, point: Sequence[float] | None) -> None:
        """Mark a goal position (x, y, z), or none, in the pictures to come."""
        self._goal = None if point is None else np.asarray(point, np.float64)

    def canvas(self, state: Floats) -> Frame:
        """Draw a state [10] as uint8 [512,512,3] RGB."""
        return _pixels(self._draw(state))

    def _draw(self, state: Floats) -> pygame.Surface:
        self._canvas.blit(self._scene, (0, 0))
        _draw_shadow(self._canvas, state)
        tip_depth = project(state[:3])[1][0]
        block_depth = project(np.array([*state[7:9], BLOCK_HEIGHT / 2]))[1][0]
        is_behind = tip_depth > block_depth and state[2] < BLOCK_HEIGHT
        draws = [_draw_block, _draw_arm]
        for draw in reversed(draws) if is_behind else draws:
            draw(self._canvas, state)
        if self._goal is not None:
            _draw_mark(self._canvas, self._goal)
        return self._canvas

    def render(self, state: Floats) -> Frame:
        """Draw a state [10] as uint8 [size,size,3] RGB."""
        canvas = self._draw(np.asarray(state, np.float64))
        return _pixels(pygame.transform.smoothscale(canvas, (self.size, self.size)))


def _pixels(surface: pygame.Surface) -> Frame:
    return np.ascontiguousarray(pygame.surfarray.array3d(surface).transpose(1, 0, 2))


def _polygon(canvas: pygame.Surface, colour: Colour, corners: Floats) -> None:
    pygame.draw.polygon(canvas, colour, project(corners)[0].tolist())


def _draw_scene(canvas: pygame.Surface) -> None:
    """Draw wall, floor, table and its grid of 10 cm."""
    canvas.fill(WALL)
    far = 1.2
    _polygon(canvas, FLOOR, np.array([[-0.3, -far, -0.3], [1.2, -far, -0.3], [1.2, far, -0.3],
                                      [-0.3, far, -0.3]]))  # fmt: skip
    margin = 0.07
    (x0, y0), (x1, y1) = LOW[:2] - margin, HIGH[:2] + margin
    corners = np.array([[x0, y0, 0], [x1, y0, 0], [x1, y1, 0], [x0, y1, 0]])
    _polygon(canvas, TABLE, corners)
    for x in np.arange(0.3, 0.71, 0.1):
        _line(canvas, LINE, np.array([[x, y0, 0], [x, y1, 0]]), 2)
    for y in np.arange(-0.2, 0.21, 0.1):
        _line(canvas, LINE, np.array([[x0, y, 0], [x1, y, 0]]), 2)


def _line(canvas: pygame.Surface, colour: Colour, ends: Floats, width: int) -> None:
    (a, b), _ = project(ends)
    pygame.draw.line(canvas, colour, a.tolist(), b.tolist(), width)


def _limb(canvas: pygame.Surface, colour: Colour, ends: Floats, radius: float) -> None:
    """Draw a round-ended bar of a radius in metres between two points [2,3]."""
    places, depths = project(ends)
    wide = FOCAL * radius / depths
    along = places[1] - places[0]
    length = float(np.hypot(*along))
    if length > 1e-6:
        side = np.array([-along[1], along[0]]) / length
        corners = [
            places[0] + side * wide[0], places[1] + side * wide[1],
            places[1] - side * wide[1], places[0] - side * wide[0],
        ]  # fmt: skip
        pygame.draw.polygon(canvas, colour, [c.tolist() for c in corners])
    for place, radius_px in zip(places, wide, strict=True):
        pygame.draw.circle(canvas, colour, place.tolist(), float(radius_px))


def _draw_shadow(canvas: pygame.Surface, state: Floats) -> None:
    """Draw the gripper's shadow, a disc on the table, and the plumb line down to it."""
    turn = np.linspace(0, 2 * math.pi, 25)[:-1]
    ring = np.stack([np.cos(turn), np.sin(turn), np.zeros_like(turn)], 1)
    floor = np.array([state[0], state[1], 0.0])
    _polygon(canvas, SHADOW, floor + 0.035 * ring)


def _draw_block(canvas: pygame.Surface, state: Floats) -> None:
    c, s = math.cos(state[9]), math.sin(state[9])
    half = BLOCK_SIDE / 2
    flat = np.array([[-half, -half], [half, -half], [half, half], [-half, half]])
    flat = flat @ np.array([[c, s], [-s, c]]) + state[7:9]
    low, high = (np.column_stack([flat, np.full(4, z)]) for z in (0.0, BLOCK_HEIGHT))
    _, depths = project(low)
    sides = [np.stack([low[i], low[i - 1], high[i - 1], high[i]]) for i in range(4)]
    order = sorted(range(4), key=lambda i: -(depths[i] + depths[i - 1]))
    for i in order:
        _polygon(canvas, BLOCK_SIDES[i % 2], sides[i])
    _polygon(canvas, BLOCK_TOP, high)


def _elbow(wrist: Floats) -> Floats:
    """Place the elbow above the line from shoulder to wrist, as far as the links are long."""
    reach = wrist - SHOULDER
    distance = min(float(np.linalg.norm(reach)), UPPER + FORE - 1e-6)
    along = (UPPER**2 - FORE**2 + distance**2) / (2 * distance)
    height = math.sqrt(max(UPPER**2 - along**2, 0.0))
    ahead = reach / max(float(np.linalg.norm(reach)), 1e-9)
    up = np.array([0.0, 0.0, 1.0]) - ahead[2] * ahead
    return SHOULDER + along * ahead + height * up / max(float(np.linalg.norm(up)), 1e-9)


def _draw_arm(canvas: pygame.Surface, state: Floats) -> None:
    """Draw the links, the hand and its two fingers, whose distance says how closed it is."""
    tip, turn = state[:3], rotation_matrices(state[3:6])
    down, across = -turn[:, 2], turn[:, 1]
    wrist, palm = tip - HAND * down, tip - FINGER * down
    elbow = _elbow(wrist)
    _line(canvas, PLUMB, np.array([tip, [tip[0], tip[1], 0.0]]), 3)
    _limb(canvas, ARM, np.stack([SHOULDER, elbow]), 0.034)
    _limb(canvas, ARM, np.stack([elbow, wrist]), 0.028)
    for joint in (elbow, wrist):
        _limb(canvas, JOINT, np.stack([joint, joint]), 0.032)
    gap = across * (OPENING / 2) * (1.15 - state[6])
    _limb(canvas, HAND_COLOUR, np.stack([wrist, palm]), 0.026)
    wide = across * (OPENING / 2 + 0.008)
    _limb(canvas, HAND_COLOUR, np.stack([palm - wide, palm + wide]), 0.016)
    for side in (-gap, gap):
        _limb(canvas, FINGERS, np.stack([palm + side, tip + side]), 0.011)


def _draw_mark(canvas: pygame.Surface, point: Floats) -> None:
    """Draw a ring at a goal position and a ring on the table below it."""
    turn = np.linspace(0, 2 * math.pi, 33)
    ring = 0.05 * np.stack([np.cos(turn), np.sin(turn), np.zeros_like(turn)], 1)
    for centre in (point, np.array([point[0], point[1], 0.0])):
        pygame.draw.lines(canvas, HAND_COLOUR, True, project(centre + ring)[0].tolist(), 3)
