"""Attention by frame against a dense mask; every form of attention against float64."""

import pytest
import torch
import torch.nn.functional as F
from drawn import difference, draw

from jepa_wm.models.attention import MANY_KEYS, SCORES, FrameCausal, attention, by_products
from jepa_wm.models.packed import has_packed_kernels

CPU = torch.device("cpu")
LONG = FrameCausal((200, 1, 150, 200), 1)
products = pytest.mark.skipif(not has_packed_kernels(CPU), reason="PyTorch without oneDNN's linear")


def dense_mask(frames):
    """Rows that see rows, bool [N,N], written down whole."""
    at = [-1] * frames.prefix + [t for t, rows in enumerate(frames.rows) for _ in range(rows)]
    frame = torch.tensor(at)
    sees = (frame[:, None] >= frame) & (frame >= 0)  # nothing of a patch row sees CLS
    sees[: frames.prefix] = True
    return sees


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("rows", [(4,), (6, 6, 6, 6, 6), (5, 1, 7, 2)])
@pytest.mark.parametrize("grad", [False, True])
def test_frame_by_frame_is_the_dense_mask(rows, prefix, grad):
    frames = FrameCausal(rows, prefix)
    shape = (2, 3, prefix + sum(rows), 8)
    q, k, v = (draw(name, shape).double() for name in "qkv")
    with torch.set_grad_enabled(grad):
        found = attention(q, k, v, frames=frames)
    wanted = F.scaled_dot_product_attention(q, k, v, attn_mask=dense_mask(frames))
    assert difference(found, wanted) < 1e-12


def rows_of(heads, rows, width, names="qkv"):
    """Queries, keys and values as views of one tensor [B,N,3,heads,d], as blocks make them."""
    return draw(names, (2, rows, 3, heads, width)).permute(2, 0, 3, 1, 4)


def exact(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=mask)


@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 4e-3), (torch.float16, 5e-4)]
)
@pytest.mark.parametrize("frames", [None, LONG])
@pytest.mark.parametrize("rows", [3, MANY_KEYS + 40])
def test_inference_in_every_precision(dtype, bound, frames, rows):
    """Few keys and many; beyond a dtype's own rounding nothing is lost."""
    frames = (
        None if frames is None else FrameCausal((1,) * (rows - 1) if rows < 9 else LONG.rows, 1)
    )
    q, k, v = rows_of(2, rows, 20).to(dtype)
    with torch.inference_mode():
        found = attention(q, k, v, frames=frames)
    assert found.dtype == dtype
    wanted = exact(q, k, v, None if frames is None else dense_mask(frames))
    assert difference(found.double(), wanted) < bound


@products
@pytest.mark.parametrize("rows", [5, 700])
def test_products_of_more_keys_than_queries_and_of_pieces(rows):
    keys = 2 * SCORES // 700  # two pieces at 700 rows
    q = draw("q", (1, 2, rows, 8))
    k, v = draw("kv", (2, 1, 2, keys, 8))
    with torch.inference_mode():
        found = by_products(q, k, v, [(0, rows, 0, keys)])
    assert difference(found.double(), exact(q, k, v)) < 1e-6


def test_a_row_does_not_depend_on_the_batch():
    q, k, v = rows_of(2, MANY_KEYS, 8)
    with torch.inference_mode():
        together = attention(q, k, v)
        alone = torch.cat([attention(q[[b]], k[[b]], v[[b]]) for b in range(2)])
    assert torch.equal(together, alone)


def test_double_precision_stays_double():
    q, k, v = rows_of(1, MANY_KEYS, 8).double()
    with torch.inference_mode():
        assert difference(attention(q, k, v), exact(q, k, v)) < 1e-12


def test_gradients_flow_through_long_attention():
    q, k, v = (x.requires_grad_() for x in rows_of(1, MANY_KEYS, 8))
    attention(q, k, v, frames=FrameCausal((MANY_KEYS // 2,) * 2)).sum().backward()
    assert v.grad.abs().max() > 0
