"""Choices instead of numbers: codec, policies, and the closed loop in a small discrete world."""

import gymnasium
import numpy as np
import pytest
import torch

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.discrete import DiscreteCodec, MovesCodec
from jepa_wm.control.episode import Rules, Task
from jepa_wm.control.mpc import MPC
from jepa_wm.control.objectives import GoalDistance
from jepa_wm.control.policies import NoOpPolicy, RandomPolicy, ReplayPolicy
from jepa_wm.control.runner import make_envs, run_episodes
from jepa_wm.errors import ConfigError
from jepa_wm.launch import build, preset, preset_node

from control.point_mass import PointEnv, PointModel  # isort: skip

MOVES = np.array([[0, 0], [1, 0], [0, 1], [-1, 0], [0, -1]], np.float32)
FIVE = gymnasium.spaces.Discrete(5, start=2)  # values 2 to 6
CODEC = DiscreteCodec.of(FIVE, 2)
RULES = {"budget": 30, "success": "success", "frames": "state", "states": "state"}


class StepEnv(PointEnv):
    """The point in the plane, moved a step to the right, up, left, down, or not at all."""

    action_space = FIVE

    def step(self, action):
        assert isinstance(action, np.integer)
        return super().step(MOVES[action - 2])


class StepModel(PointModel):
    """Its exact model; a latent is the position."""

    action_dim, history = 10, 1

    def rollout(self, context, actions):
        moves = MovesCodec(codec=CODEC, moves=MOVES).decode(actions)  # [B,S,H*2,2]
        moved = context.z[:, None, -1:] + 0.1 * moves.cumsum(2)
        return moved[:, :, 1::2]


def planner(**changes):
    node = preset_node("planner", "categorical")
    return build(node | {"choices": 5, "num_samples": 100} | changes, "planner")


def loop(search=None, codec=CODEC, model=None):
    def objective(goal_z):
        return GoalDistance(goal_z, norm="l2", reduce="sum", steps="last")

    return MPC(
        world_model=model or StepModel(),
        planner=search or planner(),
        objective=objective,
        codec=codec,
        device=torch.device("cpu"),
        replan_every=1,
    )


def tasks(count):
    """Starts and goals some whole steps apart."""
    rng = np.random.default_rng(0)
    for index in range(count):
        start, way = rng.uniform(-1, 1, 2), rng.integers(-5, 6, 2) * 0.1
        options = {"state": start, "goal": start + way}
        yield Task(id=index, seed=index, options=options, goal=(start + way).astype(np.float32))


def run(agent, count=6, num_envs=3, make=StepEnv):
    envs = make_envs(make, num_envs)
    try:
        return run_episodes(envs, agent, list(tasks(count)), Rules(**RULES))
    finally:
        envs.close()


def test_a_block_is_one_hot_and_comes_back():
    codec = DiscreteCodec.of(gymnasium.spaces.MultiDiscrete([3, 2], start=[0, 4]), 2)
    actions = torch.tensor([[2.0, 4.0], [0.0, 5.0], [1.0, 5.0], [1.0, 4.0]])
    blocks = codec.encode(actions)
    assert blocks.tolist() == [[0, 0, 1, 1, 0, 1, 0, 0, 0, 1], [0, 1, 0, 0, 1, 0, 1, 0, 1, 0]]
    assert torch.equal(codec.decode(blocks), actions)
    assert torch.equal(codec.decode(blocks * 0.6 + 0.05), actions), "probabilities"
    assert (codec.env_dim, codec.action_dim, str(codec)) == (2, 10, "MultiDiscrete([3, 2])")
    assert codec.low.tolist() == [0, 4] and codec.high.tolist() == [2, 5]
    assert [end.tolist() for end in codec.bounds()] == [[0] * 10, [1] * 10]


