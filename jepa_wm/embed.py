"""Embed pictures and videos: ``python -m jepa_wm.embed FILE INPUT... --out X.npy``.

Inputs are read, embedded and written in batches, in order; nothing else is held. Without ``--out``
a line for each is printed. ``.npy`` holds float32 [count,D] (or [count,N,D]) with the names in
``X.npy.json``; ``.json`` and ``.csv`` hold both.
"""

import argparse
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from jepa_wm.bundle.faults import printable
from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.writer import replacing
from jepa_wm.errors import ConfigError
from jepa_wm.inputs import Shown, add_options, open_model, show
from jepa_wm.media.tables import Table, names_path, npy_table, require_suffix, text_table
from jepa_wm.models import Model
from jepa_wm.models.batching import run_batched
from jepa_wm.runtime import command

POOLS = ("cls", "mean", "none", "projected")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jepa_wm.embed", description="Embed pictures, clips and videos."
    )
    add_options(parser)
    parser.add_argument(
        "--pool", choices=POOLS,
        help="what stands for an input: the CLS token, the mean of the patches, all tokens (none), "
        "or LeWM's latent (projected); the family's own by default",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, help="inputs at once (16 images, or one clip)")
    parser.add_argument("--out", type=Path, help="file to write: .npy, .json or .csv")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, embed and write.

    Raises:
        BundleError: the bundle is broken, or the output cannot be written.
        ConfigError: an input is broken or does not fit the model.
    """
    options = _parser().parse_args(arguments)
    suffix = require_suffix(options.out) if options.out else ""
    bundle, model = open_model(options)
    pool = options.pool or model.enc.default_pool
    _check_pool(bundle, model, pool)
    shown = show(options, bundle, model)
    batch = shown.default_batch if options.batch is None else options.batch
    if batch < 1:
        raise ConfigError(f"--batch {batch}: wanted at least 1")
    if options.out is None:
        for name, z in _embedded(model, shown, pool, batch):
            print(_line(name, z))
        return
    with _opened(options.out, suffix, _about(bundle, options, shown, pool)) as table:
        count, z = 0, np.zeros(0, np.float32)
        for name, z in _embedded(model, shown, pool, batch):
            table.add(name, z)
            count += 1
    names = f", names in {names_path(options.out)}" if suffix == ".npy" else ""
    print(f"{options.out}: {count} x {list(z.shape)}, pool {pool}{names}")


def _embedded(
    model: Model, shown: Shown, pool: str, batch: int
) -> Iterator[tuple[str, NDArray[np.float32]]]:
    rows = run_batched(
        model, shown.named_frames, lambda pixels: model.embed_pixels(pixels, pool), batch
    )
    unit = "clip" if shown.as_clip else "image"
    for name, z in tqdm(rows, total=shown.count, unit=unit, disable=None):  # off where piped
        if not z.isfinite().all():
            raise ConfigError(f"{name}: gives NaN or infinity; run it with --dtype float32")
        yield name, z.cpu().numpy()


def _check_pool(bundle: Bundle, model: Model, pool: str) -> None:
    """Refuse a pool the model lacks before anything is read."""
    config = model.enc.config
    try:
        model.enc.pool(torch.zeros(1, config.prefix + 1, config.embed_dim).to(model.device), pool)
    except ValueError as error:
        raise ConfigError(f"{bundle.path}: {error}") from error


def _about(bundle: Bundle, options: argparse.Namespace, shown: Shown, pool: str) -> dict[str, Any]:
    return {
        "model": {"path": str(bundle.path), "sha256": bundle.sha256, "family": bundle.family},
        "pool": pool,
        "dtype": options.dtype,
        "as": "clip" if shown.as_clip else "images",
        "frames": shown.n_frames or "all",
    }


@contextmanager
def _opened(out: Path, suffix: str, about: dict[str, Any]) -> Iterator[Table]:
    """Open a table that appears whole, with its names, or not at all."""
    with replacing(out) as temporary:
        temporary.touch()  # a place that cannot be written is told by the name given
        if suffix != ".npy":
            with text_table(temporary, suffix, about) as table:
                yield table
            return
        with replacing(names_path(out)) as names, npy_table(temporary, names, about) as table:
            yield table


def _line(name: str, z: NDArray[np.float32]) -> str:
    """Say shape, length and the first numbers of an embedding."""
    first = " ".join(f"{value:8.4f}" for value in z.ravel()[:6])
    norm = math.sqrt(float(np.square(z, dtype=np.float64).sum()))
    return f"{printable(name):40} {list(z.shape)}  norm {norm:9.4f}  {first} ..."


if __name__ == "__main__":
    command(main)
