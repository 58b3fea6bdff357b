"""A benchmark's tables, as rows of text: the same for the screen, Markdown and HTML."""

import math
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

import numpy as np

from jepa_wm.control.rates import holm
from jepa_wm.control.statistics import Measure, Spread
from jepa_wm.experiments.bench_pairs import Comparison, Pair
from jepa_wm.experiments.bench_summary import Configuration
from jepa_wm.experiments.text_table import Table

MIB = 2**20
LONG = 12  # rows
NOTHING = "-"
PAIRED = ("points more, 95 %", "only it : only the other", "n", "p", "p, Holm")
NO_CEILING = "No ceiling was run: ceiling=true adds the simulator as the model."


def success_table(one: Comparison) -> Table:
    """Success with intervals, what it cost, what is missing or failed."""
    rows = [
        [
            who.name + (" *" if who.name in one.front else ""),
            _rate(who),
            str(who.count),
            _number(who.candidates, "{:.0f}"),
            _number(1e3 * who.plan_seconds, "{:.0f}"),
            _number(sum(who.seconds.values()) if who.count else math.nan, "{:.2f}"),
            _remark(who),
        ]
        for who in one.found
    ]
    head = [
        "who",
        "success, 95 %",
        "n",
        "candidates a solve",
        "ms a solve",
        "s an episode",
        "remark",
    ]
    notes = [
        "n: episodes that count, over all seeds. A solve is one replanning of one episode; ms and "
        "s are an episode's share of what ran side by side."
    ]
    if one.front:
        notes.append(
            "*: Pareto front, nobody else is better in success or ms without being worse in the "
            "other."
        )
    if any(who.presolved for who in one.found):
        notes.append("Presolved episodes start at their goal and are in no rate.")
    if any(who.distinct < who.count for who in one.found):
        notes.append("Planner seeds share episodes here: n counts every run.")
    return Table("Success (Wilson 95 % intervals)", head, rows, " ".join(notes))


def first_table(one: Comparison) -> Table:
    """Every planner against the first, on the episodes both ran."""
    first = one.pairs[0].first if one.pairs else ""
    pairs = [pair for pair in one.pairs if pair.first == first]
    adjusted = holm([pair.paired.p_value for pair in pairs])
    rows = [[pair.second, *_pair(pair, p)] for pair, p in zip(pairs, adjusted, strict=True)]
    title = f"Paired by episode, against {first}"
    return Table(title, ["who", *PAIRED], rows, _pairs_note(len(rows)))


def pairs_table(one: Comparison) -> Table:
    """Every pair on the episodes both ran."""
    rows = [[pair.second, pair.first, *_pair(pair, pair.adjusted)] for pair in one.pairs]
    head, note = ["who", "against", *PAIRED], _pairs_note(len(rows))
    return Table("Paired by episode, all pairs", head, rows, note, is_long=len(rows) > LONG)


def regret_table(one: Comparison) -> Table:
    """Against the simulator as the model, the same planner and episodes."""
    labels = list(dict.fromkeys(label for regret in one.regrets for label in regret.distance))
    rows = []
    for regret in one.regrets:
        distances = [_number(regret.distance.get(label, math.nan), "{:+.3g}") for label in labels]
        difference = _points(regret.paired.difference, *regret.paired.interval)
        p, n = _p(regret.paired.p_value), str(regret.paired.count)
        rows.append([regret.name, regret.ceiling, difference, n, p, *distances])
    head = ["who", "ceiling", "points lost, 95 %", "n", "p"]
    head += [f"{with_unit(one.found, label)} further" for label in labels]
    note = "Distances: median over the n episodes of how much further it ends than the ceiling."
    return Table(
        "Regret against the simulator as the model", head, rows, note if rows else NO_CEILING
    )


def distance_table(one: Comparison) -> Table:
    """Where episodes end, by measure: median and 90th percentile."""
    labels = measures_of(one.found)
    rows = [
        [who.name, *(_spread(who.finals(label), "{:.3g}") for label in labels)]
        for who in one.found
        if who.count
    ]
    head = ["who", *(with_unit(one.found, label) for label in labels)]
    return Table("Distance at the end: median (90th percentile)", head, rows if labels else [])


def work_table(one: Comparison) -> Table:
    """What an episode takes: solves, candidates, seconds by stage, memory."""
    rows = [
        [
            who.name,
            f"{who.mean(lambda record: record.steps):.1f}",
            f"{who.mean(lambda record: record.decisions):.1f}",
            f"{who.mean(lambda record: record.evaluations):.0f}",
            *(f"{seconds:.3f}" for seconds in who.seconds.values()),
            f"{who.peak_memory / MIB:.0f}",
        ]
        for who in one.found
        if who.count
    ]
    head = ["who", "steps", "solves", "candidates", "encode, s", "plan, s", "environment, s",
            "render, s", "peak MiB"]  # fmt: skip
    note = (
        "Means of an episode; seconds are its share of what ran side by side. Peak: of the "
        "processes that ran it, with what they had run before."
    )
    return Table("Work, time and memory of an episode", head, rows, note if rows else "")


