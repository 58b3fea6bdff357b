"""Environments in which a point is brought to a goal point: all but its world and its pictures.

Wall and Maze are a world each (N copies side by side), pictures of it, and a draw of starts and
goals; what an episode is, what is observed, measured and refused, is the same and written here.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from jepa_wm.envs.checks import check_choices, check_flags, check_render_mode, check_reset_options
from jepa_wm.envs.rendering import Window

CHOICES = {"observation": ("pixels", "state", "dict"), "draw_goal": ("goal", "none")}

Floats = NDArray[np.float64]
Frame = NDArray[np.uint8]
Observation = NDArray[Any] | dict[str, NDArray[Any]]


class PointWorlds(Protocol):
    """N worlds side by side; the first two numbers of a state are the point's position."""

    def set_states(self, states: Floats) -> None:
        """Put world n into ``states[n]``, float64 [N,P]."""
        ...

    def act(self, actions: NDArray[np.floating]) -> None:
        """Execute one action [N,2] in each world."""
        ...

    def states(self) -> Floats:
        """Return the states, float64 [N,P]."""
        ...


class PointPictures(Protocol):
    """Draws states [P] of a world."""

    size: int

    def set_goal(self, place: Floats | None) -> None:
        """Mark a goal position [2] in the pictures to come, or none."""
        ...

    def render(self, place: Floats) -> Frame:
        """Draw a position [2] as uint8 [size,size,3] RGB."""
        ...

    def canvas(self, place: Floats) -> Frame:
        """Draw a position [2] for a window, uint8 [512,512,3] RGB."""
        ...


@dataclass(frozen=True, kw_only=True)
class PointOptions:
    """What all environments of a point let one choose.

    Attributes:
        observation: ``pixels`` uint8 [size,size,3]; ``state``; ``dict`` of ``pixels``, ``state``
            and ``proprio``, which is the state in float32.
        draw_goal: ``goal`` marks the goal in the pictures; ``none`` does not, as planning from a
            goal picture wants it.
        terminate: End the episode on success.
        render_mode: ``rgb_array``, ``human`` (a window, at the first ``render``) or None.

    Raises:
        ValueError: an option that is not one of the above.
    """

    observation: str
    draw_goal: str
    terminate: bool
    render_mode: str | None

    def __post_init__(self) -> None:
        check_choices(CHOICES, observation=self.observation, draw_goal=self.draw_goal)
        check_flags(terminate=self.terminate)
        check_render_mode(self.render_mode, PointEnv.metadata["render_modes"])


