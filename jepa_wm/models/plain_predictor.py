"""What the masked and the action-conditioned predictor share: plain blocks and their sizes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from torch import nn

from jepa_wm.bundle.reader import Bundle
from jepa_wm.models.layers import Block


@dataclass(frozen=True, kw_only=True)
class PlainPredictorConfig:
    """Sizes of a predictor of plain blocks, as the keys ``jepa.pred.*`` give them.

    Attributes:
        embed_dim: Token width.
        n_layer: Number of blocks.
        n_head: Attention heads.
        ffn_dim: Hidden width of the feed-forward layer.
        out_dim: Width of a predicted vector (per level, where there are several).
        grid_size: Side of the trained patch grid.
        ln_eps: Epsilon of every LayerNorm.
        act: Activation of the feed-forward layer.
        qkv_bias: ``attn_qkv`` has a bias.
        rope_freq_layout: tiled or interleaved.
        rope_theta: Base of the RoPE frequencies (``jepa.enc.rope_theta``).
    """

    embed_dim: int
    n_layer: int
    n_head: int
    ffn_dim: int
    out_dim: int
    grid_size: int
    ln_eps: float = 1e-6
    act: str = "gelu_erf"
    qkv_bias: bool = True
    rope_freq_layout: str = "tiled"
    rope_theta: float = 1e4

    @classmethod
    def read(cls, bundle: Bundle, elsewhere: Mapping[str, Any]) -> Self:
        """Read the fields from ``jepa.pred.*``, but for those that are found ``elsewhere``."""
        found = {**elsewhere, "rope_theta": bundle.get("jepa.enc.rope_theta")}
        keys = [name for name in cls.__dataclass_fields__ if name not in found]
        return cls(**{name: bundle.get(f"jepa.pred.{name}") for name in keys}, **found)

    def blocks(self) -> nn.ModuleList:
        """Build the empty blocks."""
        sizes = (self.embed_dim, self.n_head, self.ffn_dim)
        return nn.ModuleList(
            Block(*sizes, eps=self.ln_eps, act=self.act, qkv_bias=self.qkv_bias)
            for _ in range(self.n_layer)
        )
