"""A benchmark's numbers for other programs: a CSV file and one JSON object."""

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jepa_wm.control.statistics import Spread
from jepa_wm.experiments.bench_names import SEEDS
from jepa_wm.experiments.bench_pairs import Comparison, Pair, Regret
from jepa_wm.experiments.bench_records import CellResult
from jepa_wm.experiments.bench_summary import Configuration, by_cell

POOLED = "pooled"


def record_of(one: Configuration) -> dict[str, Any]:
    """Return the numbers of a configuration by name; NaN where there are none."""
    low, high = one.interval
    found = {
        "n": one.count,
        "successes": one.successes,
        "rate": one.rate,
        "low": low,
        "high": high,
        "presolved": one.presolved,
        "expected": one.expected,
        "solves": one.mean(lambda record: record.decisions),
        "evaluations_per_solve": one.candidates,
        "evaluations": one.mean(lambda record: record.evaluations),
        "plan_seconds_per_solve": one.plan_seconds,
        "seconds": dict(one.seconds),
        "peak_memory": one.peak_memory,
        "final": {label: vars(Spread.of(one.finals(label))) for label in one.measures},
    }
    return found


def write_csv(path: Path, results: Sequence[CellResult], found: Sequence[Configuration]) -> None:
    """Write a row a cell and a row a configuration of several cells."""
    rows = []
    pooled = [one for one in found if len(one.cells) > 1]
    for one in [*by_cell(results, found), *pooled]:
        alone = len(one.cells) == 1
        cell = one.cells[0]
        rows.append(
            {
                "cell": cell.id if alone else POOLED,
                "name": one.name,
                "test": one.test,
                "protocol": cell.protocol.get("hash") if alone else None,
                **{name: cell.protocol.get(name) if alone else None for name in SEEDS},
                **one.axes,
                **_flat(record_of(one)),
                "failure": "; ".join(one.failures.values()),
            }
        )
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        sink = csv.DictWriter(file, names, restval="")
        sink.writeheader()
        sink.writerows(rows)


def summary(
    out: Path,
    results: Sequence[CellResult],
    compared: Sequence[Comparison],
    precision: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return everything in plain JSON values, numbers to six digits, NaN as None."""
    configurations = [
        {"name": one.name, "test": part.test, "axes": dict(one.axes), **record_of(one),
         "front": one.name in part.front}
        for part in compared
        for one in part.found
    ]  # fmt: skip
    cells = [
        {
            "id": result.cell.id,
            "axes": dict(result.cell.axes),
            "protocol": result.cell.protocol.get("hash"),
            "n": sum(not record.presolved for record in result.records),
            "successes": sum(r.success for r in result.records if not r.presolved),
        }
        for result in results
    ]
    found: dict[str, Any] = _plain(
        {
            "folder": str(out),
            "configurations": configurations,
            "cells": cells,
            "paired": [{"test": part.test, **_pair(p)} for part in compared for p in part.pairs],
            "regret": [
                {"test": part.test, **_regret(r)} for part in compared for r in part.regrets
            ],
            "precision": list(precision),
            "failures": {r.cell.id: r.failure for r in results if r.failure},
        }
    )
    return found


def _pair(pair: Pair) -> dict[str, Any]:
    low, high = pair.paired.interval
    return {
        "first": pair.first, "second": pair.second, "n": pair.paired.count,
        "only_first": pair.paired.first_only, "only_second": pair.paired.second_only,
        "difference": pair.paired.difference, "low": low, "high": high,
        "p": pair.paired.p_value, "p_holm": pair.adjusted,
    }  # fmt: skip


def _regret(regret: Regret) -> dict[str, Any]:
    low, high = regret.paired.interval
    return {
        "name": regret.name, "ceiling": regret.ceiling, "n": regret.paired.count,
        "success": regret.paired.difference, "low": low, "high": high,
        "p": regret.paired.p_value, "final": dict(regret.distance),
    }  # fmt: skip


def _flat(record: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return a tree as one row, names joined; NaN as None."""
    row: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            row |= _flat(value, f"{before}{name} ")
        else:
            row[before + name] = _plain(value)
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
