"""Recorded solves: the same plans as unrecorded ones, whatever ran before or after."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from point_mass import BOX, SPEED, PointModel, positions

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.graphs import KEPT, Problem, SolveGraphs, record_cuda_graph
from jepa_wm.control.interfaces import Context, Plan, PlanTrace, Scored
from jepa_wm.control.mpc import MPC
from jepa_wm.control.objectives import GoalDistance, SmoothnessPenalty
from jepa_wm.control.streams import CounterStreams
from jepa_wm.launch import preset
from jepa_wm.models import load_world_model
from jepa_wm.runtime import stream_seed

CPU = torch.device("cpu")
L2 = partial(GoalDistance, norm="l2", reduce="sum", steps="last")
UNIT = ActionCodec(block=2, mean=[0, 0], std=[1, 1], low=BOX[0], high=BOX[1])


def problem(rows, horizon=3, seed=0, device=CPU, candidates=False):
    draw = torch.Generator().manual_seed(seed)
    z, goal = torch.randn(rows, 1, 2, generator=draw), torch.randn(rows, 2, generator=draw)
    kept = torch.randn(rows, 2, horizon, 2, generator=draw) if candidates else None
    start = Plan(
        torch.zeros(rows, horizon, 2),
        torch.ones(rows, horizon, 2),
        torch.zeros(rows),
        candidates=kept,
    )
    seeds = torch.tensor([stream_seed(seed, row) for row in range(rows)])
    return move(Problem(Context(z, torch.zeros(rows, 0, 2)), goal, start, seeds), device)


def move(record, device):
    values = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            values[name] = value.to(device)
        elif dataclasses.is_dataclass(value):
            values[name] = move(value, device)
    return type(record)(**values)


def shooting(given, streams):
    """Best of 64 around the start: z' = z + a."""
    start = given.start
    samples = (
        streams.normal(64, *start.actions.shape[1:]) * start.std[:, None] + start.actions[:, None]
    )
    if start.candidates is not None:
        samples = torch.cat([start.candidates, samples], 1)
    reached = given.context.z[:, -1:] + samples.sum(2)
    costs = (reached - given.goal_z[:, None]).square().sum(-1)
    lowest, index = costs.min(1)
    best = samples[torch.arange(len(samples), device=samples.device), index]
    trace = PlanTrace(*(lowest[None].expand(4, -1) + k for k in range(4)))
    scored = Scored(best, lowest)
    return Plan(best, start.std, lowest, trace, mean=scored, best=scored), samples.shape[1]


class Again:
    """Records by remembering the function: what a graph does, without a device."""

    def __init__(self):
        self.recorded = 0

    def __call__(self, run):
        run()
        self.recorded += 1
        return run


def same(one, other):
    for field in dataclasses.fields(one):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b)
        elif dataclasses.is_dataclass(a):
            same(a, b)
        else:
            assert a is b is None


@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("candidates", [False, True])
def test_a_recorded_solve_is_the_solve(rows, candidates):
    graphs = SolveGraphs(shooting, Again())
    for seed in range(3):
        given = problem(rows, seed=seed, candidates=candidates)
        plan, evaluations = graphs(given)
        wanted, count = shooting(given, CounterStreams(given.seeds, CPU))
        same(plan, wanted)
        assert evaluations == count == 64 + 2 * candidates


def test_one_recording_serves_all_batches_that_pad_to_it():
    record = Again()
    graphs = SolveGraphs(shooting, record)
    for rows in (8, 7, 6, 5):
        graphs(problem(rows))
    assert record.recorded == 1
    graphs(problem(4))
    graphs(problem(4, horizon=2))
    assert record.recorded == 3


def test_an_earlier_plan_keeps_its_values():
    graphs = SolveGraphs(shooting, Again())
    first, _ = graphs(problem(3, seed=0))
    before = first.actions.clone(), first.trace.best.clone()
    graphs(problem(3, seed=1))
    assert torch.equal(first.actions, before[0])
    assert torch.equal(first.trace.best, before[1])


