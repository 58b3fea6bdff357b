"""The two heads: encoder tokens to class logits."""

import numpy as np

from jepa_wm.spec.encoder import Stages, n_cls, n_prefix
from jepa_wm.spec.ops import (
    Array,
    Attention,
    Weights,
    attend,
    block,
    feed_forward,
    layer_norm,
    linear,
)


def attentive_pool(w: Weights, tokens: Array) -> Stages:
    """Yield ``head.blk.{i}``, ``head.xattn`` (pooled) [B,D] and ``head`` (logits) [B,classes].

    Self-attention blocks over all tokens first; then one learned query reads them. The query is not
    normed, the read-out has no output projection, and there is no norm before the classifier.

    Args:
        w: The bundle.
        tokens: Encoder tokens after ``enc.norm``, float64 [B,N,D].

    Source: transformers ``VJEPA2AttentivePooler``; vjepa2 ``src/models/attentive_pooler.py``.
    """
    eps, act = w.get("jepa.head.ln_eps"), w.get("jepa.enc.act")
    how = Attention(w.get("jepa.head.n_head"))
    x = tokens
    for i in range(w.get("jepa.head.n_pool_layers")):
        x = block(w, f"head.blk.{i}", x, how, eps, act)
        yield f"head.blk.{i}", x
    kv = layer_norm(w, "head.xattn.ln_kv", x, eps)
    query = np.broadcast_to(w("head.query"), (len(x), 1, x.shape[-1]))
    q = linear(w, "head.xattn.q", query)
    k, v = (linear(w, f"head.xattn.{letter}", kv) for letter in "kv")
    y = query + attend(q, k, v, how)  # [B,1,D]
    y = y + feed_forward(w, "head.xattn", layer_norm(w, "head.xattn.ln2", y, eps), act)
    yield "head.xattn", y[:, 0]
    yield "head", linear(w, "head.cls", y[:, 0])


def linear_cls(w: Weights, tokens: Array) -> Stages:
    """Yield ``head`` (logits) [B,classes] of CLS, or of the mean patch where there is no CLS.

    A classifier twice as wide as the encoder reads both, [CLS, mean patch].

    Source: transformers ``IJepaForImageClassification``, ``ViTForImageClassification``,
        ``Dinov2ForImageClassification``.
    """
    mean = tokens[:, n_prefix(w) :].mean(1)
    pooled = tokens[:, 0] if n_cls(w) else mean
    if w.bundle.shape("head.cls.weight")[1] == 2 * tokens.shape[-1]:
        pooled = np.concatenate([tokens[:, 0], mean], -1)
    yield "head", linear(w, "head.cls", pooled)
