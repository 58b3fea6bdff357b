"""Objectives: how far predicted latents are from the goal, and what the actions cost.

Every class is made for one goal, ``Objective(goal_z, ...settings)``, so a YAML with ``_partial_:
true`` is the factory that ``MPC`` wants: goal latents in, objective out. One that must know more
than latents and actions says so with ``given`` (see ``jepa_wm.control.situation``). All are
differentiable.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace

import torch
from torch import Tensor

from jepa_wm.control.distances import Distance, exact, is_positive, refuse, word_faults
from jepa_wm.control.interfaces import Objective
from jepa_wm.control.situation import Situation, asks_situation, informed
from jepa_wm.errors import ConfigError

ORDERS = ("any", "all", "sequence")


@dataclass(frozen=True, eq=False)
class GoalDistance(Distance):
    """Distance between the latents a plan reaches and the goal's (``Distance``).

    Attributes:
        goal_z: Goal latents, float [B,*L].
        goal_map: Linear map float [k,D] applied to latents and goal along their last axis before
            they are compared, or None. A latent's own L2 weighs its columns as training left them;
            a map can weigh what matters to the task (``jepa_wm.goal.map`` of a bundle).

    Raises:
        ValueError: a setting is not one of ``Distance``'s, or the map does not fit the latents.

    Source: LeWM is l2 / sum / last (stable-worldmodel ``GoalMSE``); V-JEPA 2-AC is l1 / mean /
        last.
    """

    goal_z: Tensor
    _: KW_ONLY
    goal_map: Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        width = self.goal_z.shape[-1]
        shape = None if self.goal_map is None else list(getattr(self.goal_map, "shape", ()))
        if shape is not None and (len(shape) != 2 or shape[1] != width):
            raise ValueError(f"goal_map must be a tensor [k,{width}] or None, got {self.goal_map}")

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost [B,S], float32 or wider, of latents [B,S,H,*L]; ``actions`` do not matter here.

        Raises:
            ValueError: the latents' B or L differ from the goal's.
        """
        goal = self.goal_z
        _check_shapes(z, goal.shape[:1], goal.shape[1:])
        if self.goal_map is not None:
            z, goal = (exact(x) @ self.goal_map.T.to(exact(x).dtype) for x in (z, goal))
        return self.over(self.between(z, goal))


@dataclass(frozen=True, eq=False)
class GoalList(Distance):
    """Distance from a list of goals: any of them, all of them, or one after another.

    With D_k the ``Distance`` from goal k and w its weight: ``any`` is min_k w_k D_k; ``all`` is
    sum_k w_k D_k, which with ``steps`` ``min`` is to pass through every goal in whatever order;
    ``sequence`` is the least of sum_k w_k d_k(t_k) over all t_1 <= .. <= t_K, where with ``steps``
    ``last`` the last goal counts at the end, t_K = H. It remembers nothing from solve to solve: in
    a closed loop goals one after another are what ``jepa_wm.control.waypoints`` is for.

    Attributes:
        goal_z: Latents of K goals, float [B,K,*L].
        order: ``any``, ``all`` or ``sequence``.
        weights: One number > 0 a goal, or None for 1 each.

    Raises:
        ValueError: a setting is not one of these, or the weights do not fit the goals.
    """

    goal_z: Tensor
    _: KW_ONLY
    order: str
    weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        faults = word_faults(self, {"order": ORDERS})
        if self.order == "sequence" and self.steps not in ("last", "min"):
            faults.append(f"steps={self.steps!r} (order=sequence takes last or min)")
        if self.goal_z.ndim < 3 or not self.goal_z.shape[1]:
            faults.append(f"a list of goals is [B,K,*L], got {list(self.goal_z.shape)}")
        elif self.weights is not None:
            count, given = self.goal_z.shape[1], list(self.weights)
            if len(given) != count or not all(map(is_positive, given)):
                faults.append(f"weights={given} must be {count} numbers > 0, one a goal")
        refuse(faults)

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost [B,S], float32 or wider, of latents [B,S,H,*L]; ``actions`` do not matter here.

        Raises:
            ValueError: the latents' B or L differ from the goals'.
        """
        B, K, *L = self.goal_z.shape
        _check_shapes(z, (B,), tuple(L))
        weights = self.weights or [1.0] * K
        goals = self.goal_z.unbind(1)
        if self.order == "sequence":
            return self._in_turn(z, list(zip(weights, goals, strict=True)))
        costs = [w * self.over(self.between(z, g)) for w, g in zip(weights, goals, strict=True)]
        stacked = torch.stack(costs)  # [K,B,S]
        return stacked.amin(0) if self.order == "any" else stacked.sum(0)

    def _in_turn(self, z: Tensor, goals: Sequence[tuple[float, Tensor]]) -> Tensor:
        """Least sum over times in order, by dynamic programming over the goals."""
        every = Distance(norm=self.norm, reduce=self.reduce, steps="min", delta=self.delta)
        at = by = torch.zeros(())
        for weight, goal in goals:
            at = by + weight * every.between(z, goal)  # [B,S,H], this goal's turn is at t
            by = at.cummin(2).values  # or before
        return (at if self.steps == "last" else by)[:, :, -1]


@dataclass(frozen=True, eq=False)
class ActionPenalty:
    """Sum over the horizon of the squared solver-space actions, sum_t |a_t|^2.

    In solver space zero is the mean action, so this pulls plans towards what the training data did.

    Attributes:
        goal_z: Ignored; here so that every objective is made the same way.
    """

    goal_z: Tensor

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost [B,S], float32 or wider, of solver-space actions [B,S,H,A]."""
        return exact(actions).square().flatten(2).sum(-1)


