"""Build the parts of a planning experiment from its options: model, agent, tasks, baselines.

Options are the plain values of ``conf/plan.yaml``; nothing here prints or writes.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tqdm import tqdm

from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.agent import Agent
from jepa_wm.control.chunks import Chunk, check_horizon, fit_chunk, settle_memory
from jepa_wm.control.cost import ObjectiveFactory
from jepa_wm.control.discrete import Codec
from jepa_wm.control.dynamics import ExactModel
from jepa_wm.control.episode import Episode, Rules, Task
from jepa_wm.control.interfaces import Planner, WorldModel
from jepa_wm.control.limits import read_limits
from jepa_wm.control.mpc import MPC
from jepa_wm.control.policies import NoOpPolicy, RandomPolicy, ReplayPolicy
from jepa_wm.control.protocol import PLAY_SEED as PLAY_SEED
from jepa_wm.control.protocol import Segments, picture_tasks, segment_tasks
from jepa_wm.control.runner import make_envs, run_episodes
from jepa_wm.control.simulator import SimulatorModel
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.codecs import action_codec as action_codec
from jepa_wm.experiments.codecs import random_settings, step_codec
from jepa_wm.experiments.episodes import make_segments as make_segments
from jepa_wm.experiments.goals import GOALS, read_goal
from jepa_wm.experiments.origins import strangeness
from jepa_wm.launch import build, preset, preset_node
from jepa_wm.models import check_weights, load_world_model
from jepa_wm.models.quantised import told_kept

SIMULATOR = "simulator"
EXACT = "exact"
NO_RATE = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}]"  # tqdm's bar without its estimate


@dataclass(frozen=True)
class Brain:
    """Everything of a planning agent that depends on the model.

    Attributes:
        model: The world model.
        objective: Goal latents -> objective.
        codec: Between solver and environment actions.
        frames: What it looks at: ``render`` or the info key of the state.
        about: What to tell the user: name, statistics and the like.
    """

    model: WorldModel
    objective: ObjectiveFactory
    codec: Codec
    frames: str
    about: dict[str, Any]


def load_agent(
    model: str | Path,
    action_space: gymnasium.Space,
    device: torch.device,
    *,
    planner: str = "cem",
    objective: str = "goal",
    dtype: torch.dtype = torch.float32,
    weights: str = "expanded",
    replan_every: int = 1,
) -> MPC:
    """Load everything that turns an image and a goal image into an action.

    Args:
        model: Path of a bundle that carries action statistics, or the name of a bundled one.
        action_space: Of the environment or robot; a one-dimensional Box, or choices.
        device: Where to compute.
        planner: Name of a preset, ``conf/planner/<name>.yaml``.
        objective: Name of a preset, ``conf/objective/<name>.yaml``.
        dtype: Dtype of the products.
        weights: ``expanded`` or ``quantised``, as ``jepa_wm.load``.
        replan_every: Blocks executed of every plan.

    Returns:
        The control loop: ``reset(goals, seeds)``, then ``act(frames)`` once a step.
    """
    bundle = Bundle.open(find_bundle(model))
    world_model = load_world_model(bundle, device, dtype, weights)
    search = preset("planner", planner)
    codec, history = action_codec(bundle, action_space, None)[0], world_model.history
    search = fitted(search, codec)
    return MPC(
        world_model=world_model,
        planner=search,
        objective=make_objective(preset_node("objective", objective), bundle, device),
        codec=codec,
        device=device,
        replan_every=replan_every,
        chunk=fit_chunk(
            world_model,
            getattr(search, "num_samples", None) if device.type == "cpu" else None,
            search.horizon,
            history,
            settle_memory("auto", device),
        ).size,
    )


def make_objective(
    node: Mapping[str, Any], bundle: Bundle, device: torch.device
) -> ObjectiveFactory:
    """Build an objective factory; ``goal_map: bundle`` takes the bundle's map, if it has one."""
    values = dict(node)
    if values.get("goal_map") == "bundle":
        stored = bundle.get("jepa_wm.goal.map")
        width = bundle.get("jepa.enc.embed_dim")
        values["goal_map"] = None
        if stored is not None:
            values["goal_map"] = torch.tensor(stored, device=device).view(-1, width)
    return build(values, "objective")


