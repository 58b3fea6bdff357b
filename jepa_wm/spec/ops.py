"""The pieces every graph is made of, in float64 numpy: plain, slow and meant to be read.

Shapes: B batch, N tokens, D width, H heads, d width of a head. Nothing here knows a family; every
size comes from the tensors, every switch from the bundle's keys.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jepa_wm.bundle.reader import Bundle

Array = np.ndarray

_erf = np.frompyfunc(math.erf, 1, 1)


class Weights:
    """The keys and tensors of a bundle; a tensor is read when it is asked for, as float64."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        self.get: Callable[[str], Any] = bundle.get
        self.has: Callable[[str], bool] = bundle.has

    def __call__(self, name: str) -> Array:
        """Return one tensor, float64, in the schema's shape."""
        return self.bundle.tensor(name).numpy().astype(np.float64)


def gelu_erf(x: Array) -> Array:
    """Return x Phi(x), with the error function (not the tanh approximation)."""
    return 0.5 * x * (1 + np.asarray(_erf(x / math.sqrt(2)), np.float64))


def gelu_tanh(x: Array) -> Array:
    """Return the tanh approximation of GELU."""
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def silu(x: Array) -> Array:
    """Return x sigmoid(x)."""
    return 0.5 * x * (1 + np.tanh(0.5 * x))  # x / (1 + exp(-x)) without its overflow


ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "gelu_erf": gelu_erf,
    "gelu_tanh": gelu_tanh,
    "silu": silu,
}


def linear(w: Weights, name: str, x: Array) -> Array:
    """Return x W^T + b: ``name.weight`` [out,in] and, where stored, ``name.bias`` [out]."""
    y = x @ w(f"{name}.weight").T
    return y + w(f"{name}.bias") if w.has(f"{name}.bias") else y


def mlp(w: Weights, name: str, x: Array, act: str) -> Array:
    """Return ``name.2(act(name.0(x)))``."""
    return linear(w, f"{name}.2", ACTIVATIONS[act](linear(w, f"{name}.0", x)))


def normalise(x: Array, eps: float) -> Array:
    """Return LayerNorm without affine part: over the last axis, with the biased variance."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps)


def layer_norm(w: Weights, name: str, x: Array, eps: float) -> Array:
    """Return the affine LayerNorm of the tensors ``name.weight`` and ``name.bias``, each [D]."""
    return normalise(x, eps) * w(f"{name}.weight") + w(f"{name}.bias")


def softmax(x: Array) -> Array:
    """Return the softmax over the last axis."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rotate(x: Array, angles: Array) -> Array:
    """Apply RoPE to one head: x [..,N,d] with an angle for every lane, [..,N,d].

    Pairs are adjacent lanes (2u, 2u+1), and each lane of a pair uses its own angle:
    out[2u] = x[2u] cos - x[2u+1] sin, out[2u+1] = x[2u+1] cos + x[2u] sin. Where a pair holds two
    angles this is no rotation; the models were trained so (``positions.rope_angles``). An odd last
    lane has no partner and always the angle 0.
    """
    turned = np.zeros_like(x)
    even = x.shape[-1] // 2 * 2
    turned[..., 0:even:2], turned[..., 1:even:2] = -x[..., 1:even:2], x[..., 0:even:2]
    return x * np.cos(angles) + turned * np.sin(angles)


@dataclass(frozen=True)
class Attention:
    """What attention needs besides its tensors.

    Attributes:
        n_head: Heads; a tensor's rows are head-major: head h owns rows [h*d, (h+1)*d).
        angles: RoPE angles of every token and lane, [B,N,d] or [N,d]; None: no RoPE.
        mask: bool [N,N] or [B,N,N], true where a query (row) sees a key (column); None: all.
    """

    n_head: int
    angles: Array | None = None
    mask: Array | None = None


def attend(q: Array, k: Array, v: Array, how: Attention) -> Array:
    """Return softmax(q k^T / sqrt(d)) v, heads concatenated: [B,Nq,H*d] from [B,N,H*d].

    RoPE turns q and k after their bias and before the scale; v is never turned.
    """
    d = q.shape[-1] // how.n_head
    heads = []
    for h in range(how.n_head):
        lanes = slice(h * d, (h + 1) * d)
        one, other = q[..., lanes], k[..., lanes]  # [B,Nq,d], [B,Nk,d]
        if how.angles is not None:
            one, other = rotate(one, how.angles), rotate(other, how.angles)
        scores = one @ other.swapaxes(-1, -2) / math.sqrt(d)  # [B,Nq,Nk]
        if how.mask is not None:
            scores = np.where(how.mask, scores, -np.inf)
        heads.append(softmax(scores) @ v[..., lanes])
    return np.concatenate(heads, -1)


def self_attention(w: Weights, name: str, x: Array, how: Attention) -> Array:
    """Return ``attn_out(attend(q, k, v))`` for x [B,N,D] already normed.

    ``attn_qkv`` is fused with rows [q; k; v], or three tensors ``attn_q``, ``attn_k``, ``attn_v``.
    """
    if w.has(f"{name}.attn_qkv.weight"):
        q, k, v = np.split(linear(w, f"{name}.attn_qkv", x), 3, -1)
    else:
        q, k, v = (linear(w, f"{name}.attn_{letter}", x) for letter in "qkv")
    return linear(w, f"{name}.attn_out", attend(q, k, v, how))


def feed_forward(w: Weights, name: str, x: Array, act: str) -> Array:
    """Return ``ffn_down(act(ffn_up(x)))``."""
    return linear(w, f"{name}.ffn_down", ACTIVATIONS[act](linear(w, f"{name}.ffn_up", x)))


def block(w: Weights, name: str, x: Array, how: Attention, eps: float, act: str) -> Array:
    """Return the pre-LN transformer block that encoders, masked and AC predictors and heads share.

    x = x + ls1 * attention(ln1(x)); x = x + ls2 * ffn(ln2(x)); ls1 and ls2 are 1 where not stored.

    Args:
        w: The bundle.
        name: ``enc.blk.0`` for one.
        x: float64 [B,N,D].
        how: Heads, RoPE angles and mask.
        eps: Epsilon of both norms.
        act: Activation of the feed-forward layer.
    """
    for norm, scale in (("ln1", "ls1"), ("ln2", "ls2")):
        y = layer_norm(w, f"{name}.{norm}", x, eps)
        if norm == "ln1":
            y = self_attention(w, name, y, how)
        else:
            y = feed_forward(w, name, y, act)
        x = x + (w(f"{name}.{scale}") * y if w.has(f"{name}.{scale}") else y)
    return x
