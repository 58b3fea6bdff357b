"""Make cem_ac.npz: the published arm planner, run on a toy world with its noise recorded.

Needs a checkout of facebookresearch/vjepa2 and scipy: ``python tests/golden/make_cem_ac.py
CHECKOUT`` rewrites the file. Its ``cem`` draws [samples,4] (x, y, z, gripper) a step of the plan;
the draws are kept as [iterations,horizon,samples,4] beside the plans [horizon,7] they led to.
"""

import sys
from pathlib import Path

import numpy as np
import torch

CASES = {
    "function": {"samples": 24, "cem_steps": 12},
    "wrapper": {
        "rollout": 2, "samples": 24, "cem_steps": 10, "momentum_mean": 0.15, "momentum_std": 0.15,
    },
    "notebook": {
        "rollout": 2, "samples": 25, "cem_steps": 2, "momentum_mean": 0.15, "momentum_std": 0.75,
        "maxnorm": 0.075,
    },
    "pinned": {
        "rollout": 2, "samples": 24, "cem_steps": 5, "momentum_mean": 0.15, "momentum_std": 0.15,
        "axis": {2: -0.03, 0: 0.09},
    },
    "closing": {
        "rollout": 3, "samples": 24, "cem_steps": 4, "momentum_mean": 0.15, "momentum_std": 0.15,
        "close_gripper": 1,
    },
}  # fmt: skip


def toy(seed):
    """Random latents [4,3] of a start and a goal, a pose and the weights of toy dynamics."""
    rng = np.random.default_rng(seed)
    goal = {"goal": rng.normal(0, 1, (4, 3)), "z": rng.normal(0, 1, (4, 3))}
    pose = np.array([0.5, 0.1, 0.3, 3.0, 0.1, -1.9, 0.4])
    weights = {"of_action": rng.normal(0, 4, (7, 3)), "of_pose": rng.normal(0, 1, (7, 3))}
    return {k: v.astype(np.float32) for k, v in {**goal, "pose": pose, **weights}.items()}


def main(checkout):
    sys.path[:0] = [str(checkout), str(checkout / "notebooks")]
    from utils.mpc_utils import cem, compute_new_pose

    given = toy(0)
    world = {name: torch.from_numpy(values) for name, values in given.items()}

    def step(frames, actions, poses):
        moved = actions[:, -1:, None] @ world["of_action"] + poses[:, -1:, None] @ world["of_pose"]
        return torch.tanh(frames[:, -1:] + moved), compute_new_pose(poses[:, -1:], actions[:, -1:])

    randn, found = torch.randn, dict(given)
    for name, settings in CASES.items():
        draws, generator = [], torch.Generator().manual_seed(len(name))

        def recorded(*shape, device=None, draws=draws, generator=generator):
            draws.append(randn(*shape, generator=generator))
            return draws[-1]

        torch.randn = recorded
        plan = cem(
            context_frame=world["z"][None, None], context_pose=world["pose"][None, None],
            goal_frame=world["goal"][None, None], world_model=step, **settings,
        )  # fmt: skip
        torch.randn = randn
        shape = (settings["cem_steps"], settings.get("rollout", 1), *draws[0].shape)
        found[f"{name}.noise"] = torch.stack(draws).reshape(shape).numpy()
        found[f"{name}.plan"] = plan[0].numpy()
    np.savez_compressed(Path(__file__).parent / "cem_ac.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
