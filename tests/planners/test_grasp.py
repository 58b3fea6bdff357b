"""GRASP: the relaxed loss, what it stops, its noise, and the looks at the true rollout."""

import dataclasses
from functools import partial

import pytest
import torch

from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.interfaces import Context
from jepa_wm.control.objectives import GoalDistance
from jepa_wm.errors import ConfigError
from jepa_wm.planners.grasp import GRASP

torch.set_num_threads(1)
CPU = torch.device("cpu")
WIDE = (torch.full((2,), -50.0), torch.full((2,), 50.0))
L2 = partial(GoalDistance, norm="l2", reduce="sum", steps="last")
BASE = {
    "horizon": 2,
    "num_samples": 1,
    "iterations": 1,
    "optimizer": "sgd",
    "learning_rate": 0.01,
    "state_learning_rate": 0.02,
    "state_noise": 0.0,
    "goal_weight": 0.5,
    "sync_every": 1,
    "sync_steps": 1,
    "sync_learning_rate": 1e-12,
    "include_mean": True,
    "init_std": 1.0,
    "constraints": {},
    "clip": True,
}


class BentModel:
    """z' = z + a + sin(z): a step's slope depends on where it starts."""

    action_dim, history = 2, 1

    def step(self, z, actions):
        return z + actions + z.sin()

    def rollout(self, context, actions):
        z, seen = context.z[:, -1:].expand(*actions.shape[:2], 2), []
        for block in actions.unbind(2):
            z = self.step(z, block)
            seen.append(z)
        return torch.stack(seen, 2)


def planner(**changes):
    return GRASP(**{**BASE, **changes})


def bent_cost(batch=1):
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        z, goals = (torch.randn(batch, *shape, generator=generator) for shape in ((1, 2), (2,)))
    return RolloutCost(BentModel(), L2, goals, Context(z, torch.zeros(batch, 0, 2)))


class Watched:
    """A cost that keeps every plan whose true rollout was asked for."""

    def __init__(self, cost):
        self.cost, self.rolled, self.stepped = cost, [], []

    def __call__(self, actions):
        self.rolled.append(actions.detach().clone())
        return self.cost(actions)

    def step(self, z, actions):
        self.stepped.append(z.detach().clone())
        return self.cost.step(z, actions)

    def __getattr__(self, name):
        return getattr(self.cost, name)


def solve(search, cost, seed=0, start=None):
    begin = search.start(1, 2, CPU, torch.full((1, 2, 2), 0.3)) if start is None else start
    return search.plan(cost, begin, WIDE, [torch.Generator().manual_seed(seed)])


def test_a_relaxed_step_is_the_papers():
    """By hand for H = 2, with the two predictions' starts held fixed."""
    cost = Watched(bent_cost())
    solve(planner(iterations=2, sync_every=2), cost)
    z0, goal = cost.z.clone(), cost.goal_z.clone()
    model, actions = BentModel(), torch.full((1, 2, 2), 0.3)
    states = model.rollout(Context(z0[:, None], None), actions[None])[0]
    for _ in range(2):
        before = torch.stack([z0[0], states[0, 0]])[None]
        after = model.step(before, actions)
        by_actions = -2 * (states - after) + 0.5 * 2 * (after - goal)  # d after / d a = 1
        by_states = 2 * (states - after)
        actions, states = actions - 0.01 * by_actions, states - 0.02 * by_states
    torch.testing.assert_close(cost.rolled[0][0], actions)


def test_no_gradient_enters_through_a_state():
    """With it, the second step's misfit and goal would pull the first state."""
    cost = Watched(bent_cost())
    solve(planner(iterations=2, sync_every=2), cost)
    rolled = bent_cost().latents(torch.full((1, 1, 2, 2), 0.3))
    # after one step the states still are those of the rollout: their misfit was 0
    torch.testing.assert_close(cost.stepped[1][0, 0, 1], rolled[0, 0, 0])


def test_noise_moves_the_states_from_the_rows_own_stream():
    cost = Watched(bent_cost())
    solve(planner(iterations=2, sync_every=2, state_noise=0.1, state_learning_rate=1e-12), cost)
    generator = torch.Generator().manual_seed(0)
    torch.randn(1, 2, 2, generator=generator)  # the restarts
    drawn = torch.randn(1, 2, 2, generator=generator)
    moved = cost.stepped[1][0, 0, 1] - cost.stepped[0][0, 0, 1]
    torch.testing.assert_close(moved, 0.1 * drawn[0, 0], atol=1e-6, rtol=1e-5)


def test_looks_at_the_true_rollout_after_every_so_many_steps_and_the_last():
    cost = Watched(bent_cost())
    plan = solve(planner(iterations=7, sync_every=3, sync_steps=2), cost)
    assert len(cost.rolled) == 3 * 2
    assert plan.trace.best.shape == (6, 1)
    at = [0, 3, 6]  # relaxed steps that begin with the states of a true rollout
    for index, asked in enumerate(cost.stepped):
        states = bent_cost().latents(cost.rolled[1 if index == 3 else 3])[0, 0, 0]
        if index in at[1:]:
            torch.testing.assert_close(asked[0, 0, 1], states)


def test_synced_steps_go_down_the_true_cost():
    plan = solve(planner(goal_weight=0.0, sync_steps=30, sync_learning_rate=0.05), bent_cost())
    best = plan.trace.best[:, 0]
    assert (best.diff() <= 0).all() and plan.cost < 0.1 * best[0]


def test_the_goal_alone_steers_relaxed_steps():
    still, steered = (
        solve(planner(iterations=40, sync_every=40, goal_weight=weight), bent_cost())
        for weight in (0.0, 1.0)
    )
    start = bent_cost()(torch.full((1, 1, 2, 2), 0.3))[0, 0]
    assert still.cost == pytest.approx(start.item(), rel=1e-5)
    assert steered.cost < 0.5 * start


def test_it_is_never_worse_than_its_start():
    plan = solve(planner(learning_rate=5.0, sync_learning_rate=5.0), bent_cost())
    assert plan.cost == bent_cost()(torch.full((1, 1, 2, 2), 0.3))[0, 0]


def test_a_cost_that_shows_no_latents_is_refused():
    with pytest.raises(ConfigError, match=r"shows none \(no z, latents, step, score\)"):
        solve(planner(), lambda actions: actions.sum((2, 3)))


def test_a_model_without_gradients_is_refused_in_one_line():
    class Frozen(BentModel):
        def rollout(self, context, actions):
            return super().rollout(context, actions.detach())

    cost = dataclasses.replace(bent_cost(), world_model=Frozen())
    with pytest.raises(ConfigError, match="has none; a model without one"):
        solve(planner(), cost)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sync_every": 0}, "sync_every=0 must be a whole number >= 1"),
        ({"state_learning_rate": -1.0}, "state_learning_rate=-1.0 must be a number > 0"),
        ({"goal_weight": -0.1}, "goal_weight=-0.1 must be a number >= 0"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        planner(**changes)
