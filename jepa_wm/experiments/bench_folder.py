"""The folder of a benchmark: made, or found again and gone on with."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jepa_wm.errors import ConfigError
from jepa_wm.experiments.bench_cells import HARMLESS, Planned
from jepa_wm.experiments.bench_records import Cell, read_cell, write_cell
from jepa_wm.experiments.report import new_folder


def open_folder(given: str | None, planned: Sequence[Planned]) -> Path:
    """Return the folder of a benchmark, every cell of it written down.

    A folder that holds the same cells is gone on with: what is done in it is kept, a line cut off
    by an interrupt and the errors of the last run are not.

    Args:
        given: The folder asked for, or None for a new one.
        planned: The cells.

    Raises:
        ConfigError: it holds something else.
    """
    folder = new_folder(None, "bench") if given is None else Path(given).expanduser()
    if folder.exists():
        _check_same(folder, planned)
    for one in planned:
        path = write_cell(one.cell, folder)
        _mend(path / "episodes.jsonl")
        (path / "failure.txt").unlink(missing_ok=True)
        (path / "traceback.txt").unlink(missing_ok=True)
    return folder


def write_failure(folder: Path, error: str, details: str = "") -> None:
    """Write the error of a cell, in one line, and what a developer wants to see."""
    (folder / "failure.txt").write_text(error + "\n", encoding="utf-8")
    if details:
        (folder / "traceback.txt").write_text(details, encoding="utf-8")


def _check_same(folder: Path, planned: Sequence[Planned]) -> None:
    """Refuse a folder in which other cells lie, or none at all but other things."""
    if not folder.is_dir():
        raise ConfigError(f"out={folder} is a file; give a folder")
    found = {path.parent.name: read_cell(path) for path in folder.glob("cells/*/cell.json")}
    if not found:
        if any(folder.iterdir()):
            raise ConfigError(f"out={folder} holds something else; give a new or an empty folder")
        return
    ours = {one.cell.id: one.cell for one in planned}
    if ours.keys() == found.keys():
        return
    raise ConfigError(
        f"out={folder} holds a benchmark of other settings ({_difference(found, ours)}); give "
        "another folder, or those settings to go on with it"
    )


def _difference(theirs: Mapping[str, Cell], ours: Mapping[str, Cell]) -> str:
    """Say what differs first: the cells there are, or a value of those with the same axes."""
    if len(theirs) != len(ours):
        return f"{len(theirs)} cells there, {len(ours)} here"
    for cell in ours.values():
        twins = [other for other in theirs.values() if other.axes == cell.axes]
        for told in _differences(_told(twins[0]), _told(cell)) if twins else ():
            return told
    return "other cells, or in another order"


def _told(cell: Cell) -> dict[str, Any]:
    """What a cell's id depends on, as one tree."""
    options = {k: v for k, v in cell.options.items() if k not in (*HARMLESS, "model")}
    return {
        **options,
        "model": cell.model.get("sha256"),
        "protocol's hash": cell.protocol["hash"],
        "version": dict(cell.versions),
    }


def _differences(theirs: Mapping[str, Any], ours: Mapping[str, Any], at: str = "") -> Iterator[str]:
    for key in sorted({*theirs, *ours}):
        one, other = theirs.get(key), ours.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            yield from _differences(one, other, f"{at}{key}.")
        elif one != other:
            yield f"{at}{key}={one} there, {other} here"


def _mend(path: Path) -> None:
    """Cut off a last line that an interrupt left without its end."""
    if not path.is_file():
        return
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
