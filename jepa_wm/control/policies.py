"""Baselines that act without a model: random, no-op and replay. Each is an ``Agent``."""

from collections.abc import Mapping, Sequence

import numpy as np

from jepa_wm.control.agent import Decision
from jepa_wm.runtime import stream_seed


class _Baseline:
    """Needs no frames and decides nothing."""

    needs_frames = False
    decisions: Sequence[Decision] = ()

    def __init__(self, low: np.ndarray, high: np.ndarray, *, whole: bool = False) -> None:
        """Act inside the env's box, low [a] and high [a]; choices are ``whole`` numbers."""
        self.whole = whole
        self.low = np.asarray(low, dtype=np.float32).reshape(-1)
        self.high = np.asarray(high, dtype=np.float32).reshape(-1)
        if self.low.shape != self.high.shape or not (self.low <= self.high).all():
            raise ValueError(f"low {self.low.tolist()} and high {self.high.tolist()} are not a box")
        self.seeds: tuple[int, ...] = ()
        self.step = 0

    def reset(
        self,
        goals: np.ndarray | None,
        seeds: Sequence[int],
        budget: int | None = None,
        proprio: np.ndarray | None = None,
    ) -> None:
        """Begin one episode a seed; goals and budget do not matter."""
        self.seeds, self.step = tuple(int(seed) for seed in seeds), 0

    def act(
        self,
        frames: np.ndarray | None = None,
        proprio: np.ndarray | None = None,
        active: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return one env action a row, float32 [B,a]; zeros where not active."""
        actions = np.clip(self.choose(), self.low, self.high).astype(np.float32)
        self.step += 1
        return actions if active is None else np.where(active[:, None], actions, np.float32(0))

    def choose(self) -> np.ndarray:
        """Return this step's actions, [B,a], clipped by the caller."""
        raise NotImplementedError


class NoOpPolicy(_Baseline):
    """Stand still: zero actions, clipped into the box; of choices, the one nearest to 0."""

    def choose(self) -> np.ndarray:
        """Return zeros [B,a]."""
        return np.zeros((len(self.seeds), len(self.low)), dtype=np.float32)


class RandomPolicy(_Baseline):
    """Draw every action from N(mean, std), or uniformly from the box; one stream per episode seed.

    Whole numbers are drawn uniformly, both ends included.

    The stream depends on the episode's seed alone: neither the rows beside it nor an env reset
    move it.
    """

    def __init__(
        self,
        low: np.ndarray,
        high: np.ndarray,
        *,
        mean: float | Sequence[float] = 0.0,
        std: float | Sequence[float] | None = None,
        whole: bool = False,
    ) -> None:
        """Take ``mean`` and ``std`` in env units, numbers or [a]; std None draws uniformly.

        Raises:
            ValueError: a uniform draw from an unbounded box, a negative std, or one for choices.
        """
        super().__init__(low, high, whole=whole)
        if whole and std is not None:
            raise ValueError(f"std={std}: choices are drawn uniformly")
        if std is None and not np.isfinite([self.low, self.high]).all():
            raise ValueError("the box is unbounded: give RandomPolicy a std")
        if std is not None and not (np.asarray(std) >= 0).all():
            raise ValueError(f"std={std} must be >= 0")
        self.mean, self.std = mean, std
        self._streams: list[np.random.Generator] = []

    def reset(
        self,
        goals: np.ndarray | None,
        seeds: Sequence[int],
        budget: int | None = None,
        proprio: np.ndarray | None = None,
    ) -> None:
        """Begin one episode a seed."""
        super().reset(goals, seeds, budget)
        self._streams = [
            np.random.default_rng(stream_seed(seed, "random-policy")) for seed in self.seeds
        ]

    def choose(self) -> np.ndarray:
        """Draw [B,a]."""
        size = len(self.low)
        if self.whole:
            ends = self.low.astype(int), self.high.astype(int) + 1
            return np.stack([rng.integers(*ends) for rng in self._streams])
        if self.std is None:
            return np.stack([rng.uniform(self.low, self.high) for rng in self._streams])
        return np.stack([rng.normal(self.mean, self.std, size) for rng in self._streams])


class ReplayPolicy(_Baseline):
    """Repeat recorded actions, open loop; after the last one, stand still."""

    def __init__(
        self,
        low: np.ndarray,
        high: np.ndarray,
        actions: Mapping[int, np.ndarray],
        *,
        whole: bool = False,
    ) -> None:
        """Take the recorded actions [K,a] (env units) of each episode seed."""
        super().__init__(low, high, whole=whole)
        self.recorded = {int(k): np.asarray(v, dtype=np.float32) for k, v in actions.items()}

    def reset(
        self,
        goals: np.ndarray | None,
        seeds: Sequence[int],
        budget: int | None = None,
        proprio: np.ndarray | None = None,
    ) -> None:
        """Begin one episode a seed.

        Raises:
            ValueError: nothing was recorded for a seed.
        """
        super().reset(goals, seeds, budget)
        missing = [seed for seed in self.seeds if seed not in self.recorded]
        if missing:
            raise ValueError(f"no recorded actions for episode seeds {missing[:5]}")

    def choose(self) -> np.ndarray:
        """Return the recorded actions of this step, [B,a]."""
        still = np.zeros(len(self.low), dtype=np.float32)
        plans = [self.recorded[seed] for seed in self.seeds]
        return np.stack([plan[self.step] if self.step < len(plan) else still for plan in plans])
