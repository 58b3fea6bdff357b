"""Run the benchmarks, each in a process of its own, and write the README's performance table.

Run: ``python benchmarks/all.py [--threads 2] [--only NAME ...] [--peers PYTHON] [--vjepa2
CHECKOUT] [--quick]``. Use a quiet machine. Every script's figures, the JSON object of its last
line, go into ``results.json`` as soon as it is done, beside those of scripts not run this time, and
the table is written anew. A script that fails is reported and the others go on; Ctrl-C keeps what
is done. ``--quick`` finds out whether they run: its figures mean nothing and are not kept, unless
``--results`` says where.
"""

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from performance_table import FOLDER, README, RESULTS, check, load, table, write
from timing import positive

from jepa_wm.runtime import command

ROOT = FOLDER.parent
SCHEMA = 1
SOURCES = ("jepa_wm", "envs", "conf", "benchmarks")


@dataclass(frozen=True)
class Job:
    """A script with its options.

    Attributes:
        name: Of its result.
        script: File, relative to this folder.
        options: Its options.
        quick: More, which make it short.
        takes: Which of ``threads``, ``vjepa2`` it takes too.
        needs_cuda: Whether it is left out without a CUDA device.
    """

    name: str
    script: str
    options: tuple[str, ...] = ()
    quick: tuple[str, ...] = ("--quick",)
    takes: tuple[str, ...] = ("threads",)
    needs_cuda: bool = False


JOBS = (
    Job("pusht_env", "pusht_env.py", takes=()),
    Job("first_plan", "first_plan.py"),
    Job("lewm_bundle", "lewm_solve.py", ("--model", "lewm.gguf")),
    Job("loading", "loading.py", quick=("--gigabytes", "0.03")),
    Job("encoders", "encoders.py"),
    Job("levjepa_attention", "levjepa_attention.py"),
    Job("ac_rollout", "ac_rollout.py", takes=("threads", "vjepa2")),
    Job("ac_memory", "ac_memory.py"),
    Job("low_precision", "low_precision.py"),
    Job("threads", "threads.py", ("--episodes=5",), takes=()),
    Job("schedules", "schedules.py"),
    Job("lewm_solve", "lewm_solve.py", ("--rounds=4",)),
    Job("lewm_batch", "lewm_solve.py",
        ("--problems=8", "--rounds=2", "--iterations=5", "--sets=1"), ("--problems=2", "--quick")),
    Job("lewm_cuda", "lewm_solve.py", ("--problems=50", "--device=cuda", "--rounds=5"),
        ("--problems=2", "--quick"), needs_cuda=True),
    Job("launches", "launches.py", takes=(), needs_cuda=True),
)  # fmt: skip


class FailedError(Exception):
    """A script gave no figures; the message says why."""


def command_of(job: Job, args: argparse.Namespace) -> list[str]:
    """Return a script's command line."""
    words = [args.peers, str(FOLDER / job.script), *job.options, *(job.quick if args.quick else ())]
    for name in job.takes:
        value = getattr(args, name)
        if value is not None:
            words += [f"--{name}", str(value)]
    return words


def start(words: Sequence[str], errors: IO[str]) -> subprocess.Popen[str]:
    """Start a script, its stderr going into a file."""
    try:
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)
    except OSError as error:
        raise FailedError(str(error)) from error


def run(words: Sequence[str]) -> dict[str, Any]:
    """Run a script, showing what it prints; return the JSON object of its last line.

    Raises:
        FailedError: it failed, or its last line is no JSON object.
    """
    last = ""
    with tempfile.TemporaryFile("w+") as errors:
        process = start(words, errors)
        try:
            for line in process.stdout or ():
                last = line
                if not line.startswith("{"):
                    print(line, end="", flush=True)
            process.wait()
        finally:
            process.kill()  # on Ctrl-C; one that has ended does not mind
            process.communicate()
        errors.seek(0)
        told = errors.read().strip().splitlines()
    if process.returncode:
        raise FailedError(f"status {process.returncode}: {told[-1] if told else 'no message'}")
    try:
        found = json.loads(last)
    except json.JSONDecodeError as error:
        raise FailedError(f"its last line is no JSON: {last.strip()[:80]!r}") from error
    if not isinstance(found, dict) or "machine" not in found:
        raise FailedError("the JSON of its last line names no machine")
    return found


def commit() -> str:
    """Name the commit, with a + where its sources were changed since."""
    git = ["git", "-C", str(ROOT)]
    name = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if name.returncode:
        return "unknown"
    same = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", *SOURCES]).returncode == 0
    return name.stdout.strip() + ("" if same else "+")


def keep(path: Path, name: str, result: dict[str, Any]) -> dict[str, Any]:
    """Put a script's result beside the others in the file; return all."""
    results = load(path) | {name: result}
    text = json.dumps({"schema": SCHEMA, "scripts": dict(sorted(results.items()))}, indent=1)
    partial = path.with_suffix(".partial")
    partial.write_text(text + "\n")
    partial.replace(path)
    return results


def run_jobs(jobs: Sequence[Job], args: argparse.Namespace) -> dict[str, str]:
    """Run jobs and keep their results; return why those failed that did."""
    failed = {}
    for job in jobs:
        if job.needs_cuda and not torch.cuda.is_available():
            print(f"\n== {job.name}: left out, no CUDA device at hand", flush=True)
            continue
        words = command_of(job, args)
        shown = shlex.join([job.script, *words[2:]])
        print(f"\n== {job.name}: {shown}", flush=True)
        load_before, began = os.getloadavg()[0], time.perf_counter()
        try:
            figures = run(words)
        except FailedError as why:
            failed[job.name] = str(why)
            print(f"{job.name} FAILED, {why}", flush=True)
            continue
        result = {
            "command": shown,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "load": load_before,
            "seconds": round(time.perf_counter() - began, 1),
            "figures": figures,
        }
        if args.results is not None:
            write(keep(args.results, job.name, result), args.readme)
    return failed


def parse(argv: Sequence[str] | None, jobs: Sequence[Job]) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [job.name for job in jobs]
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", default=names,
                        help=f"of {', '.join(names)}")  # fmt: skip
    parser.add_argument("--peers", default=sys.executable, metavar="PYTHON",
                        help="of an environment with the peers (default: this one)")  # fmt: skip
    parser.add_argument("--vjepa2", type=Path, help="a checkout of facebookresearch/vjepa2")
    parser.add_argument("--quick", action="store_true", help="do they run?")
    parser.add_argument("--results", type=Path, help="(default results.json, with --quick none)")
    parser.add_argument("--readme", type=Path, default=README)
    args = parser.parse_args(argv)
    if args.results is None and not args.quick:
        args.results = RESULTS
    if args.results is not None:  # what would fail after an hour fails now
        check(args.readme)
    return args


def main(argv: Sequence[str] | None = None, jobs: Sequence[Job] = JOBS) -> dict[str, str]:
    """Run the scripts and write what they found; exit with status 1 if one failed."""
    args = parse(argv, jobs)
    failed = run_jobs([job for job in jobs if job.name in args.only], args)
    if args.results is not None:
        print("\n" + table(load(args.results)))
    if failed:
        told = "\n".join(f"{name}: {why}" for name, why in failed.items())
        raise SystemExit(f"error: {len(failed)} failed\n{told}")
    return failed


if __name__ == "__main__":
    command(main)
