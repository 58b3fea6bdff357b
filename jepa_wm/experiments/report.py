"""What a planning run says and leaves behind: the announcement, the table, one folder of files."""

import datetime
import errno
import json
import math
import os
import platform
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.discrete import Codec
from jepa_wm.control.episode import Episode, Rules, save_episode, tally
from jepa_wm.control.episode_list import write_episode_list
from jepa_wm.control.mpc import MPC
from jepa_wm.control.protocol import Protocol, Segments, content_hash
from jepa_wm.control.statistics import Summary, compare, summarise
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.checks import read_measures
from jepa_wm.experiments.goals import GOALS
from jepa_wm.experiments.origins import tell_strange
from jepa_wm.experiments.setup import chunk_of
from jepa_wm.experiments.threads import told_threads
from jepa_wm.runtime import told_dtype, versions
from jepa_wm.viz.frames import Film, film_frames
from jepa_wm.viz.plans import effective_samples, goal_distance, planner_cost, success_rates
from jepa_wm.viz.rollouts import filmstrip
from jepa_wm.viz.video import write_video

PLANNER = "planner"


def new_folder(given: str | None, command: str) -> Path:
    """Make the folder of a run: the given one, or a new one under ``outputs/``.

    Two runs in the same second get two folders.

    Raises:
        ConfigError: the given folder already holds a run, or the folder cannot be made.
    """
    try:
        return _new_folder(given, command)
    except OSError as error:
        raise _no_folder(given, error.strerror) from error


def check_folder(given: str | None) -> None:
    """Refuse a folder that ``new_folder`` could not make, and make none yet.

    Raises:
        ConfigError: it is below a file, or below a folder that may not be written to.
    """
    wanted = Path("outputs" if given is None else str(given)).expanduser().absolute()
    found = next(path for path in (wanted, *wanted.parents) if path.exists())
    if not found.is_dir():
        raise _no_folder(given, f"{found} is a file")
    if not os.access(found, os.W_OK | os.X_OK):
        raise _no_folder(given, f"{found} may not be written to")


def _no_folder(given: str | None, why: str | None) -> ConfigError:
    where = "outputs/, where out=null puts results" if given is None else f"out={given}"
    return ConfigError(f"{where}: no folder can be made there ({why}); choose another with out=")


def _new_folder(given: str | None, command: str) -> Path:
    if given is not None:
        folder = Path(given).expanduser()
        if (folder / "episodes.jsonl").exists():
            raise ConfigError(f"out={folder} already holds a run; choose another folder")
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return folder
    stamp = datetime.datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    for suffix in ("", *(f"_{n}" for n in range(2, 1000))):
        folder = Path("outputs") / f"{command}_{stamp}{suffix}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise ConfigError("no free folder name under outputs/")


