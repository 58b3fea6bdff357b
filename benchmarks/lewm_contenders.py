"""What ``lewm_solve.py`` times: one CEM solve by this package and by stable-worldmodel.

A ``Contender`` is a model, starts and goals behind two functions: ``solve`` runs one CEM solve of
all B problems, encoding their frames first, and ``cost`` scores given candidates.
"""

import contextlib
import io
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.interfaces import Context, Plan, WorldModel
from jepa_wm.control.solver import Solver
from jepa_wm.launch import preset

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Contender:
    """One way to solve the problems; what it is given and gives lies on the CPU.

    Attributes:
        name: Shown in the tables.
        solve: (iterations, seed) -> plan float32 [B,H,A]; encodes starts and goals as well.
        cost: Candidates float32 [B,S,H,A] -> costs float32 [B,S], frames encoded anew.
        split: (iterations, seed) -> seconds by part, or None where the parts cannot be told apart.
    """

    name: str
    solve: Callable[[int, int], Plan]
    cost: Callable[[Tensor], Tensor]
    split: Callable[[int, int], dict[str, float]] | None = None


def random_frames(size: int, count: int = 1, seed: int = 7) -> tuple[Tensor, Tensor]:
    """Return starts and goals, preprocessed: float32 [B,1,3,size,size] each, blobs and noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(2 * count, 3, 4, 4, generator=generator)
    smooth = nn.functional.interpolate(coarse, (size, size), mode="bilinear")
    both = smooth + 0.2 * torch.randn(smooth.shape, generator=generator)
    return both[:count, None], both[count:, None]


@dataclass(eq=False)
class TimedCost(RolloutCost):
    """A cost that adds up the seconds it took."""

    spent: float = field(default=0.0, init=False)

    def __call__(self, actions: Tensor) -> Tensor:
        """Score and take the time."""
        began = time.perf_counter()
        costs = super().__call__(actions)
        self.spent += time.perf_counter() - began
        return costs


def ours(
    name: str,
    model: WorldModel,
    frames: tuple[Tensor, Tensor],
    planner: Any,
    rows: int | None = 1,
) -> Contender:
    """Return this package as a contender: the parts ``MPC`` puts together.

    Args:
        name: Shown in the tables.
        model: On the device of ``frames``.
        frames: Starts and goals, float32 [B,1,3,h,w] each.
        planner: Its settings.
        rows: Most problems in one call of the model, or None for all; 1 as ``MPC`` on a CPU.
    """
    objective, device, B = preset("objective", "goal_l2"), frames[0].device, len(frames[0])
    unbounded = torch.full((model.action_dim,), torch.inf, device=device)
    solvers: dict[int, Solver] = {}

    def make_cost(kind: type[RolloutCost] = RolloutCost) -> Any:
        z, goal_z = (
            torch.cat([model.encode(piece) for piece in frame.split(rows or B)]) for frame in frames
        )
        context = Context(z, torch.zeros(B, 0, model.action_dim, device=device))
        chunk = None if rows is None else rows * planner.num_samples
        return kind(model, objective, goal_z[:, 0], context, chunk, rows)

    def plan(cost: RolloutCost, iterations: int, seed: int) -> Plan:
        if iterations not in solvers:
            wanted = replace(planner, iterations=iterations)
            solvers[iterations] = Solver(wanted, (-unbounded, unbounded), device)
        solver, start = solvers[iterations], planner.start(B, model.action_dim, device)
        found, _ = solver.solve(cost, start, [seed + 1000 * row for row in range(B)])
        return Plan(found.actions.cpu(), found.std.cpu(), found.cost.cpu())

    def split(iterations: int, seed: int) -> dict[str, float]:
        began = time.perf_counter()
        cost = make_cost(TimedCost)
        encoded = time.perf_counter()
        plan(cost, iterations, seed)
        planned = time.perf_counter() - encoded
        return {
            "encode": encoded - began, "rollout": cost.spent, "update": planned - cost.spent
        }  # fmt: skip

    return Contender(
        name,
        lambda iterations, seed: plan(make_cost(), iterations, seed),
        lambda actions: make_cost()(actions.to(device)).cpu(),
        split if device.type == "cpu" else None,  # elsewhere a solve is one launch
    )


def peer(
    name: str, model: Any, frames: tuple[Tensor, Tensor], planner: Any, dtype: torch.dtype
) -> Contender:
    """Return stable-worldmodel's CEMSolver as a contender, all problems in one batch.

    Args:
        name: Shown in the tables.
        model: Its LeWM, in ``dtype``.
        frames: Starts and goals, float32 [B,1,3,h,w] each, on the device of ``model``.
        planner: Our CEM, whose settings it gets.
        dtype: bfloat16 runs the whole solve under autocast, as the peer's own ``bf16=true`` does.
    """
    from stable_worldmodel.planning import CEMSolver, GoalMSE, ShootingCostEvaluator

    action_dim = model.action_encoder.input_dim
    evaluator = ShootingCostEvaluator(model, GoalMSE())
    B, device = len(frames[0]), frames[0].device
    action = torch.zeros(B, 1, action_dim, device=device)
    info = {"pixels": frames[0], "goal": frames[1], "action": action}
    autocast = partial(torch.autocast, device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)

    def solve(iterations: int, seed: int) -> Plan:
        solver = CEMSolver(
            evaluator, batch_size=B, num_samples=planner.num_samples, var_scale=planner.init_std,
            n_steps=iterations, topk=planner.num_elites, device=device, seed=seed,
        )  # fmt: skip
        space = Box(-np.inf, np.inf, (B, action_dim))
        config = SimpleNamespace(horizon=planner.horizon, action_block=1)
        solver.configure(action_space=space, n_envs=B, config=config)
        with autocast(), contextlib.redirect_stdout(io.StringIO()):
            found = solver.solve(info)
        cost = torch.tensor(found["costs"])
        return Plan(found["actions"].float(), found["var"][0].float(), cost)

    @torch.inference_mode()
    def cost(actions: Tensor) -> Tensor:
        S, given = actions.shape[1], actions.to(device, dtype)
        expanded = {
            key: value[:, None].expand(B, S, *value.shape[1:]).to(dtype)
            for key, value in info.items()
        }
        with autocast():
            return evaluator.get_cost(expanded, given).float().cpu()

    return Contender(name, solve, cost)
