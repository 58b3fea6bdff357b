"""Which patches are seen and which are predicted: ids from text, blocks, and a family's usual mask.

Ids are t-major, then rows, then columns, on the grid of time slots, rows and columns of patches.
"""

import math
import re

import torch
from torch import Tensor

from jepa_wm.errors import ConfigError
from jepa_wm.models.model import Model
from jepa_wm.models.vit import Grid

MAX_IDS = 1 << 17  # rows of one list: bounds a typing error, not a model

_RANGE = re.compile(r"(\d{0,9}):(\d{0,9})|(\d{1,9})", re.ASCII)
_SHARE = 0.4  # side of a target block against the picture's; I-JEPA draws areas of 0.15 to 0.2


def grid_of(model: Model, pixels: Tensor) -> Grid:
    """Return the grid of a model's tokens for pixels float [B,C,h,w] or [B,T,C,h,w]."""
    c = model.enc.config
    frames = pixels.shape[1] if c.takes_clips else 1
    is_image = c.image_patch_embed and frames == 1
    slots = 1 if is_image or not c.takes_clips else max(frames // c.tubelet_size, 1)
    return slots, pixels.shape[-2] // c.patch_size, pixels.shape[-1] // c.patch_size


def parse_ids(text: str, end: int, most: int | None = None) -> Tensor:
    """Read ids such as ``0:4096``, ``7`` or ``1,2,8:16``, int64 [K], in the order given.

    Args:
        text: Numbers and half-open ranges between commas; an absent end of a range is 0 or ``end``.
        end: Number of patches in what is shown.
        most: Ids must lie below this; ``end`` by default.

    Raises:
        ConfigError: the text is no such list, an id lies beyond ``most``, or there are none or
            more than ``MAX_IDS``.
    """
    most = end if most is None else most
    ranges = [_ends(text, part, end) for part in text.split(",")]
    count = sum(max(stop - start, 0) for start, stop in ranges)
    if any(stop > most or start >= stop for start, stop in ranges):
        raise ConfigError(f"ids {text!r}: wanted numbers 0 to {most - 1} and rising ranges")
    if count > MAX_IDS:
        raise ConfigError(f"ids {text!r}: {count} of them; at most {MAX_IDS}")
    return torch.cat([torch.arange(start, stop) for start, stop in ranges])


def _ends(text: str, part: str, end: int) -> tuple[int, int]:
    found = _RANGE.fullmatch(part.strip())
    if found is None:
        raise ConfigError(f"ids {text!r}: {part!r} is no number and no range such as 0:4096")
    if found[3]:
        return int(found[3]), int(found[3]) + 1
    return int(found[1] or 0), int(found[2] or end)


def parse_block(text: str, grid: Grid) -> Tensor:
    """Read a block such as ``4:8,2:6,2:6`` (time slots, rows, columns; or rows, columns) as ids.

    Args:
        text: Half-open ranges or single numbers; an absent end is the grid's.
        grid: Time slots, rows and columns of patches.

    Raises:
        ConfigError: it is no such text, or the block is empty or leaves the grid.
    """
    parts = text.split(",")
    if len(parts) == 2:
        parts = [":", *parts]
    shape = f"{grid[0]} time slots, {grid[1]} rows and {grid[2]} columns"
    if len(parts) != 3:
        raise ConfigError(f"block {text!r}: wanted T0:T1,Y0:Y1,X0:X1 on a grid of {shape}")
    axes = []
    for part, length in zip(parts, grid, strict=True):
        start, stop = _ends(text, part, length)
        if not start < stop <= length:
            raise ConfigError(f"block {text!r}: {part!r} is empty or leaves the grid of {shape}")
        axes.append(torch.arange(start, stop))
    return block_ids(grid, *axes)


def block_ids(grid: Grid, slots: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the ids of all patches in these slots, rows and columns, int64 [K], rising."""
    ids = (slots[:, None, None] * grid[1] + rows[:, None]) * grid[2] + columns
    return ids.flatten()


def usual_targets(grid: Grid) -> list[Tensor]:
    """Return target blocks of the kind the families train with, int64 [M] each.

    A clip: the second half of its time slots, whole. A picture: four squares, one in the middle of
    each quarter, with gaps that stay visible.

    Raises:
        ConfigError: the grid has one patch only.
    """
    slots, rows, columns = grid
    if slots * rows * columns < 2:
        raise ConfigError("the picture is a single patch; there is nothing to predict it from")
    if slots > 1:
        half = torch.arange((slots + 1) // 2, slots)
        return [block_ids(grid, half, torch.arange(rows), torch.arange(columns))]
    if min(rows, columns) < 3:  # no room for gaps
        return [torch.tensor([rows * columns - 1])]
    places = [(_middle(rows, i), _middle(columns, j)) for i in (0, 1) for j in (0, 1)]
    return [block_ids(grid, torch.arange(1), *place) for place in places]


def _middle(length: int, half: int) -> Tensor:
    """Return the middle of the first or second half of an axis, with a gap to its end."""
    room = length // 2
    size = max(1, min(round(_SHARE * length), room - 1))
    start = half * (length - room) + math.ceil((room - size) / 2)
    return torch.arange(start, start + size)


def rest(grid: Grid, targets: Tensor) -> Tensor:
    """Return the ids of the grid that are no targets, int64 [K], rising.

    Raises:
        ConfigError: there are none.
    """
    seen = torch.ones(math.prod(grid), dtype=torch.bool)
    seen[targets[targets < len(seen)]] = False
    if not seen.any():
        raise ConfigError("the targets are the whole input; nothing is left as context")
    return seen.nonzero()[:, 0]
