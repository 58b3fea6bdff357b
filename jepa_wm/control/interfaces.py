"""The types that travel between the stages of the control loop, and the protocols they meet.

Everything here is a frozen record or a protocol; nothing imports a model, a planner or an env.

Letters, fixed for the whole house: B problems planned at once, S samples, H horizon in blocks,
A solver action size (block x env action), T context frames, L latent shape (``[D]`` for LeWM),
P proprioception size, I planner iterations.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from jepa_wm.control.streams import Streams

CostFn = Callable[[Tensor], Tensor]
"""Scores candidates: solver-space actions float [B,S,H,A] -> cost float32 [B,S], low is good."""

Bounds = tuple[Tensor, Tensor]
"""Solver-space box (low [A], high [A]); infinite entries mean unbounded."""


@dataclass(frozen=True)
class Context:
    """What a rollout may know about the past: encoded frames and the actions between them.

    Attributes:
        z: Latents of the last T observed frames, float [B,T,*L], oldest first.
        actions: Solver-space block that left frame t, float [B,T-1,A].
        proprio: Proprioception at each frame in env units, float [B,T,P], or None.
    """

    z: Tensor
    actions: Tensor
    proprio: Tensor | None = None


@dataclass(frozen=True)
class PlanTrace:
    """What the planner saw per iteration; device tensors, filled without a host sync.

    Attributes:
        best: Lowest sampled cost, [I,B].
        elite_mean: Mean cost of the samples that formed the update, [I,B].
        spread: Mean standard deviation of the proposal, [I,B].
        effective_samples: How many samples carried the update, [I,B]: the elites for CEM,
            1/sum(w^2) for MPPI.
    """

    best: Tensor
    elite_mean: Tensor
    spread: Tensor
    effective_samples: Tensor


@dataclass(frozen=True)
class Scored:
    """One plan a problem and what it costs: actions float32 [B,H,A], cost float32 [B]."""

    actions: Tensor
    cost: Tensor


@dataclass(frozen=True)
class Plan:
    """A batch of action plans in solver space, one per problem.

    Attributes:
        actions: The plan, float32 [B,H,A].
        std: Standard deviation of the proposal, float32 [B,H,A].
        cost: Cost of ``actions`` (infinite before the first solve), float32 [B].
        trace: Per-iteration history, or None.
        candidates: Of a start: plans worth trying first, as a planner keeps them or a ``Proposal``
            suggests them; of a result: what the planner wants to keep. Float32 [B,K,H,A], or None.
        mean: The last mean and its cost, where the planner has one; ``actions`` is it or ``best``.
        best: The cheapest candidate ever scored and its cost.
    """

    actions: Tensor
    std: Tensor
    cost: Tensor
    trace: PlanTrace | None = None
    candidates: Tensor | None = None
    mean: Scored | None = None
    best: Scored | None = None

    def cut(self, horizon: int) -> "Plan":
        """Keep the first ``horizon`` blocks of a start."""
        kept = None if self.candidates is None else self.candidates[:, :, :horizon]
        return Plan(self.actions[:, :horizon], self.std[:, :horizon], self.cost, candidates=kept)


Proposal = Callable[[Context, Tensor], Tensor]
"""Suggests start plans: the past and goal latents [B,*L] -> solver-space plans [B,K,h,A]."""


class LatentCost(Protocol):
    """A cost that also shows the latents behind it, for planners that search among those too."""

    @property
    def z(self) -> Tensor:
        """Latents of the newest frames, [B,*L]."""
        ...

    @property
    def goal_z(self) -> Tensor:
        """Latents of the goals, [B,*L]."""
        ...

    def __call__(self, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of solver-space actions [B,S,H,A]."""
        ...

    def latents(self, actions: Tensor) -> Tensor:
        """Roll out: actions [B,S,H,A] -> z [B,S,H,*L]."""
        ...

    def step(self, z: Tensor, actions: Tensor) -> Tensor:
        """Predict one block from each latent alone: z [B,S,H,*L], actions [B,S,H,A] -> [B,S,H,*L].

        Step h sees z[:, :, h] as its only frame and predicts what comes after it.
        """
        ...

    def score(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of latents z [B,S,H,*L] reached by actions [B,S,H,A]."""
        ...


class WorldModel(Protocol):
    """A latent dynamics model. Pure: no argument is changed, nothing is cached.

    A model whose rollouts wait for the device or take numbers from the host's memory has
    ``reads_host = True``: a solve with it is not recorded as a CUDA graph. One whose gradients are
    small operations may have ``side_by_side``: see ``LeWMWorldModel``.

    Attributes:
        action_dim: Solver action size A.
        history: The most context frames a rollout uses.
    """

    action_dim: int
    history: int

    def preprocess(self, frames: Tensor) -> Tensor:
        """Turn raw frames, uint8 [B,T,H,W,3] RGB, into the model's input, float [B,T,C,h,w]."""
        ...

    def encode(self, frames: Tensor) -> Tensor:
        """Encode preprocessed frames, float [B,T,C,h,w], into latents [B,T,*L]."""
        ...

    def rollout(self, context: Context, actions: Tensor) -> Tensor:
        """Predict the latent after each of H blocks: actions [B,S,H,A] -> z [B,S,H,*L].

        Where ``actions`` require a gradient and gradients are on, it flows through.
        """
        ...


class Objective(Protocol):
    """Scores predicted latents for one goal; lower is better."""

    def __call__(self, z: Tensor, actions: Tensor) -> Tensor:
        """Cost float32 [B,S] of latents [B,S,H,*L] reached by solver-space actions [B,S,H,A]."""
        ...


class Planner(Protocol):
    """Searches for the plan of lowest cost. Holds settings only: one serves any number of loops."""

    horizon: int

    def start(self, batch: int, action_dim: int, device: torch.device) -> Plan:
        """Make a cold start: zero actions and the initial spread, for ``batch`` problems."""
        ...

    def shift(self, plan: Plan, n: int) -> Plan:
        """Drop the ``n`` executed blocks and pad with zeros: the warm start of the next solve."""
        ...

    def plan(self, cost: CostFn, start: Plan, bounds: Bounds, generators: Streams) -> Plan:
        """Improve ``start`` [B,H,A]; row b draws only from its own stream of ``generators``."""
        ...
