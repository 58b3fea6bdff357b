"""Recorded trajectories as a Gymnasium environment: judge a model of an arm without a simulator.

Actions move nothing: each step shows the next recorded frame, and the action is compared with the
recorded one. Import this module (or make ``jepa_wm.envs.recorded:jepa_wm/Recorded-v0``) to register
it::

    env = gymnasium.make("jepa_wm.envs.recorded:jepa_wm/Recorded-v0", file="trajectory.npz")
"""

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from jepa_wm.envs.checks import check_render_mode, check_reset_options
from jepa_wm.envs.reach_worlds import POSE_SIZE, rotation_matrices
from jepa_wm.envs.recordings import Floats, Frames, load_recording

STATE_SIZE = 2 + POSE_SIZE  # episode, step, pose
TOLERANCE = 0.05  # metres between where the actions and the recording end
ERRORS = ("pos_err", "angle_err", "grip_err")
OBSERVATIONS = ("pixels", "state", "dict")


def action_errors(action: Floats, recorded: Floats) -> dict[str, float]:
    """Compare two actions [7]: metres, the angle between the turns in radians, gripper."""
    turns = rotation_matrices(np.stack([action[3:6], recorded[3:6]]))
    between = turns[0] @ turns[1].T
    sine = np.linalg.norm(between - between.T) / np.sqrt(8)
    return {
        "pos_err": float(np.linalg.norm(action[:3] - recorded[:3])),
        "angle_err": float(np.arctan2(sine, (np.trace(between) - 1) / 2)),
        "grip_err": float(abs(action[6] - recorded[6])),
    }


def action_score(end_err: float) -> float:
    """Return 800 (0.1 - e), at least 0, of an end error e in metres: 80 is perfect.

    Source: the DROID action score of jepa-wms (arXiv 2512.24497).
    """
    return max(0.0, 800 * (0.1 - end_err))


