"""Check a bundle against its specification: ``python -m jepa_wm.check FILE [--against SRC]``.

The torch runtime, and with ``--against`` the reference implementation of the source folder, run on
the same random pixels as the float64 specification (``jepa_wm.spec``); every stage says how far
apart they are. Exit status 1 if they are too far: in float32, beyond 1e-5 of a stage's largest
value; else, below a cosine of 0.999 of the features (of tokens: the median).
"""

import argparse
import dataclasses
import json
import math
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from jepa_wm.bundle.faults import printable
from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.hub import resolve
from jepa_wm.models import load
from jepa_wm.parity.compare import Distance, Row, compare, faults
from jepa_wm.parity.inputs import Pass, choose_clip, draw_passes
from jepa_wm.parity.reference import load_reference, run_reference
from jepa_wm.parity.torch_stages import run_model
from jepa_wm.runtime import DTYPES, command, resolve_device, resolve_dtype

LEGEND = {
    "whole": "all patches",
    "other": "all patches of a grid it was not trained on",
    "masked": "hidden patches predicted from the others",
}
"""What the first word of a stage's row says."""


def check(
    bundle: Bundle,
    device: torch.device,
    dtype: torch.dtype,
    passes: list[Pass],
    against: Path | None = None,
) -> tuple[list[Row], list[str]]:
    """Compare a bundle's runtime, and maybe its reference, with the specification.

    Args:
        bundle: The bundle.
        device: Where the runtime runs.
        dtype: Dtype of its matrices.
        passes: What goes in (``draw_passes``).
        against: Folder of the source for the reference implementation, or None.

    Returns:
        The distances of every stage, and what is wrong with them (empty: nothing).

    Raises:
        BundleError: the bundle is broken.
        ConfigError: there is no reference for the source, or it is of another model.
    """
    reference = None if against is None else load_reference(against, bundle)
    model, kind = load(bundle, device, dtype), bundle.get("jepa.pred.kind")
    found = compare(
        bundle,
        passes,
        lambda one: run_model(model, kind, one.inputs),
        None if reference is None else lambda one: run_reference(reference, one),
    )
    rows = list(tqdm(found, "specification", unit="stage", leave=False, disable=None))
    wrong = faults(rows, "runtime", dtype == torch.float32)
    if reference is not None:  # the source's weights were rounded if the file's are
        is_float32 = all(bundle.type_name(name) == "F32" for name in bundle.names())
        wrong += faults(rows, "reference", is_float32)
    return rows, wrong


def lines(rows: list[Row], wrong: list[str]) -> list[str]:
    """Return the text form of ``check``."""
    has_reference = any(row.reference for row in rows)
    text = [f"{'':32} {'torch runtime':^44}" + ("   reference" if has_reference else "")]
    columns = f" {'max abs':>10} {'relative':>10} {'cosine':>11} {'worst':>9}"
    text.append(f"{'stage':32}" + columns * (2 if has_reference else 1))
    for row in rows:
        cells = [row.runtime, row.reference][: 2 if has_reference else 1]
        text.append(f"{row.run + ' ' + row.stage:32}" + "".join(map(_cell, cells)))
    runs = [name for name in LEGEND if any(row.run == name for row in rows)]
    text.append("; ".join(f"{name}: {LEGEND[name]}" for name in runs))
    return [*text, *(f"too far: {fault}" for fault in wrong), f"verdict: {_verdict(wrong)}"]


def _cell(d: Distance | None) -> str:
    if d is None:
        return f" {'-':>10} {'-':>10} {'-':>11} {'-':>9}"
    return f" {d.max_abs:10.2e} {d.relative:10.2e} {d.cosine:11.8f} {d.worst:9.6f}"


def _verdict(wrong: list[str]) -> str:
    return "apart" if wrong else "equal"


def document(rows: list[Row], wrong: list[str], head: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON form of ``check``: ``head``, the stages, the faults and the verdict."""
    stages = [{k: v for k, v in dataclasses.asdict(row).items() if v is not None} for row in rows]
    for distance in (row[k] for row in stages for k in ("runtime", "reference") if k in row):
        for name, value in distance.items():  # JSON has no infinity
            distance[name] = value if math.isfinite(value) else str(value)
    return {**head, "stages": stages, "faults": wrong, "verdict": _verdict(wrong)}


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, check, print; exit with 1 if something is too far apart.

    Raises:
        BundleError: the file cannot be opened or loaded.
        ConfigError: device, size, frames or source do not fit.
    """
    options = _parser().parse_args(arguments)
    bundle = Bundle.open(find_bundle(options.file))
    device = resolve_device(options.device)
    dtype = resolve_dtype(options.dtype, device)
    is_native = options.against is not None
    clip = choose_clip(bundle, options.frames, options.size, is_native)
    passes = draw_passes(bundle, clip, options.seed, whole_clip=is_native)
    parameters = sum(int(np.prod(bundle.shape(name))) for name in bundle.names())
    head = {
        "file": printable(bundle.path, 400),
        "family": bundle.family,
        "dtype": options.dtype,
        "device": str(device),
        "pixels": list(np.shape(passes[0].inputs.pixels)),
        "seed": options.seed,
        "parameters": parameters,
    }
    if not options.json:
        print("  ".join(f"{name} {value}" for name, value in head.items()), flush=True)
    start = time.perf_counter()
    against = None if options.against is None else resolve(options.against)
    rows, wrong = check(bundle, device, dtype, passes, against)
    head["seconds"] = round(time.perf_counter() - start, 1)
    if options.json:
        print(json.dumps(document(rows, wrong, head), indent=2))
    else:
        print("\n".join(lines(rows, wrong)), f"({head['seconds']} s)")
    if wrong:
        sys.exit(1)


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not HEIGHTxWIDTH in pixels")
    return int(match[1]), int(match[2] or match[1])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jepa_wm.check", description="Check a bundle against its specification."
    )
    parser.add_argument(
        "file", help="path of a GGUF bundle, its name on the hub or the name of a bundled one"
    )
    parser.add_argument(
        "--against", metavar="SRC",
        help="source folder (transformers or timm), or its name on the hub: a third column from "
        "its own implementation",
    )  # fmt: skip
    parser.add_argument(
        "--frames", type=int, help="frames of the clip; two tokens of time by default"
    )
    parser.add_argument(
        "--size", type=_size, metavar="HxW",
        help="pixels; by default 4x6 patches, with --against the training size. The specification "
        "takes about a second for 10 Gflop: twice the parameters times the patches",
    )  # fmt: skip
    parser.add_argument("--dtype", default="float32", choices=list(DTYPES))
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:N or auto")
    parser.add_argument("--seed", type=int, default=0, help="of the pixels")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    return parser


if __name__ == "__main__":
    command(main)
