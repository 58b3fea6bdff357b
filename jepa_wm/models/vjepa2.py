"""vjepa2: V-JEPA 2's clip ViTs, tiled 3-D RoPE, masked or action-conditioned predictor.

Paper: V-JEPA 2, arXiv 2506.09985. References: facebookresearch/vjepa2 ``src/models`` and
    transformers ``modeling_vjepa2.py``. Quirks kept: the RoPE table is tiled, no rotation; the
    encoder decodes positions on the grid it is given (transformers: on the trained grid, so the two
    differ on other sizes), the predictor on the trained grid; mask token 1 is the default; a clip
    shorter than a tubelet is repeated to one; an odd last frame is dropped. ``encoder`` is the
    entry that transformers' weights were made from; probes are evaluated on ``target_encoder``.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.schema import IMAGENET_MEAN, IMAGENET_STD
from jepa_wm.errors import ConversionError
from jepa_wm.models import meta_layout, vjepa2_ac
from jepa_wm.models.ac import ACConfig, ACPredictor
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
from jepa_wm.models.masked import build_masked
from jepa_wm.models.meta_layout import either
from jepa_wm.models.model import Model, build_encoder
from jepa_wm.models.processor import preprocess_meta
from jepa_wm.models.source import Source, SourceMap

ANCHORS = ("patch_embed.proj.weight", "encoder.embeddings.patch_embeddings.proj.weight")
HF_BLOCK = {
    **meta_layout.BLOCK,
    "attn_qkv": "attention.[query,key,value]",
    "attn_out": "attention.proj",
}
# the authors' names, in entries of their own; transformers' names, all in one
ENCODER: SourceMap = either(
    {**meta_layout.ENCODER, "enc.norm.*": ("norm.*",)},
    {
        "enc.patch_embed.*": ("encoder.embeddings.patch_embeddings.proj.*",),
        **meta_layout.block_rows("enc.blk", "encoder.layer", HF_BLOCK),
        "enc.norm.*": ("encoder.layernorm.*",),
    },
)
MASKED: SourceMap = either(
    meta_layout.PREDICTOR,
    {
        "pred.embed.*": ("predictor.embeddings.predictor_embeddings.*",),
        **meta_layout.block_rows("pred.blk", "predictor.layer", HF_BLOCK),
        "pred.norm.*": ("predictor.layernorm.*",),
        "pred.proj.*": ("predictor.proj.*",),
    },
)
HF_MASK_TOKENS = "predictor.embeddings.mask_tokens"
SOURCE_MAP: SourceMap = {**ENCODER, **MASKED, **vjepa2_ac.SOURCE_MAP}
# tables from before RoPE
SKIP = (r"pos_embed",)
SKIP_PREDICTOR = {"masked": (r"predictor_pos_embed",), "ac": vjepa2_ac.SKIP}
NOT_REPRESENTABLE = meta_layout.SWIGLU | {
    r"norms_block\..*": "it is a V-JEPA 2.1 model (norms_block): convert it with --family vjepa2_1",
    r"proprio_encoder\..*": "its predictor is that of jepa-wms, another graph (proprio_encoder)",
}
CONFIG_FIELDS = {
    "jepa.enc.embed_dim": ("hidden_size",),
    "jepa.enc.n_layer": ("num_hidden_layers",),
    "jepa.enc.n_head": ("num_attention_heads",),
    "jepa.enc.patch_size": ("patch_size",),
    "jepa.enc.tubelet_size": ("tubelet_size",),
    "jepa.enc.img_size": ("crop_size",),
    "jepa.enc.n_frames": ("frames_per_clip",),
    "jepa.enc.in_chans": ("in_chans",),
    "jepa.enc.ln_eps": ("layer_norm_eps",),
    "jepa.enc.act": ("hidden_act",),
}
PREDICTOR_FIELDS = {
    "jepa.pred.embed_dim": ("pred_hidden_size",),
    "jepa.pred.n_layer": ("pred_num_hidden_layers",),
    "jepa.pred.n_head": ("pred_num_attention_heads",),
    "jepa.pred.n_mask_tokens": ("pred_num_mask_tokens",),
    "jepa.pred.ln_eps": ("layer_norm_eps",),
    "jepa.pred.act": ("hidden_act",),
}
RATIOS = {"enc": "mlp_ratio", "pred": "pred_mlp_ratio"}
PUBLISHED: dict[tuple[int, ...], Meta] = {
    (1024, 24, 4096, 16, 2): {"jepa.enc.n_head": 16},
    (1280, 32, 5120, 16, 2): {"jepa.enc.n_head": 16},
    (1408, 40, 6144, 16, 2): {"jepa.enc.n_head": 22},
}
AUTHORS: Meta = {"jepa.enc.ln_eps": 1e-6}
"""What the authors' constructors fix, whatever the size."""
CLIP = AUTHORS | {"jepa.enc.n_frames": 64}
SIDES = {1408: (256, 384)}
"""Width -> sides of the crops a model was published for, where it is not 256 alone."""
VJEPA_TABLES = {1024: (1568,), 1280: (1568, 4608)}
"""Width -> rows of V-JEPA's position table: its ViTs have the shapes of these, but no RoPE."""
PREDICTOR_HEADS: dict[tuple[Any, ...], int] = {
    ("masked", 384, 12, 1536): 12,
    ("ac", 1024, 24, 4096): 16,
}
"""Kind, width, blocks and MLP of a published predictor -> heads."""
# what a bundle may ask of this graph
GRAPH = {
    "jepa.enc.pos_type": ("rope3d",),
    "jepa.enc.attn_mode": ("full",),
    "jepa.pred.n_cond_tokens": (None, 2),
    "jepa.pred.cond_order": ("action,state",),
}


