"""Pictures of TwoRoom: black walls on white, the dot a red Gaussian blended over them.

Drawn at 224 px in float32 and truncated, as the published frames are; other sizes are scaled down
or up from that. Everything but the dot is drawn once.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.checks import check_size
from jepa_wm.envs.rendering import CANVAS, LinearResize
from jepa_wm.envs.tworoom_worlds import BORDER, MIDDLE, RADIUS, SIZE, Rooms

Frame = NDArray[np.uint8]

AGENT, TARGET = (255, 0, 0), (0, 255, 0)
LINE = 4  # px, of the border
# px from the dot to where it fades: beyond, 1 - exp(-d^2 / 98) is 1 in float32
FADE = 43


class TwoRoomRenderer:
    """Draws states as square pictures.

    Args:
        size: Side of the pictures, px; 224 is the published size.
        rooms: What is drawn.

    Raises:
        ValueError: ``size`` is below 1.

    Source: stable-worldmodel ``envs/two_room/env.py`` (_render_frame). Kept: the dot's peak is one
    on the pixel nearest to it; a blended colour is truncated, so white turns 254 far from the dot.
    """

    def __init__(self, size: int, rooms: Rooms) -> None:
        check_size(size)
        self.size = size
        self._resize = LinearResize(SIZE, size)
        self._enlarge = LinearResize(SIZE, CANVAS)
        self._scene = _draw_scene(rooms)
        self._background = self._scene

    def set_goal(self, place: NDArray[Any] | None) -> None:
        """Show a goal (x, y) as a green dot under the red one in the pictures to come, or none."""
        self._background = self._scene
        if place is not None:
            self._background = _blended(self._scene, place, TARGET)

    def render(self, state: NDArray[Any]) -> Frame:
        """Draw a state [2] as uint8 [size,size,3] RGB, its own memory."""
        drawn = _blended(self._background, state, AGENT)
        return drawn if self.size == SIZE else _scaled(drawn, self._resize, self.size)

    def canvas(self, state: NDArray[Any]) -> Frame:
        """Draw a state [2] as uint8 [512,512,3] RGB, for a window."""
        return _scaled(_blended(self._background, state, AGENT), self._enlarge, CANVAS)


def _draw_scene(rooms: Rooms) -> Frame:
    """Draw the walls: black [224,224,3] on white."""
    is_wall = np.zeros((SIZE, SIZE), bool)  # [across, along]
    half = rooms.thickness // 2
    is_wall[MIDDLE - half : MIDDLE + half + 1] = True
    for centre, reach in rooms.doors:
        pixels = np.arange(SIZE)
        is_wall[:, (pixels >= centre - reach) & (pixels <= centre + reach)] = False
    if rooms.across == 0:
        is_wall = is_wall.T  # to [y, x]
    for band in (slice(BORDER - LINE, BORDER), slice(SIZE - BORDER, SIZE - BORDER + LINE)):
        is_wall[band] = is_wall[:, band] = True
    return np.where(is_wall[..., None], 0, 255).repeat(3, -1).astype(np.uint8)


def _blended(image: Frame, place: NDArray[Any], colour: tuple[int, int, int]) -> Frame:
    """Return a copy of an image with a Gaussian dot of a colour at (x, y)."""
    image, x, y = image.copy(), np.float32(place[0]), np.float32(place[1])
    left, top = (max(int(at) - FADE, 0) for at in (x, y))
    columns = np.arange(left, min(int(x) + FADE, SIZE), dtype=np.float32)
    rows = np.arange(top, min(int(y) + FADE, SIZE), dtype=np.float32)
    dx, dy = columns[None] - x, rows[:, None] - y
    squares = dx * dx + dy * dy
    # float64 inside: the nearest float32, as torch's exponential mostly is
    dot = np.exp((-squares / np.float32(2 * RADIUS * RADIUS)).astype(np.float64)).astype(np.float32)
    dot = (dot / dot.max())[..., None]
    patch = image[top : top + len(rows), left : left + len(columns)]
    patch[:] = patch.astype(np.float32) * (1 - dot) + np.array(colour, np.float32) * dot
    return image


def _scaled(drawn: Frame, resize: LinearResize, size: int) -> Frame:
    packed = np.zeros((SIZE, SIZE, 4), np.uint8)
    packed[..., :3] = drawn
    return np.ascontiguousarray(resize(packed, (0, size), (0, size)))
