"""What an episode asks of whoever acts, a planner's loop or a baseline, and keeps of a decision."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from jepa_wm.control.interfaces import Plan


@dataclass(frozen=True, eq=False)
class Decision:
    """One solve: when, for whom, what came out and how long it took.

    Attributes:
        step: Environment step at which it was taken, 0-based.
        rows: Episode rows that were planned, int64 [n].
        plan: The plan, row i belonging to ``rows[i]``; its first blocks are the ones executed.
        encode_seconds: Wall time to preprocess and encode the new frames, device synchronised.
        plan_seconds: Wall time of the search, device synchronised.
        evaluations: Candidates whose cost the search asked for, of each row.
    """

    step: int
    rows: np.ndarray
    plan: Plan
    encode_seconds: float
    plan_seconds: float
    evaluations: int = 0


class Agent(Protocol):
    """Acts in a batch of episodes that run in lock step, one row each.

    Attributes:
        needs_frames: Whether the next ``act`` looks at its frames; where not, they need not be
            made.
        decisions: The solves since ``reset``, oldest first; empty for an agent that does not plan.
    """

    @property
    def needs_frames(self) -> bool:
        """Whether the next ``act`` looks at its frames."""
        ...

    @property
    def decisions(self) -> Sequence[Decision]:
        """The solves since ``reset``."""
        ...

    def reset(
        self,
        goals: np.ndarray | None,
        seeds: Sequence[int],
        budget: int | None = None,
        proprio: np.ndarray | None = None,
    ) -> None:
        """Begin B episodes: goals [B,...] as the agent's model takes them, one seed a row.

        ``budget`` is the number of environment steps to come and ``proprio`` [B,P] what the body
        would feel at the goals, where they are known.
        """
        ...

    def act(
        self, frames: np.ndarray | None, proprio: np.ndarray | None, active: np.ndarray | None
    ) -> np.ndarray:
        """Return one environment action a row, float32 [B,a]; rows that are not active get zeros.

        ``frames`` [B,...] and ``proprio`` [B,P] are what is seen now; ``active`` bool [B] may only
        ever lose rows.
        """
        ...


def plans_by_row(decisions: Sequence[Decision], batch: int) -> list[dict[str, np.ndarray]]:
    """Turn a batch's decisions into one table a row: numpy arrays over its decisions [D,...].

    Device tensors are copied once a decision. Plans are padded with NaN past a shrunken horizon. A
    row that was never planned for has an empty table. ``Episode.plans`` names the columns.
    """
    tables: list[list[dict[str, np.ndarray]]] = [[] for _ in range(batch)]
    longest = max((decision.plan.actions.shape[1] for decision in decisions), default=0)
    for decision in decisions:
        columns = _columns(decision, longest)
        for index, row in enumerate(decision.rows.tolist()):
            tables[row].append({name: values[index] for name, values in columns.items()})
    return [
        {name: np.stack([line[name] for line in table]) for name in table[0]} if table else {}
        for table in tables
    ]


def _columns(decision: Decision, longest: int) -> dict[str, np.ndarray]:
    """One decision as arrays with its n rows first."""
    plan, n = decision.plan, len(decision.rows)
    horizon = plan.actions.shape[1]
    gap = ((0, 0), (0, longest - horizon), (0, 0))
    columns = {
        "step": np.full(n, decision.step),
        "rows": np.full(n, n),
        "horizon": np.full(n, horizon),
        "encode_seconds": np.full(n, decision.encode_seconds),
        "plan_seconds": np.full(n, decision.plan_seconds),
        "evaluations": np.full(n, decision.evaluations),
        "cost": plan.cost.cpu().numpy(),
        "actions": np.pad(plan.actions.cpu().numpy(), gap, constant_values=np.nan),
    }
    for name in ("mean", "best"):
        if (scored := getattr(plan, name)) is not None:
            columns[f"{name}_cost"] = scored.cost.cpu().numpy()
            columns[f"{name}_actions"] = np.pad(
                scored.actions.cpu().numpy(), gap, constant_values=np.nan
            )
    if plan.trace is not None:
        for name in ("best", "elite_mean", "spread", "effective_samples"):
            columns[name] = getattr(plan.trace, name).T.cpu().numpy()
    return columns
