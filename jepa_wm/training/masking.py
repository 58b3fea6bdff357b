"""Multi-block masks over the patches of a clip: what the encoder sees, what is to be predicted.

Paper: V-JEPA, arXiv 2404.08471, section 3.2. There a block runs through all frames; here it covers
all or one, drawn evenly, because the pictures of a still camera differ in little but the arm: what
is hidden in one frame may have to be told from the other.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from jepa_wm.models.vit import Grid

_SIDE = (0.25, 0.7)  # of a block, as shares of the grid's side


class Mask(NamedTuple):
    """Patches of a clip in two parts.

    Attributes:
        context: Ids the encoder sees, int64 [K], ascending.
        target: Ids to predict, int64 [M], ascending.
    """

    context: Tensor
    target: Tensor


def block_mask(rng: np.random.Generator, grid: Grid, share: float) -> Mask:
    """Hide random blocks until at least ``share`` of the patches are hidden; some stay seen.

    Args:
        rng: Source of the draw.
        grid: Patches along time, height and width.
        share: Least share of hidden patches, above 0 and below 1.
    """
    t, h, w = grid
    hidden = np.zeros(grid, bool)
    while hidden.mean() < share:
        height, width = (_side(rng, size) for size in (h, w))
        y, x = rng.integers(h - height + 1), rng.integers(w - width + 1)
        frame = rng.integers(2 * t)  # the upper half of the draw means all frames
        times = slice(frame, frame + 1) if frame < t else slice(None)
        before = hidden.copy()
        hidden[times, y : y + height, x : x + width] = True
        if hidden.all():
            hidden = before
    flat = torch.from_numpy(hidden.ravel())
    return Mask(torch.nonzero(~flat)[:, 0], torch.nonzero(flat)[:, 0])


def _side(rng: np.random.Generator, size: int) -> int:
    """Draw a side of a block on an axis of ``size`` patches."""
    low, high = (max(1, round(part * size)) for part in _SIDE)
    return int(rng.integers(low, high + 1))
