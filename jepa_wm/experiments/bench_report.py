"""The report of a benchmark's folder: tables, CSV, figures, films, Markdown, HTML, one JSON object.

Everything is made from what the folder holds; nothing is run.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from jepa_wm.control.episode import load_episode
from jepa_wm.control.statistics import Measure
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.bench_pages import Page, Picture, html_page, markdown
from jepa_wm.experiments.bench_records import CellResult, read_results
from jepa_wm.experiments.bench_summary import (
    Configuration,
    configurations,
    front,
    pairs,
    record_of,
    regrets,
)
from jepa_wm.experiments.bench_tables import (
    distance_table,
    pairs_table,
    regret_table,
    rounding_table,
    success_table,
    time_table,
    write_csv,
)
from jepa_wm.viz import bench as draw
from jepa_wm.viz.frames import Film, film_frames
from jepa_wm.viz.video import require_video, write_video

TITLE = "Planner benchmark"
MOST_FILMS = 24


def write_report(out: Path) -> dict[str, Any]:
    """Write ``bench.csv``, ``report.md``, ``report.html`` and ``figures/``; print the tables.

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
    best = front(found, lambda one: one.plan_seconds_per_decision)
    compared, below = pairs(found), regrets(found)
    precision = _read_precision(out)
    tables = [
        success_table(found, best),
        pairs_table(compared),
        regret_table(below),
        distance_table(found),
        time_table(found),
        rounding_table(found, precision),
    ]
    shown = [table for table in tables if table.rows or table.note]
    failures = {r.cell.id: r.failure for r in results if r.failure}
    page = Page(
        title=TITLE,
        facts=_facts(results, found),
        tables=[table for table in shown if table.rows or table is tables[2]],
        pictures=_save_figures(out, found),
        films=_save_films(out, results),
        failures=failures,
    )
    write_csv(out / "bench.csv", results, found)
    (out / "report.md").write_text(markdown(page, out), encoding="utf-8")
    (out / "report.html").write_text(html_page(page), encoding="utf-8")
    print()
    print("\n\n".join(table.text() for table in page.tables))
    print(f"\nresults   {out}\nreport    {out / 'report.html'}")
    return {
        "folder": str(out),
        "configurations": [record_of(one) | {"front": one.name in best} for one in found],
        "paired": [
            {
                "first": pair.first,
                "second": pair.second,
                "difference": pair.paired.difference,
                "only_first": pair.paired.first_only,
                "only_second": pair.paired.second_only,
                "n": pair.paired.count,
                "p": pair.paired.p_value,
            }
            for pair in compared
        ],
        "regret": [
            {"name": one.name, "success": one.paired.difference, "n": one.paired.count,
             "distance": dict(one.distance)}
            for one in below
        ],
        "precision": precision,
        "protocols": {
            str(r.cell.protocol.get("hash")): r.cell.protocol.get("criterion") for r in results
        },
        "failures": failures,
    }  # fmt: skip


def _read_precision(out: Path) -> list[dict[str, Any]]:
    path = out / "precision.json"
    if not path.is_file():
        return []
    try:
        rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    return rows


def _facts(results: Sequence[CellResult], found: Sequence[Configuration]) -> dict[str, str]:
    """Return what the numbers hold for."""
    tests = list(dict.fromkeys(one.test for one in found))
    labels = [
        f"{r.cell.protocol.get('label')} (seed {r.cell.protocol.get('seed')}, planner seed "
        f"{r.cell.protocol.get('planner_seed')}): {str(r.cell.protocol.get('hash'))[:12]}"
        for r in results
    ]
    models = [
        f"{r.cell.model['name']} ({str(r.cell.model.get('sha256', ''))[:12] or 'no file'})"
        for r in results
        if r.cell.model.get("name")
    ]
    settings = [
        f"{r.cell.preset.get('name')}: {str(r.cell.preset.get('hash'))[:12]}"
        for r in results
        if r.cell.preset.get("name")
    ]
    facts = {
        "tests": "; ".join(tests),
        "protocols": "; ".join(dict.fromkeys(labels)),
        "models": "; ".join(dict.fromkeys(models)),
        "planners": "; ".join(dict.fromkeys(settings)),
        "machine": "; ".join(dict.fromkeys(_words(r.cell.machine) for r in results)),
        "versions": "; ".join(dict.fromkeys(_words(r.cell.versions) for r in results)),
    }
    return {name: text for name, text in facts.items() if text}


