"""hfvit: image ViTs with CLS and a learned position table (LeJEPA, DINOv2 and timm, HF ViT).

Paper: LeJEPA, arXiv 2511.08544; DINOv2, arXiv 2304.07193. References: Open-Knowledge-AI/lite_ssl
    ``ViTv2``, timm
``vision_transformer.py``, transformers ``modeling_vit.py`` and ``modeling_dinov2*.py``. Quirks
kept: position row 0 is added to CLS; registers enter after the position add and have no row; HF ViT
    has eps 1e-12; the sources differ in how
the table is resampled (``jepa_wm.enc.pos_interp``); the pooled feature is CLS after the norm, never
HF's ``pooler``.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from jepa_wm.bundle.reader import Bundle
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
from jepa_wm.models.model import Model, build_encoder
from jepa_wm.models.processor import preprocess_meta
from jepa_wm.models.source import Source, SourceMap

ANCHORS = ("patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight")
LAYER = "encoder.layer.{i}."
# one row a tensor: timm and lite_ssl; published HF names; HF names in memory since transformers 5
SOURCE_MAP: SourceMap = {
    "enc.patch_embed.*": ("patch_embed.proj.*", "embeddings.patch_embeddings.projection.*"),
    "enc.cls_token": ("cls_token", "embeddings.cls_token"),
    "enc.pos_embed": ("pos_embed", "embeddings.position_embeddings"),
    "enc.norm.*": ("norm.*", "layernorm.*"),
    "enc.blk.{i}.ln1.*": (
        "blocks.{i}.norm1.*",
        LAYER + "layernorm_before.*",
        "layers.{i}.layernorm_before.*",
        LAYER + "norm1.*",
    ),
    "enc.blk.{i}.attn_qkv.*": (
        "blocks.{i}.attn.qkv.*",
        LAYER + "attention.attention.[query,key,value].*",
        "layers.{i}.attention.[q_proj,k_proj,v_proj].*",
        LAYER + "attention.[q_proj,k_proj,v_proj].*",
    ),
    "enc.blk.{i}.attn_out.*": (
        "blocks.{i}.attn.proj.*",
        LAYER + "attention.output.dense.*",
        "layers.{i}.attention.o_proj.*",
        LAYER + "attention.o_proj.*",
    ),
    "enc.blk.{i}.ln2.*": (
        "blocks.{i}.norm2.*",
        LAYER + "layernorm_after.*",
        "layers.{i}.layernorm_after.*",
        LAYER + "norm2.*",
    ),
    "enc.blk.{i}.ffn_up.*": (
        "blocks.{i}.mlp.fc1.*",
        LAYER + "intermediate.dense.*",
        "layers.{i}.mlp.fc1.*",
        LAYER + "mlp.fc1.*",
    ),
    "enc.blk.{i}.ffn_down.*": (
        "blocks.{i}.mlp.fc2.*",
        LAYER + "output.dense.*",
        "layers.{i}.mlp.fc2.*",
        LAYER + "mlp.fc2.*",
    ),
}
REGISTERS = ("register_tokens", "reg_token", "embeddings.register_tokens")
LAYER_SCALE: SourceMap = {
    f"enc.blk.{{i}}.ls{n}": (f"blocks.{{i}}.ls{n}.gamma", LAYER + f"layer_scale{n}.lambda1")
    for n in (1, 2)
}
# heads of the training, masking, HF's pooler: never part of the feature
SKIP = (
    r"cva_module_proj\..*",
    r"head\..*",
    r"projection_head\..*",
    r"pooler\..*",
    r"(embeddings\.)?mask_token",
)
NOT_REPRESENTABLE = {
    r"norm_patch\..*": "patch tokens have a norm of their own (iBOT), which the schema cannot say",
    r"fc_norm\..*": "the norm follows pooling (timm fc_norm), which the schema cannot say",
    r"norm_pre\..*": "there is a norm before the blocks, which the schema cannot say",
    r".*\.(q_norm|k_norm)\..*": "queries and keys are normalised, which the schema cannot say",
    r".*\.mlp\.(fc3|w12|w3|weights_in|weights_out)\..*": "the MLP is a SwiGLU, which the schema "
    "cannot say",
    r".*distillation_token|dist_token": "there is a distillation token; the schema has none",
}
CONFIG_FIELDS = {
    "jepa.enc.embed_dim": ("hidden_size", "embed_dim"),
    "jepa.enc.n_layer": ("num_hidden_layers", "depth"),
    "jepa.enc.n_head": ("num_attention_heads", "num_heads"),
    "jepa.enc.ffn_dim": ("intermediate_size",),
    "jepa.enc.patch_size": ("patch_size",),
    "jepa.enc.img_size": ("image_size", "img_size"),
    "jepa.enc.in_chans": ("num_channels", "in_chans"),
    "jepa.enc.n_registers": ("num_register_tokens", "reg_tokens"),
    "jepa.enc.ln_eps": ("layer_norm_eps",),
    "jepa.enc.act": ("hidden_act",),
}
POS_INTERP = {
    "vit": "size",
    "dinov2": "size",
    "dinov2_with_registers": "antialias",
    "vitv2": "offset0.1",
}
# what a bundle may ask of this graph
GRAPH = {
    "jepa.enc.pos_type": ("learned", "sincos2d"),
    "jepa.enc.tubelet_size": (1,),
    "jepa.enc.modality_embed": (False,),
    "jepa_wm.enc.pos_interp": ("size", "offset0.1", "antialias"),
}


def take_encoder(source: Source, prefix: str = "") -> dict[str, Tensor]:
    """Take every encoder tensor of a ViT in any of the three layouts, in the bundle's shapes.

    Args:
        source: The checkpoint.
        prefix: What stands before the encoder's names (``encoder.`` in LeWM).
    """
    n_layer = source.layers(prefix + name for name in SOURCE_MAP["enc.blk.{i}.ln1.*"])
    rows = dict(SOURCE_MAP)
    scale = [n.replace("{i}", "0") for n in LAYER_SCALE["enc.blk.{i}.ls1"]]
    if any(prefix + name in source for name in scale):
        rows |= LAYER_SCALE
    tensors = source.fill(rows, n_layer, prefix)
    for name in REGISTERS:
        if prefix + name in source:
            tensors["enc.reg_tokens"] = source.take(prefix + name)
    return _reshape(tensors)


def _reshape(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Drop the leading ones of tokens and tables; flatten the patch convolution in C-P-P order."""
    for name, ndim in (("enc.cls_token", 1), ("enc.pos_embed", 2), ("enc.reg_tokens", 2)):
        if name in tensors:
            tensor = tensors[name]
            tensors[name] = tensor.reshape(tensor.shape[-ndim:])
    kernel = tensors.get("enc.patch_embed.weight")
    if kernel is not None:
        if kernel.ndim != 4 or kernel.shape[2] != kernel.shape[3]:
            raise ConversionError(
                f"patch embedding {list(kernel.shape)} is not a square 2-D convolution"
            )
        tensors["enc.patch_embed.weight"] = kernel.flatten(1)
    return tensors


