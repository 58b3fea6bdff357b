"""Time rollouts of V-JEPA 2-AC against the authors' loop, which computes every frame anew.

Run: ``python benchmarks/ac_rollout.py --vjepa2 CHECKOUT [--threads 2] [--rounds 5] [--quick]``.
CHECKOUT is one of facebookresearch/vjepa2, which needs timm, scipy and tqdm; without it this
package's own recomputation is timed instead. A ViT-B-shaped predictor of 6 blocks and 258 rows a
frame, 16 candidates from one observed frame; both run the same weights, alternating in one process.
The difference is the largest among the latents of the last step, relative to the largest latent. A
table for people; the last line is one JSON object.
"""

import argparse
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from ac_models import (
    CPU,
    Peer,
    Sizes,
    build_peer,
    convert_peer,
    peer_rollout,
    problem,
    random_bundle,
)
from timing import alternate, machine, positive, settle_dtypes, speedup, summary
from torch import Tensor

from jepa_wm.models import load_world_model
from jepa_wm.models.ac_world_model import ACWorldModel
from jepa_wm.runtime import DTYPES, command

TINY = Sizes(width=48, heads=2, layers=1, latent=48, side=4)


def time_horizon(
    world: ACWorldModel, peer: Peer | None, sizes: Sizes, horizon: int, args: argparse.Namespace
) -> dict[str, Any]:
    """Time both on one problem: medians, ratio and relative difference of the last latents."""
    given = problem(sizes, args.candidates, horizon, args.frames)
    slow: Callable[..., Tensor] = world.rollout_reference
    if peer is not None:
        slow = partial(peer_rollout, peer)
    runs = (world.rollout, slow)
    timings = alternate([lambda _, run=run: run(*given)[:, :, -1] for run in runs], args.rounds)
    mine, theirs = timings.results[-1]
    return {
        "ours": summary(timings, 0),
        "recomputed": summary(timings, 1),
        "ratio": speedup(timings, 0, 1),
        "relative_difference": float((mine - theirs).abs().max() / theirs.abs().max()),
    }


def find_peer(sizes: Sizes, checkout: Path | None) -> Peer | None:
    """Build the peer, or say that it is not there."""
    try:
        return build_peer(sizes, checkout)
    except ImportError as error:
        print(f"no authors' code ({error}): timing this package's own recomputation", flush=True)
        return None


def measure(sizes: Sizes, args: argparse.Namespace) -> dict[str, Any]:
    """Time all dtypes and horizons: dtype -> horizon -> figures, printing a line each."""
    peer = find_peer(sizes, args.vjepa2)
    found: dict[str, Any] = {"peer": None if peer is None else "facebookresearch/vjepa2"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.gguf"
        path = (
            random_bundle(path, sizes) if peer is None else convert_peer(peer, sizes, path.parent)
        )
        print(f"{'':<12}{'H':>3}{'ours s':>9}{'anew s':>9}{'ratio':>7}{'by cpu':>7}{'diff':>9}")
        for dtype in args.dtypes:
            world = load_world_model(path, CPU, DTYPES[dtype])
            cast = None if peer is None else peer.cast(DTYPES[dtype])
            found[dtype] = {}
            for horizon in args.horizons:
                row = found[dtype][str(horizon)] = time_horizon(world, cast, sizes, horizon, args)
                print(
                    f"{dtype:<12}{horizon:>3}{row['ours']['median']:>9.3f}"
                    f"{row['recomputed']['median']:>9.3f}{row['ratio']['median']:>7.2f}"
                    f"{row['ratio']['cpu']:>7.2f}{row['relative_difference']:>9.1e}",
                    flush=True,
                )
    return found


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the table, and the JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vjepa2", type=Path, help="a checkout of facebookresearch/vjepa2")
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=positive, default=5, help="timed rounds (default 5)")
    parser.add_argument("--candidates", type=positive, default=16)
    parser.add_argument("--frames", type=positive, default=1, help="observed frames (default 1)")
    parser.add_argument("--horizons", type=positive, nargs="+", default=[2, 4])
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"))
    parser.add_argument("--quick", action="store_true", help="a tiny model: does it run?")
    args = parser.parse_args(argv)
    args.dtypes = settle_dtypes(args.dtypes, args.quick)
    torch.set_num_threads(args.threads)
    logging.disable(logging.INFO)
    warnings.simplefilter("ignore", FutureWarning)  # the authors' code calls what torch deprecates
    about = machine(args.threads)
    print(f"{about['cpu']} ({', '.join(about['flags'])}), {args.threads} threads")
    sizes = TINY if args.quick else Sizes()
    options = {key: getattr(args, key) for key in ("rounds", "candidates", "frames")}
    document = {"machine": about, "options": options, "rollouts": measure(sizes, args)}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
