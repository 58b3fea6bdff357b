"""The one encoder: pixels to tokens, as the keys ``jepa.enc.*`` of the seven families say.

What the keys are in each family (published models):

| family   | positions             | prefix         | besides                                     |
|----------|-----------------------|----------------|---------------------------------------------|
| ijepa    | sincos2d table (size) |                | pooled: mean                                |
| vjepa    | sincos3d (trilinear)  |                | pooled: mean                                |
| vjepa2   | rope3d tiled          |                | a clip shorter than a tubelet is repeated   |
| vjepa2_1 | rope3d interleaved    |                | rescaled to rope_ref_grid; modality vector; |
|          |                       |                | own tokenizer for one frame; hierarchy      |
| levjepa  | rope3d tiled          | CLS            | block_causal mask; pooled: CLS              |
| hfvit    | learned (offset0.1)   | CLS, registers | layer scale; pooled: CLS                    |
| lewm     | learned (size)        | CLS            | pooled: projector of CLS; eps 1e-12         |
"""

from collections.abc import Iterator

import numpy as np

from jepa_wm.errors import BundleError
from jepa_wm.spec.ops import Array, Attention, Weights, block, layer_norm, linear, mlp
from jepa_wm.spec.positions import (
    Grid,
    decode_ids,
    interpolate_2d,
    interpolate_3d,
    rescale_to,
    rope_angles,
)

Stages = Iterator[tuple[str, Array]]


def encode(w: Weights, pixels: Array, ids: Array | None = None) -> Stages:
    """Yield the encoder's stages in order, each (name of the bundle's part, float64 array).

    ``enc.patch_embed`` [B,N,D]; ``enc.blk.{i}`` [B,prefix+N,D] after every block;
    ``enc.hier_norm.{k}`` after the block of each level; ``enc.norm`` [B,prefix+N,D];
    ``pooled`` [B,D].

    Args:
        w: The bundle.
        pixels: Preprocessed, float [B,C,h,w] or [B,T,C,h,w]. Rows, columns and frames beyond whole
            patches are dropped, as a convolution drops them.
        ids: int [B,n]: encode these patches only. They are gathered before the blocks, after the
            table's positions were added; RoPE positions stay those of the ids. None: all.

    Source: ijepa, jepa, vjepa2 ``src/models/vision_transformer.py``; vjepa2
        ``app/vjepa_2_1/models/vision_transformer.py``; LeVJEPA ``module.py``; lite_ssl ``ViTv2``;
        transformers ``ViTModel``.
    """
    clip = as_clip(w, pixels)
    name = tokenizer(w, clip)
    rows, grid = patch_rows(clip, w.get("jepa.enc.patch_size"), tubelet(w, name))
    x = linear(w, name, rows)  # [B,N,D]
    yield name, x
    if ids is None:
        ids = np.broadcast_to(np.arange(x.shape[1]), x.shape[:2])
    if w.get("jepa.enc.modality_embed"):
        x = x + w("enc.mod_embed_img" if name == "enc.patch_embed_img" else "enc.mod_embed_video")
    if w.get("jepa.enc.pos_type") != "rope3d":
        x = x + position_table(w, grid)
    x = add_prefix(w, gather(x, ids))  # [B,prefix+n,D]
    yield from _blocks(w, x, ids, grid)


def as_clip(w: Weights, pixels: Array) -> Array:
    """Return pixels as a clip [B,T,C,h,w]: an image is one frame.

    A clip of fewer frames than a tubelet is repeated tubelet times, so that an image fills one
    slot; not where the model has a tokenizer for single frames.

    Source: transformers ``VJEPA2Embeddings``.
    """
    clip = np.asarray(pixels, np.float64)
    clip = clip[:, None] if clip.ndim == 4 else clip
    size = w.get("jepa.enc.tubelet_size")
    is_short = clip.shape[1] < size and not w.get("jepa.enc.image_patch_embed")
    return np.tile(clip, (1, size, 1, 1, 1)) if is_short else clip


def tokenizer(w: Weights, clip: Array) -> str:
    """Return which patch embedding a clip goes through: one frame has its own in V-JEPA 2.1."""
    is_image = clip.shape[1] == 1 and w.get("jepa.enc.image_patch_embed")
    return "enc.patch_embed_img" if is_image else "enc.patch_embed"


def tubelet(w: Weights, name: str) -> int:
    """Return the frames per token of a patch embedding."""
    return 1 if name == "enc.patch_embed_img" else int(w.get("jepa.enc.tubelet_size"))


