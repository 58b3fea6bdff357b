"""The one ViT encoder, driven by ``EncoderConfig``: pixels in, tokens out.

Attribute names are the tensor names of the bundle without ``enc.``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jepa_wm.models.layers import Block, Linear
from jepa_wm.models.positions import interpolate_table


@dataclass(frozen=True, kw_only=True)
class EncoderConfig:
    """Sizes and switches of a ViT encoder, as the keys ``jepa.enc.*`` give them.

    Attributes:
        embed_dim: Token width D.
        n_layer: Number of blocks.
        n_head: Attention heads; divides ``embed_dim``.
        ffn_dim: Hidden width of the feed-forward layer.
        patch_size: Patch side in pixels.
        img_size: Image side of training in pixels; sets the rows of the position table.
        in_chans: Colour channels.
        ln_eps: Epsilon of every LayerNorm.
        act: Activation: gelu_erf, gelu_tanh or silu.
        cls_token: A CLS token (with its own row in the position table) leads the sequence.
        n_registers: Register tokens behind CLS, without positions.
        layer_scale: Blocks carry ``ls1`` and ``ls2``.
        pos_interp: How the table is resampled for other grids: size, offset0.1 or antialias.
    """

    embed_dim: int
    n_layer: int
    n_head: int
    ffn_dim: int
    patch_size: int
    img_size: int
    in_chans: int = 3
    ln_eps: float = 1e-6
    act: str = "gelu_erf"
    cls_token: bool = True
    n_registers: int = 0
    layer_scale: bool = False
    pos_interp: str = "size"


def patchify(pixels: Tensor, patch: int) -> Tensor:
    """Cut pixels float [B,C,h,w] into flattened patches [B,N,C*P*P], features in C-P-P order.

    Raises:
        ValueError: a side is not a multiple of the patch. The references' convolutions drop the
            remainder unseen; a preprocessed image never has one.
    """
    B, C, h, w = pixels.shape
    gh, gw = h // patch, w // patch
    if h != gh * patch or w != gw * patch or not gh * gw:
        raise ValueError(f"pixels of {h}x{w} are not whole patches of {patch}x{patch}")
    x = pixels.reshape(B, C, gh, patch, gw, patch)
    return x.permute(0, 2, 4, 1, 3, 5).reshape(B, gh * gw, C * patch * patch)


class ViT(nn.Module):
    """Vision transformer with a learned position table. Token order: [CLS, registers, patches]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = c = config
        rows = (c.img_size // c.patch_size) ** 2 + c.cls_token
        self.patch_embed = Linear(c.in_chans * c.patch_size**2, c.embed_dim)
        self.cls_token = nn.Parameter(torch.zeros(c.embed_dim)) if c.cls_token else None
        self.reg_tokens = (
            nn.Parameter(torch.zeros(c.n_registers, c.embed_dim)) if c.n_registers else None
        )
        self.pos_embed = nn.Parameter(torch.zeros(rows, c.embed_dim))
        self.blk = nn.ModuleList(
            Block(
                c.embed_dim,
                c.n_head,
                c.ffn_dim,
                eps=c.ln_eps,
                act=c.act,
                layer_scale=c.layer_scale,
            )
            for _ in range(c.n_layer)
        )
        self.norm = nn.LayerNorm(c.embed_dim, c.ln_eps)

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode preprocessed pixels float [B,C,h,w], any grid, into tokens float32 [B,prefix+N,D].

        Raises:
            ValueError: wrong number of axes or channels, or a side that is not a multiple of the
                patch.
        """
        c = self.config
        if pixels.ndim != 4 or pixels.shape[1] != c.in_chans:
            raise ValueError(f"pixels must be [B,{c.in_chans},h,w], got {list(pixels.shape)}")
        B, prefix = len(pixels), int(c.cls_token)
        grid = (pixels.shape[2] // c.patch_size, pixels.shape[3] // c.patch_size)
        pos = interpolate_table(self.pos_embed, grid, prefix, c.pos_interp)
        x = self.patch_embed(patchify(pixels, c.patch_size)) + pos[prefix:]
        if self.reg_tokens is not None:  # after the position add: registers have no position
            x = torch.cat([self.reg_tokens.expand(B, -1, -1).to(x.dtype), x], 1)
        if self.cls_token is not None:
            x = torch.cat([(self.cls_token + pos[0]).expand(B, 1, -1).to(x.dtype), x], 1)
        for block in self.blk:
            x = block(x)
        return self.norm(x)

    def embed(self, pixels: Tensor) -> Tensor:
        """Encode pixels [B,C,h,w] and pool to [B,D]: CLS after the norm, else the mean patch."""
        tokens = self(pixels)
        return (
            tokens[:, 0] if self.config.cls_token else tokens[:, self.config.n_registers :].mean(1)
        )
