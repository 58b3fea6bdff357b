"""lewm: a ViT encoder with a projector and a causal, action-conditioned predictor of its latents.

Paper: LeWM, arXiv 2603.19312. References: lucas-maes/le-wm and stable-worldmodel ``wm/lewm``.
    Quirks kept: encoder eps
1e-12; two LayerNorms in a row in every predictor block (non-affine modulated 1e-6, affine 1e-5);
adaLN on silu(action embedding); attention width heads x head_dim apart from the model's; positions
restart at 0 in every window; the action of index k is the block leaving frame k. Converted:
BatchNorm and the 1x1 convolution are folded in float64.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import ConversionError
from jepa_wm.models import hfvit
from jepa_wm.models.family import Converted, Family, Meta, read_fields, refuse_keys, settle
from jepa_wm.models.lewm_predictor import LeWM, LeWMEncoder, Predictor, PredictorConfig
from jepa_wm.models.model import Model, encoder_config, hidden_sizes
from jepa_wm.models.preprocess import Preprocess
from jepa_wm.models.processor import preprocess_meta
from jepa_wm.models.source import Source, SourceMap

__all__ = ["FAMILY", "LeWM", "LeWMEncoder", "Predictor", "PredictorConfig"]

ANCHORS = ("predictor.pos_embedding",)
BATCH_NORM_EPS = 1e-5  # torch.nn.BatchNorm1d's default, which the reference uses
LAYER = "predictor.transformer.layers.{i}."
SOURCE_MAP: SourceMap = {
    "pred.pos_embed": ("predictor.pos_embedding",),
    "pred.norm.*": ("predictor.transformer.norm.*",),
    "pred.blk.{i}.adaln.*": (LAYER + "adaLN_modulation.1.*",),
    "pred.blk.{i}.ln1.*": (LAYER + "attn.norm.*",),
    "pred.blk.{i}.attn_qkv.weight": (LAYER + "attn.to_qkv.weight",),
    "pred.blk.{i}.attn_out.*": (LAYER + "attn.to_out.0.*",),
    "pred.blk.{i}.ln2.*": (LAYER + "mlp.net.0.*",),
    "pred.blk.{i}.ffn_up.*": (LAYER + "mlp.net.1.*",),
    "pred.blk.{i}.ffn_down.*": (LAYER + "mlp.net.4.*",),
    "conv.*": ("action_encoder.patch_embed.*",),
    "pred.action_embed.0.*": ("action_encoder.embed.0.*",),
    "pred.action_embed.2.*": ("action_encoder.embed.2.*",),
    "enc.proj.0.*": ("projector.net.0.*",),
    "enc.proj.2.*": ("projector.net.3.*",),
    "pred.proj.0.*": ("pred_proj.net.0.*",),
    "pred.proj.2.*": ("pred_proj.net.3.*",),
}
PROJECTORS = {"enc.proj.0": "projector.net.1", "pred.proj.0": "pred_proj.net.1"}
SKIP = (
    r".*\.num_batches_tracked",
    r"value_function\..*",
    r"encoder\.pooler\..*",
    r"encoder\.embeddings\.mask_token",
)
NOT_REPRESENTABLE = {
    r"predictor\.transformer\.(input|cond|output)_proj\..*": "the predictor's width differs "
    "from the latent's (input_proj, cond_proj, output_proj), which the schema cannot say",
    r".*\.attn\.to_qkv\.bias": "attn.to_qkv has a bias, which no LeWM has",
    r"(projector|pred_proj)\.net\.1\..*": "a projector has another norm than BatchNorm1d",
}
ENCODER_FIELDS = {k: v for k, v in hfvit.CONFIG_FIELDS.items() if k != "jepa.enc.n_registers"}
PREDICTOR_FIELDS = {
    "jepa.pred.embed_dim": ("hidden_dim",),
    "jepa.pred.n_layer": ("depth",),
    "jepa.pred.n_head": ("heads",),
    "jepa.pred.head_dim": ("dim_head",),
    "jepa.pred.ffn_dim": ("mlp_dim",),
    "jepa.pred.n_frames": ("num_frames",),
}
# vit_hf(size=...): width, layers, heads; other fields of the config override
VIT_SIZES = {
    "tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16),
    "huge": (1280, 32, 16),
}  # fmt: skip
GRAPH = {**hfvit.GRAPH, "jepa.pred.state_dim": (0,)}


def fold_batch_norm(
    weight: Tensor, bias: Tensor, norm: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Fold an evaluated BatchNorm1d into the linear layer before it, in float64.

    s = gamma / sqrt(var + eps); W' = s W; b' = s (b - mean) + beta.

    Args:
        weight: float [out,in].
        bias: float [out].
        norm: ``weight`` (gamma), ``bias`` (beta), ``running_mean`` and ``running_var``, each [out].
    """
    n = {key: value.double() for key, value in norm.items()}
    scale = n["weight"] / (n["running_var"] + BATCH_NORM_EPS).sqrt()
    folded = scale * (bias.double() - n["running_mean"]) + n["bias"]
    return (scale[:, None] * weight.double()).float(), folded.float()


