"""What every planner in conf/planner must do, and the published updates of the presets."""

import dataclasses
from importlib.resources import files

import numpy as np
import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

from jepa_wm.control.interfaces import Plan
from jepa_wm.planners.cem import CEM
from jepa_wm.planners.mppi import MPPI
from jepa_wm.planners.sampling import SamplingPlanner

torch.set_num_threads(1)
CPU = torch.device("cpu")
CONF = files("jepa_wm.conf").joinpath("planner")
NAMES = sorted(
    entry.name[:-5]
    for entry in CONF.iterdir()
    if entry.name.endswith(".yaml")
    and issubclass(get_class(OmegaConf.load(str(entry))._target_), SamplingPlanner)
)  # the others: tests/planners/test_searches.py
WIDE = (torch.full((4,), -50.0), torch.full((4,), 50.0))
BASE = {
    "horizon": 3,
    "num_samples": 512,
    "num_elites": 50,
    "iterations": 10,
    "init_std": 1.0,
    "min_std": 0.0,
    "momentum": 0.0,
    "momentum_std": None,
    "constraints": {},
    "clip": True,
    "include_mean": True,
    "returns": "mean",
    "std_estimator": "unbiased",
}
AVERAGED = {
    "temperature": 0.5,
    "normalise": True,
    "target_ess": None,
    "control_cost": False,
    "adapt_std": True,
    "max_std": None,
    "repeat_candidates": False,
}


# an arm's planner on a problem that is no arm: its search without its limits (tests/test_cem_ac.py)
NO_ARM = {"init_std": 1.0, "momentum": 0.15, "momentum_std": None}


def conf(name, **changes):
    node = OmegaConf.load(str(CONF.joinpath(f"{name}.yaml")))
    if node.constraints:
        node.constraints = {}
        node = OmegaConf.merge(node, NO_ARM | {"min_std": float(np.max(node.min_std))})
    return instantiate(OmegaConf.merge(node, {"horizon": 5}, changes))


def cem(**changes):
    return CEM(**{**BASE, **changes})


def mppi(**changes):
    return MPPI(**{**BASE, **AVERAGED, **changes})


