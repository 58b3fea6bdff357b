"""Gradient descent on plans: the steps themselves, and what each setting does to them."""

import dataclasses

import pytest
import torch

from jepa_wm.errors import ConfigError
from jepa_wm.planners.descent import Optimizer, limit_norm, slope
from jepa_wm.planners.gradient import GradientPlanner

torch.set_num_threads(1)
CPU = torch.device("cpu")
WIDE = (torch.full((2,), -50.0), torch.full((2,), 50.0))
BASE = {
    "horizon": 3,
    "num_samples": 1,
    "iterations": 4,
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "weight_decay": 0.0,
    "max_grad_norm": None,
    "action_noise": 0.0,
    "include_mean": True,
    "returns": "final",
    "init_std": 1.0,
    "constraints": {},
    "clip": True,
}


def planner(**changes):
    return GradientPlanner(**{**BASE, **changes})


def bowl(actions):
    """A quadratic with its bottom at 1, steeper in the second dimension."""
    return ((actions - 1).square() * torch.tensor([1.0, 3.0])).sum((2, 3))


def solve(search, cost=bowl, start=None, bounds=WIDE, seeds=(0,)):
    begin = search.start(len(seeds), 2, CPU) if start is None else start
    return search.plan(cost, begin, bounds, [torch.Generator().manual_seed(s) for s in seeds])


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize(
    ("name", "kind"),
    [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
def test_optimisers_are_torchs(name, kind, weight_decay):
    torch.manual_seed(0)
    values, gradients = torch.randn(2, 3, 4), torch.randn(5, 2, 3, 4)
    leaf = values.clone().requires_grad_()
    theirs = kind([leaf], lr=0.07, weight_decay=weight_decay, foreach=False)
    ours = Optimizer(name, 0.07, weight_decay)
    for gradient in gradients:
        leaf.grad = gradient.clone()
        theirs.step()
        values = ours.step(values, gradient)
        torch.testing.assert_close(values, leaf.detach())


def test_plain_steps_are_those_of_a_quadratic():
    """Each step multiplies the gap to the bottom by 1 - 2 rate curvature."""
    plan = solve(planner())
    expected = 1 - torch.tensor([0.8, 0.4]) ** 4
    torch.testing.assert_close(plan.actions, expected.expand(1, 3, 2))
    torch.testing.assert_close(plan.trace.best[:2, 0], torch.tensor([12.0, 3 * (0.64 + 3 * 0.16)]))


def test_the_norm_of_each_restart_is_limited_by_itself():
    gradient = torch.ones(1, 2, 3, 2)
    gradient[0, 1] = 0.1
    limited = limit_norm(gradient, 1.0)
    assert limited[0, 0].norm().item() == pytest.approx(1.0)
    assert torch.equal(limited[0, 1], gradient[0, 1]), "a short one stays"
    one = solve(planner(iterations=1, max_grad_norm=0.5, learning_rate=1.0))
    assert one.actions.norm().item() == pytest.approx(0.5)


def test_restarts_do_not_touch_each_other():
    search = planner(num_samples=5, optimizer="adam", max_grad_norm=0.5, init_std=2.0)
    draws = torch.randn(5, 3, 2, generator=torch.Generator().manual_seed(0)) * 2
    draws[0] = 0  # the mean
    one = dataclasses.replace(search, num_samples=1)
    alone = [solve(one, start=search.start(1, 2, CPU, draw[None])) for draw in draws]
    cheapest = min(alone, key=lambda plan: plan.cost.item())
    assert torch.equal(solve(search).actions, cheapest.actions)


def test_a_restart_that_breaks_is_left_behind_where_it_was_last_good():
    """One restart walks off an edge; the others go on, and its last good place stays known."""

    def edge(actions):
        costs = bowl(actions)
        return torch.where(actions[..., 0].amax(2) > 0.45, torch.nan, costs)

    search = planner(num_samples=2, init_std=0.0, iterations=6)
    start = search.start(1, 2, CPU)
    far = torch.tensor([-9.0, 0.0]).expand(1, 1, 3, 2)
    plan = solve(search, edge, dataclasses.replace(start, std=start.std + 1, candidates=far))
    assert plan.trace.effective_samples[:, 0].tolist() == [2, 2, 2, 1, 2, 2]
    # 0 -> 0.2 -> 0.36 -> 0.488 is over the edge: it stays at 0.36
    torch.testing.assert_close(plan.actions[..., 0], torch.full((1, 3), 0.36))


def test_a_gradient_that_is_not_finite_moves_nothing():
    def cusp(actions):  # finite everywhere, its slope at 0 is not
        return bowl(actions) + actions.abs().sqrt().sum((2, 3))

    plan = solve(planner(), cusp)
    assert (plan.actions == 0).all()
    assert plan.cost.isfinite()


def test_steps_are_projected_each_time():
    """Without that, five steps of 1 would lie 5 away and need as many to come back."""
    box = (torch.tensor([-0.5, -0.5]), torch.tensor([0.5, 0.5]))

    def slide(actions):
        away = actions.detach().sum((2, 3)) > 2.5
        return torch.where(away, 1.0, -1.0) * actions.sum((2, 3))

    plan = solve(planner(learning_rate=1.0, iterations=2), slide, bounds=box)
    torch.testing.assert_close(plan.trace.best[:, 0], torch.tensor([0.0, 3.0]))
    assert (plan.actions == -0.5).all()


def test_noise_is_added_to_every_step_from_the_rows_own_stream():
    search = planner(action_noise=0.1, learning_rate=1e-12, iterations=2)
    generator = torch.Generator().manual_seed(0)
    drawn = [torch.randn(1, 3, 2, generator=generator) for _ in range(3)]  # the first: restarts
    torch.testing.assert_close(solve(search).actions[0], 0.1 * (drawn[1] + drawn[2])[0])


def test_final_and_best_differ_where_the_way_leads_astray():
    def trap(actions):  # at 0 cheap and steep: a step leads far off
        return -4 * actions.sum((2, 3)) + actions.square().sum((2, 3)) * 50

    astray = {"learning_rate": 0.5, "iterations": 3}
    best, final = (solve(planner(returns=name, **astray), trap) for name in ("best", "final"))
    assert best.cost == 0 and final.cost > 100
    assert torch.equal(final.best.actions, best.actions)


def test_without_the_mean_every_restart_is_drawn():
    search = planner(include_mean=False, learning_rate=1e-12)
    draw = torch.randn(1, 3, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(solve(search).actions, draw)


def test_a_cost_without_a_gradient_is_refused_in_one_line():
    with pytest.raises(ConfigError, match=r"has none; .*simulator.*cem") as error:
        solve(planner(), lambda actions: bowl(actions.detach()))
    assert "\n" not in str(error.value)


def test_slope_is_each_candidates_own():
    actions = torch.randn(2, 3, 3, 2)
    costs, gradient = slope(bowl, actions)
    torch.testing.assert_close(costs, bowl(actions))
    torch.testing.assert_close(gradient, 2 * (actions - 1) * torch.tensor([1.0, 3.0]))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "lbfgs"}, "optimizer='lbfgs' must be one of adam, adamw, sgd"),
        ({"learning_rate": 0}, "learning_rate=0 must be a number > 0"),
        ({"max_grad_norm": -1.0}, "max_grad_norm=-1.0 must be a number > 0"),
        ({"action_noise": float("nan")}, "action_noise=nan must be a number >= 0"),
        ({"returns": "mean"}, "returns='mean' must be one of best, final"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        planner(**changes)
