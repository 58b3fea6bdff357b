"""Plans priced by a more precise model than the one that made them."""

import numpy as np
import pytest
import torch
from point_mass import BOX, SPEED, PointEnv, PointModel
from test_runner import agent, run, tasks

from jepa_wm.control.exact import ExactCosts

torch.set_num_threads(1)


class Coarse(PointModel):
    """Sees positions rounded to tenths."""

    def encode(self, frames):
        return super().encode(frames).mul(10).round() / 10


class Momentum(PointModel):
    """Goes on by as much as between the last two frames: a model that needs its history."""

    def rollout(self, context, actions):
        z = super().rollout(context, actions)
        return z + (context.z[:, None, -1:] - context.z[:, None, :1])


def exact(who, model):
    return ExactCosts(who, model, who.objective, torch.device("cpu"))


def prices(who, todo, make=PointEnv):
    """Run all in one batch; return its episodes and what ``who`` says of each."""
    episodes = run(who, todo, len(todo), make=make)
    return episodes, [who.costs_of(row) for row in range(len(todo))]


@pytest.mark.parametrize("history", [1, 3])
def test_the_same_model_gives_the_planners_own_costs(history):
    inner = agent()
    inner.history = history
    inner.world_model = Momentum()
    episodes, found = prices(exact(inner, Momentum()), tasks(5))
    assert len({len(episode.plans["cost"]) for episode in episodes}) > 1  # rows end one by one
    for episode, costs in zip(episodes, found, strict=True):
        for name in ("mean", "best"):
            assert costs[name] == episode.plans[f"{name}_cost"].tolist()


def test_rounded_latents_are_priced_where_the_point_really_is():
    inner = agent()
    inner.world_model = Coarse()
    todo = tasks(3)
    episodes, found = prices(exact(inner, PointModel()), todo)
    for episode, costs, task in zip(episodes, found, todo, strict=True):
        for at, step in enumerate(episode.plans["step"].tolist()):
            moves = np.nan_to_num(episode.plans["best_actions"][at]).reshape(-1, 2)
            reached = episode.states[step] + SPEED * np.clip(moves, *BOX).sum(0)
            by_hand = ((reached - task.goal) ** 2).sum()
            assert abs(costs["best"][at] - by_hand) < 1e-5
        assert costs["best"] != episode.plans["best_cost"].tolist()


def test_it_acts_as_the_agent_does():
    todo = tasks(4)
    plain, priced = run(agent(), todo), run(exact(agent(), PointModel()), todo)
    for one, other in zip(plain, priced, strict=True):
        assert np.array_equal(one.actions, other.actions)
        assert one.plans["evaluations"].tolist() == other.plans["evaluations"].tolist()


def test_prices_do_not_depend_on_the_rows_beside():
    todo = tasks(4)
    inner = agent()
    inner.world_model = Momentum()
    _, together = prices(exact(inner, Momentum()), todo)
    alone = [prices(exact(inner, Momentum()), [task])[1][0] for task in todo]
    assert alone == together
