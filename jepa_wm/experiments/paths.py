"""True paths of an experiment: where they start, what is done, what comes of it.

A path is T context frames and H blocks of env actions after the last of them. The truth is recorded
play, or the simulator executing the actions.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jepa_wm.control.policies import RandomPolicy
from jepa_wm.control.protocol import PLAY_SEED
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.codecs import random_settings
from jepa_wm.experiments.observer import Floats, Observer
from jepa_wm.experiments.setup import Brain, make_agent
from jepa_wm.launch import build
from jepa_wm.runtime import stream_seed

Actions = NDArray[np.float32]

NAMED = ("play", "plan", "zero", "random")
SOURCES = (
    "actions is: play (what was done in held-out play), plan (the planner's own plan from the "
    "start), zero, random, or FILE.npy with env actions [K,a]"
)
HORIZON = 10  # blocks imagined where nobody says and the model allows
_MOST = 10_000  # steps of a file


@dataclass(frozen=True, eq=False)
class Paths:
    """B true paths, at the borders of blocks.

    Attributes:
        states: Context and what followed, float64 [B,T+H,P].
        past: Env actions between the context frames, float32 [B,(T-1)*block,a].
        ahead: Env actions after them, float32 [B,H*block,a].
        history: Context frames T.
    """

    states: Floats
    past: Actions
    ahead: Actions
    history: int


def record_play(options: dict[str, Any], others: int) -> tuple[tuple[Floats, Actions], Floats]:
    """Return held-out play: ``rollouts`` episodes, and the states of ``others`` beside them.

    A recording of fewer episodes gives half of them, again and again, and the other half.

    Returns:
        States [B,K+1,P] and actions [B,K,a]; states [E,K+1,P] of other episodes.

    Raises:
        ConfigError: there is one episode only, or fewer than the one to be shown.
    """
    count = options["rollouts"]
    play = build(options["task"]["play"], "task.play")
    try:
        recorded = play(PLAY_SEED + options["seed"], count + others)
    except ValueError as error:
        raise ConfigError(f"task.play: {error}") from error
    states, actions = recorded.states, recorded.actions
    _, first, names = np.unique(
        states.reshape(len(states), -1), axis=0, return_index=True, return_inverse=True
    )
    found = first[names.ravel()]  # of every row, where its episode came first
    distinct = np.unique(found)
    if len(distinct) < 2:
        raise ConfigError("play is one episode: there are no others to take a bank of frames from")
    spare = distinct[count if len(distinct) > count else len(distinct) // 2 :]
    rows = np.flatnonzero(~np.isin(found, spare))[:count]
    if options["show"] >= len(rows):
        raise ConfigError(f"show={options['show']}: play gives {len(rows)} rollouts")
    return (states[rows], actions[rows]), states[spare]


def find_horizon(options: dict[str, Any], brain: Brain, known: int | None) -> int:
    """Return the blocks to imagine: ``horizon``, else as many as are known and the model allows.

    Args:
        options: ``horizon``, ``history`` and ``actions``.
        brain: Its model may have ``longest``, the frames it has slots for.
        known: Blocks there are actions for, or None for any number.

    Raises:
        ConfigError: they allow fewer.
    """
    longest, T = getattr(brain.model, "longest", None), options["history"]
    slots = None if longest is None else longest - T + 1
    most = min([limit for limit in (known, slots) if limit is not None], default=None)
    wanted = options["horizon"] or min(HORIZON, HORIZON if most is None else most)
    if wanted < 1 or (most is not None and wanted > most):
        limits = {"actions are known": known, f"the model's {longest} frame slots hold": slots}
        said = ", ".join(f"{what} for {n}" for what, n in limits.items() if n is not None)
        raise ConfigError(
            f"horizon={wanted} with history={T}: {said} blocks of {brain.codec.block} env steps; "
            "choose a smaller horizon or history"
        )
    return int(wanted)


def make_paths(
    options: dict[str, Any], brain: Brain, observer: Observer, played: tuple[Floats, Actions]
) -> Paths:
    """Make the true paths: starts from play, then what ``actions`` says.

    Args:
        options: ``actions``, ``history``, ``horizon``, ``goal_offset``, ``seed`` and the task.
        brain: Model and codec.
        observer: Shows a planner its start and goal.
        played: States [B,K+1,P] and env actions [B,K,a]; one path an episode.

    Raises:
        ConfigError: the actions cannot be had, or nobody knows what comes of them.
    """
    states, actions = played
    block, T, source = brain.codec.block, options["history"], options["actions"]
    is_play, steps = source == "play", actions.shape[1]
    H = find_horizon(options, brain, steps // block - T + 1) if is_play else 0
    after = H * block if is_play else options["goal_offset"] if source == "plan" else 0
    whole = (T - 1) * block + after
    if whole > steps:
        raise ConfigError(
            f"history={T}, goal_offset={options['goal_offset']}: paths of {whole} env steps are "
            f"needed, play has {steps}"
        )
    rows = np.arange(len(states))[:, None]
    streams = [np.random.default_rng([options["seed"], row]) for row in range(len(states))]
    first = np.array([[rng.integers(steps - whole + 1)] for rng in streams])
    now = first + (T - 1) * block
    context = states[rows, first + block * np.arange(T)]
    past = actions[rows, first + np.arange((T - 1) * block)]
    if is_play:
        ahead = actions[rows, now + np.arange(H * block)]
        true = states[rows, now + block * np.arange(1, H + 1)]
    else:
        goals = states[rows, now + after][:, 0]
        ahead = choose_actions(options, brain, observer, context[:, -1], goals)
        true = simulate(options, context[:, -1], ahead, block)
    return Paths(np.concatenate([context, true], 1), past, ahead, T)


def choose_actions(
    options: dict[str, Any], brain: Brain, observer: Observer, starts: Floats, goals: Floats
) -> Actions:
    """Return env actions float32 [B,K,a] from starts [B,P] that are not play's.

    Args:
        options: Of the run.
        brain: Model and codec.
        observer: Shows a planner its start and goal.
        starts: Where the paths are.
        goals: Where a planner should go, [B,P].

    Raises:
        ConfigError: ``actions`` names none, or the file does not hold any.
    """
    codec, count, source = brain.codec, len(starts), options["actions"]
    if source == "plan":
        return _plan(options, brain, observer, starts, goals)
    low, high = codec.low.numpy(), codec.high.numpy()
    if source not in NAMED:
        given = read_actions(source, low, high, codec.block)
        known = len(given) // codec.block
        H = find_horizon(options | {"horizon": options["horizon"] or known}, brain, known)
        return np.tile(given[: H * codec.block], (count, 1, 1))
    steps = find_horizon(options, brain, None) * codec.block
    if source == "zero":
        return np.zeros((count, steps, codec.env_dim), np.float32)
    policy = RandomPolicy(low, high, **random_settings(codec, options["task"]))
    policy.reset(None, [stream_seed(options["seed"], row) for row in range(count)])
    return np.stack([policy.act() for _ in range(steps)], 1)


def read_actions(name: str, low: NDArray[Any], high: NDArray[Any], block: int) -> Actions:
    """Read env actions from an .npy file, float32 [K,a], whole blocks within the env's box.

    Raises:
        ConfigError: it holds something else.
    """
    path = Path(name).expanduser()
    if not path.is_file() or path.suffix != ".npy":
        raise ConfigError(f"actions={name}: no such file; {SOURCES}")
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(found, np.ndarray):
            raise ValueError("it is an archive of arrays, not one array")
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(f"actions={path} cannot be read: {error}") from error
    shape = list(found.shape)
    is_fit = len(shape) == 2 and shape[1] == len(low) and 0 < shape[0] <= _MOST
    if found.dtype.kind not in "fiu" or not is_fit or shape[0] % block:
        raise ConfigError(
            f"actions={path} holds {found.dtype} {shape}; wanted numbers [K,{len(low)}], K a "
            f"multiple of the block of {block} steps and at most {_MOST}"
        )
    actions = np.asarray(found, np.float32)
    wrong = ~((actions >= low - 1e-6) & (actions <= high + 1e-6)).all(1)  # also what is no number
    if wrong.any():
        row = int(wrong.argmax())
        raise ConfigError(
            f"actions={path}: step {row} is {actions[row].tolist()}, outside the environment's box "
            f"{low.tolist()} to {high.tolist()}"
        )
    return actions


def simulate(options: dict[str, Any], starts: Floats, actions: Actions, block: int) -> Floats:
    """Execute env actions [B,K,a] in the simulator; return the states after blocks [B,K/block,P].

    Raises:
        ConfigError: the environment has no simulator.
    """
    if options["task"]["worlds"] is None:
        raise ConfigError(
            f"actions={options['actions']}: this environment has no simulator that could say what "
            "comes of them; use actions=play"
        )
    worlds = build(options["task"]["worlds"], "task.worlds")(len(starts))
    worlds.set_states(np.asarray(starts, np.float64))
    seen = []
    for step in range(actions.shape[1]):
        worlds.act(actions[:, step])
        if (step + 1) % block == 0:
            seen.append(worlds.states())
    return np.stack(seen, 1)


def _plan(
    options: dict[str, Any], brain: Brain, observer: Observer, starts: Floats, goals: Floats
) -> Actions:
    """Let the planner plan from every start to its goal; return the plans as env actions."""
    if options["horizon"] is not None:
        raise ConfigError(
            f"horizon={options['horizon']}: with actions=plan it is the planner's; "
            f"planner.horizon={options['horizon']} sets that"
        )
    agent = make_agent(options | {"history": 1}, brain, observer.device)
    views = [observer.inputs(states, observer.frames(states)) for states in (starts, goals)]
    seeds = [stream_seed(options["seed"], row) for row in range(len(starts))]
    poses = observer.poses(starts[:, None])
    agent.reset(views[1], seeds, options["goal_offset"])
    agent.act(views[0], None if poses is None else poses[:, 0])
    plan = agent.last_plan
    assert plan is not None  # the agent has just planned
    return agent.codec.decode(plan.actions).cpu().numpy()
