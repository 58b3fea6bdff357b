"""Hide patches and predict their latents: ``python -m jepa_wm.predict FILE INPUT``.

Context and targets are ids (``--context 0:4096 --target 4096:8192``) or blocks of patches
(``--block 4:8,2:6,2:6``); by default the second half of a clip, or four squares of a picture.
Prints how far the predicted latents are from the real ones, where the file can give these, and
draws both masks and a heat map of the error with ``--picture``.
"""

import argparse
from argparse import BooleanOptionalAction
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from jepa_wm.bundle.faults import printable
from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.writer import replacing
from jepa_wm.errors import ConfigError
from jepa_wm.inputs import add_options, open_model, show
from jepa_wm.models import Model
from jepa_wm.models.latents import Agreement, agreement, has_real_latents, real_latents
from jepa_wm.models.masked import MaskedPredictor
from jepa_wm.models.masks import grid_of, parse_block, parse_ids, rest, usual_targets
from jepa_wm.models.vit import Grid
from jepa_wm.runtime import command
from jepa_wm.viz.masks import MaskedView, masked_prediction


@dataclass(frozen=True)
class Masks:
    """What is seen and what is predicted.

    Attributes:
        grid: Time slots, rows and columns of patches.
        context: Ids of the patches seen, int64 [K].
        targets: Ids of each block predicted on its own, int64 [M] each.
    """

    grid: Grid
    context: Tensor
    targets: list[Tensor]

    @property
    def count(self) -> int:
        """Patches of the input."""
        return self.grid[0] * self.grid[1] * self.grid[2]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m jepa_wm.predict",
        description="Predict the latents of hidden patches of one picture or clip.",
    )
    add_options(parser)
    parser.add_argument(
        "--context",
        metavar="IDS",
        help="patches seen, such as 0:4096 or 1,2,8:16 (all but targets)",
    )
    parser.add_argument(
        "--target", metavar="IDS", action="append", default=[],
        help="patches predicted; may be given several times and lie beyond the clip",
    )  # fmt: skip
    parser.add_argument(
        "--block", metavar="T0:T1,Y0:Y1,X0:X1", action="append", default=[],
        help="patches predicted, as a block of time slots, rows and columns (of a picture: rows, "
        "columns); may be given several times",
    )  # fmt: skip
    parser.add_argument(
        "--apart", action=BooleanOptionalAction,
        help="predict each --target and --block on its own, as I-JEPA trains, or all together, as "
        "V-JEPA does (apart for a model of images)",
    )  # fmt: skip
    parser.add_argument(
        "--mask-index", type=int, default=1,
        help="which mask token stands for the targets, modulo their number (1)",
    )  # fmt: skip
    parser.add_argument(
        "--whole-clip", action="store_true",
        help="encode everything and pick the context afterwards, as transformers does",
    )  # fmt: skip
    parser.add_argument("--picture", type=Path, help="draw masks and error: .png, .pdf or .svg")
    parser.add_argument("--out", type=Path, help="write the predicted latents: .npy [M,D]")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, predict, print and draw.

    Raises:
        BundleError: the bundle is broken, or an output cannot be written.
        ConfigError: the bundle has no masked predictor, or input and masks do not fit it.
    """
    options = _parser().parse_args(arguments)
    _check_suffix(options.picture, (".png", ".pdf", ".svg"))
    _check_suffix(options.out, (".npy",))
    bundle, model = open_model(options)
    if not isinstance(model.pred, MaskedPredictor):
        raise ConfigError(f"{bundle.path}: {_why_not(bundle)}")
    name, pixels = _one_input(options, bundle, model)
    masks = _masks(options, model, pixels)
    with _placed(options.picture) as picture, _placed(options.out) as out:
        predicted = _predict(options, bundle, model, pixels, masks)
        found = _compare(model, pixels, masks, predicted)
        for line in _report(model, name, masks, found, options.mask_index):
            print(line)
        if out:
            with open(out, "wb") as file:
                np.save(file, predicted[0].cpu().numpy())
        if picture:
            view = _view(model, pixels, masks, found)
            figure = masked_prediction(view, printable(name, 80))
            figure.savefig(picture, format=options.picture.suffix[1:].lower())
    for path in filter(None, (options.out, options.picture)):
        print(path)


def _why_not(bundle: Bundle) -> str:
    """Say why a bundle without a masked predictor cannot predict patches."""
    kind = bundle.get("jepa.pred.kind")
    if kind is None:
        return (
            "this bundle holds an encoder alone (jepa.pred.kind is absent); a source that leaves "
            "the predictor out, as transformers' folders of I-JEPA do, has none to give: convert "
            "the authors' own file"
        )
    return f"jepa.pred.kind is {kind}; only a masked predictor fills in patches"


def _check_suffix(path: Path | None, wanted: tuple[str, ...]) -> None:
    if path is not None and path.suffix.lower() not in wanted:
        raise ConfigError(f"{path}: the name must end in {', '.join(wanted)}")


@contextmanager
def _placed(path: Path | None) -> Iterator[Path | None]:
    if path is None:
        yield None
    else:
        with replacing(path) as temporary:
            temporary.touch()  # a place that cannot be written is noticed before the work
            yield temporary


def _one_input(options: argparse.Namespace, bundle: Bundle, model: Model) -> tuple[str, Tensor]:
    """Read and preprocess the one picture or clip there should be, float [1,...]."""
    shown = show(options, bundle, model)
    pairs = shown.named_frames
    name, frames = next(pairs)
    if shown.count != 1 and next(pairs, None) is not None:
        held = shown.count or "several"
        what = "pictures or clips" if shown.as_clip else "pictures"
        raise ConfigError(f"{options.inputs[0]}: {held} {what} given; predict shows one")
    try:
        return name, model.pixels(frames)[None]
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error


def _masks(options: argparse.Namespace, model: Model, pixels: Tensor) -> Masks:
    assert isinstance(model.pred, MaskedPredictor)
    grid = grid_of(model, pixels)
    count = grid[0] * grid[1] * grid[2]
    most = model.pred.most_ids
    targets = [parse_ids(text, count, most) for text in options.target]
    targets += [parse_block(text, grid) for text in options.block]
    targets = targets or usual_targets(grid)
    context = parse_ids(options.context, count) if options.context else None
    if context is None:
        context = rest(grid, torch.cat(targets))
    is_apart = not model.enc.config.takes_clips if options.apart is None else options.apart
    if not is_apart:
        targets = [torch.cat(targets)]
    return Masks(grid, context, targets)


def _predict(
    options: argparse.Namespace, bundle: Bundle, model: Model, pixels: Tensor, masks: Masks
) -> Tensor:
    """Predict block after block, float32 [1,M,levels*D]."""
    try:
        parts = [
            model.predict(
                pixels,
                masks.context,
                target,
                mask_index=options.mask_index,
                whole_clip=options.whole_clip,
            ).target
            for target in masks.targets
        ]
    except ValueError as error:
        raise ConfigError(f"{bundle.path}: {error}") from error
    predicted = torch.cat(parts, 1)
    if not predicted.isfinite().all():
        raise ConfigError(f"{bundle.path}: gives NaN or infinity; run it with --dtype float32")
    return predicted


def _compare(
    model: Model, pixels: Tensor, masks: Masks, predicted: Tensor
) -> tuple[Tensor, Agreement] | None:
    """Return the targets inside the input, int64 [m], and how well each agrees; None if unknown."""
    targets = torch.cat(masks.targets)
    inside = targets < masks.count
    if not has_real_latents(model) or not inside.any():
        return None
    assert isinstance(model.pred, MaskedPredictor)
    real = real_latents(model, pixels)[:, targets[inside].to(model.device)]
    levels = model.pred.config.n_hier_in
    return targets[inside], agreement(predicted[:, inside.to(model.device)], real, levels)


def _report(
    model: Model, name: str, masks: Masks, found: tuple[Tensor, Agreement] | None, mask_index: int
) -> Iterator[str]:
    assert isinstance(model.pred, MaskedPredictor)
    config, targets = model.pred.config, torch.cat(masks.targets)
    slots, rows, columns = masks.grid
    yield f"{printable(name)}: {slots} x {rows} x {columns} patches (slots, rows, columns)"
    token = mask_index % config.n_mask_tokens
    blocks = f" in {len(masks.targets)} blocks" if len(masks.targets) > 1 else ""
    yield f"context {len(masks.context)}, target {len(targets)}{blocks}, mask token {token}"
    both = int(torch.isin(targets, masks.context).sum())
    beyond = int((targets >= masks.count).sum())
    if both:
        yield f"note: {both} targets are in the context too, so they were seen"
    if beyond:
        yield f"note: {beyond} targets lie beyond the input, where nothing real is known"
    if not has_real_latents(model):
        yield (
            f"no real latents to compare with: the predictor gives {config.out_dim} numbers, those "
            f"of the model it was distilled from; this file's encoder gives {config.enc_dim}"
        )
    if found is not None:
        yield f"{'against the real latents':26}{'mean':>10}{'median':>10}{'worst':>10}"
        yield from _rows(*found)


def _rows(targets: Tensor, found: Agreement) -> Iterator[str]:
    """Give a line a level and measure, with the patch that came out worst."""
    levels = found.cosine.shape[-1]
    for level in range(levels):
        name = f" of level {level}" if levels > 1 else ""
        for title, values, worst in (
            ("cosine", found.cosine[0, :, level].cpu(), torch.argmin),
            ("L1", found.l1[0, :, level].cpu(), torch.argmax),
        ):
            at = int(worst(values))
            mean, median = float(values.mean()), float(values.quantile(0.5))
            yield (
                f"{title + name:26}{mean:10.4f}{median:10.4f}{float(values[at]):10.4f}"
                f"  (patch {int(targets[at])})"
            )


def _view(
    model: Model, pixels: Tensor, masks: Masks, found: tuple[Tensor, Agreement] | None
) -> MaskedView:
    """Gather what the picture shows; a patch that was predicted twice shows its mean error."""

    def marked(ids: Tensor) -> np.ndarray:
        flags = torch.zeros(masks.count, dtype=torch.bool)
        flags[ids[ids < masks.count]] = True
        return flags.reshape(masks.grid).numpy()

    error = None
    if found is not None:
        targets, agreed = found
        wrong = 1 - agreed.cosine[0].mean(-1).cpu().double()
        total = torch.zeros(masks.count, dtype=torch.float64).index_add_(0, targets, wrong)
        error = (total / torch.bincount(targets, minlength=masks.count)).reshape(masks.grid)
    clip = pixels[0] if pixels.ndim == 5 else pixels
    step = max(len(clip) // masks.grid[0], 1)
    frames = model.preprocess.picture(clip[::step][: masks.grid[0]])
    return MaskedView(
        frames=frames.cpu().numpy(),
        context=marked(masks.context),
        target=marked(torch.cat(masks.targets)),
        error=None if error is None else error.numpy(),
    )


if __name__ == "__main__":
    command(main)
