"""Record scripted play: the training data, made on the spot.

Run: ``python -m jepa_wm.collect out=data/play episodes=20000 workers=2``, or with ``env=reach``
another environment's play. An interrupted
collection continues where it stopped; finished episodes are never lost.
"""

import math
import multiprocessing
from collections.abc import Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from tqdm import tqdm

from jepa_wm.envs.rendering import PushTRenderer
from jepa_wm.envs.shapes import make_block
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.dreams import OFFSET, dream
from jepa_wm.launch import build, launch, preset_node
from jepa_wm.training.dataset import ARRAYS, DatasetInfo, array_shapes
from jepa_wm.training.pictures import shrink

_COUNTS = ("episodes", "steps", "block", "image_size", "workers", "seed")
_TOLD = ("targets", "action_low", "action_high")  # not yet told by older collections
CHUNK = 400  # episodes simulated side by side and written at once
GOAL_POSE = (256.0, 256.0, math.pi / 4)  # the green decoration of the default environment
RENDER_SIZE = 224  # what it shows


@dataclass(frozen=True)
class CollectConfig:
    """The options of ``conf/collect.yaml``, checked.

    Attributes:
        env: Node of the environment; its pictures are resized to the stored frames.
        task: Node of its task: ``play`` is recorded, ``state`` is the key of its states.
    """

    out: Path
    episodes: int
    steps: int
    block: int
    image_size: int
    seed: int
    workers: int
    jitter: float
    model: str | None
    env: Mapping[str, Any] = field(default_factory=partial(preset_node, "env", "pusht"))
    task: Mapping[str, Any] = field(default_factory=partial(preset_node, "task", "pusht"))

    def __post_init__(self) -> None:
        for name in _COUNTS[:-1]:
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.steps % self.block:
            raise ConfigError(f"steps={self.steps} must be a multiple of block={self.block}")
        if self.model is not None and "PushT" not in self.env["id"]:
            raise ConfigError(f"model= records plans in PushT only, not in {self.env['id']}")
        if self.model is not None and self.steps != OFFSET:
            raise ConfigError(
                f"steps={self.steps}: with model= an episode is a plan, steps={OFFSET}"
            )

    def info(self) -> DatasetInfo:
        """Describe the dataset before its first episode."""
        env = build(dict(self.env), "env")
        if not isinstance(env.action_space, gymnasium.spaces.Box):
            raise ConfigError(f"play is recorded in numbers, not in choices: {env.action_space}")
        state = env.reset(seed=0)[1][self.task["state"]]
        kind = f" ({self.env['task']})" if "task" in self.env else ""
        return DatasetInfo(
            episodes=self.episodes,
            done=0,
            frames=self.steps // self.block + 1,
            image_size=self.image_size,
            block=self.block,
            action_dim=len(env.action_space.low),
            seed=self.seed,
            env=self.env["id"].partition(":")[2] + kind,
            jitter=self.jitter,
            model=self.model,
            state_dim=len(state),
            targets=self.task.get("targets"),
            action_low=env.action_space.low.tolist(),
            action_high=env.action_space.high.tolist(),
        )


def prepare(config: CollectConfig) -> DatasetInfo:
    """Create the folder and its arrays, or check that an existing folder is the same collection."""
    wanted = config.info()
    if (config.out / "meta.json").is_file():
        found = DatasetInfo.read(config.out)
        told = {name: getattr(wanted, name) for name in _TOLD if getattr(found, name) is None}
        if replace(found, done=0, **told) != wanted:
            raise ConfigError(
                f"{config.out} already holds another collection ({found}); choose another out="
            )
        return found
    config.out.mkdir(parents=True, exist_ok=True)
    for name, (shape, dtype) in array_shapes(wanted).items():
        np.lib.format.open_memmap(config.out / f"{name}.npy", "w+", dtype, shape).flush()
    wanted.save(config.out)
    return wanted


def collect_chunk(config: CollectConfig, first: int, count: int) -> int:
    """Simulate, render and store episodes [first, first+count); return ``count``."""
    torch.set_num_threads(1)
    env: Any = build(dict(config.env), "env").unwrapped
    if config.model is None:
        play = build(dict(config.task["play"]) | {"steps": config.steps}, "task.play")
        episodes = play(config.seed, count, first=first, jitter=config.jitter)
    else:
        renderer = PushTRenderer(RENDER_SIZE, make_block("T"), GOAL_POSE)
        episodes = dream(config.model, config.seed, count, first, renderer)
    seen = episodes.states[:, :: config.block]  # [E,F,P]
    rows = slice(first, first + count)
    frames, states, actions = (
        np.load(config.out / f"{name}.npy", mmap_mode="r+") for name in ARRAYS
    )
    for row, episode in zip(range(first, first + count), seen, strict=True):
        full = np.stack([env.render_state(state) for state in episode])
        frames[row] = shrink(full, config.image_size)
    states[rows] = seen
    actions[rows] = episodes.actions.reshape(count, -1, config.block * episodes.actions.shape[2])
    return count


def collect(config: CollectConfig) -> DatasetInfo:
    """Fill the dataset; return its final description."""
    info = prepare(config)
    starts = range(info.done, config.episodes, CHUNK)
    context = multiprocessing.get_context("spawn")  # forking a process that uses torch may hang
    bar = tqdm(total=config.episodes, initial=info.done, unit="episode")
    with bar, ProcessPoolExecutor(config.workers, mp_context=context) as pool:
        jobs: list[Future[int]] = [
            pool.submit(collect_chunk, config, first, min(CHUNK, config.episodes - first))
            for first in starts
        ]
        try:
            for job in jobs:  # in order, so that ``done`` counts a prefix
                count = job.result()
                info = replace(info, done=info.done + count)
                info.save(config.out)
                bar.update(count)
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    return info


def main(options: dict[str, Any]) -> None:
    """Read the options, collect, say where the data is."""
    config = CollectConfig(
        env=options["env"],
        task=options["task"],
        out=Path(str(options["out"])).expanduser(),
        jitter=float(options["jitter"]),
        model=None if options["model"] is None else str(options["model"]),
        **{name: int(options[name]) for name in _COUNTS},
    )
    info = collect(config)
    print(f"{info.done} episodes of {info.frames} frames in {config.out}")


if __name__ == "__main__":
    launch(main, "collect")
