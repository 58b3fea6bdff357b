"""Evaluation protocols: which episodes a planner is tested on, what counts, and under which name.

The start is a state of a recorded episode, the goal the state ``offset`` environment steps later in
the same episode; the recorded actions in between reach it, so replaying them is the ceiling of any
open-loop plan. A ``Protocol`` holds everything about a test but the model and the planner, with a
hash: results of the same hash may be compared episode by episode.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from jepa_wm.control.episode import Task
from jepa_wm.errors import ConfigError
from jepa_wm.runtime import stream_seed

PLAY_SEED = 100_000  # evaluation play starts here: no training collection uses these seeds
Frame = NDArray[np.uint8]
Render = Callable[[NDArray[np.float64]], Frame]


@dataclass(frozen=True)
class Segments:
    """Starts and goals cut from recorded episodes, one a row.

    Attributes:
        starts: Start states float64 [E,P].
        goals: Goal states float64 [E,P].
        actions: Recorded environment actions from start to goal, float32 [E,offset,a].
        ids: Which of the drawn episodes these are, int64 [E]; None are all, in order. An episode
            keeps its id where presolved ones before it are replaced.
        replaced: Presolved episodes that others were drawn for.
    """

    starts: NDArray[np.float64]
    goals: NDArray[np.float64]
    actions: NDArray[np.float32]
    ids: NDArray[np.int64] | None = None
    replaced: int = 0

    @property
    def names(self) -> list[int]:
        """The episodes' ids."""
        return list(range(len(self.starts))) if self.ids is None else self.ids.tolist()

    def rows(self, chosen: NDArray[Any]) -> "Segments":
        """Return some of the episodes, which keep their ids."""
        ids = np.array(self.names, dtype=np.int64)[chosen]
        return Segments(
            self.starts[chosen], self.goals[chosen], self.actions[chosen], ids, self.replaced
        )


def cut_segments(
    states: NDArray[np.float64], actions: NDArray[np.float32], offset: int, seed: int
) -> Segments:
    """Cut one segment of ``offset`` steps out of each recorded episode.

    Args:
        states: Float64 [E,K+1,P], before each action and after the last.
        actions: Float32 [E,K,a].
        offset: Environment steps between start and goal.
        seed: Episode e starts at a step drawn from (seed, e), whatever else is cut.

    Raises:
        ConfigError: the episodes are shorter than ``offset``.
    """
    steps = actions.shape[1]
    if not 1 <= offset <= steps:
        raise ConfigError(f"goal_offset={offset} must be 1..{steps}, the recorded steps")
    rows = np.arange(len(states))
    streams = [np.random.default_rng([seed, row]) for row in range(len(states))]
    first = np.array([rng.integers(steps - offset + 1) for rng in streams])
    times = first[:, None] + np.arange(offset)
    return Segments(
        states[rows, first], states[rows, first + offset], actions[rows[:, None], times]
    )


def segment_tasks(
    segments: Segments,
    seed: int,
    render: Render,
    from_states: bool,
    planner_seed: int | None = None,
) -> list[Task]:
    """Make one task a segment.

    Args:
        segments: Starts and goals.
        seed: Seeds the environment's reset of each episode, together with its id.
        render: State -> the picture of it the camera takes, uint8 [H,W,3].
        from_states: The agent takes goals as states (the simulator as model), not as pictures.
        planner_seed: Seeds the planner's randomness likewise; None takes ``seed``.
    """
    tasks = []
    for index, start, goal in zip(segments.names, segments.starts, segments.goals, strict=True):
        picture = render(goal)
        tasks.append(
            Task(
                id=index,
                seed=stream_seed(seed if planner_seed is None else planner_seed, index),
                reset_seed=stream_seed(seed, index),
                options={"state": start, "goal_state": goal},
                goal=goal if from_states else picture,
                goal_frame=picture,
            )
        )
    return tasks


def picture_tasks(
    segments: Segments, seed: int, picture: Frame, planner_seed: int | None = None
) -> list[Task]:
    """Make one task a start of ``segments``, all with the same goal picture uint8 [H,W,3].

    A picture tells no goal state, so nothing can be scored (``Rules.scored``): the environment is
    left its own goal. The seeds are those of ``segment_tasks``.
    """
    return [
        Task(
            id=index,
            seed=stream_seed(seed if planner_seed is None else planner_seed, index),
            reset_seed=stream_seed(seed, index),
            options={"state": start},
            goal=picture,
        )
        for index, start in zip(segments.names, segments.starts, strict=True)
    ]


