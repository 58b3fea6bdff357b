"""Checks on the metadata as a whole: required keys, each value, and the relations between values.

Reader and writer call ``check_meta``, so what one writes the other opens.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jepa_wm.bundle.faults import printable
from jepa_wm.bundle.schema import (
    INVALID,
    KEY_ALIASES,
    REQUIRED,
    TABLE,
    VIDEO_FAMILIES,
    Lookup,
    coerce,
    key_for,
    value,
)

MAX_TOKENS = 1 << 17  # of a training clip; the longest published one has 18,432
PREDICTORS_OF = {
    "ijepa": ("masked",),
    "vjepa": ("masked",),
    "vjepa2": ("masked", "ac"),
    "vjepa2_1": ("masked",),
    "lewm": ("lewm",),
}
"""Predictor kinds that exist for a family."""


def check_meta(stored: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Check metadata against the schema.

    Args:
        stored: Key to value as found in a file or given to the writer.

    Returns:
        The same mapping with known values in the schema's types (a refused one replaced by
        ``INVALID``, an alias key by its name), and all faults, each naming its key. Keys the schema
        does not have pass unchanged.
    """
    architecture = stored.get("general.architecture")
    if architecture != "jepa":
        found = "absent" if architecture is None else f"'{printable(architecture, 60)}'"
        return dict(stored), [f"general.architecture is {found}, wanted 'jepa': no JEPA bundle"]
    meta: dict[str, Any] = {}
    faults: list[str] = []
    for name, found in stored.items():
        alias = KEY_ALIASES.get(name, name)
        if alias != name and alias in stored:
            continue
        row = key_for(alias)
        meta[alias] = found
        if row is not None:
            try:
                meta[alias] = coerce(row, found)
            except ValueError as error:
                meta[alias] = INVALID
                faults.append(f"{printable(name)} {error}")
    faults += _missing(meta)
    faults += _relations(meta)
    return meta, faults


def _missing(meta: dict[str, Any]) -> Iterator[str]:
    """Yield a fault per absent key that this bundle must store, and mark it ``INVALID``."""
    kinds = {meta.get("jepa.pred.kind"), meta.get("jepa.head.kind")} - {None, INVALID, "none"}
    if "jepa.pred.kind" in meta:
        kinds.add("pred")
    if meta.get("jepa.head.kind", "none") != "none":
        kinds.add("head")
    for row in TABLE.values():
        causes = [cause for cause in row.needed_by if cause in kinds]
        if row.name not in meta and (row.default is REQUIRED or causes):
            meta[row.name] = INVALID
            yield f"{row.name} is missing" + (f" (needed by {causes[0]})" if causes else "")


def _relations(meta: Mapping[str, Any]) -> Iterator[str]:
    """Yield every broken relation; one that needs a refused value is skipped."""
    for relation in _RELATIONS:
        try:
            yield from relation(lambda name: value(meta, name))
        except KeyError:
            continue


