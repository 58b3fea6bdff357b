"""ExactCosts: an agent that plans, and what its plans cost by another, more precise model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from jepa_wm.control.agent import Agent, Decision
from jepa_wm.control.cost import ObjectiveFactory, RolloutCost
from jepa_wm.control.interfaces import Context, WorldModel

PRICED = ("mean", "best")  # of a ``Plan``


class PlanningAgent(Agent, Protocol):
    """An agent whose last solve's cost can be asked for, as ``MPC``."""

    def cost(self) -> RolloutCost:
        """Return the cost of the last solve."""
        ...


class ExactCosts:
    """Acts as ``agent`` does; after each of its solves prices the plan with ``world_model``.

    The frames are those the agent saw, encoded by this model; its latents keep no rounding of the
    agent's. What is priced is each solve's last mean and best candidate.

    Args:
        agent: Plans.
        world_model: The same model in float32.
        objective: Its objective, goal latents -> objective.
        device: Where it lies.
    """

    def __init__(
        self,
        agent: PlanningAgent,
        world_model: WorldModel,
        objective: ObjectiveFactory,
        device: torch.device,
    ) -> None:
        self.agent, self.world_model, self.objective = agent, world_model, objective
        self.device = device
        self.goal_z = torch.zeros(0)
        self.z = torch.zeros(0)  # of all rows, [B,T,*L]; zeros where a row was not seen
        self.prices: list[dict[str, np.ndarray]] = []

    @property
    def needs_frames(self) -> bool:
        """Whether the next ``act`` looks at its frames."""
        return self.agent.needs_frames

    @property
    def decisions(self) -> Sequence[Decision]:
        """The solves since ``reset``."""
        return self.agent.decisions

    def reset(
        self,
        goals: np.ndarray | None,
        seeds: Sequence[int],
        budget: int | None = None,
        proprio: np.ndarray | None = None,
    ) -> None:
        """Begin B episodes."""
        self.agent.reset(goals, seeds, budget, proprio)
        assert goals is not None  # an agent that plans has refused
        self.goal_z = self._encode(goals, np.arange(len(goals)))[:, 0]
        self.z, self.prices = self.goal_z[:, None][:, :0], []

    def act(
        self, frames: np.ndarray | None, proprio: np.ndarray | None, active: np.ndarray | None
    ) -> np.ndarray:
        """Return the agent's actions, float32 [B,a]."""
        sees, solves = self.agent.needs_frames, len(self.agent.decisions)
        actions = self.agent.act(frames, proprio, active)
        if sees and frames is not None:
            rows = np.arange(len(frames)) if active is None else np.flatnonzero(active)
            latest = torch.cat([self.z, self._encode(frames, rows)], 1)
            self.z = latest[:, -self.world_model.history :]
        if len(self.agent.decisions) > solves:
            self.prices.append(self._price(self.agent.decisions[-1]))
        return actions

    def costs_of(self, row: int) -> dict[str, list[float]]:
        """Return what the plans of a row cost, one number a solve: ``mean`` and ``best``."""
        found: dict[str, list[float]] = {name: [] for name in PRICED}
        for decision, prices in zip(self.agent.decisions, self.prices, strict=True):
            for at in np.flatnonzero(decision.rows == row).tolist():
                for name, costs in prices.items():
                    found[name].append(float(costs[at]))
        return found

    @torch.inference_mode()
    def _price(self, decision: Decision) -> dict[str, np.ndarray]:
        """Costs [n] of the plan's parts, rows as in the decision."""
        asked = self.agent.cost()
        rows = torch.from_numpy(decision.rows).to(self.device)
        z = self.z[rows][:, -asked.context.z.shape[1] :]
        cost = replace(
            asked,
            world_model=self.world_model,
            objective=self.objective,
            goal_z=self.goal_z[rows],
            context=Context(z, asked.context.actions, asked.context.proprio),
        )
        parts = {name: getattr(decision.plan, name) for name in PRICED}
        return {
            name: cost(part.actions[:, None])[:, 0].cpu().numpy()
            for name, part in parts.items()
            if part is not None
        }

    @torch.inference_mode()
    def _encode(self, frames: np.ndarray, rows: np.ndarray) -> Tensor:
        """Encode some rows one by one, so that none depends on another: [B,1,*L]."""
        model = self.world_model
        seen = torch.from_numpy(np.require(frames[rows], requirements=["C", "W"])).to(self.device)
        found = torch.cat([model.encode(model.preprocess(one[None, None])) for one in seen])
        full = found.new_zeros(len(frames), *found.shape[1:])
        full[torch.from_numpy(rows).to(self.device)] = found
        return full