def patch_rows(clip: Array, patch: int, frames: int) -> tuple[Array, Grid]:
    """Cut a clip [B,T,C,h,w] into rows [B,N,C*frames*patch*patch], features in C-T-H-W order."""
    B, T, C, h, w = clip.shape
    t, gh, gw = grid = (T // frames, h // patch, w // patch)
    whole = clip[:, : t * frames, :, : gh * patch, : gw * patch]
    x = whole.reshape(B, t, frames, C, gh, patch, gw, patch)
    x = x.transpose(0, 1, 4, 6, 3, 2, 5, 7)  # [B, t,gh,gw, C,frames,patch,patch]
    return x.reshape(B, t * gh * gw, C * frames * patch * patch), grid


def gather(x: Array, ids: Array) -> Array:
    """Return the rows of x [B,N,D] named by ids [B,n]: [B,n,D]."""
    return np.take_along_axis(x, ids[..., None], 1)


def position_table(w: Weights, grid: Grid) -> Array:
    """Return the positions of the patches, [N,D]: the stored table on the clip's grid.

    Raises:
        BundleError: the bundle's rule of resampling does not fit its table.
    """
    table = w("enc.pos_embed")[n_cls(w) :]  # row 0 belongs to CLS
    if w.get("jepa.enc.pos_type") == "sincos3d":
        side = w.get("jepa.enc.img_size") // w.get("jepa.enc.patch_size")
        slots = w.get("jepa.enc.n_frames") // w.get("jepa.enc.tubelet_size")
        return interpolate_3d(table, (slots, side, side), grid)
    rule = w.get("jepa_wm.enc.pos_interp")
    if rule == "trilinear_scale":
        raise BundleError(
            f"{w.bundle.path}: jepa_wm.enc.pos_interp = {rule} is for clips (sincos3d); wanted "
            "size, offset0.1 or antialias"
        )
    return interpolate_2d(table, grid[1], grid[2], rule)


def n_cls(w: Weights) -> int:
    """Return 1 if a CLS token leads the sequence."""
    return int(w.get("jepa.enc.cls_token"))


def n_prefix(w: Weights) -> int:
    """Return how many tokens stand before the patches."""
    return n_cls(w) + int(w.get("jepa.enc.n_registers"))


def add_prefix(w: Weights, x: Array) -> Array:
    """Put CLS (with the table's row 0) and the registers (no position) before patches [B,n,D]."""
    parts = []
    if n_cls(w):
        cls = w("enc.cls_token")
        has_table = w.get("jepa.enc.pos_type") != "rope3d"
        parts.append((cls + w("enc.pos_embed")[0] if has_table else cls)[None])
    if w.get("jepa.enc.n_registers"):
        parts.append(w("enc.reg_tokens"))
    repeated = [np.broadcast_to(part, (len(x), *part.shape)) for part in parts]
    return np.concatenate([*repeated, x], 1)


def encoder_angles(w: Weights, ids: Array, grid: Grid) -> Array | None:
    """Return RoPE angles [B,prefix+n,d]; ids are decoded on the clip's true grid, prefix angles 0.

    transformers decodes them on crop_size / patch_size whatever the input is; on the training size
    the two agree.
    """
    if w.get("jepa.enc.pos_type") != "rope3d":
        return None
    positions = decode_ids(ids, grid[1], grid[2])
    if w.get("jepa.enc.rope_interpolate"):
        positions = rescale_to(positions, grid[1], grid[2], w.get("jepa.enc.rope_ref_grid"))
    d = w.get("jepa.enc.embed_dim") // w.get("jepa.enc.n_head")
    layout, theta = w.get("jepa.enc.rope_freq_layout"), w.get("jepa.enc.rope_theta")
    angles = rope_angles(positions, d, layout, theta)
    return np.concatenate([np.zeros((len(ids), n_prefix(w), d)), angles], 1)


def block_causal_mask(ids: Array, grid: Grid, prefix: int) -> Array:
    """Return bool [B,prefix+n,prefix+n]: patches see patches of their own and earlier slots.

    CLS sees everything; nobody but CLS sees CLS.

    Source: LeVJEPA ``module.py``; model card of LeVJEPA-VideoMix-Large.
    """
    slot = ids // (grid[1] * grid[2])
    total = prefix + ids.shape[1]
    mask = np.zeros((len(ids), total, total), bool)
    mask[:, :prefix] = True
    mask[:, prefix:, prefix:] = slot[:, :, None] >= slot[:, None, :]
    return mask


def _blocks(w: Weights, x: Array, ids: Array, grid: Grid) -> Stages:
    eps, act = w.get("jepa.enc.ln_eps"), w.get("jepa.enc.act")
    is_causal = w.get("jepa.enc.attn_mode") == "block_causal"
    mask = block_causal_mask(ids, grid, n_prefix(w)) if is_causal else None
    how = Attention(w.get("jepa.enc.n_head"), encoder_angles(w, ids, grid), mask)
    levels = {layer: k for k, layer in enumerate(w.get("jepa.enc.hier_layers"))}
    for i in range(w.get("jepa.enc.n_layer")):
        x = block(w, f"enc.blk.{i}", x, how, eps, act)
        yield f"enc.blk.{i}", x
        if i in levels:  # a level is read off, not fed back
            name = f"enc.hier_norm.{levels[i]}"
            yield name, layer_norm(w, name, x, eps)
    x = layer_norm(w, "enc.norm", x, eps)
    yield "enc.norm", x
    yield "pooled", pool(w, x)


def pool(w: Weights, tokens: Array) -> Array:
    """Return what stands for the whole input, [B,D]: CLS after the norm, else the mean patch.

    Where there is a projector (lewm) it is applied to CLS.
    """
    if not n_cls(w):
        return tokens[:, n_prefix(w) :].mean(1)
    cls = tokens[:, 0]
    return mlp(w, "enc.proj", cls, w.get("jepa.enc.proj_act")) if has_projector(w) else cls


def has_projector(w: Weights) -> bool:
    """Say whether the latent is a projection of CLS (lewm)."""
    return w.has("enc.proj.0.weight")
