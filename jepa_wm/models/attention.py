"""Softmax attention, whole, causal by row or causal by frame, in the form that is fastest here.

A frame's rows see a run of keys, so attention by frame is a list of spans and no N x N mask exists.
On a CPU with AVX-512 and few threads long spans go through oneDNN's products: PyTorch's fused
kernel calls MKL, which on AMD processors stops at AVX2 (``packed``). Where the processor itself
stops there, the fused kernel is the faster one (by 5 to 12 %, measured on Zen 1).
"""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from jepa_wm.models.cores import map_on_cores
from jepa_wm.models.packed import has_packed_kernels

FEW_ROWS = 64  # of queries: bfloat16 is widened to float32 for them
MANY_KEYS = 512  # from which products pay for the calls they take
MANY_THREADS = 9  # from which Python may not hand out heads fast enough
LONG = 1 << 21  # scores of a head that are worth threads of their own, which start cold
SCORES = 1 << 20  # numbers of a product's result that stay in the cache

Span = tuple[int, int, int, int]
"""Rows from, to; keys from, to."""


@dataclass(frozen=True)
class FrameCausal:
    """Which rows see which: a row of frame t sees the frames up to t, whole.

    Attributes:
        rows: Rows of every frame, in order, behind the prefix.
        prefix: Leading rows that see every row and are seen by each other only (CLS).
    """

    rows: tuple[int, ...]
    prefix: int = 0

    def spans(self) -> list[Span]:
        """Return what each run of rows sees."""
        total = self.prefix + sum(self.rows)
        spans = [(0, self.prefix, 0, total)] if self.prefix else []
        start = self.prefix
        for rows in self.rows:
            spans.append((start, start + rows, self.prefix, start + rows))
            start += rows
        return spans


def attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, frames: FrameCausal | None = None
) -> Tensor:
    """Return softmax(q k^T / sqrt(d)) v for q, k, v float [B,heads,N,d].

    PyTorch's fused kernel is best for inference, but its CPU backward takes half of a training
    step at the 3 to 65 tokens of a small model; the plain form is up to twice as fast there.

    Args:
        q: Queries.
        k: Keys.
        v: Values.
        causal: Row i sees rows up to i.
        frames: Row blocks that see each other instead.
    """
    if _is_better_by_products(q, k, causal):
        spans = [(0, q.shape[2], 0, k.shape[2])] if frames is None else frames.spans()
        return by_products(q.float(), k.float(), v.float(), spans).to(v.dtype)
    if _is_better_in_float32(q):
        return attention(q.float(), k.float(), v.float(), causal, frames).to(v.dtype)
    if frames is not None:
        return _by_spans(q, k, v, frames.spans())
    if not (torch.is_grad_enabled() and q.device.type == "cpu"):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # [B,heads,N,N]
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    return scores.softmax(-1).to(v.dtype) @ v


def by_products(q: Tensor, k: Tensor, v: Tensor, spans: list[Span]) -> Tensor:
    """Attend through oneDNN's matrix products, heads shared out among the cores.

    Args:
        q: float32 [B,heads,N,d] on a CPU with packed kernels, no gradients; k and v likewise.
        k: Keys.
        v: Values.
        spans: What each run of rows sees; together all rows.
    """
    B, heads, N, d = q.shape
    pieces = [piece for span in spans for piece in _cut(span)]
    out = q.new_empty(B, N, heads, d)  # in this order merge_heads need not copy
    one = [
        (q[b, h], k[b, h], v[b, h], pieces, out[b, :, h]) for b in range(B) for h in range(heads)
    ]
    work = sum((end - start) * (last - first) for start, end, first, last in spans)
    if work >= LONG:
        map_on_cores(_head, one)  # every head fills its own part of the result
    else:
        for head in one:
            _head(*head)
    return out.transpose(1, 2)


def _head(q: Tensor, k: Tensor, v: Tensor, pieces: list[Span], out: Tensor) -> Tensor:
    """Attend with one head, q, k and v [N,d], into ``out`` [N,d]."""
    scale = q.shape[-1] ** -0.5
    k, v = k.contiguous(), v.contiguous()  # strided weights cost these kernels a thousandfold
    for start, end, first, last in pieces:
        scores = _product(q[start:end] * scale, k[first:last])
        out[start:end] = _product(scores.softmax(-1), v[first:last].t())
    return out


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")


def _cut(span: Span) -> list[Span]:
    """Cut a span's rows so that the scores of a piece stay in the cache."""
    start, end, first, last = span
    step = max(FEW_ROWS, SCORES // (last - first))
    return [(at, min(at + step, end), first, last) for at in range(start, end, step)]


def _by_spans(q: Tensor, k: Tensor, v: Tensor, spans: list[Span]) -> Tensor:
    k, v = k.contiguous(), v.contiguous()  # read once a span
    parts = [
        attention(q[:, :, start:end], k[:, :, first:last], v[:, :, first:last])
        for start, end, first, last in spans
    ]
    rows_first = [part.transpose(1, 2) for part in parts]
    return torch.cat(rows_first, 1).transpose(1, 2)  # heads are then merged without a copy


def _is_better_by_products(q: Tensor, k: Tensor, causal: bool) -> bool:
    return (
        not causal
        and k.shape[2] >= MANY_KEYS
        and q.dtype != torch.float64
        and _is_inference_without_tiles(q)
        and torch.get_num_threads() < MANY_THREADS
        and _has_wide_vectors()
        and has_packed_kernels(q.device)
    )


def _is_better_in_float32(q: Tensor) -> bool:
    """Say whether to widen half precision: the CPU's fused kernel loses time on it without AMX.

    On AVX512-BF16 float16 takes 1.5 to 3 times as long as float32, bfloat16 up to twice on few
    rows; on many it is even.
    """
    few = q.dtype == torch.bfloat16 and q.shape[2] <= FEW_ROWS
    return (q.dtype == torch.float16 or few) and _is_inference_without_tiles(q)


def _is_inference_without_tiles(q: Tensor) -> bool:
    return q.device.type == "cpu" and not torch.is_grad_enabled() and not _has_tiles()


@cache
def _has_wide_vectors() -> bool:
    """Say whether this CPU has AVX-512, and PyTorch uses it."""
    return torch.backends.cpu.get_cpu_capability().startswith("AVX512")


@cache
def _has_tiles() -> bool:
    """Say whether this CPU has AMX, where PyTorch's kernel is fast in bfloat16."""
    return bool(getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)())
