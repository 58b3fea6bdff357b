"""TwoRoom as a planners' exam: exact dynamics, all episodes side by side in one batch.

Run ``python tests/planners/rooms.py NAME ...`` for the table over presets of ``conf/planner``.
"""

import sys
import time
from importlib.resources import files

import numpy as np
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.discrete import DiscreteCodec, MovesCodec
from jepa_wm.control.dynamics import RoomDistance, TwoRoomDynamics
from jepa_wm.control.mpc import MPC
from jepa_wm.control.protocol import cut_segments
from jepa_wm.envs.tworoom_play import play
from jepa_wm.envs.tworoom_worlds import Rooms, TwoRoomWorlds

CONF = files("jepa_wm.conf").joinpath("planner")
NAMES = sorted(path.name[:-5] for path in CONF.iterdir() if path.name.endswith(".yaml"))
MOVES = np.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1]], np.float32)  # of a discrete action
BLOCK, OFFSET, BUDGET, TOLERANCE = 5, 25, 50, 16.0
# what an arm's preset says of seven dimensions, or of their metres
NO_ARM = {"horizon": 5, "init_std": 1.0, "min_std": 0.0, "momentum": 0.15, "momentum_std": None,
          "constraints": {}}  # fmt: skip


def make_planner(name, **changes):
    node = OmegaConf.to_container(OmegaConf.load(str(CONF.joinpath(f"{name}.yaml"))))
    if any(word in name for word in ("_ac", "droid")):
        node |= NO_ARM
    if name == "categorical":
        node["choices"] = len(MOVES)
    return instantiate(node | changes, _convert_="all")


def make_loop(planner):
    rooms = Rooms()
    if getattr(planner, "is_discrete", False):
        codec = DiscreteCodec(block=BLOCK, choices=[len(MOVES)])
        model = TwoRoomDynamics(MovesCodec(codec=codec, moves=MOVES), rooms)
    else:
        mean, std = torch.tensor([0.0, -0.06]), torch.tensor([0.60, 0.65])
        one = torch.ones(2)
        codec = ActionCodec(block=BLOCK, mean=mean, std=std, low=-one, high=one)
        model = TwoRoomDynamics(codec, rooms)
    return MPC(
        world_model=model,
        planner=planner,
        objective=lambda goal_z: RoomDistance(goal_z, rooms, TOLERANCE),
        codec=codec,
        device=torch.device("cpu"),
        replan_every=1,
    )


def run(planner, count, seed=0):
    """Success of ``count`` episodes, bool [count], and evaluations of one decision, a mean.

    Goals are 25 steps ahead on held-out play; who starts at its goal is left out.
    """
    recorded = play(100_000 + seed, 2 * count, steps=100)
    segments = cut_segments(recorded.states, recorded.actions, OFFSET, seed)
    starts, goals = segments.starts, segments.goals
    far = np.linalg.norm(starts - goals, axis=1) >= TOLERANCE
    starts, goals = starts[far][:count], goals[far][:count]
    loop, worlds = make_loop(planner), TwoRoomWorlds(count)
    worlds.set_states(starts)
    loop.reset(goals, list(range(count)), BUDGET)
    success = np.zeros(count, bool)
    for _ in range(BUDGET):
        actions = loop.act(worlds.states(), active=~success)
        moves = MOVES[actions[:, 0].astype(int)] if actions.shape[1] == 1 else actions
        worlds.act(moves)
        success |= np.linalg.norm(worlds.states() - goals, axis=1) < TOLERANCE
        if success.all():
            break
    return success, np.mean([decision.evaluations for decision in loop.decisions])


def main(names, count=200, seed=0):
    torch.set_num_threads(1)
    for name in names:
        began = time.process_time()
        success, evaluations = run(make_planner(name), count, seed)
        print(
            f"{name:22} {success.mean():7.1%} of {count}, {evaluations:7.0f} evaluations a "
            f"decision, {time.process_time() - began:6.1f} s CPU",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:] or NAMES)
