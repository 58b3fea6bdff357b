"""MPPI: temperatures, the information-theoretic form, ceilings, repeated and sampled candidates."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from jepa_wm.control.interfaces import Plan
from jepa_wm.launch import preset
from jepa_wm.planners.temperature import temperature_for

CPU = torch.device("cpu")
WIDE = (torch.full((4,), -50.0), torch.full((4,), 50.0))
BOX = (torch.full((4,), -1.0), torch.full((4,), 1.0))


def quadratic(target, scale=1.0):
    return lambda actions: scale * (actions - target).square().sum((2, 3))


def solve(planner, cost, start=None, bounds=WIDE, seeds=(0,)):
    """Plan; return the plan and the candidates of every call of the cost."""
    calls = []

    def seen(actions):
        calls.append(actions.clone())
        return cost(actions)

    start = planner.start(len(seeds), 4, CPU) if start is None else start
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    return planner.plan(seen, start, bounds, generators), calls


# --- temperatures --------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [1.5, 5.0, 40.0, 250.0])
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e5])
def test_the_temperature_gives_the_effective_samples_asked_for(target, scale):
    planner = preset("planner", "mppi_ess")
    planner = replace(planner, target_ess=target, iterations=3, include_mean=False)
    plan, _ = solve(planner, quadratic(0.7, scale), seeds=(0, 1))
    found = plan.trace.effective_samples
    assert ((found / target - 1).abs() < 0.01).all(), f"{found}"


def test_the_scale_of_the_cost_does_not_matter_where_the_temperature_is_solved_for():
    planner = preset("planner", "mppi_ess")
    one, other = (solve(planner, quadratic(0.7, scale))[0].actions for scale in (1.0, 2.0**12))
    torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def test_a_target_out_of_reach_is_neared_and_nothing_breaks():
    costs = torch.tensor([[0.0, 1.0, torch.inf, torch.inf], [2.0, 2.0, 2.0, 2.0]])
    excess = costs - costs[:, :1]
    for target, expected in ((4.0, (2.0, 4.0)), (1.0, (1.0, 4.0))):
        weights = torch.softmax(-excess / temperature_for(target, excess, torch.zeros(2, 4)), 1)
        found = 1 / weights.square().sum(1)
        torch.testing.assert_close(found, torch.tensor(expected), atol=1e-3, rtol=0)


# --- the information-theoretic form --------------------------------------------------------------


@pytest.mark.parametrize("name", ["mppi", "mppi_ess"])
def test_costs_whose_squares_overflow_beside_infinite_ones_leave_a_plan_of_numbers(name):
    def exploding(actions):
        costs = quadratic(0.3, 1e37)(actions)
        return torch.where(actions[:, :, 0, 0] > 0, costs, torch.inf)

    planner = preset("planner", name)
    planner = replace(planner, num_elites=planner.num_samples, iterations=3)
    plan, _ = solve(planner, exploding)
    assert plan.actions.isfinite().all() and plan.std.isfinite().all()


def test_one_round_is_the_published_formula():
    """U + sum w eps with eps as the bounds left it; w = exp(-(S + t U eps / sigma^2 - min) / t)."""
    planner = preset("planner", "mppi_it")
    planner = replace(planner, horizon=3, init_std=(0.5, 1.0, 2.0, 0.8), temperature=3.0)
    begin = torch.linspace(-0.9, 0.8, 12).view(1, 3, 4)
    start = planner.start(1, 4, CPU, begin)
    plan, calls = solve(planner, quadratic(0.3), start, BOX)
    eps = (calls[0] - begin[:, None]).double()
    assert (calls[0].abs() == 1).any(), "some noise was cut off"
    variance = torch.tensor([0.5, 1.0, 2.0, 0.8]).double().square()
    totals = quadratic(0.3)(calls[0]).double()
    totals = totals + 3.0 * (begin[:, None].double() * eps / variance).sum((2, 3))
    weights = torch.softmax(-totals / 3.0, 1)
    expected = begin + (weights[..., None, None] * eps).sum(1)
    torch.testing.assert_close(plan.actions.double(), expected, atol=1e-6, rtol=1e-5)
    assert torch.equal(plan.std, start.std), "the spread is kept"


def test_equal_costs_pull_a_plan_back_by_its_control_cost_and_never_to_a_bound():
    planner = preset("planner", "mppi_it")
    planner = replace(planner, num_samples=4096, num_elites=4096, horizon=1)

    def same(actions):
        return torch.full(actions.shape[:2], 3.0)

    cold, _ = solve(planner, same, bounds=BOX)
    assert cold.actions.abs().max() < 0.05
    warm, _ = solve(planner, same, planner.start(1, 4, CPU, np.full((1, 1, 4), 0.5)))
    assert warm.actions.abs().max() < 0.2, "E[exp(-U eps / sigma^2) eps] = -U"
    free = replace(planner, control_cost=False)
    kept, _ = solve(free, same, free.start(1, 4, CPU, np.full((1, 1, 4), 0.5)))
    assert (kept.actions - 0.5).abs().max() < 0.05


def test_a_pinned_dimension_has_no_control_cost():
    planner = replace(preset("planner", "mppi_it"), init_std=(1.0, 0.0, 1.0, 1.0), horizon=2)
    plan, _ = solve(planner, quadratic(0.3), planner.start(1, 4, CPU, np.full((1, 2, 4), 0.5)))
    assert plan.actions.isfinite().all()
    assert (plan.actions[..., 1] == 0.5).all()


# --- as in TD-MPC2 -------------------------------------------------------------------------------


def test_the_spread_stays_between_floor_and_ceiling():
    planner = replace(preset("planner", "tdmpc2"), init_std=4.0, iterations=1)
    flat, _ = solve(planner, lambda actions: torch.zeros(actions.shape[:2]))
    assert (flat.std == 2.0).all()
    steep, _ = solve(replace(planner, iterations=30), quadratic(0.2, 1e4))
    assert (steep.std == torch.tensor(0.05)).all()
    apart = replace(planner, max_std=(2.0, 1.0, 0.5, 3.0))
    flat, _ = solve(apart, lambda actions: torch.zeros(actions.shape[:2]))
    assert flat.std[0, 0, 1:3].tolist() == [1.0, 0.5]


def test_candidates_of_the_start_are_in_every_round_or_the_first():
    planner = preset("planner", "tdmpc2")
    given = torch.full((1, 24, 3, 4), 0.25)
    start = replace(planner.start(1, 4, CPU), candidates=given)
    for repeat in (True, False):
        _, calls = solve(replace(planner, repeat_candidates=repeat), quadratic(0.7), start)
        there = [torch.equal(call[:, :24], given) for call in calls[:-1]]
        assert there == [True] + [repeat] * 5
        assert all(call.shape[1] == 512 for call in calls[:-1])


def test_a_sampled_plan_is_an_elite_drawn_by_its_weight():
    """Two candidates at a difference of log 3 in t = 1: three to one."""
    planner = replace(
        preset("planner", "tdmpc2"), num_samples=2, num_elites=2, iterations=1, temperature=1.0
    )
    B = 4000
    start = planner.start(B, 4, CPU)
    plans = torch.stack([torch.zeros(3, 4), torch.ones(3, 4)]).expand(B, 2, 3, 4)
    start = replace(start, candidates=plans)
    plan, _ = solve(
        planner, lambda actions: actions[:, :, 0, 0] * np.log(3.0), start, seeds=range(B)
    )
    share = plan.actions[:, 0, 0].mean()
    assert abs(share - 0.25) < 0.03, f"{share:.3f}"
    torch.testing.assert_close(plan.cost, plan.actions[:, 0, 0] * np.log(3.0))
    torch.testing.assert_close(planner.shift(plan, 1).actions[:, 0], plan.mean.actions[:, 1])


def test_a_failed_round_leaves_nothing_to_sample_but_the_mean():
    planner = preset("planner", "tdmpc2")
    start = planner.start(1, 4, CPU, np.full((1, 3, 4), 0.25))
    plan, _ = solve(planner, lambda actions: actions.sum((2, 3)) * torch.nan, start)
    assert (plan.actions == 0.25).all() and plan.cost.isinf()


# --- predictive sampling -------------------------------------------------------------------------


def test_predictive_sampling_moves_from_best_to_best_and_keeps_its_spread():
    planner = preset("planner", "predictive_sampling")
    planner = replace(planner, num_samples=8, iterations=4, init_std=0.2)
    cost = quadratic(0.7)
    plan, calls = solve(planner, cost)
    nominal = torch.zeros(5, 4)
    for call in calls[:-1]:
        assert torch.equal(call[0, 0], nominal), "candidate 0 is the nominal plan"
        nominal = call[0, cost(call)[0].argmin()]
    assert torch.equal(plan.actions[0], nominal)
    assert plan.cost < cost(calls[0])[0].min() < cost(torch.zeros(1, 1, 5, 4))
    assert torch.equal(plan.std, planner.start(1, 4, CPU).std)
    assert (plan.trace.best[1:] <= plan.trace.best[:-1]).all(), "no round makes it worse"
    still = preset("planner", "random_shooting")
    _, calls = solve(replace(still, num_samples=8, iterations=2, init_std=0.2), cost)
    assert (calls[1][0, 0] == 0).all(), "random shooting draws around the start"
    assert torch.equal(planner.shift(plan, 1).actions[0, :4], plan.actions[0, 1:])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("mppi", {"target_ess": 5.0}, "target_ess replaces temperature and normalise"),
        ("mppi_ess", {"target_ess": 0.5}, "target_ess=0.5 must be a number >= 1"),
        ("mppi_ess", {"target_ess": None}, "temperature=None must be a number > 0"),
        ("mppi", {"max_std": -1.0}, "max_std=-1.0 must be >= 0"),
        ("mppi", {"control_cost": 1}, "control_cost=1 must be true or false"),
        ("mppi_it", {"returns": "sample"}, "returns=sample is not for control_cost"),
        ("cem", {"returns": "sample"}, "returns='sample' must be one of mean, best"),
    ],
)
def test_impossible_settings_are_refused_by_name(name, changes, message):
    with pytest.raises(ValueError, match=message):
        replace(preset("planner", name), **changes)


def test_a_start_of_plain_numbers_has_no_mean_to_go_back_to():
    planner = preset("planner", "tdmpc2")
    given = Plan(torch.ones(1, 3, 4), torch.ones(1, 3, 4), torch.zeros(1))
    assert planner.shift(given, 1).actions[0, :, 0].tolist() == [1, 1, 0]
