"""Reach as a Gymnasium environment: bring an arm's gripper, or a block on its table, to a goal.

A seven-dimensional arm over a table, in metres and radians, driven by differences of poses at 4
steps a second as the arms of V-JEPA 2-AC are; one picture shows where it is, another where it
should be. Import this module (or make ``jepa_wm.envs.reach:jepa_wm/Reach-v0``) to register it::

    env = gymnasium.make("jepa_wm.envs.reach:jepa_wm/Reach-v0", task="push", observation="state")
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from jepa_wm.envs.checks import check_choices, check_flags, check_render_mode, check_reset_options
from jepa_wm.envs.reach_play import start_states
from jepa_wm.envs.reach_rendering import Frame, ReachRenderer
from jepa_wm.envs.reach_worlds import (
    BLOCK_HIGH,
    BLOCK_LOW,
    HIGH,
    HOME_STATE,
    LOW,
    MAX_STEP,
    MAX_TURN,
    POSE_SIZE,
    STATE_SIZE,
    ReachWorlds,
)
from jepa_wm.envs.rendering import Window

TOLERANCE = 0.05  # metres
STATE_NAMES = ("x", "y", "z", "angle a", "angle b", "angle c", "gripper",
               "block x", "block y", "block angle")  # fmt: skip
STATE_LOW = np.array([*LOW, *[-np.pi] * 3, 0.0, *BLOCK_LOW, -np.pi])
STATE_HIGH = np.array([*HIGH, *[np.pi] * 3, 1.0, *BLOCK_HIGH, np.pi])
CHOICES = {
    "task": ("reach", "push"),
    "observation": ("pixels", "state", "dict"),
    "draw_goal": ("goal", "none"),
}

Observation = NDArray[Any] | dict[str, NDArray[Any]]
Floats = NDArray[np.float64]


class Reach(gym.Env[Observation, NDArray[np.float32]]):
    """Move until the gripper (``reach``) or the block (``push``) is within 5 cm of its goal.

    State, float64 [10], see ``ReachWorlds``: end effector x, y, z (m), extrinsic xyz Euler angles
    (rad), gripper closedness 0-1; block x, y (m) and angle (rad). Action, float32 [7]: the
    difference of poses of one step, metres (at most 0.075 an axis), radians (0.5), gripper (1);
    what is beyond is cut. One step is 0.25 s.

    ``info`` reports, at reset and at each step: ``success_reach``, ``success_push``, ``is_success``
    (the task's), ``pos_err`` (gripper to goal, m), ``block_err`` (block to goal, m), ``state``,
    ``proprio`` (the pose, float32 [7]), ``goal_state``. The reward is minus the task's distance.

    Args:
        task: ``reach`` or ``push``.
        observation: ``pixels`` uint8 [size,size,3]; ``state``; ``dict`` of ``pixels``, ``state``
            and ``proprio``.
        render_size: Side of the frames, px.
        draw_goal: ``goal`` marks the goal position of the gripper or block; ``none`` does not, as
            planning from a goal picture wants it.
        terminate: End the episode on success.
        render_mode: ``rgb_array``, ``human`` (a window, at the first ``render``) or None.

    ``reset(options={"state": s, "goal_state": g})`` takes vectors of 10, the state inside the
    workspace. Without them the start is
    drawn with the arm clear of the block, and the goal so that the task is not solved already: for
    ``reach`` another pose of the arm over the same table, for ``push`` the block elsewhere.

    Raises:
        ValueError: an argument, option, action or state that is not one of the above.
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        *,
        task: str = "reach",
        observation: str = "pixels",
        render_size: int = 256,
        draw_goal: str = "none",
        terminate: bool = True,
        render_mode: str | None = None,
    ) -> None:
        check_choices(CHOICES, task=task, observation=observation, draw_goal=draw_goal)
        check_flags(terminate=terminate)
        check_render_mode(render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        self._task, self._observation, self._draw_goal = task, observation, draw_goal
        self._terminate = terminate
        self._worlds = ReachWorlds(1)
        self._renderer = ReachRenderer(render_size)
        self._window: Window | None = None
        self._goal = np.array(HOME_STATE)
        most = np.array([MAX_STEP] * 3 + [MAX_TURN] * 3 + [1.0], np.float32)
        self.action_space = spaces.Box(-most, most, dtype=np.float32)
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
        now = self._worlds.states()[0]
        if self.render_mode == "human":
            self.render()
        return self._observe(now), self._info(now)

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move by one difference of poses, 0.25 s."""
        command = np.asarray(action, dtype=np.float64)
        if command.shape != (POSE_SIZE,) or not np.isfinite(command).all():
            raise ValueError(f"action must be {POSE_SIZE} finite numbers, got {action!r}")
        self._worlds.act(command[None])
        now = self._worlds.states()[0]
        info = self._info(now)
        if self.render_mode == "human":
            self.render()
        reward = -info["pos_err" if self._task == "reach" else "block_err"]
        return self._observe(now), reward, self._terminate and info["is_success"], False, info

    def set_goal(self, goal_state: ArrayLike) -> None:
        """Change the goal state, float [10], from the next step or ``render`` on."""
        self._goal = _state_vector(goal_state, "goal_state")
        if self._draw_goal == "goal":
            block = (*self._goal[7:9], 0.0)
            self._renderer.set_goal(self._goal[:3] if self._task == "reach" else block)

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
        """Draw any state [10] without touching the episode, uint8 [size,size,3] RGB."""
        return self._renderer.render(_state_vector(state, "state"))

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def _choose(self, state: ArrayLike | None, goal: ArrayLike | None) -> tuple[Floats, Floats]:
        """Pick start and goal; both are always drawn, so that giving one leaves the other alone."""
        drawn = start_states([self.np_random])[0]
        target = start_states([self.np_random])[0]
        start = drawn if state is None else _inside(_state_vector(state, "state"))
        if goal is not None:
            return start, _state_vector(goal, "goal_state")
        while self._judge(start, self._goal_of(start, target))["is_success"]:
            target = start_states([self.np_random])[0]
        return start, self._goal_of(start, target)

    def _goal_of(self, start: Floats, target: Floats) -> Floats:
        """Make a drawn state the goal: of the arm alone, or of the block with the arm beside it."""
        return np.append(target[:7], start[7:]) if self._task == "reach" else target

    def _observe(self, state: Floats) -> Observation:
        if self._observation == "state":
            return state
        if self._observation == "pixels":
            return self._renderer.render(state)
        frame, pose = self._renderer.render(state), state[:POSE_SIZE].astype(np.float32)
        return {"pixels": frame, "state": state, "proprio": pose}

    def _judge(self, state: Floats, goal: Floats) -> dict[str, Any]:
        """Return every metric of a state against a goal, as plain numbers."""
        pos_err = float(np.linalg.norm(state[:3] - goal[:3]))
        block_err = float(np.linalg.norm(state[7:9] - goal[7:9]))
        report = {
            "success_reach": pos_err < TOLERANCE,
            "success_push": block_err < TOLERANCE,
            "pos_err": pos_err,
            "block_err": block_err,
        }
        return report | {"is_success": report[f"success_{self._task}"]}

    def _info(self, state: Floats) -> dict[str, Any]:
        return self._judge(state, self._goal) | {
            "state": state.copy(),
            "proprio": state[:POSE_SIZE].astype(np.float32),
            "goal_state": self._goal.copy(),
        }


def _observation_space(kind: str, size: int) -> spaces.Space[Any]:
    pixels = spaces.Box(0, 255, (size, size, 3), np.uint8)
    state = spaces.Box(STATE_LOW, STATE_HIGH, dtype=np.float64)
    low, high = (end[:POSE_SIZE].astype(np.float32) for end in (STATE_LOW, STATE_HIGH))
    proprio = spaces.Box(low, high)
    if kind == "dict":
        return spaces.Dict({"pixels": pixels, "state": state, "proprio": proprio})
    return pixels if kind == "pixels" else state


def _state_vector(value: ArrayLike, name: str) -> Floats:
    state = np.array(value, dtype=np.float64)
    if state.shape != (STATE_SIZE,) or not np.isfinite(state).all():
        raise ValueError(f"{name} must be {STATE_SIZE} finite numbers, got {value!r}")
    return state


def _inside(state: Floats) -> Floats:
    """Refuse a state outside the workspace: from there every observation would break its space."""
    faults = [
        f"{name}={value:g} must be {low:g} to {high:g}"
        for name, value, low, high in zip(STATE_NAMES, state, STATE_LOW, STATE_HIGH, strict=True)
        if not low <= value <= high
    ]
    if faults:
        raise ValueError("state is outside the workspace: " + ", ".join(faults))
    return state


gym.register(id="jepa_wm/Reach-v0", entry_point="jepa_wm.envs.reach:Reach")
