"""Every metadata key of a bundle, once: name, type, default, range, meaning.

Code outside ``bundle`` names keys as plain strings (``bundle.get("jepa.enc.embed_dim")``); they all
pass through ``key_for``, so a name that is not a row of ``TABLE`` is an error at its first use.
Keys under ``jepa_wm.`` are ours and
optional: other readers ignore them.

Source: jepa.cpp docs/gguf-schema.md (schema version 1, with the V-JEPA 2-AC additions); defaults as
its C++ loader has them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np

from jepa_wm.bundle.faults import printable

FAMILIES = ("ijepa", "vjepa", "vjepa2", "vjepa2_1", "levjepa", "hfvit", "lewm")
VIDEO_FAMILIES = ("vjepa", "vjepa2", "vjepa2_1", "levjepa")
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
ACT_ALIASES = {
    "gelu": "gelu_erf", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh", "swish": "silu",
}  # fmt: skip
KEY_ALIASES = {"general.source.url": "general.source_url"}  # the first is what gguf-py writes

MAX_ARRAY = 4096  # entries of a number array; the longest real one has 10
MAX_LABELS = 1 << 18

Lookup = Callable[[str], Any]
Default = Any | Callable[[Lookup], Any]


class _Marker:
    """A named constant that is no possible value."""


REQUIRED = _Marker()
"""Default of a key that a bundle must store."""
INVALID = _Marker()
"""Stands for a stored value that was refused, so that checks depending on it are skipped."""


@dataclass(frozen=True)
class Key:
    """One row of the schema.

    Attributes:
        name: Full key, or a prefix ending in ``*``.
        kind: ``u32``, ``f32``, ``bool``, ``str``, ``[u32]``, ``[f32]`` or ``[str]``.
        default: Value when absent: a constant, a function of the other keys, or ``REQUIRED``.
        meaning: One line, with the unit.
        low: Least number allowed (per entry of an array).
        high: Greatest number allowed.
        choices: Strings allowed; empty means any.
        needed_by: Kinds (``pred``, ``masked``, ``ac``, ``lewm``, ``head``, ``attentive_pool``,
            ``linear_cls``) that must store the key although other bundles need not.
    """

    name: str
    kind: str
    default: Default
    meaning: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    needed_by: tuple[str, ...] = ()


def _same(name: str) -> Callable[[Lookup], Any]:
    return lambda get: get(name)


def _by_family(table: Mapping[str, str], otherwise: str) -> Callable[[Lookup], str]:
    return lambda get: table.get(get("jepa.family"), otherwise)


def _u32(name: str, default: Default, low: int, high: int, meaning: str, *needed_by: str) -> Key:
    return Key(name, "u32", default, meaning, low, high, needed_by=needed_by)


def _f32(name: str, default: Default, low: float, high: float, meaning: str) -> Key:
    return Key(name, "f32", default, meaning, low, high)


def _flag(name: str, default: bool, meaning: str) -> Key:
    return Key(name, "bool", default, meaning)


def _text(name: str, default: Default, meaning: str, *choices: str) -> Key:
    return Key(name, "str", default, meaning, choices=choices)


def _floats(name: str, default: Default, low: float, high: float, meaning: str) -> Key:
    return Key(name, "[f32]", default, meaning, low, high)


_ACTS = ("gelu_erf", "gelu_tanh", "silu")
_LAYOUTS = ("tiled", "interleaved")
_WIDTH, _COUNT, _BIG, _HUGE = 65_536, 1024, 1 << 20, 1 << 22
_POS_TYPE = {"ijepa": "sincos2d", "vjepa": "sincos3d", "hfvit": "learned", "lewm": "learned"}
_MODALITY = {"ijepa": "image", "hfvit": "image", "lewm": "image", "vjepa2_1": "image+video"}
_POS_INTERP = {"hfvit": "offset0.1", "vjepa": "trilinear_scale"}


def _grid(get: Lookup) -> int:
    return int(get("jepa.enc.img_size") // get("jepa.enc.patch_size"))


def _predictor_eps(get: Lookup) -> float:
    # the masked predictor shares the encoder's eps when it has none of its own
    return float(get("jepa.enc.ln_eps")) if get("jepa.pred.kind") == "masked" else 1e-6


_ROWS = (
    _text("general.architecture", REQUIRED, "always jepa", "jepa"),
    _text("general.name", "", "name of the model"),
    _text("general.description", "", "one sentence about the model"),
    _text("general.license", "", "licence of the weights, as the source states it"),
    _text("general.source_url", "", "where the source checkpoint was found"),
    _u32("general.file_type", None, 0, _COUNT, "ggml file type number of most weights"),
    _u32("general.quantization_version", None, 0, _COUNT, "version of the quantised formats"),
    _u32("general.alignment", 32, 8, _WIDTH, "alignment of tensor data, bytes"),
    _u32("jepa.schema_version", REQUIRED, 1, 1, "version of this schema"),
    _text("jepa.family", REQUIRED, "model family", *FAMILIES),
    _text("jepa.modality", _by_family(_MODALITY, "video"), "what it was trained on", "image",
         "video", "image+video"),
    # encoder
    _u32("jepa.enc.embed_dim", REQUIRED, 1, _WIDTH, "token width"),
    _u32("jepa.enc.n_layer", REQUIRED, 1, _COUNT, "transformer blocks"),
    _u32("jepa.enc.n_head", REQUIRED, 1, _COUNT, "attention heads"),
    _u32("jepa.enc.ffn_dim", REQUIRED, 1, _BIG, "hidden width of the MLP"),
    _u32("jepa.enc.patch_size", REQUIRED, 1, _COUNT, "patch side, px"),
    _u32("jepa.enc.tubelet_size", 1, 1, _COUNT, "frames per token"),
    _u32("jepa.enc.img_size", 224, 1, _WIDTH, "side of the training crop, px"),
    _u32("jepa.enc.n_frames", 1, 1, _WIDTH, "frames of a training clip"),
    _u32("jepa.enc.in_chans", 3, 1, _COUNT, "image channels"),
    _f32("jepa.enc.ln_eps", 1e-6, 0, 1, "LayerNorm epsilon"),
    _text("jepa.enc.act", "gelu_erf", "activation of the MLP", *_ACTS),
    _text("jepa.enc.pos_type", _by_family(_POS_TYPE, "rope3d"), "position scheme", "sincos2d",
         "sincos3d", "learned", "rope3d"),
    _f32("jepa.enc.rope_theta", 1e4, 1e-6, 1e12, "RoPE base"),
    _flag("jepa.enc.rope_interpolate", False, "rescale RoPE positions to rope_ref_grid"),
    _text("jepa.enc.rope_freq_layout", "tiled", "order of the RoPE frequencies", *_LAYOUTS),
    _u32("jepa.enc.rope_ref_grid", None, 1, _WIDTH,
         "grid side the RoPE positions are rescaled to, patches"),
    _flag("jepa.enc.cls_token", False, "a CLS token leads the sequence"),
    _u32("jepa.enc.n_registers", 0, 0, _HUGE, "register tokens after CLS"),
    _flag("jepa.enc.qkv_fused", True, "one attn_qkv tensor, rows [q; k; v]"),
    _flag("jepa.enc.modality_embed", False, "image and video vectors are added to the tokens"),
    _flag("jepa.enc.image_patch_embed", False, "separate tokenizer for single images"),
    Key("jepa.enc.hier_layers", "[u32]", (),
         "layers whose normed output is a level of the hierarchy", 0, _COUNT - 1),
    _flag("jepa.enc.layer_scale", False, "ls1 and ls2 scale the residual branches"),
    _text("jepa.enc.attn_mode", "full", "attention mask", "full", "block_causal"),
    _text("jepa.enc.proj_act", "gelu_erf", "activation inside enc.proj (lewm)", *_ACTS),
    _text("jepa_wm.enc.pos_interp", _by_family(_POS_INTERP, "size"),
         "how the position table is resampled to other grids",
          "size", "offset0.1", "antialias", "trilinear_scale"),
    # predictor
    _text("jepa.pred.kind", None, "kind of predictor; absent means none", "masked", "ac", "lewm"),
    _u32("jepa.pred.embed_dim", None, 1, _WIDTH, "token width", "pred"),
    _u32("jepa.pred.n_layer", None, 1, _COUNT, "transformer blocks", "pred"),
    _u32("jepa.pred.n_head", None, 1, _COUNT, "attention heads", "pred"),
    _u32("jepa.pred.ffn_dim", None, 1, _BIG, "hidden width of the MLP", "pred"),
    _u32("jepa.pred.head_dim", lambda get: get("jepa.pred.embed_dim") // get("jepa.pred.n_head"),
         1, _WIDTH, "width of a head"),
    _u32("jepa.pred.out_dim", _same("jepa.enc.embed_dim"), 1, _BIG,
         "width of a predicted vector, per level"),
    _u32("jepa.pred.n_mask_tokens", None, 1, _HUGE, "mask tokens stored", "masked"),
    _text("jepa.pred.rope_freq_layout",
         lambda get: "interleaved" if get("jepa.family") == "vjepa2_1" else "tiled",
          "order of the RoPE frequencies", *_LAYOUTS),
    _flag("jepa.pred.rope_interpolate", False, "rescale RoPE positions to rope_ref_grid"),
    _u32("jepa.pred.rope_ref_grid", None, 1, _WIDTH,
         "grid side the RoPE positions are rescaled to, patches"),
    _u32("jepa.pred.grid_size", _grid, 1, _WIDTH,
         "grid side on which token ids are decoded, patches", "ac"),
    _u32("jepa.pred.n_hier_in", 1, 1, _COUNT, "encoder levels concatenated into pred.embed"),
    _flag("jepa.pred.modality_embed", False, "image and video vectors are added to the tokens"),
    _flag("jepa.pred.context_proj", False, "pred.proj_context predicts the context tokens"),
    _u32("jepa.pred.action_dim", None, 1, _WIDTH,
         "action width (lewm: block x environment action)", "ac", "lewm"),
    _u32("jepa.pred.state_dim", 0, 0, _WIDTH, "state (pose) width", "ac"),
    _flag("jepa.pred.frame_causal", True, "a frame attends to itself and earlier frames only"),
    _u32("jepa.pred.n_frames", None, 1, _WIDTH, "frames the predictor can see", "ac", "lewm"),
    _f32("jepa.pred.ln_eps", _predictor_eps, 0, 1, "epsilon of the affine LayerNorms"),
    _f32("jepa.pred.adaln_eps", 1e-6, 0, 1, "epsilon of the non-affine adaLN norms"),
    _text("jepa.pred.act", "gelu_erf", "activation of the MLP", *_ACTS),
    _flag("jepa.pred.qkv_bias", True, "attn_qkv has a bias"),
    _text("jepa.pred.action_act", "silu", "activation inside pred.action_embed", *_ACTS),
    _text("jepa.pred.proj_act", "gelu_erf", "activation inside pred.proj", *_ACTS),
    _u32("jepa.pred.n_cond_tokens", None, 1, _COUNT, "conditioning rows in front of every frame",
         "ac"),
    _text("jepa.pred.cond_order", "action,state", "order of the conditioning rows"),
    _flag("jepa.pred.normalize_reps", False, "latents pass a non-affine LayerNorm in the rollout"),
    _f32("jepa.pred.norm_reps_eps", 1e-5, 0, 1, "epsilon of that norm"),
    # head
    _text("jepa.head.kind", "none", "kind of head", "none", "attentive_pool", "linear_cls"),
    _u32("jepa.head.n_classes", None, 1, _HUGE, "classes", "head"),
    _u32("jepa.head.n_pool_layers", None, 0, _COUNT, "self-attention blocks before the query",
         "attentive_pool"),
    Key("jepa.head.labels", "[str]", (), "class names in order"),
    _u32("jepa.head.n_head", _same("jepa.enc.n_head"), 1, _COUNT, "attention heads of the pooler"),
    _f32("jepa.head.ln_eps", _same("jepa.enc.ln_eps"), 0, 1, "LayerNorm epsilon of the pooler"),
    # preprocessing
    _floats("jepa.pre.mean", IMAGENET_MEAN, -1e6, 1e6, "channel means of pixels in [0, 1]"),
    _floats("jepa.pre.std", IMAGENET_STD, 1e-9, 1e6,
         "channel standard deviations of pixels in [0, 1]"),
    _u32("jepa.pre.resize_short", _same("jepa.enc.img_size"), 1, _WIDTH,
         "short side after the resize, px"),
    _u32("jepa.pre.crop", _same("jepa.enc.img_size"), 0, _WIDTH,
         "side of the centre crop, px; 0 is the short side"),
    _text("jepa.pre.resample", "bilinear", "resampling filter", "bilinear", "bicubic"),
    _text("jepa.pre.resize_mode", "shortest_edge", "how the frame is fitted", "shortest_edge",
         "squash"),
    _f32("jepa.pre.rescale", 1 / 255, 1e-9, 1e9, "factor on uint8 pixels before the statistics"),
    # ours: the environment side of the actions, and where the weights come from
    _floats("jepa_wm.action.mean", None, -1e6, 1e6,
         "mean of an environment action, environment units"),
    _floats("jepa_wm.action.std", None, 1e-9, 1e6,
         "standard deviation of an environment action, environment units"),
    _floats("jepa_wm.action.low", None, -1e9, 1e9,
         "lower bound of an environment action, environment units"),
    _floats("jepa_wm.action.high", None, -1e9, 1e9,
         "upper bound of an environment action, environment units"),
    _u32("jepa_wm.action.block", None, 1, _COUNT, "environment steps in one model action"),
    _floats("jepa_wm.proprio.mean", None, -1e6, 1e6,
         "mean of the proprioception, environment units"),
    _floats("jepa_wm.proprio.std", None, 1e-9, 1e6,
         "standard deviation of the proprioception, environment units"),
    _floats("jepa_wm.goal.map", None, -1e6, 1e6,
         "linear map of latent differences for goal distances, row-major [k, latent width]"),
    _text("jepa_wm.source.*", "",
         "where the weights come from: sha256 of the source, entry of the checkpoint, url, ..."),
)  # fmt: skip

TABLE: Mapping[str, Key] = {row.name: row for row in _ROWS}
"""Every key, by name; the one prefix row ends in ``*``."""


def key_for(name: str) -> Key | None:
    """Return the row of a key (``jepa_wm.source.x``: the prefix row), or None."""
    row = TABLE.get(name)
    if row is None and name.startswith("jepa_wm.source.") and not name.endswith("*"):
        return TABLE["jepa_wm.source.*"]
    return row


def nearest(name: str) -> str:
    """Return "; did you mean KEY?" with the key most like a name that is none, or ""."""
    near = get_close_matches(name, TABLE, 1, 0.8)
    return f"; did you mean {near[0]}?" if near else ""


def value(meta: Mapping[str, Any], name: str) -> Any:
    """Return the stored value of a key, or its default (None where absence means "has none").

    Raises:
        KeyError: the value was refused, or a required one is absent.
        ValueError: the schema has no such key.
    """
    row = key_for(name)
    if row is None:
        raise ValueError(f"{name!r} is not a key of the bundle schema")
    found = meta.get(name)
    if found is None:
        found = (
            row.default(lambda other: value(meta, other)) if callable(row.default) else row.default
        )
    if found is INVALID or found is REQUIRED:
        raise KeyError(name)
    return found


def coerce(row: Key, found: Any) -> Any:
    """Return ``found`` as the schema's Python type (array as tuple, activation alias resolved).

    Integers of any width fit ``u32`` and ``[u32]``; integers and doubles fit ``f32``. A bool is
    never a number.

    Raises:
        ValueError: wrong type, out of range, not a choice; the text says what was found and what is
            right.
    """
    if not row.kind.startswith("["):
        return _scalar(row, row.kind, found)
    limit = MAX_LABELS if row.kind == "[str]" else MAX_ARRAY
    if isinstance(found, str | bytes) or not isinstance(found, Sequence | np.ndarray):
        raise ValueError(f"is {_shown(found)}, wanted {row.kind}")
    if len(found) > limit:
        raise ValueError(f"has {len(found)} entries, at most {limit} are allowed")
    if row.kind == "[f32]" and len(found) == 0:
        raise ValueError("is empty")
    return tuple(_scalar(row, row.kind[1:-1], entry) for entry in found)


def _scalar(row: Key, kind: str, found: Any) -> Any:
    is_number = isinstance(found, int | float | np.number) and not isinstance(found, bool)
    if kind == "str" and isinstance(found, str):
        return _choice(row, found)
    if kind == "bool" and isinstance(found, bool | np.bool_):
        return bool(found)
    is_whole = is_number and not isinstance(found, float | np.floating)
    if not (is_whole or (is_number and kind == "f32")) or kind in ("str", "bool"):
        raise ValueError(f"is {_shown(found)}, wanted {kind}")
    if not row.low <= found <= row.high or not math.isfinite(found):  # NaN fails the first
        raise ValueError(f"is {_shown(found)}, allowed is {row.low:.12g} to {row.high:.12g}")
    return int(found) if kind == "u32" else float(found)


def _choice(row: Key, found: str) -> str:
    if "gelu_erf" in row.choices:
        found = ACT_ALIASES.get(found, found)
    if row.choices and found not in row.choices:
        raise ValueError(f"is '{printable(found)}', allowed is {', '.join(row.choices)}")
    return found


def _shown(found: Any) -> str:
    if isinstance(found, tuple | list | np.ndarray):
        return f"an array of {len(found)}"
    return f"{type(found).__name__} {printable(found, 40)}"
