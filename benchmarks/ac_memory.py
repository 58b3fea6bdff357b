"""Measure the memory of a V-JEPA 2-AC solve step against the budget its chunk was chosen for.

Run: ``python benchmarks/ac_memory.py [--budget 1024] [--layers 2] [--quick]``. 400 candidates of 2
steps on latents 1,408 wide and a predictor 1,024 wide, as published but with fewer blocks: two
frames are encoded, then ``RolloutCost`` scores the candidates in chunks of as many as
``candidate_bytes`` says fit. A process of its own measures the peak beyond the loaded model, and
the largest tensor, which shows that no frame is repeated for every candidate. The last line is one
JSON object.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ac_models import CPU, PATCH, Sizes, problem, random_bundle
from timing import machine, positive
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from jepa_wm.control.interfaces import Context
from jepa_wm.control.mpc import RolloutCost
from jepa_wm.control.objectives import GoalDistance
from jepa_wm.models import load_world_model
from jepa_wm.runtime import command

MIB = 1 << 20
HORIZON = 2
PUBLISHED = 24  # blocks


class Largest(TorchDispatchMode):
    """Remember the most bytes of any result's storage."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and look at what it returns."""
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.bytes = max(self.bytes, found.untyped_storage().nbytes())
        return found


def status(key: str) -> int:
    """Return a size of this process in bytes (Linux)."""
    text = Path("/proc/self/status").read_text()
    return int(re.search(rf"{key}:\s+(\d+)", text)[1]) * 1024


def measure(path: Path, sizes: Sizes, candidates: int, budget: int) -> dict[str, int]:
    """Encode start and goal and score all candidates once, in this process."""
    world = load_world_model(path, CPU)
    drawn, actions = problem(sizes, candidates, HORIZON, 1)
    side = sizes.side * PATCH
    frames = torch.randint(0, 256, (1, 2, side, side, 3), dtype=torch.uint8)
    chunk = min(candidates, max(1, budget // world.candidate_bytes(HORIZON)))
    goal = partial(GoalDistance, norm="l1", reduce="mean", steps="last")

    def score(actions: Tensor) -> None:
        z = world.encode(world.preprocess(frames))
        context = Context(z[:, :1], drawn.actions, drawn.proprio)
        cost = RolloutCost(world, goal, z[:, 1], context, chunk)
        assert cost(actions).isfinite().all()

    with torch.inference_mode(), Largest() as seen:
        score(actions[:, :1])  # reads the weights and starts what starts once
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        score(actions)
    return {
        "chunk": chunk,
        "candidate": world.candidate_bytes(HORIZON),
        "peak": status("VmHWM") - before,
        "largest": seen.bytes,
        "repeated_frames": candidates * 3 * side * side * 4,
    }


def published_candidate(folder: Path) -> int:
    """Return the bytes a candidate of the published model is estimated at, by its layers' sum."""
    found = []
    for layers in (1, 2):
        sizes = Sizes(1024, 16, layers, 1408)
        path = random_bundle(folder / f"{layers}.gguf", sizes)
        found.append(load_world_model(path, CPU).candidate_bytes(HORIZON))
    return found[0] + (PUBLISHED - 1) * (found[1] - found[0])


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure in a child process, print, and the JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget", type=positive, default=1024, help="MiB (default 1,024)")
    parser.add_argument("--layers", type=positive, default=2, help="blocks (default 2)")
    parser.add_argument("--candidates", type=positive, default=400)
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--quick", action="store_true", help="a tiny model: does it run?")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    sizes = Sizes(48, 2, 1, 48, 4) if args.quick else Sizes(1024, 16, args.layers, 1408)
    if args.measure is not None:
        found: dict[str, Any] = measure(args.measure, sizes, args.candidates, args.budget * MIB)
        print(json.dumps(found))
        return found
    with tempfile.TemporaryDirectory() as folder:
        path = random_bundle(Path(folder) / "random.gguf", sizes)
        given = sys.argv[1:] if argv is None else list(argv)
        child = [sys.executable, __file__, *given, "--measure", str(path)]
        run = subprocess.run(child, check=True, capture_output=True, text=True)
        found = {"budget": args.budget * MIB} | json.loads(run.stdout.splitlines()[-1])
        if not args.quick:
            found["published_candidate"] = published_candidate(Path(folder))
    for name in sorted(found.keys() - {"chunk"}):
        print(f"{name:<20}{found[name] / MIB:>10.1f} MiB")
    verdict = "within" if found["peak"] <= found["budget"] else "BEYOND"
    print(f"{args.candidates} candidates in chunks of {found['chunk']}: peak {verdict} the budget")
    document = {"machine": machine(args.threads), **found}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
