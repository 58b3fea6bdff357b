"""The simulator as the model: its states, its distances, and an arm planned by its pose alone."""

import functools

import numpy as np
import pytest
import torch

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.episode import Rules, Task
from jepa_wm.control.interfaces import Context
from jepa_wm.control.mpc import MPC
from jepa_wm.control.runner import make_envs, run_episodes
from jepa_wm.control.simulator import SimulatorModel, StateDistance
from jepa_wm.envs.play import PlayWorlds
from jepa_wm.envs.reach import Reach
from jepa_wm.envs.reach_worlds import MAX_STEP, ReachWorlds
from jepa_wm.errors import ConfigError
from jepa_wm.launch import build, preset_node
from jepa_wm.models.pose import compose

ZEROS, ONES = np.zeros(7), np.ones(7)
MOST = np.array([MAX_STEP] * 3 + [0.5] * 3 + [1.0])


def arm_codec():
    return ActionCodec(block=1, mean=ZEROS, std=ONES, low=-MOST, high=MOST)


@pytest.mark.parametrize("worlds", [PlayWorlds, ReachWorlds])
def test_a_rollout_is_what_the_worlds_do(worlds):
    """For states and actions of any size, block by block, each candidate from the last state."""
    size = worlds(1).states().shape[1]
    a = 2 if worlds is PlayWorlds else 7
    codec = ActionCodec(
        block=2, mean=np.zeros(a), std=np.full(a, 0.05), low=-np.ones(a), high=np.ones(a)
    )
    model = SimulatorModel(worlds, codec)
    starts = torch.from_numpy(np.stack([worlds(1).states()[0] + shift for shift in (0, 0.01)]))
    actions = torch.randn(2, 3, 4, 2 * a, generator=torch.Generator().manual_seed(0))
    z = torch.stack([starts + 7, starts], 1)  # the frame before the last does not matter
    found = model.rollout(Context(z, torch.zeros(2, 1, 2 * a)), actions)
    assert found.shape == (2, 3, 4, size) and found.dtype == torch.float64
    steps = codec.decode(actions).double().numpy()
    for b in range(2):
        for s in range(3):
            one = worlds(1)
            one.set_states(starts[b : b + 1].numpy())
            for step in range(8):
                one.act(steps[b, s, step : step + 1])
                if step % 2:
                    assert np.array_equal(one.states()[0], found[b, s, step // 2].numpy())
    with pytest.raises(ValueError, match=rf"states \[B,T,{size}\]"):
        model.preprocess(torch.zeros(1, 1, size + 1))


def test_pushts_distance_is_the_square_of_its_tolerances():
    terms = preset_node("task", "pusht")["distance"]["terms"]
    goal = torch.tensor([[100.0, 100, 200, 200, 0.1, 0, 0]], dtype=torch.float64)
    z = goal[:, None, None].repeat(1, 4, 2, 1)
    z[0, 1, -1, 2] += 20  # the block 20 px off
    z[0, 2, -1, 4] += 4 * np.pi - np.pi / 9  # 20 degrees, the shorter way round
    z[0, 3, -1, :4] += 10  # 20 px jointly
    z[0, 3, -1, 5:] += 99  # speeds do not count
    z[0, :, 0] += 99  # nor do states on the way
    cost = StateDistance(goal, terms)(z, torch.zeros(1, 4, 2, 2))
    assert cost.dtype == torch.float32
    torch.testing.assert_close(cost, torch.tensor([[0.0, 1, 1, 1]]))


def test_a_term_can_measure_within_the_state():
    terms = [{"at": [7, 8], "tolerance": 0.05}, {"at": [0, 1], "to": [7, 8], "tolerance": 0.2}]
    goal = torch.zeros(1, 10, dtype=torch.float64)
    z = torch.zeros(1, 1, 1, 10, dtype=torch.float64)
    z[..., 0], z[..., 7] = 0.3, 0.1
    torch.testing.assert_close(StateDistance(goal, terms)(z, z), torch.tensor([[4.0 + 1.0]]))


@pytest.mark.parametrize(
    ("term", "words"),
    [
        ({"at": [], "tolerance": 1.0}, "at="),
        ({"at": [0, 1], "to": [2], "tolerance": 1.0}, "as many numbers"),
        ({"at": [0], "tolerance": 0.0}, "tolerance=0.0"),
    ],
)
def test_impossible_terms_are_refused(term, words):
    with pytest.raises(ConfigError, match=words):
        StateDistance(torch.zeros(1, 3), [term])


class PoseModel:
    """The smallest model of an arm: it looks where the goal is, and knows itself by its pose."""

    action_dim, history = 7, 2

    def preprocess(self, frames):
        return frames.double()

    def encode(self, frames):
        return frames[..., :3]

    def rollout(self, context, actions):
        B, S, H, _ = actions.shape
        pose = context.proprio[:, None, -1].expand(B, S, 7)
        poses = []
        for step in range(H):
            pose = compose(pose, actions[:, :, step].to(pose.dtype))
            poses.append(pose)
        return torch.stack(poses, 2)[..., :3]


def run_arm(proprio):
    settings = {"horizon": 3, "num_samples": 64, "num_elites": 6, "iterations": 4}
    std = {"init_std": [0.05, 0.05, 0.05, 0, 0, 0, 0]}
    planner = build(preset_node("planner", "cem") | settings | std, "planner")
    agent = MPC(
        world_model=PoseModel(),
        planner=planner,
        objective=functools.partial(StateDistance, terms=[{"at": [0, 1, 2], "tolerance": 0.05}]),
        codec=arm_codec(),
        device=torch.device("cpu"),
        replan_every=1,
    )
    tasks = []
    for index in range(3):
        state, info = Reach(observation="state").reset(seed=index)
        options = {"state": state, "goal_state": info["goal_state"]}
        tasks.append(Task(id=index, seed=index, options=options, goal=info["goal_state"]))
    envs = make_envs(lambda: Reach(observation="state", render_size=8), 2)
    rules = Rules(budget=12, success="success_reach", frames="state", proprio=proprio)
    try:
        return run_episodes(envs, agent, tasks, rules)
    finally:
        envs.close()


def test_the_arms_pose_reaches_the_model():
    episodes = run_arm("proprio")
    assert all(episode.success for episode in episodes)
    turns = np.concatenate([episode.actions[:, 3:] for episode in episodes])
    assert not turns.any()  # a standard deviation of 0 pins a dimension


def test_a_model_that_needs_the_pose_does_not_get_it_unasked():
    with pytest.raises(TypeError, match="NoneType"):
        run_arm(None)
