"""What the benchmarks share: alternating timings, the machine, a positive count as an option."""

import argparse
import contextlib
import importlib.metadata
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jepa_wm.runtime import has_fast_bfloat16, versions

CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile")


@dataclass(frozen=True)
class Timings:
    """What ``alternate`` measured, the warm-up round left out.

    Attributes:
        wall: Seconds by the clock, float64 [rounds,solvers].
        cpu: Processor seconds of all threads, likewise: steadier on a machine with other work.
        results: What the solvers returned, a list a round.
    """

    wall: np.ndarray
    cpu: np.ndarray
    results: list[list[Any]]


def alternate(solvers: Sequence[Callable[[int], Any]], rounds: int) -> Timings:
    """Run every solver once a round, in turn, with the number of the round as the seed."""
    wall, cpu = np.zeros((2, rounds + 1, len(solvers)))
    results: list[list[Any]] = []
    for index in range(rounds + 1):
        results.append([])
        for column, solve in enumerate(solvers):
            began = time.perf_counter(), time.process_time()
            results[-1].append(solve(index))
            wall[index, column] = time.perf_counter() - began[0]
            cpu[index, column] = time.process_time() - began[1]
    return Timings(wall[1:], cpu[1:], results[1:])


def summary(timings: Timings, column: int) -> dict[str, float]:
    """Return a solver's median and 90th percentile in seconds, and median processor seconds."""
    wall = timings.wall[:, column]
    cpu = float(np.median(timings.cpu[:, column]))
    return {"median": float(np.median(wall)), "p90": float(np.quantile(wall, 0.9)), "cpu": cpu}


def speedup(timings: Timings, ours: int, peer: int) -> dict[str, float]:
    """Return how many times faster column ``ours`` is: of each round, by the clock; and by cpu."""
    each = timings.wall[:, peer] / timings.wall[:, ours]
    cpu = np.median(timings.cpu[:, peer] / timings.cpu[:, ours])
    values = (np.median(each), each.min(), each.max(), cpu)
    return dict(zip(("median", "low", "high", "cpu"), map(float, values), strict=True))


def machine(threads: int, *peers: str) -> dict[str, Any]:
    """Describe the machine and the libraries; peers are distributions, named if installed."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    lines = dict(line.split(":", 1) for line in info.split("\n\n")[0].splitlines() if ":" in line)
    cells = {key.strip(): value.strip() for key, value in lines.items()}
    flags = cells.get("flags", "").split()
    return {
        "cpu": cells.get("model name", platform.processor() or platform.machine()),
        "flags": [flag for flag in CPU_FLAGS if flag in flags],
        "threads": threads,
        "versions": versions() | installed(peers),
    }


def installed(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of those distributions that are installed."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def settle_dtypes(given: Sequence[str] | None, is_quick: bool) -> list[str]:
    """Return the dtypes to time on a CPU: those given, else float32, and bfloat16 where it is fast.

    A processor that does not multiply bfloat16 takes hundreds of times as long with it, on either
    side of a comparison; a quick run tries it all the same.
    """
    if given:
        return list(given)
    if is_quick or has_fast_bfloat16(torch.device("cpu")):
        return ["float32", "bfloat16"]
    print("bfloat16 is not timed: this processor does not multiply it")
    return ["float32"]


def positive(text: str) -> int:
    """Read an option that counts something."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} must be at least 1")
    return value
