"""Find how many threads are fastest here, whether they change a bit, and if processes are better.

Run: ``python benchmarks/threads.py [--most 2] [--rounds 7] [--episodes 20] [--quick]``. Three
parts, with 1 to ``--most`` threads (default: every core this process may use): one solve of the
bundled model with the default planner and one of a full-size LeWM, alternating in one process;
``python -m jepa_wm.plan`` as it stands, in processes of its own; and as many processes side by
side as the cores allow, each solving on its own. Plans and episodes are compared bit by bit with
those of one thread. The last line is one JSON object.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lewm_contenders import CPU, ours, random_frames
from lewm_models import Sizes, random_bundle
from timing import alternate, machine, positive, summary

from jepa_wm.bundle.reader import find_bundle
from jepa_wm.control.episode import load_episode
from jepa_wm.control.interfaces import Plan
from jepa_wm.launch import preset
from jepa_wm.models import load_world_model
from jepa_wm.runtime import command, resolve_dtype

BUNDLED = "lewm.gguf"
SOLVES = 20  # of every process of those side by side


def make_solve(path: Path, iterations: int) -> Callable[[int], Plan]:
    """Return seed -> plan, by the default planner with so many iterations."""
    model = load_world_model(path, CPU, resolve_dtype("auto", CPU))
    solve = ours("", model, random_frames(224), preset("planner", "cem")).solve
    return lambda seed: solve(iterations, seed)


def with_threads(count: int, solve: Callable[[int], Plan], seed: int) -> Plan:
    """Solve with so many threads."""
    torch.set_num_threads(count)
    return solve(seed)


def time_solves(path: Path, iterations: int, counts: Sequence[int], rounds: int) -> dict[str, Any]:
    """Time one solve with each number of threads, in turn: count -> figures."""
    solve = make_solve(path, iterations)
    timings = alternate([partial(with_threads, count, solve) for count in counts], rounds)
    found = {}
    for column, count in enumerate(counts):
        same = all(
            torch.equal(plans[0].actions, plans[column].actions) for plans in timings.results
        )
        found[str(count)] = summary(timings, column) | {"same_bits": same}
    return found


def time_command(counts: Sequence[int], episodes: int) -> dict[str, Any]:
    """Time the plan command with each number of threads: count -> figures."""
    found, first = {}, None
    options = [f"episodes={episodes}", "baselines=false", "video=none", "output=json"]
    for count in counts:
        with tempfile.TemporaryDirectory() as folder:
            wanted = [*options, f"threads={count}", f"out={folder}/out"]
            began = time.perf_counter()
            run = subprocess.run(
                [sys.executable, "-m", "jepa_wm.plan", *wanted],
                cwd=folder, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if run.returncode:
                raise SystemExit(f"jepa_wm.plan: {run.stderr.strip().splitlines()[-1]}")
            seconds = time.perf_counter() - began
            paths = sorted(Path(folder).glob("out/episodes/*.npz"))
            done = [load_episode(path).actions for path in paths]
        first = first or done
        same = len(first) == len(done) and all(map(np.array_equal, first, done))
        found[str(count)] = {"seconds": seconds, "same_bits": same}
    return found


def time_side_by_side(processes: int, threads: int, solves: int) -> float:
    """Return the solves a second of processes that start together, of so many threads each."""
    child = [sys.executable, __file__, "--child", str(threads), "--solves", str(solves)]
    running = [
        subprocess.Popen(child, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    try:
        answers = []
        for word in ("ready", "seconds"):  # all are ready before the first goes
            answers = [(one.stdout or sys.stdin).readline().split() for one in running]
            if any(answer[:1] != [word] for answer in answers):
                raise SystemExit(f"threads.py --child {threads}: {word} expected, got {answers}")
            for one in running if word == "ready" else ():
                print("go", file=one.stdin, flush=True)
        return processes * solves / max(float(answer[1]) for answer in answers)
    finally:
        for one in running:
            one.kill()
            one.communicate()


def serve(threads: int, solves: int) -> None:
    """Be one of the processes side by side."""
    torch.set_num_threads(threads)
    solve = make_solve(find_bundle(BUNDLED), preset("planner", "cem").iterations)
    solve(0)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    for seed in range(solves):
        solve(seed)
    print("seconds", time.perf_counter() - began)


def measure(args: argparse.Namespace, most: int) -> dict[str, Any]:
    """Run all parts, printing as they come."""
    counts, iterations = range(1, most + 1), preset("planner", "cem").iterations
    found: dict[str, Any] = {"solves": {}, "command": {}, "side_by_side": {}}
    given = (find_bundle(BUNDLED), 2 if args.quick else iterations, counts, args.rounds)
    found["solves"][BUNDLED] = report(f"one solve of {BUNDLED}", time_solves(*given))
    if not args.quick:
        with tempfile.TemporaryDirectory() as folder:
            path = random_bundle(Path(folder) / "random.gguf", Sizes())
            full = time_solves(path, iterations, counts, args.rounds)
        found["solves"]["full-size LeWM"] = report("one solve of a full-size LeWM", full)
    if args.episodes:
        title = f"jepa_wm.plan, {args.episodes} episodes"
        found["command"] = report(title, time_command(counts, args.episodes))
    print("\nprocesses x threads, solves a second")
    for threads in (n for n in counts if most % n == 0):
        name = f"{most // threads} x {threads}"
        rate = time_side_by_side(most // threads, threads, 2 if args.quick else SOLVES)
        found["side_by_side"][name] = rate
        print(f"{name:<10}{rate:>8.2f}", flush=True)
    return found


def report(title: str, found: dict[str, Any]) -> dict[str, Any]:
    """Print a table of threads and return it."""
    print(f"\n{title}\n{'threads':<10}{'seconds':>10}{'cpu s':>10}  bits of one thread")
    for count, row in found.items():
        seconds, cpu = row.get("median", row.get("seconds")), row.get("cpu", float("nan"))
        print(f"{count:<10}{seconds:>10.3f}{cpu:>10.3f}  {'same' if row['same_bits'] else 'OTHER'}")
    return found


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, and the JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--most", type=positive, default=cores or 1, help="threads (default all)")
    parser.add_argument("--rounds", type=positive, default=7, help="timed rounds (default 7)")
    parser.add_argument("--episodes", type=int, default=20, help="of the command; 0: leave it out")
    parser.add_argument("--quick", action="store_true", help="tiny solves: does it run?")
    parser.add_argument("--child", type=positive, help=argparse.SUPPRESS)
    parser.add_argument("--solves", type=positive, default=SOLVES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child is not None:
        serve(args.child, args.solves)
        return {}
    if args.quick:
        args.rounds, args.episodes = 1, min(args.episodes, 1)
    before = torch.get_num_threads()
    try:
        found = measure(args, args.most)
    finally:
        torch.set_num_threads(before)
    document = {"machine": machine(args.most), "rounds": args.rounds, **found}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