def convert(source: Source, given: Mapping[str, Any]) -> Converted:
    """Turn a checkpoint of the authors or of transformers into a vjepa2 bundle's contents.

    Raises:
        ConversionError: something is missing, left over, contradictory or not representable.
    """
    _refuse_other_families(source)
    table = source.shape("pos_embed")
    tensors = source.fill(ENCODER, source.layers(ENCODER["enc.blk.{i}.ln1.*"]) or 1)
    kind, predictor = _take_predictor(source)
    authors = AUTHORS if ANCHORS[0] in source else {}
    head = take_head(source, given, tensors)
    source.skip(SKIP)
    source.finish(NOT_REPRESENTABLE)
    measured = meta_layout.flatten_kernel(tensors) | meta_layout.measure_blocks(tensors, "enc")
    tensors |= predictor
    measured |= _measure_predictor(kind, tensors)
    stated = _graph_meta(kind) | authors | _published(measured, table)
    stated |= _config_meta(source.config, kind)
    ours = {k: v for k, v in given.items() if k.startswith(("jepa.enc.", "jepa.pred."))}
    _refuse_ambiguous_side(measured, stated | ours)
    required = ("jepa.enc.n_head", "jepa.enc.img_size", "jepa.enc.n_frames", "jepa.enc.ln_eps")
    heads = () if kind is None else ("jepa.pred.n_head",)
    meta = settle(measured, stated, ours, required + heads) | head
    if kind == "ac":
        meta = vjepa2_ac.mask_sizes(meta) | meta
    return meta | _recipe(source, kind, meta["jepa.enc.img_size"], given), tensors


def _refuse_other_families(source: Source) -> None:
    """Refuse what has the same names: image models, and V-JEPA, whose position table is in use."""
    kernel = next(source.shape(anchor) for anchor in ANCHORS if anchor in source)
    if len(kernel) != 5:
        raise ConversionError(
            f"patch embedding {list(kernel)} is none of clips [D,C,T,P,P]: not a V-JEPA 2 model"
        )
    table = source.shape("pos_embed")
    if len(table) == 3 and table[1] in VJEPA_TABLES.get(kernel[0], ()):
        raise ConversionError(
            f"its position table of {table[1]} rows is V-JEPA's: convert it with --family vjepa"
        )


def _take_predictor(source: Source) -> tuple[str | None, dict[str, Tensor]]:
    """Take the predictor's tensors, if there is one; its kind shows in them."""
    is_hf = ANCHORS[1] in source
    predictor = source if is_hf else source.part("predictor")
    if predictor is None or (is_hf and not any(n.startswith("predictor.") for n in source.tensors)):
        return None, {}
    kind = "ac" if vjepa2_ac.ANCHOR in predictor else "masked"
    rows = vjepa2_ac.SOURCE_MAP if kind == "ac" else MASKED
    tensors = predictor.fill(rows, predictor.layers(rows["pred.blk.{i}.ln1.*"]) or 1)
    predictor.skip(SKIP_PREDICTOR[kind])
    if kind == "masked":
        mask_tokens = _take_mask_tokens(predictor)
        tensors |= {} if mask_tokens is None else {"pred.mask_tokens": mask_tokens}
    return kind, tensors


def _take_mask_tokens(predictor: Source) -> Tensor | None:
    """Return mask tokens [n,D]: one tensor [n,1,1,D] in transformers, a tensor each else."""
    if HF_MASK_TOKENS not in predictor:
        return meta_layout.stack_mask_tokens(predictor)
    tokens = predictor.take(HF_MASK_TOKENS)
    if tokens.ndim != 4:
        raise ConversionError(f"{HF_MASK_TOKENS} {list(tokens.shape)}, wanted [n,1,1,D]")
    return tokens.flatten(0, 2)


def _measure_predictor(kind: str | None, tensors: Mapping[str, Tensor]) -> Meta:
    if kind is None:
        return {}
    measure = vjepa2_ac.measure if kind == "ac" else meta_layout.measure_masked
    return {"jepa.pred.kind": kind, **measure(tensors)}


