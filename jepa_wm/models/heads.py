"""Classifiers on an encoder's tokens; attribute names are GGUF tensor names without ``head.``."""

import torch
from torch import Tensor, nn

from jepa_wm.bundle.reader import Bundle
from jepa_wm.models.attention import attention
from jepa_wm.models.layers import Block, Linear, merge_heads


class CrossAttention(nn.Module):
    """One query over all tokens; the query is not normed and the result is not projected."""

    def __init__(self, dim: int, n_head: int, hidden: int, eps: float, act: str) -> None:
        super().__init__()
        self.n_head, self.act = n_head, act
        self.ln_kv = nn.LayerNorm(dim, eps)
        self.q, self.k, self.v = Linear(dim, dim), Linear(dim, dim), Linear(dim, dim)
        self.ln2 = nn.LayerNorm(dim, eps)
        self.ffn_up, self.ffn_down = Linear(dim, hidden), Linear(hidden, dim)

    def forward(self, query: Tensor, x: Tensor) -> Tensor:
        """Pool tokens x [B,N,D] by queries [B,Q,D] -> [B,Q,D]."""
        kv = self.ln_kv(x)
        parts = (self.q(query), self.k(kv), self.v(kv))
        q, k, v = (part.unflatten(-1, (self.n_head, -1)).transpose(1, 2) for part in parts)
        y = query + merge_heads(attention(q, k, v))
        return y + self.ffn_down(self.ffn_up(self.ln2(y), self.act))


class AttentivePool(nn.Module):
    """Attentive pooler and linear classifier of V-JEPA and V-JEPA 2.

    Self-attention blocks over all tokens come first, without positions, then the cross-attention.

    Source: transformers ``VJEPA2ForVideoClassification``; facebookresearch/vjepa2
        ``src/models/attentive_pooler.py``.
    """

    def __init__(
        self,
        dim: int,
        n_head: int,
        n_layer: int,
        hidden: int,
        n_classes: int,
        *,
        eps: float,
        act: str,
    ) -> None:
        super().__init__()
        self.blk = nn.ModuleList(
            Block(dim, n_head, hidden, eps=eps, act=act) for _ in range(n_layer)
        )
        self.query = nn.Parameter(torch.zeros(1, dim))
        self.xattn = CrossAttention(dim, n_head, hidden, eps, act)
        self.cls = Linear(dim, n_classes)

    def pooled(self, tokens: Tensor) -> Tensor:
        """Pool tokens float [B,N,D] to float32 [B,D]."""
        x = tokens
        for block in self.blk:
            x = block(x)
        return self.xattn(self.query.expand(len(x), -1, -1), x)[:, 0]

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens float [B,N,D], all of them, to logits [B,n_classes]."""
        return self.cls(self.pooled(tokens))


class LinearClassifier(nn.Module):
    """A linear layer on a pooled feature: CLS, else the mean patch; with 2D inputs both.

    Source: transformers ``IJepaForImageClassification`` (mean), ``ViTForImageClassification``
        (CLS), ``Dinov2ForImageClassification`` (CLS and the mean patch, concatenated).
    """

    def __init__(
        self, dim: int, features: int, n_classes: int, cls_token: bool, prefix: int
    ) -> None:
        super().__init__()
        self.uses_both, self.cls_token, self.prefix = features == 2 * dim, cls_token, prefix
        self.cls = Linear(features, n_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens float [B,prefix+N,D] to logits [B,n_classes]."""
        mean = tokens[:, self.prefix :].mean(1)
        if self.uses_both:
            return self.cls(torch.cat([tokens[:, 0], mean], -1))
        return self.cls(tokens[:, 0] if self.cls_token else mean)


def top_classes(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return probabilities, float32 [..,k], and indices, int64 [..,k], of the likeliest classes.

    Best first; of equal logits the lower index comes first. The softmax runs over all classes.

    Args:
        logits: float [..,n_classes].
        k: How many; all where there are fewer.
    """
    order = logits.float().sort(stable=True, dim=-1, descending=True).indices[..., :k]
    return logits.float().softmax(-1).gather(-1, order), order


def build_head(bundle: Bundle) -> AttentivePool | LinearClassifier | None:
    """Build the head a bundle holds, if any."""
    kind, dim = bundle.get("jepa.head.kind"), bundle.get("jepa.enc.embed_dim")
    if kind == "attentive_pool":
        return AttentivePool(
            dim,
            bundle.get("jepa.head.n_head"),
            bundle.get("jepa.head.n_pool_layers"),
            bundle.shape("head.xattn.ffn_up.weight")[0],
            bundle.get("jepa.head.n_classes"),
            eps=bundle.get("jepa.head.ln_eps"),
            act=bundle.get("jepa.enc.act"),
        )
    if kind == "linear_cls":
        cls_token = bundle.get("jepa.enc.cls_token")
        features = bundle.shape("head.cls.weight")[1]
        prefix = int(cls_token) + bundle.get("jepa.enc.n_registers")
        return LinearClassifier(dim, features, bundle.get("jepa.head.n_classes"), cls_token, prefix)
    return None