def fold_linear(
    weight: Tensor, bias: Tensor, first_weight: Tensor, first_bias: Tensor
) -> tuple[Tensor, Tensor]:
    """Fold a linear layer into the one behind it, in float64: W' = W W0; b' = W b0 + b."""
    w = weight.double()
    return (w @ first_weight.double()).float(), (w @ first_bias.double() + bias.double()).float()


def _fold(source: Source, tensors: dict[str, Tensor]) -> None:
    """Replace the 1x1 convolution and the BatchNorms by what they do to their neighbours."""
    kernel, bias = tensors.pop("conv.weight"), tensors.pop("conv.bias")
    if kernel.ndim != 3 or kernel.shape[2] != 1:
        raise ConversionError(
            f"action_encoder.patch_embed {list(kernel.shape)} is not a 1x1 convolution"
        )
    first = "pred.action_embed.0"
    tensors[f"{first}.weight"], tensors[f"{first}.bias"] = fold_linear(
        tensors[f"{first}.weight"], tensors[f"{first}.bias"], kernel[:, :, 0], bias
    )
    for target, norm in PROJECTORS.items():
        parts = ("weight", "bias", "running_mean", "running_var")
        if f"{norm}.running_var" in source:  # absent: norm_fn was None, or not a BatchNorm
            folded = fold_batch_norm(
                tensors[f"{target}.weight"],
                tensors[f"{target}.bias"],
                {part: source.take(f"{norm}.{part}") for part in parts},
            )
            tensors[f"{target}.weight"], tensors[f"{target}.bias"] = folded


def _measure_predictor(tensors: Mapping[str, Tensor], heads: int) -> Meta:
    inner, dim = tensors["pred.blk.0.attn_qkv.weight"].shape
    return {
        "jepa.pred.embed_dim": dim,
        "jepa.pred.n_layer": sum(name.endswith(".adaln.weight") for name in tensors),
        "jepa.pred.head_dim": inner // 3 // heads,
        "jepa.pred.ffn_dim": tensors["pred.blk.0.ffn_up.weight"].shape[0],
        "jepa.pred.n_frames": len(tensors["pred.pos_embed"]),
        "jepa.pred.action_dim": tensors["pred.action_embed.0.weight"].shape[1],
    }


def _encoder_stated(config: Mapping[str, Any]) -> Meta:
    """Read the numbers of ``config["encoder"]``; targets are neither imported nor passed on."""
    section = config.get("encoder")
    section = section if isinstance(section, Mapping) else {}
    stated: Meta = {"jepa.enc.ln_eps": 1e-12, "jepa_wm.enc.pos_interp": "size"}  # ViTConfig, HF ViT
    if section.get("size") in VIT_SIZES:
        width, layers, heads = VIT_SIZES[section["size"]]
        stated |= {
            "jepa.enc.n_head": heads,
            "jepa.enc.n_layer": layers,
            "jepa.enc.embed_dim": width,
        }
    return stated | read_fields(section, ENCODER_FIELDS)


