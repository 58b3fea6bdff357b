"""The worlds behind TwoRoom: a dot in two rooms with a wall and doors between, N side by side.

Everything is one step of float32 arithmetic, with the reference's corners: only where a step ends
is tested against the wall, never what lies between; a dot that leaves the opening of a door inside
the wall is set back to the room it started the step in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jepa_wm.envs.checks import is_number, is_whole

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Bools = NDArray[np.bool_]

SIZE = 224  # px, side of the picture the geometry is given in
BORDER = 14  # px from the picture's edge to where the rooms begin
MIDDLE = 112  # px, centre of the wall
RADIUS = 7  # px, of the dot; also its standard deviation as drawn
LOW, HIGH = float(BORDER + RADIUS), float(SIZE - BORDER - RADIUS)  # where the dot can be
DOOR_MARGIN = 1.75  # px that an opening is wider than it looks
PUSH_BACK = 0.5  # px between the wall and a dot that ran into it
HOME_STATE, HOME_GOAL = (60.0, 112.0), (164.0, 112.0)
SPEEDS, THICKNESSES, HALVES = (1.75, 10.5), (7, 41), (1, 21)  # px; the reference's ranges
WALLS = ("vertical", "horizontal")


def _is_door(door: object) -> bool:
    """Say whether a value is a centre in the picture and a half width of the reference's range."""
    if not isinstance(door, Sequence) or len(door) != 2 or not all(map(is_number, door)):
        return False
    return 0 <= door[0] < SIZE and HALVES[0] <= door[1] <= HALVES[1]


@dataclass(frozen=True, kw_only=True)
class Rooms:
    """What can be varied about the world; the defaults are the published ones.

    Attributes:
        speed: Way of an action of 1 in one step, px, 1.75 to 10.5.
        wall: ``vertical`` or ``horizontal``.
        thickness: Of the wall, px, 7 to 41.
        doors: Centre along the wall (0 to 223) and half width (1 to 21) of 1 to 3 doors, px.

    What cannot be varied stands beside it, all px: ``low`` and ``high``, between which the dot can
    be; ``middle``, the centre of the wall; ``door_margin``, by which an opening is wider than it
    looks; ``push_back``, between the wall and a dot that ran into it.

    Raises:
        ValueError: a value is out of its range; all faults at once.
    """

    speed: float = 5.0
    wall: str = "vertical"
    thickness: int = 10
    doors: Sequence[Sequence[float]] = ((49, 14),)

    low: ClassVar[float] = LOW
    high: ClassVar[float] = HIGH
    middle: ClassVar[float] = MIDDLE
    door_margin: ClassVar[float] = DOOR_MARGIN
    push_back: ClassVar[float] = PUSH_BACK

    def __post_init__(self) -> None:
        faults = [
            f"{name}={value!r} must be {low:g} to {high:g}{kind}"
            for name, value, (low, high), is_kind, kind in (
                ("speed", self.speed, SPEEDS, is_number, ""),
                ("thickness", self.thickness, THICKNESSES, is_whole, ", a whole number"),
            )
            if not (is_kind(value) and low <= value <= high)
        ]
        if self.wall not in WALLS:
            faults.append(f"wall={self.wall!r} is unknown; use {' or '.join(WALLS)}")
        doors = self.doors if isinstance(self.doors, Sequence) else ()
        if not 1 <= len(doors) <= 3 or isinstance(doors, str):
            faults.append(f"doors={self.doors!r} must be 1 to 3")
            doors = ()
        for door in doors:
            if not _is_door(door):
                faults.append(
                    f"door {door!r} must be a centre, 0 to {SIZE - 1}, and a half width, "
                    f"{HALVES[0]} to {HALVES[1]}"
                )
        if faults:
            raise ValueError("rooms: " + "; ".join(faults))

    @classmethod
    def of(cls, values: "Mapping[str, Any] | Rooms | None") -> "Rooms":
        """Take rooms as they are, from plain values, or the published ones for None.

        Raises:
            ValueError: a value is unknown or out of its range.
        """
        if isinstance(values, Rooms):
            return values
        unknown = sorted(set(values or {}) - set(cls.__dataclass_fields__))
        if unknown:
            raise ValueError(f"rooms has no {unknown}; use {', '.join(cls.__dataclass_fields__)}")
        return cls(**(values or {}))

    @property
    def across(self) -> int:
        """Coordinate that tells the rooms apart: 0 (x) or 1 (y)."""
        return WALLS.index(self.wall)

    @property
    def reach(self) -> int:
        """Distance from the middle within which the dot touches the wall, px."""
        return self.thickness // 2 + RADIUS

    def is_open(self, along: NDArray[Any]) -> Bools:
        """Say of coordinates along the wall whether they lie in the opening of a door."""
        centres, halves = np.array(self.doors, np.float32).T
        reaches = halves + np.float32(DOOR_MARGIN)
        at = np.asarray(along, np.float32)[..., None]
        return ((centres - reaches <= at) & (at <= centres + reaches)).any(-1)

    def in_wall(self, places: NDArray[Any]) -> Bools:
        """Say of places [..,2] whether a dot there touches the wall or stands in a door."""
        return np.abs(places[..., self.across] - MIDDLE) <= self.reach

    def step(self, places: ArrayLike, actions: ArrayLike) -> Singles:
        """Move places [N,2] by actions [N,2], cut to [-1, 1], into float32 [N,2].

        Source: stable-worldmodel ``envs/two_room/env.py`` (step, _apply_collisions). Kept: only the
        end of a step is tested; which room it is tested for is that of the step's start.
        """
        before = np.asarray(places, np.float32)
        cut = np.clip(np.asarray(actions, np.float32), -1, 1)
        after = np.clip(before + cut * np.float32(self.speed), np.float32(LOW), np.float32(HIGH))
        across = after[:, self.across]
        shut = ~self.is_open(after[:, 1 - self.across])
        is_first = before[:, self.across] < MIDDLE
        low, high = np.float32(MIDDLE - self.reach), np.float32(MIDDLE + self.reach)
        across = np.where(is_first & shut & (across > low), low - np.float32(PUSH_BACK), across)
        after[:, self.across] = np.where(
            ~is_first & shut & (across < high), high + np.float32(PUSH_BACK), across
        )
        return after


