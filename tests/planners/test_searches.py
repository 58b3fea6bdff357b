"""What every planner of real-valued actions must do that is no sampling loop of ours."""

import dataclasses
from functools import partial
from importlib.resources import files

import numpy as np
import pytest
import torch
from hydra.errors import InstantiationException
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.interfaces import Context
from jepa_wm.control.objectives import GoalDistance
from jepa_wm.planners.categorical import CategoricalCEM
from jepa_wm.planners.sampling import SamplingPlanner

from control.point_mass import PointModel  # isort: skip

torch.set_num_threads(1)
CPU, META = torch.device("cpu"), torch.device("meta")
CONF = files("jepa_wm.conf").joinpath("planner")
L2 = partial(GoalDistance, norm="l2", reduce="sum", steps="last")
A, H = 4, 5
WIDE = (torch.full((A,), -50.0), torch.full((A,), 50.0))
GOALS = torch.tensor([[0.4, -0.3], [-0.2, 0.5], [0.1, 0.1], [-0.5, -0.1]])
FEW = {"iterations": 40, "sync_every": 10}  # the published thousand steps are long


def is_here(path):
    kind = get_class(OmegaConf.load(str(path))._target_)
    return not issubclass(kind, SamplingPlanner) and kind is not CategoricalCEM


NAMES = sorted(
    path.name[:-5] for path in CONF.iterdir() if path.name.endswith(".yaml") and is_here(path)
)
ONE_STAGE = [name for name in NAMES if name != "hybrid"]


def conf(name, few=True, unknown=None, **changes):
    """A preset with the changes that it, or a stage of it, has settings for."""
    node = OmegaConf.to_container(OmegaConf.load(str(CONF.joinpath(f"{name}.yaml"))))
    for one in [node["first"], node["polish"]] if name == "hybrid" else [node]:
        short = {key: min(FEW[key], one[key]) for key in FEW if key in one and few}
        one.update(short | {key: value for key, value in changes.items() if key in one})
    return instantiate(node | (unknown or {}), _convert_="all")


class Spoiled:
    """A cost of which some answers are changed."""

    def __init__(self, cost, change):
        self.cost, self.change = cost, change

    def __call__(self, actions):
        return self.change(self.cost(actions), actions)

    def score(self, z, actions):
        return self.change(self.cost.score(z, actions), actions)

    def __getattr__(self, name):
        return getattr(self.cost, name)


def problem(rows=(0,), change=None, device=CPU):
    """The cost of point masses to be moved from 0 to ``GOALS``."""
    with torch.inference_mode():  # as MPC encodes
        goals, z = GOALS[list(rows)].to(device), torch.zeros(len(rows), 1, 2, device=device)
        context = Context(z, torch.zeros(len(rows), 0, A, device=device))
    cost = RolloutCost(PointModel(), L2, goals, context)
    return cost if change is None else Spoiled(cost, change)


