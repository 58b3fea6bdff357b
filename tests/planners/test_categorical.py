"""Categorical CEM: draws, refits, warm starts, and a discrete TwoRoom from the command's parts."""

import dataclasses

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

from jepa_wm.control.discrete import DiscreteCodec
from jepa_wm.control.interfaces import Plan
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.setup import load_brain, make_agent
from jepa_wm.launch import build, preset_node
from jepa_wm.planners.categorical import CategoricalCEM

torch.set_num_threads(1)
CPU, META = torch.device("cpu"), torch.device("meta")
H, CHOICES = 4, (3, 2)  # two choices a step, two steps a block
A = 2 * sum(CHOICES)
CODEC = DiscreteCodec(block=2, choices=CHOICES)
TARGET = torch.randint(2, (2, 2 * H, 2), generator=torch.Generator().manual_seed(0)).float()


def planner(**changes):
    node = {k: v for k, v in preset_node("planner", "categorical").items() if k != "_target_"}
    small = {"choices": CHOICES, "horizon": H, "num_samples": 64, "num_elites": 8}
    return CategoricalCEM(**(node | small | changes))


def generators(seeds=(0, 1)):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def miss(rows=(0, 1)):
    """Count the options that differ from a target's."""
    goal = CODEC.encode(TARGET[list(rows)])[:, None]
    return lambda actions: (actions - goal).abs().sum((2, 3)) / 2


def solve(search, cost=None, start=None, rows=(0, 1), seeds=None):
    begin = search.start(len(rows), A, CPU) if start is None else start
    given = generators(rows if seeds is None else seeds)
    return search.plan(cost or miss(rows), begin, CODEC.bounds(), given)


def groups(values):
    return values.split([3, 2, 3, 2], -1)


@pytest.mark.parametrize("returns", ["best", "mode"])
def test_finds_the_options_of_its_goal(returns):
    plan = solve(planner(returns=returns))
    assert torch.equal(CODEC.decode(plan.actions), TARGET)
    assert (plan.cost == 0).all() and plan.actions.dtype == torch.float32
    assert plan.trace.best.shape == (10, 2)
    assert (plan.trace.best <= plan.trace.elite_mean).all()
    assert (plan.trace.effective_samples == 8).all()


def test_every_candidate_is_one_hot_and_the_first_most_likely():
    seen = []

    def cost(actions):
        seen.append(actions)
        return miss()(actions)

    start = planner().start(2, A, CPU, CODEC.encode(TARGET)[:, :2])
    solve(planner(), cost, start)
    assert all((group.sum(-1) == 1).all() for one in seen for group in groups(one))
    assert all(((one == 0) | (one == 1)).all() for one in seen)
    first = CODEC.decode(seen[0][:, 0])
    assert torch.equal(first[:, :4], TARGET[:, :4]), "what a warm start says"


def test_options_are_drawn_as_often_as_they_are_likely():
    chances = torch.tensor([0.7, 0.2, 0.1, 0.9, 0.1] * 2).expand(1, H, A)
    search = planner(num_samples=4000, num_elites=4000, iterations=1, smoothing=0.0,
                     include_mode=False)  # fmt: skip
    start = Plan(chances, chances, torch.zeros(1))
    shares = []

    def cost(actions):
        shares.append(actions.mean(1))
        return torch.zeros(actions.shape[:2])

    solve(search, cost, start, rows=(0,))
    torch.testing.assert_close(shares[0], chances, atol=0.03, rtol=0)


def test_refit_is_frequency_smoothed_and_blended():
    search = planner(num_elites=4, smoothing=0.5, momentum=0.25)
    samples = CODEC.encode(torch.tensor([[[0.0, 0.0]] * 8, [[0.0, 1.0]] * 8, [[1.0, 1.0]] * 8,
                                         [[2.0, 1.0]] * 8, [[2.0, 0.0]] * 8]))[None]  # fmt: skip
    old = torch.full((1, H, A), 0.3)
    costs = torch.tensor([[1.0, 2.0, 3.0, 4.0, 99.0]])
    chances, trace = search._refit(old, samples, costs)
    frequency = torch.tensor([0.5, 0.25, 0.25, 0.25, 0.75] * 2)
    uniform = torch.tensor([1 / 3] * 3 + [1 / 2] * 2).repeat(2)
    fit = (frequency + 0.5 * uniform) / 1.5
    torch.testing.assert_close(chances[0, 0], 0.25 * 0.3 + 0.75 * fit)
    assert (trace.best.item(), trace.elite_mean.item()) == (1.0, 2.5)


def test_elites_without_a_finite_cost_do_not_count():
    search = planner(num_elites=4, smoothing=0.0)
    samples = CODEC.encode(torch.tensor([[[float(i % 3), 0.0]] * 8 for i in range(6)]))[None]
    costs = torch.tensor([[torch.inf, 1.0, 2.0, torch.inf, torch.inf, torch.inf]])
    chances, trace = search._refit(torch.full((1, H, A), 0.3), samples, costs)
    torch.testing.assert_close(chances[0, 0, :3], torch.tensor([0.0, 0.5, 0.5]))
    assert trace.effective_samples.item() == 2


