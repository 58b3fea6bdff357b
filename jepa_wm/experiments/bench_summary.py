"""What a benchmark's records say in numbers: rates, distances, costs, times, what was spent.

Cells that differ in nothing but seeds are one configuration: its episodes are pooled.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from jepa_wm.control.rates import wilson_interval
from jepa_wm.control.statistics import Spread
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.bench_names import axes_of, names_of, test_of
from jepa_wm.experiments.bench_records import Cell, CellResult, EpisodeRecord

SIMULATOR = "simulator"
STAGES = ("encode", "plan", "environment", "render")
Key = tuple[str, int]
"""An episode, whoever runs it: the list it is from with its seeds, and its id in there."""
Number = Callable[[EpisodeRecord], float]


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """One model, planner and environment, over all its seeds.

    Attributes:
        name: What tells it from the others of its test.
        axes: Its settings on the crossed axes, seeds left out.
        cells: Its cells.
        test: What its episodes test; see ``bench_names``.
        episodes: Records of those that ran and were not presolved.
        presolved: How many started at their goal.
        expected: How many there are to be, presolved ones included; None where nobody knows.
        failures: Errors by cell.
    """

    name: str
    axes: Mapping[str, str]
    cells: Sequence[Cell]
    test: str
    episodes: Mapping[Key, EpisodeRecord]
    presolved: int
    expected: int | None
    failures: Mapping[str, str]

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
        return not self.failures and (self.expected is None or self.ran >= self.expected)

    @property
    def ran(self) -> int:
        """Episodes that are there, presolved ones included."""
        return self.count + self.presolved

    @property
    def distinct(self) -> int:
        """Different starts and goals among the episodes: planner seeds may share some."""
        return len({(key.partition("/")[0], index) for key, index in self.episodes})

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

    def mean(self, of: Number) -> float:
        """Average a number over the episodes, NaN without any."""
        values = [of(record) for record in self.episodes.values()]
        return float(np.mean(values)) if values else math.nan

    def per_solve(self, of: Number) -> float:
        """Divide the sum of a number by the solves, NaN for what does not plan."""
        records = self.episodes.values()
        solves = sum(record.decisions for record in records)
        return sum(of(record) for record in records) / solves if solves else math.nan

    @property
    def candidates(self) -> float:
        """Candidates scored per solve."""
        return self.per_solve(lambda record: record.evaluations)

    @property
    def plan_seconds(self) -> float:
        """Mean seconds of a solve, one episode's share."""
        return self.per_solve(lambda record: record.seconds.get("plan", 0.0))

    @property
    def seconds(self) -> Mapping[str, float]:
        """Mean wall seconds of an episode by stage."""

        def of(stage: str) -> float:
            return self.mean(lambda record: record.seconds.get(stage, 0.0))

        return {stage: of(stage) for stage in STAGES}

    @property
    def measures(self) -> list[str]:
        """Labels of the measures its episodes end with."""
        return list(dict.fromkeys(name for r in self.episodes.values() for name in r.final))

    def finals(self, label: str) -> np.ndarray:
        """Return a measure at the end of the episodes that have it finite, float64 [n]."""
        values = [r.final.get(label, math.nan) for r in self.episodes.values()]
        array = np.asarray(values, np.float64)
        return array[np.isfinite(array)]

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

    def at_success(self, spent: Number) -> np.ndarray:
        """Return what each successful episode had spent by its success, ascending float64 [k]."""
        return np.sort([float(spent(r)) for r in self.episodes.values() if r.success])

    @property
    def budget(self) -> int:
        """Environment steps an episode may take."""
        records = self.episodes.values()
        given = [int(cell.options.get("budget") or 0) for cell in self.cells]
        return max([*given, *(record.steps for record in records)], default=0)


def configurations(results: Sequence[CellResult]) -> list[Configuration]:
    """Pool cells over seeds, in the order of the cells.

    Raises:
        ConfigError: there is no cell at all, or two hold the same episodes.
    """
    if not results:
        raise ConfigError("no cell of a benchmark is here: cells/*/cell.json is missing")
    groups: dict[tuple[object, ...], list[CellResult]] = {}
    for result in results:
        key = (test_of(result.cell), *sorted(axes_of(result.cell).items()))
        groups.setdefault(key, []).append(result)
    tests: dict[str, list[list[CellResult]]] = {}
    for group in groups.values():
        tests.setdefault(test_of(group[0].cell), []).append(group)
    found = []
    for mine in tests.values():
        names = names_of([axes_of(group[0].cell) for group in mine])
        found += [_pool(group, name) for group, name in zip(mine, names, strict=True)]
    return found


def by_cell(results: Sequence[CellResult], found: Sequence[Configuration]) -> list[Configuration]:
    """Return every cell as a configuration of its own, named like the one it belongs to."""
    names = {cell.id: one.name for one in found for cell in one.cells}
    return [_pool([result], names[result.cell.id]) for result in results]


def _pool(group: Sequence[CellResult], name: str) -> Configuration:
    cell = group[0].cell
    counts = [result.cell.protocol.get("episodes") for result in group]
    sizes = [count for count in counts if isinstance(count, int)]
    episodes: dict[Key, EpisodeRecord] = {}
    for result in group:
        key = _list_of(result.cell)
        mine = {(key, record.id): record for record in result.records if not record.presolved}
        if episodes.keys() & mine.keys():
            raise ConfigError(f"cell {result.cell.id} holds the same episodes as {cell.id}")
        episodes |= mine
    return Configuration(
        name=name,
        axes=axes_of(cell),
        cells=[result.cell for result in group],
        test=test_of(cell),
        episodes=episodes,
        presolved=sum(record.presolved for result in group for record in result.records),
        expected=sum(sizes) if len(sizes) == len(group) else None,
        failures={result.cell.id: result.failure for result in group if result.failure},
    )


def _list_of(cell: Cell) -> str:
    """Name the list of a cell's episodes: two that share it may be compared by id."""
    told = [cell.protocol.get(name) for name in ("episodes_hash", "seed", "planner_seed")]
    return "/".join(map(str, told))


def share_at_success(record: EpisodeRecord) -> float:
    """Return which share of its solves an episode had made when it succeeded, in (0, 1].

    Less than one where it went on after its success.
    """
    if not record.steps or not record.decisions or not record.success_step:
        return 1.0
    return math.ceil(record.decisions * record.success_step / record.steps) / record.decisions
