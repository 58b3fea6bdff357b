"""The cost a planner sees: pieces, gradients, one step at a time, and how often it was asked."""

import dataclasses
import weakref
from functools import partial

import pytest
import torch
from point_mass import SPEED, PointModel

from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.interfaces import Context
from jepa_wm.control.objectives import GoalDistance

L2 = partial(GoalDistance, norm="l2", reduce="sum", steps="last")


def point_cost(batch=3, objective=L2, **limits):
    with torch.inference_mode():  # as MPC encodes
        z, goals = torch.rand(batch, 1, 2), torch.rand(batch, 2)
    context = Context(z, torch.zeros(batch, 0, 4))
    return RolloutCost(PointModel(), objective, goals, context, **limits)


def candidates(batch=3, count=5, horizon=2):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(batch, count, horizon, 4, generator=generator)


@pytest.mark.parametrize("limits", [{}, {"rows": 1}, {"chunk": 2}, {"chunk": 7, "rows": 1}])
def test_pieces_give_the_same_costs_and_gradients(limits):
    torch.manual_seed(0)
    whole = point_cost()
    torch.manual_seed(0)
    cost, actions = point_cost(**limits), candidates().requires_grad_()
    again = candidates().requires_grad_()
    torch.testing.assert_close(cost(actions), whole(again))
    cost(actions).sum().backward()
    whole(again).sum().backward()
    torch.testing.assert_close(actions.grad, again.grad)


@pytest.mark.parametrize("chunk", [None, 2, 1])
def test_a_gradient_keeps_one_piece_of_the_rollout_at_a_time(chunk):
    class Watched(PointModel):
        def __init__(self):
            self.kept = []

        def rollout(self, context, actions):
            mark = torch.zeros(())  # what the graph of this rollout saves
            self.kept.append(weakref.ref(mark))
            seen.append(sum(one() is not None for one in self.kept))
            return super().rollout(context, actions) + actions.sum() * mark

    seen = []
    cost = dataclasses.replace(point_cost(chunk=chunk), world_model=Watched())
    cost(candidates().requires_grad_()).sum().backward()
    assert max(seen) == 1
    assert len(seen) == {2: 9, None: 1, 1: 15}[chunk]


@pytest.mark.parametrize("norm", ["l2", "l1", "cosine"])
def test_the_gradient_is_that_of_the_cost(norm):
    """Goals and past come from inference mode, which autograd refuses to remember."""
    cost = point_cost(objective=partial(L2, norm=norm))
    actions = candidates().double().requires_grad_()
    direction = torch.randn_like(actions)
    (gradient,) = torch.autograd.grad(cost(actions).sum(), actions)
    with torch.no_grad():
        ends = [cost(actions + sign * 1e-3 * direction).double().sum() for sign in (1, -1)]
    slope = (gradient * direction).sum()
    assert slope.item() == pytest.approx((ends[0] - ends[1]).item() / 2e-3, rel=2e-2, abs=1e-3)


def test_every_candidate_scored_is_counted():
    cost, actions = point_cost(rows=1, chunk=2), candidates()
    cost(actions)
    assert cost.evaluations == 5
    cost.step(torch.zeros(3, 5, 2, 2), actions)
    cost.latents(actions)
    assert cost.evaluations == 15


@pytest.mark.parametrize("rows", [None, 1, 2])
def test_a_step_starts_from_each_latent_alone(rows):
    cost, actions = point_cost(rows=rows), candidates()
    z = torch.rand(3, 5, 2, 2)
    moved = z + SPEED * actions.unflatten(3, (2, 2)).sum(3)
    torch.testing.assert_close(cost.step(z, actions), moved)


@pytest.mark.parametrize("rows", [None, 1, 2])
def test_latents_and_score_make_up_the_cost(rows):
    cost, actions = point_cost(rows=rows), candidates()
    torch.testing.assert_close(cost.score(cost.latents(actions), actions), cost(actions))
    assert torch.equal(cost.z, cost.context.z[:, -1])
