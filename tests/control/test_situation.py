"""What objectives are told beside latents and actions, through the cost and through the loop."""

import functools

import numpy as np
import pytest
import torch
from point_mass import BOX, PointModel, positions

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.episode import Rules
from jepa_wm.control.interfaces import Context
from jepa_wm.control.mpc import MPC
from jepa_wm.control.objectives import GoalDistance, GoalList, SmoothnessPenalty, WeightedSum
from jepa_wm.control.proprio import ProprioDistance
from jepa_wm.control.protocol import Segments
from jepa_wm.control.runner import make_envs, run_episodes
from jepa_wm.control.situation import Situation
from jepa_wm.envs.reach import Reach
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.setup import make_tasks
from jepa_wm.planners.cem import CEM

CPU = torch.device("cpu")
L2 = functools.partial(GoalDistance, norm="l2", reduce="sum", steps="last")
POSE = functools.partial(ProprioDistance, norm="l2", reduce="sum", steps="last")
CODEC = ActionCodec(block=2, mean=[0, 0], std=[1, 1], low=BOX[0], high=BOX[1])


class Body(PointModel):
    """A point that is seen but not felt: its proprioception is what it moved, its latent stands."""

    def rollout(self, context, actions):
        return context.z[:, None, -1:].expand(*actions.shape[:3], 2)

    def predict_proprio(self, context, actions):
        moves = PointModel().rollout(Context(context.proprio, context.actions), actions)
        return moves


def loop(objective, model=None, **changes):
    planner = CEM(
        horizon=3, num_samples=300, num_elites=20, iterations=20, init_std=1.0, min_std=0.0,
        momentum=0.0, momentum_std=None, constraints={}, clip=True, include_mean=True,
        returns="mean", std_estimator="unbiased",
    )  # fmt: skip
    settings = {"replan_every": 1, "device": CPU, "codec": CODEC} | changes
    return MPC(world_model=model or Body(), planner=planner, objective=objective, **settings)


def cost_of(**changes):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    both = functools.partial(WeightedSum, terms=[L2, POSE, SmoothnessPenalty], weights=[1, 2, 3])
    known = Context(draw(3, 2, 2), draw(3, 1, 4), draw(3, 2, 2))
    now = Situation(block=2, before=draw(3, 4), goal_proprio=draw(3, 2))
    cost = RolloutCost(Body(), both, draw(3, 2), known, situation=now, **changes)
    return cost, draw(3, 5, 3, 4)


@pytest.mark.parametrize("changes", [{"rows": 1}, {"chunk": 2}, {"chunk": 10}, {"chunk": 7}])
def test_every_row_is_told_its_own_situation_however_the_work_is_cut(changes):
    whole, actions = cost_of()
    pieces, _ = cost_of(**changes)
    torch.testing.assert_close(pieces(actions), whole(actions))
    z = whole.latents(actions)
    torch.testing.assert_close(whole.score(z, actions), whole(actions))
    begin = whole.situation.before[:, None, 2:]
    steps = torch.cat([begin.expand(3, 5, 2)[:, :, None], actions.view(3, 5, 6, 2)], 2)
    by_hand = 3 * steps.diff(dim=2).square().sum((2, 3))
    place = Body().predict_proprio(whole.context, actions)[:, :, -1]
    by_hand += 2 * (place - whole.situation.goal_proprio[:, None]).square().sum(-1)
    by_hand += (whole.context.z[:, -1] - whole.goal_z).square().sum(-1)[:, None]
    torch.testing.assert_close(whole(actions), by_hand)


def test_a_gradient_flows_through_what_is_foretold():
    cost, actions = cost_of()
    with torch.inference_mode():
        inside = Context(*(x.clone() for x in (cost.context.z, cost.context.actions)))
        pose, before = cost.context.proprio.clone(), cost.situation.before.clone()
    cost.context = Context(inside.z, inside.actions, pose)
    cost.situation = Situation(block=2, before=before, goal_proprio=pose[:, -1].clone())
    actions.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a: cost(a.float()).double(), actions.double().detach().requires_grad_(),
        eps=1e-2, atol=5e-2,
    )  # fmt: skip


def walk(agent, steps, goals, proprio, active=None):
    """Proprioception [steps+1,B,2] of points that start at the origin."""
    at = [np.zeros((len(goals), 2), np.float32)]
    agent.reset(goals, range(len(goals)), proprio=proprio)
    for step in range(steps):
        mask = None if active is None else active(step)
        at.append(at[-1] + np.float32(0.1) * agent.act(at[0], at[-1], mask))
    return np.stack(at)