def test_a_warm_start_shifts_the_plan_and_opens_it_again():
    search = planner(restart=0.3)
    plan = solve(search)
    start = search.shift(plan, 1)
    uniform = torch.tensor([1 / 3] * 3 + [1 / 2] * 2).repeat(2)
    torch.testing.assert_close(start.actions[:, :3], 0.3 * uniform + 0.7 * plan.actions[:, 1:])
    torch.testing.assert_close(start.actions[:, 3], uniform.expand(2, A))
    cold = dataclasses.replace(search, restart=1.0).shift(plan, 1)
    assert torch.equal(cold.actions, search.start(2, A, CPU).actions)
    failed = dataclasses.replace(plan, cost=torch.tensor([0.0, torch.inf]))
    assert torch.equal(search.shift(failed, 1).actions[1], cold.actions[1])


def test_the_seed_decides_the_plan_and_a_row_is_the_same_in_any_company():
    search = planner(iterations=2, num_samples=12)
    together = solve(search)
    for row in (0, 1):
        alone = solve(search, rows=(row,))
        assert torch.equal(alone.actions[0], together.actions[row])
        assert torch.equal(alone.cost[0], together.cost[row])
    assert not torch.equal(solve(search, seeds=(5, 6)).actions, together.actions)


def test_a_row_without_any_finite_cost_keeps_its_start_and_restarts_cold():
    def cost(actions):
        return torch.where(torch.arange(2)[:, None] == 1, torch.nan, miss()(actions))

    start = planner().start(2, A, CPU, CODEC.encode(TARGET))
    plan = solve(planner(), cost, start)
    assert torch.equal(CODEC.decode(plan.actions[1]), TARGET[1])
    assert plan.cost[1] == torch.inf and plan.cost[0] == 0
    cold = planner().start(1, A, CPU).actions[0]
    assert torch.equal(planner().shift(plan, 1).actions[1], cold)


def test_plans_to_be_tried_are_scored_first():
    start = planner().start(2, A, CPU)
    tried = dataclasses.replace(start, candidates=CODEC.encode(TARGET)[:, None])
    plan = solve(planner(iterations=1, num_samples=8), start=tried)
    assert (plan.best.cost == 0).all()
    assert solve(planner(), start=start.cut(2), cost=lambda a: a.sum((2, 3))).actions.shape[1] == 2


def test_the_loop_never_waits_for_a_number():
    search = planner()
    plan = search.plan(lambda a: a.sum((2, 3)), search.start(2, A, META), CODEC.bounds(),
                       generators())  # fmt: skip
    assert plan.actions.device == META and search.shift(plan, 1).actions.shape == (2, H, A)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"choices": 1}, "choices=1 must be whole numbers >= 2 or null"),
        ({"num_elites": 65}, "num_elites=65 exceeds num_samples=64"),
        ({"momentum": 1.0}, "momentum=1.0 must be < 1"),
        ({"restart": 0}, "restart=0 must be a number > 0"),
        ({"smoothing": -1}, "smoothing=-1 must be a number >= 0"),
        ({"returns": "mean"}, "returns='mean' must be one of mode, best"),
    ],
)
def test_impossible_settings_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        planner(**changes)


def test_what_does_not_fit_the_action_is_refused():
    with pytest.raises(ValueError, match="choices is not known; it is the action space's own"):
        planner(choices=None).start(1, A, CPU)
    with pytest.raises(ValueError, match=r"are 5 numbers a step, the solver action has 12"):
        planner().start(1, 12, CPU)
    with pytest.raises(ValueError, match=r"warm start must be \[1, <=4, 10\]"):
        planner().start(1, A, CPU, torch.zeros(1, 5, A))
    with pytest.raises(ValueError, match="2 problems need 2 generators"):
        solve(planner(), seeds=(0,))


def options(*overrides):
    with initialize_config_module("jepa_wm.conf", version_base=None):
        node = compose("plan", ["env=tworoom", "planner=categorical", *overrides])
        return OmegaConf.to_container(node, resolve=True)


def brain(*overrides):
    chosen = options(*overrides)
    space = build(chosen["env"], "env").action_space
    return chosen, load_brain(chosen, space, CPU, torch.float32)


@pytest.mark.parametrize("model", ["exact", "simulator"])
def test_a_discrete_tworoom_is_planned_in(model):
    """From one corner of a room to another; the plan's last step is scored, not its first."""
    chosen, found = brain("env.action=discrete", f"model={model}", "planner.num_samples=64")
    agent = make_agent(chosen, found, CPU)
    assert agent.planner.choices == (5,)
    goal, place = np.array([[190.0, 60.0]]), np.array([[130.0, 120.0]])
    agent.reset(goal, [0], 30)
    for _ in range(30):
        place = place + 5.0 * np.array(chosen["task"]["moves"])[agent.act(place).astype(int)[:, 0]]
    assert np.linalg.norm(place - goal) < 16


def test_choices_and_numbers_do_not_mix():
    with pytest.raises(ConfigError, match=r"the action space is Box\(2,\), CategoricalCEM"):
        make_agent(*brain("model=exact"), CPU)
    with pytest.raises(ConfigError, match=r"the action space is Discrete\(5\), CEM searches"):
        make_agent(*brain("env.action=discrete", "model=exact", "planner=cem"), CPU)
    with pytest.raises(ConfigError, match=r"limits=\['speed'\]: they are for numbers"):
        given, found = brain("env.action=discrete", "model=exact")
        make_agent(given | {"limits": {"speed": {}}}, found, CPU)
