"""The parts of one cell of a benchmark, as a worker has them: from plain options, always the same.

What is expensive to load stays with the process that loaded it, for the last model only.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.control.agent import Agent
from jepa_wm.control.discrete import Codec
from jepa_wm.control.episode import Rules, Task
from jepa_wm.control.exact import ExactCosts
from jepa_wm.control.protocol import Protocol, Segments, protocol_of
from jepa_wm.control.statistics import Measure
from jepa_wm.experiments.checks import read_measures
from jepa_wm.experiments.episodes import make_rules, make_segments
from jepa_wm.experiments.setup import (
    EXACT,
    SIMULATOR,
    Brain,
    action_codec,
    baselines,
    load_brain,
    make_agent,
    make_tasks,
)
from jepa_wm.launch import build
from jepa_wm.runtime import resolve_device, resolve_dtype

PLANNER = "planner"
STATE_MODELS = (SIMULATOR, EXACT)  # their latents are states: nothing is rounded, nothing loaded
_SEARCH = ("planner", "episodes", "seed", "planner_seed", "num_envs", "preset", "overrides")
"""Options that no model depends on."""
_ACTING = (
    "model", "dtype", "device", "weights", "planner", "objective", "num_envs", "preset",
    "overrides",
)  # fmt: skip
"""Options that no test depends on."""


@dataclass(frozen=True, eq=False)
class Scene:
    """What is to be done, whoever does it.

    Attributes:
        options: Plain options of ``conf/plan.yaml``.
        env: The environment, a ``gymnasium.Env``.
        segments: The episodes.
        protocol: Their protocol.
        measures: What is reported of each.
    """

    options: dict[str, Any]
    env: Any
    segments: Segments
    protocol: Protocol
    measures: tuple[Measure, ...]

    def tasks(self, from_states: bool = False) -> list[Task]:
        """Return the episodes as tasks, goals as pictures or states."""
        return make_tasks(self.options, self.env.unwrapped, self.segments, from_states)

    def rules(self, codec: Codec, frames: str = "render") -> Rules:
        """Return the rules for an agent with this codec that looks at ``frames``."""
        return make_rules(self.options, codec.block, frames)


def scene_of(options: dict[str, Any]) -> Scene:
    """Return the environment and the episodes of a cell, made once for all who are tested so."""
    test = {k: v for k, v in options.items() if k not in _ACTING}
    return replace(_make_scene(json.dumps(test, sort_keys=True)), options=options)


@functools.lru_cache(maxsize=1)
def _make_scene(text: str) -> Scene:
    options = json.loads(text)
    env = build(options["env"], "env")
    segments = make_segments(options, env.unwrapped)
    measures = read_measures(options["task"])
    return Scene(options, env, segments, protocol_of(options, env, segments), measures)


def brain_of(scene: Scene, dtype: str | None = None) -> Brain:
    """Return the model of a cell, loaded once while its process works on it.

    Args:
        scene: Of the cell.
        dtype: In place of the cell's own.
    """
    options = {k: v for k, v in scene.options.items() if k not in _SEARCH}
    options["dtype"] = dtype or options["dtype"]
    return _load_brain(json.dumps(options, sort_keys=True))


@functools.lru_cache(maxsize=2)  # a model, and the same one in float32
def _load_brain(text: str) -> Brain:
    options = json.loads(text)
    device = resolve_device(options["device"])
    dtype = resolve_dtype(options["dtype"], device)
    space = build(options["env"], "env").action_space
    return load_brain(options, space, device, dtype)


def forget_parts() -> None:
    """Let go of what was loaded."""
    _make_scene.cache_clear()
    _load_brain.cache_clear()


def codec_of(scene: Scene) -> Codec:
    """Return the action codec of a cell without loading its model."""
    options, space = scene.options, scene.env.action_space
    fallback = options["task"].get("action")
    if options["model"] in STATE_MODELS:
        return action_codec(None, space, fallback)[0]
    return action_codec(Bundle.open(find_bundle(options["model"])), space, fallback)[0]


def policies(scene: Scene, codec: Codec) -> Mapping[str, Agent]:
    """Return the policies that set the scale, by name."""
    return baselines(scene.options, scene.tasks(), scene.segments, codec)


def needs_exact_costs(options: Mapping[str, Any]) -> bool:
    """Say whether plans are to be priced again: the costs a planner sees are rounded."""
    is_rounded = options["model"] not in STATE_MODELS and options["dtype"] != "float32"
    return bool(options["exact_costs"]) and is_rounded


def planning_agent(scene: Scene) -> tuple[Agent, Brain]:
    """Build the control loop of a cell; with ``exact_costs`` its plans are priced in float32."""
    brain, device = brain_of(scene), torch.device(scene.options["device"])
    agent = make_agent(scene.options, brain, device)
    if not needs_exact_costs(scene.options):
        return agent, brain
    exact = brain_of(scene, "float32")
    return ExactCosts(agent, exact.model, exact.objective, device), brain
