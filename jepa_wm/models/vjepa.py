"""vjepa: V-JEPA's clip ViTs with a 3-D sine-cosine table, and their masked predictor.

Paper: V-JEPA, arXiv 2404.08471. Reference: facebookresearch/jepa
    ``src/models/vision_transformer.py`` and ``predictor.py``. Quirks kept: the table is stored
    (three parts cut to the width), resampled trilinearly in time too; two mask tokens, one a mask
    configuration, of which the second is the default; the predictor has the encoder's number of
    heads; a still picture is shown as a whole clip of it. Probes read ``target_encoder``, so that
    is the default entry; the predictor was trained on latents of ``encoder``.
"""

from collections.abc import Mapping
from typing import Any

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import ConversionError
from jepa_wm.models.family import Converted, Family, Meta, refuse_keys, settle
from jepa_wm.models.head_sources import take_head
from jepa_wm.models.masked import build_masked
from jepa_wm.models.meta_layout import ENCODER, SWIGLU, eval_crop, published, table_side
from jepa_wm.models.model import Model, build_encoder
from jepa_wm.models.processor import preprocess_meta
from jepa_wm.models.source import Source, SourceMap
from jepa_wm.models.table_layout import (
    CLS_TOKEN,
    CODE,
    check_grid,
    measure_encoder,
    of_part,
    predictor_meta,
    take_encoder,
    take_predictor,
)

ANCHORS = ("patch_embed.proj.weight",)
SOURCE_MAP: SourceMap = {**ENCODER, "enc.pos_embed": ("pos_embed",), "enc.norm.*": ("norm.*",)}
UNSAID: Meta = {"jepa.enc.n_head": 16, "jepa.enc.n_frames": 16}
VIT_L, VIT_H = (1024, 24, 4096, 16, 2), (1280, 32, 5120, 16, 2)
# rows of the position table -> sizes (``meta_layout.SHAPE``) -> what they do not show
PUBLISHED: Mapping[int, Mapping[tuple[int, ...], Meta]] = {
    8 * 14 * 14: {VIT_L: UNSAID, VIT_H: UNSAID},  # at 224
    8 * 24 * 24: {VIT_H: UNSAID},  # at 384
}
# what a bundle may ask of this graph
GRAPH = {
    "jepa.enc.pos_type": ("sincos3d",),
    "jepa.enc.cls_token": (False,),
    "jepa.enc.n_registers": (0,),
    "jepa.enc.attn_mode": ("full",),
    "jepa.enc.image_patch_embed": (False,),
    "jepa_wm.enc.pos_interp": ("trilinear_scale",),
}


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Turn a source checkpoint into the metadata and tensors of a vjepa bundle.

    Raises:
        ConversionError: something is missing, left over, contradictory or not representable.
    """
    tensors = take_encoder(source, SOURCE_MAP) | take_predictor(source)
    head = take_head(source, given, tensors)
    source.finish(SWIGLU | CLS_TOKEN)
    if tensors["enc.patch_embed.weight"].ndim == 4:
        raise ConversionError("the patch embedding is that of images [D,C,P,P], not of clips")
    measured = measure_encoder(tensors)
    rows = len(tensors["enc.pos_embed"])
    ours = of_part(given, "enc")
    known = published(measured, PUBLISHED.get(rows, {}))
    known |= _clip_sizes(rows, measured, {**known, **ours})
    fixed = {**CODE, "jepa.enc.pos_type": "sincos3d", "jepa.enc.qkv_fused": True}
    required = ("jepa.enc.n_head", "jepa.enc.n_frames", "jepa.enc.img_size")
    meta = settle(measured, {**fixed, **known}, ours, required)
    check_grid(meta, rows)
    meta |= predictor_meta(tensors, meta, given)
    meta |= {"jepa.family": "vjepa", "jepa.modality": "video", **head}
    recipe = {} if source.processor else eval_crop(meta["jepa.enc.img_size"])
    return meta | preprocess_meta(source.processor, source.config, {**recipe, **given}), tensors


def _clip_sizes(rows: int, measured: Meta, known: Mapping[str, Any]) -> Meta:
    """Find picture size and frames of the table's grid from the one of them that is known.

    Raises:
        ConversionError: the rows make no such grid.
    """
    patch, tubelet = measured["jepa.enc.patch_size"], measured["jepa.enc.tubelet_size"]
    frames, img_size = known.get("jepa.enc.n_frames"), known.get("jepa.enc.img_size")
    if img_size is None and frames is not None and frames >= tubelet:
        return {"jepa.enc.img_size": table_side(rows, frames // tubelet) * patch}
    if frames is None and img_size is not None and img_size >= patch:
        return {"jepa.enc.n_frames": rows // (img_size // patch) ** 2 * tubelet}
    return {}


def build(bundle: Bundle) -> Model:
    """Build the empty modules of a vjepa bundle."""
    refuse_keys(bundle, GRAPH)
    return build_encoder(bundle, build_masked(bundle), still_frames=bundle.get("jepa.enc.n_frames"))


FAMILY = Family("vjepa", ANCHORS, build, convert, default_entry="target_encoder")
