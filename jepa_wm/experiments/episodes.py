"""The episodes and rules of a run: from its options and protocol to segments and ``Rules``.

Nothing here prints or writes; the options are the plain values of ``conf/plan.yaml``.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from jepa_wm.control.episode import Rules
from jepa_wm.control.episode_list import EpisodeList, read_episode_list
from jepa_wm.control.protocol import PLAY_SEED, Segments, cut_segments, environment_of
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.goals import GOALS
from jepa_wm.launch import build

SUCCESS_AT = ("any_step", "segment_end")
MOST_DRAWN = 50  # times the episodes wanted: where more are presolved, something is wrong


def settle_protocol(options: dict[str, Any]) -> dict[str, Any]:
    """Return options in which ``episode_list`` speaks for what it holds; refuse what cannot be.

    An environment that would end at its first success runs on where the protocol asks for more.

    Raises:
        ConfigError: a value is none of its kind, the list cannot be read, or the command line
            changes the preset itself.
    """
    _check(options)
    if options["episode_list"] is not None:
        told = dict(read_episode_list(_list_path(options)).options)
        if options["goal"] not in GOALS:
            told.pop("goal")  # a picture is shown at the list's starts
        options = {**options, **told}
    is_scored = options["goal"] in GOALS
    if options["replace_presolved"] and not is_scored:
        raise ConfigError(
            "replace_presolved=true: a picture tells no goal state; no start is known"
        )
    may_end = is_scored and options["hold"] == 1 and options["success_at"] == "any_step"
    if "terminate" in options["env"] and not (may_end and options["stop_on_success"]):
        options = {**options, "env": {**options["env"], "terminate": False}}
    return options


def _check(options: Mapping[str, Any]) -> None:
    """Refuse values that are none of their kind, and overrides of the preset itself."""
    for override in options.get("overrides", ()):
        key, _, value = override.lstrip("+").partition("=")
        if key.startswith("protocol."):
            plain = key.removeprefix("protocol.")
            raise ConfigError(f"{key}={value}: a preset stays as it is; write {plain}={value}")
    seeds = options["seed"], 0 if options["planner_seed"] is None else options["planner_seed"]
    if any(type(seed) is not int or seed < 0 for seed in seeds):
        told = f"seed={options['seed']!r}, planner_seed={options['planner_seed']!r}"
        raise ConfigError(
            f"{told}: seeds must be whole numbers >= 0; planner_seed=null is the seed"
        )
    for name in ("stop_on_success", "replace_presolved"):
        if type(options[name]) is not bool:
            raise ConfigError(f"{name}={options[name]!r} must be true or false")
    if options["success_at"] not in SUCCESS_AT:
        raise ConfigError(f"success_at={options['success_at']!r} must be {' or '.join(SUCCESS_AT)}")


def make_rules(
    options: Mapping[str, Any], block: int, frames: str, film: Collection[int] = ()
) -> Rules:
    """Return the rules of a run.

    Args:
        options: Of the run.
        block: Environment steps of a block of the agent's.
        frames: What the agent looks at (``Brain.frames``).
        film: Ids of the episodes to film.
    """
    is_segmented = options["success_at"] == "segment_end"
    return Rules(
        budget=options["budget"],
        success=options["task"]["success"],
        hold=options["hold"],
        segment=options["replan_every"] * block if is_segmented else None,
        stop_on_success=options["stop_on_success"],
        frames=frames,
        proprio=options["task"].get("proprio"),
        states=options["task"]["state"],
        film=film,
        scored=options["goal"] in GOALS,
    )


def make_segments(options: dict[str, Any], env: gymnasium.Env) -> Segments:
    """Return the starts and goals of a run: of its ``episode_list``, else drawn from its seed.

    Raises:
        ConfigError: the list is another environment's, or too many starts are presolved.
    """
    count, state = options["episodes"], options["task"]["state"]
    if options.get("episode_list") is not None:
        listed = read_episode_list(_list_path(options))
        size = np.asarray(env.reset(seed=0)[1][state]).size
        listed.check(environment_of(options, env), size)
        _check_states(listed, env)
        return listed.segments
    if not options.get("replace_presolved"):
        return _draw(options, env, count)
    return unsolved(
        lambda asked: _draw(options, env, asked),
        count,
        lambda one: _is_presolved(options, env, one),
    )


def unsolved(
    draw: Callable[[int], Segments], wanted: int, is_presolved: Callable[[Segments], bool]
) -> Segments:
    """Return the first ``wanted`` episodes that do not start at their goal, under their own ids.

    Args:
        draw: Count -> that many episodes; the first ones are the same whatever the count.
        wanted: How many.
        is_presolved: Says it of one episode.

    Raises:
        ConfigError: there are too few.
    """
    asked = wanted
    while True:
        drawn = draw(asked)
        rows = [drawn.rows(np.array([row])) for row in range(len(drawn.starts))]
        free = np.flatnonzero([not is_presolved(row) for row in rows])
        if len(free) >= wanted:
            chosen = free[:wanted]
            return replace(drawn.rows(chosen), replaced=int(chosen[-1]) + 1 - wanted)
        if len(drawn.starts) < asked or asked >= MOST_DRAWN * wanted:
            raise ConfigError(
                f"replace_presolved=true: of {len(drawn.starts)} episodes only {len(free)} do not "
                f"start at their goal; {wanted} are wanted"
            )
        asked *= 2


def _draw(options: Mapping[str, Any], env: gymnasium.Env, count: int) -> Segments:
    """Return the first ``count`` episodes of a seed: of held-out play, or the environment's own."""
    seed = options["seed"]
    if options["goal"] == "play":
        recorded = build(options["task"]["play"], "task.play")(PLAY_SEED + seed, count)
        return cut_segments(recorded.states, recorded.actions, options["goal_offset"], seed)
    drawn = [env.reset(seed=PLAY_SEED + 1000 * seed + index)[1] for index in range(count)]
    starts, goals = (np.stack([info[key] for info in drawn]) for key in ("state", "goal_state"))
    actions = np.zeros((count, 0, *(env.action_space.shape or ())), np.float32)
    return Segments(starts, goals, actions)


def _check_states(listed: EpisodeList, env: gymnasium.Env) -> None:
    """Refuse a list with a state that the environment does not take."""
    found = listed.segments
    for index, start, goal in zip(found.names, found.starts, found.goals, strict=True):
        try:
            env.reset(seed=0, options={"state": start, "goal_state": goal})
        except ValueError as error:
            told = " ".join(str(error).split())
            raise ConfigError(f"episode_list={listed.path}: episode {index}: {told}") from error


def _is_presolved(options: Mapping[str, Any], env: gymnasium.Env, one: Segments) -> bool:
    given = {"state": one.starts[0], "goal_state": one.goals[0]}
    return bool(env.reset(seed=0, options=given)[1][options["task"]["success"]])


def _list_path(options: Mapping[str, Any]) -> Path:
    return Path(str(options["episode_list"])).expanduser()
