"""Measure what few bits buy at run time: weights kept quantised, and int8 products.

Run: ``python benchmarks/low_precision.py [--threads 2] [--rounds 3] [--quick]``. First a V-JEPA 2
encoder, ViT-L-shaped with 4 layers, on 2,048 tokens, matrices expanded at load or kept
as q8_0 and q4_k: memory of the weights and seconds, alternating. Then the matrix products of such
layers in floats against int8 with a scale a row, the form in which no row's result depends on the
rows beside it: the product alone, and with all that int8 needs around it. The last line is one JSON
object. Floats are bfloat16 where the processor multiplies it, else float32.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from loading import write_random
from timing import Timings, alternate, machine, positive, speedup, summary
from torch import Tensor

from jepa_wm.models import WEIGHTS, load
from jepa_wm.models.model import Model
from jepa_wm.models.packed import PackedLinear
from jepa_wm.runtime import command, resolve_dtype

CPU = torch.device("cpu")
MIB = 1 << 20
GIGABYTES = 0.1  # 4 layers in f16
SHAPES = ((2048, 1024, 4096), (2048, 4096, 1024), (480, 192, 2048))  # rows, columns in and out


def held_bytes(model: Model) -> int:
    """Bytes of the weights in memory; matrices packed for the CPU are not counted twice."""
    return sum(x.numel() * x.element_size() for x in (*model.parameters(), *model.buffers()))


def time_kept(
    file_type: str, pixels: Tensor, gigabytes: float, rounds: int, dtype: torch.dtype
) -> dict[str, Any]:
    """Time an encoder with its matrices expanded to a dtype and kept."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.gguf"
        write_random(path, gigabytes, file_type)
        models = {way: load(path, CPU, dtype, way) for way in WEIGHTS}
    with torch.inference_mode():
        timings = run([partial(model.encode, pixels) for model in models.values()], rounds)
    different = timings.results[-1][0] - timings.results[-1][1]
    return {
        **{way: summary(timings, column) for column, way in enumerate(WEIGHTS)},
        "bytes": {way: held_bytes(model) for way, model in models.items()},
        "slower": 1 / speedup(timings, 1, 0)["median"],
        "difference": float(different.abs().max() / timings.results[-1][0].abs().max()),
    }


def time_int8(shape: tuple[int, int, int], rounds: int, dtype: torch.dtype) -> dict[str, Any]:
    """Time gelu(W x + b) in a dtype of floats, in int8, and the int8 product alone."""
    rows, inner, out = shape
    x, weight, bias = (
        torch.randn(rows, inner),
        torch.randn(out, inner) / inner**0.5,
        torch.randn(out),
    )
    plain = PackedLinear(weight, bias, dtype, "gelu_erf")
    scale = weight.abs().amax(1) / 127
    codes = (weight / scale[:, None]).round().to(torch.int8)
    packed = torch.ops.onednn.qlinear_prepack(codes, x.shape)
    zeros = torch.zeros(out, dtype=torch.int32)

    def product(small: Tensor) -> Tensor:
        return torch.ops.onednn.qlinear_pointwise(
            small, 1.0, 128, packed, scale, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )

    def whole() -> Tensor:
        size = (x.abs().amax(1, keepdim=True) / 127).clamp_min(1e-12)
        small = (x / size).round_().add_(128).to(torch.uint8)
        return F.gelu(torch.addcmul(bias, product(small), size))

    small = torch.randint(0, 255, (rows, inner), dtype=torch.uint8)
    with torch.inference_mode():
        timings = run([lambda: plain(x.to(dtype)), whole, lambda: product(small)], rounds)
        exact = F.gelu(F.linear(x, weight, bias))
    error = [(y.float() - exact).norm() / exact.norm() for y in timings.results[-1][:2]]
    return {
        "floats": summary(timings, 0),
        "int8": speedup(timings, 1, 0),
        "product": speedup(timings, 2, 0),
        "errors": {"floats": float(error[0]), "int8": float(error[1])},
    }


def run(solvers: Sequence[Callable[[], Tensor]], rounds: int) -> Timings:
    """Alternate functions that take no seed."""
    return alternate([lambda _, one=one: one() for one in solvers], rounds)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure, print the tables, and the JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=positive, default=3, help="timed rounds (default 3)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run?")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    dtype = resolve_dtype("auto", CPU)
    floats = str(dtype).removeprefix("torch.")
    pixels = torch.randn(1, 2 if args.quick else 16, 3, *([32, 32] if args.quick else [256, 256]))
    kept = {}
    for name in ("q8_0", "q4_k"):
        kept[name] = time_kept(name, pixels, 0.03 if args.quick else GIGABYTES, args.rounds, dtype)
        row = kept[name]
        print(
            f"{name}: weights {row['bytes']['expanded'] / MIB:.0f} MiB expanded, "
            f"{row['bytes']['quantised'] / MIB:.0f} MiB kept; seconds "
            f"{row['expanded']['median']:.3f}, {row['quantised']['median']:.3f} "
            f"({row['slower']:.2f}x as long), difference {row['difference']:.1e}",
            flush=True,
        )
    int8 = {}
    for shape in ((8, 32, 64),) if args.quick else SHAPES:
        title = "{} rows, {} to {}".format(*shape)
        int8[title] = row = time_int8(shape, 5 * args.rounds, dtype)
        print(
            f"{title}: int8 {row['int8']['median']:.2f}x as fast as {floats} (product alone "
            f"{row['product']['median']:.2f}x), error {row['errors']['int8']:.4f} "
            f"({floats} {row['errors']['floats']:.4f})",
            flush=True,
        )
    document = {"machine": machine(args.threads), "dtype": floats, "kept": kept, "int8": int8}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
