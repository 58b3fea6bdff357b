"""The world behind Wall: a dot in two rooms joined by a door, N of them moved side by side.

A move that meets a wall ends where it meets it, plus half a pixel: back from the wall, and always
towards larger numbers along it. Which walls are looked at depends on the room a move starts in,
and of each only the plane. All of this is the reference's, kept to the digit; only its division by
zero, which turns straight moves into NaN, is mended unless asked for.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.checks import is_whole

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

SIZE = 65  # px, the side of the picture and of the world
SPEED = 2.0  # px a unit of action
LOW, HIGH = 4.0, 60.0  # px, the planes of the border on both axes
HALF_WALL, HALF_DOOR = 3, 4  # px
BOUNCE = 0.5  # px off the wall, and along it
INSET = 0.3  # px inside a plane a bounce would have crossed
STATE_SIZE = 2


@dataclass(frozen=True)
class Layout:
    """Where the wall and its door are.

    Attributes:
        wall_x: Middle of the wall, px.
        door_y: Middle of the door, px.

    Raises:
        ValueError: a room would have no place to start in, or the border would cut off the door.
    """

    wall_x: int = 32
    door_y: int = 30

    def __post_init__(self) -> None:
        for name, room in (("wall_x", HALF_WALL + 7), ("door_y", HALF_DOOR + 1)):
            value, low, high = getattr(self, name), LOW + room, HIGH - room
            if not (is_whole(value) and low <= value <= high):
                raise ValueError(f"{name}={value!r} must be {low:g} to {high:g} px, a whole number")

    @property
    def across(self) -> int:
        """Coordinate that tells the rooms apart."""
        return 0

    @property
    def middle(self) -> float:
        """Where along it the wall is, px."""
        return float(self.wall_x)

    @property
    def doors(self) -> tuple[tuple[float, float], ...]:
        """Centre and half width of the one door, px."""
        return ((float(self.door_y), float(HALF_DOOR)),)

    @property
    def left(self) -> int:
        """Left face of the wall, px."""
        return self.wall_x - HALF_WALL

    @property
    def right(self) -> int:
        """Right face of the wall, px."""
        return self.wall_x + HALF_WALL

    @property
    def door(self) -> tuple[int, int]:
        """Edges of the door, px: the smaller and the larger y."""
        return self.door_y - HALF_DOOR, self.door_y + HALF_DOOR


class WallWorlds:
    """N copies of the world.

    The state of a world is the dot's position, float64 [2], px: x to the right, y down.

    Args:
        count: Number of worlds N, at least 1.
        wall_x: Middle of the wall, px.
        door_y: Middle of the door, px.
        reference_nan: Divide by zero as the reference does: a straight vertical move passes the
            edges of the door, and gives NaN at the border.

    Raises:
        ValueError: ``count`` is below 1, or the layout is impossible.

    Source: DINO-WM (gaoyuezhou/dino_wm) ``env/wall/envs/utils.py`` and ``wall.py``. Kept: the order
    of the checks, touching counts as crossing, the constant bounce, no wall behind the door.
    """

    def __init__(
        self, count: int, *, wall_x: int = 32, door_y: int = 30, reference_nan: bool = False
    ) -> None:
        if count < 1:
            raise ValueError(f"count={count} must be at least 1")
        self.count = count
        self.layout = Layout(wall_x, door_y)
        self._mends = not reference_nan
        self._states = np.tile([(LOW + self.layout.left) / 2, float(door_y)], (count, 1))

    def set_states(self, states: Floats) -> None:
        """Put every world into its state [N,2]; ``states()`` gives back exactly that.

        Raises:
            ValueError: the states are not N rows of 2 finite numbers.
        """
        states = np.array(states, dtype=np.float64)
        if states.shape != (self.count, STATE_SIZE) or not np.isfinite(states).all():
            raise ValueError(
                f"states must be finite [{self.count}, {STATE_SIZE}], got {list(states.shape)}"
            )
        self._states = states

    def states(self) -> Floats:
        """Return the states, float64 [N,2]."""
        return self._states.copy()

    def act(self, actions: NDArray[np.floating]) -> None:
        """Move each dot by ``SPEED`` times its action [N,2]; nothing is clipped."""
        actions = np.asarray(actions, np.float64).reshape(self.count, STATE_SIZE)
        start = self._states
        end = start + SPEED * actions
        with np.errstate(divide="ignore", invalid="ignore"):
            hits, places = self._meet_walls(start, end)
            caught, edges = self._meet_door(start, end)  # looked at first, and final
        end = np.where(hits[:, None], places, end)
        self._states = np.where(caught[:, None], edges, end)

    def _meet_door(self, start: Floats, end: Floats) -> tuple[Bools, Floats]:
        """Say which moves leave the door through its edges, and where they end instead."""
        caught, places = np.zeros(self.count, bool), np.zeros_like(end)
        for edge, way in zip(self.layout.door, (-1, 1), strict=True):
            crosses = (way * (end[:, 1] - edge) > 0) & (way * (start[:, 1] - edge) < 0)
            x = self._crossing(start, end, 1, edge)
            caught_here = crosses & (self.layout.left <= x) & (x <= self.layout.right)
            place = np.stack([x + BOUNCE, np.full_like(x, edge - way * BOUNCE)], 1)
            places = np.where(caught_here[:, None], place, places)
            caught |= caught_here
        return caught, places

    def _meet_walls(self, start: Floats, end: Floats) -> tuple[Bools, Floats]:
        """Say which moves meet a wall of their room, and where they end instead."""
        in_left = start[:, 0] < self.layout.wall_x
        low_x = np.where(in_left, LOW, self.layout.right)
        high_x = np.where(in_left, self.layout.left, HIGH)
        is_vertical, vertical = _first(
            self._vertical(start, end, low_x, ~in_left), self._vertical(start, end, high_x, in_left)
        )
        is_horizontal, horizontal = _first(
            self._horizontal(start, end, LOW), self._horizontal(start, end, HIGH)
        )

        low = np.stack([low_x, np.full_like(low_x, LOW)], 1)
        high = np.stack([high_x, np.full_like(high_x, HIGH)], 1)
        nearer = _distance(start, vertical) < _distance(start, horizontal)
        takes_vertical = is_vertical & (nearer | ~is_horizontal)
        place = np.where(takes_vertical[:, None], vertical, horizontal)
        back = BOUNCE * _sign(start - place)
        axis = np.where(takes_vertical, 0, 1)[:, None] == np.arange(2)
        place = np.clip(place + np.where(axis, back, BOUNCE), low, high)
        place = np.where(place <= low, low + INSET, place)
        place = np.where(place >= high, high - INSET, place)
        return is_vertical | is_horizontal, place

    def _vertical(
        self, start: Floats, end: Floats, at: Floats, has_door: Bools
    ) -> tuple[Bools, Floats]:
        """Meet planes x = ``at`` [N], some of which have the door in them."""
        y = self._crossing(start, end, 0, at)
        low, high = self.layout.door
        is_wall = ~has_door | (y < low) | (y > high)
        return _reaches(start[:, 0], end[:, 0], at) & is_wall, np.stack([at, y], 1)

    def _horizontal(self, start: Floats, end: Floats, at: float) -> tuple[Bools, Floats]:
        """Meet the plane y = ``at``."""
        x = self._crossing(start, end, 1, at)
        return _reaches(start[:, 1], end[:, 1], at), np.stack([x, np.full_like(x, at)], 1)

    def _crossing(self, start: Floats, end: Floats, axis: int, at: Floats | float) -> Floats:
        """Return the other coordinate [N] where the lines of moves meet the plane ``axis = at``."""
        delta = end - start
        slope = delta[:, 1] / delta[:, 0]
        offset = start[:, 1] - slope * start[:, 0]
        found = slope * at + offset if axis == 0 else (at - offset) / slope
        if self._mends:  # straight across, or along the plane: the start's own coordinate
            found = np.where(np.isfinite(found), found, start[:, 1 - axis])
        return np.asarray(found)


def _sign(values: Floats) -> Floats:
    """Signs, 0 for NaN as torch has it."""
    return (values > 0).astype(np.float64) - (values < 0)


def _reaches(start: Floats, end: Floats, at: Floats | float) -> Bools:
    """Say whether moves cross or touch a plane."""
    return np.asarray(_sign(start - at) * _sign(end - at) <= 0)


def _first(one: tuple[Bools, Floats], other: tuple[Bools, Floats]) -> tuple[Bools, Floats]:
    """Take the hits of one plane, and where it has none those of the other."""
    return one[0] | other[0], np.where(one[0][:, None], one[1], other[1])


def _distance(start: Floats, place: Floats) -> Floats:
    return np.asarray(np.linalg.norm(start - place, axis=1))
