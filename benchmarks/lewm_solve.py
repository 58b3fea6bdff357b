"""Time one CEM solve of a full-size LeWM against stable-worldmodel's CEMSolver, alternating.

Run: ``python benchmarks/lewm_solve.py [--threads 2] [--quick]``, or with ``--model lewm.gguf`` for
the solves of a bundle. Same weights, same process, random frames; a solve encodes start and goal
and runs 30 iterations of 300 candidates over 5 blocks. The parity table gives the same candidates
to every cost function. Tables for people; the last line is one JSON object. See README.md here for
installing the peer.
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
from lewm_contenders import (
    CPU,
    INSTALL_PEER,
    Contender,
    Sizes,
    build_peer,
    convert_peer,
    ours,
    peer,
    preset,
    random_bundle,
    random_frames,
)
from timing import Timings, alternate, machine, positive, speedup, summary
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.models import load_world_model
from jepa_wm.runtime import DTYPES, command, has_fast_bfloat16, resolve_dtype

PAIRS = (("ours float32", "peer float32"), ("ours bfloat16", "peer float32"))
STAGES = (0, 2, 10, 30)  # iterations after which parity candidates are drawn


def contenders(args: argparse.Namespace, sizes: Sizes, folder: Path) -> list[Contender]:
    """Build what is to be timed; the first is the reference of the parity table."""
    frames, planner = random_frames(sizes.image), preset("planner", "lewm")
    bf16 = args.bf16 == "yes" or (args.bf16 == "auto" and has_fast_bfloat16(CPU))
    dtypes = ["float32", "bfloat16"] if bf16 else ["float32"]
    found, path = [], None
    if not args.no_peer:
        try:
            models = {name: build_peer(sizes).to(DTYPES[name]) for name in dtypes}
            found = [peer(f"peer {n}", m, frames, planner, DTYPES[n]) for n, m in models.items()]
            path = convert_peer(models["float32"], sizes, folder)
        except ImportError as error:
            print(f"stable-worldmodel is not timed ({error}); to install it:\n  {INSTALL_PEER}")
    path = path or random_bundle(folder / "random.gguf", sizes)
    for name in reversed(dtypes):  # ours float32 last
        model = load_world_model(path, CPU, DTYPES[name])
        found.append(ours(f"ours {name}", model, frames, planner))
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


def candidate_sets(contender: Contender, stages: Sequence[int], seeds: int) -> dict[int, Tensor]:
    """Draw candidates as CEM would after so many iterations: stage -> [sets,1,S,H,A]."""
    sets = {}
    planner = preset("planner", "lewm")
    for stage in stages:
        drawn = []
        for seed in range(seeds):
            plan = contender.solve(max(stage, 1), 100 + seed)
            mean, std = plan.actions, plan.std
            if not stage:  # the start
                mean, std = torch.zeros_like(mean), torch.full_like(std, planner.init_std)
            generator = torch.Generator().manual_seed(1000 * stage + seed)
            noise = torch.randn(1, planner.num_samples, *mean.shape[1:], generator=generator)
            drawn.append(mean[:, None] + std[:, None] * noise)
        sets[stage] = torch.stack(drawn)
    return sets


def agreement(reference: Tensor, costs: Tensor, elites: int) -> dict[str, float]:
    """Compare costs [sets,S]: largest relative difference, mean elite overlap and Spearman rank."""
    difference = ((costs - reference).abs() / reference.abs()).max()
    overlaps, ranks = [], []
    for a, b in zip(reference, costs, strict=True):
        best = (set(x.topk(elites, largest=False).indices.tolist()) for x in (a, b))
        overlaps.append(len(set.intersection(*best)) / elites)
        order = torch.stack([x.argsort().argsort().double() for x in (a, b)])
        ranks.append(float(torch.corrcoef(order)[0, 1]))
    return {
        "max_relative_difference": float(difference),
        "elite_overlap": float(np.mean(overlaps)),
        "spearman": float(np.mean(ranks)),
    }


def parity(
    entries: Sequence[Contender], stages: Sequence[int], seeds: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Score the same candidates with every contender: name -> stage -> agreement with the first."""
    elites = preset("planner", "lewm").num_elites
    sets = candidate_sets(entries[-1], stages, seeds)
    table: dict[str, dict[str, dict[str, float]]] = {entry.name: {} for entry in entries[1:]}
    for stage, candidates in sets.items():
        costs = [torch.cat([entry.cost(one) for one in candidates]) for entry in entries]
        for entry, own in zip(entries[1:], costs[1:], strict=True):
            table[entry.name][str(stage)] = agreement(costs[0], own, elites)
    return table


