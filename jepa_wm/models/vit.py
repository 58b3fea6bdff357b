"""The one ViT encoder, driven by ``EncoderConfig``: pixels in, tokens out.

Attribute names are the tensor names of the bundle without ``enc.``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jepa_wm.models.attention import FrameCausal
from jepa_wm.models.layers import Block, Linear
from jepa_wm.models.positions import interpolate_clip_table, interpolate_table
from jepa_wm.models.rope import Rope, grid_positions, rope_table

Grid = tuple[int, int, int]
"""Tokens along time, height and width."""


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
        tubelet_size: Frames of a token.
        n_frames: Frames of a training clip.
        in_chans: Colour channels.
        ln_eps: Epsilon of every LayerNorm.
        act: Activation: gelu_erf, gelu_tanh or silu.
        pos_type: Position scheme: learned or sincos2d (a table over an image), sincos3d (a table
            over a clip) or rope3d (queries and keys are turned). The last two encode clips.
        rope_theta: Base of the RoPE frequencies.
        rope_freq_layout: tiled or interleaved (``rope``).
        rope_interpolate: Rescale RoPE positions to ``rope_ref_grid`` patches.
        rope_ref_grid: Grid side for that.
        cls_token: A CLS token (with its own row in a position table) leads the sequence.
        n_registers: Register tokens behind CLS, without positions.
        layer_scale: Blocks carry ``ls1`` and ``ls2``.
        modality_embed: A vector for images or for clips is added to every patch token.
        image_patch_embed: Clips of one frame have a patch embedding of their own.
        hier_layers: Blocks whose output, normed, is a level of the hierarchy.
        attn_mode: full, or block_causal by frame.
        pos_interp: How a table is resampled for other grids: size, offset0.1, antialias or
            trilinear_scale.
    """

    embed_dim: int
    n_layer: int
    n_head: int
    ffn_dim: int
    patch_size: int
    img_size: int
    tubelet_size: int = 1
    n_frames: int = 1
    in_chans: int = 3
    ln_eps: float = 1e-6
    act: str = "gelu_erf"
    pos_type: str = "learned"
    rope_theta: float = 1e4
    rope_freq_layout: str = "tiled"
    rope_interpolate: bool = False
    rope_ref_grid: int | None = None
    cls_token: bool = True
    n_registers: int = 0
    layer_scale: bool = False
    modality_embed: bool = False
    image_patch_embed: bool = False
    hier_layers: tuple[int, ...] = ()
    attn_mode: str = "full"
    pos_interp: str = "size"

    @property
    def takes_clips(self) -> bool:
        """The input has a time axis."""
        return self.pos_type in ("sincos3d", "rope3d")

    @property
    def prefix(self) -> int:
        """Rows in front of the patch tokens."""
        return int(self.cls_token) + self.n_registers

    @property
    def native_grid(self) -> Grid:
        """Tokens of a training clip or image."""
        side = self.img_size // self.patch_size
        return self.n_frames // self.tubelet_size, side, side


def patchify(clips: Tensor, tubelet: int, patch: int) -> tuple[Tensor, Grid]:
    """Cut clips float [B,T,C,h,w] into flattened patches [B,N,C*U*P*P] and say the grid.

    Tokens are t-major, then rows, then columns; features are in C-U-P-P order, that of a flattened
    convolution kernel. What is left over of whole patches on the right, at the bottom and at the
    end is dropped, as the references' convolutions do.

    Raises:
        ValueError: there is not one whole patch.
    """
    B, T, C, h, w = clips.shape
    t, gh, gw = grid = T // tubelet, h // patch, w // patch
    if not t * gh * gw:
        raise ValueError(
            f"{T} frames of {h}x{w} hold no whole patch of {tubelet} frames of {patch}x{patch}"
        )
    x = clips[:, : t * tubelet, :, : gh * patch, : gw * patch]
    x = x.reshape(B, t, tubelet, C, gh, patch, gw, patch).permute(0, 1, 4, 6, 3, 2, 5, 7)
    return x.reshape(B, t * gh * gw, C * tubelet * patch * patch), grid