def protocol_table(one: Comparison) -> Table:
    """Which lists of episodes the numbers hold for."""
    rows = dict.fromkeys(
        tuple(
            str(cell.protocol.get(name))[:16]
            if name == "hash"
            else str(cell.protocol.get(name, NOTHING))
            for name in ("label", "version", "seed", "planner_seed", "episodes", "hash")
        )
        for who in one.found
        for cell in who.cells
    )
    head = ["protocol", "version", "seed", "planner seed", "episodes", "hash"]
    note = "*: values of the preset that were changed. Equal hashes are equal tests, to the bit."
    return Table("Protocols", head, list(rows), note)


def rounding_table(one: Comparison) -> Table:
    """What rounding does to the costs of the plans that were made."""
    rows = []
    for who in one.found:
        gaps = [who.precision_gap(which) for which in ("mean", "best")]
        exact = all(cell.machine.get("dtype") == "float32" for cell in who.cells)
        if not exact and not all(math.isnan(gap.median) for gap in gaps):
            rows.append([who.name, *(f"{gap.median:.2g} ({gap.p90:.2g})" for gap in gaps)])
    note = (
        "Relative difference of a plan's cost from the same plan's in float32: median (90th "
        "percentile) over solves."
    )
    head = ["who", "the planner's mean", "best candidate"]
    return Table("Plans priced anew in float32", head, rows, note if rows else "")


def ranking_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Whether models and dtypes rank the same candidates alike.

    Args:
        rows: Of ``precision.json``.
    """
    lines = [
        [
            str(row.get("env", NOTHING)),
            PurePath(str(row["model"])).name,
            str(row["dtype"]),
            *(f"{row['spearman'][name]:.4f}" for name in ("median", "min")),
            *(f"{100 * row['elite_overlap'][name]:.1f}" for name in ("mean", "min")),
            f"{row['max_relative']:.2g}",
        ]
        for row in rows
    ]
    head = ["env", "model", "dtype", "Spearman, median", "lowest", "elites shared, mean %",
            "lowest %", "largest relative difference"]  # fmt: skip
    note = "The same candidates of first solves, each against the first model in float32."
    return Table("Precision: the same candidates ranked", head, lines, note if lines else "")


def measures_of(found: Sequence[Configuration]) -> list[str]:
    """Return the labels of all measures that anybody's episodes end with."""
    return list(dict.fromkeys(label for one in found for label in one.measures))


def measure(found: Sequence[Configuration], label: str) -> Measure | None:
    """Return what the task says of a measure."""
    for one in found:
        for told in one.cells[0].options.get("task", {}).get("measures", []):
            if told.get("label") == label:
                return Measure(**told)
    return None


def with_unit(found: Sequence[Configuration], label: str) -> str:
    """Return a measure's label with its unit in brackets."""
    told = measure(found, label)
    return f"{label} ({told.unit})" if told is not None and told.unit else label


def _rate(who: Configuration) -> str:
    if not who.count:
        return NOTHING
    low, high = who.interval
    return f"{100 * who.rate:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"


def _remark(who: Configuration) -> str:
    cells, parts = len(who.cells), []
    if who.failures:
        parts.append("failed" if cells == 1 else f"{len(who.failures)} of {cells} cells failed")
    if who.expected is not None and who.ran < who.expected:
        parts.append(f"{who.ran} of {who.expected} episodes")
    if who.presolved:
        parts.append(f"{who.presolved} presolved")
    return ", ".join(parts)


def _pair(pair: Pair, adjusted: float) -> list[str]:
    """The second of a pair against the first."""
    low, high = pair.paired.interval
    return [
        _points(-pair.paired.difference, -high, -low),
        f"{pair.paired.second_only} : {pair.paired.first_only}",
        str(pair.paired.count),
        _p(pair.paired.p_value),
        _p(adjusted),
    ]


def _pairs_note(count: int) -> str:
    if not count:
        return ""
    family = f"; Holm: adjusted for these {count} pairs" if count > 1 else ""
    return (
        f"On the n episodes both ran. p: exact two-sided McNemar test{family}. Intervals: "
        "Newcombe, paired."
    )


def _points(difference: float, low: float, high: float) -> str:
    """A difference of rates in percentage points, with its interval."""
    points, *ends = (f"{100 * rate + 0.0:+.1f}" for rate in (difference, low, high))
    return f"{points} [{', '.join(ends)}]"


def _p(value: float) -> str:
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def _number(value: float, form: str) -> str:
    return NOTHING if math.isnan(value) else form.format(value)


def _spread(values: np.ndarray, form: str) -> str:
    found = Spread.of(values)
    if math.isnan(found.median):
        return NOTHING
    return f"{form.format(found.median)} ({form.format(found.p90)})"
