"""PushT as a Gymnasium environment: push a T-shaped block to a goal with a round agent.

The default is the environment of the public LeWM checkpoint: relative actions, 224 px frames, the
green T drawn at a fixed place, success when agent and block are both near the goal state. Import
this module (or make ``jepa_wm.envs.pusht:jepa_wm/PushT-v0``) to register it::

    env = gymnasium.make("jepa_wm.envs.pusht:jepa_wm/PushT-v0", observation="state")
"""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from jepa_wm.envs import metrics
from jepa_wm.envs.checks import check_choices, check_flags, check_render_mode, check_reset_options
from jepa_wm.envs.physics import HOME_STATE, PushTWorlds
from jepa_wm.envs.rendering import CANVAS, Frame, PushTRenderer, Window
from jepa_wm.envs.starts import RESET_MODES, begin, check_fits, draw_legacy_state, draw_state

ACTION_SCALE = 100.0  # px per unit of a relative action
GREEN_POSE = (256.0, 256.0, np.pi / 4)  # where the references draw the green T
FAR = 1e6  # px and px/s: bounds of the observation space; nothing clips the agent's position
CHOICES = {
    "action": ("relative", "absolute"),
    "observation": ("pixels", "state", "dict"),
    "draw_goal": ("fixed", "goal", "none"),
    "success": ("pose", "block", "coverage"),
    "reset_mode": RESET_MODES,
}

Observation = NDArray[Any] | dict[str, NDArray[Any]]
Floats = NDArray[np.float64]