def gather_rows(x: Tensor, ids: Tensor) -> Tensor:
    """Pick token rows: x [N,D] or [B,N,D] by ids int64 [K] or [B,K] -> [K,D] or [B,K,D]."""
    if ids.ndim == 1:
        return x[..., ids, :]
    x = x.expand(len(ids), *x.shape[-2:])
    return x.gather(1, ids[..., None].expand(*ids.shape, x.shape[-1]))


def checked_ids(ids: Tensor, count: int, batch: int) -> Tensor:
    """Return ids [K] or [batch,K] of ``count`` patches as they are.

    Raises:
        ValueError: another shape, none, or ids beyond the patches.
    """
    if ids.ndim not in (1, 2) or (ids.ndim == 2 and len(ids) != batch) or not ids.numel():
        raise ValueError(f"ids must be [K] or [{batch},K] and not empty, got {list(ids.shape)}")
    if int(ids.min()) < 0 or int(ids.max()) >= count:
        raise ValueError(f"ids must lie in 0 to {count - 1}, the patches of the input")
    return ids


class ViT(nn.Module):
    """Vision transformer over images or clips. Token order: [CLS, registers, patches]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = c = config
        D, image_row = c.embed_dim, c.in_chans * c.patch_size**2
        t, gh, gw = c.native_grid
        self.patch_embed = Linear(image_row * c.tubelet_size, D)
        self.patch_embed_img = Linear(image_row, D) if c.image_patch_embed else None
        self.mod_embed_img = _vector(D) if c.modality_embed else None
        self.mod_embed_video = _vector(D) if c.modality_embed else None
        self.cls_token = _vector(D) if c.cls_token else None
        self.reg_tokens = _vector(c.n_registers, D) if c.n_registers else None
        rows = (t if c.pos_type == "sincos3d" else 1) * gh * gw + c.cls_token
        self.pos_embed = None if c.pos_type == "rope3d" else _vector(rows, D)
        self.blk = nn.ModuleList(
            Block(D, c.n_head, c.ffn_dim, eps=c.ln_eps, act=c.act, layer_scale=c.layer_scale)
            for _ in range(c.n_layer)
        )
        self.norm = nn.LayerNorm(D, c.ln_eps)
        self.hier_norm = nn.ModuleList(nn.LayerNorm(D, c.ln_eps) for _ in c.hier_layers)

    def forward(self, pixels: Tensor, ids: Tensor | None = None) -> Tensor:
        """Encode preprocessed pixels into tokens float32 [B,prefix+N,D].

        Args:
            pixels: float [B,C,h,w] or, where the model takes clips, [B,T,C,h,w]; any grid.
            ids: int64 [K] or [B,K]: encode these patches only, in this order (I-JEPA's and
                V-JEPA's context); the rest does not exist for them. Absent: all.

        Raises:
            ValueError: wrong number of axes or channels, no whole patch, or ids beyond the grid.
        """
        x, rope, frames = self._tokens(pixels, ids)
        for block in self.blk:
            x = block(x, rope, frames)
        return self.norm(x)

    def levels(self, pixels: Tensor, ids: Tensor | None = None) -> Tensor:
        """Encode as ``forward`` into all levels of the hierarchy, float32 [B,prefix+N,levels*D].

        Level k is ``hier_norm.k`` of the output of block ``hier_layers[k]``, which goes on
        unnormed; without a hierarchy there is one level, ``forward``.

        Source: facebookresearch/vjepa2 ``app/vjepa_2_1/models/vision_transformer.py``.
        """
        if not self.config.hier_layers:
            return self(pixels, ids)
        x, rope, frames = self._tokens(pixels, ids)
        found: list[Tensor] = []
        for i, block in enumerate(self.blk):
            x = block(x, rope, frames)
            if i in self.config.hier_layers:
                found.append(self.hier_norm[len(found)](x))
        return torch.cat(found, -1)

    def pool(self, tokens: Tensor, how: str) -> Tensor:
        """Reduce tokens [B,N,D]: ``cls`` [B,D], ``mean`` of the patches [B,D] or ``none`` [B,N,D].

        Raises:
            ValueError: unknown, or the model has no such feature.
        """
        if how == "none":
            return tokens
        if how == "mean":
            return tokens[:, self.config.prefix :].mean(1)
        if how == "cls" and self.config.cls_token:
            return tokens[:, 0]
        have = "cls, mean, none" if self.config.cls_token else "mean, none"
        raise ValueError(f"pool {how!r}: this model has {have}")

    @property
    def default_pool(self) -> str:
        """How the family makes one feature of an image or clip."""
        return "cls" if self.config.cls_token else "mean"

    def embed(self, pixels: Tensor, how: str | None = None) -> Tensor:
        """Encode pixels and pool, to float32 [B,D]; by default as the family does."""
        return self.pool(self(pixels), how or self.default_pool)

    def _tokens(
        self, pixels: Tensor, ids: Tensor | None
    ) -> tuple[Tensor, Rope | None, FrameCausal | None]:
        """Return what enters the blocks: rows with positions, their RoPE factors, their mask."""
        c = self.config
        axes = "[B,T,{},h,w]" if c.takes_clips else "[B,{},h,w]"
        if pixels.ndim != axes.count(",") + 1 or pixels.shape[-3] != c.in_chans:
            raise ValueError(f"pixels must be {axes.format(c.in_chans)}, got {list(pixels.shape)}")
        x, grid = self._patches(pixels if c.takes_clips else pixels[:, None])
        pos, cls_pos = self._table(grid)
        if pos is not None:
            x = x + pos
        if ids is not None:
            x = gather_rows(x, checked_ids(ids, x.shape[1], len(x)))
        if self.reg_tokens is not None:  # after the position add: registers have no position
            x = torch.cat([self.reg_tokens.expand(len(x), -1, -1).to(x.dtype), x], 1)
        if self.cls_token is not None:
            cls = self.cls_token if cls_pos is None else self.cls_token + cls_pos
            x = torch.cat([cls.expand(len(x), 1, -1).to(x.dtype), x], 1)
        return x, self._rope(grid, ids, x.device), self._frames(grid, ids)

    def _patches(self, clips: Tensor) -> tuple[Tensor, Grid]:
        """Embed patches; a clip of one frame is an image where there is an image embedding.

        A clip shorter than a tubelet is repeated (transformers ``VJEPA2Model``; others fail there).
        """
        c = self.config
        is_image = self.patch_embed_img is not None and clips.shape[1] == 1
        tubelet = 1 if is_image else c.tubelet_size
        if clips.shape[1] < tubelet:
            clips = clips.repeat(1, tubelet, 1, 1, 1)
        patches, grid = patchify(clips, tubelet, c.patch_size)
        embed = (self.patch_embed_img if is_image else None) or self.patch_embed
        x = embed(patches)
        modality = self.mod_embed_img if is_image else self.mod_embed_video
        return (x if modality is None else x + modality), grid

    def _table(self, grid: Grid) -> tuple[Tensor | None, Tensor | None]:
        """Return the position rows of the patches and of CLS on this grid, where there are any."""
        c = self.config
        if self.pos_embed is None:
            return None, None
        if c.pos_type == "sincos3d":
            return interpolate_clip_table(self.pos_embed, c.native_grid, grid), None
        prefix = int(c.cls_token)
        table = interpolate_table(self.pos_embed, grid[1:], prefix, c.pos_interp)
        return table[prefix:], table[0] if prefix else None

    def _rope(self, grid: Grid, ids: Tensor | None, device: torch.device) -> Rope | None:
        c = self.config
        if c.pos_type != "rope3d":
            return None
        if ids is None:
            ids = torch.arange(grid[0] * grid[1] * grid[2], device=device)
        ref_grid = c.rope_ref_grid if c.rope_interpolate else None
        positions = grid_positions(ids, grid[1:], ref_grid)
        rope = rope_table(positions, c.embed_dim // c.n_head, c.rope_theta, c.rope_freq_layout)
        return rope.lead(c.prefix)

    def _frames(self, grid: Grid, ids: Tensor | None) -> FrameCausal | None:
        if self.config.attn_mode != "block_causal":
            return None
        if ids is not None:
            raise ValueError("a block-causal encoder has no context subsets: give whole clips")
        return FrameCausal((grid[1] * grid[2],) * grid[0], self.config.prefix)


def _vector(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.zeros(*shape))
