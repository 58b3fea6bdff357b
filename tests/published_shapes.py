"""Published models in small: their head widths, patches, tokens and parts, few heads and layers.

What the arithmetic depends on is kept (the width of a head with its odd halves, the ratio of the
MLP, tubelets, prefix tokens, levels, mask tokens, eps); depth and the number of heads are not.
"""

from dataclasses import dataclass, field
from typing import Any

BASE = {"general.architecture": "jepa", "jepa.schema_version": 1, "jepa.enc.n_layer": 2}
LAYOUTS = {
    "ijepa": "transformers, authors'",
    "vjepa": "authors'",
    "vjepa2": "transformers, authors'",
    "vjepa2_1": "authors'",
    "levjepa": "authors'",
    "hfvit": "transformers, timm, lite_ssl",
    "lewm": "authors'",
}


@dataclass(frozen=True)
class Shape:
    """One row of the table.

    Attributes:
        family: Bundle family.
        size: What is published in this shape.
        meta: Keys of a bundle of this shape.
        layouts: Checkpoints it is converted from, if not those of ``LAYOUTS``.
    """

    family: str
    size: str
    meta: dict[str, Any] = field(hash=False)
    layouts: str = ""


def encoder(family, heads, head_dim, ffn_ratio=4.0, patch=16, side=4, **more):
    """Return the keys of an encoder; ``side`` is the trained grid in patches."""
    keys = {
        "embed_dim": heads * head_dim,
        "n_head": heads,
        "ffn_dim": int(heads * head_dim * ffn_ratio),
        "patch_size": patch,
        "img_size": side * patch,
        **more,
    }
    return BASE | {"jepa.family": family} | {f"jepa.enc.{k}": v for k, v in keys.items()}


def predictor(kind, heads, head_dim, **more):
    """Return the keys of a predictor with an MLP four times as wide."""
    dim = heads * head_dim
    keys = {"kind": kind, "embed_dim": dim, "n_layer": 2, "n_head": heads, "ffn_dim": 4 * dim}
    return {f"jepa.pred.{k}": v for k, v in (keys | more).items()}


CLIP = {"tubelet_size": 2, "n_frames": 4}
NESTED = {
    "rope_freq_layout": "interleaved", "rope_interpolate": True, "rope_ref_grid": 16,
    "modality_embed": True, "image_patch_embed": True,
}  # fmt: skip
POOL = {"jepa.head.kind": "attentive_pool", "jepa.head.n_pool_layers": 3, "jepa.head.n_classes": 7}
G_RATIO = 48 / 11


def masked(mask_tokens, heads=4, head_dim=32, **more):
    return predictor("masked", heads, head_dim, n_mask_tokens=mask_tokens, **more)


def nested(heads, n_layer, levels, out, **more):
    """Return the keys of a V-JEPA 2.1 model."""
    layers = [n_layer // 4 * (k + 1) - 1 for k in range(4)]
    enc = encoder("vjepa2_1", heads, 64, **CLIP, **NESTED, hier_layers=layers, **more)
    pred = masked(8, n_hier_in=levels, out_dim=out, modality_embed=True, context_proj=True)
    return enc | pred | {"jepa.enc.n_layer": n_layer}


def ac(**more):
    pred = predictor(
        "ac", 2, 64, action_dim=7, state_dim=7, grid_size=4, n_frames=4, n_cond_tokens=2,
        normalize_reps=True, **more,
    )  # fmt: skip
    return encoder("vjepa2", 2, 64, G_RATIO, **CLIP) | pred


def lewm():
    pred = predictor("lewm", 4, 64, n_frames=3, action_dim=10, ln_eps=1e-5, qkv_bias=False)
    enc = encoder("lewm", 2, 64, patch=14, cls_token=True, ln_eps=1e-12)
    # heads wider together than the model
    return enc | pred | {"jepa.pred.embed_dim": 128, "jepa.pred.head_dim": 64}


def vit(**more):
    return encoder("hfvit", 2, 64, cls_token=True, **more)


SHAPES = (
    Shape(
        "ijepa", "ViT-H/14, ViT-H/16 (448)", encoder("ijepa", 2, 80, patch=14) | masked(1, 4, 24)
    ),
    Shape("ijepa", "ViT-g/16", encoder("ijepa", 4, 88, G_RATIO) | masked(1, 4, 24)),
    Shape("vjepa", "ViT-L/16", encoder("vjepa", 2, 64, **CLIP) | masked(2, 4, 24)),
    Shape("vjepa", "ViT-H/16, ViT-H/16 (384)", encoder("vjepa", 2, 80, **CLIP) | masked(2, 4, 24)),
    Shape("vjepa2", "ViT-L/16", encoder("vjepa2", 2, 64, **CLIP) | masked(10)),
    Shape("vjepa2", "ViT-H/16", encoder("vjepa2", 2, 80, **CLIP) | masked(10)),
    Shape("vjepa2", "ViT-g/16 (256, 384)", encoder("vjepa2", 2, 64, G_RATIO, **CLIP) | masked(10)),
    Shape(
        "vjepa2", "ViT-L/16 SSv2, Diving48", encoder("vjepa2", 2, 64, **CLIP) | masked(10) | POOL
    ),
    Shape(
        "vjepa2",
        "ViT-g/16 SSv2 (probe: 16 heads, eps 1e-5)",
        encoder("vjepa2", 4, 64, G_RATIO, **CLIP)
        | POOL
        | {"jepa.head.n_head": 2, "jepa.head.ln_eps": 1e-5},
    ),
    Shape("vjepa2", "ViT-g/16 AC", ac(), "authors'"),
    Shape("vjepa2_1", "ViT-B/16, ViT-L/16 (384)", nested(2, 4, 1, 208)),
    Shape("vjepa2_1", "ViT-g/16, ViT-G/16 (384)", nested(2, 4, 4, 128, ffn_ratio=G_RATIO)),
    Shape(
        "levjepa",
        "ViT-L/16",
        encoder("levjepa", 2, 64, n_frames=3, cls_token=True, attn_mode="block_causal"),
    ),
    Shape("hfvit", "LeJEPA ViT-S/16, ViT-B/16", vit(ln_eps=1e-6)),
    Shape("hfvit", "DINOv2 with registers", vit(patch=14, n_registers=4, layer_scale=True)),
    Shape(
        "hfvit",
        "ViT with a linear classifier",
        vit(ln_eps=1e-12) | {"jepa.head.kind": "linear_cls", "jepa.head.n_classes": 7},
    ),
    Shape("lewm", "ViT-tiny/14, predictor of 16 heads", lewm()),
)
