"""``bench cost=true``: what one decision of every combination costs, without running an episode."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from jepa_wm.experiments.bench_cells import settle
from jepa_wm.experiments.cost_model import Costs, measure_costs
from jepa_wm.experiments.crossing import cross
from jepa_wm.experiments.parts import Scene, brain_of, scene_of
from jepa_wm.experiments.setup import make_agent
from jepa_wm.runtime import DTYPES


def cost_of(options: dict[str, Any]) -> Costs:
    """Count and time the first decision of a combination's first episode.

    Args:
        options: Plain options of ``conf/plan.yaml``, device and dtype settled.

    Raises:
        ConfigError: the options do not fit together.
    """
    torch.set_num_threads(options["threads"])
    scene = scene_of(options)
    brain = brain_of(scene)
    agent = make_agent(options, brain, torch.device(options["device"]))
    frame, proprio = _seen(scene, brain.frames)
    return measure_costs(agent, frame, proprio, DTYPES[options["dtype"]])


def price_all(words: Sequence[str], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Measure every combination of a command line, print a table each, return them all.

    Args:
        words: Overrides of ``conf/plan.yaml``; commas cross.
        settings: Plain values of ``conf/bench.yaml``.

    Raises:
        ConfigError: a combination cannot be run.
    """
    found = []
    for one in cross(words):
        options = settle(one.overrides, settings)
        axes = {"model": options["model"], "planner": options["preset"]["planner"], **one.axes}
        costs = cost_of(options)
        where = f"{options['device']}, {options['dtype']}, {options['threads']} thread(s)"
        print(f"\n{' '.join(map(str, axes.values()))}: one decision, {where}\n{costs.table()}")
        found.append({"axes": axes, "where": where, **costs.record()})
    return found


def _seen(scene: Scene, frames: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return what an agent sees at the start of the first episode, and its proprioception."""
    start, goal = scene.segments.starts[0], scene.segments.goals[0]
    _, info = scene.env.reset(seed=0, options={"state": start, "goal_state": goal})
    frame = scene.env.render() if frames == "render" else info[frames]
    key = scene.options["task"].get("proprio")
    return np.asarray(frame), None if key is None else np.asarray(info[key])
