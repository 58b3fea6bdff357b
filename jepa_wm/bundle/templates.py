"""Which tensors a bundle must hold, as functions of its keys, and the check against that.

A dimension that no key states (the hidden width of a small MLP) is a name instead of a number: any
size fits, but the same one wherever the name stands. Shapes are in torch order, ``[out, in]`` for a
matrix.

Source: jepa.cpp docs/gguf-schema.md, "Encoder tensors", "Predictor", "Head" and the family notes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jepa_wm.bundle.faults import printable
from jepa_wm.bundle.schema import Lookup, value

Dim = int | str
Shape = tuple[Dim, ...]
Named = Iterator[tuple[str, Shape]]

PARTS = ("enc.", "pred.", "head.")
"""Name spaces of the schema; a tensor outside them is somebody else's and is ignored."""


@dataclass(frozen=True)
class TensorSpec:
    """What the schema says about one tensor.

    Attributes:
        shape: Torch order; a named dimension stands for any size.
        alternative: A second shape that is right too, or None.
    """

    shape: Shape
    alternative: Shape | None = None


def expected_tensors(meta: Mapping[str, Any]) -> dict[str, TensorSpec]:
    """Return every tensor a bundle with this metadata holds; all are required.

    Args:
        meta: Checked metadata (``rules.check_meta``).

    Raises:
        KeyError: a value the shapes depend on was refused.
    """
    expected: dict[str, TensorSpec] = {}
    for part in PARTS:
        expected |= _expected_part(meta, part)
    return expected


def is_operand(name: str) -> bool:
    """Say whether a tensor is added, multiplied or concatenated: not a matmul's weight."""
    tail = name.rsplit(".", 1)[-1]
    is_norm = ".ln" in name or ".norm." in name or ".hier_norm." in name
    return tail != "weight" or is_norm


