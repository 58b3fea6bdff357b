"""A benchmark's tables, as rows of text: the same for the screen, CSV, Markdown and HTML."""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jepa_wm.experiments.bench_records import CellResult
from jepa_wm.experiments.bench_summary import Configuration, Pair, Regret, configurations, record_of

MIB = 2**20
NOTHING = "-"


@dataclass(frozen=True)
class Table:
    """Rows of text under a head.

    Attributes:
        title: What it shows.
        head: Names of the columns.
        rows: As many cells each.
        note: What to know when reading it, or "".
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def text(self) -> str:
        """Return it in columns of equal width."""
        lines = [list(self.head), *map(list, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        shown.insert(1, "-" * len(shown[0]))
        return "\n".join([self.title, *shown, *([self.note] if self.note else [])])


def success_table(found: Sequence[Configuration], front: set[str]) -> Table:
    """Success with intervals, what it cost, what is missing or failed."""
    rows = []
    for one in found:
        low, high = one.interval
        rate = f"{100 * one.rate:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
        rows.append(
            [
                one.name + (" *" if one.name in front else ""),
                rate if one.count else NOTHING,
                _count(one),
                _number(one.evaluations_per_decision, "{:.0f}"),
                _number(1e3 * one.plan_seconds_per_decision, "{:.0f}"),
                _number(sum(one.seconds.values()) if one.count else math.nan, "{:.2f}"),
                one.failure or ("" if one.is_complete else "not complete"),
            ]
        )
    head = ["who", "success, 95 %", "n", "candidates/solve", "ms/solve", "s/episode", "remark"]
    skipped = sum(one.presolved for one in found)
    notes = ["* nobody else succeeds as often in as little planning time."] if front else []
    if skipped:
        notes.append(f"{skipped} episodes started at their goal and are in no rate.")
    return Table("Success (Wilson 95 % intervals)", head, rows, " ".join(notes))


def pairs_table(compared: Sequence[Pair]) -> Table:
    """Every pair on the episodes both ran."""
    rows = [
        [
            pair.first,
            pair.second,
            f"{100 * pair.paired.difference:+.1f}",
            f"{pair.paired.first_only} : {pair.paired.second_only}",
            str(pair.paired.count),
            f"{pair.paired.p_value:.3g}",
        ]
        for pair in compared
    ]
    head = ["first", "second", "difference, points", "only first : only second", "n", "p"]
    note = "Exact two-sided McNemar test on episodes that both ran; p is of each pair alone."
    return Table("Paired by episode", head, rows, note)


def distance_table(found: Sequence[Configuration]) -> Table:
    """Where episodes end, by measure: median and 90th percentile."""
    labels = list(dict.fromkeys(label for one in found for label in one.measures))
    rows = [
        [one.name, *(_spread(one.final(label)) for label in labels)] for one in found if one.count
    ]
    return Table("Distance at the end: median (90th percentile)", ["who", *labels], rows)


def regret_table(found: Sequence[Regret]) -> Table:
    """Against the simulator as the model, the same planner and episodes."""
    labels = list(dict.fromkeys(label for one in found for label in one.distance))
    rows = [
        [
            one.name,
            f"{100 * one.paired.difference:+.1f}",
            str(one.paired.count),
            f"{one.paired.p_value:.3g}",
            *(f"{one.distance.get(label, math.nan):+.2f}" for label in labels),
        ]
        for one in found
    ]
    head = [
        "who",
        "success below the ceiling, points",
        "n",
        "p",
        *(f"{x}, further" for x in labels),
    ]
    note = "" if found else "No ceiling was run: ceiling=true adds the simulator as the model."
    return Table("Regret against the simulator as the model", head, rows, note)


def time_table(found: Sequence[Configuration]) -> Table:
    """Where an episode's time goes, and memory."""
    rows = [
        [
            one.name,
            *(f"{seconds:.3f}" for seconds in one.seconds.values()),
            f"{one.peak_memory / MIB:.0f}",
        ]
        for one in found
        if one.count
    ]
    head = ["who", "encode", "plan", "environment", "render", "peak MiB"]
    note = "Mean wall seconds of an episode, its share of what ran side by side."
    return Table("Time and memory", head, rows, note)


def rounding_table(found: Sequence[Configuration], rows: Sequence[Mapping[str, Any]]) -> Table:
    """What precision costs: plans priced anew in float32, candidates ranked by each variant.

    Args:
        found: The configurations.
        rows: Of ``precision.json``.
    """
    lines = []
    for one in found:
        gaps = [one.precision_gap(which) for which in ("mean", "best")]
        if not all(math.isnan(gap.median) for gap in gaps):
            lines.append([one.name, "plans in float32", *(_share(gap) for gap in gaps), "", ""])
    for row in rows:
        name = f"{Path(str(row['model'])).name} {row['dtype']}"
        against = Path(str(row.get("reference", ""))).name
        lines.append(
            [
                name,
                f"same candidates, against {against}" if against else "same candidates",
                f"{row['max_relative']:.2g}",
                "",
                _two(row["spearman"]),
                _two(row["elite_overlap"]),
            ]
        )
    head = [
        "who", "what", "relative gap, mean plan", "best plan", "Spearman", "elite overlap",
    ]  # fmt: skip
    return Table("Precision", head, lines, "Gaps: median (90th percentile), or the largest.")


def write_csv(path: Path, results: Sequence[CellResult], found: Sequence[Configuration]) -> None:
    """Write a row a cell and a row a configuration of several cells."""
    alone = [
        (result.cell.id, one)
        for result in results
        for one in configurations([result])
    ]  # fmt: skip
    pooled = [("pooled", one) for one in found if len(one.cells) > 1]
    records = []
    for cell, one in [*alone, *pooled]:
        seeds = {name: one.cells[0].axes.get(name) for name in ("seed", "planner_seed")}
        record = {"cell": cell, **(seeds if cell != "pooled" else {}), **record_of(one)}
        for label in one.measures:
            spread = one.final(label)
            record |= {f"final {label} median": spread.median, f"final {label} p90": spread.p90}
        records.append(record)
    names = list(dict.fromkeys(name for record in records for name in record))
    with path.open("w", newline="", encoding="utf-8") as file:
        sink = csv.DictWriter(file, names, restval="")
        sink.writeheader()
        sink.writerows(records)


def _count(one: Configuration) -> str:
    there = one.count + one.presolved
    missing = one.expected is not None and there < one.expected
    return f"{one.count} ({there} of {one.expected})" if missing else str(one.count)


def _number(value: float, form: str) -> str:
    return NOTHING if math.isnan(value) else form.format(value)


def _spread(spread: Any) -> str:
    if math.isnan(spread.median):
        return NOTHING
    return f"{spread.median:.3g} ({spread.p90:.3g})"


def _share(spread: Any) -> str:
    return NOTHING if math.isnan(spread.median) else f"{spread.median:.1e} ({spread.p90:.1e})"


def _two(values: Mapping[str, Any]) -> str:
    """Show a summary such as {median, min}."""
    return ", ".join(f"{name} {value:.3f}" for name, value in values.items())