class PushT(gym.Env[Observation, NDArray[np.float32]]):
    """Push the block until the state is near the goal state.

    State, float64 [7]: agent x, y; block x, y (px, 0-512, y down); block angle (rad, [0, 2 pi));
    agent velocity x, y (px/s). One step is 0.1 s.

    What counts is ``goal_state`` (``reset(options=...)``, ``set_goal`` or drawn at reset), not the
    green T: with ``draw_goal="fixed"`` that is decoration at (256, 256, pi/4), as in the published
    training data; with ``"goal"`` it is drawn at the goal state's block pose. ``info`` reports, at
    reset and at each step: ``success_pose`` (agent and block within 20 px jointly, angle within
    pi/9), ``success_block`` (block within 20 px, angle within pi/9), ``success_coverage``
    (``coverage`` > 0.95), ``is_success`` (the criterion chosen), ``pos_err`` (agent and block, px),
    ``block_err`` (px), ``angle_err`` (rad, modulo the block's symmetry), ``n_contacts`` (contact
    points per substep, rounded up), ``state``, ``proprio``, ``goal_state``.

    Args:
        action: ``relative``: Box(-1, 1), the target is agent + 100 px x action; ``absolute``:
            Box(0, 512), the action is the target in px. Neither is clipped: an action beyond the
            box is executed as it is, as in the references (their data has 0.1 % of such actions).
        observation: ``pixels`` uint8 [size,size,3]; ``state`` float64 [7]; ``dict`` of ``pixels``,
            ``state`` and ``proprio`` (agent x, y, velocity x, y; float64 [4]).
        render_size: Side of the frames, px.
        draw_goal: ``fixed``, ``goal`` or ``none``.
        success: Criterion of ``is_success`` and of termination: ``pose``, ``block`` or
            ``coverage``. It also chooses the reward: -|goal - state| over all 7 entries (pose),
            -``block_err`` (block), clip(coverage / 0.95, 0, 1) (coverage).
        terminate: End the episode on success.
        block_shape: ``T``, ``L``, ``Z``, ``I``, ``square``, ``small_tee`` or ``+``.
        block_scale: Thickness of the block's bars, px; 30 is the published size.
        reset_mode: ``exact`` starts in exactly the state asked for, and draws starts and goals
            without overlap and not solved already; ``swm``, ``gym_pusht``, ``dino_wm`` start the
            way those references do (see ``jepa_wm.envs.starts``).
        draw_contacts: Mark contact points with short red lines, as the references' debug drawing
            does. Off by default: with the marks a frame is no function of the state.
        render_mode: ``rgb_array``, ``human`` (a window, at the first ``render``) or None.

    ``reset(options={"state": s, "goal_state": g})`` takes vectors of 7, or of 5 with the agent at
    rest. With ``success="coverage"`` the goal defaults to the pose of the green T. States that
    overlap are accepted as they are; the physics pushes the block out within a few steps. There is
    no time limit: ``gymnasium.make(..., max_episode_steps=n)`` adds one.

    Raises:
        ValueError: an argument, option, action or state that is not one of the above.

    Source: stable-worldmodel ``envs/pusht/env.py``, gym-pusht ``envs/pusht.py``.
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        *,
        action: str = "relative",
        observation: str = "pixels",
        render_size: int = 224,
        draw_goal: str = "fixed",
        success: str = "pose",
        terminate: bool = True,
        block_shape: str = "T",
        block_scale: float = 30.0,
        reset_mode: str = "exact",
        draw_contacts: bool = False,
        render_mode: str | None = None,
    ) -> None:
        check_choices(
            CHOICES,
            action=action,
            observation=observation,
            draw_goal=draw_goal,
            success=success,
            reset_mode=reset_mode,
        )
        check_flags(terminate=terminate, draw_contacts=draw_contacts)
        check_render_mode(render_mode, self.metadata["render_modes"])
        self.render_mode = render_mode
        self._is_relative = action == "relative"
        self._observation, self._draw_goal, self._success = observation, draw_goal, success
        self._terminate, self._reset_mode, self._marks = terminate, reset_mode, draw_contacts
        self._worlds = PushTWorlds(
            1, block_shape=block_shape, block_scale=block_scale, count_contacts=True
        )
        self._shape = self._worlds.shape
        if reset_mode == "exact":
            check_fits(self._shape, block_scale)
        green = GREEN_POSE if draw_goal == "fixed" else None
        self._renderer = PushTRenderer(render_size, self._shape, green)
        self._window: Window | None = None
        self._goal = np.array([*HOME_STATE[:2], *GREEN_POSE, 0.0, 0.0])
        low, high = (-1.0, 1.0) if self._is_relative else (0.0, float(CANVAS))
        self.action_space = spaces.Box(low, high, (2,), np.float32)
        self.observation_space = _observation_space(observation, render_size)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; see the class for ``options``. The same seed gives the same episode."""
        super().reset(seed=seed)
        given = check_reset_options(options)
        state, goal = self._choose(seed, given.get("state"), given.get("goal_state"))
        begin(self._worlds, self._reset_mode, state, goal)
        self.set_goal(goal)
        now = self._state()
        if self.render_mode == "human":
            self.render()
        return self._observe(now), self._info(now)

    def step(self, action: ArrayLike) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Move the agent towards its target for 0.1 s."""
        target = np.asarray(action, dtype=np.float64)
        if target.shape != (2,) or not np.isfinite(target).all():
            raise ValueError(f"action must be two finite numbers, got {action!r}")
        if self._is_relative:
            target = self._worlds.states()[0, :2] + ACTION_SCALE * target
        self._worlds.step(target[None])
        now = self._state()
        info = self._info(now)
        if self.render_mode == "human":
            self.render()
        terminated = self._terminate and info["is_success"]
        return self._observe(now), self._reward(now, info), terminated, False, info

    def set_goal(self, goal_state: ArrayLike) -> None:
        """Change the goal state, float [7] or [5], from the next step or ``render`` on."""
        self._goal = _state_vector(goal_state, "goal_state")
        if self._draw_goal == "goal":
            self._renderer.set_goal(tuple(self._goal[2:5]))

    def render(self) -> Frame | None:
        """Return the frame, uint8 [size,size,3] RGB (``rgb_array``), or show it (``human``)."""
        if self.render_mode == "rgb_array":
            return self._draw()
        if self.render_mode == "human":
            self._window = self._window or Window(self.metadata["render_fps"])
            self._window.show(self._renderer.canvas(self._state(), self._contact_marks()))
        return None

    def render_state(self, state: ArrayLike) -> Frame:
        """Draw any state [7] or [5] without touching the episode, uint8 [size,size,3] RGB."""
        return self._renderer.render(_wrapped(_state_vector(state, "state")))

    def close(self) -> None:
        """Close the window, if there is one."""
        if self._window is not None:
            self._window.close()
            self._window = None

    def _choose(
        self, seed: int | None, state: ArrayLike | None, goal: ArrayLike | None
    ) -> tuple[Floats, Floats]:
        """Pick start and goal; both are always drawn, so that giving one leaves the other alone."""
        mode, rng = self._reset_mode, self.np_random
        if mode in ("gym_pusht", "dino_wm"):
            drawn = draw_legacy_state(int(rng.integers(2**31)) if seed is None else seed)
        else:
            drawn = draw_state(mode, rng, self._shape)
        target = draw_state(mode, rng, self._shape)
        if self._success == "coverage":
            target = np.array([*HOME_STATE[:2], *GREEN_POSE, 0.0, 0.0])
        start = drawn if state is None else _state_vector(state, "state")
        end = target if goal is None else _state_vector(goal, "goal_state")
        while mode == "exact" and self._judge(start, end)["is_success"]:
            if state is None:
                start = draw_state(mode, rng, self._shape)
            elif goal is None and self._success != "coverage":
                end = draw_state(mode, rng, self._shape)
            else:
                break
        return start, end

    def _state(self) -> Floats:
        return _wrapped(self._worlds.states()[0])

    def _contact_marks(self) -> list[Any]:
        return self._worlds.contact_marks() if self._marks else []

    def _draw(self) -> Frame:
        return self._renderer.render(self._state(), self._contact_marks())

    def _observe(self, state: Floats) -> Observation:
        if self._observation == "state":
            return state
        if self._observation == "pixels":
            return self._draw()
        return {"pixels": self._draw(), "state": state, "proprio": _proprio(state)}

    def _judge(self, state: Floats, goal: Floats) -> dict[str, Any]:
        """Return every metric of a state against a goal, as plain numbers."""
        pos_err = float(metrics.position_error(state, goal))
        block_err = float(metrics.block_error(state, goal))
        angle_err = float(metrics.angle_error(state, goal, self._shape.symmetry_rad))
        is_turned = angle_err < metrics.ANGLE_TOLERANCE
        covered = metrics.coverage(self._shape, state[2:5], goal[2:5])
        report = {
            "success_pose": is_turned and pos_err < metrics.POSITION_TOLERANCE,
            "success_block": is_turned and block_err < metrics.POSITION_TOLERANCE,
            "success_coverage": covered > metrics.COVERAGE_THRESHOLD,
            "coverage": covered,
            "pos_err": pos_err,
            "block_err": block_err,
            "angle_err": angle_err,
        }
        return report | {"is_success": report[f"success_{self._success}"]}

    def _info(self, state: Floats) -> dict[str, Any]:
        return self._judge(state, self._goal) | {
            "n_contacts": int(self._worlds.contacts()[0]),
            "state": state.copy(),
            "proprio": _proprio(state),
            "goal_state": self._goal.copy(),
        }

    def _reward(self, state: Floats, info: dict[str, Any]) -> float:
        if self._success == "coverage":
            return min(info["coverage"] / metrics.COVERAGE_THRESHOLD, 1.0)
        if self._success == "block":
            return -info["block_err"]
        return -math.dist(self._goal.tolist(), state.tolist())


def _observation_space(kind: str, size: int) -> spaces.Space[Any]:
    pixels = spaces.Box(0, 255, (size, size, 3), np.uint8)
    far = np.full(7, FAR)
    low, high = -far, far.copy()
    low[4], high[4] = 0.0, 2 * np.pi
    state = spaces.Box(low, high, dtype=np.float64)
    proprio = spaces.Box(-FAR, FAR, (4,), np.float64)
    if kind == "dict":
        return spaces.Dict({"pixels": pixels, "state": state, "proprio": proprio})
    return pixels if kind == "pixels" else state


def _state_vector(value: ArrayLike, name: str) -> Floats:
    state = np.array(value, dtype=np.float64)
    if state.shape not in ((5,), (7,)) or not np.isfinite(state).all():
        raise ValueError(f"{name} must be 7 (or 5) finite numbers, got {value!r}")
    return state if len(state) == 7 else np.append(state, (0.0, 0.0))


def _wrapped(state: Floats) -> Floats:
    state = state.copy()
    state[4] %= 2 * np.pi
    return state


def _proprio(state: Floats) -> Floats:
    return state[[0, 1, 5, 6]]


gym.register(id="jepa_wm/PushT-v0", entry_point="jepa_wm.envs.pusht:PushT")