def _words(values: Any) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _save_figures(out: Path, found: Sequence[Configuration]) -> list[Picture]:
    """Draw and save every figure there are numbers for, one set a test."""
    folder = out / "figures"
    folder.mkdir(exist_ok=True)
    tests = list(dict.fromkeys(one.test for one in found if one.count))
    pictures = []
    for number, test in enumerate(tests):
        mine = [one for one in found if one.test == test and one.count]
        suffix = "" if len(tests) == 1 else f"-{number + 1}"
        about = "" if len(tests) == 1 else f" ({test.partition(':')[0]})"
        for name, (figure, caption) in _figures(mine).items():
            path = folder / f"{name}{suffix}.png"
            figure.savefig(path, dpi=150)
            figure.savefig(path.with_suffix(".svg"))
            pictures.append(Picture(path, caption + about))
    return pictures


def _figures(found: Sequence[Configuration]) -> dict[str, tuple[Figure, str]]:
    """Return the figures of one test, with captions."""
    rates = {one.name: draw.Rate(one.successes, one.count) for one in found}
    idle = {one.name for one in found if one.is_baseline}
    planners = [one for one in found if not one.is_baseline]
    figures = {"success": (draw.success_dots(rates, idle), "Success with Wilson 95 % intervals")}
    curves = {one.name: (*one.success_by_step(), one.count) for one in planners}
    if curves:
        figures["budget"] = (
            draw.success_over_steps(curves), "Success against the budget of environment steps",
        )  # fmt: skip
    seconds = {one.name: one.plan_seconds_per_decision for one in planners}
    scored = {one.name: one.evaluations_per_decision for one in planners}
    prices = {
        "time": ("planning seconds a solve", seconds),
        "evaluations": ("candidates a solve", scored),
    }
    own = {p.name: rates[p.name] for p in planners}
    for name, (unit, price) in prices.items():
        first = front(planners, lambda one, price=price: price[one.name])  # type: ignore[misc]
        if any(value > 0 for value in price.values()):
            figure = draw.success_against_price(own, price, first, unit)
            figures[f"front-{name}"] = figure, f"Success against {unit}; stars: the Pareto front"
    compared = {(pair.first, pair.second): pair.paired for pair in pairs(found)}
    if compared:
        figures["pairs"] = (
            draw.paired_matrix([p.name for p in planners], compared), "Paired by episode",
        )  # fmt: skip
    for label in dict.fromkeys(label for one in found for label in one.measures):
        finals = {
            one.name: np.array([r.final[label] for r in one.episodes.values() if label in r.final])
            for one in found
        }
        unit = _unit(found, label)
        figures[f"final-{label.replace(' ', '-').replace('/', '-')}"] = (
            draw.final_distances({k: v for k, v in finals.items() if len(v)}, label, unit),
            f"Where episodes end: {label}",
        )
    figures["seconds"] = (
        draw.time_split({one.name: one.seconds for one in found}), "Where an episode's time goes",
    )  # fmt: skip
    return figures


def _unit(found: Sequence[Configuration], label: str) -> str:
    measures = [
        m for one in found for m in one.cells[0].options.get("task", {}).get("measures", [])
    ]
    return next((str(m["unit"]) for m in measures if m.get("label") == label), "")


def _save_films(out: Path, results: Sequence[CellResult]) -> list[Picture]:
    """Write a film of every episode that was filmed."""
    kind = "mp4"
    try:
        require_video(kind)
    except ConfigError:
        kind = "gif"
    films: list[Picture] = []
    for result in results:
        for path in sorted(result.folder.glob("episodes/*.npz")):
            if len(films) == MOST_FILMS:
                return films
            episode = load_episode(path)
            target = path.with_suffix(f".{kind}")
            if not target.exists():
                task = result.cell.options["task"]
                measures = tuple(Measure(**measure) for measure in task["measures"][:3])
                frames = film_frames([episode], Film(measures=measures))
                write_video(target, frames, float(task["fps"]))
            ended = "success" if episode.success else "failure"
            films.append(Picture(target, f"{result.cell.id}, episode {episode.id}: {ended}"))
    return films
