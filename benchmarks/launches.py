"""Count what the host launches for one CEM solve on a GPU, recorded as a graph and not recorded.

Run: ``python benchmarks/launches.py [--model lewm.gguf] [--planner lewm] [--problems 1] [--device
cuda] [--quick]``. A launch is a call of the CUDA runtime or driver that hands the device a kernel,
a graph, a copy or a fill, as torch's profiler sees them. The solve is the one ``MPC`` makes, from
a cold start to the plan in the device's memory; latents of random frames are there before. What
happens once, recording and warm-up, is not counted. The last line is one JSON object.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from lewm_contenders import random_frames
from timing import machine, positive

from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.graphs import Recorder, record_cuda_graph
from jepa_wm.control.interfaces import Context, WorldModel
from jepa_wm.control.solver import Solver
from jepa_wm.errors import ConfigError, JepaError
from jepa_wm.launch import preset
from jepa_wm.models import load_world_model
from jepa_wm.runtime import DTYPES, command, resolve_device, resolve_dtype, synchronised_seconds

KINDS = {
    "kernels": ("cudaLaunchKernel", "cudaLaunchCooperativeKernel", "cuLaunchKernel",
                "cuLaunchCooperativeKernel"),
    "graphs": ("cudaGraphLaunch", "cuGraphLaunch"),
    "copies": ("cudaMemcpy", "cuMemcpy"),
    "fills": ("cudaMemset", "cuMemset"),
}  # fmt: skip
WARM_UP = 2  # solves before the one that is counted


def count_launches(names: Iterable[str]) -> dict[str, int]:
    """Count the host's launches among the names of profiler events, by kind.

    The names are those of the runtime's functions and of all their forms (``cudaMemcpyAsync``,
    ``cudaLaunchKernelExC``); what runs on the device (``Memcpy HtoD``, a kernel's own name),
    torch's operators and waits are no launches.
    """
    found = Counter(kind for name in names for kind, starts in KINDS.items()
                    if name.startswith(starts))  # fmt: skip
    return {kind: found[kind] for kind in KINDS}


class Solves:
    """One problem set and one way to launch its solves.

    Args:
        model: On the device of ``z``.
        planner: Its settings.
        latents: Starts and goals [B,D] each, on the device.
        record: Records solves, or None to launch every kernel.
    """

    def __init__(
        self,
        model: WorldModel,
        planner: Any,
        latents: tuple[torch.Tensor, torch.Tensor],
        record: Recorder | None,
    ) -> None:
        self.planner, self.width = planner, model.action_dim
        (z, goal_z), device = latents, latents[0].device
        context = Context(z[:, None], torch.zeros(len(z), 0, self.width, device=device))
        self.cost = RolloutCost(model, preset("objective", "goal_l2"), goal_z, context)
        wide = torch.full((self.width,), torch.inf, device=device)
        self.solver = Solver(planner, (-wide, wide), device, record=record)

    def __call__(self, seed: int) -> None:
        """Solve every problem once, from a cold start."""
        B = len(self.cost.goal_z)
        start = self.planner.start(B, self.width, self.cost.goal_z.device)
        self.solver.solve(self.cost, start, [seed + 1000 * row for row in range(B)])


def launches_of(solves: Solves) -> dict[str, Any]:
    """Profile one solve, after others; return its launches by kind, in all, and per iteration.

    Raises:
        JepaError: the profiler saw no launch at all.
    """
    for seed in range(WARM_UP):
        solves(seed)
    synchronised_seconds(solves.cost.goal_z.device)
    watched = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=watched) as profile:
        solves(WARM_UP)
    kinds = count_launches(event.name for event in profile.events() or ())
    total = sum(kinds.values())
    if not total:
        raise JepaError("torch's profiler saw no launch; it needs CUPTI and the right to use it")
    per_iteration = total / solves.planner.iterations
    return {"kinds": kinds, "total": total, "per_iteration": per_iteration}


def measure(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Count both ways and print the table."""
    dtype = resolve_dtype(args.dtype, device)
    model = load_world_model(Bundle.open(find_bundle(args.model)), device, dtype)
    planner = preset("planner", args.planner)
    if args.quick:
        planner = replace(planner, iterations=2)
    z, goal_z = (model.encode(x.to(device))[:, 0] for x in random_frames(224, args.problems))
    print(f"{'one solve':<12}" + "".join(f"{kind:>10}" for kind in (*KINDS, "all", "a round")))
    ways: dict[str, Recorder | None] = {"recorded": record_cuda_graph, "eager": None}
    solves = {}
    for name, record in ways.items():
        row = launches_of(Solves(model, planner, (z, goal_z), record))
        solves[name] = row
        counts = "".join(f"{value:>10}" for value in (*row["kinds"].values(), row["total"]))
        print(f"{name:<12}{counts}{row['per_iteration']:>10.2f}")
    size = f"{planner.num_samples}x{planner.iterations}x{planner.horizon}"
    return {"solves": solves, "size": size, "dtype": str(dtype)}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Count, print the table, and the JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="lewm.gguf", help="a path or a bundled file")
    parser.add_argument("--planner", default="lewm", help="a preset (default lewm: 300 x 30 x 5)")
    parser.add_argument("--dtype", default="auto", choices=["auto", *DTYPES])
    parser.add_argument("--problems", type=positive, default=1, help="at once (default 1)")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N (default cuda)")
    parser.add_argument("--quick", action="store_true", help="2 iterations: does it run?")
    args = parser.parse_args(argv)
    device = resolve_device(args.device)
    if device.type != "cuda":
        raise ConfigError(f"device={args.device!r}: launches are counted on a CUDA device alone")
    found = measure(args, device)
    options = {name: getattr(args, name) for name in ("model", "planner", "problems", "device")}
    about = machine(torch.get_num_threads()) | {"gpu": torch.cuda.get_device_name(device)}
    document = {"machine": about, "options": options, **found}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
