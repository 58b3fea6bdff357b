"""Write ``pusht.npz``: what the reference PushT environments and OpenCV give.

Needs gym-pusht 0.1.8, stable-worldmodel 0.1.1 (or a checkout), opencv-python-headless and
shapely, in an environment of their own: ``python tests/golden/make_pusht.py``.
"""

from pathlib import Path

import cv2
import gym_pusht  # noqa: F401
import gymnasium as gym
import numpy as np
import pymunk
import stable_worldmodel  # noqa: F401


class OldCollisionHandler:
    """What pymunk < 7 gave for ``space.add_collision_handler``, which gym-pusht still calls."""

    def __init__(self, space: pymunk.Space, first: int, second: int) -> None:
        self.__dict__["register"] = lambda name, fn: space.on_collision(first, second, **{name: fn})

    def __setattr__(self, name: str, value: object) -> None:
        self.register(name, value)


pymunk.Space.add_collision_handler = lambda space, a, b: OldCollisionHandler(space, a, b)

START = np.array([330.0, 200.0, 256.0, 300.0, 0.3, 0.0, 0.0])
GOAL = np.array([400.0, 100.0, 256.0, 256.0, np.pi / 4, 0.0, 0.0])
FRAMES = [0, 9, 19, 29]


def swm_rollout() -> dict[str, np.ndarray]:
    """Push the block about for 30 steps; keep states, rewards, contacts and some frames."""
    env = gym.make("swm/PushT-v1", disable_env_checker=True).unwrapped
    rng = np.random.default_rng(3)
    observation, _ = env.reset(seed=0, options={"state": START, "goal_state": GOAL})
    states, actions, rewards, contacts, frames = [observation["state"]], [], [], [], []
    for _ in range(30):
        now = states[-1]
        action = np.clip((now[2:4] + rng.normal(0, 40, 2) - now[:2]) / 100, -1, 1)
        observation, reward, _, _, info = env.step(action)
        states.append(observation["state"])
        actions.append(action)
        rewards.append(reward)
        contacts.append(info["n_contacts"])
        frames.append(env.render())
    return {
        "swm_states": np.array(states),
        "swm_actions": np.array(actions),
        "swm_rewards": np.array(rewards),
        "swm_contacts": np.array(contacts),
        "swm_frame_steps": np.array(FRAMES),
        "swm_frames": np.array([frames[step] for step in FRAMES]),
    }


def gym_pusht_rollout() -> dict[str, np.ndarray]:
    """Push near the goal for 20 steps; keep states, coverage and small frames."""
    env = gym.make("gym_pusht/PushT-v0", obs_type="state", disable_env_checker=True).unwrapped
    observation, _ = env.reset(options={"reset_to_state": [200, 180, 300, 200, 0.6]})
    targets = np.array([(240 + 4 * t, 215 + 3 * t) for t in range(20)], dtype=np.float64)
    states, covered, rewards, frames = [observation], [], [], []
    for target in targets:
        observation, reward, _, _, info = env.step(target)
        states.append(observation)
        covered.append(info["coverage"])
        rewards.append(reward)
        env.observation_width = env.observation_height = 96
        frames.append(env._render())
    return {
        "gp_targets": targets,
        "gp_states": np.array(states),
        "gp_coverage": np.array(covered),
        "gp_rewards": np.array(rewards),
        "gp_frames": np.array(frames[::5]),
    }


def resized_noise() -> dict[str, np.ndarray]:
    """Resize one noise image with OpenCV to sizes below, at half of and above its own."""
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    sizes = (1, 7, 14, 16, 31, 32, 33, 40)
    resized = {f"resize_{size}": cv2.resize(noise, (size, size)) for size in sizes}
    return {"noise": noise, **resized}


if __name__ == "__main__":
    path = Path(__file__).with_name("pusht.npz")
    np.savez_compressed(path, **swm_rollout(), **gym_pusht_rollout(), **resized_noise())
    print(path, path.stat().st_size)
