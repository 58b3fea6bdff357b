"""TwoRoom as a Gymnasium environment: bring a dot to a goal, through a door where need be.

The default is the environment of the published LeWM and PLDM experiments: one door, 224 px frames,
relative actions, success within 16 px. Import this module (or make
``jepa_wm.envs.tworoom:jepa_wm/TwoRoom-v0``) to register it::

    env = gymnasium.make("jepa_wm.envs.tworoom:jepa_wm/TwoRoom-v0", observation="state")
"""

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from jepa_wm.envs.checks import check_choices, check_flags, check_render_mode, check_reset_options
from jepa_wm.envs.rendering import Window
from jepa_wm.envs.tworoom_rendering import Frame, TwoRoomRenderer
from jepa_wm.envs.tworoom_worlds import (
    HIGH,
    HOME_GOAL,
    LOW,
    MIDDLE,
    SIZE,
    Rooms,
    TwoRoomWorlds,
)

TOLERANCE = 16.0  # px
MOVES = np.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1]], np.float32)  # of a discrete action
DOORS_SEEN = 3  # in the reference's vector
CHOICES = {
    "action": ("continuous", "discrete"),
    "observation": ("pixels", "state", "dict", "vector"),
    "draw_goal": ("goal", "none"),
    "goal_room": ("any", "other"),
}

Observation = NDArray[Any] | dict[str, NDArray[Any]]
Floats = NDArray[np.float64]


