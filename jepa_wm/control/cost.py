"""The cost function a planner sees: what a world model predicts, scored by an objective."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Context, Objective, WorldModel
from jepa_wm.control.memory import select_context

ObjectiveFactory = Callable[[Tensor], Objective]
"""Makes the objective of some goals: goal latents [B,*L] -> Objective."""


@dataclass(frozen=True, eq=False)
class RolloutCost:
    """The cost function a planner sees: objective(rollout(context, actions), actions), in pieces.

    Attributes:
        world_model: Predicts the latents.
        objective: Factory, goal latents -> objective.
        goal_z: Goal latents [B,*L].
        context: What is known about the past, B rows.
        chunk: Most candidates in one rollout, or None for no limit. Whole rows go together while
            they fit; below S a row is split.
        rows: Most rows in one rollout, or None for no limit. With 1 a row's costs are the same bits
            whoever else is planned for, since matrix products may round by their size.
    """

    world_model: WorldModel
    objective: ObjectiveFactory
    goal_z: Tensor
    context: Context
    chunk: int | None = None
    rows: int | None = None

    def __call__(self, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of solver-space actions [B,S,H,A]."""
        B, S = actions.shape[:2]
        chunk = self.chunk or B * S
        rows = min(max(1, chunk // S), self.rows or B)
        return torch.cat(
            [self._rows(actions, slice(at, at + rows), chunk) for at in range(0, B, rows)]
        )

    def _rows(self, actions: Tensor, rows: slice, chunk: int) -> Tensor:
        known, objective = select_context(self.context, rows), self.objective(self.goal_z[rows])
        pieces = actions[rows].split(chunk, dim=1) if chunk < actions.shape[1] else (actions[rows],)
        costs = [objective(self.world_model.rollout(known, piece), piece) for piece in pieces]
        return torch.cat(costs, dim=1)
