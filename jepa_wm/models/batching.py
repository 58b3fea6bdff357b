"""Put named pictures or clips through a model in batches, in order, holding one batch at a time."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, islice

import torch
from torch import Tensor

from jepa_wm.errors import ConfigError
from jepa_wm.models.model import Frames, Model


def run_batched(
    model: Model,
    named_frames: Iterable[tuple[str, Frames]],
    compute: Callable[[Tensor], Tensor],
    batch: int,
) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and the result of each picture or clip, in the order given.

    Args:
        model: Whose preprocessing the frames go through, each picture or clip on its own.
        named_frames: Names and frames (``Model.embed``); taken one batch at a time.
        compute: Preprocessed pixels float [B,...] to results [B,...], such as
            ``model.embed_pixels``.
        batch: Most samples at once; neighbours of one length share a batch.

    Raises:
        ConfigError: frames that cannot be preprocessed, with their name.
        ValueError: ``batch`` is below 1; and what ``compute`` raises.
    """
    if batch < 1:
        raise ValueError(f"batch = {batch} must be at least 1")
    prepared = ((name, _pixels(model, name, frames)) for name, frames in named_frames)
    for _, alike in groupby(prepared, key=lambda pair: pair[1].shape):
        while some := list(islice(alike, batch)):
            with torch.inference_mode():
                results = compute(torch.stack([pixels for _, pixels in some]))
            yield from zip((name for name, _ in some), results, strict=True)


def _pixels(model: Model, name: str, frames: Frames) -> Tensor:
    try:
        return model.pixels(frames)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from error
