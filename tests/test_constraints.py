"""Constraints and limits hold for candidates, for plans and for what is executed."""

import functools
from dataclasses import dataclass, field
from importlib.resources import files

import numpy as np
import pytest
import torch
from hydra import compose, initialize_config_module
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.interfaces import Context, Plan
from jepa_wm.control.limits import read_limits
from jepa_wm.control.mpc import MPC
from jepa_wm.control.objectives import GoalDistance
from jepa_wm.control.waypoints import Waypoints
from jepa_wm.planners.base import ContinuousPlanner
from jepa_wm.planners.constraints import Limit
from jepa_wm.planners.hybrid import Hybrid

torch.set_num_threads(1)
CPU = torch.device("cpu")
L2 = functools.partial(GoalDistance, norm="l2", reduce="sum", steps="last")
CODEC = ActionCodec(block=2, mean=[0.2, -0.1], std=[0.5, 0.8], low=[-1, -1], high=[0.7, 1])
NODES = {
    "calm": {"shape": "rate", "limit": [0.15, 0.3]},
    "speed": {"shape": "l2", "limit": 0.8},
    "right": {"shape": "box", "low": -0.6, "high": 0.6, "dims": [1]},
}
CONF = files("jepa_wm.conf").joinpath("planner")
KINDS = (ContinuousPlanner, Hybrid)
NAMES = sorted(
    entry.name[:-5]
    for entry in CONF.iterdir()
    if entry.name.endswith(".yaml")
    and issubclass(get_class(OmegaConf.load(str(entry))._target_), KINDS)
)
SMALL = {"num_samples": 40, "iterations": 3, "horizon": 3, "init_std": 2.0, "constraints": {}}
SMALL |= {"momentum": 0.1, "momentum_std": None, "min_std": 0.05, "num_elites": 8}
SMALL |= {"num_candidates": 8, "sync_every": 2}


class PointModel:
    """Latent: the position (2); each of a block's two env actions moves it by a tenth."""

    action_dim, history = 4, 3

    def preprocess(self, frames):
        return frames.float()

    def encode(self, frames):
        return frames[..., :2]

    def rollout(self, context, actions):
        moves = 0.1 * (CODEC.mean + CODEC.std * actions.unflatten(3, (2, 2))).sum(3)
        return context.z[:, None, -1:] + moves.cumsum(2)


@dataclass(eq=False)
class Watched(RolloutCost):
    """Keeps the plans it was asked about."""

    seen: list = field(default_factory=list)

    def __call__(self, actions):
        self.seen.append(actions.detach().clone())
        return super().__call__(actions)

    def latents(self, actions):
        self.seen.append(actions.detach().clone())
        return super().latents(actions)


def small(name):
    node = OmegaConf.to_container(OmegaConf.load(str(CONF.joinpath(f"{name}.yaml"))))
    if name.startswith("cmaes"):
        pytest.importorskip("cmaes")

    def shrink(part):
        changed = {k: v for k, v in SMALL.items() if k in part}
        return {
            k: shrink(v) if isinstance(v, dict) and "_target_" in v else v for k, v in part.items()
        } | changed

    return instantiate(shrink(node), _convert_="all")


def excess(steps, before=None):
    """The most by which env actions [..,K,2] break NODES or the box, written anew."""
    steps = torch.as_tensor(steps)
    if before is not None:
        shape = (len(steps), *[1] * (steps.ndim - 3), 1, 2)
        first = before.view(shape).expand_as(steps[..., :1, :])
        change = torch.cat([first, steps], -2).diff(dim=-2)
    else:
        change = steps.diff(dim=-2)
    over = [
        change.abs() - torch.tensor([0.15, 0.3]),
        steps.square().sum(-1).sqrt() - 0.8,
        steps[..., 1].abs() - 0.6,
        CODEC.low - steps,
        steps - CODEC.high,
    ]
    return max(one.max().item() for one in over)