def _heads(get: Lookup) -> Iterator[str]:
    dim, heads = get("jepa.enc.embed_dim"), get("jepa.enc.n_head")
    if dim % heads:
        yield f"jepa.enc.embed_dim {dim} is no multiple of jepa.enc.n_head {heads}"
    elif get("jepa.enc.pos_type") == "rope3d" and (dim // heads < 6 or dim // heads % 2):
        yield f"jepa.enc head width {dim // heads} does not fit rope3d: wanted even and at least 6"


def _pooler(get: Lookup) -> Iterator[str]:
    dim, heads = get("jepa.enc.embed_dim"), get("jepa.head.n_head")
    if get("jepa.head.kind") == "attentive_pool" and dim % heads:
        yield f"jepa.enc.embed_dim {dim} is no multiple of jepa.head.n_head {heads}"


def _sizes(get: Lookup) -> Iterator[str]:
    if get("jepa.enc.img_size") < get("jepa.enc.patch_size"):
        yield "jepa.enc.img_size is smaller than jepa.enc.patch_size"
    if get("jepa.enc.n_frames") < get("jepa.enc.tubelet_size"):
        yield "jepa.enc.n_frames is smaller than jepa.enc.tubelet_size"
    if get("jepa.enc.attn_mode") == "block_causal" and get("jepa.family") not in VIDEO_FAMILIES:
        yield f"jepa.enc.attn_mode block_causal does not exist for family {get('jepa.family')}"


def _tokens(get: Lookup) -> Iterator[str]:
    """Bound what a file makes of one picture or clip: its keys alone set the work of encoding."""
    seen = get("jepa.pre.crop") or get("jepa.pre.resize_short")
    side = max(get("jepa.enc.img_size"), seen) // get("jepa.enc.patch_size")
    tokens = side**2 * max(1, get("jepa.enc.n_frames") // get("jepa.enc.tubelet_size"))
    if tokens > MAX_TOKENS:
        yield (
            f"jepa.enc.img_size, jepa.pre.crop, jepa.enc.n_frames and the patch make {tokens} "
            f"tokens of one input, at most {MAX_TOKENS} are allowed"
        )


def _encoder_rope(get: Lookup) -> Iterator[str]:
    if get("jepa.enc.rope_interpolate") and get("jepa.enc.rope_ref_grid") is None:
        yield "jepa.enc.rope_interpolate needs jepa.enc.rope_ref_grid"


def _predictor_rope(get: Lookup) -> Iterator[str]:
    if get("jepa.pred.rope_interpolate") and get("jepa.pred.rope_ref_grid") is None:
        yield "jepa.pred.rope_interpolate needs jepa.pred.rope_ref_grid"


def _channels(get: Lookup) -> Iterator[str]:
    channels = get("jepa.enc.in_chans")
    for name in ("jepa.pre.mean", "jepa.pre.std"):
        if len(get(name)) != channels:
            yield f"{name} has {len(get(name))} entries, jepa.enc.in_chans is {channels}"


def _hierarchy(get: Lookup) -> Iterator[str]:
    layers = get("jepa.enc.hier_layers")
    if list(layers) != sorted(set(layers)) or any(at >= get("jepa.enc.n_layer") for at in layers):
        yield "jepa.enc.hier_layers must ascend and stay below jepa.enc.n_layer"
    if get("jepa.pred.n_hier_in") > max(1, len(layers)):
        yield f"jepa.pred.n_hier_in exceeds the {len(layers)} jepa.enc.hier_layers"


def _predictor(get: Lookup) -> Iterator[str]:
    kind, family = get("jepa.pred.kind"), get("jepa.family")
    if kind is None:
        if family == "lewm":
            yield "jepa.pred.kind is missing: family lewm is an encoder and its lewm predictor"
        return
    if kind not in PREDICTORS_OF.get(family, ()):
        yield f"jepa.pred.kind {kind} does not exist for family {family}"
    dim, heads, width = (
        get("jepa.pred.embed_dim"),
        get("jepa.pred.n_head"),
        get("jepa.pred.head_dim"),
    )
    if width < 1:
        yield f"jepa.pred.n_head {heads} exceeds jepa.pred.embed_dim {dim}"
    elif kind != "lewm" and heads * width != dim:
        yield f"jepa.pred.embed_dim {dim} is not jepa.pred.n_head {heads} x head_dim {width}"
    elif get("jepa.enc.pos_type") == "rope3d" and (width < 6 or width % 2):
        yield f"jepa.pred head width {width} does not fit rope3d: wanted even and at least 6"


def _lewm(get: Lookup) -> Iterator[str]:
    if get("jepa.pred.kind") != "lewm":
        return
    names = ("jepa.enc.embed_dim", "jepa.pred.embed_dim", "jepa.pred.out_dim")
    if len({get(name) for name in names}) > 1:
        yield f"lewm needs equal {', '.join(f'{name} ({get(name)})' for name in names)}"
    if not get("jepa.enc.cls_token"):
        yield "lewm reads the CLS token: jepa.enc.cls_token must be true"
    if not get("jepa.pred.frame_causal"):
        yield "jepa.pred.frame_causal is false, but the lewm predictor is causal"


def _ac(get: Lookup) -> Iterator[str]:
    if get("jepa.pred.kind") == "ac" and get("jepa.pred.out_dim") != get("jepa.enc.embed_dim"):
        yield "jepa.pred.out_dim must equal jepa.enc.embed_dim: the ac predictor feeds back"


def _labels(get: Lookup) -> Iterator[str]:
    labels, classes = get("jepa.head.labels"), get("jepa.head.n_classes")
    if labels and classes is not None and len(labels) != classes:
        yield f"jepa.head.labels has {len(labels)} entries, jepa.head.n_classes is {classes}"


def _actions(get: Lookup) -> Iterator[str]:
    total, block = get("jepa.pred.action_dim"), get("jepa_wm.action.block")
    if total is None:
        return
    if block is not None and total % block:
        yield f"jepa.pred.action_dim {total} is no multiple of jepa_wm.action.block {block}"
        return
    for name in ("mean", "std", "low", "high"):
        found = get(f"jepa_wm.action.{name}")
        # one environment action, or the whole block with the statistics repeated
        allowed = (total // block, total) if block else (total,)
        if found is not None and (len(found) not in allowed if block else total % len(found)):
            wanted = " or ".join(str(n) for n in allowed) if block else f"a divisor of {total}"
            yield f"jepa_wm.action.{name} has {len(found)} entries, wanted {wanted}"


def _goal_map(get: Lookup) -> Iterator[str]:
    found, width = get("jepa_wm.goal.map"), get("jepa.enc.embed_dim")
    if found is not None and (not found or len(found) % width):
        yield f"jepa_wm.goal.map has {len(found)} entries, wanted whole rows of {width}"


def _pairs(get: Lookup) -> Iterator[str]:
    for first, second in (
        ("jepa_wm.action.mean", "jepa_wm.action.std"),
        ("jepa_wm.action.low", "jepa_wm.action.high"),
        ("jepa_wm.proprio.mean", "jepa_wm.proprio.std"),
    ):
        a, b = get(first), get(second)
        if (a is None) != (b is None):
            yield f"{first} and {second} come together, {second if b is None else first} is missing"
        elif a is not None and len(a) != len(b):
            yield f"{first} has {len(a)} entries, {second} has {len(b)}"
        elif (
            first.endswith("low")
            and a is not None
            and any(x >= y for x, y in zip(a, b, strict=True))
        ):
            yield "jepa_wm.action.low must lie below jepa_wm.action.high"


_RELATIONS: tuple[Callable[[Lookup], Iterator[str]], ...] = (
    _heads,
    _pooler,
    _sizes,
    _tokens,
    _encoder_rope,
    _predictor_rope,
    _channels,
    _hierarchy,
    _predictor,
    _lewm,
    _ac,
    _labels,
    _actions,
    _goal_map,
    _pairs,
)