def measure_encoder(tensors: Mapping[str, Tensor], in_chans: int = 3) -> Meta:
    """Read the sizes of an encoder off its tensors (all there, in the bundle's shapes)."""
    dim, features = tensors["enc.patch_embed.weight"].shape
    return {
        "jepa.enc.embed_dim": dim,
        "jepa.enc.n_layer": sum(
            name.endswith(".ffn_up.weight") for name in tensors if name.startswith("enc.")
        ),
        "jepa.enc.ffn_dim": tensors["enc.blk.0.ffn_up.weight"].shape[0],
        "jepa.enc.patch_size": math.isqrt(features // in_chans),
        "jepa.enc.cls_token": "enc.cls_token" in tensors,
        "jepa.enc.n_registers": len(tensors["enc.reg_tokens"])
        if "enc.reg_tokens" in tensors
        else 0,
        "jepa.enc.layer_scale": "enc.blk.0.ls1" in tensors,
    }


def fold_prefix_rows(tensors: dict[str, Tensor], patches: int | None, is_timm: bool) -> None:
    """Bring a position table to rows [CLS; patches].

    timm stores either no prefix rows at all (``no_embed_class``: CLS gets a zero row) or rows for
    the registers as well (they are added to the registers once and for all). Both are exact.

    Args:
        tensors: Encoder tensors; changed in place.
        patches: Number of patch rows, where the image size is known.
        is_timm: The source adds positions as timm does; others only know rows [CLS; patches].
    """
    table, registers = tensors["enc.pos_embed"], tensors.get("enc.reg_tokens")
    prefix_sizes = {1} | (
        {0, 1 + (0 if registers is None else len(registers))} if is_timm else set()
    )
    fitting = [
        n for n in sorted(prefix_sizes)
        if len(table) > n and (math.isqrt(len(table) - n) ** 2 == len(table) - n)
        and patches in (None, len(table) - n)
    ]  # fmt: skip
    if len(fitting) != 1:
        raise ConversionError(
            f"position table of {len(table)} rows fits {len(fitting)} readings "
            f"({patches or 'no'} patches stated); give --set jepa.enc.img_size="
        )
    n = fitting[0]
    if n == 0:
        tensors["enc.pos_embed"] = torch.cat([torch.zeros(1, table.shape[1]), table])
    elif n > 1 and registers is not None:
        tensors["enc.reg_tokens"] = registers + table[1:n]
        tensors["enc.pos_embed"] = torch.cat([table[:1], table[n:]])


def encoder_meta(
    tensors: dict[str, Tensor], stated: Meta, given: Mapping[str, Any], is_timm: bool
) -> Meta:
    """Settle all ``jepa.enc.*`` keys and bring the position table to the bundle's rows.

    Raises:
        ConversionError: tensors, config and user contradict each other, or a size is unknown.
    """
    measured = measure_encoder(tensors, stated.get("jepa.enc.in_chans", 3))
    known = {**stated, **given}
    img_size, patch = known.get("jepa.enc.img_size"), measured["jepa.enc.patch_size"]
    if not measured["jepa.enc.cls_token"]:
        raise ConversionError("there is no CLS token: not a model of this family")
    fold_prefix_rows(tensors, None if img_size is None else (img_size // patch) ** 2, is_timm)
    side = math.isqrt(len(tensors["enc.pos_embed"]) - 1)
    fixed = {
        "jepa.enc.img_size": side * patch,
        "jepa.enc.act": "gelu_erf",
        "jepa.enc.tubelet_size": 1,
        "jepa.enc.n_frames": 1,
        "jepa.enc.in_chans": 3,
        "jepa.enc.pos_type": "learned",
        "jepa.enc.qkv_fused": True,
    }
    ours = {k: v for k, v in given.items() if k.startswith(("jepa.enc.", "jepa_wm.enc."))}
    required = ("jepa.enc.n_head", "jepa.enc.ln_eps", "jepa_wm.enc.pos_interp")
    return settle(measured, {**fixed, **stated}, ours, required)


def _config_meta(config: Mapping[str, Any], is_timm_layout: bool) -> Meta:
    """Read what the config states, refusing what the graph cannot do."""
    config = {**config, **(config.get("model_args") or {})}
    wrong = [name for name in ("qkv_bias", "ffn_bias", "proj_bias") if config.get(name) is False]
    wrong += [name for name in ("use_swiglu_ffn", "project_patch", "qk_norm") if config.get(name)]
    kind = config.get("model_type")
    if kind not in (None, *POS_INTERP):
        wrong.append(f"model_type {kind!r} (known: {', '.join(POS_INTERP)})")
    if wrong:
        raise ConversionError(f"config.json: not representable: {', '.join(wrong)}")
    stated = read_fields(config, CONFIG_FIELDS)
    ffn = read_ratio(config, "mlp_ratio", stated.get("jepa.enc.embed_dim"))
    if ffn is not None:
        stated.setdefault("jepa.enc.ffn_dim", ffn)
    if is_timm_layout:
        stated.setdefault("jepa.enc.ln_eps", 1e-6)  # hard-coded in timm and lite_ssl
    return stated | _pos_interp(config, is_timm_layout)


def _pos_interp(config: Mapping[str, Any], is_timm_layout: bool) -> Meta:
    """Find the resampling rule of the source's own code; HF names without a config: none.

    lite_ssl reads ``interpolate_offset`` and ignores its ``interpolate_antialias``.
    """
    kind, offset = config.get("model_type"), config.get("interpolate_offset")
    if kind == "vitv2" and offset not in (None, 0, 0.1):
        raise ConversionError(f"config.json: interpolate_offset {offset} is not 0 or 0.1")
    if kind == "vitv2" and offset == 0:
        return {"jepa_wm.enc.pos_interp": "size"}
    if kind in POS_INTERP:
        return {"jepa_wm.enc.pos_interp": POS_INTERP[kind]}
    if "architecture" in config:  # timm
        return {"jepa_wm.enc.pos_interp": "antialias"}
    return {"jepa_wm.enc.pos_interp": "offset0.1"} if is_timm_layout else {}


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Turn a source checkpoint into the metadata and tensors of an hfvit bundle.

    Raises:
        ConversionError: something is missing, left over, contradictory or not representable.
    """
    is_timm_layout = ANCHORS[0] in source
    tensors = take_encoder(source)
    head = take_head(source, given, tensors)
    source.skip(SKIP)
    source.finish(NOT_REPRESENTABLE)
    stated = _config_meta(source.config, is_timm_layout)
    is_timm = is_timm_layout and source.config.get("model_type") is None
    meta = encoder_meta(tensors, stated, given, is_timm)
    meta |= {"jepa.family": "hfvit", "jepa.modality": "image", **head}
    return meta | preprocess_meta(source.processor, source.config, given), tensors


def build(bundle: Bundle) -> Model:
    """Build the empty encoder and head of an hfvit bundle."""
    refuse_keys(bundle, GRAPH)
    return build_encoder(bundle)


FAMILY = Family("hfvit", ANCHORS, build, convert)