def generators(seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def quadratic(targets):
    """Squared distance to a target action [B], summed over the horizon and dimensions."""
    goal = torch.as_tensor(targets, dtype=torch.float32)[:, None, None, None]
    return lambda actions: (actions - goal).square().sum((2, 3))


def solve(planner, cost, seeds=(0,), bounds=WIDE, start=None):
    A = len(bounds[0])
    start = planner.start(len(seeds), A, CPU) if start is None else start
    return planner.plan(cost, start, bounds, generators(seeds))


# --- every file in conf/planner ---------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_nears_the_optimum_of_a_quadratic(name):
    planner, cost = conf(name), quadratic([1.5, -1.2])
    plan = solve(planner, cost, (0, 1))
    begin = cost(torch.zeros(2, 1, planner.horizon, 4))[:, 0]
    assert plan.actions.shape == (2, planner.horizon, 4)
    assert plan.actions.dtype == torch.float32
    # their spread never shrinks or is small, or they have few rounds
    slow = {"mppi_swm", "random_shooting", "vjepa2_ac_notebook", "cem_ac", "mppi_ac"}
    slow |= {"icem", "icem_ac", "icem_paper", "mppi_it", "predictive_sampling"}
    share = 0.9 if name in slow else 0.1
    assert (plan.cost < share * begin).all(), f"cost {plan.cost} from {begin}"
    torch.testing.assert_close(cost(plan.actions[:, None])[:, 0], plan.cost)


@pytest.mark.parametrize("name", NAMES)
def test_keeps_the_bounds_where_it_clips(name):
    planner, seen = conf(name), []
    bounds = (torch.tensor([-0.5, -0.2, 0.0, 0.1]), torch.tensor([0.5, 0.2, 0.0, 0.3]))

    def cost(actions):
        seen.append(actions)
        return quadratic([3.0])(actions)

    plan = solve(planner, cost, bounds=bounds)
    candidates = torch.cat([*(one.flatten(0, 2) for one in seen), plan.actions[0]])
    inside = ((candidates >= bounds[0]) & (candidates <= bounds[1])).all()
    assert bool(inside) == planner.clip
    if planner.clip:
        assert (plan.actions[..., 2] == 0).all(), "a box of width zero"


@pytest.mark.parametrize("name", NAMES)
def test_a_row_plans_the_same_alone_and_in_any_company(name):
    planner, targets = conf(name), torch.linspace(-1, 1, 7)
    alone = [solve(planner, quadratic(targets[[b]]), (b,)) for b in range(7)]
    for rows in ([0, 1], [5, 2], [6, 5, 4, 3, 2, 1, 0]):
        together = solve(planner, quadratic(targets[rows]), rows)
        for index, row in enumerate(rows):
            assert torch.equal(together.actions[index], alone[row].actions[0]), (rows, row)
            assert torch.equal(together.cost[index], alone[row].cost[0])


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_the_plan(name):
    planner, cost = conf(name), quadratic([1.5])
    one, again, other = (solve(planner, cost, (seed,)).actions for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_a_pinned_dimension_stays_to_the_bit(name):
    planner = conf(name, init_std=[1.0, 0.0, 1.0, 0.0], min_std=0.05)
    start = planner.start(1, 4, CPU, np.full((1, 5, 4), 0.1))
    plan = solve(planner, quadratic([0.8]), start=start)
    assert (plan.actions[..., [1, 3]] == torch.tensor(0.1)).all()
    assert (plan.std[..., [1, 3]] == 0).all()
    assert (plan.actions[..., [0, 2]] != torch.tensor(0.1)).all()


@pytest.mark.parametrize("name", NAMES)
def test_shift_drops_n_blocks_and_starts_wide(name):
    planner = conf(name)
    begin = planner.start(2, 1, CPU, [[[1], [2], [3], [4], [5]]] * 2)
    plan = dataclasses.replace(begin, cost=torch.tensor([1.0, torch.inf]), std=begin.std * 0.1)
    following = planner.shift(plan, 2)
    after = 5 if getattr(planner, "pad", "zero") == "last" else 0
    assert following.actions[0, :, 0].tolist() == [3, 4, 5, after, after]
    assert following.actions[1, :, 0].tolist() == [0] * 5, "a failed row starts cold"
    assert torch.equal(following.std, begin.std)
    assert plan.actions[0, :, 0].tolist() == [1, 2, 3, 4, 5], "the plan itself is unchanged"


@pytest.mark.parametrize("name", NAMES)
def test_shift_of_a_shrunken_plan_is_padded_to_the_horizon(name):
    planner = conf(name)
    short = Plan(torch.ones(1, 3, 2), torch.ones(1, 3, 2), torch.zeros(1))
    after = 1 if getattr(planner, "pad", "zero") == "last" else 0
    assert planner.shift(short, 1).actions[0, :, 0].tolist() == [1, 1, after, after, after]
    assert planner.shift(short, 3).actions[0, :, 0].tolist() == [after] * 5


@pytest.mark.parametrize("name", NAMES)
def test_plans_as_far_as_the_start_reaches(name):
    planner = conf(name)
    start = planner.start(1, 4, CPU)
    short = Plan(start.actions[:, :2], start.std[:, :2], start.cost)
    assert solve(planner, quadratic([0.5]), start=short).actions.shape == (1, 2, 4)


@pytest.mark.parametrize("name", NAMES)
def test_warm_starts_of_any_kind_give_the_same_plan(name):
    planner, cost = conf(name), quadratic([0.5])
    values = np.linspace(-1, 1, 12).reshape(1, 3, 4)
    plans = [
        solve(planner, cost, start=planner.start(1, 4, CPU, actions))
        for actions in (values, values.tolist(), torch.tensor(values), torch.tensor(values).float())
    ]
    for plan in plans:
        assert plan.actions.dtype == torch.float32
        torch.testing.assert_close(plan.actions, plans[0].actions, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 6, 4), (1, 5, 3), (2, 5, 4), (5, 4)])
def test_a_warm_start_of_another_shape_is_refused(name, shape):
    with pytest.raises(ValueError, match=r"warm start must be \[1, <=5, 4\], got"):
        conf(name).start(1, 4, CPU, np.zeros(shape))