def decoded(plans):
    return (CODEC.mean + CODEC.std * plans.unflatten(-1, (2, 2))).flatten(-3, -2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("known", [False, True])
def test_candidates_and_plans_keep_the_limits(name, known):
    limits, planner = read_limits(NODES, CODEC), small(name)
    before = torch.tensor([[0.5, 0.1], [-0.3, 0.5]]) if known else None
    context = Context(torch.zeros(2, 1, 2), torch.zeros(2, 0, 4))
    goals = torch.tensor([[1.0, -1.0], [0.3, 2.0]])
    start = planner.start(2, 4, CPU)
    draws = [torch.Generator().manual_seed(seed) for seed in (0, 1)]
    found = {}
    for kind, bound in (("bound", limits.bind(planner, before, CPU)), ("free", planner)):
        cost = Watched(PointModel(), L2, goals, context)
        plan = bound.plan(cost, start, CODEC.bounds(), draws)
        plans = torch.cat([*cost.seen, plan.actions[:, None]], 1)
        found[kind] = excess(decoded(plans), before)
    assert found["bound"] < 1e-5
    assert found["free"] > 0.05, "without limits it would not have"


class Wild:
    """A planner that knows no constraints and goes from one end to the other."""

    horizon = 3

    def start(self, batch, action_dim, device):
        return Plan(*torch.zeros(2, batch, 3, action_dim), torch.zeros(batch))

    def shift(self, plan, n):
        return plan

    def plan(self, cost, start, bounds, generators):
        return Plan(
            5 * torch.randn(start.actions.shape, generator=generators[0]), start.std, start.cost
        )


def loop(planner, limits, replan_every):
    return MPC(
        world_model=PointModel(), planner=planner, objective=L2, codec=CODEC, device=CPU,
        replan_every=replan_every, limits=limits,
    )  # fmt: skip


def walk(agent, steps, until):
    """Environment actions [steps,B,2] of points from the origin; rows stop at ``until``."""
    at = np.zeros((len(until), 2), np.float32)
    goals = np.array([[1.0, -1.0], [-1.0, 0.5], [0.2, 2.0]], np.float32)
    agent.reset(goals[: len(until)], range(len(until)))
    taken = []
    for step in range(steps):
        taken.append(agent.act(at, active=step < np.array(until)))
        at = at + np.float32(0.1) * taken[-1]
    return torch.from_numpy(np.stack(taken))


@pytest.mark.parametrize("replan_every", [1, 2])
@pytest.mark.parametrize("name", ["cem", "icem", "mppi", "gradient", "hybrid", None])
def test_what_is_executed_keeps_the_limits_from_solve_to_solve(name, replan_every):
    planner, limits = Wild() if name is None else small(name), read_limits(NODES, CODEC)
    until = [9, 4, 9]  # a row stops between two solves
    taken = walk(loop(planner, limits, replan_every), 9, until)
    for row, end in enumerate(until):
        assert excess(taken[:end, row]) < 1e-6
    free = walk(loop(planner, None, replan_every), 9, until)
    assert excess(free[:, 0]) > 0.05


def test_a_row_moves_the_same_within_limits_in_any_company():
    limits = read_limits(NODES, CODEC)
    whole = walk(loop(small("cem"), limits, 1), 8, [8, 8, 8])
    alone = walk(loop(small("cem"), limits, 1), 8, [8])
    assert torch.equal(whole[:, :1], alone)


def test_a_rate_holds_across_sub_goals_and_not_across_episodes():
    agent = Waypoints(
        loop(small("cem"), read_limits(NODES, CODEC), 1),
        np.array([[2.0, 2.0], [-2.0, -2.0]], np.float32), [4, 4],
    )  # fmt: skip
    for _ in range(2):
        agent.reset(None, [0, 1])
        at, taken = np.zeros((2, 2), np.float32), []
        for _ in range(8):
            taken.append(agent.act(at))
            at = at + np.float32(0.1) * taken[-1]
        steps = torch.from_numpy(np.stack(taken, 1))
        assert excess(steps) < 1e-6
        assert (steps[:, 0, 0] > 0.3).all(), "the first step is free"
        assert (steps[:, -1] < steps[:, 3] - 0.3).all(), "it turned round"


def test_a_ball_of_solver_actions_is_the_nearest_point():
    points = torch.tensor([[3.0, 4.0, 7.0], [0.3, 0.4, 9.0], [0.0, 0.0, 1.0]])
    ball = Limit(dims=[0, 1], limit=1.0, shape="l2")
    expected = torch.tensor([[0.6, 0.8, 7.0], [0.3, 0.4, 9.0], [0.0, 0.0, 1.0]])
    torch.testing.assert_close(ball(points), expected)
    generator = torch.Generator().manual_seed(0)
    many, inside = (torch.randn(n, 3, generator=generator) for n in (100, 1000))
    inside = inside[inside[:, :2].norm(dim=1) <= 1]
    near = ball(many)
    assert ((inside[:, None] - near) * (many - near)).sum(-1).max() < 1e-5, "all are behind it"


def test_limits_are_named_on_the_command_line():
    with initialize_config_module("jepa_wm.conf", version_base=None):
        node = compose("plan", ["+limits.speed={shape: l2, limit: 0.5}"])
    limits = read_limits(OmegaConf.to_container(node.limits), CODEC)
    assert limits.limits["speed"].limit == 0.5
    assert read_limits(OmegaConf.load(str(CONF.parent.joinpath("plan.yaml"))).limits, CODEC) is None