class TwoRoomWorlds:
    """N copies of the world. The state of a world is the dot's x, y in px, float64 [2].

    States are float32 numbers after a step, and exactly what was asked for before it.

    Args:
        count: Number of worlds N, at least 1.
        rooms: ``Rooms``, their plain values, or None for the published ones.

    Raises:
        ValueError: ``count`` is below 1, or ``rooms`` are none.
    """

    def __init__(self, count: int, rooms: Mapping[str, Any] | Rooms | None = None) -> None:
        if count < 1:
            raise ValueError(f"count={count} must be at least 1")
        self.count, self.rooms = count, Rooms.of(rooms)
        self._states = np.tile(np.array(HOME_STATE), (count, 1))

    def set_states(self, states: Floats) -> None:
        """Put every world into its state [N,2]; ``states()`` gives back exactly that.

        Raises:
            ValueError: the states are not N rows of 2 finite numbers.
        """
        states = np.array(states, dtype=np.float64)
        if states.shape != (self.count, 2) or not np.isfinite(states).all():
            raise ValueError(f"states must be finite [{self.count}, 2], got {list(states.shape)}")
        self._states = states

    def states(self) -> Floats:
        """Return the states, float64 [N,2]."""
        return self._states.copy()

    def act(self, actions: NDArray[np.floating]) -> None:
        """Execute one action in each world, [N,2] in units of ``rooms.speed``, cut to [-1, 1]."""
        actions = np.asarray(actions).reshape(self.count, 2)
        self._states = self.rooms.step(self._states, actions).astype(np.float64)