def _predictor_meta(tensors: Mapping[str, Tensor], config: Mapping[str, Any], given: Meta) -> Meta:
    section = config.get("predictor")
    stated = read_fields(section, PREDICTOR_FIELDS) if isinstance(section, Mapping) else {}
    heads = given.get("jepa.pred.n_head", stated.get("jepa.pred.n_head"))
    if heads is None and "jepa.pred.head_dim" in given:
        heads = len(tensors["pred.blk.0.attn_qkv.weight"]) // 3 // given["jepa.pred.head_dim"]
        stated["jepa.pred.n_head"] = heads
    if heads is None:
        raise ConversionError("not in the source, give with --set: jepa.pred.n_head=")
    measured = _measure_predictor(tensors, heads)
    ours = {k: v for k, v in given.items() if k.startswith("jepa.pred.")}
    fixed = {
        "jepa.pred.kind": "lewm",
        "jepa.pred.out_dim": measured["jepa.pred.embed_dim"],
        "jepa.pred.state_dim": 0,
        "jepa.pred.frame_causal": True,
        "jepa.pred.ln_eps": 1e-5,
        "jepa.pred.adaln_eps": 1e-6,
        "jepa.pred.act": "gelu_erf",
        "jepa.pred.qkv_bias": False,
        "jepa.pred.action_act": "silu",
        "jepa.pred.proj_act": "gelu_erf",
        "jepa.enc.proj_act": "gelu_erf",
    }
    return settle(measured, {**fixed, **stated}, ours)


def _refuse_projectors(source: Source) -> None:
    """Say in words what the accounting would only list as missing names."""
    for name in ("projector", "pred_proj"):
        if f"{name}.net.0.weight" not in source:
            raise ConversionError(
                f"{name} is not a two-layer MLP (an identity?), which the schema cannot say"
            )
    if LAYER.format(i=0) + "attn.to_out.0.weight" not in source:
        raise ConversionError(
            "attention has no output projection (heads == 1 and dim_head == dim): not representable"
        )
    for section in ("projector", "pred_proj"):
        act = (source.config.get(section) or {}).get("act_fn")
        target = act.get("_target_", "") if isinstance(act, Mapping) else act
        if target is not None and re.split(r"[.\W]", str(target))[-1] != "GELU":
            raise ConversionError(f"config.json: {section}.act_fn {target!r} is not GELU")


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Turn the authors' LeWM checkpoint into the metadata and tensors of a bundle.

    Raises:
        ConversionError: something is missing, left over, contradictory or not representable.
    """
    _refuse_projectors(source)
    tensors = hfvit.take_encoder(source, "encoder.")
    n_layer = source.layers([LAYER + "attn.norm.weight"])
    tensors |= source.fill(SOURCE_MAP, n_layer)
    if not source.missing:
        _fold(source, tensors)
    source.skip(SKIP)
    source.finish(hfvit.NOT_REPRESENTABLE | NOT_REPRESENTABLE)
    tensors["pred.pos_embed"] = tensors["pred.pos_embed"].reshape(
        tensors["pred.pos_embed"].shape[-2:]
    )
    encoder = hfvit.encoder_meta(tensors, _encoder_stated(source.config), given, is_timm=False)
    meta = encoder | _predictor_meta(tensors, source.config, dict(given))
    meta |= {"jepa.family": "lewm", "jepa.modality": "image", "jepa.head.kind": "none"}
    # the reference trains on ImageNet-normalised square renders, squashed to the image size
    size = meta["jepa.enc.img_size"]
    recipe = {
        "jepa.pre.mean": (0.485, 0.456, 0.406),
        "jepa.pre.std": (0.229, 0.224, 0.225),
        "jepa.pre.resize_short": size,
        "jepa.pre.crop": size,
        "jepa.pre.resample": "bilinear",
        "jepa.pre.resize_mode": "squash",
    }
    return meta | preprocess_meta({}, {}, {**recipe, **given}), tensors


def predictor_config(bundle: Bundle) -> PredictorConfig:
    """Read the predictor's sizes from ``jepa.pred.*`` and, where there is no key, from shapes."""
    sizes = hidden_sizes(
        bundle,
        {
            "action_hidden": "pred.action_embed.0.weight",
            "proj_hidden": "pred.proj.0.weight",
        },
    )
    keys = [name for name in PredictorConfig.__dataclass_fields__ if name not in sizes]
    return PredictorConfig(**{name: bundle.get(f"jepa.pred.{name}") for name in keys}, **sizes)


def build(bundle: Bundle) -> Model:
    """Build the empty encoder and predictor of a lewm bundle."""
    refuse_keys(bundle, GRAPH)
    hidden = bundle.shape("enc.proj.0.weight")[0]
    encoder = LeWMEncoder(encoder_config(bundle), hidden, bundle.get("jepa.enc.proj_act"))
    return Model(encoder, Predictor(predictor_config(bundle)), Preprocess.from_bundle(bundle))


FAMILY = Family("lewm", ANCHORS, build, convert)