def test_moves_are_what_options_stand_for_and_have_gradients():
    moves = MovesCodec(codec=CODEC, moves=MOVES)
    blocks = CODEC.encode(np.array([[2.0], [3.0], [6.0], [4.0]]))
    assert moves.decode(blocks).tolist() == [[0, 0], [1, 0], [0, -1], [0, 1]]
    chances = torch.full((1, 10), 0.2, requires_grad=True)
    moves.decode(chances)[0, 0].backward()
    assert chances.grad[0, :5].tolist() == [0, 1, 0, -1, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block": 0, "choices": [5]}, "block=0 must be a whole number >= 1"),
        ({"block": 2, "choices": [1]}, r"choices=\[1\] must be whole numbers >= 2"),
        ({"block": 2, "choices": [3, 3], "first": [0]}, "first has 1 numbers, choices 2"),
    ],
)
def test_impossible_codecs_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        DiscreteCodec(**settings)


def test_what_does_not_fit_a_codec_is_refused():
    with pytest.raises(ConfigError, match=r"Box.* is no choice"):
        DiscreteCodec.of(gymnasium.spaces.Box(-1, 1, (2,)), 1)
    with pytest.raises(ValueError, match=r"env actions must be \[..., n\*2, 1\], got \[3, 1\]"):
        CODEC.encode(np.zeros((3, 1)))
    with pytest.raises(ValueError, match="9 of choice 0 is none of 2 to 6"):
        CODEC.encode(np.full((2, 1), 9.0))
    with pytest.raises(ValueError, match=r"n, 10\] .*, got \[4, 9\]"):
        CODEC.decode(torch.zeros(4, 9))
    with pytest.raises(ConfigError, match="one action for each option"):
        MovesCodec(codec=CODEC, moves=MOVES[:3])


def test_the_loop_reaches_its_goals_with_choices():
    episodes = run(loop())
    assert all(one.success or one.presolved for one in episodes)
    for one in episodes:
        assert one.actions.shape[1] == 1 and set(one.actions[:, 0]) <= {2, 3, 4, 5, 6}


def test_an_episode_does_not_depend_on_those_beside_it():
    alone, together = run(loop(), num_envs=1), run(loop(), num_envs=4)
    for one, other in zip(alone, together, strict=True):
        assert np.array_equal(one.actions, other.actions)


def test_baselines_take_choices():
    low, high = CODEC.low.numpy(), CODEC.high.numpy()
    for policy in (RandomPolicy(low, high, whole=True), NoOpPolicy(low, high, whole=True)):
        assert len(run(policy)) == 6
    drawn = np.concatenate([one.actions for one in run(RandomPolicy(low, high, whole=True))])
    assert set(drawn[:, 0]) == {2, 3, 4, 5, 6}
    recorded = {index: np.full((3, 1), 4.0) for index in range(6)}
    repeated = run(ReplayPolicy(low, high, recorded, whole=True))
    # after its end it stands still: the choice nearest to 0
    assert repeated[0].actions[:4, 0].tolist() == [4, 4, 4, 2]
    with pytest.raises(ValueError, match="choices are drawn uniformly"):
        RandomPolicy(low, high, std=1.0, whole=True)


def test_half_a_choice_is_refused():
    with pytest.raises(ValueError, match=r"action \[3.5\] of task 0 is outside Discrete\(5"):
        run(NoOpPolicy(np.array([3.5]), np.array([3.5])))


@pytest.mark.parametrize("name", ["cem", "mppi", "gradient", "grasp", "hybrid"])
def test_planners_of_numbers_refuse_choices_by_name(name):
    with pytest.raises(ValueError, match=r"the action space is Discrete\(5\), .*categorical"):
        loop(preset("planner", name))


def test_the_planner_of_choices_refuses_numbers_by_name():
    one = torch.ones(2)
    codec = ActionCodec(block=2, mean=one * 0, std=one, low=-one, high=one)
    with pytest.raises(ValueError, match=r"the action space is Box\(2,\), CategoricalCEM .* cem"):
        loop(codec=codec, model=PointModel())
