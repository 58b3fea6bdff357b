"""vjepa2_1: V-JEPA 2.1's ViTs for images and clips, interleaved 3-D RoPE, and their predictor.

Reference: facebookresearch/vjepa2 ``app/vjepa_2_1``. Quirks kept: positions are rescaled to the
    grid of 256 px in the encoder but not in the predictor, which decodes ids on the trained grid; a
    clip of exactly one frame is an image, with a patch embedding and a modality vector of its own;
    four levels with a norm each, of which the last is the plain output; ViT-g and G feed all four
    to the predictor. Distilled models (B, L) keep the encoder to use as ``ema_encoder``.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import BundleError, ConversionError
from jepa_wm.models.family import Converted, Family, Meta, refuse_keys, settle
from jepa_wm.models.head_sources import take_head
from jepa_wm.models.masked import build_masked
from jepa_wm.models.meta_layout import (
    ENCODER,
    PREDICTOR,
    SWIGLU,
    eval_crop,
    flatten_kernel,
    measure_blocks,
    measure_masked,
    published,
    stack_mask_tokens,
)
from jepa_wm.models.model import Model, build_encoder
from jepa_wm.models.processor import preprocess_meta
from jepa_wm.models.source import Source, SourceMap

ANCHORS = ("norms_block.0.weight",)
LEVEL: SourceMap = {"enc.hier_norm.{i}.*": ("norms_block.{i}.*",)}
IMAGE: SourceMap = {"enc.patch_embed_img.*": ("patch_embed_img.proj.*",)}
MODALITY: SourceMap = {
    "enc.mod_embed_img": ("img_mod_embed",),
    "enc.mod_embed_video": ("video_mod_embed",),
}
PRED_LEVELS: SourceMap = {
    "pred.embed.0.*": ("predictor_embed.0.*",),
    "pred.embed.2.*": ("predictor_embed.2.*",),
}
PRED_MODALITY: SourceMap = {f"pred.{name[4:]}": source for name, source in MODALITY.items()}
PRED_CONTEXT: SourceMap = {"pred.proj_context.*": ("predictor_proj_context.*",)}

HIER_LAYERS = {
    12: (2, 5, 8, 11),
    24: (5, 11, 17, 23),
    40: (9, 19, 29, 39),
    48: (11, 23, 37, 47),
}
"""Depth -> blocks with a norm of their own; the authors' code knows no other depth."""
REF_GRID = {16: 16, 14: 18}
"""Patch side -> grid of the first training stage: 256 / 16, and 252 / 14 for 14."""
PUBLISHED: dict[tuple[int, ...], Meta] = {
    (768, 12, 3072, 16, 2): {"jepa.enc.n_head": 12},
    (1024, 24, 4096, 16, 2): {"jepa.enc.n_head": 16},
    (1408, 40, 6144, 16, 2): {"jepa.enc.n_head": 22},
    (1664, 48, 8192, 16, 2): {"jepa.enc.n_head": 26},
}
CLIP = {"jepa.enc.img_size": 384, "jepa.enc.n_frames": 64}
PREDICTOR_HEADS = {384: 12}
"""Width of the predictor -> heads, in every published model."""

# what a bundle may ask of this graph
GRAPH = {
    "jepa.enc.pos_type": ("rope3d",),
    "jepa.enc.attn_mode": ("full",),
    "jepa.enc.cls_token": (False,),
    "jepa.enc.n_registers": (0,),
}


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Turn an authors' checkpoint into the metadata and tensors of a vjepa2_1 bundle.

    Raises:
        ConversionError: something is missing, left over, contradictory or not representable.
    """
    tensors = _encoder(source)
    predictor = source.part("predictor")
    if predictor is not None:
        tensors |= _predictor(predictor)
    head = take_head(source, given, tensors)
    source.finish(SWIGLU)
    meta = encoder_meta(tensors, given)
    if predictor is not None:
        meta |= predictor_meta(tensors, meta, given)
    meta |= {"jepa.family": "vjepa2_1", "jepa.modality": _modality(meta), **head}
    if not source.processor:
        given = {**pixel_recipe(meta), **given}
    return meta | preprocess_meta(source.processor, source.config, given), tensors


def _encoder(source: Source) -> dict[str, Tensor]:
    rows = dict(ENCODER)
    rows |= IMAGE if "patch_embed_img.proj.weight" in source else {}
    rows |= MODALITY if any(names[0] in source for names in MODALITY.values()) else {}
    tensors = source.fill(rows, source.layers(("blocks.{i}.norm1.weight",)) or 1)
    tensors |= source.fill(LEVEL, source.layers(("norms_block.{i}.weight",)) or 1)
    return _as_vectors(tensors)


def _predictor(predictor: Source) -> dict[str, Tensor]:
    rows = dict(PREDICTOR)
    if "predictor_embed.0.weight" in predictor:
        del rows["pred.embed.*"]
        rows |= PRED_LEVELS
    rows |= PRED_MODALITY if any(n[0] in predictor for n in PRED_MODALITY.values()) else {}
    rows |= PRED_CONTEXT if "predictor_proj_context.weight" in predictor else {}
    tensors = predictor.fill(rows, predictor.layers(("predictor_blocks.{i}.norm1.weight",)) or 1)
    mask_tokens = stack_mask_tokens(predictor)
    if mask_tokens is not None:
        tensors["pred.mask_tokens"] = mask_tokens
    return _as_vectors(tensors)


def _as_vectors(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop the leading ones of the modality vectors [1,1,D]."""
    return {n: t.flatten() if ".mod_embed_" in n else t for n, t in tensors.items()}


