"""Wall pictures: black walls and a red Gaussian dot on white, 65 px, resized as the reference does.

The drawing is DINO-WM's to the grey level; its resize leaves fractions, which are rounded here.
"""

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.checks import check_size
from jepa_wm.envs.wall_worlds import HIGH, LOW, SIZE, Floats, Layout

CANVAS = 512  # px, of a window
DOT_STD = 1.7  # px

Frame = NDArray[np.uint8]


def resize_weights(source: int, target: int) -> Floats:
    """Return the matrix [target,source] that resizes an axis linearly, antialiased when it shrinks.

    Source: torch's ``interpolate(mode="bilinear", antialias=True)``, torchvision's default.
    """
    scale = source / target
    reach = max(scale, 1.0)  # of the triangle around each output's middle
    middles = (np.arange(target) + 0.5) * scale - 0.5
    weights = np.maximum(1 - np.abs(np.arange(source) - middles[:, None]) / reach, 0)
    return np.asarray(weights / weights.sum(1, keepdims=True))


class WallRenderer:
    """Draws positions in the two rooms as RGB frames.

    Args:
        size: Side of the frames, px; 224 is the published size.
        layout: Where the wall and the door are.

    Raises:
        ValueError: ``size`` is below 1.

    Source: DINO-WM ``env/wall/envs/wall.py`` (channels_to_img). Kept: walls hide the dot, which is
    scaled so that its brightest pixel is full red.
    """

    def __init__(self, size: int, layout: Layout) -> None:
        check_size(size)
        self.size = size
        self._weights, self._canvas_weights = (resize_weights(SIZE, to) for to in (size, CANVAS))
        self._white = ~_walls(layout)
        self._goal = np.zeros((SIZE, SIZE), np.uint8)

    def set_goal(self, place: Floats | None) -> None:
        """Mark a goal position [2] with a green dot in the pictures to come, or none."""
        self._goal = np.zeros((SIZE, SIZE), np.uint8) if place is None else _dot(place)

    def draw(self, place: Floats) -> Frame:
        """Draw a position [2] as it is before the resize, uint8 [65,65,3] RGB."""
        dot, goal = _dot(place), self._goal
        both = np.minimum(dot.astype(int) + goal, 255).astype(np.uint8)
        shown = 255 - np.stack([goal, dot, both], -1)
        return np.asarray(np.where(self._white[..., None], shown, 0), np.uint8)

    def render(self, place: Floats) -> Frame:
        """Draw a position [2] as uint8 [size,size,3] RGB."""
        return _resize(self.draw(place), self._weights)

    def canvas(self, place: Floats) -> Frame:
        """Draw a position [2] for a window, uint8 [512,512,3] RGB."""
        return _resize(self.draw(place), self._canvas_weights)


def _walls(layout: Layout) -> NDArray[np.bool_]:
    """Return where the walls are black, [65,65]: rows are y."""
    x = y = np.arange(SIZE)
    is_wall = (layout.left <= x) & (x <= layout.right)
    low, high = layout.door
    is_door = (low <= y) & (y <= high)
    border = np.isin(x, (LOW, HIGH))
    return np.asarray((is_wall[None] & ~is_door[:, None]) | border[None] | border[:, None])


def _dot(place: Floats) -> Frame:
    """Return how red each pixel is, uint8 [65,65]; a dot that is nowhere is not drawn."""
    x = y = np.arange(SIZE, dtype=np.float64)
    squares = (x[None] - place[0]) ** 2 + (y[:, None] - place[1]) ** 2
    if not np.isfinite(squares).all():
        return np.zeros((SIZE, SIZE), np.uint8)
    bell = np.exp((squares.min() - squares) / (2 * DOT_STD**2))
    return np.asarray(255 * bell, np.uint8)


def _resize(small: Frame, weights: Floats) -> Frame:
    """Resize uint8 [65,65,3] along both axes."""
    planes = weights @ small.transpose(2, 0, 1).astype(np.float64) @ weights.T
    return np.ascontiguousarray(np.rint(planes).astype(np.uint8).transpose(1, 2, 0))
