"""See what a model imagines, without a decoder: beside what comes true, in frames and numbers.

Run: ``python -m jepa_wm.rollout env=pusht model=lewm.gguf actions=play``. Encodes true frames,
predicts them from the first, and draws nearest real frames, distances, both paths in a plane, what
a linear probe reads, and maps of patches. Writes figures, ``summary.md`` and ``rollout.json``.
"""

import sys
from pathlib import Path
from typing import Any

from jepa_wm.errors import ConfigError
from jepa_wm.experiments.decoding import keep_painter
from jepa_wm.experiments.observer import Observer
from jepa_wm.experiments.origins import tell_strange
from jepa_wm.experiments.paths import NAMED
from jepa_wm.experiments.report import check_folder, new_folder
from jepa_wm.experiments.rollout_report import figures, lines, write
from jepa_wm.experiments.rollout_study import study
from jepa_wm.experiments.rollouts import DISTANCES
from jepa_wm.experiments.setup import load_brain
from jepa_wm.launch import build, launch
from jepa_wm.runtime import resolve_device, resolve_dtype, use_threads

_LEAST = {"rollouts": 1, "show": 0, "history": 1, "bank": 8, "nearest": 1, "columns": 2, "seed": 0,
          "goal_offset": 1}  # fmt: skip


def check(options: dict[str, Any]) -> None:
    """Refuse what cannot work, all at once, before anything long begins."""
    faults = _number_faults(options)
    if options["model"] is None:
        faults.append("model is required: model=FILE.gguf, a bundled name, or model=simulator")
    elif not isinstance(options["model"], str):
        faults.append(f"model={options['model']!r} was read as a number; quote it")
    if options["distance"] not in DISTANCES:
        faults.append(f"distance={options['distance']!r} must be {' or '.join(DISTANCES)}")
    if not isinstance(options["actions"], str):
        faults.append(f"actions={options['actions']!r} must be {', '.join(NAMED)} or FILE.npy")
    if options["train"] not in (None, "decoder"):
        faults.append(f"train={options['train']!r} must be decoder or null")
    elif options["train"] and options["decoder"]:
        faults.append("train=decoder makes a decoder and decoder= names one: give one of them")
    if options["out"] and (Path(str(options["out"])).expanduser() / "rollout.json").exists():
        faults.append(f"out={options['out']} already holds a run; choose another folder")
    if faults:
        raise ConfigError("; ".join(faults))
    check_folder(options["out"])


def _number_faults(options: dict[str, Any]) -> list[str]:
    faults = [
        f"{name}={options[name]!r} must be a whole number >= {least}"
        for name, least in _LEAST.items()
        if type(options[name]) is not int or options[name] < least
    ]
    horizon = options["horizon"]
    if horizon is not None and (type(horizon) is not int or horizon < 1):
        faults.append(f"horizon={horizon!r} must be a whole number >= 1, or null")
    if not faults and options["show"] >= options["rollouts"]:
        faults.append(f"show={options['show']} must be below rollouts={options['rollouts']}")
    return faults


def main(options: dict[str, Any]) -> None:
    """Load, imagine, report."""
    check(options)
    use_threads(options["threads"])
    device = resolve_device(str(options["device"]))
    env = build(options["env"], "env").unwrapped
    dtype = resolve_dtype(str(options["dtype"]), device)
    brain = load_brain(options, env.action_space, device, dtype)
    if brain.model.action_dim != brain.codec.action_dim:
        raise ConfigError(
            f"{brain.about['name']} takes {brain.model.action_dim} action numbers, the environment "
            f"gives {brain.codec.action_dim} ({brain.codec.block} steps of {brain.codec.env_dim}); "
            "give a model of this environment"
        )
    tell_strange(brain.about)
    observer = Observer(brain, env, options["task"].get("proprio"), device)
    try:
        found = study(options, brain, observer)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    drawn = figures(found, observer)
    folder = new_folder(options["out"], "rollout")
    write(found, drawn, folder)
    if options["train"] and found.painter is not None:
        keep_painter(found.painter, brain, folder / "decoder.npz")
    print("\n".join(lines(found)), file=sys.stdout)
    print(f"results   {folder}")


if __name__ == "__main__":
    launch(main, "rollout")
