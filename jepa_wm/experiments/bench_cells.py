"""The cells of a benchmark: what a command line's combinations are, before any is run.

Every cell is built once here, so that whatever a user got wrong is refused at once; a cell's id
hashes everything its episodes depend on, and nothing else.
"""

import hashlib
import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jepa_wm.errors import ConfigError
from jepa_wm.experiments.bench_records import Cell
from jepa_wm.experiments.checks import check_options
from jepa_wm.experiments.crossing import cross
from jepa_wm.experiments.episodes import settle_protocol
from jepa_wm.experiments.goals import GOALS, settle_goals
from jepa_wm.experiments.parts import (
    PLANNER,
    STATE_MODELS,
    Scene,
    codec_of,
    forget_parts,
    planning_agent,
    policies,
    scene_of,
)
from jepa_wm.experiments.setup import SIMULATOR
from jepa_wm.launch import compose
from jepa_wm.models import WEIGHTS
from jepa_wm.runtime import resolve_device, resolve_dtype, versions

HARMLESS = (
    "num_envs", "out", "video", "film", "output", "baselines", "ceiling", "preset", "overrides",
    "episode_list", "file", "weights",
)  # fmt: skip
"""Options that no episode depends on: files count by their content."""
FILES = ("model", "file", "episode_list")
SLOWNESS = 100.0  # of a simulator beside a model, to put the longest cells first


@dataclass(frozen=True)
class Planned:
    """A cell and how to run it.

    Attributes:
        cell: Its record.
        options: Plain options of ``conf/plan.yaml``, device and dtype settled.
        policy: ``planner``, or the name of a baseline.
        ids: Of its episodes.
    """

    cell: Cell
    options: dict[str, Any]
    policy: str
    ids: tuple[int, ...]

    @property
    def weight(self) -> float:
        """About how long it takes, in any unit."""
        if self.policy != PLANNER:
            return 0.0
        planner = self.options["planner"]
        rounds = planner.get("iterations", 1) * planner.get("num_samples", 1)
        solves = len(self.ids) / self.options["replan_every"]
        slow = SLOWNESS if self.options["model"] == SIMULATOR else 1.0
        return float(rounds * planner.get("horizon", 1) * solves * slow)


@dataclass(frozen=True)
class _Draft:
    """A combination with its options."""

    options: dict[str, Any]
    axes: Mapping[str, str]
    policy: str = PLANNER


def plan_cells(words: Sequence[str], settings: Mapping[str, Any]) -> list[Planned]:
    """Return every cell of a command line: planners, then ceilings, then baselines.

    Args:
        words: Overrides of ``conf/plan.yaml``; commas cross.
        settings: ``conf/bench.yaml``.

    Raises:
        ConfigError: a combination cannot be run.
    """
    drafts = []
    for one in cross(words):
        options = settle(one.overrides, settings)
        base = {"model": options["model"], "planner": options["preset"]["planner"]}
        drafts.append(_Draft(_from_anywhere(options), base | dict(one.axes)))
    drafts += [*_ceilings(drafts), *_baselines(drafts)]
    found = [_planned(number, draft) for number, draft in enumerate(drafts)]
    forget_parts()
    return found


