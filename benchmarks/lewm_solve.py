"""Time one CEM solve of a full-size LeWM against stable-worldmodel's CEMSolver, alternating.

Run: ``python benchmarks/lewm_solve.py [--threads 2] [--problems 8] [--quick]``, or with ``--model
lewm.gguf`` for the solves of a bundle. Same weights, same process, random frames; a solve encodes
start and goal and runs 30 iterations of 300 candidates over 5 blocks. With ``--problems`` the peer
solves them as one batch (its ``batch_size``), this package problem by problem, as it does on a CPU,
where no bit of a plan may depend on the others, and all at once. The parity table gives the same
candidates to every cost function. Tables for people; the last line is one JSON object. See
README.md here for installing the peer.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lewm_contenders import CPU, Contender, ours, peer, random_frames
from lewm_models import INSTALL_PEER, Sizes, build_peer, convert_peer, random_bundle
from lewm_parity import STAGES, parity, plan_costs, report_parity
from timing import Timings, alternate, machine, positive, speedup, summary
from torch.utils.flop_counter import FlopCounterMode

from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.launch import preset
from jepa_wm.models import load_world_model
from jepa_wm.runtime import DTYPES, command, has_fast_bfloat16, resolve_device, resolve_dtype

AT_ONCE = ", at once"  # all problems in one call of the model


def contenders(args: argparse.Namespace, sizes: Sizes, folder: Path) -> list[Contender]:
    """Build what is to be timed; the first is the reference of the parity table."""
    device, planner = resolve_device(args.device), preset("planner", "lewm")
    start, goal = random_frames(sizes.image, args.problems)
    frames = start.to(device), goal.to(device)
    bf16 = args.bf16 == "yes" or (args.bf16 == "auto" and has_fast_bfloat16(device))
    dtypes = ["float32", "bfloat16"] if bf16 else ["float32"]
    found, path = [], None
    if not args.no_peer:
        try:
            models = {name: build_peer(sizes).to(device, DTYPES[name]) for name in dtypes}
            found = [peer(f"peer {n}", m, frames, planner, DTYPES[n]) for n, m in models.items()]
            path = convert_peer(models["float32"], sizes, folder)
        except ImportError as error:
            print(f"stable-worldmodel is not timed ({error}); to install it:\n  {INSTALL_PEER}")
    path = path or random_bundle(folder / "random.gguf", sizes)
    ways: dict[str, int | None] = {"": 1} if device.type == "cpu" else {"": None}
    if args.problems > 1 and device.type == "cpu":
        ways[AT_ONCE] = None
    for name in reversed(dtypes):  # ours float32 last
        model = load_world_model(path, device, DTYPES[name])
        for way in reversed(ways):
            found.append(ours(f"ours {name}{way}", model, frames, planner, ways[way]))
    return found


def count_flops(solve: Callable[[], object]) -> int:
    """Count the floating-point operations of the matrix products in a call, packed ones too."""

    def packed(x: Any, weight: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        return 2 * int(np.prod(out_shape)) * x[-1]

    mapping = {}
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        mapping[torch.ops.mkldnn._linear_pointwise] = packed
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the counter sees its own thread alone
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        solve()
    torch.set_num_threads(threads)
    return counter.get_total_flops()


def time_contenders(args: argparse.Namespace, sizes: Sizes, folder: Path) -> dict[str, Any]:
    """Run the comparison; print its tables and return everything measured."""
    entries, n = contenders(args, sizes, folder), args.iterations
    timings = alternate([partial(entry.solve, n) for entry in entries], args.rounds)
    solves = report_solves(entries, n, timings)
    ratios = report_ratios(entries, timings)
    report_splits(entries, [n] * len(entries), solves)
    agreed = parity(entries, [stage for stage in STAGES if stage <= n], args.sets)
    report_parity(entries[0].name, agreed)
    costs = plan_costs(entries, timings.results)
    print(f"\nmean cost of the plans found, scored by {entries[0].name}")
    for name, cost in costs.items():
        print(f"{name:<24}{cost:>12.4f}")
    return {"solves": solves, "ratios": ratios, "parity": agreed, "plan_costs": costs}


def report_solves(
    entries: Sequence[Contender], iterations: int, timings: Timings
) -> dict[str, dict[str, Any]]:
    """Print and return seconds and matrix-product operations of a solve."""
    solves: dict[str, dict[str, Any]] = {}
    head = ("median s", "p90 s", "cpu s", "TFLOP", "GFLOP/s")
    print(f"\n{'one solve':<24}" + "".join(f"{word:>10}" for word in head))
    for column, entry in enumerate(entries):
        once, twice = (count_flops(partial(entry.solve, n, 0)) for n in (1, 2))
        flops = once + (iterations - 1) * (twice - once)
        row: dict[str, Any] = summary(timings, column) | {"flops": flops}
        row["flops_per_second"] = flops / row["median"]
        solves[entry.name] = row
        print(
            f"{entry.name:<24}{row['median']:>10.3f}{row['p90']:>10.3f}{row['cpu']:>10.3f}"
            f"{flops / 1e12:>10.3f}{row['flops_per_second'] / 1e9:>10.1f}"
        )
    return solves


def report_ratios(entries: Sequence[Contender], timings: Timings) -> dict[str, Any]:
    """Print and return the peer's time over ours within a round: against float32, and like by like.

    A ratio's name is ``peer float32 / ours bfloat16``.
    """
    names = [entry.name for entry in entries]
    ratios: dict[str, dict[str, float]] = {}
    for j, theirs in enumerate(names):
        for i, mine in enumerate(names):
            same = theirs.removeprefix("peer ") == mine.removeprefix("ours ").removesuffix(AT_ONCE)
            if theirs.startswith("peer") and mine.startswith("ours"):
                if same or theirs == "peer float32":
                    ratios[f"{theirs} / {mine}"] = speedup(timings, i, j)
    if ratios:
        print(f"\n{'times as fast':<42}{'median':>8}{'low':>8}{'high':>8}{'by cpu':>8}")
    for name, row in ratios.items():
        print(f"{name:<42}" + "".join(f"{value:>8.2f}" for value in row.values()))
    return ratios


def report_splits(
    entries: Sequence[Contender], iterations: Sequence[int], solves: dict[str, dict[str, Any]]
) -> None:
    """Print where our seconds go and add it to ``solves``."""
    print(f"\n{'parts, s':<24}{'encode':>10}{'rollout':>10}{'update':>10}")
    for entry, count in zip(entries, iterations, strict=True):
        if entry.split is not None:
            parts = entry.split(count, 0)
            solves[entry.name]["parts"] = parts
            print(f"{entry.name:<24}" + "".join(f"{value:>10.3f}" for value in parts.values()))


def time_bundle(args: argparse.Namespace) -> dict[str, Any]:
    """Time one solve of a bundle with the default planner and with the published one."""
    bundle = Bundle.open(find_bundle(args.model))
    dtype = resolve_dtype(args.dtype, CPU)
    model = load_world_model(bundle, CPU, dtype)
    raw = torch.randint(0, 256, (2, 1, 224, 224, 3), dtype=torch.uint8)
    start, goal = model.preprocess(raw).split(1)
    planners = {name: preset("planner", name) for name in ("cem", "lewm")}
    entries = {n: ours(n, model, (start, goal), planner) for n, planner in planners.items()}
    counts = {n: min(planner.iterations, args.iterations) for n, planner in planners.items()}
    solvers = [partial(entry.solve, counts[name]) for name, entry in entries.items()]
    timings = alternate(solvers, args.rounds)
    print(f"\n{bundle.path} in {str(dtype).removeprefix('torch.')}")
    print(f"{'planner':<16}{'solve':>14}{'median s':>10}{'p90 s':>10}")
    solves: dict[str, dict[str, Any]] = {}
    for column, name in enumerate(entries):
        planner, row = planners[name], summary(timings, column)
        size = f"{planner.num_samples}x{counts[name]}x{planner.horizon}"
        solves[name] = row | {"size": size}
        print(f"{name:<16}{size:>14}{row['median']:>10.3f}{row['p90']:>10.3f}")
    report_splits(list(entries.values()), list(counts.values()), solves)
    return {"model": str(bundle.path), "dtype": str(dtype), "solves": solves}


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="time this bundle instead (a path or a bundled file)")
    parser.add_argument("--dtype", default="auto", help="of --model (default auto)")
    parser.add_argument("--bf16", default="auto", choices=["auto", "yes", "no"],
                        help="time bfloat16 (auto: where the processor multiplies it)")  # fmt: skip
    parser.add_argument("--no-peer", action="store_true", help="time this package alone")
    parser.add_argument("--problems", type=positive, default=1, help="at once (default 1)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N (default cpu)")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=positive, default=7, help="timed rounds (default 7)")
    parser.add_argument("--iterations", type=positive, default=30, help="per solve (default 30)")
    parser.add_argument("--sets", type=positive, default=3, help="parity sets a stage (default 3)")
    parser.add_argument("--quick", action="store_true", help="2 iterations, 1 round, 1 set")
    args = parser.parse_args(argv)
    if args.quick:
        args.iterations, args.rounds, args.sets = 2, 1, 1
    return args


def main(argv: Sequence[str] | None = None, sizes: Sizes | None = None) -> dict[str, Any]:
    """Measure, print the tables, and the JSON object as the last line."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    about = machine(args.threads, "stable-worldmodel", "transformers")
    print(f"{about['cpu']} ({', '.join(about['flags'])}), {args.threads} threads")
    began = time.perf_counter()
    if args.model is None:
        with tempfile.TemporaryDirectory() as folder:
            result = time_contenders(args, sizes or Sizes(), Path(folder))
    else:
        result = time_bundle(args)
    kept = ("rounds", "iterations", "sets", "problems", "device")
    options = {name: getattr(args, name) for name in kept}
    elapsed = round(time.perf_counter() - began, 1)
    document = {"machine": about, "options": options, "elapsed_seconds": elapsed, **result}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
