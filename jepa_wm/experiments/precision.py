"""Precision: do a model's dtypes and quantisations rank the same candidates alike?

The candidates of a first solve are priced by every model and dtype of a benchmark, in the same
situations; what a planner does depends on their order and on who is among the elites.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.interfaces import Bounds, CostFn, Plan, Planner
from jepa_wm.control.streams import Streams, draw_normal
from jepa_wm.experiments.parts import STATE_MODELS, brain_of, scene_of
from jepa_wm.experiments.setup import make_agent

TASKS, CANDIDATES, ELITES = 16, 300, 30
Costs = NDArray[np.float64]


@dataclass(frozen=True)
class Probe:
    """What is priced: the first tasks and candidates of a cell."""

    options: dict[str, Any]
    tasks: int = TASKS
    candidates: int = CANDIDATES


@dataclass(frozen=True, eq=False)
class Priced:
    """Costs of candidates [E,S], and the block, mean and std of the actions they are made of."""

    costs: Costs
    units: tuple[Any, ...]


@dataclass(eq=False)
class _Listener:
    """Takes a planner's place: draws candidates around its start, prices them, plans nothing."""

    planner: Planner
    candidates: int
    horizon: int
    costs: list[Tensor] = field(default_factory=list)

    def start(self, batch: int, action_dim: int, device: torch.device) -> Plan:
        return self.planner.start(batch, action_dim, device)

    def shift(self, plan: Plan, n: int) -> Plan:
        return self.planner.shift(plan, n)

    @torch.inference_mode()
    def plan(self, cost: CostFn, start: Plan, bounds: Bounds, generators: Streams) -> Plan:
        shape = (self.candidates, *start.actions.shape[1:])
        noise = draw_normal(generators, shape, start.std)
        around = start.actions[:, None] + start.std[:, None] * noise
        self.costs.append(cost(torch.clamp(around, *bounds)))
        return start


def price(probe: Probe) -> Priced:
    """Price the candidates; they depend on the tasks' seeds alone, whatever the model."""
    torch.set_num_threads(probe.options["threads"])
    scene = scene_of(probe.options)
    brain, env = brain_of(scene), scene.env
    agent = make_agent(probe.options, brain, torch.device(probe.options["device"]))
    listener = _Listener(agent.planner, probe.candidates, agent.planner.horizon)
    agent.planner = listener
    tasks = scene.tasks()[: probe.tasks]
    goals, frames, poses = list[Any](), list[Any](), list[Any]()
    rules = scene.rules(brain.codec)
    for task in tasks:
        _, info = env.reset(seed=task.seed, options=dict(task.options or {}))
        goals.append(task.goal)
        frames.append(env.render())
        poses.append(info[rules.proprio] if rules.proprio else None)
    agent.reset(np.stack(goals), [task.seed for task in tasks], rules.budget)
    agent.act(np.stack(frames), np.stack(poses) if rules.proprio else None, None)
    codec = brain.codec
    stats = [codec.mean, codec.std] if isinstance(codec, ActionCodec) else []  # choices have none
    units = (codec.block, *(values.tolist() for values in stats))
    return Priced(listener.costs[0].double().cpu().numpy(), units)


@dataclass(frozen=True)
class Pair:
    """Two models that price the same candidates, and the names of the one that is told of."""

    names: Mapping[str, str]
    probe: Probe
    reference: Probe


def pairs(cells: Sequence[Mapping[str, Any]]) -> list[Pair]:
    """Return what a benchmark can compare: every model and dtype with the first in float32.

    In each environment the planner and the tasks are those of its first cell. One model in float32
    has nothing to be compared with.

    Args:
        cells: Options of the cells that plan.
    """
    leads: dict[str, Mapping[str, Any]] = {}
    found: dict[str, Pair] = {}
    for options in cells:
        if options["model"] in STATE_MODELS:
            continue
        lead = leads.setdefault(json.dumps(options["env"], sort_keys=True), options)
        told = {"model": options["model"], "dtype": options["dtype"]}
        one, reference = {**lead, **told}, {**lead, "dtype": "float32"}
        names = {"env": options["preset"]["env"], **told}
        if one != reference:
            key = json.dumps(one, sort_keys=True)
            found.setdefault(key, Pair(names, Probe(one), Probe(reference)))
    return list(found.values())


def compare(costs: Costs, reference: Costs, elites: int) -> dict[str, Any]:
    """Return how alike two models price: rank correlation, shared elites, largest difference.

    Args:
        costs: Of candidates [E,S].
        reference: Of the same.
        elites: How many of the cheapest count.
    """
    ranks = [spearman(*pair) for pair in zip(costs, reference, strict=True)]
    best = [{*np.argsort(row, kind="stable")[:elites].tolist()} for row in costs]
    true = [{*np.argsort(row, kind="stable")[:elites].tolist()} for row in reference]
    shared = [len(one & other) / elites for one, other in zip(best, true, strict=True)]
    gap = np.abs(costs - reference) / np.abs(reference)
    return {
        "spearman": {"median": float(np.median(ranks)), "min": float(min(ranks))},
        "elite_overlap": {"mean": float(np.mean(shared)), "min": float(min(shared))},
        "max_relative": float(gap.max()),
    }


def spearman(one: Costs, other: Costs) -> float:
    """Return Spearman's rank correlation of two samples [S]; ties share their mean rank."""
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: Costs) -> Costs:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[index]


def row_of(pair: Pair, priced: Priced, reference: Priced) -> dict[str, Any] | None:
    """Return a row of ``precision.json``, or None where the two take different actions."""
    if priced.units != reference.units:
        return None
    elites = pair.probe.options["planner"].get("num_elites") or ELITES
    return {**pair.names, **compare(priced.costs, reference.costs, elites)}
