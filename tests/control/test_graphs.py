"""Recorded solves: the same plans as unrecorded ones, whatever ran before or after."""

import dataclasses

import pytest
import torch

from jepa_wm.control.graphs import KEPT, Problem, SolveGraphs, record_cuda_graph
from jepa_wm.control.interfaces import Context, Plan, PlanTrace, Scored
from jepa_wm.control.streams import CounterStreams
from jepa_wm.runtime import stream_seed

CPU = torch.device("cpu")


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
