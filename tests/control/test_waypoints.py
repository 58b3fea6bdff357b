"""Sub-goals one after another: who is aimed at when, and what is kept."""

import numpy as np
import pytest
import torch
from point_mass import SPEED, PointModel

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.mpc import MPC
from jepa_wm.control.objectives import GoalDistance
from jepa_wm.control.waypoints import Waypoints
from jepa_wm.planners.cem import CEM

GOALS = np.array([[0.3, 0.0], [0.3, 0.4]], np.float32)


def mpc(**changes):
    planner = CEM(
        horizon=4, num_samples=200, num_elites=10, iterations=12, init_std=1.0, min_std=0.0,
        momentum=0.0, momentum_std=None, constraints={}, clip=True, include_mean=True,
        returns="mean", std_estimator="unbiased",
    )  # fmt: skip
    settings = {"replan_every": 1, "history": 1} | changes
    return MPC(
        world_model=PointModel(), planner=planner, device=torch.device("cpu"),
        objective=lambda z: GoalDistance(z, norm="l2", reduce="sum", steps="last"),
        codec=ActionCodec(block=2, mean=[0, 0], std=[1, 1], low=[-1, -1], high=[1, 1]), **settings,
    )  # fmt: skip


def walk(agent, steps, rows=2):
    """Positions [steps+1,rows,2] of points the agent moves, from the origin."""
    places = [np.zeros((rows, 2), np.float32)]
    agent.reset(None, list(range(rows)), steps)
    for _ in range(steps):
        frames = places[-1] if agent.needs_frames else None
        places.append(places[-1] + SPEED * agent.act(frames))
    return np.stack(places)


@pytest.mark.parametrize("changes", [{}, {"replan_every": 3}, {"history": 3}])
def test_each_goal_is_reached_in_its_steps_and_the_last_holds(changes):
    places = walk(Waypoints(mpc(**changes), GOALS, [8, 8]), 20)
    assert np.abs(places[8] - GOALS[0]).max() < 0.03, places[8]
    assert np.abs(places[16] - GOALS[1]).max() < 0.03, places[16]
    assert np.abs(places[20] - GOALS[1]).max() < 0.03


def test_a_new_goal_begins_with_a_new_solve_within_its_own_steps():
    agent = Waypoints(mpc(replan_every=4), GOALS, [4, 12])
    walk(agent, 8)
    assert [decision.step for decision in agent.decisions] == [0, 4]
    horizons = [decision.plan.actions.shape[1] for decision in agent.decisions]
    assert horizons == [2, 4], "two blocks are left to the first goal, six to the second"


def test_rows_that_stopped_are_not_aimed_again():
    agent = Waypoints(mpc(), GOALS, [2, 2])
    agent.reset(None, [0, 1], 4)
    frames = np.zeros((2, 2), np.float32)
    for step in range(4):
        actions = agent.act(frames, None, np.array([True, step < 1]))
    assert (actions[1] == 0).all() and np.abs(actions[0]).max() > 0.1


def test_what_is_no_schedule_is_refused():
    with pytest.raises(ValueError, match=r"steps \[3\] of sub-goals must be multiples .* 2"):
        Waypoints(mpc(), GOALS, [3, 2])
    with pytest.raises(ValueError, match="2 goals need as many step counts, got 1"):
        Waypoints(mpc(), GOALS, [2])
    agent = mpc()
    agent.reset(GOALS, [0, 1])
    agent.act(np.zeros((2, 2), np.float32))
    with pytest.raises(ValueError, match="within a block of 2"):
        agent.aim(GOALS)
    with pytest.raises(ValueError, match="needs 2 goals, one a row, got 1"):
        agent.aim(GOALS[:1])
