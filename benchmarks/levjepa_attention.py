"""Time LeVJEPA's attention by frame against the same with a dense mask, and weigh their memory.

Run: ``python benchmarks/levjepa_attention.py [--threads 2] [--rounds 5] [--quick]``. Blocks of a
ViT-L over 16 frames of 14 x 14 patches and CLS, 3,137 tokens, random weights; both contenders run
the same block objects, alternating in one process, and differ in the attention only. Peak memory is
that of a child process each, beyond what a clip of one frame takes. A table for people; the last
line is one JSON object.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timing import alternate, machine, positive, settle_dtypes, speedup, summary
from torch import Tensor, nn

from jepa_wm.models.attention import FrameCausal, attention
from jepa_wm.models.layers import Block, prepare_linears
from jepa_wm.models.rope import Rope, grid_positions, rope_table
from jepa_wm.runtime import DTYPES, command

MIB = 1 << 20
NAMES = ("by frame", "dense mask")


@dataclass(frozen=True)
class Sizes:
    """The blocks and the clip.

    Attributes:
        width: Token width.
        heads: Attention heads.
        layers: Blocks.
        frames: Frames of the clip, one token each.
        side: Patches along a side.
    """

    width: int = 1024
    heads: int = 16
    layers: int = 3
    frames: int = 16
    side: int = 14

    @property
    def mask(self) -> FrameCausal:
        """Which rows see which."""
        return FrameCausal((self.side**2,) * self.frames, 1)


TINY = Sizes(width=48, heads=2, layers=1, frames=4, side=6)


def build(sizes: Sizes, dtype: torch.dtype) -> nn.ModuleList:
    """Build blocks with random weights, as a loaded model has them."""
    torch.manual_seed(0)
    blocks = nn.ModuleList(
        Block(sizes.width, sizes.heads, 4 * sizes.width, eps=1e-6, act="gelu_erf")
        for _ in range(sizes.layers)
    )
    prepare_linears(blocks.eval().requires_grad_(False), dtype)
    return blocks


def rope_of(sizes: Sizes) -> Rope:
    """Return the RoPE factors of the clip, CLS in front."""
    ids = torch.arange(sizes.frames * sizes.side**2)
    positions = grid_positions(ids, (sizes.side, sizes.side))
    return rope_table(positions, sizes.width // sizes.heads, 1e4, "tiled").lead(1)


def dense_mask(frames: FrameCausal) -> Tensor:
    """Return who sees whom, bool [N,N], as the authors' code hands it to attention."""
    counts = torch.tensor((frames.prefix, *frames.rows))
    frame = torch.arange(-1, len(frames.rows)).repeat_interleave(counts)
    sees = (frame[:, None] >= frame) & (frame >= 0)
    sees[: frames.prefix] = True
    return sees


def attend(name: str, sizes: Sizes) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return a contender's attention over q, k, v [1,heads,N,d]."""
    if name == "by frame":
        return partial(attention, frames=sizes.mask)
    return partial(F.scaled_dot_product_attention, attn_mask=dense_mask(sizes.mask))


def encode(name: str, sizes: Sizes, blocks: nn.ModuleList, rope: Rope, x: Tensor) -> Tensor:
    """Run the blocks over tokens [1,N,D]; a dense mask is made once, for all of them."""
    contender = attend(name, sizes)
    for block in blocks:
        x = block.finish(x, contender(*block.project(x, rope)))
    return x


def tokens(sizes: Sizes, *more: int) -> Tensor:
    """Draw tokens [1,N,D], or [1,N,*more]."""
    rows, generator = 1 + sizes.frames * sizes.side**2, torch.Generator().manual_seed(1)
    return torch.randn(1, rows, *(more or (sizes.width,)), generator=generator)


