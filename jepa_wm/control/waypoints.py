"""Waypoints: an agent that takes a list of goals, each for a number of steps, as one task."""

from collections.abc import Sequence

import numpy as np

from jepa_wm.control.agent import Decision
from jepa_wm.control.mpc import MPC


class Waypoints:
    """Drives an ``MPC`` from goal to goal; the last one holds to the end.

    Every goal starts with a fresh solve and its steps are the budget of its plans.

    Args:
        mpc: Plans; its goals are set here.
        goals: As the world model takes them, [K,...], one a sub-goal, the same for every row.
        steps: Environment steps for each, whole blocks.

    Raises:
        ValueError: the steps do not fit the goals or the blocks.

    Source: the sub-goals of pick-and-place in V-JEPA 2 (arXiv 2506.09985, section 4).
    """

    def __init__(self, mpc: MPC, goals: np.ndarray, steps: Sequence[int]) -> None:
        if not len(goals) or len(goals) != len(steps):
            raise ValueError(f"{len(goals)} goals need as many step counts, got {len(steps)}")
        block = mpc.codec.block
        odd = [count for count in steps if count < 1 or count % block]
        if odd:
            raise ValueError(f"steps {odd} of sub-goals must be multiples of the block, {block}")
        self.mpc, self.goals, self.steps = mpc, goals, tuple(steps)
        starts = np.cumsum([0, *self.steps[:-1]])
        self._starts = {int(start): index for index, start in enumerate(starts)}
        self._step = self._batch = 0

    @property
    def needs_frames(self) -> bool:
        """Whether the next ``act`` looks at its frames: at each new goal it does."""
        return self._step in self._starts or self.mpc.needs_frames

    @property
    def decisions(self) -> Sequence[Decision]:
        """The solves since ``reset``."""
        return self.mpc.decisions

    def reset(
        self,
        goals: np.ndarray | None,
        seeds: Sequence[int],
        budget: int | None = None,
        proprio: np.ndarray | None = None,
    ) -> None:
        """Begin B episodes; goals and budget are its own, proprioception is not known."""
        self._step, self._batch = 0, len(seeds)
        self.mpc.reset(self._of(0), seeds, self.steps[0])

    def act(
        self,
        frames: np.ndarray | None,
        proprio: np.ndarray | None = None,
        active: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the next environment action of every row, towards the goal of this step."""
        index = self._starts.get(self._step)
        if index:  # the first is set by reset
            self.mpc.aim(self._of(index), self.steps[index])
        self._step += 1
        return self.mpc.act(frames, proprio, active)

    def _of(self, index: int) -> np.ndarray:
        return np.stack([self.goals[index]] * self._batch)