def load_brain(
    options: dict[str, Any], space: gymnasium.Space, device: torch.device, dtype: torch.dtype
) -> Brain:
    """Load the bundle (or what stands for one) of a run with its codec and objective."""
    model, fallback = options["model"], options["task"].get("action")
    check_weights(options["weights"])
    if model == SIMULATOR:
        return simulator_brain(options, *action_codec(None, space, fallback))
    if model == EXACT:
        return exact_brain(options, *action_codec(None, space, fallback))
    bundle = Bundle.open(find_bundle(model))
    codec, source = action_codec(bundle, space, fallback)
    about = {
        "name": str(bundle.path),
        "family": bundle.family,
        "sha256": bundle.sha256,
        "play_seed": bundle.get("jepa_wm.source.play_seed"),
        "statistics": source,
        "strange": strangeness(bundle, options["env"]["id"], space),
    }
    objective = make_objective(options["objective"], bundle, device)
    world_model = load_world_model(bundle, device, dtype, options["weights"])
    if options["weights"] == "quantised":
        about["weights"] = told_kept(getattr(world_model, "model"))  # noqa: B009
    return Brain(world_model, objective, codec, "render", about)


def simulator_brain(options: dict[str, Any], codec: Codec, source: str) -> Brain:
    """Make the environment itself the world model: the ceiling of the planner."""
    if options["task"]["worlds"] is None:
        raise ConfigError(f"model={SIMULATOR}: this environment has no simulator; give a bundle")
    worlds = build(options["task"]["worlds"], "task.worlds")
    model = SimulatorModel(worlds, step_codec(codec, options["task"]))
    return _state_brain(options, SIMULATOR, (model, codec), source)


def exact_brain(options: dict[str, Any], codec: Codec, source: str) -> Brain:
    """Make the task's closed form of the environment the world model."""
    node = options["task"].get("exact")
    if node is None:
        raise ConfigError(
            f"model={EXACT}: the task of this environment has none (task.exact); "
            f"give a bundle or model={SIMULATOR}"
        )
    model = build(node, "task.exact")(step_codec(codec, options["task"]))
    return _state_brain(options, EXACT, (model, codec), source)


def _state_brain(
    options: dict[str, Any],
    name: str,
    parts: tuple[SimulatorModel | ExactModel, Codec],
    source: str,
) -> Brain:
    """Plan from states, with the task's distance between them."""
    model, codec = parts
    distance = build(options["task"]["distance"], "task.distance")
    about = {"name": name, "family": name, "statistics": source}
    return Brain(model, distance, codec, options["task"]["state"], about)


def make_agent(options: dict[str, Any], brain: Brain, device: torch.device) -> MPC:
    """Build the control loop of a run."""
    planner, history = build(options["planner"], "planner"), options["history"]
    planner = fitted(planner, brain.codec)
    if getattr(planner, "needs_gradient", False) and isinstance(brain.model, SimulatorModel):
        raise ConfigError(
            f"planner {type(planner).__name__} follows gradients and model={SIMULATOR} has none; "
            f"use a planner that samples, e.g. cem, or model={EXACT} where the task has one"
        )
    try:
        budget = options.get("budget", options["goal_offset"]) if options["shrink_horizon"] else 0
        check_horizon(brain.model, min(planner.horizon, budget or planner.horizon))
        agent = MPC(
            world_model=brain.model,
            planner=planner,
            objective=brain.objective,
            codec=brain.codec,
            device=device,
            replan_every=options["replan_every"],
            history=history if history is None else min(history, brain.model.history),
            shrink_horizon=options["shrink_horizon"],
            warm_start=options["warm_start"],
            chunk=chunk_of(options, brain.model, planner.horizon, device).size,
            # on a CPU no bit of a row depends on the episodes beside it; a GPU takes all at once
            encode_rows=1 if device.type == "cpu" else None,
            limits=_limits(options, brain.codec),
        )
        planner.start(1, brain.codec.action_dim, device)  # refuses settings of another action
        return agent
    except ValueError as error:
        raise ConfigError(str(error)) from error


def chunk_of(
    options: dict[str, Any], model: WorldModel, horizon: int, device: torch.device
) -> Chunk:
    """Return how many candidates go into one rollout: ``chunk``, a number, null or auto.

    On a CPU ``auto`` takes those of one problem at most, on a GPU as many as memory allows.

    Raises:
        ValueError: it is none of these, or ``memory`` is no budget.
    """
    wanted = options["chunk"]
    if wanted is None or type(wanted) is int:
        return Chunk(wanted)
    if wanted != "auto":
        raise ValueError(f"chunk={wanted!r} must be auto, a whole number >= 1 or null")
    frames = min(options["history"] or model.history, model.history)
    most = most_samples(options["planner"]) if device.type == "cpu" else None
    return fit_chunk(model, most, horizon, frames, settle_memory(options["memory"], device))


