"""MPC: observe -> encode -> plan -> act, for a batch of problems in lock step.

It is the only object of the loop that remembers: the goal, the last frames' latents, the plan being
executed. The world model, the planner and the objective arrive as arguments; frames are whatever
the world model's ``preprocess`` takes, so the same loop drives a pixel model and a simulator.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from jepa_wm.control.agent import Decision
from jepa_wm.control.cost import ObjectiveFactory, RolloutCost
from jepa_wm.control.discrete import Codec
from jepa_wm.control.interfaces import Plan, Planner, Proposal, WorldModel
from jepa_wm.control.limits import Limits
from jepa_wm.control.memory import Memory
from jepa_wm.control.observations import Frames, as_tensor, read_proprio
from jepa_wm.control.situation import Situation
from jepa_wm.control.solver import Solver
from jepa_wm.runtime import stream_seed, synchronised_seconds


class MPC:
    """Closed-loop control with a world model: an ``Agent`` that plans.

    One call of ``act`` is one environment step. A solve happens when the executed part of the plan
    is used up: every ``replan_every`` blocks, for all active rows together. Each solve of a row
    draws from its own generator, seeded by (the row's seed, the number of the solve), so a row's
    plan depends on nothing beside it.

    Attributes:
        decisions: The solves since ``reset``.
        last_plan: The plan being executed: its first block held the last action given. None before
            the first.
    """

    def __init__(
        self,
        *,
        world_model: WorldModel,
        planner: Planner,
        objective: ObjectiveFactory,
        codec: Codec,
        device: torch.device,
        replan_every: int,
        history: int | None = None,
        shrink_horizon: bool = True,
        warm_start: bool = True,
        chunk: int | None = None,
        encode_rows: int | None = None,
        proposal: Proposal | None = None,
        limits: Limits | None = None,
        goals_per_row: int | None = None,
    ) -> None:
        """Build the loop whole.

        Args:
            world_model: Encodes frames and predicts; on ``device``.
            planner: Searches; shared freely.
            objective: Factory, goal latents -> objective.
            codec: Between solver and environment actions.
            device: Where latents and plans live.
            replan_every: Blocks executed of every plan, 1..planner.horizon.
            history: Most context frames, 1..world_model.history; None takes the model's own. The
                context grows to it from one real frame, one frame a block.
            shrink_horizon: Never plan past the budget: H = min(horizon, blocks left).
            warm_start: Start each solve from the shifted rest of the last plan, else cold.
            chunk: Most candidates per rollout (``RolloutCost.chunk``).
            encode_rows: Most rows per model call, encode and rollout alike; None takes all at once.
                With 1 no bit of a row depends on who else is active.
            proposal: Suggests plans that every solve tries first, beside the planner's own start;
                e.g. a policy's, or those of an inverse model.
            limits: What environment actions may be beside the environment's box: a constraint of
                the planner's search, and whatever it returns, of what is executed.
            goals_per_row: Goals that every row is given at once, K, for objectives over lists of
                them: goals are then [B,K,...] and their latents [B,K,*L]. None is one, [B,...].

        Raises:
            ValueError: the parts do not fit together; all faults at once.
        """
        self.world_model, self.planner, self.objective = world_model, planner, objective
        self.codec, self.device, self.replan_every = codec, device, replan_every
        self.history = world_model.history if history is None else history
        self.shrink_horizon, self.warm_start = shrink_horizon, warm_start
        self.chunk, self.encode_rows, self.proposal = chunk, encode_rows, proposal
        self.limits, self.goals_per_row = limits, goals_per_row
        faults = self._faults()
        if faults:
            raise ValueError("MPC: " + "; ".join(faults))
        low, high = codec.bounds()
        self._solver = Solver(planner, (low.to(device), high.to(device)), device, limits)
        self._memory: Memory | None = None

    def _faults(self) -> list[str]:
        A, model = self.codec.action_dim, self.world_model
        faults = []
        if model.action_dim != A:
            faults.append(
                f"the world model takes {model.action_dim} action numbers, the codec gives {A} "
                f"(block {self.codec.block} x {A // self.codec.block})"
            )
        is_discrete = bool(getattr(self.planner, "is_discrete", False))  # most say nothing
        if is_discrete != self.codec.is_discrete:
            name = type(self.planner).__name__
            searches = "choices" if is_discrete else "real numbers"
            use = (
                "continuous planner such as cem"
                if is_discrete
                else "planner of choices: categorical"
            )
            faults.append(
                f"the action space is {self.codec}, {name} searches among {searches}; use a {use}"
            )
        if not 1 <= self.replan_every <= self.planner.horizon:
            faults.append(
                f"replan_every={self.replan_every} must be 1..horizon={self.planner.horizon}"
            )
        if not 1 <= self.history <= model.history:
            faults.append(f"history={self.history} must be 1..{model.history}, the model's own")
        for name in ("chunk", "encode_rows", "goals_per_row"):
            value = getattr(self, name)
            if value is not None and value < 1:
                faults.append(f"{name}={value} must be >= 1 or null")
        return faults

    @property
    def needs_frames(self) -> bool:
        """Whether the next ``act`` looks at its frames: block starts that replan or are kept."""
        now = self._running
        return now.step % self.codec.block == 0 and (self.history > 1 or not now.blocks_left)

    @property
    def decisions(self) -> Sequence[Decision]:
        """The solves since ``reset``, oldest first."""
        return self._memory.decisions if self._memory else []

    @property
    def last_plan(self) -> Plan | None:
        """The plan whose actions are being executed, rows as ``decisions[-1].rows``."""
        return self.decisions[-1].plan if self.decisions else None

    def reset(
        self,
        goals: Frames | None,
        seeds: Sequence[int],
        budget: int | None = None,
        proprio: Frames | None = None,
    ) -> None:
        """Begin B episodes.

        Args:
            goals: Goal frames as the world model takes them, e.g. uint8 [B,H,W,3]; encoded once.
            seeds: One seed a row.
            budget: Environment steps to come, or None where nobody knows.
            proprio: Proprioception at the goals [B,P] in env units, for objectives that compare it.

        Raises:
            ValueError: there are no goals, or not one a seed, or the budget is below 1.
        """
        if goals is None or len(goals) != len(seeds) or not len(seeds):
            got = "none" if goals is None else len(goals)
            raise ValueError(
                f"MPC.reset needs one goal and one seed a row, got {got} and {len(seeds)}"
            )
        if budget is not None and budget < 1:
            raise ValueError(f"budget={budget} must be at least one environment step")
        rows = np.arange(len(seeds))
        pose = read_proprio(proprio, len(seeds), rows, "the goals' proprio", self.device)
        situation = Situation(block=self.codec.block, goal_proprio=pose)
        own = tuple(int(seed) for seed in seeds)
        goal_z = self._encode_goals(goals)
        self._memory = Memory(goal_z, own, budget, self.codec.action_dim, situation)

    def aim(self, goals: Frames, budget: int | None = None, proprio: Frames | None = None) -> None:
        """Change the goals between two blocks; the rest of the plan is dropped, the past is kept.

        Args:
            goals: Goal frames of all B rows; encoded once.
            budget: Environment steps from here on, or None where nobody knows.
            proprio: As of ``reset``, of the new goals.

        Raises:
            ValueError: it is not one goal a row, or a block is under way.
        """
        now = self._running
        if len(goals) != now.batch:
            raise ValueError(f"MPC.aim needs {now.batch} goals, one a row, got {len(goals)}")
        if now.step % self.codec.block:
            raise ValueError(f"step {now.step} is within a block of {self.codec.block} steps")
        rows = torch.from_numpy(now.rows).to(self.device)
        pose = read_proprio(proprio, now.batch, now.rows, "the goals' proprio", self.device)
        now.aim(self._encode_goals(goals)[rows], budget, pose)

    def act(
        self,
        frames: Frames | None,
        proprio: Frames | None = None,
        active: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the next environment action of every row.

        Args:
            frames: What is seen now, one frame a row, e.g. uint8 [B,H,W,3]; may be None unless
                ``needs_frames``.
            proprio: Proprioception [B,P] in env units, or None.
            active: Rows that still run, bool [B]; a row once dropped stays so until ``reset``. Only
                active rows cost.

        Returns:
            float32 [B,a], inside the env's box; zeros for rows that are not active.

        Raises:
            ValueError: a leading dimension is not B, frames are missing, or a dropped row came
                back.
        """
        now = self._running
        now.drop(active)
        actions = np.zeros((now.batch, self.codec.env_dim), dtype=np.float32)
        if not len(now.rows):
            return actions
        if now.step % self.codec.block == 0:
            seconds = self._observe(frames, proprio) if self.needs_frames else 0.0
            if not now.blocks_left:
                self._decide(seconds)
        actions[now.rows] = now.take_action(self.codec.block)
        return actions

    def cost(self) -> RolloutCost:
        """Return the cost of the last solve: its goals, and its past up to the last frame seen.

        Raises:
            ValueError: nothing was seen yet.
        """
        now = self._running
        if now.context is None:
            raise ValueError("MPC.cost before MPC.act: no frame was seen yet")
        return RolloutCost(
            self.world_model,
            self.objective,
            now.goal_z,
            now.context,
            self.chunk,
            self.encode_rows,
            now.situation,
        )

    @property
    def _running(self) -> Memory:
        if self._memory is None:
            raise ValueError("MPC.act before MPC.reset: there is no goal yet")
        return self._memory

    def _encode(self, frames: Frames) -> Tensor:
        """Encode one frame a row, [n,...] -> [n,1,*L]."""
        model, rows = self.world_model, self.encode_rows or len(frames)
        pieces = as_tensor(frames).to(self.device)[:, None].split(rows)
        with torch.inference_mode():
            return torch.cat([model.encode(model.preprocess(piece)) for piece in pieces])

    def _encode_goals(self, goals: Frames) -> Tensor:
        """Encode the goals of every row, [n,...] -> [n,*L], or lists of them -> [n,K,*L]."""
        if self.goals_per_row is None:
            return self._encode(goals)[:, 0]
        lists, count = as_tensor(goals), self.goals_per_row
        if lists.ndim < 2 or lists.shape[1] != count:
            raise ValueError(f"goals must be [B,{count},...], got {list(lists.shape)}")
        return self._encode(lists.flatten(0, 1))[:, 0].unflatten(0, (-1, count))

    def _observe(self, frames: Frames | None, proprio: Frames | None) -> float:
        """Take the frame at a block boundary into the context; return the seconds it took."""
        now = self._running
        if frames is None or len(frames) != now.batch:
            got = "none" if frames is None else len(frames)
            raise ValueError(f"step {now.step} needs {now.batch} frames, one a row, got {got}")
        began = synchronised_seconds(self.device)
        pose = read_proprio(proprio, now.batch, now.rows, f"step {now.step}: proprio", self.device)
        seen = self._encode(as_tensor(frames)[now.rows])
        now.remember(seen, None if pose is None else pose[:, None], self.history)
        return synchronised_seconds(self.device) - began

    def _decide(self, encode_seconds: float) -> None:
        now = self._running
        began = synchronised_seconds(self.device)
        index = len(now.decisions)
        seeds = [stream_seed(now.seeds[row], index, "plan") for row in now.rows.tolist()]
        now.begin_solve()
        last = None
        if self.limits is not None and now.situation.before is not None:
            last = self.codec.decode(now.situation.before[:, None])[:, -1]  # [n,a]
        if self._solver.planner is not self.planner:  # another was put in its place
            self._solver = Solver(self.planner, self._solver.bounds, self.device, self.limits)
        plan, evaluations = self._solver.solve(self.cost(), self._start(), seeds, last)
        executed = min(self.replan_every, plan.actions.shape[1])
        actions = self.codec.decode(plan.actions[:, :executed])  # [n, executed * block, a]
        if self.limits is not None:
            actions = self.limits.apply(actions, last)
        now.execute(plan, actions.cpu().numpy(), self.codec.encode(actions))
        plan_seconds = synchronised_seconds(self.device) - began
        now.decisions.append(
            Decision(now.step, now.rows.copy(), plan, encode_seconds, plan_seconds, evaluations)
        )

    def _start(self) -> Plan:
        """Warm or cold start of the rows still active, cut to the blocks that are left."""
        now = self._running
        if now.plan is None or not self.warm_start:
            start = self.planner.start(len(now.rows), self.codec.action_dim, self.device)
        else:
            start = self.planner.shift(now.plan, now.executed.shape[1])
        if self.proposal is not None:
            start = self._suggest(self.proposal, start)
        if not self.shrink_horizon or now.budget is None:
            return start
        return start.cut(max(1, math.ceil((now.budget - now.step) / self.codec.block)))  # blocks

    def _suggest(self, proposal: Proposal, start: Plan) -> Plan:
        """Put a proposal's plans before those the planner kept; short ones end in zeros."""
        now = self._running
        assert now.context is not None  # a solve has seen a frame
        given = proposal(now.context, now.goal_z)
        (B, H, A), shape = start.actions.shape, list(given.shape)
        if given.ndim != 4 or shape[::3] != [B, A] or not 1 <= shape[2] <= H:
            raise ValueError(f"the proposal must give plans [{B},K,<={H},{A}], got {shape}")
        plans = start.actions.new_zeros(B, shape[1], H, A)
        plans[:, :, : shape[2]] = given
        kept = start.candidates
        return replace(start, candidates=plans if kept is None else torch.cat([plans, kept], 1))
