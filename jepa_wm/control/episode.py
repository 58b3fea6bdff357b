"""Episode: the record of one run, the task and rules it was made by, and its place on disk.

``jepa_wm.control.runner`` makes episodes; pictures and reports read nothing else. On disk an
episode is two files, ``episode_0007.npz`` with the arrays and ``episode_0007.json`` with the rest;
neither holds a pickle.
"""

import json
import zipfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from jepa_wm.errors import ConfigError

_SCALARS: tuple[str, ...] = ("id", "seed", "success", "presolved", "config", "timing")
_ARRAYS = ("actions", "rewards", "seconds", "goal", "frames", "states")
_GROUPS = ("metrics", "plans")


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """One thing to do: where to start and what to reach.

    Attributes:
        id: Its name in every report and file, unique in a run.
        seed: Seeds the agent's randomness in this episode, and the environment's reset where
            ``reset_seed`` does not.
        options: Handed to the environment's ``reset``, e.g. the start state; None draws a start
            from the seed.
        goal: The goal as the agent takes it (a frame uint8 [H,W,3], or a state), or None for agents
            that have none.
        goal_frame: A picture of the goal for the record, uint8 [H,W,3]; None keeps ``goal``.
        reset_seed: Seeds the environment's reset, so that several planner seeds meet the same
            episode; None takes ``seed``.
        goal_proprio: Proprioception at the goal [P], env units, or None where unknown.
    """

    id: int
    seed: int
    options: Mapping[str, Any] | None = None
    goal: np.ndarray | None = None
    goal_frame: np.ndarray | None = None
    reset_seed: int | None = None
    goal_proprio: np.ndarray | None = None


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The protocol of a run: how long, what counts, what is looked at.

    Attributes:
        budget: Environment steps, >= 1.
        success: Key of the boolean in ``info`` that says the goal is met now.
        hold: Consecutive steps it must be true, >= 1. The default 1 is the published rule, success
            at *any* step.
        stop_on_success: End the episode at success; False runs on to the budget.
        frames: What the agent sees: ``render`` (the env's rgb_array), ``observation`` (what step
            returns), or a key of a dict observation or of ``info``.
        proprio: Key of the proprioception the agent is given, or None for none.
        states: Key of ``info`` recorded at every step, or None.
        film: Ids of the tasks whose every frame is recorded (rendered).
        scored: Whether the goal has a state, so that success can be told.
        segment: Environment steps between two states at which success counts, the last one of the
            budget included; None counts at every step.

    Raises:
        ConfigError: budget, hold or segment is below 1.
    """

    budget: int
    success: str
    hold: int = 1
    stop_on_success: bool = True
    frames: str = "render"
    proprio: str | None = None
    states: str | None = None
    film: Collection[int] = ()
    scored: bool = True
    segment: int | None = None

    def __post_init__(self) -> None:
        for name in ("budget", "hold", "segment"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} must be at least 1")

    @property
    def criterion(self) -> str:
        """The rule of success in words, for reports."""
        steps = "any step" if self.hold == 1 else f"{self.hold} consecutive steps"
        if self.segment is not None:
            held = "" if self.hold == 1 else f", after {steps}"
            steps = f"the end of a segment of {self.segment} steps{held},"
        return f"{self.success} at {steps} within {self.budget}"

    def describe(self) -> dict[str, Any]:
        """Return the rules as plain JSON values."""
        names = ("budget", "success", "hold", "segment", "stop_on_success", "frames", "proprio")
        told = {name: getattr(self, name) for name in (*names, "scored")}
        return told | {"criterion": self.criterion}


@dataclass(frozen=True, eq=False, kw_only=True)
class Episode:
    """What happened in one task; K environment steps, D decisions, I planner iterations.

    Attributes:
        id: The task's id.
        seed: The task's seed.
        success: Whether the criterion was met after the start.
        presolved: Whether the start already met it; such an episode is not run (K = 0) and counts
            in no rate.
        actions: Env actions, float32 [K,a].
        rewards: float64 [K].
        metrics: Every number of ``info`` that is there at reset and at each step, [K+1] each.
        goal: The goal's picture (or state), or None.
        frames: uint8 [K+1,H,W,3], frame 0 at reset; None unless filmed.
        states: [K+1,...], None unless asked for.
        seconds: Wall time of each decision of the batch this row was in, float64 [D].
        plans: Per decision: ``step``, ``rows`` (planned together), ``horizon``, ``cost``,
            ``encode_seconds``, ``plan_seconds``, ``evaluations``, all [D]; ``best``,
            ``elite_mean``, ``spread``, ``effective_samples`` [D,I]; ``actions`` [D,H,A], NaN past
            the horizon; ``mean_cost`` and ``mean_actions``, ``best_cost`` and ``best_actions``
            likewise, where the planner tells. Empty for agents that do not plan.
        timing: Wall seconds of ``environment`` (resets and steps) and ``render``, a batch's shared
            equally by the rows that were in it.
        config: The rules, and whatever the caller adds; plain JSON values.
    """

    id: int
    seed: int
    success: bool
    presolved: bool
    actions: np.ndarray
    rewards: np.ndarray
    metrics: Mapping[str, np.ndarray]
    goal: np.ndarray | None = None
    frames: np.ndarray | None = None
    states: np.ndarray | None = None
    seconds: np.ndarray = field(default_factory=lambda: np.zeros(0))
    plans: Mapping[str, np.ndarray] = field(default_factory=dict)
    timing: Mapping[str, float] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Environment steps done, K."""
        return len(self.actions)


def tally(episodes: Sequence[Episode]) -> tuple[int, int, int]:
    """Count (successes, evaluated, presolved); presolved episodes are not among the evaluated."""
    ran = [episode for episode in episodes if not episode.presolved]
    return sum(episode.success for episode in ran), len(ran), len(episodes) - len(ran)


def save_episode(episode: Episode, folder: Path) -> Path:
    """Write ``episode_NNNN.npz`` and ``.json`` into ``folder``; return the ``.npz`` path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"episode_{episode.id:04d}.npz"
    arrays = {
        name: getattr(episode, name) for name in _ARRAYS if getattr(episode, name) is not None
    }
    for group in _GROUPS:
        arrays |= {f"{group}/{key}": value for key, value in getattr(episode, group).items()}
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)
    rest = {name: getattr(episode, name) for name in _SCALARS}
    path.with_suffix(".json").write_text(json.dumps(rest, indent=1) + "\n", encoding="utf-8")
    return path


def load_episode(path: Path) -> Episode:
    """Read what ``save_episode`` wrote, given the ``.npz`` path.

    Raises:
        ConfigError: a file is missing or is not an episode's.
    """
    try:
        rest = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        with np.load(path, allow_pickle=False) as stored:
            arrays: dict[str, Any] = {name: stored[name] for name in stored.files}
        groups: dict[str, Any] = {group: {} for group in _GROUPS}
        for name in [name for name in arrays if "/" in name]:
            group, key = name.split("/", 1)
            groups[group][key] = arrays.pop(name)
        return Episode(**rest, **arrays, **groups)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path}: not a saved episode ({error})") from error