def test_the_longest_unused_recording_goes_first():
    record = Again()
    graphs = SolveGraphs(shooting, record)
    for horizon in range(1, KEPT + 2):  # the first is gone after the last
        graphs(problem(1, horizon))
    graphs(problem(1, KEPT))
    assert record.recorded == KEPT + 1
    graphs(problem(1, 1))
    assert record.recorded == KEPT + 2


@pytest.mark.gpu
def test_a_cuda_graph_gives_the_plan_of_the_eager_solve():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    cuda = torch.device("cuda")
    graphs, eager = SolveGraphs(shooting, record_cuda_graph), SolveGraphs(shooting, Again())
    for seed in range(3):
        same(
            graphs(problem(3, seed=seed, device=cuda))[0],
            eager(problem(3, seed=seed, device=cuda))[0],
        )


# a loop on a device records its solves; here a device is a CPU that says it is none


def recorded_loop(planner, record, **changes):
    settings = {"objective": L2, "codec": UNIT, "device": CPU, "replan_every": 1}
    mpc = MPC(world_model=PointModel(), planner=planner, **settings | changes)
    mpc._solver._draws_there = True
    mpc._solver._record = record
    return mpc


@pytest.mark.parametrize("name", ["cem", "mppi", "icem"])
def test_a_loop_with_recorded_solves_acts_like_one_without(name):
    planner = dataclasses.replace(preset("planner", name), num_samples=64, init_std=1.0)
    goals, here = positions(0, 5), positions(1, 5)
    actions = []
    for record in (Again(), None):
        mpc = recorded_loop(planner, record)
        mpc.reset(goals, range(5), budget=12)
        place, active, taken = here.copy(), np.ones(5, bool), []
        for step in range(12):
            active[3:] = step < 4  # rows end on the way
            taken.append(mpc.act(place, active=active))
            place = place + SPEED * taken[-1]
        actions.append(np.stack(taken))
        assert mpc.decisions[0].evaluations > 64
    np.testing.assert_allclose(actions[0], actions[1], atol=1e-5)


def test_recordings_are_kept_from_solve_to_solve():
    planner = dataclasses.replace(preset("planner", "cem"), num_samples=16, num_elites=4)
    record = Again()
    mpc = recorded_loop(planner, record)
    mpc.reset(positions(0, 4), range(4))
    for _ in range(10):  # five blocks
        mpc.act(positions(1, 4))
    assert len(mpc.decisions) == 5
    contexts = 3  # of one, two and three frames
    assert record.recorded == contexts


def test_an_objective_that_asks_for_the_situation_is_not_recorded():
    planner = dataclasses.replace(preset("planner", "cem"), num_samples=16, num_elites=4)
    record = Again()
    mpc = recorded_loop(planner, record, objective=SmoothnessPenalty)
    mpc.reset(positions(0, 2), range(2))
    mpc.act(positions(1, 2))
    assert record.recorded == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cem", "mppi", "icem"])
def test_a_cuda_loop_plans_like_the_eager_one(name, tiny):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    world = load_world_model(tiny("lewm"), device)
    planner = dataclasses.replace(preset("planner", name), num_samples=64)
    codec = ActionCodec(block=5, mean=[0, 0], std=[1, 1], low=[-1, -1], high=[1, 1])
    plans = []
    for record in (record_cuda_graph, None):
        parts = {"world_model": world, "planner": planner, "objective": L2, "codec": codec}
        mpc = MPC(**parts, device=device, replan_every=1)
        mpc._solver._record = record
        frames = np.random.default_rng(0).integers(0, 256, (4, 24, 24, 3), np.uint8)
        mpc.reset(frames, range(4))
        mpc.act(frames)
        plans.append(mpc.last_plan.actions.cpu())
    torch.testing.assert_close(plans[0], plans[1], atol=1e-3, rtol=1e-3)
