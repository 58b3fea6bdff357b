"""Write the README's table of speed and memory from ``results.json``.

Run: ``python benchmarks/performance_table.py [--check]``. ``all.py`` runs it after measuring. A
ratio is by the clock, within rounds, lowest and highest behind it; then by processor seconds, which
other work on the machine disturbs less. ``--check`` prints the table only.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marks import put
from performance_rows import ROWS, NotMeasuredError, Reading, Row, seconds

from jepa_wm.runtime import command

FOLDER = Path(__file__).parent
RESULTS, README = FOLDER / "results.json", FOLDER.parent / "README.md"
MARKS = (
    "<!-- performance: written by benchmarks/performance_table.py -->\n",
    "<!-- /performance -->\n",
)
HEAD = (
    "| what | peer in the same run | ours | times as fast (range); by cpu | floor | aim |\n"
    "|---|---|---|---|---|---|\n"
)
AMX = "amx_bf16"


def reaches(wanted: str, value: float) -> bool:
    """Say whether a value is at least ``1.5x``, at most ``0.7 s``, or a share ``within`` one."""
    if wanted == "within":
        return value <= 1
    number = float(wanted.removesuffix("x").split()[0])
    return value >= number if wanted.endswith("x") else value <= number


def asked(wanted: str, value: float, word: str) -> str:
    """Write what was wanted and, in ``word``, that it was not reached."""
    return wanted if not wanted or reaches(wanted, value) else f"{wanted}, **{word}**"


def times(reading: Reading) -> str:
    """Write a ratio with its range."""
    if reading.ratio is None:
        return ""
    median, low, high, cpu = (reading.ratio[key] for key in ("median", "low", "high", "cpu"))
    return f"{median:.2f}x ({low:.2f}-{high:.2f}); {cpu:.2f}x"


def line(row: Row, results: Mapping[str, Any]) -> str:
    """Write a row, or why there is no figure."""
    try:
        if row.script not in results:
            raise NotMeasuredError(row.missing)
        reading = row.read(results[row.script]["figures"])
    except (NotMeasuredError, LookupError) as why:  # figures of another version lack a key
        told = why if isinstance(why, NotMeasuredError) else f"not measured (no {why})"
        cells = [row.what, row.peer, str(told), "", row.floor, row.aim]
    else:
        floor = asked(row.floor, reading.value, "missed")
        aim = asked(row.aim, reading.value, "short")
        peer = f"{row.peer}: {reading.theirs}" if reading.theirs else row.peer
        cells = [row.what, peer, reading.ours, times(reading), floor, aim]
    return "| " + " | ".join(cells) + " |\n"


def measured_on(results: Mapping[str, Any]) -> str:
    """Write on what machine, with which versions, and when the scripts were run."""
    groups: dict[str, list[str]] = {}
    for name, result in results.items():
        about = result["figures"]["machine"]
        amx = "" if AMX in about["flags"] else ", no AMX"
        kept = {"torch", "stable-worldmodel", "gym-pusht", "transformers"}
        found = ", ".join(f"{k} {v}" for k, v in about["versions"].items() if k in kept)
        threads = "one thread" if about["threads"] == 1 else f"{about['threads']} threads"
        day, load = result["date"][:10], f"{result['load']:.1f}"
        key = f"{about['cpu']}{amx}, {threads}; {found}; commit {result['commit']}, {day}"
        groups.setdefault(key, []).append(f"{name} ({load})")
    lines = [f"{key}: {', '.join(names)}" for key, names in groups.items()]
    return "\nMeasured on, in brackets the load of the machine before:\n\n" + "".join(
        f"* {one}\n" for one in lines
    )


def threads_line(results: Mapping[str, Any]) -> str:
    """Write what more threads bring, or nothing where that was not measured."""
    if "threads" not in results:
        return ""
    found = results["threads"]["figures"]
    told, same = [], True
    for what, rows in (*found["solves"].items(), ("`jepa_wm.plan`", found["command"])):
        values = (row.get("median", row.get("seconds")) for row in rows.values())
        same &= all(row["same_bits"] for row in rows.values())
        if rows:
            told.append(f"{what} " + " / ".join(map(seconds, values)))
    counts = " / ".join(next(iter(found["solves"].values())))
    bits = "the same bits with each" if same else "**not** the same bits with each"
    rates = ", ".join(f"{name}: {rate:.1f}" for name, rate in found["side_by_side"].items())
    return (
        f"\nWith {counts} threads: {'; '.join(told)}; {bits}. Solves a second of the bundled "
        f"model, processes x threads side by side: {rates}.\n"
    )


def table(results: Mapping[str, Any]) -> str:
    """Return everything between the marks, in Markdown."""
    rows = "".join(line(row, results) for row in ROWS)
    about = measured_on(results) if results else "\nNothing was measured yet.\n"
    return HEAD + rows + threads_line(results) + about


def load(path: Path) -> dict[str, Any]:
    """Return the results by script; none where there is no file yet."""
    found: dict[str, Any] = json.loads(path.read_text())["scripts"] if path.exists() else {}
    return found


def check(readme: Path) -> None:
    """Refuse a README that is not there or has no place for the table."""
    try:
        put(readme.read_text(), "", MARKS)
    except OSError as error:
        raise SystemExit(f"error: {error}") from error


def write(results: Mapping[str, Any], readme: Path = README) -> None:
    """Put the table into the README."""
    readme.write_text(put(readme.read_text(), table(results), MARKS))


def main(argv: Sequence[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--readme", type=Path, default=README)
    parser.add_argument("--check", action="store_true", help="print the table, write nothing")
    args = parser.parse_args(argv)
    results = load(args.results)
    print(table(results))
    if not args.check:
        write(results, args.readme)


if __name__ == "__main__":
    command(main)
