"""What a benchmark's records say in numbers: rates, pairs, distances, costs, times, the front.

Cells that differ in nothing but seeds are one configuration: its episodes are pooled, and pairs are
matched by (seeds, id), always within one protocol.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jepa_wm.control.protocol import content_hash
from jepa_wm.control.rates import Paired, mcnemar_p_value, wilson_interval
from jepa_wm.control.statistics import Spread
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.bench_records import Cell, CellResult, EpisodeRecord

SEEDS = ("seed", "planner_seed")
SIMULATOR = "simulator"
TEST = (
    "environment", "goal", "goals", "goal_offset", "budget", "success", "hold", "success_at",
    "stop_on_success", "replace_presolved",
)  # fmt: skip
"""What of a protocol says what is tested, whoever plans."""
STAGES = ("encode", "plan", "environment", "render")
Key = tuple[str, int]
"""An episode of a configuration: the seeds of its cell, its id."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One model, planner and environment, over all its seeds.

    Attributes:
        name: What tells it from the others, for tables and axes.
        axes: Its settings on the crossed axes, seeds left out.
        cells: Its cells.
        test: What its episodes test: environment, protocol and the criterion.
        episodes: Records of those that ran and were not presolved.
        presolved: How many started at their goal.
        expected: How many there are to be, presolved ones included; None where nobody knows.
        failure: The first error of a cell, or None.
    """

    name: str
    axes: Mapping[str, str]
    cells: Sequence[Cell]
    test: str
    episodes: Mapping[Key, EpisodeRecord]
    presolved: int
    expected: int | None
    failure: str | None

    @property
    def count(self) -> int:
        """Episodes evaluated, n."""
        return len(self.episodes)

    @property
    def successes(self) -> int:
        """Of them, successful."""
        return sum(record.success for record in self.episodes.values())

    @property
    def rate(self) -> float:
        """Success rate, NaN without episodes."""
        return self.successes / self.count if self.count else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson 95 % interval of the rate."""
        return wilson_interval(self.successes, self.count)

    @property
    def is_complete(self) -> bool:
        """Whether every episode is there and no cell failed."""
        there = self.count + self.presolved
        return self.failure is None and (self.expected is None or there >= self.expected)

    @property
    def is_ceiling(self) -> bool:
        """Whether the simulator is its model."""
        return self.axes.get("model") == SIMULATOR

    @property
    def is_baseline(self) -> bool:
        """Whether it acts without a model."""
        return "policy" in self.axes

    @property
    def peak_memory(self) -> int:
        """Largest resident memory of a process that ran it, bytes."""
        return max((record.peak_memory for record in self.episodes.values()), default=0)

    def mean(self, of: Callable[[EpisodeRecord], float]) -> float:
        """Average a number over the episodes, NaN without any."""
        values = [of(record) for record in self.episodes.values()]
        return float(np.mean(values)) if values else math.nan

    @property
    def evaluations_per_decision(self) -> float:
        """Candidates scored per solve, NaN for what does not plan."""
        decisions = sum(record.decisions for record in self.episodes.values())
        total = sum(record.evaluations for record in self.episodes.values())
        return total / decisions if decisions else math.nan

    @property
    def seconds(self) -> Mapping[str, float]:
        """Mean wall seconds of an episode by stage."""
        return {
            stage: self.mean(lambda record, stage=stage: record.seconds.get(stage, 0.0))  # type: ignore[misc]
            for stage in STAGES
        }

    @property
    def plan_seconds_per_decision(self) -> float:
        """Mean seconds of a solve, one episode's share, NaN for what does not plan."""
        decisions = sum(record.decisions for record in self.episodes.values())
        total = sum(record.seconds.get("plan", 0.0) for record in self.episodes.values())
        return total / decisions if decisions else math.nan

    def final(self, label: str) -> Spread:
        """Summarise a measure at the end of the episodes."""
        return Spread.of([r.final[label] for r in self.episodes.values() if label in r.final])

    @property
    def measures(self) -> list[str]:
        """Labels of the measures its episodes end with."""
        return list(dict.fromkeys(name for r in self.episodes.values() for name in r.final))

    def precision_gap(self, which: str) -> Spread:
        """Relative difference of a plan's cost from the same plan's cost in float32.

        Args:
            which: ``mean`` or ``best``.
        """
        gaps: list[float] = []
        for record in self.episodes.values():
            mine = np.asarray(getattr(record, f"{which}_cost"), np.float64)
            exact = np.asarray(getattr(record, f"{which}_cost_fp32"), np.float64)
            if len(mine) == len(exact):
                gaps.extend(np.abs(mine - exact) / np.maximum(np.abs(exact), 1e-12))
        return Spread.of(gaps)

    def success_by_step(self) -> tuple[np.ndarray, np.ndarray]:
        """Return steps 0..budget and how many episodes had succeeded by each, int64 [K+1] both."""
        budget = max((int(cell.options.get("budget", 0)) for cell in self.cells), default=0)
        at = [r.success_step for r in self.episodes.values() if r.success_step is not None]
        steps = np.arange(max([budget, *at], default=0) + 1)
        return steps, np.searchsorted(np.sort(np.asarray(at, np.int64)), steps, side="right")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two configurations on the episodes they share.

    Attributes:
        first: Name of one.
        second: Name of the other.
        paired: How their successes agree.
    """

    first: str
    second: str
    paired: Paired


@dataclass(frozen=True, kw_only=True)
class Regret:
    """A configuration against the simulator with the same planner, on the episodes they share.

    Attributes:
        name: The configuration.
        paired: Success of the simulator (first) and of the configuration (second).
        distance: Median over episodes of the final distance minus the simulator's, by label.
    """

    name: str
    paired: Paired
    distance: Mapping[str, float]


def configurations(results: Sequence[CellResult]) -> list[Configuration]:
    """Pool the cells that differ in seeds alone, in the order of their ids.

    Raises:
        ConfigError: there is no cell at all.
    """
    if not results:
        raise ConfigError("no cell of a benchmark is here: cells/*/cell.json is missing")
    groups: dict[tuple, list[CellResult]] = {}
    for result in results:
        axes = {k: v for k, v in result.cell.axes.items() if k not in SEEDS}
        groups.setdefault((_test(result.cell), *sorted(axes.items())), []).append(result)
    shown = _telling([group[0].cell.axes for group in groups.values()])
    return [_pool(group, shown) for group in groups.values()]


def pairs(found: Sequence[Configuration]) -> list[Pair]:
    """Compare all pairs of planners that share a test and episodes."""
    planners = [one for one in found if not one.is_baseline and one.count]
    compared = []
    for index, first in enumerate(planners):
        for second in planners[index + 1 :]:
            paired = compare(first, second)
            if paired is not None:
                compared.append(Pair(first=first.name, second=second.name, paired=paired))
    return compared


def compare(first: Configuration, second: Configuration) -> Paired | None:
    """Compare two configurations episode by episode; None where they share none."""
    shared = first.episodes.keys() & second.episodes.keys() if first.test == second.test else ()
    if not shared:
        return None
    outcomes = [(first.episodes[key].success, second.episodes[key].success) for key in shared]
    b, c = outcomes.count((True, False)), outcomes.count((False, True))
    return Paired(
        both=outcomes.count((True, True)),
        first_only=b,
        second_only=c,
        neither=outcomes.count((False, False)),
        p_value=mcnemar_p_value(b, c),
    )


def regrets(found: Sequence[Configuration]) -> list[Regret]:
    """Compare every planner with the ceiling of its own: the simulator, all else the same."""
    ceilings = [one for one in found if one.is_ceiling and one.count]
    compared = []
    for one in found:
        if one.is_baseline or one.is_ceiling:
            continue
        ceiling = next((c for c in ceilings if _is_ceiling_of(c, one)), None)
        paired = None if ceiling is None else compare(ceiling, one)
        if ceiling is None or paired is None:
            continue
        keys = sorted(ceiling.episodes.keys() & one.episodes.keys())
        gaps = {
            label: float(
                np.median(
                    [one.episodes[k].final[label] - ceiling.episodes[k].final[label] for k in keys]
                )
            )
            for label in one.measures
            if all(label in side.episodes[k].final for side in (one, ceiling) for k in keys)
        }
        compared.append(Regret(name=one.name, paired=paired, distance=gaps))
    return compared


def front(found: Sequence[Configuration], of: Callable[[Configuration], float]) -> set[str]:
    """Return the names that no other beats in success at no more of something, such as time."""
    planners = [one for one in found if not one.is_baseline and one.count]
    points = [(one, one.rate, of(one)) for one in planners if not math.isnan(of(one))]
    return {
        one.name
        for one, rate, price in points
        if not any(
            other is not one
            and other.test == one.test
            and r >= rate
            and p <= price
            and (r > rate or p < price)
            for other, r, p in points
        )
    }


def record_of(one: Configuration) -> dict[str, Any]:
    """Return a configuration as plain JSON values, NaN as None."""
    low, high = one.interval
    values = {
        "name": one.name,
        **one.axes,
        "n": one.count,
        "successes": one.successes,
        "rate": one.rate,
        "low": low,
        "high": high,
        "presolved": one.presolved,
        "expected": one.expected,
        "evaluations_per_decision": one.evaluations_per_decision,
        "evaluations_per_episode": one.mean(lambda record: record.evaluations),
        "plan_seconds_per_decision": one.plan_seconds_per_decision,
        **{f"{stage}_seconds": value for stage, value in one.seconds.items()},
        "peak_memory": one.peak_memory,
        "failure": one.failure,
    }
    return {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in values.items()}


def _pool(group: Sequence[CellResult], shown: Sequence[str]) -> Configuration:
    cell = group[0].cell
    axes = {k: v for k, v in cell.axes.items() if k not in SEEDS}
    records = [(_seeds(result.cell), record) for result in group for record in result.records]
    counts = [result.cell.protocol.get("episodes") for result in group]
    sizes = [count for count in counts if isinstance(count, int)]
    return Configuration(
        name=_name(axes, shown),
        axes=axes,
        cells=[result.cell for result in group],
        test=_test(cell),
        episodes={(s, record.id): record for s, record in records if not record.presolved},
        presolved=sum(record.presolved for _, record in records),
        expected=sum(sizes) if len(sizes) == len(group) else None,
        failure=next((result.failure for result in group if result.failure), None),
    )


def _seeds(cell: Cell) -> str:
    return "/".join(str(cell.axes.get(name, cell.options.get(name))) for name in SEEDS)


def _test(cell: Cell) -> str:
    """Name what is tested; configurations with other tests are never paired.

    How often an agent replans and how much it remembers is the agent's: it may be compared.
    """
    env = str(cell.options.get("preset", {}).get("env") or cell.options["env"]["id"])
    told = {name: cell.protocol.get(name) for name in TEST}
    goal = f"goal {told['goal']}, {told['goal_offset']} steps ahead"
    return f"{env}: {goal}, {cell.protocol.get('criterion')} [{content_hash(told)[:8]}]"


def _telling(axes: Sequence[Mapping[str, str]]) -> list[str]:
    """Name the axes that differ between configurations."""
    names = list(dict.fromkeys(name for one in axes for name in one if name not in SEEDS))
    planners = [one for one in axes if "policy" not in one]
    return [name for name in names if len({one.get(name) for one in planners}) > 1]


def _name(axes: Mapping[str, str], shown: Sequence[str]) -> str:
    if "policy" in axes:
        rest = [axes[name] for name in shown if name in axes and name not in ("model", "planner")]
        return " ".join([axes["policy"], *rest])
    words = [
        axes[name] if name in ("model", "planner", "env") else f"{name}={axes[name]}"
        for name in shown
        if name in axes
    ]
    return " ".join(words) or axes.get("planner", "planner")


def _is_ceiling_of(ceiling: Configuration, one: Configuration) -> bool:
    mine = {k: v for k, v in one.axes.items() if k != "model"}
    return ceiling.test == one.test and all(
        mine.get(name) == value for name, value in ceiling.axes.items() if name != "model"
    )