def generators(seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def solve(planner, rows=(0,), start=None, bounds=WIDE, change=None, seeds=None):
    start = planner.start(len(rows), A, CPU) if start is None else start
    cost = problem(rows, change)
    return planner.plan(cost, start, bounds, generators(rows if seeds is None else seeds))


@pytest.mark.parametrize("name", NAMES)
def test_nears_the_goal(name):
    planner = conf(name, few=False)
    plan = solve(planner, (0, 1))
    begin = problem((0, 1))(torch.zeros(2, 1, H, A))[:, 0]
    assert plan.actions.shape == (2, H, A) and plan.actions.dtype == torch.float32
    assert (plan.cost < 0.05 * begin).all(), f"cost {plan.cost} from {begin}"
    torch.testing.assert_close(problem((0, 1))(plan.actions[:, None])[:, 0], plan.cost)


@pytest.mark.parametrize("name", NAMES)
def test_keeps_the_bounds_where_it_clips(name):
    planner, seen = conf(name), []
    bounds = (torch.tensor([-0.2, -0.1, 0.0, 0.1]), torch.tensor([0.2, 0.1, 0.0, 0.3]))

    def watch(costs, actions):
        seen.append(actions.detach().reshape(-1, A))
        return costs

    plan = solve(planner, bounds=bounds, change=watch)
    candidates = torch.cat([*seen, plan.actions[0]])
    clips = planner.first.clip if name == "hybrid" else planner.clip
    assert bool(((candidates >= bounds[0]) & (candidates <= bounds[1])).all()) == clips
    if clips:
        assert (plan.actions[..., 2] == 0).all(), "a box of width zero"


@pytest.mark.parametrize("name", ONE_STAGE)
def test_keeps_its_constraints(name):
    limit = {"_target_": "jepa_wm.planners.constraints.Limit", "dims": [0, 2], "limit": 0.3}
    planner, seen = conf(name, constraints={"ball": limit | {"shape": "l1"}}), []

    def watch(costs, actions):
        seen.append(actions.detach().reshape(-1, A))
        return costs

    plan = solve(planner, change=watch)
    candidates = torch.cat([*seen, plan.actions[0]])
    assert (candidates[:, [0, 2]].abs().sum(1) <= 0.3 + 1e-6).all()
    assert candidates[:, [1, 3]].abs().amax() > 0.3


@pytest.mark.parametrize("name", NAMES)
def test_a_row_plans_the_same_alone_and_in_any_company(name):
    planner = conf(name)
    alone = [solve(planner, (row,)) for row in range(4)]
    for rows in ([0, 1], [3, 2, 1, 0]):
        together = solve(planner, rows)
        for index, row in enumerate(rows):
            assert torch.equal(together.actions[index], alone[row].actions[0]), (rows, row)
            assert torch.equal(together.cost[index], alone[row].cost[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_failing_row_leaves_the_others_alone(name):
    def broken(costs, actions):
        return torch.where(torch.arange(len(costs))[:, None] == 0, torch.nan, costs)

    planner = conf(name)
    alone, together = solve(planner, (1,)), solve(planner, (0, 1), change=broken)
    assert torch.equal(together.actions[1], alone.actions[0])


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides_the_plan(name):
    planner = conf(name, include_mean=False, num_samples=6, num_elites=3)
    one, again, other = (solve(planner, seeds=(seed,)).actions for seed in (3, 3, 4))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("name", NAMES)
def test_a_pinned_dimension_stays_to_the_bit(name):
    planner = conf(name, init_std=[1.0, 0.0, 1.0, 0.0])
    plan = solve(planner, start=planner.start(1, A, CPU, np.full((1, H, A), 0.1)))
    assert (plan.actions[..., [1, 3]] == torch.tensor(0.1)).all()
    assert (plan.actions[..., [0, 2]] != torch.tensor(0.1)).all()


@pytest.mark.parametrize("name", NAMES)
def test_shift_drops_n_blocks_and_starts_wide(name):
    planner = conf(name)
    begin = planner.start(2, 1, CPU, [[[1], [2], [3], [4], [5]]] * 2)
    plan = dataclasses.replace(begin, cost=torch.tensor([1.0, torch.inf]), std=begin.std * 0.1)
    following = planner.shift(plan, 2)
    assert following.actions[0, :, 0].tolist() == [3, 4, 5, 0, 0]
    assert following.actions[1, :, 0].tolist() == [0] * 5, "a failed row starts cold"
    assert torch.equal(following.std, begin.std)


@pytest.mark.parametrize("name", NAMES)
def test_plans_as_far_as_the_start_reaches(name):
    planner = conf(name)
    plan = solve(planner, start=planner.start(1, A, CPU).cut(2))
    assert plan.actions.shape == (1, 2, A)
    assert planner.shift(plan, 1).actions.shape == (1, H, A)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 6, A), (1, H, 3), (2, H, A), (H, A)])
def test_a_warm_start_of_another_shape_is_refused(name, shape):
    with pytest.raises(ValueError, match=r"warm start must be \[1, <=5, 4\], got"):
        conf(name).start(1, A, CPU, np.zeros(shape))


@pytest.mark.parametrize("name", NAMES)
def test_a_cost_of_another_shape_or_kind_is_refused(name):
    with pytest.raises(ValueError, match=r"cost must return .* \[B,S\], got"):
        solve(conf(name), change=lambda costs, actions: costs.expand(3, -1))
    with pytest.raises(TypeError, match="cost must return a tensor"):
        solve(conf(name), change=lambda costs, actions: 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_company_is_refused(name):
    planner = conf(name)
    with pytest.raises(ValueError, match="2 problems need 2 generators"):
        planner.plan(problem((0, 1)), planner.start(2, A, CPU), WIDE, generators([0]))
    with pytest.raises(ValueError, match=r"bounds must be two \[3\]"):
        planner.plan(problem(), planner.start(1, 3, CPU), WIDE, generators([0]))


@pytest.mark.parametrize("name", NAMES)
def test_a_row_without_any_finite_cost_keeps_its_mean_and_restarts_cold(name):
    def broken(costs, actions):
        return torch.where(torch.arange(len(costs))[:, None] == 1, torch.nan, costs)

    planner = conf(name)
    start = planner.start(2, A, CPU, np.full((2, H, A), 0.25))
    plan = solve(planner, (0, 1), start, change=broken)
    assert (plan.actions[1] == 0.25).all()
    assert plan.cost[1] == torch.inf and plan.cost[0].isfinite()
    following, cold = planner.shift(plan, 1), planner.start(2, A, CPU)
    assert torch.equal(following.actions[1], cold.actions[1])
    assert not torch.equal(following.actions[0], cold.actions[0])


@pytest.mark.parametrize("name", NAMES)
def test_one_failed_cost_call_is_enough_to_restart_cold(name):
    planner, calls = conf(name), []

    def broken(costs, actions):
        if actions.shape[-2] == H and costs.requires_grad == (name not in ("cmaes", "hybrid")):
            calls.append(1)  # a round of the trace; GRASP also asks about single steps
            return costs * (torch.nan if len(calls) == 3 else 1.0)
        return costs

    plan = solve(planner, change=broken)
    assert plan.actions.isfinite().all()
    assert torch.equal(planner.shift(plan, 1).actions, planner.start(1, A, CPU).actions)
    assert plan.trace.best[:, 0].isinf().tolist()[:4] == [False, False, True, False]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [torch.nan, -torch.inf, torch.inf])
