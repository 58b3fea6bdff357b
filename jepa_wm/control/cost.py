"""The cost function a planner sees: what a world model predicts, scored by an objective."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Context, Objective, WorldModel
from jepa_wm.control.memory import select_context
from jepa_wm.control.situation import Situation, asks_situation, informed

ObjectiveFactory = Callable[[Tensor], Objective]
"""Makes the objective of some goals: goal latents [B,*L] -> Objective."""
Piece = tuple[Context, Objective, Tensor]
"""Some rows' past and objective, and some of their candidates [b,s,H,A]."""
Work = Callable[[Context, Objective, Tensor], Tensor]
Each = Callable[[Work, Sequence[Piece]], Sequence[Tensor]]


@dataclass(eq=False)
class RolloutCost:
    """The cost function a planner sees: objective(rollout(context, actions), actions), in pieces.

    It is also a ``LatentCost``. Where actions require a gradient, each piece's is taken before the
    next is rolled out, so that memory holds one piece, or as many as there are threads where the
    model takes them ``side_by_side``; ``latents`` and ``step`` keep all.

    Attributes:
        world_model: Predicts the latents.
        objective: Factory, goal latents -> objective.
        goal_z: Goal latents [B,*L].
        context: What is known about the past, B rows.
        chunk: Most candidates in one rollout, or None for no limit. Whole rows go together while
            they fit; below S a row is split.
        rows: Most rows in one rollout, or None for no limit. With 1 a row's costs are the same bits
            whoever else is planned for, since matrix products may round by their size.
        situation: For objectives that ask for it, or None; ``predict`` is the world model's
            ``predict_proprio``, where it has one.
        evaluations: Candidates scored so far for each row, the count planners are compared by.
    """

    world_model: WorldModel
    objective: ObjectiveFactory
    goal_z: Tensor
    context: Context
    chunk: int | None = None
    rows: int | None = None
    situation: Situation | None = None
    evaluations: int = field(default=0, init=False)

    def __call__(self, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of solver-space actions [B,S,H,A]."""
        self.evaluations += actions.shape[1]
        if actions.requires_grad and torch.is_grad_enabled():
            return cast(Tensor, _Sloped.apply(actions, self._slopes))
        return self._pieces(actions, self._cost)

    @property
    def is_recordable(self) -> bool:
        """Whether a CUDA graph can hold its work: all of it on the device, the same in each solve.

        Not so where the world model ``reads_host`` or the objective asks for the situation.
        """
        reads_host = getattr(self.world_model, "reads_host", False)  # most say nothing
        return not reads_host and not asks_situation(self.objective(self.goal_z))

    @property
    def z(self) -> Tensor:
        """Latents of the newest frames, [B,*L]."""
        return self.context.z[:, -1]

    def latents(self, actions: Tensor) -> Tensor:
        """Roll out: actions [B,S,H,A] -> z [B,S,H,*L]. Counts as an evaluation."""
        self.evaluations += actions.shape[1]
        return self._pieces(actions, lambda known, _, piece: self._rollout(known, piece))

    def step(self, z: Tensor, actions: Tensor) -> Tensor:
        """Predict one block from each latent alone; counts as an evaluation.

        Args:
            z: Latents [B,S,H,*L]; each is the only frame of its prediction.
            actions: The block that leaves each, [B,S,H,A].

        Returns:
            The latents after it, [B,S,H,*L].
        """
        self.evaluations += actions.shape[1]
        return torch.cat([self._step(z, actions, rows) for rows in self._parts(len(actions))])

    def score(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of latents z [B,S,H,*L] reached by actions [B,S,H,A]."""
        parts = self._parts(len(actions))
        return torch.cat([self._known(rows)[1](z[rows], actions[rows]) for rows in parts])

    def _parts(self, batch: int) -> list[slice]:
        """Return the rows that go together."""
        count = self.rows or batch
        return [slice(at, at + count) for at in range(0, batch, count)]

    def _step(self, z: Tensor, actions: Tensor, rows: slice) -> Tensor:
        z, actions = z[rows], actions[rows]
        B, S, H, A = actions.shape
        alone = Context(z.flatten(0, 2)[:, None], actions.new_zeros(B * S * H, 0, A), None)
        if self.context.proprio is not None:
            pose = _usable(self.context.proprio[rows])[:, None, -1:].expand(B, S * H, 1, -1)
            alone = Context(alone.z, alone.actions, pose.flatten(0, 1))
        following = self.world_model.rollout(alone, actions.flatten(0, 2)[:, None, None])
        return following[:, 0, 0].unflatten(0, (B, S, H))

    def _cost(self, known: Context, objective: Objective, piece: Tensor) -> Tensor:
        return objective(self._rollout(known, piece), piece)

    def _slopes(self, actions: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return costs [B,S] and their gradients [B,S,H,A], None where they have none."""
        flat: list[bool] = []

        def work(known: Context, objective: Objective, piece: Tensor) -> Tensor:
            with torch.enable_grad():  # the mode is the thread's own
                leaf = piece.detach().requires_grad_()
                costs, slopes = self._cost(known, objective, leaf), torch.zeros_like(leaf)
                if costs.requires_grad:  # a candidate's cost depends on nothing beside it
                    (slopes,) = torch.autograd.grad(costs.sum(), leaf)
                else:
                    flat.append(True)
            return torch.cat([costs.detach()[:, :, None].to(leaf), slopes.flatten(2)], 2)

        with torch.enable_grad():
            both = self._pieces(actions, work, getattr(self.world_model, "side_by_side", _in_turn))
        costs, slopes = both[:, :, 0].float(), both[:, :, 1:].view_as(actions)
        return costs, None if flat else slopes

    def _rollout(self, known: Context, piece: Tensor) -> Tensor:
        return self.world_model.rollout(known, piece)

    def _pieces(self, actions: Tensor, work: Work, each: Each | None = None) -> Tensor:
        """Do ``work`` on as many rows and candidates at a time as may go together.

        Args:
            actions: Candidates [B,S,H,A].
            work: On a piece of them.
            each: Does it on all pieces; None does it on one after another.
        """
        B, S = actions.shape[:2]
        chunk = self.chunk or B * S
        count = min(max(1, chunk // S), self.rows or B)
        pieces, parts = [], math.ceil(S / min(chunk, S))
        for at in range(0, B, count):
            rows = slice(at, at + count)
            known, objective = self._known(rows)
            some = actions[rows].split(min(chunk, S), dim=1)
            pieces += [(known, objective, piece) for piece in some]
        done = (each or _in_turn)(work, pieces)
        groups = [done[at : at + parts] for at in range(0, len(done), parts)]
        return torch.cat([torch.cat(list(group), dim=1) for group in groups])

    def _known(self, rows: slice) -> tuple[Context, Objective]:
        """Return the past and the objective of some rows, fit for gradients where those are on."""
        known = select_context(self.context, rows)
        proprio = None if known.proprio is None else _usable(known.proprio)
        usable = Context(_usable(known.z), _usable(known.actions), proprio)
        objective = self.objective(_usable(self.goal_z[rows]))
        if self.situation is None:
            return usable, objective
        predict = getattr(self.world_model, "predict_proprio", None)  # not every model does
        bound = None if predict is None else partial(predict, usable)
        return usable, informed(objective, replace(self._stand(rows), predict=bound))

    def _stand(self, rows: slice) -> Situation:
        assert self.situation is not None  # asked for after the check
        now = self.situation.select(rows)
        before = None if now.before is None else _usable(now.before)
        proprio = None if now.goal_proprio is None else _usable(now.goal_proprio)
        return replace(now, before=before, goal_proprio=proprio)


class _Sloped(torch.autograd.Function):
    """Costs that already know their gradients."""

    @staticmethod
    def forward(
        ctx: Any, actions: Tensor, slopes: Callable[[Tensor], tuple[Tensor, Tensor | None]]
    ) -> Tensor:
        costs, found = slopes(actions.detach())
        if found is None:
            ctx.mark_non_differentiable(costs)
        else:
            ctx.save_for_backward(found)
        return costs

    @staticmethod
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor, None]:
        (found,) = ctx.saved_tensors
        return weights[:, :, None, None].to(found) * found, None


def _in_turn(work: Work, pieces: Sequence[Piece]) -> list[Tensor]:
    """Do work on one piece after another, each with all threads."""
    return [work(*piece) for piece in pieces]


def _usable(values: Tensor) -> Tensor:
    """Copy what inference mode made if a gradient may have to remember it."""
    return values.clone() if torch.is_grad_enabled() and values.is_inference() else values
