"""3-D rotary positions (RoPE) over time, height and width, in the layouts of the V-JEPA 2 families.

A head of width d has three segments of ``2 * (d // 3 // 2)`` lanes, one an axis; lanes behind them
pass unrotated. Pairs are adjacent lanes. ``tiled`` gives lane j of a segment the frequency
``j mod half``, so that the two lanes of a pair turn by different angles: no rotation, but what the
released models were trained with. ``interleaved`` gives both lanes of pair k frequency k.

Source: facebookresearch/vjepa2 ``src/models/utils/modules.py`` (tiled) and
    ``app/vjepa_2_1/models/utils/modules.py`` (interleaved, rescaled positions).
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rope:
    """Factors that turn queries and keys, the same for every head and layer.

    Attributes:
        cos: float32 [N,d] or, where images differ, [B,N,d].
        sin: As ``cos``.
    """

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Turn x [B,N,..,d] (any axes between) in float32 and return it in its own dtype."""
        shape = (*self.cos.shape[:-1], *(1,) * (x.ndim - 3), self.cos.shape[-1])
        cos, sin = self.cos.view(shape), self.sin.view(shape)
        even, odd = x[..., ::2].float(), x[..., 1::2].float()
        turned = torch.empty(x.shape, device=x.device)  # filled in place: stacking is slower
        turned[..., ::2] = torch.addcmul(even * cos[..., ::2], odd, sin[..., ::2], value=-1)
        turned[..., 1::2] = torch.addcmul(odd * cos[..., 1::2], even, sin[..., 1::2])
        return turned.to(x.dtype)

    def lead(self, rows: int) -> "Rope":
        """Put ``rows`` unrotated rows in front (CLS, registers)."""
        shape = (*self.cos.shape[:-2], rows, self.cos.shape[-1])
        return Rope(
            torch.cat([self.cos.new_ones(shape), self.cos], -2),
            torch.cat([self.sin.new_zeros(shape), self.sin], -2),
        )


def grid_positions(ids: Tensor, grid: tuple[int, int], ref_grid: int | None = None) -> Tensor:
    """Decode token ids on a grid into (t, h, w), float32 [..,3].

    Args:
        ids: int64 [..], t-major; an id beyond the encoded clip is a later time slot.
        grid: (rows, columns) of patches of a time slot.
        ref_grid: Rescale h and w so that the grid spans 0 to ``ref_grid - 1``; a side of one patch
            stays at 0 (the reference divides 0 by 0 there).
    """
    rows, columns = grid
    axes = (ids // (rows * columns), ids // columns % rows, ids % columns)
    t, h, w = (axis.to(torch.float32) for axis in axes)
    if ref_grid is not None:
        h = h * ((ref_grid - 1) / max(rows - 1, 1))
        w = w * ((ref_grid - 1) / max(columns - 1, 1))
    return torch.stack((t, h, w), -1)


def rope_table(positions: Tensor, head_dim: int, theta: float, layout: str) -> Rope:
    """Build the factors for positions float [..,3] (time, height, width) and heads of ``head_dim``.

    Args:
        positions: float [N,3] or [B,N,3].
        head_dim: Width d of a head, even and at least 6.
        theta: Base of the frequencies, theta^(-k / half).
        layout: ``tiled`` or ``interleaved``.
    """
    segment = 2 * (head_dim // 3 // 2)
    half = segment // 2
    k = torch.arange(half, device=positions.device, dtype=torch.float64)
    angles = positions.double()[..., None] * theta ** (-k / half)  # [..,3,half]
    lanes = angles.repeat(*(1,) * (angles.ndim - 1), 2)  # [..,3,segment], f_0.. f_0..
    if layout == "interleaved":
        lanes = angles.repeat_interleave(2, -1)
    lanes = lanes.flatten(-2)
    rest = lanes.new_zeros(*lanes.shape[:-1], head_dim - 3 * segment)
    lanes = torch.cat([lanes, rest], -1)
    return Rope(lanes.cos().float(), lanes.sin().float())