def most_samples(node: Mapping[str, Any]) -> int | None:
    """Return the most candidates in one round of a planner's YAML or its stages', if it says."""
    inner = [most_samples(one) for one in node.values() if isinstance(one, Mapping)]
    own = node.get("num_samples")
    return max((count for count in [own, *inner] if count is not None), default=None)


def fitted(planner: Planner, codec: Codec) -> Planner:
    """Tell a planner what its settings leave open: the choices there are, the steps in a block."""
    changes: dict[str, Any] = {}
    if isinstance(codec, ActionCodec):
        if getattr(planner, "noise_block", 0) is None:
            changes["noise_block"] = codec.block
    elif getattr(planner, "choices", ()) is None:
        changes["choices"] = codec.choices
    return replace(planner, **changes) if changes else planner  # type: ignore[type-var]


def _limits(options: dict[str, Any], codec: Codec) -> Any:
    """Read the limits of environment actions; choices have none."""
    given = options.get("limits")
    if isinstance(codec, ActionCodec):
        return read_limits(given, codec)
    if given:
        raise ConfigError(f"limits={sorted(given)}: they are for numbers, actions are {codec}")
    return None


def make_tasks(
    options: dict[str, Any], env: Any, segments: Segments, from_states: bool
) -> list[Task]:
    """Return the tasks of a run, their goals as the agent takes them: pictures or states.

    ``env`` is an unwrapped environment with ``render_state``.
    """
    seed, planner_seed = options["seed"], options.get("planner_seed")
    if options["goal"] in GOALS:
        camera = partial(_goal_picture, env)
        tasks = segment_tasks(segments, seed, camera, from_states, planner_seed)
        return _with_proprio(tasks, env, options["task"].get("proprio"))
    if from_states:
        raise ConfigError(f"model={options['model']} needs a goal state: goal=play or goal=env")
    picture = read_goal(options["goal"], env.render_state(segments.starts[0]))
    return picture_tasks(segments, seed, picture, planner_seed)


def _goal_picture(env: Any, goal: np.ndarray) -> np.ndarray:
    """Draw a goal state as its own episode shows it: a mark of the goal lies where it will lie."""
    if hasattr(env, "set_goal"):  # a recording marks none
        env.set_goal(goal)
    return env.render_state(goal)


def _with_proprio(tasks: Sequence[Task], env: Any, key: str | None) -> list[Task]:
    """Add to tasks what the environment's body feels in their goal states, if it feels anything."""
    if key is None:
        return list(tasks)
    felt = [env.reset(options={"state": (task.options or {})["goal_state"]})[1] for task in tasks]
    return [
        replace(task, goal_proprio=np.asarray(info[key], dtype=np.float32))
        for task, info in zip(tasks, felt, strict=True)
    ]


def baselines(
    options: dict[str, Any], tasks: Sequence[Task], segments: Segments, codec: Codec
) -> dict[str, Agent]:
    """Return the policies that set the scale: random, no-op and, where recorded, replay.

    Random actions are drawn as ``task.random`` says, else by the codec's statistics; choices
    uniformly.
    """
    low, high, whole = codec.low.numpy(), codec.high.numpy(), codec.is_discrete
    found: dict[str, Agent] = {
        "random": RandomPolicy(low, high, **random_settings(codec, options["task"])),
        "no-op": NoOpPolicy(low, high, whole=whole),
    }
    # play of numbers says nothing of choices
    if segments.actions.shape[1] and segments.actions.shape[-1] == codec.env_dim:
        recorded = {
            task.seed: actions for task, actions in zip(tasks, segments.actions, strict=True)
        }
        found["replay"] = ReplayPolicy(low, high, recorded, whole=whole)
    return found


def run(
    options: dict[str, Any],
    name: str,
    agent: Agent,
    tasks: Sequence[Task],
    rules: Rules,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Run one agent over the tasks behind a progress bar."""
    size = min(options["num_envs"], len(tasks))
    envs = make_envs(lambda: build(options["env"], "env"), size)
    batches = -(-len(tasks) // size)
    title = f"{name}, {len(tasks)} episodes, {size} at a time"
    # the first step of a batch plans for those after it: the rate is an average over all steps, and
    # is told after a tenth of a batch
    with tqdm(
        total=batches * rules.budget, desc=title, unit="step", smoothing=0, file=sys.stderr,
        bar_format=NO_RATE,
    ) as bar:  # fmt: skip

        def progress(done: int, total: int) -> None:
            bar.bar_format = NO_RATE if done * 10 < rules.budget else None
            bar.update(done - bar.n)

        try:
            return run_episodes(envs, agent, tasks, rules, progress, on_episode)
        finally:
            envs.close()