@pytest.mark.parametrize("name", NAMES)
def test_a_cost_of_another_shape_or_kind_is_refused(name):
    with pytest.raises(ValueError, match=r"cost must return .* \[B,S\], got"):
        solve(conf(name), lambda actions: actions.sum((2, 3)).T)
    with pytest.raises(TypeError, match="cost must return a tensor"):
        solve(conf(name), lambda actions: 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_company_is_refused(name):
    planner = conf(name)
    with pytest.raises(ValueError, match="2 problems need 2 generators"):
        planner.plan(quadratic([0.0]), planner.start(2, 4, CPU), WIDE, generators([0]))
    with pytest.raises(ValueError, match=r"bounds must be two \[3\]"):
        planner.plan(quadratic([0.0]), planner.start(1, 3, CPU), WIDE, generators([0]))


@pytest.mark.parametrize("name", NAMES)
def test_a_row_without_any_finite_cost_keeps_its_mean_and_restarts_cold(name):
    planner, good = conf(name), quadratic([0.5, 0.5])

    def cost(actions):
        costs = good(actions)
        costs[1] = torch.nan
        return costs

    start = planner.start(2, 4, CPU, np.full((2, 5, 4), 0.25))
    plan = solve(planner, cost, (0, 1), start=start)
    assert (plan.actions[1] == 0.25).all()
    assert torch.equal(plan.std[1], start.std[1])
    assert plan.cost[1] == torch.inf
    assert plan.cost[0].isfinite()
    following, cold = planner.shift(plan, 1), planner.start(2, 4, CPU)
    assert torch.equal(following.actions[1], cold.actions[1])
    assert not torch.equal(following.actions[0], cold.actions[0])
    after, fresh = (solve(planner, good, (7, 8), start=one) for one in (following, cold))
    assert torch.equal(after.actions[1], fresh.actions[1])


@pytest.mark.parametrize("name", NAMES)
def test_a_warm_start_outside_the_box_is_brought_in_where_the_planner_clips(name):
    planner = conf(name)
    box = (torch.full((4,), -1.0), torch.full((4,), 1.0))
    start = planner.start(1, 4, CPU, np.full((1, 5, 4), 9.0))
    plan = solve(planner, lambda actions: actions.sum((2, 3)) * torch.nan, bounds=box, start=start)
    assert (plan.actions == (1.0 if planner.clip else 9.0)).all()


@pytest.mark.parametrize("name", [name for name in NAMES if conf(name).iterations > 2])
def test_one_failed_cost_call_is_enough_to_restart_cold(name):
    planner, calls = conf(name), []

    def cost(actions):
        calls.append(1)
        return quadratic([0.5])(actions) * (torch.nan if len(calls) == 3 else 1.0)

    plan = solve(planner, cost)
    assert plan.actions.isfinite().all()
    assert torch.equal(planner.shift(plan, 1).actions, planner.start(1, 4, CPU).actions)
    assert plan.trace.best[:, 0].isinf().tolist() == [i == 2 for i in range(planner.iterations)]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
def test_a_candidate_without_a_finite_cost_is_never_chosen(name, value):
    planner = conf(name)

    def cost(actions):  # everything on the far side of 0.5 is broken, yet would be cheapest
        costs = quadratic([1.0])(actions)
        return torch.where(actions.amax((2, 3)) > 0.5, value, costs)

    plan = solve(planner, cost, start=planner.start(1, 4, CPU))
    assert plan.actions.isfinite().all()
    assert plan.actions.amax() <= 0.5


def test_fewer_finite_costs_than_elites_are_averaged_among_themselves():
    def cost(actions):
        good = torch.isin(torch.arange(actions.shape[1]), torch.tensor([2, 5, 7]))
        return torch.where(good, 1.0, torch.nan).expand(actions.shape[:2])

    planner = cem(iterations=1, num_samples=16, num_elites=8, include_mean=False)
    plan = solve(planner, cost)
    draws = torch.randn(16, 3, 4, generator=generators([0])[0])[[2, 5, 7]]
    torch.testing.assert_close(plan.actions[0], draws.mean(0))
    torch.testing.assert_close(plan.std[0], draws.std(0))
    torch.testing.assert_close(plan.trace.effective_samples, torch.tensor([[3.0]]))


@pytest.mark.parametrize("name", NAMES)
def test_mean_and_best_come_with_their_costs(name):
    planner, cost = conf(name), quadratic([0.7, -0.4])
    plan = solve(planner, cost, (0, 1))
    for scored in (plan.mean, plan.best):
        torch.testing.assert_close(cost(scored.actions[:, None])[:, 0], scored.cost)
    torch.testing.assert_close(cost(plan.actions[:, None])[:, 0], plan.cost)
    if planner.returns != "sample":
        chosen = plan.best if planner.returns == "best" else plan.mean
        assert torch.equal(plan.actions, chosen.actions)
    assert (plan.best.cost <= plan.trace.best.amin(0)).all()


@pytest.mark.parametrize("name", NAMES)
def test_plans_to_be_tried_are_scored_first_and_cut_with_the_horizon(name):
    planner = conf(name)
    goal = torch.full((1, 1, planner.horizon, 4), 7.0)  # no draw comes near it
    start = dataclasses.replace(planner.start(1, 4, CPU), candidates=goal)
    plan = solve(planner, quadratic([7.0]), start=start)
    assert torch.equal(plan.best.actions, goal[0])
    assert plan.best.cost == 0
    short = start.cut(1)
    assert short.actions.shape == (1, 1, 4)
    assert short.candidates.shape == (1, 1, 1, 4)


@pytest.mark.parametrize("name", NAMES)
def test_the_trace_is_per_iteration_and_row(name):
    planner = conf(name)
    plan = solve(planner, quadratic([0.7, -0.4]), (0, 1))
    for field in dataclasses.fields(plan.trace):
        values = getattr(plan.trace, field.name)
        assert values.shape == (planner.iterations, 2), field.name
        assert values.isfinite().all(), field.name
    assert (plan.trace.best <= plan.trace.elite_mean + 1e-6).all()
    assert (plan.trace.effective_samples >= 0.99).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_loop_never_waits_for_a_number(name):
    """On the meta device a tensor has no values, so any host read or branch on one raises."""
    planner, meta = conf(name), torch.device("meta")
    start = planner.start(2, 4, meta)
    plan = planner.plan(
        lambda actions: actions.square().sum((2, 3)), start, WIDE, generators([0, 1])
    )
    assert plan.actions.device == meta
    assert planner.shift(plan, 1).actions.shape == (2, planner.horizon, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_cpu_and_gpu_give_the_same_plan_without_a_sync(name):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    planner, device = conf(name), torch.device("cuda")
    here = solve(planner, quadratic([0.5]))
    bounds, goal = (WIDE[0].to(device), WIDE[1].to(device)), torch.tensor(0.5, device=device)
    start = planner.start(1, 4, device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        plan = planner.plan(
            lambda actions: (actions - goal).square().sum((2, 3)), start, bounds, generators([0])
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(plan.actions.cpu(), here.actions, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_sample": 3}, "num_sample"),
        ({"horizon": 0, "iterations": 2.5}, "horizon=0 .*; iterations=2.5 must be a whole number"),
        ({"momentum": 1.0}, "momentum=1.0 must be >= 0 and < 1.0"),
        ({"momentum_std": [0.5, -1]}, "momentum_std=.* must be >= 0 and < 1.0"),
        ({"init_std": [-1.0, 1.0]}, "init_std=.* must be >= 0"),
        ({"min_std": "wide"}, "min_std='wide'"),
        ({"clip": "yes"}, "clip='yes' must be true or false"),
        ({"std_estimator": "biased"}, "must be one of unbiased, population"),
    ],
)
def test_impossible_settings_are_refused_by_name(name, changes, message):
    with pytest.raises(InstantiationException, match=message):
        conf(name, **changes)


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_setting_is_refused_by_name(name):
    node = OmegaConf.load(str(CONF.joinpath(f"{name}.yaml")))
    del node.num_samples
    with pytest.raises(InstantiationException, match="num_samples"):
        instantiate(node)


def test_more_elites_than_samples_and_per_dimension_lists_of_another_length_are_refused():
    with pytest.raises(ValueError, match="num_elites=9 exceeds num_samples=8"):
        cem(num_samples=8, num_elites=9)
    with pytest.raises(ValueError, match="init_std has 3 numbers, the solver action 4"):
        cem(init_std=[1.0, 1.0, 1.0]).start(1, 4, CPU)
    with pytest.raises(ValueError, match=r"temperature=0\.0 must be a number > 0"):
        mppi(temperature=0.0)
    with pytest.raises(TypeError, match="positional"):
        CEM(5)


# --- the published updates, given the same noise ----------------------------------------------


def published_cem(cost, noise, elites):
    """The LeWM solver in five lines: candidate 0 is the mean, unbiased std, nothing clipped."""
    mean, std = torch.zeros_like(noise[0, 0]), torch.ones_like(noise[0, 0])
    for eps in noise:
        candidates = eps * std + mean
        candidates[0] = mean
        best = candidates[torch.topk(cost(candidates), elites, largest=False).indices]
        mean, std = best.mean(0), best.std(0)
    return mean, std


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.float64, 2e-5)])
def test_lewm_is_the_published_solver_given_the_same_noise(dtype, tolerance):
    planner = conf("lewm")
    goal = torch.randn(5, 10, generator=torch.Generator().manual_seed(9), dtype=dtype) * 2

    def cost(actions):  # not separable: the cumulated path must meet the goal
        return (actions.cumsum(-2) - goal.to(actions.dtype)).square().sum((-1, -2))

    generator = torch.Generator().manual_seed(5)
    noise = torch.stack([torch.randn(300, 5, 10, generator=generator) for _ in range(30)]).to(dtype)
    mean, std = published_cem(cost, noise, 30)
    bounds = (torch.full((10,), -0.1), torch.full((10,), 0.1))  # must be ignored
    plan = solve(planner, cost, (5,), bounds)
    torch.testing.assert_close(plan.actions[0].to(dtype), mean, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(plan.std[0].to(dtype), std, atol=tolerance, rtol=tolerance)


def test_one_round_of_mppi_is_the_softmax_average_in_closed_form():
    noise = torch.randn(512, 3, 4, generator=torch.Generator().manual_seed(2)).double()
    cost = quadratic([1.0])
    candidates = noise.clone()
    candidates[0] = 0
    costs = cost(candidates[None])[0]
    weights = torch.softmax(-costs / 0.7, 0)
    mean = (weights[:, None, None] * candidates).sum(0)
    planner = mppi(iterations=1, num_elites=512, temperature=0.7, normalise=False, adapt_std=False)
    plan = solve(planner, cost, (2,))
    torch.testing.assert_close(plan.actions[0].double(), mean, atol=1e-6, rtol=1e-5)
    assert torch.equal(plan.std, torch.ones(1, 3, 4))
    torch.testing.assert_close(
        plan.trace.effective_samples[0, 0].double(), 1 / weights.square().sum(), rtol=1e-4, atol=0
    )
    spread = mppi(iterations=1, num_elites=512, temperature=0.7)
    weights = torch.softmax(-costs / (0.7 * costs.std(correction=0)), 0)
    mean = (weights[:, None, None] * candidates).sum(0)
    variance = (weights[:, None, None] * (candidates - mean).square()).sum(0)
    variance = variance / (1 - weights.square().sum())
    plan = solve(spread, cost, (2,))
    torch.testing.assert_close(plan.actions[0].double(), mean, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(plan.std[0].double(), variance.sqrt(), atol=1e-6, rtol=1e-5)


def test_mppi_does_not_care_for_the_scale_of_the_cost_unless_raw():
    cost = quadratic([0.6])

    def scaled(actions):
        return 1000 * cost(actions) + 64

    raw = mppi(normalise=False, adapt_std=False)
    for planner, same in ((mppi(), True), (raw, False)):
        one, other = (solve(planner, c, (1,)) for c in (cost, scaled))
        assert torch.allclose(one.actions, other.actions, atol=1e-3) == same
    one_sample = solve(raw, scaled).trace.effective_samples
    assert one_sample.median() < 1.5, "raw temperature on a large cost searches by one sample"
    assert solve(mppi(), scaled).trace.effective_samples.median() > 3


def test_the_std_estimators_differ_by_n_over_n_minus_one():
    cost = quadratic([0.5])
    one, other = (
        solve(cem(iterations=1, num_elites=5, std_estimator=name), cost).std
        for name in ("unbiased", "population")
    )
    torch.testing.assert_close(one, other * (5 / 4) ** 0.5)


@pytest.mark.parametrize("make", [cem, mppi])
@pytest.mark.parametrize("estimator", ["unbiased", "population"])
def test_a_single_elite_has_no_spread_and_no_nan(make, estimator):
    plan = solve(make(num_elites=1, std_estimator=estimator, min_std=0.01), quadratic([0.5]))
    assert plan.actions.isfinite().all()
    assert (plan.std == torch.tensor(0.01)).all()


# --- public reports -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [cem, mppi])
def test_the_floor_holds_for_a_constant_cost(make):
    planner = make(iterations=100, num_samples=64, num_elites=8, min_std=0.05)
    plan = solve(planner, lambda actions: torch.zeros(actions.shape[:2]))
    assert (plan.std >= 0.05).all()
    assert (plan.std == torch.tensor(0.05)).any(), "without a floor it would have collapsed"


def test_momentum_keeps_a_share_of_the_old_for_mean_and_std_alike():
    planner = cem(iterations=1, num_samples=1, num_elites=1, momentum=0.1, include_mean=False)
    begin = planner.start(1, 2, CPU, np.ones((1, 3, 2)))
    nothing = (torch.zeros(2), torch.zeros(2))  # every candidate is 0, and one has no spread
    cold = planner.plan(lambda a: a.sum((2, 3)), begin, nothing, generators([0]))
    assert (cold.std == torch.tensor(0.1)).all()
    unclipped = dataclasses.replace(planner, clip=False, include_mean=False, num_samples=4)
    plan = unclipped.plan(lambda a: a.square().sum((2, 3)), begin, nothing, generators([0]))
    draws = torch.randn(4, 3, 2, generator=generators([0])[0]) + 1
    elite = draws[draws.square().sum((1, 2)).argmin()]
    torch.testing.assert_close(plan.actions[0], 0.1 * torch.ones(3, 2) + 0.9 * elite)
    both = dataclasses.replace(unclipped, momentum=[0.1, 0.9])
    plan = both.plan(lambda a: a.square().sum((2, 3)), begin, nothing, generators([0]))
    torch.testing.assert_close(plan.actions[0, :, 1], 0.9 + 0.1 * elite[:, 1])
    apart = dataclasses.replace(unclipped, momentum_std=[0.1, 0.9])
    plan = apart.plan(lambda a: a.square().sum((2, 3)), begin, nothing, generators([0]))
    torch.testing.assert_close(plan.actions[0], 0.1 * torch.ones(3, 2) + 0.9 * elite)
    torch.testing.assert_close(plan.std[0], torch.tensor([[0.1, 0.9]] * 3))


@pytest.mark.parametrize("make", [cem, mppi])
def test_equal_costs_do_not_pull_to_a_bound(make):
    planner = make(num_samples=4096, num_elites=4096, iterations=3)
    box = (torch.full((4,), -1.0), torch.full((4,), 1.0))
    plan = solve(planner, lambda actions: torch.full(actions.shape[:2], 3.0), bounds=box)
    assert plan.actions.abs().max() < 0.05, f"{plan.actions.abs().max():.3f}"


@pytest.mark.parametrize("make", [cem, mppi])
def test_an_optimum_inside_the_box_is_found_away_from_its_sides(make):
    seen = []

    def cost(actions):
        seen.append(actions)
        return quadratic([0.2])(actions)

    box = (torch.full((4,), -1.0), torch.full((4,), 1.0))
    plan = solve(make(iterations=20), cost, bounds=box)
    assert (plan.actions - 0.2).abs().max() < 0.02
    last = seen[19]
    assert (last.abs() == 1).float().mean() < 0.05


@pytest.mark.parametrize(
    "planner",
    [
        cem(),
        mppi(temperature=0.05, init_std=0.5, normalise=False, adapt_std=False, num_elites=512),
        mppi(temperature=0.05, init_std=0.5),
    ],
    ids=["cem", "mppi-raw", "mppi"],
)
@pytest.mark.parametrize("seed", range(5))
def test_toy_dynamics_reach_the_goal_and_the_best_never_worsens(planner, seed):
    """z' = z + a, goal 3, horizon 3, bounds +-2."""

    def cost(actions):
        return (actions[..., 0].sum(2) - 3.0).square()

    box = (torch.tensor([-2.0]), torch.tensor([2.0]))
    plan = solve(planner, cost, (seed,), box)
    assert abs(plan.actions.sum().item() - 3) < 0.05, f"{plan.actions.sum().item():.4f}"
    best = solve(dataclasses.replace(planner, returns="best"), cost, (seed,), box)
    assert best.cost[0] == best.trace.best[:, 0].min(), "the best candidate seen is kept"
    torch.testing.assert_close(cost(best.actions[:, None])[0], best.cost)