class TwoRoom(gym.Env[Observation, Any]):
    """Move until the dot is within 16 px of its goal.

    State, float64 [2]: the dot's x, y (px of a 224 px picture, y down), float32 numbers after a
    step. One step moves it by ``rooms.speed`` px x action and stops it at borders and wall, see
    ``TwoRoomWorlds``.

    ``info`` reports, at reset and at each step: ``success_reach``, ``is_success`` (the same),
    ``pos_err`` (px), ``state``, ``proprio`` (the state, float32), ``goal_state``. The reward is 0,
    as in the reference.

    Args:
        action: ``continuous``: Box(-1, 1) [2], cut to it; ``discrete``: 0 stays, 1 to 4 go right,
            down, left, up at full speed.
        observation: ``pixels`` uint8 [size,size,3]; ``state``; ``dict`` of ``pixels``, ``state``
            and ``proprio``; ``vector`` float32 [10], as the reference observes: dot, goal, up to
            three doors.
        render_size: Side of the frames, px.
        draw_goal: ``goal`` draws the goal as a green dot; ``none`` does not, as published.
        goal_room: Where goals are drawn at reset: in ``any`` room or the ``other`` one.
        terminate: End the episode on success.
        rooms: Plain values of ``Rooms`` (speed, wall, thickness, doors), or None: the published.
        render_mode: ``rgb_array``, ``human`` (a window, at the first ``render``) or None.

    ``reset(options={"state": s, "goal_state": g})`` takes places inside the picture, [2]. Without
    them both are drawn where the dot can be, clear of the wall, and not solved already.

    Raises:
        ValueError: an argument, option, action or state that is not one of the above.

    Source: stable-worldmodel ``envs/two_room/env.py``.
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        *,
        action: str = "continuous",
        observation: str = "pixels",
        render_size: int = SIZE,
        draw_goal: str = "none",
        goal_room: str = "any",
        terminate: bool = True,
        rooms: Mapping[str, Any] | Rooms | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_choices(
            CHOICES,
            action=action,
            observation=observation,
            draw_goal=draw_goal,
            goal_room=goal_room,
        )
        check_flags(terminate=terminate)
        check_render_mode(render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        self._observation, self._draw_goal, self._goal_room = observation, draw_goal, goal_room
        self._terminate, self._is_discrete = terminate, action == "discrete"
        self._rooms = Rooms.of(rooms)
        self._worlds = TwoRoomWorlds(1, self._rooms)
        self._renderer = TwoRoomRenderer(render_size, self._rooms)
        self._window: Window | None = None
        self._goal = np.array(HOME_GOAL)
        self.action_space: spaces.Space[Any] = spaces.Box(-1.0, 1.0, (2,), np.float32)
        if self._is_discrete:
            self.action_space = spaces.Discrete(len(MOVES))
        self.observation_space = _observation_space(observation, render_size)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; see the class for ``options``. The same seed gives the same episode."""
        super().reset(seed=seed)
        given = check_reset_options(options)
        state, goal = self._choose(given.get("state"), given.get("goal_state"))
        self._worlds.set_states(state[None])
        self.set_goal(goal)
        if self.render_mode == "human":
            self.render()
        return self._observe(state), self._info(state)

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move by one action."""
        self._worlds.act(self._move(action)[None])
        now = self._worlds.states()[0]
        info = self._info(now)
        if self.render_mode == "human":
            self.render()
        return self._observe(now), 0.0, self._terminate and info["is_success"], False, info

    def set_goal(self, goal_state: ArrayLike) -> None:
        """Change the goal state, float [2], from the next step or ``render`` on."""
        self._goal = _place(goal_state, "goal_state")
        if self._draw_goal == "goal":
            self._renderer.set_goal(self._goal)

    def render(self) -> Frame | None:
        """Return the frame, uint8 [size,size,3] RGB (``rgb_array``), or show it (``human``)."""
        state = self._worlds.states()[0]
        if self.render_mode == "rgb_array":
            return self._renderer.render(state)
        if self.render_mode == "human":
            self._window = self._window or Window(self.metadata["render_fps"])
            self._window.show(self._renderer.canvas(state))
        return None

    def render_state(self, state: ArrayLike) -> Frame:
        """Draw any state [2] without touching the episode, uint8 [size,size,3] RGB."""
        return self._renderer.render(_place(state, "state"))

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def _move(self, action: ArrayLike) -> NDArray[np.float32]:
        """Return an action of either kind as float32 [2]."""
        if self._is_discrete:
            if np.shape(action) != () or action not in range(len(MOVES)):
                raise ValueError(f"action must be 0 to {len(MOVES) - 1}, got {action!r}")
            return MOVES[int(np.asarray(action))]
        move = np.asarray(action, dtype=np.float32)
        if move.shape != (2,) or not np.isfinite(move).all():
            raise ValueError(f"action must be two finite numbers, got {action!r}")
        return move

    def _choose(self, state: ArrayLike | None, goal: ArrayLike | None) -> tuple[Floats, Floats]:
        """Pick start and goal; both are always drawn, so that giving one leaves the other alone."""
        drawn, target = (draw_place(self.np_random, self._rooms) for _ in range(2))
        start = drawn if state is None else _place(state, "state")
        if goal is not None:
            end = _place(goal, "goal_state")
            while state is None and _is_near(start, end):
                start = draw_place(self.np_random, self._rooms)
            return start, end
        while _is_near(start, target) or not self._is_allowed(start, target):
            target = draw_place(self.np_random, self._rooms)
        return start, target

    def _is_allowed(self, start: Floats, goal: Floats) -> bool:
        sides = [place[self._rooms.across] < MIDDLE for place in (start, goal)]
        return self._goal_room == "any" or sides[0] != sides[1]

    def _observe(self, state: Floats) -> Observation:
        if self._observation == "state":
            return state
        if self._observation == "pixels":
            return self._renderer.render(state)
        if self._observation == "vector":
            return self._vector(state)
        frame, place = self._renderer.render(state), state.astype(np.float32)
        return {"pixels": frame, "state": state, "proprio": place}

    def _vector(self, state: Floats) -> NDArray[np.float32]:
        """Return dot, goal and doors (x, y; zeros where there is none), float32 [10]."""
        doors = np.zeros((DOORS_SEEN, 2))
        for row, (centre, _) in zip(doors, self._rooms.doors, strict=False):
            row[self._rooms.across], row[1 - self._rooms.across] = MIDDLE, centre
        return np.concatenate([state, self._goal, doors.flatten()]).astype(np.float32)

    def _info(self, state: Floats) -> dict[str, Any]:
        """Return every metric of a state against the goal, as plain numbers, and both."""
        pos_err = float(np.linalg.norm(state - self._goal))
        return {
            "success_reach": pos_err < TOLERANCE,
            "is_success": pos_err < TOLERANCE,
            "pos_err": pos_err,
            "state": state.copy(),
            "proprio": state.astype(np.float32),
            "goal_state": self._goal.copy(),
        }


def draw_place(rng: np.random.Generator, rooms: Rooms) -> Floats:
    """Draw a place float64 [2] (of float32 numbers) where the dot can be, clear of the wall."""
    while True:
        place = rng.uniform(LOW, HIGH, 2).astype(np.float32).astype(np.float64)
        if not rooms.in_wall(place):
            return place


def _is_near(start: Floats, goal: Floats) -> bool:
    return bool(np.linalg.norm(start - goal) < TOLERANCE)


def _observation_space(kind: str, size: int) -> spaces.Space[Any]:
    pixels = spaces.Box(0, 255, (size, size, 3), np.uint8)
    state = spaces.Box(0.0, float(SIZE), (2,), np.float64)
    if kind == "dict":
        proprio = spaces.Box(0.0, float(SIZE), (2,), np.float32)
        return spaces.Dict({"pixels": pixels, "state": state, "proprio": proprio})
    vector = spaces.Box(0.0, float(SIZE), (4 + 2 * DOORS_SEEN,), np.float32)
    kinds: dict[str, spaces.Space[Any]] = {"pixels": pixels, "state": state, "vector": vector}
    return kinds[kind]


def _place(value: ArrayLike, name: str) -> Floats:
    place = np.array(value, dtype=np.float64)
    if place.shape != (2,) or not ((place >= 0) & (place <= SIZE)).all():
        raise ValueError(f"{name} must be two numbers, 0 to {SIZE} px, got {value!r}")
    return place


gym.register(id="jepa_wm/TwoRoom-v0", entry_point="jepa_wm.envs.tworoom:TwoRoom")
