"""Write ``wall.npz``: what DINO-WM's Wall does to moves, draws as starts, and shows.

Needs a checkout of https://github.com/gaoyuezhou/dino_wm and scipy, omegaconf, torchvision:
``python tests/golden/make_wall.py CHECKOUT``.
"""

import sys
from pathlib import Path
from types import ModuleType

import gymnasium
import numpy as np
import torch

sys.path.insert(0, sys.argv[1])
sys.modules["gym"] = gymnasium
sys.modules["utils"] = ModuleType("utils")
sys.modules["utils"].aggregate_dct = None  # of a part we do not run

from env.wall.wall_env_wrapper import WallEnvWrapper  # noqa: E402

LOSING = [[0.0, 1.0], [0.0, 1.0], [0.0, -3.0], [0.5, 0.0], [1.0, 1.0], [-1.0, 0.5]]
EDGES = [4.0, 29.0, 32.0, 35.0, 60.0], [4.0, 26.0, 30.0, 34.0, 60.0]


def moves() -> tuple[np.ndarray, np.ndarray]:
    """Starts and actions: anywhere, near the door and the corners, touching, straight and none."""
    rng = np.random.default_rng(0)
    starts, actions = [rng.uniform(4, 60, (400, 2))], [rng.uniform(-3, 3, (400, 2))]
    near = (
        rng.choice([27.5, 29.5, 32, 34.5, 36.5, 5, 59], 500),
        rng.choice([26, 30, 34, 5, 59], 500),
    )
    starts.append(np.stack(near, 1) + rng.normal(0, 1, (500, 2)))
    actions.append(rng.uniform(-1.8, 1.8, (500, 2)))
    touching = np.stack(np.meshgrid(*EDGES), -1).reshape(-1, 2)
    for one in ((1, 0), (-1, 0), (0, 1), (0, -1), (0, 0), (1, 0.5), (-1, 0.5), (0.5, -1), (-1, -1)):
        for shift in ((0, 0), (-0.7, -0.7), (0.7, 0.7), (0.7, -0.7)):
            starts.append(touching + shift)
            actions.append(np.tile(np.array(one, float), (len(touching), 1)))
    return np.concatenate(starts).round(3), np.concatenate(actions).round(3)


def main() -> None:
    """Ask the reference and store its answers."""
    env = WallEnvWrapper()
    starts, actions = moves()
    ends = []
    for start, action in zip(torch.tensor(starts), torch.tensor(actions), strict=True):
        env.reset(start)
        env.step(action)
        ends.append(env.dot_position.numpy())
    env.reset(torch.tensor([20.0, 57.0], dtype=torch.float64))
    lost = []
    for action in LOSING:
        env.step(torch.tensor(action))
        lost.append(env.dot_position.numpy().copy())
    shown = np.array([[10.3, 44.8], [27.9, 30.2], [32.0, 30.0], [59.7, 4.3]])
    small = [env.reset(torch.tensor(place))[0]["visual"] for place in shown]
    np.savez_compressed(
        Path(__file__).parent / "wall.npz",
        starts=starts,
        actions=actions,
        ends=np.array(ends),
        losing=np.array(LOSING),
        lost=np.array(lost),  # of a dot that moves straight at the border
        drawn=np.array([env.sample_random_init_goal_states(seed) for seed in range(50)]),
        shown=shown,
        small=np.array([frame.numpy().astype(np.uint8) for frame in small]),
        large_mean=np.array([env.transform(frame).mean((1, 2)).numpy() for frame in small]),
        large_rows=np.array([env.transform(frame)[:, 100].numpy() for frame in small]),
    )


if __name__ == "__main__":
    main()
