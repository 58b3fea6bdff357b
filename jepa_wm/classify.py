"""Say what is seen: ``python -m jepa_wm.classify FILE INPUT... [-k 5] [--json]``.

FILE is a bundle with a head, converted from a classifier or with ``--head`` from a probe. For every
picture, clip or video the likeliest classes are printed with their probability, best first; classes
of equal logits in the order of the model. With ``--json`` one document holds them all.
"""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from tqdm import tqdm

from jepa_wm.bundle.faults import printable
from jepa_wm.errors import ConfigError
from jepa_wm.inputs import Shown, add_options, open_model, show
from jepa_wm.models import Model
from jepa_wm.models.batching import run_batched
from jepa_wm.models.heads import top_classes
from jepa_wm.runtime import command


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jepa_wm.classify",
        description="Print the likeliest classes of pictures, clips and videos.",
    )
    add_options(parser)
    parser.add_argument("-k", type=int, default=5, help="classes printed of each (5)")
    parser.add_argument("--batch", type=int, help="inputs at once (16 images, or one clip)")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of text")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, classify and print.

    Raises:
        BundleError: the bundle is broken.
        ConfigError: it has no classifier, or an input is broken or does not fit the model.
    """
    options = _parser().parse_args(arguments)
    for name in ("k", "batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            dashes = "-" * min(len(name), 2)
            raise ConfigError(f"{dashes}{name} {value}: wanted at least 1")
    bundle, model = open_model(options)
    if model.head is None:
        raise ConfigError(
            f"{bundle.path}: has no classifier (jepa.head.kind = none); convert it from one, or "
            "with the file of a probe: python -m jepa_wm.convert ... --head PROBE"
        )
    shown = show(options, bundle, model)
    found = _classified(model, shown, options.batch or shown.default_batch, options.k)
    if options.json:
        about = {"path": str(bundle.path), "sha256": bundle.sha256, "family": bundle.family}
        print(json.dumps({"model": about, "results": list(found)}, indent=1, allow_nan=False))
        return
    for entry in found:
        print("\n".join(_lines(entry)))


def _classified(model: Model, shown: Shown, batch: int, k: int) -> Iterator[dict[str, Any]]:
    """Yield what is printed of each input, in order."""
    rows = run_batched(model, shown.named_frames, model.classify_pixels, batch)
    unit = "clip" if shown.as_clip else "image"
    for name, logits in tqdm(rows, total=shown.count, unit=unit, disable=None):  # off where piped
        yield {"name": name, "classes": _top(name, logits, model.labels, k)}


def _top(name: str, logits: Tensor, labels: tuple[str, ...], k: int) -> list[dict[str, Any]]:
    if not logits.isfinite().all():
        raise ConfigError(f"{name}: the logits are not finite; run it with --dtype float32")
    probabilities, order = (part.tolist() for part in top_classes(logits, k))
    return [
        {"index": i, "label": labels[i] if labels else None, "probability": p}
        for p, i in zip(probabilities, order, strict=True)
    ]


def _lines(entry: dict[str, Any]) -> list[str]:
    rows = [
        f"  {row['probability']:7.2%}  {row['label'] or 'class ' + str(row['index'])}"
        for row in entry["classes"]
    ]
    return [printable(entry["name"], 200), *(printable(row, 200) for row in rows)]


if __name__ == "__main__":
    command(main)