class PointEnv(gym.Env[Observation, NDArray[np.float32]]):
    """Move until the point is less than ``tolerance`` from its goal.

    ``info`` reports, at reset and at each step: ``is_success``, ``pos_err`` (the distance to the
    goal), ``state``, ``proprio`` (the state, float32), ``goal_state``. The reward is minus the
    distance. ``reset(options={"state": s, "goal_state": g})`` takes vectors of the state's size.

    Args:
        worlds: One world.
        pictures: Of it.
        state_space: Float64 Box [P] of the states.
        longest: The action space is a Box of two, plus or minus this.
        options: What is observed and drawn.
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012
    tolerance = 0.0

    def __init__(
        self,
        worlds: PointWorlds,
        pictures: PointPictures,
        state_space: spaces.Box,
        longest: float,
        options: PointOptions,
    ) -> None:
        self.render_mode = options.render_mode
        self._worlds, self._pictures, self._options = worlds, pictures, options
        self._window: Window | None = None
        self._size = state_space.shape[0]
        self._goal = worlds.states()[0]
        self.action_space = spaces.Box(-longest, longest, (2,), np.float32)
        self.observation_space = _observation_space(options.observation, pictures, state_space)

    @abstractmethod
    def draw_task(self) -> tuple[Floats, Floats]:
        """Draw a start and a goal state [P] from ``np_random``."""

    @abstractmethod
    def check_start(self, state: Floats) -> None:
        """Refuse a state [P] no episode can start in.

        Raises:
            ValueError: saying where it is and where it may be.
        """

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; see the class for ``options``. The same seed gives the same episode."""
        super().reset(seed=seed)
        state, goal = self._choose(check_reset_options(options))
        self._worlds.set_states(state[None])
        self.set_goal(goal)
        now = self._worlds.states()[0]
        if self.render_mode == "human":
            self.render()
        return self._observe(now), self._info(now)

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Execute one action, float [2]."""
        command = np.asarray(action, dtype=np.float64)
        if command.shape != (2,) or not np.isfinite(command).all():
            raise ValueError(f"action must be two finite numbers, got {action!r}")
        self._worlds.act(command[None])
        now = self._worlds.states()[0]
        info = self._info(now)
        if self.render_mode == "human":
            self.render()
        ends = self._options.terminate and info["is_success"]
        return self._observe(now), -info["pos_err"], ends, False, info

    def set_goal(self, goal_state: ArrayLike) -> None:
        """Change the goal state, float [P], from the next step or ``render`` on."""
        self._goal = self._vector(goal_state, "goal_state")
        if self._options.draw_goal == "goal":
            self._pictures.set_goal(self._goal[:2])

    def render(self) -> Frame | None:
        """Return the frame, uint8 [size,size,3] RGB (``rgb_array``), or show it (``human``)."""
        place = self._worlds.states()[0, :2]
        if self.render_mode == "rgb_array":
            return self._pictures.render(place)
        if self.render_mode == "human":
            self._window = self._window or Window(self.metadata["render_fps"])
            self._window.show(self._pictures.canvas(place))
        return None

    def render_state(self, state: ArrayLike) -> Frame:
        """Draw any state [P] without touching the episode, uint8 [size,size,3] RGB."""
        return self._pictures.render(self._vector(state, "state")[:2])

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def _choose(self, given: Mapping[str, Any]) -> tuple[Floats, Floats]:
        """Pick start and goal; both are always drawn, so that giving one leaves the other alone."""
        start, goal = self.draw_task()
        if given.get("state") is not None:
            start = self._vector(given["state"], "state")
            self.check_start(start)
        if given.get("goal_state") is not None:
            return start, self._vector(given["goal_state"], "goal_state")
        while self._error(start, goal) < self.tolerance:
            goal = self.draw_task()[1]
        return start, goal

    def _vector(self, value: ArrayLike, name: str) -> Floats:
        state = np.array(value, dtype=np.float64)
        if state.shape != (self._size,) or not np.isfinite(state).all():
            raise ValueError(f"{name} must be {self._size} finite numbers, got {value!r}")
        return state

    def _error(self, state: Floats, goal: Floats) -> float:
        return float(np.linalg.norm(state[:2] - goal[:2]))

    def _observe(self, state: Floats) -> Observation:
        if self._options.observation == "state":
            return state
        frame = self._pictures.render(state[:2])
        if self._options.observation == "pixels":
            return frame
        return {"pixels": frame, "state": state, "proprio": state.astype(np.float32)}

    def _info(self, state: Floats) -> dict[str, Any]:
        pos_err = self._error(state, self._goal)
        return {
            "is_success": pos_err < self.tolerance,
            "pos_err": pos_err,
            "state": state.copy(),
            "proprio": state.astype(np.float32),
            "goal_state": self._goal.copy(),
        }


def _observation_space(kind: str, pictures: PointPictures, state: spaces.Box) -> spaces.Space[Any]:
    pixels = spaces.Box(0, 255, (pictures.size, pictures.size, 3), np.uint8)
    if kind == "dict":
        proprio = spaces.Box(state.low.astype(np.float32), state.high.astype(np.float32))
        return spaces.Dict({"pixels": pixels, "state": state, "proprio": proprio})
    return pixels if kind == "pixels" else state
