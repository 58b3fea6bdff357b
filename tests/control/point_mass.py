"""A point in the plane: the smallest real world model, and the environment it models exactly."""

import gymnasium
import numpy as np
import torch

BOX = (np.array([-1.0, -1.0], np.float32), np.array([1.0, 1.0], np.float32))
SPEED = 0.1


class PointModel:
    """Latent: the position (2); each of a block's two env actions moves it by SPEED x action."""

    action_dim = 4
    history = 3

    def preprocess(self, frames):
        return frames.float()

    def encode(self, frames):
        return frames[..., :2]

    def rollout(self, context, actions):
        moves = SPEED * actions.unflatten(3, (2, 2)).sum(3)
        return context.z[:, None, -1:] + moves.cumsum(2)


class PointEnv(gymnasium.Env):
    """Position in the plane; info: success (within 0.05), distance, state, proprio, steps."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012
    action_space = gymnasium.spaces.Box(*BOX)

    def __init__(self, terminate=True, render_mode="rgb_array", observation="state", limit=None):
        self.terminate, self.render_mode, self.limit = terminate, render_mode, limit
        self.observation, self.renders = observation, 0
        box = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space = box
        if observation == "dict":
            pixels = gymnasium.spaces.Box(0, 255, (8, 8, 3), np.uint8)
            self.observation_space = gymnasium.spaces.Dict({"state": box, "pixels": pixels})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        options = options or {}
        self.position = np.array(options.get("state", self.np_random.uniform(-1, 1, 2)), float)
        self.goal = np.array(options.get("goal", (0.0, 0.0)), float)
        self.steps = 0
        return self._observe(), self._info()

    def step(self, action):
        assert action.dtype == np.float32
        self.position = self.position + SPEED * action.astype(float)
        self.steps += 1
        info = self._info()
        truncated = self.limit is not None and self.steps >= self.limit
        return (
            self._observe(),
            -info["distance"],
            info["success"] and self.terminate,
            truncated,
            info,
        )

    def render(self):
        self.renders += 1
        shade = np.uint8(np.clip(128 + 60 * self.position[0], 0, 255))
        return np.full((8, 8, 3), shade, np.uint8)

    def _observe(self):
        state = self.position.astype(np.float32)
        return state if self.observation == "state" else {"state": state, "pixels": self.render()}

    def _info(self):
        distance = float(np.linalg.norm(self.position - self.goal))
        return {
            "success": distance < 0.05,
            "distance": distance,
            "state": self.position.copy(),
            "proprio": self.position.astype(np.float32),
            "steps": self.steps,
        }


def positions(seed, count):
    """Random places in the plane, float32 [count, 2]."""
    return torch.randn(count, 2, generator=torch.Generator().manual_seed(seed)).numpy()
