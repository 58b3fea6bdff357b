"""A shard: some episodes of a cell, run in one batch by whichever process takes it.

``run_shard`` needs nothing but its argument, so the same call works in this process, in another one
of this machine and on another machine; what it returns depends on the episodes alone, but for times
and names.
"""

import os
import resource
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from jepa_wm.control.agent import Agent
from jepa_wm.control.episode import Episode
from jepa_wm.control.exact import ExactCosts
from jepa_wm.control.runner import make_envs, run_episodes
from jepa_wm.control.statistics import success_step
from jepa_wm.experiments.bench_records import EpisodeRecord
from jepa_wm.experiments.parts import (
    PLANNER,
    Scene,
    codec_of,
    planning_agent,
    policies,
    scene_of,
)
from jepa_wm.launch import build


@dataclass(frozen=True, kw_only=True)
class Shard:
    """What to run.

    Attributes:
        options: Plain options of the cell, device and dtype settled.
        policy: ``planner``, or the name of a baseline.
        ids: Of the episodes.
        is_filmed: Record every frame and give the whole episodes back.
    """

    options: dict[str, Any]
    policy: str
    ids: tuple[int, ...]
    is_filmed: bool = False


@dataclass(frozen=True, eq=False)
class Ran:
    """What came out: a record an episode, and the episodes themselves if filmed."""

    records: Sequence[EpisodeRecord]
    episodes: Sequence[Episode] = ()


def run_shard(shard: Shard) -> Ran:
    """Run the episodes of a shard side by side.

    Raises:
        ConfigError: the options do not fit together, or an episode is not there.
    """
    torch.set_num_threads(shard.options["threads"])
    scene = scene_of(shard.options)
    if shard.policy == PLANNER:
        agent, brain = planning_agent(scene)
        tasks = scene.tasks(brain.frames != "render")
        rules = scene.rules(brain.codec, brain.frames)
    else:
        codec = codec_of(scene)
        agent = policies(scene, codec)[shard.policy]
        tasks, rules = scene.tasks(), scene.rules(codec)
    chosen = [task for task in tasks if task.id in shard.ids]
    rules = replace(rules, film=shard.ids if shard.is_filmed else ())
    envs = make_envs(lambda: build(shard.options["env"], "env"), len(chosen))
    try:
        episodes = run_episodes(envs, agent, chosen, rules)
    finally:
        envs.close()
    records = [record_of(one, row, scene, agent) for row, one in enumerate(episodes)]
    return Ran(records, episodes if shard.is_filmed else ())


def record_of(episode: Episode, row: int, scene: Scene, agent: Agent) -> EpisodeRecord:
    """Return an episode in plain numbers.

    Args:
        episode: What happened.
        row: Where in its batch.
        scene: Where it happened.
        agent: Who acted; ``ExactCosts`` knows what its plans cost in float32.
    """
    plans = episode.plans
    costs = {name: _numbers(plans, f"{name}_cost") for name in ("mean", "best")}
    exact = agent.costs_of(row) if isinstance(agent, ExactCosts) else costs
    return EpisodeRecord(
        id=episode.id,
        seed=episode.seed,
        success=episode.success,
        presolved=episode.presolved,
        steps=episode.steps,
        success_step=success_step(episode),
        decisions=len(episode.seconds),
        evaluations=int(sum(_numbers(plans, "evaluations"))),
        final={measure.label: float(measure.of(episode)[-1]) for measure in scene.measures},
        mean_cost=costs["mean"],
        best_cost=costs["best"],
        mean_cost_fp32=exact["mean"],
        best_cost_fp32=exact["best"],
        seconds=_seconds(episode),
        worker=f"{socket.gethostname()}:{os.getpid()}",
        peak_memory=peak_memory(),
    )


def peak_memory() -> int:
    """Return the largest resident memory of this process so far, bytes."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024  # Linux counts in KiB


def _numbers(plans: Mapping[str, Any], name: str) -> list[float]:
    return [float(value) for value in plans.get(name, ())]


def _seconds(episode: Episode) -> dict[str, float]:
    """Wall seconds by what they were spent on; a solve is shared by the rows planned together."""
    plans, found = episode.plans, {"encode": 0.0, "plan": 0.0}
    if plans:
        for name in found:
            found[name] = float((plans[f"{name}_seconds"] / plans["rows"]).sum())
    return {name: round(value, 6) for name, value in {**found, **episode.timing}.items()}
