"""CMA-ES: what the package is told, and what it learns."""

import dataclasses
import sys

import numpy as np
import pytest
import torch

from jepa_wm.errors import ConfigError
from jepa_wm.launch import preset, preset_node
from jepa_wm.planners.cmaes import CMAES

cmaes = pytest.importorskip("cmaes")
torch.set_num_threads(1)
CPU = torch.device("cpu")
WIDE = (torch.full((2,), -50.0), torch.full((2,), 50.0))


def planner(**changes):
    node = {k: v for k, v in preset_node("planner", "cmaes").items() if k != "_target_"}
    return CMAES(**(node | {"horizon": 3, "num_samples": 16} | changes))


def valley(actions):
    """A narrow valley along the diagonal of every step, its bottom at (2, 2)."""
    x, y = actions.unbind(-1)
    return ((x - y).square() * 400 + (x + y - 4).square()).sum(2)


def solve(search, cost=valley, start=None, bounds=WIDE, seed=0):
    begin = search.start(1, 2, CPU) if start is None else start
    return search.plan(cost, begin, bounds, [torch.Generator().manual_seed(seed)])


@pytest.mark.parametrize("separable", [True, False])
def test_it_is_the_package_told_the_costs_of_what_it_asked(separable):
    """Our loop against the package's own, from the same seed; the first candidate is the mean."""
    search = planner(separable=separable, init_std=0.5, iterations=8, returns="mean")
    seed = int(torch.randint(2**31 - 1, (), generator=torch.Generator().manual_seed(0)))
    kind = cmaes.SepCMA if separable else cmaes.CMA
    theirs = kind(mean=np.zeros(6), sigma=1.0, seed=seed, population_size=16)
    for index in range(8):
        asked = np.stack([theirs.ask() for _ in range(16)])
        if index == 0:
            asked[0] = 0
        places = torch.from_numpy((asked * 0.5).astype(np.float32)).view(1, 16, 3, 2)
        costs = valley(places)[0].double().tolist()
        told = places.view(16, 6).double().numpy() / 0.5
        theirs.tell(list(zip(told, costs, strict=True)))
    mean = torch.from_numpy((theirs.mean * 0.5).astype(np.float32)).view(1, 3, 2)
    torch.testing.assert_close(solve(search).actions, mean)


def test_a_full_covariance_learns_a_valley_that_a_diagonal_one_does_not():
    full, diagonal = (
        solve(planner(separable=separable, iterations=60)).cost for separable in (False, True)
    )
    assert full < 0.01 * diagonal


def test_it_ends_between_the_bounds_where_the_optimum_is_outside():
    box = (torch.tensor([-1.0, -1.0]), torch.tensor([1.0, 0.5]))
    plan = solve(planner(iterations=60), lambda a: (a - 2).square().sum((2, 3)), bounds=box)
    torch.testing.assert_close(plan.actions, torch.tensor([1.0, 0.5]).expand(1, 3, 2))
    torch.testing.assert_close(plan.mean.actions, plan.actions, atol=0.02, rtol=0)


def test_one_free_number_and_none_are_searched_too():
    one = planner(horizon=1, init_std=[1.0, 0.0], iterations=30)
    plan = solve(one, lambda a: (a - 2).square().sum((2, 3)))
    assert plan.actions[0, 0, 0] == pytest.approx(2, abs=1e-2) and plan.actions[0, 0, 1] == 0
    none = solve(planner(init_std=0.0))
    assert (none.actions == 0).all() and none.cost.isfinite()


def test_costs_that_are_not_finite_teach_nothing():
    plan = solve(planner(), lambda actions: valley(actions) * torch.nan)
    assert (plan.actions == 0).all() and plan.cost.isinf().all()
    half = solve(planner(), lambda a: torch.where(a[..., 0].amax(2) > 1, torch.nan, valley(a)))
    assert half.actions.isfinite().all() and half.actions[..., 0].amax() <= 1


def test_the_streams_of_other_code_are_left_alone():
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    solve(planner())
    assert np.array_equal(before, np.random.get_state()[1])


def test_without_the_package_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ConfigError, match=r"needs the package cmaes: pip install 'jepa_wm\[cma"):
        preset("planner", "cmaes")


def test_impossible_settings_are_refused():
    with pytest.raises(ValueError, match="num_samples=1 must be at least 2"):
        planner(num_samples=1)
    with pytest.raises(ValueError, match="separable='no' must be true or false"):
        dataclasses.replace(planner(), separable="no")