def compare(sizes: Sizes, dtype: torch.dtype, rounds: int) -> dict[str, Any]:
    """Time both contenders over the blocks, and their attention alone."""
    blocks, rope, x = build(sizes, dtype), rope_of(sizes), tokens(sizes)
    qkv = tokens(sizes, 3, sizes.heads, sizes.width // sizes.heads).to(dtype)
    q, k, v = qkv.permute(2, 0, 3, 1, 4)
    found: dict[str, Any] = {}
    runs: dict[str, list[Callable[[], Tensor]]] = {
        "blocks": [partial(encode, name, sizes, blocks, rope, x) for name in NAMES],
        "attention": [partial(attend(name, sizes), q, k, v) for name in NAMES],
    }
    with torch.inference_mode():
        for part, contenders in runs.items():
            timings = alternate([lambda _, run=run: run() for run in contenders], rounds)
            mine, dense = (result.float() for result in timings.results[-1])
            found[part] = {
                **{name: summary(timings, column) for column, name in enumerate(NAMES)},
                "ratio": speedup(timings, 0, 1),
                "relative_difference": float((mine - dense).abs().max() / dense.abs().max()),
            }
    return found


def peak_bytes() -> int:
    """Return the most memory this process ever held (Linux)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024


def weigh(name: str, sizes: Sizes, dtype: torch.dtype) -> int:
    """Return the bytes that encoding takes in this process beyond those of a one-frame clip."""
    blocks = build(sizes, dtype)
    short = Sizes(sizes.width, sizes.heads, sizes.layers, 1, sizes.side)
    held = []
    with torch.inference_mode():
        for clip in (short, sizes):
            encode(name, clip, blocks, rope_of(clip), tokens(clip))
            held.append(peak_bytes())
    return held[1] - held[0]


def weigh_apart(sizes: Sizes, dtype: str, threads: int) -> dict[str, dict[str, int]]:
    """Weigh both contenders in child processes, over the clip and over one twice as long."""
    found: dict[str, dict[str, int]] = {}
    for name in NAMES:
        found[name] = {}
        for frames in (sizes.frames, 2 * sizes.frames):
            clip = [sizes.width, sizes.heads, sizes.layers, frames, sizes.side]
            child = [sys.executable, __file__, "--weigh", name, "--threads", str(threads)]
            child += ["--dtype", dtype, "--sizes", *map(str, clip)]
            run = subprocess.run(child, check=True, capture_output=True, text=True)
            rows = 1 + frames * sizes.side**2
            found[name][f"{rows} tokens"] = int(run.stdout.splitlines()[-1])
    return found


def report(results: dict[str, Any], memory: dict[str, dict[str, int]]) -> None:
    """Print both tables."""
    print(f"{'':<12}{'dtype':>10}{'by frame s':>12}{'dense s':>9}{'ratio':>7}{'cpu':>6}{'diff':>9}")
    for dtype, parts in results.items():
        for part, row in parts.items():
            print(
                f"{part:<12}{dtype:>10}{row['by frame']['median']:>12.3f}"
                f"{row['dense mask']['median']:>9.3f}{row['ratio']['median']:>7.2f}"
                f"{row['ratio']['cpu']:>6.2f}{row['relative_difference']:>9.1e}"
            )
    print("\npeak memory beyond a clip of one frame, MiB")
    for name, row in memory.items():
        cells = "".join(f"{clip:>14} {held / MIB:>7.0f}" for clip, held in row.items())
        print(f"{name:<12}{cells}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=positive, default=5, help="timed rounds (default 5)")
    parser.add_argument("--dtype", choices=list(DTYPES), help="one dtype instead of two")
    parser.add_argument("--quick", action="store_true", help="tiny blocks: does it run?")
    parser.add_argument("--weigh", choices=NAMES, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", type=positive, nargs=5, help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, and the JSON object as the last line."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    sizes = TINY if args.quick else Sizes(*(args.sizes or ()))
    if args.weigh is not None:
        held = weigh(args.weigh, sizes, DTYPES[args.dtype or "float32"])
        print(held)
        return {"held": held}
    dtypes = settle_dtypes([args.dtype] if args.dtype else None, args.quick)
    results = {name: compare(sizes, DTYPES[name], args.rounds) for name in dtypes}
    memory = weigh_apart(sizes, dtypes[0], args.threads)
    report(results, memory)
    document = {
        "machine": machine(args.threads), "rounds": args.rounds, "levjepa": results,
        "peak_bytes": memory,
    }  # fmt: skip
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