def plan_costs(entries: Sequence[Contender], results: list[list[Any]]) -> dict[str, float]:
    """Return the mean cost of the plans every contender found, scored by the first contender."""
    score = entries[0].cost
    return {
        entry.name: float(np.mean([float(score(plans[i].actions[:, None])) for plans in results]))
        for i, entry in enumerate(entries)
    }


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
        print(f"{name:<16}{cost:>12.4f}")
    return {"solves": solves, "ratios": ratios, "parity": agreed, "plan_costs": costs}


def report_solves(
    entries: Sequence[Contender], iterations: int, timings: Timings
) -> dict[str, dict[str, Any]]:
    """Print and return seconds and matrix-product operations of a solve."""
    solves: dict[str, dict[str, Any]] = {}
    head = ("median s", "p90 s", "cpu s", "TFLOP", "GFLOP/s")
    print(f"\n{'one solve':<16}" + "".join(f"{word:>10}" for word in head))
    for column, entry in enumerate(entries):
        once, twice = (count_flops(partial(entry.solve, n, 0)) for n in (1, 2))
        flops = once + (iterations - 1) * (twice - once)
        row: dict[str, Any] = summary(timings, column) | {"flops": flops}
        row["flops_per_second"] = flops / row["median"]
        solves[entry.name] = row
        print(
            f"{entry.name:<16}{row['median']:>10.3f}{row['p90']:>10.3f}{row['cpu']:>10.3f}"
            f"{flops / 1e12:>10.3f}{row['flops_per_second'] / 1e9:>10.1f}"
        )
    return solves


def report_ratios(entries: Sequence[Contender], timings: Timings) -> dict[str, Any]:
    """Print and return the peer's time over ours, pair by pair within a round."""
    names = [entry.name for entry in entries]
    ratios: dict[str, dict[str, float]] = {}
    for mine, theirs in PAIRS:
        if mine in names and theirs in names:
            i, j = names.index(mine), names.index(theirs)
            ratios[f"{theirs} / {mine}"] = speedup(timings, i, j)
    if ratios:
        print(f"\n{'times as fast':<34}{'median':>8}{'low':>8}{'high':>8}{'by cpu':>8}")
    for name, row in ratios.items():
        print(f"{name:<34}" + "".join(f"{value:>8.2f}" for value in row.values()))
    return ratios


def report_splits(
    entries: Sequence[Contender], iterations: Sequence[int], solves: dict[str, dict[str, Any]]
) -> None:
    """Print where our seconds go and add it to ``solves``."""
    print(f"\n{'parts, s':<16}{'encode':>10}{'rollout':>10}{'update':>10}")
    for entry, count in zip(entries, iterations, strict=True):
        if entry.split is not None:
            parts = entry.split(count, 0)
            solves[entry.name]["parts"] = parts
            print(f"{entry.name:<16}" + "".join(f"{value:>10.3f}" for value in parts.values()))


def report_parity(reference: str, table: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print the parity table."""
    print(f"\nsame candidates, against {reference}; drawn as after so many iterations")
    print(f"{'':<16}{'iterations':>12}{'max rel diff':>14}{'elites kept':>13}{'Spearman':>10}")
    for name, stages in table.items():
        for stage, row in stages.items():
            print(
                f"{name:<16}{stage:>12}{row['max_relative_difference']:>14.1e}"
                f"{row['elite_overlap']:>13.3f}{row['spearman']:>10.5f}"
            )


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
    about = machine(args.threads)
    print(f"{about['cpu']} ({', '.join(about['flags'])}), {args.threads} threads")
    began = time.perf_counter()
    if args.model is None:
        with tempfile.TemporaryDirectory() as folder:
            result = time_contenders(args, sizes or Sizes(), Path(folder))
    else:
        result = time_bundle(args)
    options = {"rounds": args.rounds, "iterations": args.iterations, "sets": args.sets}
    elapsed = round(time.perf_counter() - began, 1)
    document = {"machine": about, "options": options, "elapsed_seconds": elapsed, **result}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