class PlanReport:
    """Collects the episodes of a run and tells of them.

    Args:
        options: Plain options of the run, stored with the results.
        about: What is known of the model.
        agent: The planning agent.
        test: The protocol.
        rules: Its rules, as the runner takes them.
        where: Device and dtype.
    """

    def __init__(
        self,
        options: dict[str, Any],
        about: dict[str, Any],
        agent: MPC,
        test: Protocol,
        rules: Rules,
        where: tuple[torch.device, torch.dtype],
    ) -> None:
        self.options, self.about, self.agent = options, about, agent
        self.test, self.rules, self.where = test, rules, where
        self.measures = read_measures(options["task"])
        self.preset, self.versions = preset_record(options), versions()
        self.planner_name = type(agent.planner).__name__
        self.scored = options["goal"] in GOALS
        self.folder = new_folder(options["out"], "plan")
        self.runs: dict[str, list[Episode]] = {}

    def announce(self, segments: Segments) -> None:
        """Say what will be done, before it is done; write it and the episodes down."""
        agent, codec = self.agent, self.agent.codec
        device, dtype = self.where
        chunk = chunk_of(self.options, agent.world_model, agent.planner.horizon, agent.device)
        lines = {
            "model": f"{self.about['name']} ({self.about['family']})"
            + (f", {self.about['weights']}" if "weights" in self.about else ""),
            "device": f"{device}, {told_dtype(str(self.options['dtype']), dtype, device)}, "
            + told_threads(self.options["threads"], device),
            "planner": f"{self.planner_name} " + planner_settings(self.options["planner"]),
            "memory": str(chunk),
            "protocol": self.protocol(),
            "episodes": self.split(segments),
            "success": self.rules.criterion
            if self.scored
            else "not scored: a picture has no state",
            "actions": f"{_actions(codec)} (from the {self.about['statistics']})",
            "results": str(self.folder),
        }
        for name, text in lines.items():
            print(f"{name:<9} {text}", flush=True)
        tell_strange(self.about)
        record = {
            "protocol": self.test.record(),
            "preset": self.preset,
            "options": self.options,
            "model": self.about,
            "versions": self.versions,
        }
        (self.folder / "config.json").write_text(json.dumps(record, indent=1, default=str) + "\n")
        write_episode_list(self.folder / "episodes_list.json", self.test, segments)

    def protocol(self) -> str:
        """Return the protocol in words."""
        o = self.options
        goals = {
            "play": f"goal {o['goal_offset']} steps ahead on held-out play",
            "env": "the environment's own goals",
        }
        horizon = "shrinking to the time left" if o["shrink_horizon"] else "fixed"
        goal = goals.get(o["goal"], f"goal picture {o['goal']}")
        if o["goals"] is not None:
            goal = "sub-goals " + ", ".join(map(str, o["goals"]))
        test, block = self.test, self.agent.codec.block
        return (
            f"{test.label} ({test.hash[:12]}): {goal}, seed {test.seed}, "
            f"{test.episodes} episodes, budget {test.budget} steps, replanning every "
            f"{test.replan_every} block(s) of {block}, horizon {horizon}, "
            f"history {self.agent.history}, planner seed {test.planner_seed}"
        )

    def split(self, segments: Segments) -> str:
        """Return where the episodes are from, and whether the model was trained on them."""
        trained_on, test = self.about.get("play_seed"), self.test
        text = {"play": f"play of seed {test.play_seed}", "env": "drawn by the environment"}
        told = [text.get(test.goal, "a picture's"), f"list {test.episodes_hash[:12]}"]
        if test.in_distribution(trained_on):
            told.insert(1, "in-distribution: the model was trained on play of this seed")
        elif test.goal == "play" and trained_on is not None:
            told.insert(1, f"held out (the model was trained on play of seed {trained_on})")
        if segments.replaced:
            told.append(f"{segments.replaced} presolved ones replaced")
        return ", ".join(told)

    def keep(self, episode: Episode) -> None:
        """Write a finished episode of the planner at once, so that an interrupt loses nothing."""
        told = {"protocol": self.test.record(), "preset": self.preset, "versions": self.versions}
        kept = replace(episode, config={**episode.config, **told})
        save_episode(kept, self.folder / "episodes")
        record = {
            "id": episode.id,
            "seed": episode.seed,
            "success": episode.success if self.scored else None,
            "presolved": episode.presolved,
            "steps": episode.steps,
            "seconds": [round(float(s), 4) for s in episode.seconds],
            "final": {m.label: float(m.of(episode)[-1]) for m in self.measures},
        }
        with (self.folder / "episodes.jsonl").open("a") as sink:
            sink.write(json.dumps(record) + "\n")

    def add(self, name: str, episodes: list[Episode]) -> None:
        """Take the episodes of one agent."""
        self.runs[name] = episodes

    def summaries(self) -> dict[str, Summary]:
        """Return one summary an agent."""
        return {name: summarise(episodes, self.measures) for name, episodes in self.runs.items()}

    def finish(self) -> None:
        """Print the table and write every file."""
        (self.folder / "result.json").write_text(self.json() + "\n")
        self._draw()
        print(self.table())
        print(f"results   {self.folder}")

    def table(self) -> str:
        """Return the table of agents."""
        units = [f"{measure.label} [{measure.unit}]" for measure in self.measures]
        rows = [["policy", "success", "95 % interval", "n", *units, "s/decision"]]
        rows += [self._row(name, summary) for name, summary in self.summaries().items()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        skipped = tally(self.runs[PLANNER])[2]
        note = [f"{skipped} episodes started at their goal and were left out"] if skipped else []
        return "\n".join(["", lines[0], "-" * len(lines[0]), *lines[1:], *note])

    def _row(self, name: str, s: Summary) -> list[str]:
        """Return the cells of one agent; distances are medians at the end of an episode."""
        if name == PLANNER:
            name = f"{self.planner_name} ({Path(str(self.about['name'])).name})"
        seconds = s.share_seconds.median
        time = "-" if math.isnan(seconds) else f"{seconds:.3f}"
        if not self.scored or not s.count:
            return [name, "-", "-", str(s.count), *("-" for _ in self.measures), time]
        rate, interval = f"{100 * s.rate:.1f} %", f"[{100 * s.low:.1f}, {100 * s.high:.1f}]"
        finals = [f"{s.final[measure.label].median:.1f}" for measure in self.measures]
        return [name, rate, interval, str(s.count), *finals, time]

    def json(self) -> str:
        """Return the whole result as one JSON document."""
        pairs = {
            name: asdict(compare(self.runs[PLANNER], episodes))
            for name, episodes in self.runs.items()
            if name != PLANNER and tally(episodes)[1]
        }
        device, dtype = self.where
        document = {
            "protocol": self.test.record() | {"text": self.protocol()},
            "preset": self.preset,
            "in_distribution": self.test.in_distribution(self.about.get("play_seed")),
            "rules": self.rules.describe(),
            "scored": self.scored,
            "policies": {name: s.record() for name, s in self.summaries().items()},
            "paired_with_planner": pairs,
            "model": self.about,
            "options": self.options,
            "device": str(device),
            "dtype": str(dtype).removeprefix("torch."),
            "threads": torch.get_num_threads(),
            "machine": platform.platform(),
            "versions": self.versions,
            "folder": str(self.folder),
        }
        return json.dumps(document, indent=1, default=str)

    def _draw(self) -> None:
        """Write figures and video; an episode that was not run has neither."""
        episodes = [episode for episode in self.runs[PLANNER] if not episode.presolved]
        if not episodes:
            return
        figures: dict[str, Figure] = {"planner_cost": planner_cost(episodes, "objective")}
        if "MPPI" in self.planner_name:
            figures["effective_samples"] = effective_samples(
                episodes, self.options["planner"]["num_samples"]
            )
        if self.scored:
            figures["goal_distance"] = goal_distance(episodes, self.measures)
            rates = {name: tally(found)[:2] for name, found in self.runs.items()}
            figures["success"] = success_rates(rates)
        filmed = [episode for episode in episodes if episode.frames is not None]
        if filmed:
            figures["filmstrip"] = filmstrip(filmed[0])
            is_fixed = self.options["env"].get("draw_goal") == "fixed"
            film = Film(
                measures=self.measures[:3] if self.scored else (),  # what a strip has room for
                note=self.options["task"]["note"] if is_fixed else "",
            )
            path = self.folder / f"episodes.{self.options['video']}"
            write_video(path, film_frames(filmed, film), self.options["task"]["fps"])
        for name, figure in figures.items():
            figure.savefig(self.folder / f"{name}.png", dpi=150)


def preset_record(options: dict[str, Any]) -> dict[str, Any]:
    """Return the names chosen on the command line and the hash of the planner's settings."""
    chosen = {"chosen": options.get("preset", {}), "settings": content_hash(options["planner"])}
    return chosen | {"overrides": options.get("overrides", [])}


def planner_settings(node: dict[str, Any]) -> str:
    """Return a planner's settings in words, from the plain values of its YAML."""
    stages = {k: v for k, v in node.items() if isinstance(v, dict) and "_target_" in v}
    plain = {k: v for k, v in node.items() if k not in ("_target_", "constraints", *stages)}
    held = [f"{name} ({_constraint(one)})" for name, one in node.get("constraints", {}).items()]
    parts = [f"{k}: {planner_settings(v)}" for k, v in stages.items()]
    own = ", ".join([*(f"{k} {v}" for k, v in plain.items()), *held])
    return "; ".join([*([own] if own else []), *parts])


def _constraint(node: dict[str, Any]) -> str:
    return " ".join(f"{k} {v}" for k, v in node.items() if k != "_target_")


def _actions(codec: Codec) -> str:
    """Say in words what actions are."""
    if not isinstance(codec, ActionCodec):
        return f"{codec}, block {codec.block}"
    return (
        f"mean {_numbers(codec.mean)}, std {_numbers(codec.std)}, block {codec.block}, "
        f"box [{_numbers(codec.low)}] to [{_numbers(codec.high)}]"
    )


def _numbers(values: torch.Tensor) -> str:
    return " ".join(f"{value:.3g}" for value in values.tolist())
