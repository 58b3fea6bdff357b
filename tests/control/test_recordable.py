"""What a CUDA graph can hold, found out without a GPU: solves on a device that has no numbers.

The meta device runs every operation of a solve but computes nothing, so what waits for a number
fails there. ``Watched`` also refuses what would copy from the host's memory, which a graph would
read again when it is gone.
"""

import dataclasses
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib.resources import files

import pytest
import torch
from hydra.utils import get_class
from omegaconf import OmegaConf
from point_mass import PointModel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.dynamics import Quadratic
from jepa_wm.control.graphs import record_cuda_graph
from jepa_wm.control.interfaces import Context
from jepa_wm.control.objectives import (
    ActionPenalty,
    GoalDistance,
    GoalList,
    SmoothnessPenalty,
    WeightedSum,
)
from jepa_wm.control.solver import Solver
from jepa_wm.launch import preset
from jepa_wm.models import load_world_model
from jepa_wm.models.ac_world_model import ACWorldModel
from jepa_wm.models.lewm_world_model import LeWMWorldModel

CPU, META = torch.device("cpu"), torch.device("meta")
L2 = partial(GoalDistance, norm="l2", reduce="sum", steps="last")
CONF = files("jepa_wm.conf").joinpath("planner")
RECORDABLE = sorted(
    entry.name[:-5]
    for entry in CONF.iterdir()
    if entry.name.endswith(".yaml")
    and getattr(get_class(OmegaConf.load(str(entry))._target_), "is_recordable", False)
)
WAITS = ("_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "equal", "unique2")
NEW = (torch.tensor, torch.from_numpy)  # numbers that begin in the host's memory


class Made(TorchFunctionMode):
    """Refuses tensors made of the host's numbers, wherever they are made."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        fresh = func is torch.as_tensor and not isinstance(args[0], torch.Tensor)
        if func in NEW or fresh:
            raise AssertionError(f"{func} in the loop")
        return func(*args, **(kwargs or {}))


class Watched(TorchDispatchMode):
    """Refuses operations that wait for the device or take from the host's memory."""

    def __init__(self):
        super().__init__()
        self.count, self._made = 0, Made()

    def __enter__(self):
        self._made.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._made.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, leaves = func.__name__.split(".")[0], tree_leaves((args, kwargs))
        given = [one for one in leaves if isinstance(one, torch.Tensor)]
        if name in WAITS:
            raise AssertionError(f"{func} in the loop")
        if any(one.device.type == "cpu" and one.ndim for one in given):  # numbers may be
            raise AssertionError(f"{func} takes a tensor of the host")
        if name.startswith("index") and any(one.dtype == torch.bool for one in given[1:]):
            raise AssertionError(f"{func} selects by a mask")
        self.count += 1
        return func(*args, **(kwargs or {}))


class Recorder:
    """Runs what would be recorded, watched."""

    def __init__(self):
        self.recorded, self.operations = 0, 0

    def __call__(self, run):
        watched = Watched()
        with watched:
            run()
        self.recorded += 1
        self.operations = watched.count
        return lambda: None


def planner(name, action_dim):
    found = preset("planner", name)
    changes = {"horizon": 2, "iterations": 3, "num_samples": 64}
    if hasattr(found, "num_elites"):
        changes["num_elites"] = min(found.num_elites, 10)
    if getattr(found, "noise_block", 1) is None:
        changes["noise_block"] = 1
    if getattr(found, "is_discrete", False):
        changes["choices"] = action_dim
    return dataclasses.replace(found, **changes)


def model_for(name, tiny, arm, device):
    """Return a world model, LeWM or an arm's where the settings are an arm's; and its latents."""
    if isinstance(getattr(preset("planner", name), "init_std", None), tuple):
        world = ACWorldModel(load_world_model(arm(), CPU).model.to(device))
        return world, (world.grid[0] * world.grid[1], world.predictor.config.out_dim)
    world = LeWMWorldModel(load_world_model(tiny("lewm"), CPU).model.to(device))
    return world, (world.predictor.config.embed_dim,)


def solve(search, world, z, goal, *, objective=L2, proprio=None):
    """Make two solves, cold and warm, on the meta device; return what recorded them."""
    B, A, record = len(z), world.action_dim, Recorder()
    box = tuple(torch.full((A,), end, device=META) for end in (-2.0, 2.0))
    solver = Solver(search, box, META, record=record)
    context = Context(z, torch.zeros(B, z.shape[1] - 1, A, device=META), proprio)
    start = search.start(B, A, META)
    for seed in range(2):
        plan, _ = solver.solve(
            RolloutCost(world, objective, goal, context), start, [seed + row for row in range(B)]
        )
        assert plan.actions.device == META and plan.actions.shape == start.actions.shape
        start = search.shift(plan, 1)
    return record


def empty(*shape):
    return torch.empty(shape, device=META)


@pytest.mark.parametrize("name", RECORDABLE)
def test_no_recordable_planner_asks_the_device_for_a_value(tiny, arm, name):
    world, L = model_for(name, tiny, arm, META)
    search, poses = planner(name, world.action_dim), empty(2, 2, 7)
    record = solve(search, world, empty(2, 2, *L), empty(2, *L), proprio=poses)
    assert record.recorded >= 1 and record.operations > 100


def solve_twice(search, parts, device, record, quiet):
    """Make the same two solves, recorded or not, the second ``quiet``; return its plan."""
    world, context, goal = parts
    B, A = len(goal), world.action_dim
    box = tuple(torch.full((A,), end, device=device) for end in (-2.0, 2.0))
    solver = Solver(search, box, device, record=record)
    solver._draws_there, solver._record = True, record  # on a CPU too
    start = search.start(B, A, device)
    for seed in range(2):
        with quiet() if seed else nullcontext():
            cost = RolloutCost(world, L2, goal, context)
            plan, _ = solver.solve(cost, start, [seed + row for row in range(B)])
            start = search.shift(plan, 1)
    return plan


def check_both_ways(name, tiny, arm, device, record, quiet):
    """Recorded or not: the same plan. A row alone: as good a one, since products round by size.

    Four rows, as many as are recorded: with another number an elite may change places.
    """
    world, L = model_for(name, tiny, arm, device)
    search, draw = planner(name, world.action_dim), torch.Generator().manual_seed(0)
    A = world.action_dim
    z, goal = torch.randn(4, 2, *L, generator=draw), torch.randn(4, *L, generator=draw)
    context = Context(z, torch.zeros(4, 1, A), torch.randn(4, 2, 7, generator=draw) / 9)
    context = Context(*(x.to(device) for x in (context.z, context.actions, context.proprio)))
    first = Context(context.z[:1], context.actions[:1], context.proprio[:1])
    goal, near = goal.to(device), {"atol": 1e-4, "rtol": 1e-4}
    eager = solve_twice(search, (world, context, goal), device, None, quiet)
    recorded = solve_twice(search, (world, context, goal), device, record, quiet)
    alone = solve_twice(search, (world, first, goal[:1]), device, record, quiet)
    assert eager.actions.isfinite().all() and eager.actions.std() > 0
    torch.testing.assert_close(recorded.actions, eager.actions, **near)
    torch.testing.assert_close(recorded.trace.best, eager.trace.best, **near)
    torch.testing.assert_close(alone.cost, eager.cost[:1], atol=0, rtol=0.02)


@contextmanager
def no_waits():
    """Refuse to wait for the device."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["cem", "vjepa2_ac"])
def test_the_comparison_holds_where_nothing_is_recorded(tiny, arm, name):
    """What the next test does on a GPU, here with a recorder that remembers the function."""

    def again(run):
        run()
        return run

    check_both_ways(name, tiny, arm, CPU, again, nullcontext)


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECORDABLE)
def test_a_cuda_solve_waits_for_nothing_and_is_the_same_recorded_and_alone(tiny, arm, name):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    check_both_ways(name, tiny, arm, torch.device("cuda"), record_cuda_graph, no_waits)


@pytest.mark.parametrize("order", ["any", "all", "sequence"])
def test_no_list_of_goals_asks_the_device_for_a_value(order):
    goals = partial(GoalList, norm="huber", delta=1.0, reduce="mean", steps="min", order=order,
                    weights=[1, 2])  # fmt: skip
    record = solve(planner("cem", 4), PointModel(), empty(2, 1, 2), empty(2, 2, 2), objective=goals)
    assert record.recorded == 1


def test_what_reads_the_host_is_not_recorded():
    """A closed form of an environment decodes actions with the codec's numbers, which lie there."""
    codec = ActionCodec(block=2, mean=[0, 0], std=[1, 1], low=[-1, -1], high=[1, 1])
    record = solve(planner("cem", 4), Quadratic(codec), empty(2, 1, 2), empty(2, 2))
    assert record.recorded == 0
    with pytest.raises(AssertionError, match="takes a tensor of the host"), Watched():
        Quadratic(codec).rollout(Context(empty(2, 1, 2), empty(2, 0, 4)), empty(2, 3, 2, 4))


@pytest.mark.parametrize(
    "wrong",
    [lambda x: x.sum().item(), lambda x: bool(x.sum() > 0), lambda x: x[x > 0],
     lambda x: x + torch.tensor([1.0, 2.0], device=x.device), lambda x: x.nonzero(),
     lambda x: x + torch.ones(2).to(x.device)],
)  # fmt: skip
def test_the_watch_sees_what_a_graph_cannot_hold(wrong):
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)), Watched():
        wrong(empty(2))


def test_what_is_recorded_runs_on_the_device_of_the_problem(monkeypatch):
    """A graph records the current device, which need not be the one that was asked for."""
    seen = []
    monkeypatch.setattr(torch.cuda, "device_of", lambda x: seen.append(x.device) or nullcontext())
    solve(planner("cem", 4), PointModel(), empty(2, 1, 2), empty(2, 2))
    assert seen == [META]


def test_sums_of_objectives_are_recorded_unless_a_term_asks_for_the_situation():
    plain = partial(WeightedSum, terms=[L2, ActionPenalty], weights=[1.0, 0.1])
    asks = partial(WeightedSum, terms=[L2, SmoothnessPenalty], weights=[1.0, 0.1])
    cost = RolloutCost(PointModel(), plain, empty(2, 2), Context(empty(2, 1, 2), empty(2, 0, 4)))
    assert cost.is_recordable
    assert not dataclasses.replace(cost, objective=asks).is_recordable
    assert not dataclasses.replace(cost, objective=SmoothnessPenalty).is_recordable
