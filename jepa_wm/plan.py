"""Plan in an environment with a world model, and say how well it went.

Run: ``python -m jepa_wm.plan env=pusht model=lewm.gguf``. Prints what it does, a progress bar and
a table beside the baselines; writes the episodes, a video and figures into one folder.
"""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from typing import Any

import torch

from jepa_wm.control.agent import Agent
from jepa_wm.control.episode import Episode, Rules, Task
from jepa_wm.control.protocol import Segments, protocol_of
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.checks import check_options
from jepa_wm.experiments.episodes import make_rules, make_segments, settle_protocol
from jepa_wm.experiments.first_cost import first_cost, first_sight
from jepa_wm.experiments.goals import settle_goals, with_waypoints
from jepa_wm.experiments.report import PLANNER, PlanReport
from jepa_wm.experiments.setup import (
    SIMULATOR,
    Brain,
    baselines,
    load_brain,
    make_agent,
    make_tasks,
    run,
    simulator_brain,
)
from jepa_wm.experiments.threads import check_threads, settle_threads
from jepa_wm.launch import build, launch
from jepa_wm.runtime import resolve_device, resolve_dtype
from jepa_wm.viz.video import require_video


def check(options: dict[str, Any]) -> None:
    """Refuse what cannot work, before anything long begins."""
    check_options(options)
    check_threads(options["threads"])
    if options["output"] not in ("text", "json"):
        raise ConfigError(f"output={options['output']!r} is unknown; use text or json")
    require_video(options["video"])


def run_ceiling(
    options: dict[str, Any], brain: Brain, tasks: Sequence[Task], rules: Rules
) -> list[Episode]:
    """Run the same planner with the simulator as its model, on the same episodes."""
    ceiling = simulator_brain(options, brain.codec, "the model's")
    agent = make_agent(options, ceiling, torch.device("cpu"))
    return run(options, SIMULATOR, agent, tasks, replace(rules, frames=ceiling.frames, film=()))


def run_all(
    options: dict[str, Any],
    brain: Brain,
    report: PlanReport,
    segments: Segments,
    tasks: Sequence[Task],
    actor: Agent,
) -> None:
    """Run the planner, then what it is compared with, on the same episodes."""
    name, rules = report.planner_name, report.rules
    report.add(PLANNER, run(options, name, actor, tasks, rules, report.keep))
    if options["ceiling"]:
        env = build(options["env"], "env").unwrapped
        from_states = make_tasks(options, env, segments, True)
        report.add(SIMULATOR, run_ceiling(options, brain, from_states, rules))
    if options["baselines"]:
        for name, policy in baselines(options, tasks, segments, brain.codec).items():
            report.add(name, run(options, name, policy, tasks, rules))


def main(options: dict[str, Any]) -> None:
    """Load, plan, report."""
    options = settle_goals(options)
    check(options)
    options = settle_protocol(options)
    device = resolve_device(str(options["device"]))
    dtype = resolve_dtype(str(options["dtype"]), device)
    env = build(options["env"], "env")
    brain = load_brain(options, env.action_space, device, dtype)
    agent = make_agent(options, brain, device)
    if options["ceiling"]:  # refuses now what it would refuse after the run
        make_agent(options, simulator_brain(options, brain.codec, ""), torch.device("cpu"))
    segments = make_segments(options, env.unwrapped)
    tasks = make_tasks(options, env.unwrapped, segments, brain.frames != "render")
    key = options["task"].get("proprio")
    settle_threads(
        options["threads"],
        agent,
        lambda: first_cost(agent, first_sight(env, segments, brain.frames, key)),
    )
    protocol = protocol_of(options, env, segments)
    film = segments.names[: options["film"]] if options["video"] != "none" else ()
    rules = make_rules(options, brain.codec.block, brain.frames, film)
    frame = env.unwrapped.render_state(segments.starts[0])
    actor = with_waypoints(options, agent, frame)
    with redirect_stdout(sys.stderr if options["output"] == "json" else sys.stdout):
        report = PlanReport(options, brain.about, agent, protocol, rules, (device, dtype))
        report.announce(segments)
        try:
            run_all(options, brain, report, segments, tasks, actor)
        except KeyboardInterrupt:
            print(f"finished episodes are in {report.folder}", file=sys.stderr)
            raise
        report.finish()
    if options["output"] == "json":
        print(report.json())


if __name__ == "__main__":
    launch(main, "plan")
