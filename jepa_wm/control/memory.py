"""Memory: the state of a batch of episodes inside ``MPC``, from one reset to the next."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from jepa_wm.control.agent import Decision
from jepa_wm.control.interfaces import Context, Plan, Scored
from jepa_wm.control.situation import Situation


def select_context(context: Context, rows: slice | Tensor) -> Context:
    """Keep some rows of a context."""
    proprio = None if context.proprio is None else context.proprio[rows]
    return Context(context.z[rows], context.actions[rows], proprio)


def select_plan(plan: Plan, rows: Tensor) -> Plan:
    """Keep some rows of a plan as the next start; what else tells of the solve is dropped."""
    kept = None if plan.candidates is None else plan.candidates[rows]
    mean = None if plan.mean is None else Scored(plan.mean.actions[rows], plan.mean.cost[rows])
    return Plan(plan.actions[rows], plan.std[rows], plan.cost[rows], candidates=kept, mean=mean)


class Memory:
    """What ``MPC`` remembers between two resets; tensors hold the active rows only.

    Attributes:
        rows: The rows still active, int64 [n].
        goal_z: Their goals' latents, [n,*L].
        situation: What else is known of them; ``before`` is what led to the last solve.
        context: Their past, or None before the first frame.
        plan: Their last plan, or None.
        executed: The blocks of that plan that are executed, as the environment gets them, float32
            [n,k,A].
        step: Environment steps done.
    """

    def __init__(
        self,
        goal_z: Tensor,
        seeds: tuple[int, ...],
        budget: int | None,
        action_dim: int,
        situation: Situation,
    ) -> None:
        self.batch, self.seeds, self.budget = len(seeds), seeds, budget
        self.rows = np.arange(self.batch)
        self.goal_z, self.situation = goal_z, situation
        self.step = 0
        self.context: Context | None = None
        self.plan: Plan | None = None
        self.queue = np.zeros((self.batch, 0, 0), dtype=np.float32)  # env actions still to execute
        self.executed = torch.zeros(self.batch, 0, action_dim, device=goal_z.device)
        self.blocks_done = 0
        self.decisions: list[Decision] = []

    @property
    def blocks_left(self) -> int:
        """Blocks of the current plan not yet begun (or being executed)."""
        return self.executed.shape[1] - self.blocks_done

    def drop(self, active: np.ndarray | None) -> None:
        """Forget the rows that are no longer active."""
        if active is None:
            return
        mask = np.asarray(active, dtype=bool)
        if mask.shape != (self.batch,):
            raise ValueError(f"active must be [{self.batch}], got {list(mask.shape)}")
        back = np.setdiff1d(np.flatnonzero(mask), self.rows)
        if len(back):
            raise ValueError(
                f"rows {back.tolist()} were dropped earlier and cannot come back before reset"
            )
        keep = mask[self.rows]
        if keep.all():
            return
        self.rows, self.queue = self.rows[keep], self.queue[keep]
        kept = torch.from_numpy(np.flatnonzero(keep)).to(self.goal_z.device)
        self.goal_z, self.executed = self.goal_z[kept], self.executed[kept]
        self.situation = self.situation.select(kept)
        self.context = None if self.context is None else select_context(self.context, kept)
        self.plan = None if self.plan is None else select_plan(self.plan, kept)

    def remember(self, z: Tensor, proprio: Tensor | None, history: int) -> None:
        """Append a frame [n,1,*L] and the block that led to it; keep ``history`` frames."""
        past = self.context
        if past is None or history == 1:
            self.context = Context(z, self.executed[:, :0], proprio)
            return
        block = self.executed[:, self.blocks_done - 1 : self.blocks_done]
        actions = block if past.actions.shape[1] == 0 else torch.cat([past.actions, block], 1)
        pose = None
        if proprio is not None and past.proprio is not None:
            pose = torch.cat([past.proprio, proprio], 1)[:, -history:]
        self.context = Context(
            torch.cat([past.z, z], 1)[:, -history:],
            actions[:, max(0, actions.shape[1] - history + 1) :],
            pose,
        )

    def aim(self, goal_z: Tensor, budget: int | None, proprio: Tensor | None) -> None:
        """Take new goals [n,*L] for the active rows and forget what is left of the plan."""
        self.goal_z = goal_z
        self.situation = replace(self.situation, goal_proprio=proprio)
        self.budget = None if budget is None else self.step + budget
        self.plan, self.queue = None, self.queue[:, :0]
        self.executed = self.executed[:, : self.blocks_done]

    def begin_solve(self) -> None:
        """Note the block executed last, before a new plan takes the old one's place."""
        if self.blocks_done:
            last = self.executed[:, self.blocks_done - 1]
            self.situation = replace(self.situation, before=last)

    def execute(self, plan: Plan, actions: np.ndarray, blocks: Tensor) -> None:
        """Queue a plan's env actions [n,k*block,a], executed as solver blocks [n,k,A]."""
        self.plan, self.queue, self.executed, self.blocks_done = plan, actions, blocks, 0

    def take_action(self, block: int) -> np.ndarray:
        """Take the next env action [n,a] off the queue and advance one step."""
        action, self.queue = self.queue[:, 0], self.queue[:, 1:]
        self.step += 1
        self.blocks_done += self.step % block == 0
        return action
