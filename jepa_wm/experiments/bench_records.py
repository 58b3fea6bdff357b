"""What a benchmark keeps: its cells, one line an episode, and where they lie on disk.

``<out>/cells/<cell id>/cell.json`` holds a ``Cell``, ``episodes.jsonl`` beside it one
``EpisodeRecord`` a line (whoever ran it, in any order), ``failure.txt`` the last error of a cell
that failed, ``episodes/`` the full records of the filmed ones. Reports read nothing else, so a
figure can be made again without running anything.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from jepa_wm.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination of the benchmark: everything that decides its episodes.

    Attributes:
        id: Name of its folder: readable names and a hash of ``options`` and ``protocol``.
        axes: What is crossed and differs between cells, e.g. ``{"model": "lewm.gguf", "planner":
            "cem", "seed": "0"}``; the texts given on the command line.
        options: The composed plain options of ``conf/plan.yaml``.
        protocol: The protocol's record: name, version, hash, criterion, the hash of its episodes.
        model: What is known of the model: name, family, sha256.
        preset: The planner's preset and the hash of its settings.
        versions: Of the packages.
        machine: Platform, processor, threads of a worker, device, dtype.
    """

    id: str
    axes: Mapping[str, str]
    options: Mapping[str, Any]
    protocol: Mapping[str, Any]
    model: Mapping[str, Any]
    preset: Mapping[str, Any]
    versions: Mapping[str, str]
    machine: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """One episode of a cell in plain numbers; all but the times are the same wherever it ran.

    Attributes:
        id: The task's id in the protocol's list.
        seed: Its seed.
        success: Whether the criterion was met after the start.
        presolved: Whether the start already met it; such an episode is in no rate.
        steps: Environment steps done.
        success_step: Environment step of success, or None.
        decisions: Solves.
        evaluations: Candidates scored over all solves.
        final: Every measure at the end, by label, in the measure's unit.
        mean_cost: Cost of the planner's last mean, per solve.
        best_cost: Cost of the best candidate ever scored, per solve.
        mean_cost_fp32: ``mean_cost`` of the same plans computed anew in float32, per solve.
        best_cost_fp32: Likewise.
        seconds: Wall seconds of this episode: ``encode``, ``plan``, ``environment``, ``render``; a
            batch's time is shared equally by the rows that were in it.
        worker: Who ran it: process, host.
        peak_memory: Largest resident memory of that process so far, bytes.
    """

    id: int
    seed: int
    success: bool
    presolved: bool
    steps: int
    success_step: int | None
    decisions: int
    evaluations: int
    final: Mapping[str, float]
    mean_cost: Sequence[float] = ()
    best_cost: Sequence[float] = ()
    mean_cost_fp32: Sequence[float] = ()
    best_cost_fp32: Sequence[float] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    worker: str = ""
    peak_memory: int = 0


@dataclass(frozen=True, kw_only=True)
class CellResult:
    """A cell with what it has so far.

    Attributes:
        cell: The combination.
        records: Its episodes, by id.
        failure: The error of its last run, one line, or None.
        folder: Where it lies.
    """

    cell: Cell
    records: Sequence[EpisodeRecord]
    failure: str | None
    folder: Path


CELL = {
    "id": str, "axes": dict, "options": dict, "protocol": dict, "model": dict, "preset": dict,
    "versions": dict, "machine": dict,
}  # fmt: skip
RECORD = {
    "id": int, "success": bool, "presolved": bool, "steps": int, "decisions": int,
    "evaluations": int, "final": dict, "seconds": dict, "mean_cost": list, "best_cost": list,
    "mean_cost_fp32": list, "best_cost_fp32": list, "peak_memory": int,
}  # fmt: skip
T = TypeVar("T")


def write_cell(cell: Cell, out: Path) -> Path:
    """Write ``cell.json`` of a cell; return its folder."""
    folder = out / "cells" / cell.id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cell.json").write_text(json.dumps(asdict(cell), indent=1, default=str) + "\n")
    return folder


def read_cell(path: Path) -> Cell:
    """Read a ``cell.json``.

    Raises:
        ConfigError: it is none.
    """
    try:
        return _checked(Cell(**json.loads(path.read_text(encoding="utf-8"))), CELL)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} is no cell of a benchmark: {error}") from error


def append_record(folder: Path, record: EpisodeRecord) -> None:
    """Add one episode to a cell, in one write."""
    with (folder / "episodes.jsonl").open("a", encoding="utf-8") as sink:
        sink.write(json.dumps(asdict(record)) + "\n")


def read_records(folder: Path) -> list[EpisodeRecord]:
    """Read the episodes of a cell, by id; a last line cut off by an interrupt is left out.

    Raises:
        ConfigError: another line is no record.
    """
    path = folder / "episodes.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    found: dict[int, EpisodeRecord] = {}
    for number, line in enumerate(lines, start=1):
        try:
            record = _checked(EpisodeRecord(**json.loads(line)), RECORD)
        except (ValueError, TypeError) as error:
            if number == len(lines) and not line.endswith("\n"):
                break
            raise ConfigError(f"{path} line {number} is no episode: {error}") from error
        found[record.id] = record
    return [found[index] for index in sorted(found)]


def read_results(out: Path) -> list[CellResult]:
    """Read every cell of a benchmark's folder, in the order of their ids."""
    results = []
    for path in sorted(out.glob("cells/*/cell.json")):
        failure = path.with_name("failure.txt")
        cell = read_cell(path)
        text = failure.read_text(encoding="utf-8").strip() if failure.is_file() else None
        results.append(
            CellResult(
                cell=cell, records=read_records(path.parent), failure=text, folder=path.parent
            )
        )
    return results


def _checked(value: T, kinds: Mapping[str, type]) -> T:
    """Return what was read if its fields are of their kinds.

    Raises:
        TypeError: one is not.
    """
    for name, kind in kinds.items():
        if type(getattr(value, name)) is not kind:
            raise TypeError(f"{name}={getattr(value, name)!r} must be of kind {kind.__name__}")
    return value