class Recorded(gym.Env[Any, NDArray[np.float32]]):
    """Follow a recording from a start frame to a goal frame.

    State, float64 [9]: episode, step, pose [7] there. Action, float32 [7]: a difference of poses,
    metres, radians, gripper; none may exceed 1.

    ``info`` reports of the actions since reset: ``pos_err`` (m), ``angle_err`` (rad) and
    ``grip_err``, means over the steps, and the same with ``step_`` of the last one; ``end_err``
    (m), how far from the recording the sum of the actions ends; ``score``, the action score of it;
    ``success``, true at the goal frame if ``end_err`` is within 5 cm; ``action``, the recorded one;
    ``state``, ``goal_state``, ``proprio``. The reward is minus the last position error.

    Args:
        file: See ``jepa_wm.envs.recordings``; None renders a short example.
        observation: ``pixels`` uint8 [H,W,3]; ``state``; ``dict`` of ``pixels``, ``state`` and
            ``proprio``.
        render_mode: ``rgb_array`` or None.

    ``reset(options={"state": s, "goal_state": g})`` takes states of the recording; without them an
    episode is drawn, from its first frame to its last.

    Raises:
        ValueError: an argument, option, action or state that is not one of the above.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        *,
        file: str | None = None,
        observation: str = "pixels",
        render_mode: str | None = None,
    ) -> None:
        if observation not in OBSERVATIONS:
            raise ValueError(f"observation={observation!r} must be one of {OBSERVATIONS}")
        check_render_mode(render_mode, self.metadata["render_modes"])
        self.render_mode, self._observation = render_mode, observation
        self._recording = load_recording(file)
        self._actions = self._recording.actions()
        most = np.ones(POSE_SIZE, np.float32)  # far beyond a step of a real arm
        self.action_space = spaces.Box(-most, most, dtype=np.float32)
        state = spaces.Box(-1e9, 1e9, (STATE_SIZE,), np.float64)
        pose = spaces.Box(-1e9, 1e9, (POSE_SIZE,), np.float32)
        pixels = spaces.Box(0, 255, self._recording.frames.shape[2:], np.uint8)
        every: dict[str, spaces.Space[Any]] = {"pixels": pixels, "state": state}
        every["proprio"] = pose
        whole = observation == "dict"
        self.observation_space = spaces.Dict(every) if whole else every[observation]
        self._episode = self._step = self._goal = 0
        self._errors: list[dict[str, float]] = []
        self._moved = np.zeros(3)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; see the class for ``options``."""
        super().reset(seed=seed)
        given = check_reset_options(options)
        count, length = self._recording.poses.shape[:2]
        self._episode, self._step = int(self.np_random.integers(count)), 0
        if "state" in given:
            self._episode, self._step = self._place(given["state"])
        self._goal = length - 1
        if "goal_state" in given:
            episode, self._goal = self._place(given["goal_state"])
            if episode != self._episode or self._goal < self._step:
                raise ValueError(
                    f"the goal (episode {episode}, step {self._goal}) must come after the start "
                    f"(episode {self._episode}, step {self._step}) in the same episode"
                )
        self._errors, self._moved = [], np.zeros(3)
        return self._observe(), self._info()

    def step(self, action: ArrayLike) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Compare an action with the recorded one and go to the next recorded frame."""
        given = np.asarray(action, dtype=np.float64)
        if given.shape != (POSE_SIZE,) or not np.isfinite(given).all():
            raise ValueError(f"action must be {POSE_SIZE} finite numbers, got {action!r}")
        recorded = self._recorded_action()
        self._errors.append(action_errors(given, recorded))
        self._moved = self._moved + given[:3] - recorded[:3]
        self._step = min(self._step + 1, self._recording.poses.shape[1] - 1)
        info = self._info()
        ended = self._step >= self._goal
        return self._observe(), -info["step_pos_err"], False, ended, info

    def render(self) -> Frames | None:
        """Return the recorded frame, uint8 [H,W,3] RGB."""
        return self._frame() if self.render_mode == "rgb_array" else None

    def render_state(self, state: ArrayLike) -> Frames:
        """Return the recorded frame of a state [9]."""
        episode, step = self._place(state)
        return self._recording.frames[episode, step].copy()

    def _frame(self) -> Frames:
        return self._recording.frames[self._episode, self._step].copy()

    def _recorded_action(self) -> Floats:
        """Return the action that leaves this frame; after the last nothing moves."""
        last = self._step == self._actions.shape[1]
        return np.zeros(POSE_SIZE) if last else self._actions[self._episode, self._step]

    def _place(self, state: ArrayLike) -> tuple[int, int]:
        """Find the episode and step of a state."""
        values = np.asarray(state, dtype=np.float64)
        count, length = self._recording.poses.shape[:2]
        if values.shape != (STATE_SIZE,) or not np.isfinite(values).all():
            raise ValueError(f"a state is {STATE_SIZE} finite numbers, got {state!r}")
        episode, step = int(values[0]), int(values[1])
        if not (0 <= episode < count and 0 <= step < length):
            raise ValueError(
                f"episode {episode}, step {step} is not in the recording of {count} episodes of "
                f"{length} frames"
            )
        return episode, step

    def _state(self, step: int) -> Floats:
        return np.array([self._episode, step, *self._recording.poses[self._episode, step]])

    def _observe(self) -> Any:
        if self._observation == "pixels":
            return self._frame()
        state = self._state(self._step)
        if self._observation == "state":
            return state
        return {"pixels": self._frame(), "state": state, "proprio": state[2:].astype(np.float32)}

    def _info(self) -> dict[str, Any]:
        means = {k: float(np.mean([e[k] for e in self._errors] or [0.0])) for k in ERRORS}
        last = self._errors[-1] if self._errors else dict.fromkeys(ERRORS, 0.0)
        end_err = float(np.linalg.norm(self._moved))
        arrived = bool(self._errors) and self._step >= self._goal
        state = self._state(self._step)
        return {
            **means,
            **{f"step_{name}": value for name, value in last.items()},
            "end_err": end_err,
            "score": action_score(end_err),
            "success": arrived and end_err < TOLERANCE,
            "action": self._recorded_action().astype(np.float32),
            "state": state,
            "goal_state": self._state(self._goal),
            "proprio": state[2:].astype(np.float32),
        }


@dataclass(frozen=True)
class RecordedEpisodes:
    """Recorded episodes as the planning protocol takes them.

    Attributes:
        states: float64 [E,K+1,9] (``Recorded``).
        actions: Recorded differences of poses, float32 [E,K,7].
    """

    states: Floats
    actions: NDArray[np.float32]


def play(seed: int, episodes: int, *, file: str | None = None) -> RecordedEpisodes:
    """Return recorded episodes in turn, at most one a recorded step.

    Args:
        seed: Of no use: a recording is what it is.
        episodes: Most episodes.
        file: See ``jepa_wm.envs.recordings``.
    """
    recording = load_recording(file)
    count, length = recording.poses.shape[:2]
    rows = np.arange(min(episodes, count * (length - 1))) % count
    places = np.empty((len(rows), length, 2))
    places[..., 0], places[..., 1] = rows[:, None], np.arange(length)
    states = np.concatenate([places, recording.poses[rows]], -1)
    return RecordedEpisodes(states, recording.actions()[rows].astype(np.float32))


gym.register(id="jepa_wm/Recorded-v0", entry_point="jepa_wm.envs.recorded:Recorded")
