"""Draw the cost of a world model over a grid of actions around the current pose.

Run: ``python -m jepa_wm.energy env=reach model=ac.gguf`` or ``env=recorded file=trajectory.npz``.
Marks the true action and the planner's choice, says the rank of the true action and the range that
is covered, and warns when the minimum lies on its border. Writes pictures and one JSON file.
"""

import json
import sys
from typing import Any

from jepa_wm.errors import ConfigError
from jepa_wm.experiments.landscapes import check_energy, draw_energy, lines, measure_energy
from jepa_wm.experiments.origins import tell_strange
from jepa_wm.experiments.report import check_folder, new_folder
from jepa_wm.experiments.setup import chunk_of, load_brain, make_agent, make_segments, make_tasks
from jepa_wm.launch import build, launch
from jepa_wm.runtime import resolve_device, resolve_dtype, use_threads


def main(options: dict[str, Any]) -> None:
    """Load, survey, draw."""
    check_energy(options)
    check_folder(options["out"])
    use_threads(options["threads"])
    device = resolve_device(str(options["device"]))
    env = build(options["env"], "env").unwrapped
    dtype = resolve_dtype(str(options["dtype"]), device)
    brain = load_brain(options, env.action_space, device, dtype)
    agent = make_agent(options, brain, device)
    segments = make_segments(options, env)
    tasks = make_tasks(options, env, segments, brain.frames != "render")
    names, unit = options["names"], options["unit"]
    chunk = chunk_of(options, brain.model, agent.planner.horizon, agent.device)
    print(f"model     {brain.about['name']}\nmemory    {chunk}")
    tell_strange(brain.about)
    records, drawings = [], []
    for task, recorded in zip(tasks, segments.actions, strict=True):
        try:
            energy = measure_energy(options, brain, agent, env, task, recorded)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        warnings = energy.warnings(names, unit)
        print("\n".join(lines(energy, names, unit)))
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        records.append({"task": task.id, **energy.record(), "warnings": warnings})
        drawings.append(draw_energy(energy, names, unit, "; ".join(warnings)))
    folder = new_folder(options["out"], "energy")
    document = {"model": brain.about, "options": options, "landscapes": records}
    (folder / "energy.json").write_text(json.dumps(document, indent=1, default=str) + "\n")
    for task, figure in zip(tasks, drawings, strict=True):
        figure.savefig(folder / f"energy_{task.id:03d}.png")
    print(f"results   {folder}")


if __name__ == "__main__":
    launch(main, "energy")
