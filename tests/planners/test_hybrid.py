"""Two planners in a row: what the second is given, and what may come of it."""

import dataclasses

import pytest
import torch

from jepa_wm.launch import build, preset, preset_node
from jepa_wm.planners.cem import CEM
from jepa_wm.planners.hybrid import Hybrid

torch.set_num_threads(1)
CPU = torch.device("cpu")
WIDE = (torch.full((2,), -50.0), torch.full((2,), 50.0))


def node(**changes):
    return preset_node("planner", "hybrid") | changes


def stage(name, **changes):
    return build(preset_node("planner", "hybrid")[name] | changes, "planner")


def hybrid(**stages):
    return Hybrid(**({"first": stage("first"), "polish": stage("polish")} | stages))


def bowl(actions):
    return (actions - 1).square().sum((2, 3))


def generators():
    return [torch.Generator().manual_seed(0)]


def solve(planner, cost=bowl, start=None):
    begin = planner.start(1, 2, CPU) if start is None else start
    return planner.plan(cost, begin, WIDE, generators())


def test_polishing_improves_the_first_plan():
    rough = stage("first", iterations=2)
    first, plan = solve(rough), solve(hybrid(first=rough))
    assert plan.cost < 0.1 * first.cost
    torch.testing.assert_close(plan.trace.best[:2], first.trace.best)
    assert plan.trace.best.shape == (22, 1)


def test_a_polish_that_makes_it_worse_is_not_taken():
    """A random search around zero after CEM has long arrived at 1."""
    worse = build(preset_node("planner", "predictive_sampling"), "planner")
    bad = dataclasses.replace(worse, include_mean=False, init_std=9.0)
    first = solve(stage("first"))
    plan = solve(hybrid(polish=bad))
    assert torch.equal(plan.actions, first.actions) and torch.equal(plan.cost, first.cost)


@pytest.mark.parametrize("name", ["cem", "mppi", "icem", "cmaes"])
def test_any_planner_may_come_first(name):
    first = preset("planner", name)
    plan, alone = solve(hybrid(first=first)), solve(first)
    assert plan.cost <= alone.cost
    assert plan.best.cost <= alone.best.cost


def test_rows_choose_for_themselves():
    def cost(actions):  # row 1 has no slope to follow
        flat = bowl(actions.detach())
        rows = torch.arange(len(actions))[:, None]
        return torch.where(rows == 0, bowl(actions), flat)

    planner = hybrid(first=stage("first", iterations=2))
    seeds = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    plan = planner.plan(cost, planner.start(2, 2, CPU), WIDE, seeds)
    seeds = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    first = planner.first.plan(cost, planner.start(2, 2, CPU), WIDE, seeds)
    assert plan.cost[0] < 0.1 * first.cost[0]
    assert plan.cost[1] <= first.cost[1]


def test_what_the_first_keeps_for_the_next_solve_is_kept():
    first = preset("planner", "icem")
    planner = hybrid(first=first)
    plan = solve(planner)
    assert plan.candidates is not None
    kept = planner.shift(plan, 1).candidates
    assert kept is not None and kept.shape[2:] == (5, 2)


def test_a_shrunken_horizon_reaches_both():
    planner = hybrid()
    assert solve(planner, start=planner.start(1, 2, CPU).cut(2)).actions.shape == (1, 2, 2)


def test_settings_of_both_are_reached_by_name():
    changed = node()
    changed["first"]["num_samples"], changed["polish"]["iterations"] = 7, 3
    changed["first"]["num_elites"] = 3
    planner = build(changed, "planner")
    assert isinstance(planner.first, CEM) and planner.first.num_samples == 7
    assert planner.polish.iterations == 3 and planner.num_samples == 7


def test_stages_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"first.horizon=5 and polish.horizon=3 must be equal"):
        hybrid(polish=stage("polish", horizon=3))
    with pytest.raises(ValueError, match="polish must be a planner"):
        hybrid(polish=3)
    with pytest.raises(ValueError, match="for discrete actions, the other is not"):
        hybrid(first=preset("planner", "categorical"))
    with pytest.raises(ValueError, match="init_std has 3 numbers, the solver action 2"):
        hybrid(polish=stage("polish", init_std=[1.0, 1.0, 1.0])).start(1, 2, CPU)
