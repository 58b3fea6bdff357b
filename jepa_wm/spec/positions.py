"""Where a token is: grid positions, RoPE angles, and position tables on other grids.

Token order is t-major, then h, then w: id = (t * gh + h) * gw + w; t counts tubelets.
"""

import math
from collections.abc import Callable

import numpy as np

from jepa_wm.spec.ops import Array

Grid = tuple[int, int, int]
"""Temporal slots, rows, columns."""


def decode_ids(ids: Array, rows: int, columns: int) -> Array:
    """Return the position (t, h, w) of every id, float64 [..,3]; t is not bounded."""
    t, inside = np.divmod(ids, rows * columns)
    h, w = np.divmod(inside, columns)
    return np.stack([t, h, w], -1).astype(np.float64)


def rescale_to(positions: Array, rows: int, columns: int, reference: int) -> Array:
    """Stretch h and w so that the last row and column lie where those of the reference grid do.

    h' = h (ref - 1) / (gh - 1), w' likewise; t stays. A grid of one row or column keeps position 0
    (the reference divides 0 by 0).

    Source: vjepa2 ``app/vjepa_2_1/models/utils/modules.py`` (interpolate_rope).
    """
    factors = [1.0] + [(reference - 1) / max(side - 1, 1) for side in (rows, columns)]
    return positions * np.array(factors)


def rope_angles(positions: Array, head_dim: int, layout: str, theta: float) -> Array:
    """Return the RoPE angle of every lane of a head, float64 [..,head_dim], from (t,h,w) [..,3].

    The head is cut into a segment of ``2 * ((head_dim // 3) // 2)`` lanes for t, one for h, one for
    w; lanes beyond the third segment have the angle 0. With half = segment / 2 the frequencies are
    omega_k = theta^(-k/half), and lane j of a segment uses

    * ``tiled`` (vjepa2, levjepa, AC): omega_{j mod half} -- the two lanes of a pair differ, and
      with an odd half the seam falls inside a pair;
    * ``interleaved`` (vjepa2_1): omega_{j // 2} -- textbook RoPE.

    Source: vjepa2 ``src/models/utils/modules.py`` and ``app/vjepa_2_1/models/utils/modules.py``,
        ``rotate_queries_or_keys``.
    """
    segment = 2 * ((head_dim // 3) // 2)
    half = segment // 2
    lanes = np.arange(segment)
    k = lanes % half if layout == "tiled" else lanes // 2
    omega = theta ** (-k / half)  # [segment]
    angles = np.zeros((*positions.shape[:-1], head_dim))
    for axis in range(3):
        angles[..., axis * segment : (axis + 1) * segment] = positions[..., axis, None] * omega
    return angles


def interpolate_2d(table: Array, rows: int, columns: int, rule: str) -> Array:
    """Return a square table [S*S,D] for another grid, [rows*columns,D]; its own grid unchanged.

    ``size`` samples with the step S/n; ``offset0.1`` with S/(n + 0.1), which moves every sample;
    ``antialias`` as size, with another cubic and a support that grows when shrinking.

    Source: transformers ``ViTEmbeddings.interpolate_pos_encoding`` (size); lite_ssl ``ViTv2`` and
        DINOv2 (offset0.1); timm ``resample_abs_pos_embed`` (antialias).
    """
    side = math.isqrt(len(table))
    if (rows, columns) == (side, side):
        return table
    square = table.reshape(side, side, -1)
    vertical, horizontal = (_resampling(rule)(side, n) for n in (rows, columns))
    return np.einsum("as,bt,std->abd", vertical, horizontal, square).reshape(rows * columns, -1)


def _resampling(rule: str) -> Callable[[int, int], Array]:
    """Return (side, wanted) -> matrix [wanted, side] of one axis."""
    if rule == "antialias":
        return antialiased_cubic
    offset = {"size": 0.0, "offset0.1": 0.1}[rule]
    return lambda side, n: cubic(side, n, side / (n + offset))


def interpolate_3d(table: Array, stored: Grid, wanted: Grid) -> Array:
    """Return a table [T*S*S,D] for another clip, trilinear with the step N/n per axis.

    Source: jepa ``src/models/vision_transformer.py``, ``interpolate_pos_encoding``. Upstream's
        output length floor(N * (n / N)) can come out one short in floating point; here it is n.
    """
    t, h, w = (tent(N, n, 1 / (n / N)) for N, n in zip(stored, wanted, strict=True))
    full = np.einsum("at,bh,cw,thwd->abcd", t, h, w, table.reshape(*stored, -1), optimize=True)
    return full.reshape(math.prod(wanted), -1)


# Resampling of one axis as a matrix [n_out, n_in]; corners are not aligned: output sample i lies at
# (i + 1/2) step - 1/2 on the input axis.


def tent(n_in: int, n_out: int, step: float) -> Array:
    """Return linear interpolation; samples before the first input sample take its value."""
    matrix = np.zeros((n_out, n_in))
    for i in range(n_out):
        at = max((i + 0.5) * step - 0.5, 0.0)
        left = min(math.floor(at), n_in - 1)
        matrix[i, left] += 1 - (at - left)
        matrix[i, min(left + 1, n_in - 1)] += at - left
    return matrix


def _keys(x: float, a: float) -> float:
    """Return the cubic convolution kernel of Keys at distance x."""
    x = abs(x)
    if x < 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return (((x - 5) * x + 8) * x - 4) * a if x < 2 else 0.0


def cubic(n_in: int, n_out: int, step: float) -> Array:
    """Return bicubic's axis: four taps, a = -0.75, the border sample repeated outwards."""
    matrix = np.zeros((n_out, n_in))
    for i in range(n_out):
        at = (i + 0.5) * step - 0.5
        for tap in range(math.floor(at) - 1, math.floor(at) + 3):
            matrix[i, min(max(tap, 0), n_in - 1)] += _keys(at - tap, -0.75)
    return matrix


def antialiased_cubic(n_in: int, n_out: int) -> Array:
    """Return antialiased bicubic's axis: a = -0.5, support 2 max(step, 1), border taps left out.

    The taps that remain are scaled to the sum 1, also when enlarging, so it differs from ``cubic``
    there too.
    """
    step = n_in / n_out
    stretch = max(step, 1.0)
    matrix = np.zeros((n_out, n_in))
    for i in range(n_out):
        centre = (i + 0.5) * step
        first = max(int(centre - 2 * stretch + 0.5), 0)
        last = min(int(centre + 2 * stretch + 0.5), n_in)
        for tap in range(first, last):
            matrix[i, tap] = _keys((tap - centre + 0.5) / stretch, -0.5)
    return matrix / matrix.sum(1, keepdims=True)
