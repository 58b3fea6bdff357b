"""The report of a benchmark's folder: tables, CSV, figures, films, Markdown, HTML, one JSON object.

Everything is made from what the folder holds; nothing is run.
"""

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jepa_wm.errors import ConfigError
from jepa_wm.experiments.bench_export import summary, write_csv
from jepa_wm.experiments.bench_figures import save_figures
from jepa_wm.experiments.bench_films import save_films
from jepa_wm.experiments.bench_pages import Page, Section, html_page, markdown
from jepa_wm.experiments.bench_pairs import Comparison, comparisons
from jepa_wm.experiments.bench_records import CellResult, read_results
from jepa_wm.experiments.bench_summary import Configuration, configurations
from jepa_wm.experiments.bench_tables import (
    distance_table,
    first_table,
    pairs_table,
    protocol_table,
    ranking_table,
    regret_table,
    rounding_table,
    success_table,
    work_table,
)
from jepa_wm.experiments.text_table import SCREEN, Table, printable

TITLE = "Planner benchmark"


def write_report(out: Path) -> dict[str, Any]:
    """Write ``bench.csv``, ``bench.json``, ``report.md``, ``report.html``, ``figures/``; print.

    Args:
        out: Folder of a benchmark, complete or not.

    Returns:
        The summary as plain JSON values.

    Raises:
        ConfigError: the folder holds no benchmark, or something in it is broken.
    """
    results = read_results(out)
    if not results:
        raise ConfigError(f"{out} holds no benchmark: cells/*/cell.json is missing")
    found = configurations(results)
    compared = comparisons(found)
    precision = _read_precision(out / "precision.json")
    ranking = ranking_table(precision)
    page = Page(
        title=TITLE,
        facts=_facts(results, found),
        failures={r.cell.id: r.failure for r in results if r.failure},
        sections=[
            _section(out, one, f"-{number}" if len(compared) > 1 else "", results)
            for number, one in enumerate(compared, start=1)
        ],
        tables=[ranking],
    )
    told = summary(out, results, compared, precision)
    write_csv(out / "bench.csv", results, found)
    (out / "bench.json").write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    (out / "report.md").write_text(markdown(page, out), encoding="utf-8")
    (out / "report.html").write_text(html_page(page), encoding="utf-8")
    print("\n".join(_screen(compared, ranking, page.failures)))
    print(f"results   {out}\nreport    {out / 'report.html'}")
    return told


def _section(out: Path, one: Comparison, suffix: str, results: Sequence[CellResult]) -> Section:
    tables = [
        success_table(one),
        first_table(one),
        pairs_table(one),
        regret_table(one),
        distance_table(one),
        work_table(one),
        rounding_table(one),
        protocol_table(one),
    ]
    pictures = save_figures(out / "figures", one, suffix)
    return Section(one.test, tables, pictures, save_films(results, one.found))


def _screen(
    compared: Sequence[Comparison], ranking: Table, failures: Mapping[str, str]
) -> list[str]:
    """Return what is worth a look at once; the pages say the rest."""
    blocks = []
    for one in compared:
        tables = [success_table(one), first_table(one), regret_table(one)]
        blocks += [
            printable(one.test),
            *(table.text() for table in tables if table.rows or table.note),
        ]
    blocks += [ranking.text()] if ranking.rows else []
    if failures:
        lines = [printable(f"failed    {cell}: {error}") for cell, error in failures.items()]
        folded = [textwrap.fill(line, SCREEN, subsequent_indent=" " * 10) for line in lines]
        blocks.append("\n".join(folded))
    return [f"\n{block}" for block in blocks] + [""]


def _read_precision(path: Path) -> list[dict[str, Any]]:
    """Read the rows of ``precision.json``, none where there is no such file.

    Raises:
        ConfigError: they are no such rows.
    """
    if not path.is_file():
        return []
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        ranking_table(rows)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} holds no rows of precision: {error!r}") from error
    return rows


def _facts(results: Sequence[CellResult], found: Sequence[Configuration]) -> dict[str, list[str]]:
    """Return what ran, and on what."""
    cells = [result.cell for result in results]
    models = (
        f"{cell.model['name']} ({cell.model.get('family', 'no family')}), sha256 "
        f"{cell.model.get('sha256', 'none')}"
        for cell in cells
        if cell.model.get("name")
    )
    presets = (
        f"{cell.preset.get('name')}, settings {str(cell.preset['settings'])[:16]}"
        for cell in cells
        if cell.preset.get("settings")
    )
    workers = {record.worker for one in found for record in one.episodes.values()}
    hosts = {worker.partition(":")[0] for worker in workers}
    facts: dict[str, Iterable[str]] = {
        "models": models,
        "planners": presets,
        "machine": (_words(cell.machine) for cell in cells),
        "workers": [f"{len(workers)} process(es) on {len(hosts)} machine(s)"] if workers else [],
        "versions": (_words(cell.versions) for cell in cells),
    }
    unique = {name: list(dict.fromkeys(told)) for name, told in facts.items()}
    return {name: told for name, told in unique.items() if told}


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
