"""ijepa: image ViTs with a 2-D sine-cosine table and, in the authors' files, a masked predictor.

Paper: I-JEPA, arXiv 2301.08243. References: facebookresearch/ijepa
    ``src/models/vision_transformer.py`` and transformers ``modeling_ijepa.py``. Quirks kept: the
    table's halves are [w | h] and it is stored, never made anew; on other grids it is resampled as
    transformers does (the authors' code cannot run them); the predictor has the encoder's number of
    heads; a source's eps is read from its config (transformers' default, 1e-12, is not the
    published 1e-6); the models on the Hugging Face hub are the authors' ``encoder``, not their
    ``target_encoder``, so that is the default entry.
"""

from collections.abc import Mapping
from typing import Any

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import ConversionError
from jepa_wm.models import hfvit
from jepa_wm.models.family import Converted, Family, Meta, read_fields, refuse_keys, settle
from jepa_wm.models.head_sources import take_head
from jepa_wm.models.masked import build_masked
from jepa_wm.models.meta_layout import SWIGLU, eval_crop, published, table_side
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

ANCHORS = hfvit.ANCHORS
# the authors' names are timm's, transformers' those of its ViT; there is no CLS token
SOURCE_MAP: SourceMap = {t: n for t, n in hfvit.SOURCE_MAP.items() if t != "enc.cls_token"}
# a head for classes or for CLS, and what masks patches while training: no part of the feature
SKIP = (r"pooler\..*", r"embeddings\.mask_token")
CONFIG_FIELDS = {
    "jepa.enc.embed_dim": ("hidden_size",),
    "jepa.enc.n_layer": ("num_hidden_layers",),
    "jepa.enc.n_head": ("num_attention_heads",),
    "jepa.enc.ffn_dim": ("intermediate_size",),
    "jepa.enc.patch_size": ("patch_size",),
    "jepa.enc.img_size": ("image_size",),
    "jepa.enc.in_chans": ("num_channels",),
    "jepa.enc.ln_eps": ("layer_norm_eps",),
    "jepa.enc.act": ("hidden_act",),
}
HEADS: Meta = {"jepa.enc.n_head": 16, "jepa.enc.ln_eps": 1e-6}
# rows of the position table -> sizes (``meta_layout.SHAPE``) -> what they do not show
PUBLISHED: Mapping[int, Mapping[tuple[int, ...], Meta]] = {
    16 * 16: {(1280, 32, 5120, 14, 1): HEADS},  # ViT-H/14 at 224, ImageNet-1k and -22k
    28 * 28: {(1280, 32, 5120, 16, 1): HEADS},  # ViT-H/16 at 448
    14 * 14: {(1408, 40, 6144, 16, 1): HEADS},  # ViT-g/16 at 224
}
# what a bundle may ask of this graph
GRAPH = {
    "jepa.enc.pos_type": ("sincos2d", "learned"),
    "jepa.enc.tubelet_size": (1,),
    "jepa.enc.modality_embed": (False,),
    "jepa.enc.image_patch_embed": (False,),
    "jepa.enc.attn_mode": ("full",),
    "jepa_wm.enc.pos_interp": ("size", "offset0.1", "antialias"),
}


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Turn a source checkpoint into the metadata and tensors of an ijepa bundle.

    Raises:
        ConversionError: something is missing, left over, contradictory or not representable.
    """
    is_authors = ANCHORS[0] in source
    tensors = take_encoder(source, SOURCE_MAP) | take_predictor(source)
    head = take_head(source, given, tensors)
    source.skip(SKIP)
    source.finish(SWIGLU | CLS_TOKEN)
    if tensors["enc.patch_embed.weight"].ndim == 5:
        raise ConversionError("the patch embedding is that of clips [D,C,T,P,P], not of images")
    measured = measure_encoder(tensors)
    rows = len(tensors["enc.pos_embed"])
    known = {**(CODE if is_authors else {}), **published(measured, PUBLISHED.get(rows, {}))}
    fixed = {
        "jepa.enc.img_size": table_side(rows) * measured["jepa.enc.patch_size"],
        "jepa.enc.n_frames": 1,
        "jepa.enc.act": "gelu_erf",
        "jepa.enc.pos_type": "sincos2d",
        "jepa.enc.qkv_fused": True,
    }
    stated = {**fixed, **known, **_config_meta(source.config)}
    required = ("jepa.enc.n_head", "jepa.enc.ln_eps")
    meta = settle(measured, stated, of_part(given, "enc"), required)
    check_grid(meta, rows)
    meta |= predictor_meta(tensors, meta, given)
    meta |= {"jepa.family": "ijepa", "jepa.modality": "image", **head}
    recipe = eval_crop(meta["jepa.enc.img_size"]) if is_authors and not source.processor else {}
    return meta | preprocess_meta(source.processor, source.config, {**recipe, **given}), tensors


def _config_meta(config: Mapping[str, Any]) -> Meta:
    """Read what a Hugging Face config states, refusing what the graph cannot do."""
    wrong = ["qkv_bias false"] if config.get("qkv_bias") is False else []
    if config.get("model_type") not in (None, "ijepa"):
        wrong.append(f"model_type {config['model_type']!r} (wanted 'ijepa')")
    if wrong:
        raise ConversionError(f"config.json: not representable: {', '.join(wrong)}")
    return read_fields(config, CONFIG_FIELDS)


def build(bundle: Bundle) -> Model:
    """Build the empty modules of a ijepa bundle."""
    refuse_keys(bundle, GRAPH)
    return build_encoder(bundle, build_masked(bundle))


FAMILY = Family("ijepa", ANCHORS, build, convert, default_entry="encoder")
