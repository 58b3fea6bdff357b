"""Compare models, planners and environments on the same episodes.

Run: ``python -m jepa_wm.bench model=lewm.gguf planner=cem,icem,mppi env=pusht seed=0,1``: commas
cross. Every option is one of ``python -m jepa_wm.plan``, or in ``conf/bench.yaml``. Prints a table
and, as the last line, one JSON object; the folder holds every episode's record and the report.
``cost=true`` runs no episode: it counts and times one decision of every combination.
``report=FOLDER`` makes a report anew.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jepa_wm.errors import ConfigError, JepaError
from jepa_wm.launch import compose, launch
from jepa_wm.runtime import command

HELP = ("--help", "-h")
NOT_OURS = ("film", "output")  # of plan.yaml


def split_words(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return bench's own options and the words left for ``conf/plan.yaml``.

    Raises:
        ConfigError: a word is no override, or an option is misspelt.
    """
    names = compose("bench", [])[0]
    own: list[str] = []
    rest: list[str] = []
    for word in words:
        key = word.partition("=")[0].lstrip("+~")
        if word.startswith("-"):
            raise ConfigError(f"{word}: bench has options NAME=VALUE only; commas cross without -m")
        if key in NOT_OURS:
            raise ConfigError(f"{word}: bench has no {key}; video=true films what is worth it")
        (own if key in names else rest).append(word)
    return compose("bench", own)[0], rest


def report(out: Path) -> dict[str, Any]:
    """Write a folder's report; print its table and its JSON line.

    Raises:
        ConfigError: the folder holds no benchmark.
    """
    from jepa_wm.experiments.bench_report import write_report

    found = write_report(out)
    print(json.dumps(found))
    return found


def main() -> None:
    """Run what the command line says, then report."""
    # workers import this module, and none of that
    from jepa_wm.experiments.bench import check_settings, run_bench
    from jepa_wm.experiments.bench_costs import price_all

    settings, words = split_words(sys.argv[1:])
    if settings["report"] is not None:
        report(Path(settings["report"]).expanduser())
        return
    check_settings(settings)
    if settings["cost"]:
        print(json.dumps({"costs": price_all(words, settings)}))
        return
    bench = run_bench(words, settings)
    report(bench.out)
    if bench.failures:
        name, error = next(iter(bench.failures.items()))
        count = f"{len(bench.failures)} of {len(bench.planned)} cells failed"
        raise JepaError(f"{count}; {name}: {error}")


if __name__ == "__main__":
    if set(HELP) & {*sys.argv[1:]}:
        sys.argv[1:] = [HELP[0]]
        launch(lambda options: None, "bench")
    else:
        command(main)