def settle(overrides: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Compose ``conf/plan.yaml`` for one combination, everything about the machine settled.

    Raises:
        ConfigError: an override is misspelt, or the options cannot be run.
    """
    options, preset = compose("plan", overrides, tuple(settings))
    options |= {"preset": preset, "overrides": list(overrides), "out": None, "video": "none"}
    options |= {name: settings[name] for name in ("threads", "exact_costs")}
    options = settle_goals(options)
    check_options(options)
    options = settle_protocol(options)
    if options["goal"] not in GOALS:
        raise ConfigError(
            f"goal={options['goal']}: bench compares success; goal={' or '.join(GOALS)}"
        )
    device = resolve_device(str(options["device"]))
    dtype = resolve_dtype(str(options["dtype"]), device)
    if options["model"] in STATE_MODELS:
        return plain(options | {"device": "cpu", "dtype": "float32", "weights": WEIGHTS[0]})
    return plain(options | {"device": str(device), "dtype": str(dtype).removeprefix("torch.")})


def _from_anywhere(options: dict[str, Any]) -> dict[str, Any]:
    """Make paths absolute: a worker may start in another folder."""
    paths = {name: Path(str(options[name])).expanduser() for name in FILES}
    return options | {name: str(path.absolute()) for name, path in paths.items() if path.is_file()}


def plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON keeps them: what a worker reads is what was hashed."""
    found: dict[str, Any] = json.loads(json.dumps(options))
    return found


def _ceilings(drafts: Sequence[_Draft]) -> list[_Draft]:
    """The simulator as the model, once for every planner and test."""
    groups: dict[str, list[_Draft]] = {}
    for draft in drafts:
        if draft.options["ceiling"] and draft.options["model"] != SIMULATOR:
            told = {"model": SIMULATOR, "device": "cpu", "dtype": "float32", "weights": WEIGHTS[0]}
            same = draft.options | told
            key = json.dumps({k: v for k, v in same.items() if k != "overrides"}, sort_keys=True)
            groups.setdefault(key, []).append(_Draft(same, draft.axes))
    return [
        _Draft(group[0].options, {"model": SIMULATOR, **_shared(group, ("model",))})
        for group in groups.values()
    ]


def _baselines(drafts: Sequence[_Draft]) -> list[_Draft]:
    """Those who act without a model, once for every test."""
    groups: dict[str, list[_Draft]] = {}
    for draft in drafts:
        if draft.options["baselines"]:
            groups.setdefault(scene_of(draft.options).protocol.hash, []).append(draft)
    return [
        _Draft(group[0].options, {"policy": name, **_shared(group, ("model", "planner"))}, name)
        for group in groups.values()
        for name in policies(scene_of(group[0].options), codec_of(scene_of(group[0].options)))
    ]


def _shared(group: Sequence[_Draft], but: Sequence[str]) -> dict[str, str]:
    """The axes that all of a group agree on."""
    first = group[0].axes
    return {
        key: value
        for key, value in first.items()
        if key not in but and all(draft.axes.get(key) == value for draft in group)
    }


def _planned(number: int, draft: _Draft) -> Planned:
    """Build the parts of a cell once, for what they refuse and what they tell."""
    scene = scene_of(draft.options)
    if draft.policy == PLANNER:
        brain = planning_agent(scene)[1]
        model, codec, frames = brain.about, brain.codec, brain.frames
    else:
        model, codec, frames = {"name": None}, codec_of(scene), "render"
    test = scene.protocol.record() | {"criterion": scene.rules(codec, frames).criterion}
    told = {k: v for k, v in draft.options.items() if k not in HARMLESS}
    told["model"] = model.get("sha256", draft.options["model"])
    return Planned(
        cell=Cell(
            id=_name(number, draft, [told, draft.policy, test["hash"], versions()]),
            axes=dict(draft.axes),
            options=draft.options,
            protocol=test,
            model=model,
            preset=_preset(scene, draft.policy),
            versions=versions(),
            machine=_machine(draft.options),
        ),
        options=draft.options,
        policy=draft.policy,
        ids=tuple(scene.segments.names),
    )


def _name(number: int, draft: _Draft, told: object) -> str:
    """``003-lewm-cem-1a2b3c4d``: sorted as on the command line, readable, one for its content."""
    axes = {**draft.axes, "model": Path(draft.axes["model"]).stem} if "model" in draft.axes else {}
    words = re.sub(r"[^A-Za-z0-9.]+", "_", "-".join((axes or draft.axes).values()))
    return f"{number:03d}-{words[:40].strip('_.')}-{_hash(told)[:8]}"


def _preset(scene: Scene, policy: str) -> dict[str, Any]:
    if policy != PLANNER:
        return {"name": policy}
    options = scene.options
    settings = _hash(options["planner"])
    return {"name": options["preset"]["planner"], "settings": settings, **options["preset"]}


def _machine(options: Mapping[str, Any]) -> dict[str, Any]:
    about = {"platform": platform.platform(), "processor": _processor()}
    return about | {name: options[name] for name in ("threads", "device", "dtype")}


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()
