"""levjepa: LeVJEPA's clip ViT with CLS, tiled 3-D RoPE and attention that is causal by frame.

References: MLO-lab/LeVJEPA ``module.py`` and galilai-group/LeVJEPA-VideoMix-Large. Quirks kept: CLS
    has no position, sees every patch and is seen by none; a token is one frame; a one-frame clip is
    one time slot, while a still picture is shown as a whole clip of it. The epsilon 1e-6 is in the
    code that ships with the weights, not in their config.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.schema import IMAGENET_MEAN, IMAGENET_STD
from jepa_wm.errors import ConversionError
from jepa_wm.models.family import (
    Converted,
    Family,
    Meta,
    read_fields,
    read_ratio,
    refuse_keys,
    settle,
)
from jepa_wm.models.head_sources import take_head
from jepa_wm.models.meta_layout import (
    ENCODER,
    SWIGLU,
    flatten_kernel,
    measure_blocks,
    published,
)
from jepa_wm.models.model import Model, build_encoder
from jepa_wm.models.processor import preprocess_meta
from jepa_wm.models.source import Source, SourceMap

ANCHORS = ("patch_embed.proj.weight",)
SOURCE_MAP: SourceMap = {**ENCODER, "enc.cls_token": ("cls_token",), "enc.norm.*": ("norm.*",)}
NOT_REPRESENTABLE = {
    **SWIGLU,
    r"pos_embed": "positions are a table (use_rope false), which no published model has",
}
CONFIG_FIELDS = {
    "jepa.enc.embed_dim": ("embed_dim",),
    "jepa.enc.n_layer": ("depth",),
    "jepa.enc.n_head": ("num_heads",),
    "jepa.enc.patch_size": ("patch_size",),
    "jepa.enc.tubelet_size": ("tubelet_size",),
    "jepa.enc.in_chans": ("in_chans",),
    "jepa.enc.img_size": ("img_size",),
    "jepa.enc.n_frames": ("num_frames",),
    "jepa.enc.attn_mode": ("attn_mode",),
}
# LeVJEPA-VideoMix-Large; its preprocessing is in its model card alone
PUBLISHED: dict[tuple[int, ...], Meta] = {
    (1024, 24, 4096, 16, 1): {
        "jepa.enc.n_head": 16,
        "jepa.enc.img_size": 224,
        "jepa.enc.n_frames": 16,
        "jepa.enc.attn_mode": "block_causal",
    },
}
# what a bundle may ask of this graph
GRAPH = {
    "jepa.enc.pos_type": ("rope3d",),
    "jepa.enc.modality_embed": (False,),
    "jepa.enc.image_patch_embed": (False,),
}


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Turn a checkpoint folder, or bare weights, into the metadata and tensors of a bundle.

    Raises:
        ConversionError: something is missing, left over, contradictory or not representable.
    """
    stated = _config_meta(source.config)
    tensors = source.fill(SOURCE_MAP, source.layers(("blocks.{i}.norm1.weight",)) or 1)
    head = take_head(source, given, tensors)
    source.finish(NOT_REPRESENTABLE)
    tensors["enc.cls_token"] = tensors["enc.cls_token"].flatten()
    meta = encoder_meta(tensors, stated, given)
    meta |= {"jepa.family": "levjepa", "jepa.modality": "video", **head}
    if not source.processor:
        given = {**pixel_recipe(meta), **given}
    return meta | preprocess_meta(source.processor, source.config, given), tensors


def _config_meta(config: Mapping[str, Any]) -> Meta:
    """Read what the config states, refusing what the graph cannot do."""
    wrong = [f"{name} false" for name in ("use_rope", "qkv_bias") if config.get(name) is False]
    kind = config.get("model_type")
    if kind not in (None, "levjepa"):
        wrong.append(f"model_type {kind!r} (wanted 'levjepa')")
    if wrong:
        raise ConversionError(f"config.json: not representable: {', '.join(wrong)}")
    stated = read_fields(config, CONFIG_FIELDS)
    ffn = read_ratio(config, "mlp_ratio", stated.get("jepa.enc.embed_dim"))
    stated |= {} if ffn is None else {"jepa.enc.ffn_dim": ffn}
    return stated


def encoder_meta(tensors: dict[str, Tensor], stated: Meta, given: Mapping[str, Any]) -> Meta:
    """Settle all ``jepa.enc.*`` keys and flatten the patch kernel."""
    measured = (
        flatten_kernel(tensors) | measure_blocks(tensors, "enc") | {"jepa.enc.cls_token": True}
    )
    fixed = {
        "jepa.enc.ln_eps": 1e-6,
        "jepa.enc.act": "gelu_erf",
        "jepa.enc.pos_type": "rope3d",
        "jepa.enc.rope_theta": 1e4,
        "jepa.enc.rope_freq_layout": "tiled",
        "jepa.enc.rope_interpolate": False,
        "jepa.enc.qkv_fused": True,
    }
    ours = {k: v for k, v in given.items() if k.startswith("jepa.enc.")}
    required = tuple(f"jepa.enc.{n}" for n in ("n_head", "img_size", "n_frames", "attn_mode"))
    return settle(measured, {**fixed, **published(measured, PUBLISHED), **stated}, ours, required)


def pixel_recipe(meta: Meta) -> Meta:
    """Return the ``jepa.pre.*`` keys of the model card, where the size is the published one."""
    if not published(meta, PUBLISHED):
        return {}
    img_size = meta["jepa.enc.img_size"]
    return {
        "jepa.pre.mean": IMAGENET_MEAN,
        "jepa.pre.std": IMAGENET_STD,
        "jepa.pre.resize_short": img_size,
        "jepa.pre.crop": img_size,
        "jepa.pre.resample": "bicubic",
        "jepa.pre.resize_mode": "shortest_edge",
    }


def build(bundle: Bundle) -> Model:
    """Build the empty modules of a levjepa bundle."""
    refuse_keys(bundle, GRAPH)
    return build_encoder(bundle, still_frames=bundle.get("jepa.enc.n_frames"))


FAMILY = Family("levjepa", ANCHORS, build, convert)
