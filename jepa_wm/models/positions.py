"""Position tables on other grids than the stored one.

The references differ in how the sampling step is derived; that choice is the ``rule`` of a bundle
(``jepa_wm.enc.pos_interp``, else its family's), never the caller's.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from jepa_wm.errors import BundleError

RULES = ("size", "offset0.1", "antialias")


def table_side(rows: int, n_prefix: int, name: str = "position table") -> int:
    """Return the side of the square grid a table was made for.

    Args:
        rows: Rows of the table, prefix included.
        n_prefix: Leading rows without a place on the grid (CLS).
        name: What to call the table in the error.

    Raises:
        BundleError: the rows without the prefix are not a square number.
    """
    side = math.isqrt(max(rows - n_prefix, 0))
    if side < 1 or side * side != rows - n_prefix:
        raise BundleError(f"{name} has {rows} rows, which is not {n_prefix} + a square number")
    return side


def interpolate_table(table: Tensor, grid: tuple[int, int], n_prefix: int, rule: str) -> Tensor:
    """Return the position table for ``grid``, the stored one bit for bit on its own grid.

    Bicubic with a = -0.75, corners not aligned. ``size`` samples with step S/g, ``offset0.1`` with
    S/(g + 0.1) (which shifts every row and is kept because the released models were trained so),
    ``antialias`` as ``size`` with the antialiasing filter when shrinking.

    Args:
        table: float [n_prefix + S*S, D], rows h-major.
        grid: (rows, columns) of patches, each at least 1.
        n_prefix: Leading rows kept as they are.
        rule: One of ``RULES``.

    Returns:
        float [n_prefix + rows*columns, D], the table's dtype.

    Raises:
        BundleError: the table is not square.
        ValueError: unknown rule or empty grid.

    Source: transformers ``ViTEmbeddings.interpolate_pos_encoding`` (size); DINOv2 and lite_ssl
        ``ViTv2`` (offset0.1);
    timm ``resample_abs_pos_embed`` and transformers ``Dinov2WithRegisters`` (antialias).
    """
    side = table_side(table.shape[0], n_prefix)
    if grid == (side, side):
        return table
    if rule not in RULES or min(grid) < 1:
        raise ValueError(
            f"rule {rule!r} (one of {', '.join(RULES)}), grid {grid}: not a position grid"
        )
    prefix, square = table[:n_prefix], table[n_prefix:]
    square = square.float().reshape(1, side, side, -1).permute(0, 3, 1, 2)
    if rule == "offset0.1":
        scale = ((grid[0] + 0.1) / side, (grid[1] + 0.1) / side)
        resized = F.interpolate(square, scale_factor=scale, mode="bicubic", align_corners=False)
    else:
        antialias = rule == "antialias"
        resized = F.interpolate(
            square, grid, mode="bicubic", align_corners=False, antialias=antialias
        )
    rows = resized.flatten(2)[0].T  # [g*g, D]
    return torch.cat([prefix, rows.to(table.dtype)])


def interpolate_clip_table(
    table: Tensor, stored: tuple[int, int, int], grid: tuple[int, int, int]
) -> Tensor:
    """Return a (time, height, width) table for ``grid``, the stored one bit for bit on its own.

    Trilinear, corners not aligned, step stored/wanted along each axis. The reference hands torch
    the factor wanted/stored, from which torch takes the same step but, for a few sizes, a row too
    few (and then fails); asking for the size has no such corner.

    Args:
        table: float [T*R*C, D], rows t-major.
        stored: (T, R, C), the grid of the table.
        grid: The wanted one, each at least 1.

    Source: facebookresearch/jepa ``vision_transformer.py``, ``interpolate_pos_encoding``.
    """
    if grid == stored:
        return table
    volume = table.float().reshape(1, *stored, -1).movedim(-1, 1)
    resized = F.interpolate(volume, grid, mode="trilinear", align_corners=False)
    return resized.flatten(2)[0].T.to(table.dtype)
