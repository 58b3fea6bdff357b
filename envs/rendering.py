"""PushT pictures, equal to the pixel to the frames the public LeWM checkpoint was trained on.

A 512 x 512 drawing (white, goal, block, agent, walls, in this order) is scaled down with the
arithmetic of OpenCV's ``INTER_LINEAR``. All that never moves is drawn and scaled once; a frame
then redraws and rescales only the rectangles around the block and the agent. No window, no
display.
"""

import contextlib
import io
import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.checks import check_size
from jepa_wm.envs.physics import AGENT_RADIUS, WALL_RADIUS, WALLS, Segment
from jepa_wm.envs.shapes import BlockShape, place_polygons

with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
    # pygame greets on stdout when imported, which belongs to the caller, and warns of its imports.
    warnings.simplefilter("ignore")
    import pygame

CANVAS = 512
WHITE, GOAL, WALL = (255, 255, 255), (144, 238, 144), (211, 211, 211)
AGENT, AGENT_CORE = (65, 105, 225), (78, 126, 255)
BLOCK_EDGE, BLOCK = (119, 136, 153), (143, 163, 184)
MARK = (231, 76, 60)
MARGIN = 5  # px that edges and rounding may reach past the outline
NEAR = 9  # px from the canvas border within which walls are drawn
EVERYWHERE, NOWHERE = (0, 0, CANVAS, CANVAS), (0, 0, 0, 0)
LOST = 10_000  # px away from which a block is not drawn at all

Pose = Sequence[float]
Pixel = tuple[int, int]
Box = tuple[int, int, int, int]  # left, top, right, bottom; canvas pixels, half-open
Frame = NDArray[np.uint8]
State = Sequence[float] | NDArray[np.float64]