def content_hash(value: object) -> str:
    """Return the SHA-256 of a plain value's canonical JSON: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """Everything about a test but the model and the planner.

    Attributes:
        name: Of the preset, ``conf/protocol/<name>.yaml``.
        version: Of the preset; another one means other numbers.
        changed: Its values that the user changed.
        environment: Id of the environment and its settings, but for those that no episode depends
            on (``HARMLESS``).
        goal: ``play`` (a later state of held-out play), ``env`` (the environment's own) or a
            picture.
        goals: Sub-goals with their steps, or None.
        goal_offset: Environment steps from start to goal, of ``play``.
        budget: Environment steps an episode.
        success: Key of ``info`` that says the goal is met now.
        hold: Consecutive steps it must be true.
        success_at: ``any_step``, or ``segment_end``: only the last state of the executed part of a
            plan counts.
        stop_on_success: An episode ends at success; False runs on to the budget.
        episodes: How many.
        seed: Of the episodes.
        planner_seed: Of the planners' randomness.
        replan_every: Blocks executed of every plan.
        shrink_horizon: Never plan past the budget.
        history: Context frames; None is all the model can use.
        play_seed: Of the held-out play the episodes are cut from; ``in_distribution`` compares it
            with a model's.
        replace_presolved: Presolved episodes were replaced by further ones.
        episodes_hash: Of the list of episodes: starts, goals, actions, seeds, ids.
    """

    name: str
    version: int
    changed: tuple[str, ...] = ()
    environment: Mapping[str, Any]
    goal: str
    goals: tuple[str, ...] | None
    goal_offset: int
    budget: int
    success: str
    hold: int
    success_at: str
    stop_on_success: bool
    episodes: int
    seed: int
    planner_seed: int
    replan_every: int
    shrink_horizon: bool
    history: int | None
    play_seed: int
    replace_presolved: bool
    episodes_hash: str

    @property
    def label(self) -> str:
        """The preset's name; where the user changed it, with a star and what was changed."""
        return f"{self.name}*({','.join(self.changed)})" if self.changed else self.name

    @property
    def hash(self) -> str:
        """SHA-256 of all values, the list of episodes included."""
        return content_hash({k: v for k, v in asdict(self).items() if k != "changed"})

    @property
    def rules_hash(self) -> str:
        """The hash without seeds and episodes: runs that share it may be pooled over seeds."""
        drawn = ("changed", "seed", "planner_seed", "play_seed", "episodes", "episodes_hash")
        return content_hash({k: v for k, v in asdict(self).items() if k not in drawn})

    def record(self) -> dict[str, Any]:
        """Return all values and hashes as plain JSON values."""
        hashes = {"label": self.label, "hash": self.hash, "rules_hash": self.rules_hash}
        return json.loads(json.dumps(asdict(self) | hashes))

    def in_distribution(self, trained_on: object) -> bool:
        """Say whether a model trained on play of these seeds ("0, 2") has seen the episodes."""
        return self.goal == "play" and str(self.play_seed) in str(trained_on).split(", ")


HARMLESS = ("_target_", "id", "render_mode", "terminate", "file")
"""Settings of an environment that change no episode: who makes it; that it ends at success, which
the protocol says; the path of a recording, whose content is in the episodes' hash."""


def protocol_of(options: Mapping[str, Any], env: gymnasium.Env, segments: Segments) -> Protocol:
    """Return the protocol of a run.

    Args:
        options: The plain options of ``conf/plan.yaml``; ``protocol`` in them holds the preset.
        env: The environment of the run.
        segments: Its episodes.
    """
    preset, planner_seed = options["protocol"], options["planner_seed"]
    given = {
        "name": preset["name"],
        "version": preset["version"],
        "changed": tuple(k for k in preset if k in options and options[k] != preset[k]),
        "environment": environment_of(options, env),
        "success": options["task"]["success"],
        "goals": None if options["goals"] is None else tuple(options["goals"]),
        "episodes": len(segments.starts),
        "planner_seed": options["seed"] if planner_seed is None else planner_seed,
        "play_seed": PLAY_SEED + options["seed"],
        "episodes_hash": episodes_hash(segments, options["seed"]),
    }
    rest = [field.name for field in fields(Protocol) if field.name not in given]
    return Protocol(**given, **{name: options[name] for name in rest})


def environment_of(options: Mapping[str, Any], env: gymnasium.Env) -> dict[str, Any]:
    """Return the environment's id and the settings that its episodes may depend on."""
    spec = env.unwrapped.spec
    settings = {k: v for k, v in options["env"].items() if k not in HARMLESS}
    return {"id": spec.id if spec else type(env.unwrapped).__name__, **settings}


def episode_rows(segments: Segments, seed: int) -> list[dict[str, Any]]:
    """Return the episodes as plain values: id, reset seed, start, goal, recorded actions."""
    columns = (segments.names, segments.starts, segments.goals, segments.actions)
    return [
        {
            "id": index,
            "seed": stream_seed(seed, index),
            "start": start.tolist(),
            "goal": goal.tolist(),
            "actions": actions.tolist(),  # float32 written as the float64 it equals
        }
        for index, start, goal, actions in zip(*columns, strict=True)
    ]


def episodes_hash(segments: Segments, seed: int) -> str:
    """Return the hash of a list of episodes; equal hashes are equal episodes, to the bit."""
    return content_hash(episode_rows(segments, seed))
