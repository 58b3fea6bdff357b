"""Compare ways to order a LeWM rollout, to see whether the one in use is the fastest here.

Run: ``python benchmarks/schedules.py [--threads 2] [--device cpu] [--rounds 7] [--quick]``. 300
candidates over 5 blocks from one frame, bundled and full-size models: every window computed anew,
as the definition has it, and the fast rollout in pieces of so many rows (on a GPU whole, both as
CUDA graphs). Alternating; the last line is one JSON object.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lewm_models import Sizes, random_bundle
from timing import alternate, machine, positive, speedup, summary
from torch import Tensor

from jepa_wm.bundle.reader import find_bundle
from jepa_wm.control.graphs import record_cuda_graph
from jepa_wm.models import load_world_model
from jepa_wm.models.lewm_rollout import PIECE_ROWS, FastRollout, rollout_reference
from jepa_wm.models.lewm_world_model import LeWMWorldModel
from jepa_wm.runtime import command, resolve_device, resolve_dtype

ANEW, WHOLE = "windows anew", "whole"
PIECES = (40, 80, PIECE_ROWS, 320)
SAMPLES, HORIZON = 300, 5

Rollout = Callable[[Tensor, Tensor, Tensor], Tensor]


def ways(model: LeWMWorldModel) -> dict[str, Rollout]:
    """Return the schedules by name."""
    predictor = model.predictor
    found: dict[str, Rollout] = {ANEW: partial(rollout_reference, predictor)}
    if model.model.device.type == "cpu":
        found |= {f"pieces of {rows}": FastRollout(predictor, rows) for rows in PIECES}
    return found | {WHOLE: FastRollout(predictor, SAMPLES)}


def compare(path: Path, device: torch.device, samples: int, rounds: int) -> dict[str, Any]:
    """Time every schedule on one model, in turn; print a line each."""
    model = load_world_model(path, device, resolve_dtype("auto", device))
    A, D = model.action_dim, model.predictor.config.embed_dim
    z = torch.randn(1, 1, D, device=device)
    given = z, z.new_zeros(1, 0, A), torch.randn(1, samples, HORIZON, A, device=device)
    named = ways(model)
    with torch.inference_mode():
        if device.type == "cuda":
            named = {name: _recorded(partial(way, *given)) for name, way in named.items()}
            runs = list(named.values())
        else:
            runs = [partial(way, *given) for way in named.values()]
        timings = alternate([lambda _, run=run: run() for run in runs], rounds)
    plain, *fast = timings.results[-1]
    found = {}
    for column, name in enumerate(named):
        found[name] = summary(timings, column) | {"ratio": speedup(timings, column, 0)}
        row = found[name]
        print(f"{name:<16}{row['median']:>10.4f}{row['cpu']:>10.4f}{row['ratio']['median']:>8.2f}")
    apart = max(float((plain - other).abs().max() / plain.abs().max()) for other in fast)
    same = all(torch.equal(fast[0], other) for other in fast)
    print(f"within {apart:.0e} of the first, {'the same' if same else 'OTHER'} bits", flush=True)
    return {"ways": found, "relative_difference": apart, "same_bits": same}


def _recorded(run: Callable[[], Tensor]) -> Callable[[], Tensor]:
    kept: list[Tensor] = []

    def keep() -> None:
        kept[:] = [run()]

    replay = record_cuda_graph(keep)

    def again() -> Tensor:
        replay()
        torch.cuda.synchronize()
        return kept[0].clone()

    return again


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, and the JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N (default cpu)")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=positive, default=7, help="timed rounds (default 7)")
    parser.add_argument("--quick", action="store_true", help="few candidates: does it run?")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    device = resolve_device(args.device)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        models = {"bundled LeWM": find_bundle("lewm.gguf")}
        if not args.quick:
            models["full-size LeWM"] = random_bundle(Path(folder) / "random.gguf", Sizes())
        for title, path in models.items():
            print(f"\n{title:<16}{'median s':>10}{'cpu s':>10}{'ratio':>8}")
            samples = 20 if args.quick else SAMPLES
            found[title] = compare(path, device, samples, 1 if args.quick else args.rounds)
    document = {"machine": machine(args.threads), "device": str(device), "schedules": found}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