@dataclass(frozen=True, eq=False)
class SmoothnessPenalty:
    """Sum over the plan of the squared change between environment actions, sum_t |a_t - a_{t-1}|^2.

    Within blocks and across them, and from the action executed last to the first of the plan. In
    the actions' standard deviations (for a model in metres and radians, those).

    Attributes:
        goal_z: Ignored; here so that every objective is made the same way.
        situation: Knows the block and what was executed last; see ``given``.

    Raises:
        ConfigError: when called, nobody told it the situation.
    """

    goal_z: Tensor
    _: KW_ONLY
    situation: Situation | None = None

    def given(self, situation: Situation) -> "SmoothnessPenalty":
        """Return this objective in a situation."""
        return replace(self, situation=situation)

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost [B,S], float32 or wider, of solver-space actions [B,S,H,A]."""
        if self.situation is None:
            raise ConfigError("objective: a smoothness penalty needs the situation (given)")
        S, block, before = actions.shape[1], self.situation.block, self.situation.before
        steps = exact(actions).unflatten(3, (block, -1)).flatten(2, 3)  # [B,S,H*block,a]
        if before is not None:
            last = before.to(steps.dtype).unflatten(1, (block, -1))[:, -1:]  # [B,1,a]
            steps = torch.cat([last[:, None].expand(-1, S, -1, -1), steps], 2)
        return steps.diff(dim=2).square().sum((2, 3))


@dataclass(frozen=True, eq=False)
class WeightedSum:
    """Weighted sum of objectives made for the same goal: sum_k w_k * cost_k.

    Attributes:
        goal_z: Goal latents, float [B,*L], handed to every term.
        terms: Factories, goal latents -> objective.
        weights: One weight a term.
        situation: Handed to the terms that ask for it; see ``given``.

    Raises:
        ValueError: no terms, or not one weight a term.
    """

    goal_z: Tensor
    _: KW_ONLY
    terms: Sequence[Callable[[Tensor], Objective]]
    weights: Sequence[float]
    situation: Situation | None = None

    def __post_init__(self) -> None:
        if not self.terms or len(self.terms) != len(self.weights):
            raise ValueError(
                f"WeightedSum: {len(self.terms)} terms but {len(self.weights)} weights"
            )
        object.__setattr__(self, "terms", tuple(self.terms))
        object.__setattr__(self, "weights", tuple(float(weight) for weight in self.weights))
        made = tuple(informed(term(self.goal_z), self.situation) for term in self.terms)
        object.__setattr__(self, "_made", made)

    @property
    def asks_situation(self) -> bool:
        """Whether any term asks for the situation."""
        return any(map(asks_situation, self._made))  # type: ignore[attr-defined]

    def given(self, situation: Situation) -> "WeightedSum":
        """Return this objective in a situation."""
        return replace(self, situation=situation)

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost [B,S] of latents [B,S,H,*L] reached by solver-space actions [B,S,H,A]."""
        made: tuple[Objective, ...] = self._made  # type: ignore[attr-defined]
        costs = [weight * term(z, actions) for weight, term in zip(self.weights, made, strict=True)]
        return torch.stack(costs).sum(0)


def _check_shapes(z: Tensor, batch: Sequence[int], latent: Sequence[int]) -> None:
    if z.shape[:1] + z.shape[3:] != (*batch, *latent):
        goal = [*batch, *latent]
        raise ValueError(f"latents {list(z.shape)} do not fit goal {goal}: [B,S,H,*L], [B,*L]")