def test_a_candidate_without_a_finite_cost_is_never_chosen(name, value):
    """All that goes past 0.05 is broken, yet it is where the goal is."""

    def broken(costs, actions):
        return torch.where(actions.amax((2, 3)) > 0.05, value, costs)

    plan = solve(conf(name), change=broken)
    assert plan.actions.isfinite().all()
    assert plan.actions.amax() <= 0.05 and plan.best.actions.amax() <= 0.05


@pytest.mark.parametrize("name", NAMES)
def test_the_best_comes_with_its_cost_and_is_no_worse_than_the_start(name):
    planner = conf(name, include_mean=True)
    start = planner.start(2, A, CPU, np.full((2, H, A), 0.3))
    plan, cost = solve(planner, (0, 1), start), problem((0, 1))
    torch.testing.assert_close(cost(plan.best.actions[:, None])[:, 0], plan.best.cost)
    assert (plan.best.cost <= plan.trace.best.amin(0)).all()
    assert (plan.best.cost <= cost(start.actions[:, None])[:, 0]).all()


@pytest.mark.parametrize("name", NAMES)
def test_plans_to_be_tried_are_scored_first(name):
    planner = conf(name, num_samples=12)
    good = torch.zeros(1, 1, H, A)
    good[..., 0], good[..., 1] = 0.8, -0.6  # H x 0.1 x action: on the goal
    start = dataclasses.replace(planner.start(1, A, CPU), candidates=good)
    plan = solve(planner, start=start)
    assert plan.best.cost < 1e-10
    partly = dataclasses.replace(start, candidates=torch.where(good == 0, torch.nan, good))
    assert solve(planner, start=partly).actions.isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_the_trace_is_per_round_and_row(name):
    planner = conf(name)
    plan = solve(planner, (0, 1))
    rounds = {"grasp": 20, "hybrid": 30}.get(name, getattr(planner, "iterations", None))
    for field in dataclasses.fields(plan.trace):
        values = getattr(plan.trace, field.name)
        assert values.shape == (rounds, 2), field.name
        assert values.isfinite().all(), field.name
    assert (plan.trace.best <= plan.trace.elite_mean + 1e-6).all()
    assert (plan.trace.effective_samples >= 0.99).all()


@pytest.mark.parametrize("name", [name for name in NAMES if name != "cmaes"])
def test_the_loop_never_waits_for_a_number(name):
    """On the meta device a tensor has no values, so any host read or branch on one raises."""
    planner = conf(name)
    start = planner.start(2, A, META)
    plan = planner.plan(problem((0, 1), device=META), start, WIDE, generators([0, 1]))
    assert plan.actions.device == META
    assert planner.shift(plan, 1).actions.shape == (2, H, A)


@pytest.mark.parametrize("name", NAMES)
def test_evaluations_are_counted(name):
    planner, cost = conf(name), problem()
    planner.plan(cost, planner.start(1, A, CPU), WIDE, generators([0]))
    expected = {
        "cmaes": lambda p: p.iterations * p.num_samples + 1,
        "grasp": lambda p: p.num_samples * (p.iterations + 4 * p.sync_steps + 1 + 4),
        "hybrid": lambda p: 10 * 300 + 1 + 21 * 4,
    }.get(name, lambda p: (p.iterations + 1) * p.num_samples)
    assert cost.evaluations == expected(planner)


@pytest.mark.parametrize("name", ONE_STAGE)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unknown": {"num_sample": 3}}, "num_sample"),
        ({"horizon": 0, "iterations": 2.5}, "horizon=0 .*; .*iterations=2.5 must be a whole numb"),
        ({"init_std": [-1.0, 1.0]}, "init_std=.* must be >= 0"),
        ({"clip": "yes"}, "clip='yes' must be true or false"),
    ],
)
def test_impossible_settings_are_refused_by_name(name, changes, message):
    with pytest.raises(InstantiationException, match=message):
        conf(name, few=False, **changes)


@pytest.mark.parametrize("name", ONE_STAGE)
def test_a_setting_of_another_action_is_refused(name):
    with pytest.raises(ValueError, match="init_std has 3 numbers, the solver action 4"):
        conf(name, init_std=[1.0, 1.0, 1.0]).start(1, A, CPU)
