"""Classifiers of every source layout, read into the bundle's two heads.

A head lies in the checkpoint itself (Hugging Face and timm classifiers) or in a file of its own
(``--head``: the authors' probes, a linear probe). A family's converter calls ``take_head`` once,
before it lets the source account for what is left.

References: transformers ``VJEPA2ForVideoClassification``; facebookresearch/vjepa2 and jepa
``src/models/attentive_pooler.py``; timm ``vision_transformer.py``. Quirks kept: the authors' probes
have 16 heads whatever the encoder, eps 1e-5 and an MLP of 4 D; V-JEPA 1's output projection exists
but is never applied.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from jepa_wm.bundle.faults import printable
from jepa_wm.errors import ConversionError
from jepa_wm.models.family import Meta, read_fields, settle
from jepa_wm.models.meta_layout import BLOCK, block_rows
from jepa_wm.models.source import Source, SourceMap, listed

HF_BLOCK = {
    "ln1": "layer_norm1",
    "attn_qkv": "self_attn.[q_proj,k_proj,v_proj]",
    "attn_out": "self_attn.out_proj",
    "ln2": "layer_norm2",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
}
HF_CROSS = "pooler.cross_attention_layer."
HF_POOLER: SourceMap = {
    "head.query": ("pooler.query_tokens",),
    **block_rows("head.blk", "pooler.self_attention_layers", HF_BLOCK),
    "head.xattn.ln_kv.*": (HF_CROSS + "layer_norm1.*",),
    **{f"head.xattn.{n}.*": (f"{HF_CROSS}cross_attn.{n}_proj.*",) for n in "qkv"},
    "head.xattn.ln2.*": (HF_CROSS + "layer_norm2.*",),
    "head.xattn.ffn_up.*": (HF_CROSS + "mlp.fc1.*",),
    "head.xattn.ffn_down.*": (HF_CROSS + "mlp.fc2.*",),
    "head.cls.*": ("classifier.*",),
}
CROSS = "pooler.cross_attention_block."
POOLER: SourceMap = {
    "head.query": ("pooler.query_tokens",),
    **block_rows("head.blk", "pooler.blocks", BLOCK),
    "head.xattn.ln_kv.*": (CROSS + "norm1.*",),
    "head.xattn.q.*": (CROSS + "xattn.q.*",),
    "head.xattn.kv.*": (CROSS + "xattn.kv.*",),  # rows [k; v], split afterwards
    "head.xattn.ln2.*": (CROSS + "norm2.*",),
    "head.xattn.ffn_up.*": (CROSS + "mlp.fc1.*",),
    "head.xattn.ffn_down.*": (CROSS + "mlp.fc2.*",),
    "head.cls.*": ("linear.*",),
}
NEVER_APPLIED = CROSS + "xattn.proj"  # V-JEPA 1's probes alone have it
PROBE_HEADS = 16  # of V-JEPA 2's published probes, whatever the encoder
PROBE_EPS = 1e-5
MULTILEVEL = {27: "Jester", 48: "Diving48"}  # classes -> published probe that reads four layers

# where a linear classifier stands: in the checkpoint itself, or in a file of its own
LINEAR = ("classifier.", "head.")
LINEAR_ALONE = (*LINEAR, "linear.", "fc.", "")
# the checkpoint's own head where it is not wanted; the encoder in a folder given for its head
OWN = (r"(classifier|head)\.(weight|bias)", r"pooler\.(query_tokens|\w+_attention_).*")
BODIES = (r"(vjepa2|ijepa|vit|dinov2|dinov2_with_registers)\..*",)
NO_HEAD = "none"


def take_head(source: Source, given: Mapping[str, Any], tensors: dict[str, Tensor]) -> Meta:
    """Take the head of a source, if it has one, and return its ``jepa.head.*`` keys.

    Call it once the encoder's tensors are taken and before ``Source.finish``, which names what a
    head lacks. A head in a file of its own takes the place of the checkpoint's; ``jepa.head.kind``
    given as ``none`` leaves the checkpoint's out.

    Args:
        source: The checkpoint.
        given: Keys given by the user.
        tensors: The encoder's, in the bundle's names; the head's are added.

    Raises:
        ConversionError: the head is not representable, or does not fit the encoder or its labels.
    """
    ours = {key: value for key, value in given.items() if key.startswith("jepa.head.")}
    is_alone, unwanted = source.head is not None, ours.get("jepa.head.kind") == NO_HEAD
    origin = source if source.head is None else source.head
    if is_alone or unwanted:
        source.skip(OWN)
    if is_alone:
        origin.skip(BODIES)
    elif unwanted:
        return {"jepa.head.kind": NO_HEAD}
    _refuse_other_heads(origin)
    _refuse_several_layers(origin, ours)
    is_pooler = "pooler.query_tokens" in origin
    head = _take_pooler(origin) if is_pooler else _take_linear(origin, is_alone)
    if not head or source.missing or origin.missing:
        return {"jepa.head.kind": NO_HEAD}
    _fit(head, tensors, origin.config)
    tensors |= head
    measured = _measure(head)
    stated = _stated(origin, ours) | _labels(origin.config, measured["jepa.head.n_classes"])
    return settle(measured, stated, ours)


def _refuse_other_heads(origin: Source) -> None:
    """Refuse poolers and probes that are none of the bundle's two heads, with the reason."""
    several = [name for name in origin.tensors if name.endswith("_classifier.weight")]
    if several:
        raise ConversionError(
            f"head: an action anticipation head is not representable: it has {listed(several)}, "
            "a bundle's head has one classifier on one query"
        )
    query = origin.shape("pooler.query_tokens")
    if query and query != (1, 1, query[-1]):
        raise ConversionError(
            f"head: pooler.query_tokens is {list(query)}, wanted one query [1, 1, D]"
        )
    if NEVER_APPLIED + ".weight" in origin and origin.layers(["pooler.blocks.{i}.norm1.*"]):
        raise ConversionError(
            "head: a V-JEPA 1 probe deeper than 1 is not representable: its blocks act on the "
            "pooled query after the cross-attention, a bundle's on the tokens before it"
        )