def tensor_faults(
    meta: Mapping[str, Any], stored: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """Compare stored shapes with the expected ones.

    Leading dimensions of 1 do not count: some tools drop or keep them.

    Args:
        meta: Metadata after ``check_meta``; a part whose keys were refused is not checked.
        stored: Name to shape in torch order.

    Returns:
        Shapes as the schema writes them, for the tensors that fit, and all faults naming tensors.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    faults: list[str] = []
    sizes: dict[str, int] = {}
    for part in PARTS:
        try:
            expected = _expected_part(meta, part)
        except KeyError:
            continue
        for name, spec in expected.items():
            if name not in stored:
                faults.append(f"tensor {name} {_text(spec.shape)} is missing")
                continue
            fitted = _fit(spec, stored[name], sizes)
            if fitted is None:
                found = _text(stored[name])
                faults.append(
                    f"tensor {name} has shape {found}, expected {_text(spec.shape, sizes)}"
                )
            else:
                shapes[name] = fitted
        unexpected = (name for name in stored if name.startswith(part) and name not in expected)
        faults += [
            f"tensor {printable(name)} is not expected by the metadata" for name in unexpected
        ]
    return shapes, faults


def _text(shape: Shape, sizes: Mapping[str, int] | None = None) -> str:
    return str([(sizes or {}).get(str(dim), dim) for dim in shape]).replace("'", "")


def _fit(spec: TensorSpec, found: tuple[int, ...], sizes: dict[str, int]) -> tuple[int, ...] | None:
    """Return ``found`` in the spec's rank, or None; binds named dimensions at first use."""
    first = next((at for at, dim in enumerate(found) if dim != 1), len(found))
    for shape in filter(None, (spec.shape, spec.alternative)):
        core = found[first:]
        full = (1,) * (len(shape) - len(core)) + core
        new = {
            str(want): got for want, got in zip(shape, full, strict=False) if isinstance(want, str)
        }
        wanted = tuple(
            sizes.get(dim, new[dim]) if isinstance(dim, str) else dim for dim in shape[: len(full)]
        )
        if full == wanted and len(full) == len(shape):
            sizes.update(new)
            return full
    return None


def _expected_part(meta: Mapping[str, Any], part: str) -> dict[str, TensorSpec]:
    def get(name: str) -> Any:
        return value(meta, name)

    if part == "enc.":
        return {name: TensorSpec(shape) for name, shape in _encoder(get)}
    if part == "pred.":
        kind = get("jepa.pred.kind")
        return (
            {}
            if kind is None
            else {name: TensorSpec(shape) for name, shape in _PREDICTORS[kind](get)}
        )
    kind = get("jepa.head.kind")
    return {} if kind == "none" else _HEADS[kind](get)


def _linear(name: str, rows: Dim, columns: Dim, bias: bool = True) -> Named:
    yield f"{name}.weight", (rows, columns)
    if bias:
        yield f"{name}.bias", (rows,)


def _norm(name: str, dim: Dim) -> Named:
    yield f"{name}.weight", (dim,)
    yield f"{name}.bias", (dim,)


def _block(
    name: str, dim: int, inner: int, ffn: Dim, fused: bool = True, qkv_bias: bool = True
) -> Named:
    """One pre-LN block; ``inner`` is heads x head width."""
    yield from _norm(f"{name}.ln1", dim)
    if fused:
        yield from _linear(f"{name}.attn_qkv", 3 * inner, dim, qkv_bias)
    else:
        for letter in "qkv":
            yield from _linear(f"{name}.attn_{letter}", inner, dim, qkv_bias)
    yield from _linear(f"{name}.attn_out", dim, inner)
    yield from _norm(f"{name}.ln2", dim)
    yield from _linear(f"{name}.ffn_up", ffn, dim)
    yield from _linear(f"{name}.ffn_down", dim, ffn)


def _table_rows(get: Lookup) -> int:
    """Patch positions of the training grid."""
    side = get("jepa.enc.img_size") // get("jepa.enc.patch_size")
    is_3d = get("jepa.enc.pos_type") == "sincos3d"
    slots = get("jepa.enc.n_frames") // get("jepa.enc.tubelet_size") if is_3d else 1
    return int(slots * side * side)


def _encoder(get: Lookup) -> Named:
    dim, ffn = get("jepa.enc.embed_dim"), get("jepa.enc.ffn_dim")
    image_row = get("jepa.enc.in_chans") * get("jepa.enc.patch_size") ** 2
    yield from _linear("enc.patch_embed", dim, image_row * get("jepa.enc.tubelet_size"))
    if get("jepa.enc.image_patch_embed"):
        yield from _linear("enc.patch_embed_img", dim, image_row)
    if get("jepa.enc.pos_type") != "rope3d":
        # registers are inserted after the position add and have no rows
        yield "enc.pos_embed", (_table_rows(get) + int(get("jepa.enc.cls_token")), dim)
    if get("jepa.enc.cls_token"):
        yield "enc.cls_token", (dim,)
    if get("jepa.enc.n_registers"):
        yield "enc.reg_tokens", (get("jepa.enc.n_registers"), dim)
    if get("jepa.enc.modality_embed"):
        yield "enc.mod_embed_img", (dim,)
        yield "enc.mod_embed_video", (dim,)
    for i in range(get("jepa.enc.n_layer")):
        yield from _block(f"enc.blk.{i}", dim, dim, ffn, get("jepa.enc.qkv_fused"))
        if get("jepa.enc.layer_scale"):
            yield f"enc.blk.{i}.ls1", (dim,)
            yield f"enc.blk.{i}.ls2", (dim,)
    yield from _norm("enc.norm", dim)
    for k in range(len(get("jepa.enc.hier_layers"))):
        yield from _norm(f"enc.hier_norm.{k}", dim)
    if get("jepa.family") == "lewm":
        yield from _linear("enc.proj.0", "enc.proj hidden", dim)
        yield from _linear("enc.proj.2", dim, "enc.proj hidden")


def _predictor_blocks(get: Lookup, fused: bool) -> Named:
    dim, bias = get("jepa.pred.embed_dim"), get("jepa.pred.qkv_bias")
    inner = get("jepa.pred.n_head") * get("jepa.pred.head_dim")
    for i in range(get("jepa.pred.n_layer")):
        yield from _block(f"pred.blk.{i}", dim, inner, get("jepa.pred.ffn_dim"), fused, bias)
    yield from _norm("pred.norm", dim)


def _masked(get: Lookup) -> Named:
    dim, levels = get("jepa.pred.embed_dim"), get("jepa.pred.n_hier_in")
    source, out = levels * get("jepa.enc.embed_dim"), levels * get("jepa.pred.out_dim")
    if levels == 1:
        yield from _linear("pred.embed", dim, source)
    else:
        yield from _linear("pred.embed.0", "pred.embed hidden", source)
        yield from _linear("pred.embed.2", dim, "pred.embed hidden")
    yield "pred.mask_tokens", (get("jepa.pred.n_mask_tokens"), dim)
    if get("jepa.enc.pos_type") != "rope3d":
        yield "pred.pos_embed", (_table_rows(get), dim)
    if get("jepa.pred.modality_embed"):
        yield "pred.mod_embed_img", (dim,)
        yield "pred.mod_embed_video", (dim,)
    yield from _predictor_blocks(get, get("jepa.enc.qkv_fused"))
    yield from _linear("pred.proj", out, dim)
    if get("jepa.pred.context_proj"):
        yield from _linear("pred.proj_context", out, dim)


def _ac(get: Lookup) -> Named:
    dim = get("jepa.pred.embed_dim")
    yield from _linear("pred.embed", dim, get("jepa.enc.embed_dim"))
    yield from _linear("pred.action_embed", dim, get("jepa.pred.action_dim"))
    yield from _linear("pred.state_embed", dim, get("jepa.pred.state_dim"))
    yield from _predictor_blocks(get, get("jepa.enc.qkv_fused"))
    yield from _linear("pred.proj", get("jepa.pred.out_dim"), dim)


def _lewm(get: Lookup) -> Named:
    dim = get("jepa.pred.embed_dim")
    yield from _linear(
        "pred.action_embed.0", "pred.action_embed hidden", get("jepa.pred.action_dim")
    )
    yield from _linear("pred.action_embed.2", dim, "pred.action_embed hidden")
    yield "pred.pos_embed", (get("jepa.pred.n_frames"), dim)
    yield from _predictor_blocks(get, fused=True)
    for i in range(get("jepa.pred.n_layer")):
        yield from _linear(f"pred.blk.{i}.adaln", 6 * dim, dim)
    yield from _linear("pred.proj.0", "pred.proj hidden", dim)
    yield from _linear("pred.proj.2", get("jepa.pred.out_dim"), "pred.proj hidden")


def _attentive_pool(get: Lookup) -> dict[str, TensorSpec]:
    dim = get("jepa.enc.embed_dim")

    def named() -> Named:
        yield "head.query", (1, dim)
        for i in range(get("jepa.head.n_pool_layers")):
            yield from _block(f"head.blk.{i}", dim, dim, "head hidden", get("jepa.enc.qkv_fused"))
        yield from _norm("head.xattn.ln_kv", dim)
        for letter in "qkv":
            yield from _linear(f"head.xattn.{letter}", dim, dim)
        yield from _norm("head.xattn.ln2", dim)
        # 4 x width whatever the encoder's MLP ratio is (HF and Meta), so no key states it
        yield from _linear("head.xattn.ffn_up", "head hidden", dim)
        yield from _linear("head.xattn.ffn_down", dim, "head hidden")
        yield from _linear("head.cls", get("jepa.head.n_classes"), dim)

    return {name: TensorSpec(shape) for name, shape in named()}


def _linear_cls(get: Lookup) -> dict[str, TensorSpec]:
    dim, classes = get("jepa.enc.embed_dim"), get("jepa.head.n_classes")
    # Dinov2ForImageClassification feeds [CLS, mean of patches]: told apart by the shape
    both = (classes, 2 * dim) if get("jepa.enc.cls_token") else None
    weight = TensorSpec((classes, dim), alternative=both)
    return {"head.cls.weight": weight, "head.cls.bias": TensorSpec((classes,))}


_PREDICTORS = {"masked": _masked, "ac": _ac, "lewm": _lewm}
_HEADS = {"attentive_pool": _attentive_pool, "linear_cls": _linear_cls}
