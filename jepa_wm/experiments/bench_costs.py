"""``bench cost=true``: what one decision of every combination costs, without running an episode."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from jepa_wm.experiments.bench_cells import settle
from jepa_wm.experiments.cost_model import Costs, measure_costs
from jepa_wm.experiments.crossing import cross
from jepa_wm.experiments.first_cost import first_sight
from jepa_wm.experiments.origins import tell_strange
from jepa_wm.experiments.parts import brain_of, scene_of
from jepa_wm.experiments.setup import make_agent
from jepa_wm.experiments.work import Speed, probe
from jepa_wm.runtime import DTYPES

Speeds = dict[tuple[str, str, int], Speed]
"""What was measured of the machine, by device, dtype and threads."""


def cost_of(options: dict[str, Any], speeds: Speeds) -> Costs:
    """Count and time the first decision of a combination's first episode.

    Args:
        options: Plain options of ``conf/plan.yaml``, device and dtype settled.
        speeds: Of the machine; measured and added where it is not there yet, so that combinations
            are held against the same floor.

    Raises:
        ConfigError: the options do not fit together.
    """
    torch.set_num_threads(options["threads"])
    scene = scene_of(options)
    brain = brain_of(scene)
    tell_strange(brain.about)
    agent = make_agent(options, brain, torch.device(options["device"]))
    proprio = options["task"].get("proprio")
    seen = first_sight(scene.env, scene.segments, brain.frames, proprio)
    where = (options["device"], options["dtype"], options["threads"])
    if where not in speeds:
        speeds[where] = probe(agent.device, DTYPES[options["dtype"]])
    return measure_costs(agent, seen, speeds[where])


def price_all(words: Sequence[str], settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Measure every combination of a command line, print a table each, return them all.

    Args:
        words: Overrides of ``conf/plan.yaml``; commas cross.
        settings: Plain values of ``conf/bench.yaml``.

    Raises:
        ConfigError: a combination cannot be run.
    """
    found, speeds = [], Speeds()
    for one in cross(words):
        options = settle(one.overrides, settings)
        axes = {"model": options["model"], "planner": options["preset"]["planner"], **one.axes}
        where = f"{options['device']}, {options['dtype']}, {options['threads']} thread(s)"
        print(f"\n{' '.join(map(str, axes.values()))}: one decision, {where}", flush=True)
        costs = cost_of(options, speeds)
        print(costs.table(), flush=True)
        found.append({"axes": axes, "where": where, **costs.record()})
    return found