def _refuse_several_layers(origin: Source, given: Mapping[str, Any]) -> None:
    """Refuse the published probes that read 4 N tokens; nothing but their classes tells them."""
    classes = origin.shape("linear.weight")[:1]
    is_probe = CROSS + "xattn.kv.weight" in origin and NEVER_APPLIED + ".weight" not in origin
    name = MULTILEVEL.get(classes[0]) if classes and is_probe else None
    if name and "jepa.head.n_classes" not in given:
        raise ConversionError(
            f"head: a probe of {classes[0]} classes is taken for the published one of {name}, "
            "which reads the tokens of four layers in a row (4 N) and is not representable; if "
            f"yours reads the last layer alone, say --set jepa.head.n_classes={classes[0]}"
        )


def _take_pooler(origin: Source) -> dict[str, Tensor]:
    rows, blocks = POOLER, "pooler.blocks.{i}.norm1.*"
    if any(name.startswith(HF_CROSS) for name in origin.tensors):
        rows, blocks = HF_POOLER, "pooler.self_attention_layers.{i}.layer_norm1.*"
    head = origin.fill(rows, origin.layers([blocks]))
    origin.skip((re.escape(NEVER_APPLIED) + ".*",))
    for end in (".weight", ".bias"):
        if "head.xattn.kv" + end in head:
            k, v = head.pop("head.xattn.kv" + end).tensor_split(2)
            head |= {"head.xattn.k" + end: k, "head.xattn.v" + end: v}
    if "head.query" in head:
        head["head.query"] = head["head.query"].reshape(1, -1)
    return head


def _take_linear(origin: Source, is_alone: bool) -> dict[str, Tensor]:
    """Take a matrix and its bias, zero where it has none; other things called head stay."""
    for start in LINEAR_ALONE if is_alone else LINEAR:
        weight, bias = f"{start}weight", f"{start}bias"
        if len(origin.shape(weight)) == 2:
            matrix = origin.take(weight)
            zero = torch.zeros(len(matrix))
            return {
                "head.cls.weight": matrix,
                "head.cls.bias": origin.take(bias) if bias in origin else zero,
            }
    return {}