class LinearResize:
    """OpenCV's ``resize(INTER_LINEAR)`` of a square uint8 image, bit for bit, whole or in part.

    With weights a, b = rint(2048 frac) per axis: h = a0 p0 + a1 p1 along a row, then
    out = (((b0 (h0 >> 4)) >> 16) + ((b1 (h1 >> 4)) >> 16) + 2) >> 2 across rows, in int32.

    Args:
        source: Side of the input, px.
        target: Side of the output, px.

    Source: OpenCV ``modules/imgproc/src/resize.cpp`` (fixed-point linear path).
    """

    def __init__(self, source: int, target: int) -> None:
        place = (np.arange(target) + 0.5) * (source / target) - 0.5
        place = place.astype(np.float32)  # OpenCV takes the fraction in single precision
        low = np.floor(place)
        fraction = place - low
        first = low.astype(np.int64)
        self.low = np.clip(first, 0, source - 1)
        self.high = np.clip(first + 1, 0, source - 1)
        self._first = np.rint((np.float32(1) - fraction) * np.float32(2048)).astype(np.int32)
        self._second = np.rint(fraction * np.float32(2048)).astype(np.int32)

    def span(self, start: int, stop: int) -> tuple[int, int]:
        """Return the half-open range of outputs that read any of the inputs ``start:stop``."""
        first = np.searchsorted(self.high, start, side="left")
        last = np.searchsorted(self.low, stop, side="left")
        return int(first), int(last)

    def __call__(self, image: Frame, rows: tuple[int, int], columns: tuple[int, int]) -> Frame:
        """Resize and return the part ``[rows, columns]`` of the output.

        Args:
            image: uint8 [source,source,4], C-contiguous; the fourth byte rides along for alignment.
            rows: Half-open range of output rows.
            columns: Half-open range of output columns.

        Returns:
            uint8 [rows,columns,3].
        """
        across, down = slice(*columns), slice(*rows)
        packed = image.view(np.uint32)[..., 0]
        lines = packed[np.concatenate([self.low[down], self.high[down]])]
        shape = (len(lines), columns[1] - columns[0], 4)
        left = lines.take(self.low[across], axis=1).view(np.uint8).reshape(shape)
        right = lines.take(self.high[across], axis=1).view(np.uint8).reshape(shape)
        a0, a1 = self._first[across, None], self._second[across, None]
        h = (left * a0 + right * a1) >> 4
        b0, b1 = self._first[down, None, None], self._second[down, None, None]
        top, bottom = h[: len(h) // 2], h[len(h) // 2 :]
        out = (((b0 * top) >> 16) + ((b1 * bottom) >> 16) + 2) >> 2
        return out[..., :3].astype(np.uint8)


class PushTRenderer:
    """Draws states of PushT as RGB frames.

    Args:
        size: Side of the frames, px; 224 is the published size.
        shape: The block.
        goal: Pose (x, y, angle) of the green decoration, px and radians, or None for no decoration.

    Raises:
        ValueError: ``size`` below 1.

    Source: gym-pusht ``envs/pusht.py`` (_draw), stable-worldmodel ``envs/pusht/env.py`` and
    ``envs/utils.py`` (DrawOptions). Kept: lighter cores, 2 px edges, walls drawn last.
    """

    def __init__(self, size: int, shape: BlockShape, goal: Pose | None) -> None:
        check_size(size)
        self.size = size
        self.shape = shape
        self._resize = LinearResize(CANVAS, size)
        self._pixels = np.empty((CANVAS, CANVAS, 4), dtype=np.uint8)
        self._canvas = pygame.image.frombuffer(self._pixels.data, (CANVAS, CANVAS), "RGBX")
        self.set_goal(goal)

    def set_goal(self, goal: Pose | None) -> None:
        """Move the green decoration to a pose (x, y, angle), or take it away with None."""
        self._canvas.fill(WHITE)
        if goal is not None:
            for outline in place_polygons(self.shape, goal):
                pygame.draw.polygon(self._canvas, GOAL, _closed(_rounded(outline)))
        self._unwalled = self._pixels.copy()
        self._draw_walls()
        self._background = self._pixels.copy()
        whole = (0, self.size)
        self._small = self._resize(self._pixels, whole, whole)

    def render(self, state: State, marks: Sequence[Segment] = ()) -> Frame:
        """Draw one state.

        Args:
            state: (agent x, agent y, block x, block y, angle, ...), px and radians.
            marks: Contact marks to draw on top (``PushTWorlds.contact_marks``). The references
                draw them in every frame with a contact; they are not a function of the state.

        Returns:
            uint8 [size,size,3], RGB, C-contiguous, its own memory.
        """
        frame = self._small.copy()
        boxes = self._draw(state, marks)
        for left, top, right, bottom in boxes:
            rows, columns = self._resize.span(top, bottom), self._resize.span(left, right)
            frame[slice(*rows), slice(*columns)] = self._resize(self._pixels, rows, columns)
        self._restore(boxes)
        return frame

    def canvas(self, state: State, marks: Sequence[Segment] = ()) -> Frame:
        """Draw one state at full size, uint8 [512,512,3], its own memory."""
        boxes = self._draw(state, marks)
        drawn = self._pixels[..., :3].copy()
        self._restore(boxes)
        return drawn

    def _draw(self, state: State, marks: Sequence[Segment]) -> list[Box]:
        """Draw what moves onto the background; return the boxes touched."""
        agent = float(state[0]), float(state[1])
        outlines = place_polygons(self.shape, state[2:5])
        block_box = _block_box([corner for outline in outlines for corner in outline])
        agent_box = _box([agent], AGENT_RADIUS + MARGIN)
        boxes = [block_box, agent_box, *(_box(mark, MARGIN) for mark in marks)]
        boxes = [box for box in boxes if box[0] < box[2] and box[1] < box[3]]  # seen at all
        for box in boxes:
            self._copy(self._unwalled, box)
        if block_box in boxes:
            for outline in outlines:
                self._draw_polygon(_rounded(outline))
        if agent_box in boxes:
            centre = _rounded([agent])[0]
            pygame.draw.circle(self._canvas, AGENT, centre, round(AGENT_RADIUS))
            pygame.draw.circle(self._canvas, AGENT_CORE, centre, round(AGENT_RADIUS - 4))
        if any(box[0] <= NEAR or box[1] <= NEAR or max(box[2:]) >= CANVAS - NEAR for box in boxes):
            self._draw_walls()
        for start, end in marks:
            pygame.draw.aalines(self._canvas, MARK, False, _rounded([start, end]))
        return [self._changed()] if EVERYWHERE in boxes else boxes

    def _changed(self) -> Box:
        """Return the box of all pixels that differ from the background."""
        differs = self._pixels.view(np.uint32)[..., 0] != self._background.view(np.uint32)[..., 0]
        rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
        if not len(rows):
            return NOWHERE
        return int(columns[0]), int(rows[0]), int(columns[-1]) + 1, int(rows[-1]) + 1

    def _restore(self, boxes: list[Box]) -> None:
        for box in boxes:
            self._copy(self._background, box)

    def _copy(self, source: Frame, box: Box) -> None:
        area = np.s_[box[1] : box[3], box[0] : box[2]]
        self._pixels[area] = source[area]

    def _draw_walls(self) -> None:
        for start, end in WALLS:
            self._draw_edge(WALL, start, end)

    def _draw_polygon(self, corners: list[Pixel]) -> None:
        pygame.draw.polygon(self._canvas, BLOCK, _closed(corners))
        for start, end in zip(corners, corners[1:] + corners[:1], strict=True):
            self._draw_edge(BLOCK_EDGE, start, end)

    def _draw_edge(self, colour: tuple[int, int, int], start: Pixel, end: Pixel) -> None:
        """Draw a round-ended line of radius 2, the way pymunk's debug drawing does."""
        radius = int(WALL_RADIUS)
        pygame.draw.lines(self._canvas, colour, False, [start, end], 2 * radius)
        across, along = abs(end[1] - start[1]), abs(end[0] - start[0])
        length = (across * across + along * along) ** 0.5
        if length == 0:
            return
        # The reference takes absolute values here: the band of a falling line leans the wrong way.
        dx, dy = round(across * (radius / length)), round(along * (radius / length))
        band = [
            (start[0] - dx, start[1] - dy),
            (start[0] + dx, start[1] + dy),
            (end[0] + dx, end[1] + dy),
            (end[0] - dx, end[1] - dy),
        ]
        pygame.draw.polygon(self._canvas, colour, band)
        pygame.draw.circle(self._canvas, colour, start, radius)
        pygame.draw.circle(self._canvas, colour, end, radius)


def _closed(corners: list[Pixel]) -> list[Pixel]:
    return [*corners, corners[0]]


def _rounded(points: Sequence[Sequence[float]]) -> list[Pixel]:
    return [(round(x), round(y)) for x, y in points]


def _block_box(corners: list[tuple[float, float]]) -> Box:
    """Return the pixels a block may touch.

    pygame's thick lines smear over the whole surface when an end lies outside, and the references
    show that, so a block over the border may touch everything.
    """
    values = [value for corner in corners for value in corner]
    if min(values) >= 0 and max(values) <= CANVAS - 1:
        return _box(corners, MARGIN)
    return EVERYWHERE if max(map(abs, values)) < LOST else NOWHERE


def _box(points: Sequence[Sequence[float]], margin: float) -> Box:
    """Return the canvas pixels within ``margin`` of the points; empty if all are off it."""
    xs, ys = [point[0] for point in points], [point[1] for point in points]
    left, right = _clamped(min(xs) - margin), _clamped(max(xs) + margin + 1)
    top, bottom = _clamped(min(ys) - margin), _clamped(max(ys) + margin + 1)
    return left, top, right, bottom


def _clamped(edge: float) -> int:
    return int(min(max(edge, 0), CANVAS))


class Window:
    """A window on the screen that shows canvases at a steady rate; opened when made.

    Args:
        fps: Frames per second ``show`` waits for.
    """

    def __init__(self, fps: int) -> None:
        pygame.display.init()
        self._screen = pygame.display.set_mode((CANVAS, CANVAS))
        self._clock = pygame.time.Clock()
        self._fps = fps

    def show(self, canvas: Frame) -> None:
        """Show uint8 [512,512,3] and keep the window responsive."""
        pygame.surfarray.blit_array(self._screen, canvas.swapaxes(0, 1))
        pygame.event.pump()
        pygame.display.flip()
        self._clock.tick(self._fps)

    def close(self) -> None:
        """Close the window."""
        pygame.display.quit()
