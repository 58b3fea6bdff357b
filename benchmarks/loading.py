"""Measure what loading a large bundle takes: peak memory against the weights', and seconds.

Run: ``python benchmarks/loading.py [--gigabytes 1] [--dtype bfloat16]``. Writes a random V-JEPA 2
ViT-L-shaped bundle of that size in f16, then loads it in a process of its own. The bound is the
finished weights and three times the largest tensor. The last line is one JSON object.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timing import machine, positive

from jepa_wm.bundle.rules import check_meta
from jepa_wm.bundle.templates import expected_tensors
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.models import load
from jepa_wm.runtime import DTYPES, command

LAYER_BYTES = 25_200_000  # of a ViT-L block in f16
MIB = 1 << 20


def write_random(path: Path, gigabytes: float, file_type: str = "f16") -> None:
    """Write a V-JEPA 2 encoder 1,024 wide, with as many layers as make up the size in f16."""
    meta = {
        "general.architecture": "jepa",
        "jepa.schema_version": 1,
        "jepa.family": "vjepa2",
        "jepa.enc.embed_dim": 1024,
        "jepa.enc.n_layer": max(1, round(gigabytes * 1e9 / LAYER_BYTES)),
        "jepa.enc.n_head": 16,
        "jepa.enc.ffn_dim": 4096,
        "jepa.enc.patch_size": 16,
        "jepa.enc.tubelet_size": 2,
        "jepa.enc.img_size": 256,
        "jepa.enc.n_frames": 16,
    }
    checked, _ = check_meta(meta)
    rng = np.random.default_rng(0)
    shapes = {n: tuple(int(d) for d in s.shape) for n, s in expected_tensors(checked).items()}
    tensors = {n: rng.standard_normal(s, np.float32) * 0.02 for n, s in shapes.items()}
    write_bundle(path, meta, tensors, file_type)


def peak_bytes() -> int:
    """Return the most memory this process ever held (Linux: ``ru_maxrss`` counts the parent's)."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024


def measure(path: Path, dtype: str) -> dict[str, Any]:
    """Load in this process; what was held before does not count."""
    before = peak_bytes()
    began = time.perf_counter()
    model = load(path, torch.device("cpu"), DTYPES[dtype])
    seconds = time.perf_counter() - began
    sizes = [p.numel() * p.element_size() for p in model.parameters()]
    largest = max(p.numel() * 4 for p in model.parameters())
    return {
        "seconds": seconds,
        "file": path.stat().st_size,
        "weights": sum(sizes),
        "peak": peak_bytes() - before,
        "bound": sum(sizes) + 3 * largest,
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Write, load in a child process, print, and the JSON object as the last line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=1.0, help="of the file (default 1)")
    parser.add_argument("--dtype", default="bfloat16", choices=list(DTYPES))
    parser.add_argument("--threads", type=positive, default=torch.get_num_threads())
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.measure is not None:
        found = measure(args.measure, args.dtype)
        print(json.dumps(found))
        return found
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "random.gguf"
        write_random(path, args.gigabytes)
        child = [sys.executable, __file__, "--measure", str(path), "--dtype", args.dtype]
        run = subprocess.run(child, check=True, capture_output=True, text=True)
    found = json.loads(run.stdout.splitlines()[-1])
    for name in ("file", "weights", "peak", "bound"):
        print(f"{name:<8}{found[name] / MIB:>10.0f} MiB")
    verdict = "within" if found["peak"] <= found["bound"] else "BEYOND"
    print(f"loaded in {found['seconds']:.2f} s, peak {verdict} the bound")
    document = {"machine": machine(args.threads), "dtype": args.dtype, **found}
    print(json.dumps(document))
    return document


if __name__ == "__main__":
    command(main)