def test_the_loop_reaches_a_goal_that_only_the_body_feels():
    goals, wanted = positions(0, 3), 0.3 * positions(1, 3)
    places = walk(loop(functools.partial(POSE, steps="mean")), 12, goals, wanted)
    assert np.abs(places[-1] - wanted).max() < 0.03, places[-1]


def test_rows_that_stop_take_their_goals_along():
    goals, wanted = positions(0, 3), 0.3 * positions(1, 3)
    stop = np.array([12, 2, 12])
    places = walk(
        loop(functools.partial(POSE, steps="mean")), 12, goals, wanted, lambda step: step < stop
    )
    assert np.abs(places[-1] - wanted)[[0, 2]].max() < 0.03, places[-1]


def test_new_goals_bring_their_own_proprioception():
    agent = loop(POSE)
    walk(agent, 2, positions(0, 2), positions(1, 2))
    agent.aim(positions(0, 2), proprio=[[5.0, 5.0], [6.0, 6.0]])
    assert agent.cost().situation.goal_proprio.tolist() == [[5.0, 5.0], [6.0, 6.0]]
    agent.aim(positions(0, 2))
    with pytest.raises(ConfigError, match="not known"):
        agent.act(np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32))


def test_the_action_executed_last_is_what_a_smooth_plan_goes_on_from():
    smooth = functools.partial(WeightedSum, terms=[SmoothnessPenalty], weights=[1.0])
    agent = loop(smooth, PointModel(), warm_start=False)
    agent.reset(positions(0, 2), [0, 1])
    given = []
    for _ in range(4):
        given.append(agent.act(np.zeros((2, 2), np.float32)))
    before = agent.cost().situation.before
    assert before.view(2, 2, 2).transpose(0, 1).numpy() == pytest.approx(np.stack(given[:2]))
    jump = np.abs(given[2] - given[1]).max()
    assert jump < 0.1 < np.abs(given[1]).max(), (jump, given)


def test_a_model_without_a_body_is_refused_in_one_line():
    agent = loop(POSE, PointModel())
    agent.reset(positions(0, 1), [0], proprio=[[0.0, 0.0]])
    with pytest.raises(ConfigError, match="predicts no proprioception"):
        agent.act(np.zeros((1, 2), np.float32))
    with pytest.raises(ValueError, match=r"the goals' proprio must be \[1, P\], got 2 rows"):
        agent.reset(positions(0, 1), [0], proprio=np.zeros((2, 2)))
    with pytest.raises(ValueError, match="the goals' proprio is not finite"):
        agent.reset(positions(0, 1), [0], proprio=[[0.0, float("nan")]])


def test_a_list_of_goals_is_encoded_whole_and_any_of_them_will_do():
    anyone = functools.partial(GoalList, norm="l2", reduce="sum", steps="mean", order="any")
    agent = loop(anyone, PointModel(), goals_per_row=2)
    near, far = np.float32([[0.2, 0.1], [-0.2, 0.3]]), np.float32([[2.0, 2.0], [-3.0, 1.0]])
    at = np.zeros((2, 2), np.float32)
    agent.reset(np.stack([far, near], 1), [0, 1])
    for _ in range(12):
        at = at + np.float32(0.1) * agent.act(at)
    assert np.abs(at - near).max() < 0.03, at
    with pytest.raises(ValueError, match=r"goals must be \[B,2,...\], got \[2, 3, 2\]"):
        agent.reset(np.zeros((2, 3, 2), np.float32), [0, 1])


def test_a_run_tells_the_agent_what_the_body_feels_at_the_goal():
    """From the environment's goal state through tasks and runner into the situation."""
    options = {"goal": "play", "seed": 0, "task": {"proprio": "proprio"}}
    env = Reach()
    states = np.stack([env.reset(seed=seed)[1]["state"] for seed in range(4)])
    segments = Segments(states[:2], states[2:], np.zeros((2, 0, 7), np.float32))
    tasks = make_tasks(options, env, segments, from_states=True)
    wanted = [env.reset(options={"state": goal})[1]["proprio"] for goal in states[2:]]
    told = {}

    class Listener:
        needs_frames, decisions = False, ()

        def reset(self, goals, seeds, budget, proprio=None):
            told["proprio"] = proprio

        def act(self, frames, proprio, active):
            return np.zeros((2, 7), np.float32)

    rules = Rules(budget=1, success="success_reach", states="state", frames="state")
    run_episodes(make_envs(Reach, 2), Listener(), tasks, rules)
    assert np.array_equal(told["proprio"], np.stack(wanted))
    plain = make_tasks(options | {"task": {}}, env, segments, from_states=True)
    run_episodes(make_envs(Reach, 2), Listener(), plain, rules)
    assert told["proprio"] is None