def _fit(head: dict[str, Tensor], tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Check a head's width against the encoder's; bring a timm head to the features a bundle has.

    timm may feed the mean patch although there is a CLS token. A bundle's classifier of width D
    reads CLS there, one of 2 D reads both, so zeros for CLS say the same exactly.
    """
    dim, has_cls = len(tensors["enc.patch_embed.weight"]), "enc.cls_token" in tensors
    matrix = head["head.cls.weight"]
    is_linear = "head.query" not in head
    pool = _timm_pool(config) if is_linear else "token"
    if pool == "avg" and has_cls and matrix.shape[1] == dim:
        matrix = head["head.cls.weight"] = torch.cat([torch.zeros_like(matrix), matrix], 1)
    widths = (dim, 2 * dim) if is_linear and has_cls else (dim,)
    width = matrix.shape[1] if is_linear else head["head.query"].shape[1]
    if width not in widths:
        raise ConversionError(
            f"head: it reads features of width {width}, the encoder gives "
            f"{' or '.join(map(str, widths))}; heads on several layers are not representable"
        )


def _measure(head: Mapping[str, Tensor]) -> Meta:
    classes = {"jepa.head.n_classes": len(head["head.cls.weight"])}
    if "head.query" not in head:
        return {"jepa.head.kind": "linear_cls", **classes}
    blocks = sum(name.endswith(".ln1.weight") for name in head)
    return {"jepa.head.kind": "attentive_pool", "jepa.head.n_pool_layers": blocks, **classes}


def _timm_pool(config: Mapping[str, Any]) -> str:
    """Return what a timm classifier reads: ``token`` or ``avg``; other sources say no pool."""
    config = {**config, **(config.get("model_args") or {})}
    pool = config.get("global_pool", "token")
    if pool not in ("token", "avg") or (pool == "avg" and config.get("pool_include_prefix")):
        raise ConversionError(
            f"config.json: a classifier on global_pool {printable(pool)} is not representable "
            "(token or avg over the patches are); leave it out with --set jepa.head.kind=none"
        )
    return str(pool)


def _stated(origin: Source, given: Mapping[str, Any]) -> Meta:
    """Return what the layout says beyond the tensors, as far as it differs from the encoder."""
    stated = read_fields(origin.config, {"jepa.head.n_pool_layers": ("num_pooler_layers",)})
    if CROSS + "xattn.kv.weight" not in origin:
        return stated if "pooler.query_tokens" in origin else {}
    if NEVER_APPLIED + ".weight" in origin:  # V-JEPA 1 takes the encoder's heads
        return {"jepa.head.ln_eps": PROBE_EPS}
    dim = origin.shape("pooler.query_tokens")[-1]
    if dim % PROBE_HEADS and "jepa.head.n_head" not in given:
        raise ConversionError(
            f"head: its width {dim} is no multiple of the {PROBE_HEADS} heads of published probes; "
            "give --set jepa.head.n_head="
        )
    return {"jepa.head.n_head": PROBE_HEADS, "jepa.head.ln_eps": PROBE_EPS}


def _labels(config: Mapping[str, Any], classes: int) -> Meta:
    """Read class names in order: ``id2label`` of Hugging Face, ``label_names`` of timm."""
    found = config.get("id2label") or config.get("label_names")
    if not isinstance(found, Mapping | list) or not found:
        return {}
    names = dict(enumerate(found)) if isinstance(found, list) else found
    by_index = {int(key): str(name) for key, name in names.items() if str(key).isdecimal()}
    if sorted(by_index) != list(range(classes)) or len(names) != classes:
        raise ConversionError(
            f"config.json: {len(names)} labels for {classes} classes, wanted one for each of 0 to "
            f"{classes - 1}"
        )
    return {"jepa.head.labels": [by_index[i] for i in range(classes)]}
