"""Time a fresh process up to its first plan: start, imports, load, encoding, first solve.

Run: ``python benchmarks/first_plan.py [--model lewm.gguf] [--planner cem] [--threads 2] [--rounds
7] [--quick]``. Every round starts a new process; the first, which may have to read files from disk,
is left out. ``plan`` is the first goal and frame encoded and the first solve; ``warm-up`` is what
it takes longer than later ones in the same process. The last line is one JSON object.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import machine, positive

from jepa_wm.runtime import DTYPES, command

CHILD = Path(__file__).parent / "first_plan_child.py"
PARTS = ("interpreter", "torch", "package", "load", "plan", "total", "cpu", "later", "warm-up")


def start_one(args: argparse.Namespace) -> dict[str, float]:
    """Start a process and return its seconds by part."""
    given = [args.model, args.planner, args.dtype, str(args.threads)]
    run = subprocess.run(
        [sys.executable, str(CHILD), str(time.time()), *given],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if run.returncode:
        raise SystemExit(f"first_plan_child.py: {run.stderr.strip().splitlines()[-1]}")
    found = json.loads(run.stdout.splitlines()[-1])
    return found | {"warm-up": found["plan"] - found["later"]}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, and the JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="lewm.gguf", help="a path or a bundled file")
    parser.add_argument("--planner", default="cem", help="a preset (default cem)")
    parser.add_argument("--dtype", default="auto", choices=["auto", *DTYPES])
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=positive, default=7, help="processes (default 7)")
    parser.add_argument("--quick", action="store_true", help="one process: does it run?")
    args = parser.parse_args(argv)
    rounds = [start_one(args) for _ in range(1 if args.quick else args.rounds + 1)]
    measured = rounds if args.quick else rounds[1:]
    parts = {}
    print(f"{'part':<14}{'median s':>10}{'low':>8}{'high':>8}")
    for name in PARTS:
        values = np.array([one[name] for one in measured])
        parts[name] = {
            "median": float(np.median(values)), "low": values.min(), "high": values.max()
        }  # fmt: skip
        print(f"{name:<14}" + "{median:>10.3f}{low:>8.3f}{high:>8.3f}".format(**parts[name]))
    options = {name: getattr(args, name) for name in ("model", "planner", "dtype")}
    document = {"machine": machine(args.threads), "options": options, "parts": parts}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
