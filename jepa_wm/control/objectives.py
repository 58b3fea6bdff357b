"""Objectives: how far predicted latents are from the goal, and what the actions cost.

Every class is made for one goal, ``Objective(goal_z, ...settings)``, so a YAML with ``_partial_:
true`` is the factory that ``MPC`` wants: goal latents in, objective out. Differences are taken and
summed in float32 whatever the dtype of the latents: a bfloat16 sum over 192 dimensions would decide
which candidates are elite.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from jepa_wm.control.interfaces import Objective

NORMS = ("l2", "l1", "cosine")
REDUCTIONS = ("sum", "mean")
STEPS = ("last", "all", "min")


def _refuse(faults: dict[str, tuple[object, Sequence[str]]]) -> None:
    wrong = [
        f"{k}={got!r} (one of {', '.join(ok)})" for k, (got, ok) in faults.items() if got not in ok
    ]
    if wrong:
        raise ValueError("objective: " + "; ".join(wrong))


@dataclass(frozen=True, eq=False)
class GoalDistance:
    """Distance between the latents a plan reaches and the goal's.

    With d_t = sum_i |z_ti - g_i|^p over the latent (p = 2 for ``l2``, a *squared* distance, as in
    the reference; 1 for ``l1``) or d_t = 1 - cos(z_t, g) over its last axis, the cost is d_H
    (``last``), the mean of d_1..d_H (``all``) or their minimum (``min``: passing through the goal
    is enough).

    Attributes:
        goal_z: Goal latents, float [B,*L].
        norm: ``l2``, ``l1`` or ``cosine``.
        reduce: ``sum`` or ``mean`` over the latent's dimensions (for cosine: over its tokens).
        steps: ``last``, ``all`` or ``min`` over the horizon.
        goal_map: Linear map float [k,D] applied to latents and goal along their last axis before
            they are compared, or None. A latent's own L2 weighs its columns as training left them;
            a map can weigh what matters to the task (``jepa_wm.goal.map`` of a bundle).

    Raises:
        ValueError: a setting is not one of these, or the map does not fit the latents.

    Source: LeWM is l2 / sum / last (stable-worldmodel ``GoalMSE``); V-JEPA 2-AC is l1 / mean /
        last.
    """

    goal_z: Tensor
    _: KW_ONLY
    norm: str
    reduce: str
    steps: str
    goal_map: Tensor | None = None

    def __post_init__(self) -> None:
        width = self.goal_z.shape[-1]
        shape = None if self.goal_map is None else list(getattr(self.goal_map, "shape", ()))
        if shape is not None and (len(shape) != 2 or shape[1] != width):
            raise ValueError(f"goal_map must be a tensor [k,{width}] or None, got {self.goal_map}")
        _refuse(
            {
                "norm": (self.norm, NORMS),
                "reduce": (self.reduce, REDUCTIONS),
                "steps": (self.steps, STEPS),
            }
        )

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of latents [B,S,H,*L]; ``actions`` do not matter here.

        Raises:
            ValueError: the latents' B or L differ from the goal's.
        """
        goal = self.goal_z
        if z.shape[:1] + z.shape[3:] != goal.shape:
            raise ValueError(
                f"latents {list(z.shape)} do not fit goal {list(goal.shape)}: [B,S,H,*L], [B,*L]"
            )
        if self.steps == "last":
            z = z[:, :, -1:]
        z, goal = z.float(), goal.float()
        if self.goal_map is not None:
            z, goal = z @ self.goal_map.T, goal @ self.goal_map.T
        distance = self._distance(z, goal[:, None, None])  # [B,S,H]
        return distance.amin(2) if self.steps == "min" else distance.mean(2)

    def _distance(self, z: Tensor, goal: Tensor) -> Tensor:
        if self.norm == "cosine":
            each = 1 - F.cosine_similarity(z, goal, dim=-1)
        else:
            gap = z - goal
            each = gap.square() if self.norm == "l2" else gap.abs()
        flat = each.flatten(3) if each.ndim > 3 else each[..., None]  # [B,S,H,D]
        return flat.sum(-1) if self.reduce == "sum" else flat.mean(-1)


@dataclass(frozen=True, eq=False)
class ActionPenalty:
    """Sum over the horizon of the squared solver-space actions, sum_t |a_t|^2.

    In solver space zero is the mean action, so this pulls plans towards what the training data did.

    Attributes:
        goal_z: Ignored; here so that every objective is made the same way.
    """

    goal_z: Tensor

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of solver-space actions [B,S,H,A]."""
        return actions.float().square().flatten(2).sum(-1)


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """Weighted sum of objectives made for the same goal: sum_k w_k * cost_k.

    Attributes:
        goal_z: Goal latents, float [B,*L], handed to every term.
        terms: Factories, goal latents -> objective.
        weights: One weight a term.

    Raises:
        ValueError: no terms, or not one weight a term.
    """

    goal_z: Tensor
    _: KW_ONLY
    terms: Sequence[Callable[[Tensor], Objective]]
    weights: Sequence[float]

    def __post_init__(self) -> None:
        if not self.terms or len(self.terms) != len(self.weights):
            raise ValueError(
                f"WeightedSum: {len(self.terms)} terms but {len(self.weights)} weights"
            )
        object.__setattr__(self, "terms", tuple(self.terms))
        object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))
        object.__setattr__(self, "_made", tuple(term(self.goal_z) for term in self.terms))

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of latents [B,S,H,*L] reached by solver-space actions [B,S,H,A]."""
        made: tuple[Objective, ...] = self._made  # type: ignore[attr-defined]
        costs = [weight * term(z, actions) for weight, term in zip(self.weights, made, strict=True)]
        return torch.stack(costs).sum(0)