def _graph_meta(kind: str | None) -> Meta:
    """Return what all models of the family share."""
    meta: Meta = {
        "jepa.family": "vjepa2",
        "jepa.modality": "video",
        "jepa.enc.act": "gelu_erf",
        "jepa.enc.pos_type": "rope3d",
        "jepa.enc.rope_theta": 1e4,
        "jepa.enc.rope_freq_layout": "tiled",
        "jepa.enc.rope_interpolate": False,
        "jepa.enc.qkv_fused": True,
    }
    if kind is not None:
        meta |= {"jepa.pred.rope_freq_layout": "tiled", "jepa.pred.act": "gelu_erf"}
    return meta | (vjepa2_ac.GRAPH_META if kind == "ac" else {})


def _published(measured: Meta, table: tuple[int, ...]) -> Meta:
    """Return what the authors' code states of the published model of these sizes, if it is one.

    Args:
        measured: Sizes read off the tensors.
        table: Shape of the position table left from before RoPE, or empty; it tells the crop where
            one model was published for several.
    """
    names = ("kind", "embed_dim", "n_layer", "ffn_dim")
    heads = PREDICTOR_HEADS.get(tuple(measured.get(f"jepa.pred.{name}") for name in names))
    meta = {} if heads is None else {"jepa.pred.n_head": heads}
    found = meta_layout.published(measured, PUBLISHED)
    if not found:
        return meta
    sides = _sides(measured)
    if len(sides) > 1 and len(table) == 3:
        slots = CLIP["jepa.enc.n_frames"] // measured["jepa.enc.tubelet_size"]
        patch = measured["jepa.enc.patch_size"]
        sides = tuple(side for side in sides if slots * (side // patch) ** 2 == table[1])
    crop = {"jepa.enc.img_size": sides[0]} if len(sides) == 1 else {}
    return meta | found | CLIP | crop


def _sides(measured: Meta) -> tuple[int, ...]:
    is_ac = measured.get("jepa.pred.kind") == "ac"
    return (256,) if is_ac else SIDES.get(measured["jepa.enc.embed_dim"], (256,))


def _refuse_ambiguous_side(measured: Meta, known: Mapping[str, Any]) -> None:
    sides = _sides(measured)
    is_published = meta_layout.published(measured, PUBLISHED)
    if is_published and "jepa.enc.img_size" not in known and len(sides) > 1:
        names = " and ".join(f"{side} px" for side in sides)
        raise ConversionError(
            f"a model of these sizes was published for {names}, and the tensors do not tell which: "
            f"give --set jepa.enc.img_size={sides[0]} or {sides[1]}"
        )


def _config_meta(config: Mapping[str, Any], kind: str | None) -> Meta:
    """Read transformers' config, refusing what the graph cannot do."""
    wrong = [name for name in ("use_SiLU", "use_silu") if config.get(name)]
    wrong += ["qkv_bias false"] if config.get("qkv_bias") is False else []
    if config.get("model_type", "vjepa2") != "vjepa2":
        wrong.append(f"model_type {config['model_type']!r} (known: vjepa2)")
    if wrong:
        raise ConversionError(f"config.json: not representable: {', '.join(wrong)}")
    stated = read_fields(config, CONFIG_FIELDS | (PREDICTOR_FIELDS if kind == "masked" else {}))
    for part, ratio in RATIOS.items():
        ffn = read_ratio(config, ratio, stated.get(f"jepa.{part}.embed_dim"))
        stated |= {} if ffn is None else {f"jepa.{part}.ffn_dim": ffn}
    return stated


def _recipe(source: Source, kind: str | None, img_size: int, given: Mapping[str, Any]) -> Meta:
    """Return ``jepa.pre.*``: the processor's, else the authors' recipe for the crop.

    ``VJEPA2VideoProcessor`` ignores the ``size`` in its file: the short side is 256/224 of the
    crop, as in the authors' evaluations. The AC model's frames are shrunk to the crop itself.
    """
    processor = source.processor
    if not processor:
        known = meta_layout.eval_crop(img_size)
        known |= {"jepa.pre.resize_short": img_size} if kind == "ac" else {}
        return preprocess_meta({}, {}, {**known, **given})
    if processor.get("video_processor_type", "VJEPA2VideoProcessor") == "VJEPA2VideoProcessor":
        crop = processor.get("crop_size", 256)
        crop = crop.get("height") if isinstance(crop, Mapping) else crop
        defaults = {
            "do_center_crop": True,
            "crop_size": 256,
            "image_mean": IMAGENET_MEAN,
            "image_std": IMAGENET_STD,
        }
        short = int(crop * 256 / 224) if isinstance(crop, int) else crop
        processor = {**defaults, **processor, "size": {"shortest_edge": short}}
    return preprocess_meta(processor, {}, given)


def build(bundle: Bundle) -> Model:
    """Build the empty modules of a vjepa2 bundle."""
    refuse_keys(bundle, GRAPH)
    is_ac = bundle.get("jepa.pred.kind") == "ac"
    pred = ACPredictor(ACConfig.from_bundle(bundle)) if is_ac else build_masked(bundle)
    return build_encoder(bundle, pred, still_frames=bundle.get("jepa.enc.tubelet_size"))


FAMILY = Family(
    "vjepa2", ANCHORS, build, convert, default_entry=("encoder", "target_encoder", "ema_encoder")
)
