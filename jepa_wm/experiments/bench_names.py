"""What a benchmark's report calls things: tests, and what is compared within one.

A test is what the episodes ask for, whoever plans; nothing is compared across two. A name says only
what tells its bearer from the others in the same test.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePath

from jepa_wm.control.protocol import content_hash
from jepa_wm.experiments.bench_records import Cell

SEEDS = ("seed", "planner_seed")
TEST = (
    "environment", "goal", "goals", "goal_offset", "budget", "success", "hold", "success_at",
    "stop_on_success", "replace_presolved",
)  # fmt: skip
"""What of a protocol says what is tested, whoever plans."""
PLAIN = ("model", "planner", "policy", "env", "dtype")  # axes whose value says what it is
Axes = Mapping[str, str]


def test_of(cell: Cell) -> str:
    """Say what is tested, in words and a hash: "pusht: goal 25 steps ahead, ... [1a2b3c4d]".

    How often an agent replans and how much it remembers is the agent's: it may be compared.
    """
    told = {name: cell.protocol.get(name) for name in TEST}
    environment = told["environment"] or {}
    env = cell.options.get("preset", {}).get("env") or environment.get("id", "environment")
    criterion = cell.protocol.get("criterion") or told["success"]
    return f"{env}: {_goal(cell.protocol)}, {criterion} [{content_hash(told)[:8]}]"


def axes_of(cell: Cell) -> dict[str, str]:
    """Return a cell's axes without seeds: cells that share them are one configuration."""
    return {name: value for name, value in cell.axes.items() if name not in SEEDS}


def names_of(axes: Sequence[Axes]) -> list[str]:
    """Name the configurations of one test, each differently, by the axes that differ.

    Args:
        axes: Of each, seeds left out.
    """
    planners = [one for one in axes if "policy" not in one]
    known = dict.fromkeys(name for one in axes for name in one)
    shown = [name for name in known if len({one.get(name) for one in planners}) > 1]
    models = _short_models([one["model"] for one in planners if "model" in one])
    found: list[str] = []
    for one in axes:
        name = _name(one, shown, models)
        taken = sum(other == name or other.startswith(f"{name} (") for other in found)
        found.append(f"{name} ({taken + 1})" if taken else name)
    return found


def _name(one: Axes, shown: Sequence[str], models: Mapping[str, str]) -> str:
    keys = [name for name in shown if name in one]
    if "policy" in one:
        keys = ["policy", *(name for name in keys if name not in ("model", "planner"))]
    words = [
        models.get(one[key], one[key]) if key in PLAIN else f"{_short_key(key, shown)}={one[key]}"
        for key in keys
    ]
    return " ".join(words) or one.get("planner", "planner")


def _short_models(values: Sequence[str]) -> dict[str, str]:
    """Show a path by its last part where that is enough."""
    short = {value: PurePath(value).name or value for value in values}
    return {v: s if list(short.values()).count(s) == 1 else v for v, s in short.items()}


def _short_key(key: str, shown: Sequence[str]) -> str:
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in shown) == 1 else key


def _goal(protocol: Mapping[str, object]) -> str:
    goals, goal = protocol.get("goals"), protocol.get("goal")
    if isinstance(goals, Sequence) and goals:
        return f"{len(goals)} sub-goals"
    if goal == "play":
        return f"goal {protocol.get('goal_offset')} steps ahead"
    return "the environment's own goal" if goal == "env" else f"goal {goal}"
