"""The modules of LeWM: a ViT encoder and an action-conditioned causal predictor of its latents.

Paper: LeWM, arXiv 2603.19312. Reference: le-wm and stable-worldmodel ``wm/lewm``.
Attribute names are GGUF tensor names.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jepa_wm.models.attention import attention
from jepa_wm.models.layers import Linear, merge_heads, mlp, split_heads
from jepa_wm.models.vit import EncoderConfig, ViT


@dataclass(frozen=True, kw_only=True)
class PredictorConfig:
    """Sizes of the LeWM predictor, as the keys ``jepa.pred.*`` give them.

    Attributes:
        embed_dim: Latent and token width D.
        n_layer: Number of blocks.
        n_head: Attention heads.
        head_dim: Width of a head; ``n_head * head_dim`` need not equal ``embed_dim``.
        ffn_dim: Hidden width of the feed-forward layer.
        n_frames: Most context frames, rows of the position table.
        action_dim: Solver action size A.
        action_hidden: Hidden width of the action MLP.
        proj_hidden: Hidden width of the output projector.
        ln_eps: Epsilon of the affine LayerNorms.
        adaln_eps: Epsilon of the non-affine, modulated LayerNorms.
        act: Activation of the feed-forward layer.
        action_act: Activation of the action MLP.
        proj_act: Activation of the output projector.
        qkv_bias: ``attn_qkv`` has a bias (no published model).
    """

    embed_dim: int
    n_layer: int
    n_head: int
    head_dim: int
    ffn_dim: int
    n_frames: int
    action_dim: int
    action_hidden: int
    proj_hidden: int
    ln_eps: float = 1e-5
    adaln_eps: float = 1e-6
    act: str = "gelu_erf"
    action_act: str = "silu"
    proj_act: str = "gelu_erf"
    qkv_bias: bool = False


class PredictorBlock(nn.Module):
    """AdaLN-zero block: a modulated non-affine LayerNorm, then the layer's own affine one.

    Source: stable-worldmodel ``wm/lewm/module.py``, ``ConditionalBlock``.
    """

    def __init__(self, c: PredictorConfig) -> None:
        super().__init__()
        self.n_head, self.adaln_eps, self.act_name = c.n_head, c.adaln_eps, c.act
        inner = c.n_head * c.head_dim
        self.adaln = Linear(c.embed_dim, 6 * c.embed_dim)
        self.ln1 = nn.LayerNorm(c.embed_dim, c.ln_eps)
        self.attn_qkv = Linear(c.embed_dim, 3 * inner, bias=c.qkv_bias)
        self.attn_out = Linear(inner, c.embed_dim)
        self.ln2 = nn.LayerNorm(c.embed_dim, c.ln_eps)
        self.ffn_up = Linear(c.embed_dim, c.ffn_dim)
        self.ffn_down = Linear(c.ffn_dim, c.embed_dim)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map tokens [B,T,D] under conditions silu(action embedding) [B,T,D] to [B,T,D]."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = self.adaln(condition).chunk(6, -1)
        h = F.layer_norm(x, x.shape[-1:], eps=self.adaln_eps) * (1 + scale_a) + shift_a
        q, k, v = split_heads(self.attn_qkv(self.ln1(h)), self.n_head)
        x = x + gate_a * self.attn_out(merge_heads(attention(q, k, v, causal=True)))
        h = F.layer_norm(x, x.shape[-1:], eps=self.adaln_eps) * (1 + scale_m) + shift_m
        return x + gate_m * self.ffn_down(self.ffn_up(self.ln2(h), self.act_name))


class Predictor(nn.Module):
    """Predicts the next latent at every position of a window of up to ``n_frames`` frames."""

    def __init__(self, config: PredictorConfig) -> None:
        super().__init__()
        self.config = c = config
        self.pos_embed = nn.Parameter(torch.zeros(c.n_frames, c.embed_dim))
        self.action_embed = mlp(c.action_dim, c.action_hidden, c.embed_dim, c.action_act)
        self.blk = nn.ModuleList(PredictorBlock(c) for _ in range(c.n_layer))
        self.norm = nn.LayerNorm(c.embed_dim, c.ln_eps)
        self.proj = mlp(c.embed_dim, c.proj_hidden, c.embed_dim, c.proj_act)

    def forward(self, z: Tensor, actions: Tensor) -> Tensor:
        """Predict from latents z [B,T,D] and the blocks leaving them [B,T,A] -> [B,T,D].

        Row t depends on frames and actions 0..t only and predicts frame t+1.
        """
        condition = F.silu(self.action_embed(actions))
        x = z + self.pos_embed[: z.shape[1]]
        for block in self.blk:
            x = block(x, condition)
        return self.proj(self.norm(x))


class LeWMEncoder(ViT):
    """The LeWM encoder: a ViT whose CLS token goes through a projector into the latent space."""

    def __init__(self, config: EncoderConfig, proj_hidden: int, proj_act: str = "gelu_erf") -> None:
        super().__init__(config)
        self.proj = mlp(config.embed_dim, proj_hidden, config.embed_dim, proj_act)

    def pool(self, tokens: Tensor, how: str) -> Tensor:
        """Reduce tokens as ``ViT.pool``, or ``projected``: the latent [B,D] that is predicted."""
        return self.proj(tokens[:, 0]) if how == "projected" else super().pool(tokens, how)

    @property
    def default_pool(self) -> str:
        """A latent is what the projector makes of CLS."""
        return "projected"


class LeWM(nn.Module):
    """Encoder and predictor of a LeWM bundle."""

    def __init__(
        self,
        encoder: EncoderConfig,
        predictor: PredictorConfig,
        enc_proj_hidden: int,
        enc_proj_act: str = "gelu_erf",
    ) -> None:
        super().__init__()
        self.enc = LeWMEncoder(encoder, enc_proj_hidden, enc_proj_act)
        self.pred = Predictor(predictor)