def encoder_meta(tensors: dict[str, Tensor], given: Mapping[str, Any]) -> Meta:
    """Settle all ``jepa.enc.*`` keys; flatten the kernels and add the plain output's norm."""
    levels = sum(name.startswith("enc.hier_norm.") for name in tensors) // 2
    for end in ("weight", "bias"):  # the plain output is the last level
        tensors[f"enc.norm.{end}"] = tensors[f"enc.hier_norm.{levels - 1}.{end}"]
    measured = flatten_kernel(tensors) | measure_blocks(tensors, "enc")
    measured |= {
        "jepa.enc.modality_embed": "enc.mod_embed_img" in tensors,
        "jepa.enc.image_patch_embed": "enc.patch_embed_img.weight" in tensors,
    }
    if measured["jepa.enc.image_patch_embed"]:
        _flatten_image_kernel(tensors, measured)
    stated = {
        "jepa.enc.ln_eps": 1e-6,
        "jepa.enc.act": "gelu_erf",
        "jepa.enc.pos_type": "rope3d",
        "jepa.enc.rope_theta": 1e4,
        "jepa.enc.rope_freq_layout": "interleaved",
        "jepa.enc.rope_interpolate": True,
        "jepa.enc.qkv_fused": True,
    }
    if measured["jepa.enc.patch_size"] in REF_GRID:
        stated["jepa.enc.rope_ref_grid"] = REF_GRID[measured["jepa.enc.patch_size"]]
    if measured["jepa.enc.n_layer"] in HIER_LAYERS:
        stated["jepa.enc.hier_layers"] = HIER_LAYERS[measured["jepa.enc.n_layer"]]
    known = published(measured, PUBLISHED)
    stated |= known | CLIP if known else {}
    names = ("n_head", "img_size", "n_frames", "rope_ref_grid", "hier_layers")
    ours = {k: v for k, v in given.items() if k.startswith("jepa.enc.")}
    meta = settle(measured, stated, ours, tuple(f"jepa.enc.{name}" for name in names))
    if len(meta["jepa.enc.hier_layers"]) != levels:
        raise ConversionError(
            f"the source has {levels} norms_block, but jepa.enc.hier_layers names "
            f"{len(meta['jepa.enc.hier_layers'])} blocks"
        )
    return meta


def _flatten_image_kernel(tensors: dict[str, Tensor], clips: Meta) -> None:
    """Flatten the image kernel; it must be the clip kernel's for one frame."""
    found = flatten_kernel(tensors, "enc.patch_embed_img.weight")
    wanted = {**found, **clips, "jepa.enc.tubelet_size": 1}
    if any(wanted[key] != value for key, value in found.items()):
        raise ConversionError(
            f"patch_embed_img.proj.weight: sizes {list(found.values())} (width, channels, frames, "
            f"patch), wanted {[wanted[key] for key in found]} as patch_embed for one frame"
        )


def predictor_meta(tensors: Mapping[str, Tensor], enc: Meta, given: Mapping[str, Any]) -> Meta:
    """Settle all ``jepa.pred.*`` keys; the ids' grid is that of training, as in the hub's code."""
    first = tensors.get("pred.embed.0.weight")
    levels = 1 if first is None else first.shape[-1] // enc["jepa.enc.embed_dim"]
    if levels not in (1, len(enc["jepa.enc.hier_layers"])):
        raise ConversionError(
            f"predictor_embed takes {levels} levels of {enc['jepa.enc.embed_dim']}, wanted 1 or "
            f"all {len(enc['jepa.enc.hier_layers'])}"
        )
    measured = measure_masked(tensors, levels) | {
        "jepa.pred.kind": "masked",
        "jepa.pred.n_hier_in": levels,
        "jepa.pred.modality_embed": "pred.mod_embed_img" in tensors,
        "jepa.pred.context_proj": "pred.proj_context.weight" in tensors,
    }
    stated = {
        "jepa.pred.ln_eps": 1e-6,
        "jepa.pred.act": "gelu_erf",
        "jepa.pred.rope_freq_layout": "interleaved",
        "jepa.pred.rope_interpolate": False,
        "jepa.pred.grid_size": enc["jepa.enc.img_size"] // enc["jepa.enc.patch_size"],
    }
    width = measured["jepa.pred.embed_dim"]
    stated |= {"jepa.pred.n_head": PREDICTOR_HEADS[width]} if width in PREDICTOR_HEADS else {}
    ours = {k: v for k, v in given.items() if k.startswith("jepa.pred.")}
    return settle(measured, stated, ours, ("jepa.pred.n_head",))


def pixel_recipe(meta: Meta) -> Meta:
    """Return the ``jepa.pre.*`` keys of the authors' evaluation, where the size is published."""
    return eval_crop(meta["jepa.enc.img_size"]) if published(meta, PUBLISHED) else {}


def _modality(meta: Mapping[str, Any]) -> str:
    return "image+video" if meta["jepa.enc.image_patch_embed"] else "video"


def build(bundle: Bundle) -> Model:
    """Build the empty modules of a vjepa2_1 bundle.

    Raises:
        BundleError: the bundle asks for something this graph does not have.
    """
    refuse_keys(bundle, GRAPH)
    levels, taken = len(bundle.get("jepa.enc.hier_layers")), bundle.get("jepa.pred.n_hier_in")
    if taken not in (1, levels):
        raise BundleError(
            f"{bundle.path}: jepa.pred.n_hier_in = {taken} (a vjepa2_1 has 1 or all {levels})"
        )
    return build_encoder(bundle, build_masked(bundle))


FAMILY = Family("vjepa2_1", ANCHORS, build, convert, ("ema_encoder", "target_encoder"))
