"""Situation: what an objective may know beside the goal's latents, the plan's and the actions.

Most objectives need none of it. One that does has a method ``given(situation)``, which returns it
as it is in this situation; ``informed`` calls it where it is there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from torch import Tensor

from jepa_wm.control.interfaces import Objective


@dataclass(frozen=True, eq=False, kw_only=True)
class Situation:
    """Where B problems stand when a solve begins.

    Attributes:
        block: Environment actions in one solver action, >= 1.
        before: The solver action executed last, float [B,A], or None where there was none.
        goal_proprio: Proprioception at the goals, env units, float [B,P], or None where unknown.
        predict: Proprioception after each block of candidates, env units, [B,S,H,A] -> [B,S,H,P];
            None where the model predicts none.
    """

    block: int
    before: Tensor | None = None
    goal_proprio: Tensor | None = None
    predict: Callable[[Tensor], Tensor] | None = None

    def select(self, rows: slice | Tensor) -> "Situation":
        """Keep some rows; ``predict`` is left out, it belongs to all."""
        before = None if self.before is None else self.before[rows]
        proprio = None if self.goal_proprio is None else self.goal_proprio[rows]
        return replace(self, before=before, goal_proprio=proprio, predict=None)


def asks_situation(objective: Objective) -> bool:
    """Say whether an objective wants to know its situation; one of several, if any of them does."""
    return bool(getattr(objective, "asks_situation", hasattr(objective, "given")))


def informed(objective: Objective, situation: Situation | None) -> Objective:
    """Tell an objective its situation, if it asks for one."""
    given = getattr(objective, "given", None)
    return objective if given is None or situation is None else cast(Objective, given(situation))
