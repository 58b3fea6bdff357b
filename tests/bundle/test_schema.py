"""The key table, the defaults, the relations and the tensor templates."""

import numpy as np
import pytest
from bundle.tiny import TINY_LEWM

from jepa_wm.bundle import schema
from jepa_wm.bundle.rules import check_meta
from jepa_wm.bundle.schema import REQUIRED, TABLE, coerce, key_for, value
from jepa_wm.bundle.templates import expected_tensors, is_operand, tensor_faults

VITL = {"embed_dim": 1024, "n_layer": 24, "n_head": 16, "ffn_dim": 4096, "patch_size": 16}
VIDEO = {"tubelet_size": 2, "img_size": 256, "n_frames": 64}
MASKED = {"kind": "masked", "embed_dim": 384, "n_layer": 12, "n_head": 12, "ffn_dim": 1536}


def meta_of(family, enc, **parts):
    """Metadata of a published model: keyword ``pred={...}`` gives the jepa.pred keys, and so on."""
    meta = {"general.architecture": "jepa", "jepa.schema_version": 1, "jepa.family": family}
    for part, keys in {"enc": enc, **parts}.items():
        meta |= {f"jepa.{part}.{name}": v for name, v in keys.items()}
    checked, faults = check_meta(meta)
    assert faults == []
    return checked


def with_clip(**more):
    return VITL | VIDEO | more


# number of tensors in the files the authors of the schema publish
PUBLISHED = {
    "ijepa vith14": (
        389,
        "ijepa",
        {"embed_dim": 1280, "n_layer": 32, "n_head": 16, "ffn_dim": 5120, "patch_size": 14},
        {},
    ),
    "vjepa2 vitl": (443, "vjepa2", with_clip(), {"pred": MASKED | {"n_mask_tokens": 10}}),
    "vjepa2 vitl ssv2": (
        496,
        "vjepa2",
        with_clip(n_frames=16),
        {
            "pred": MASKED | {"n_mask_tokens": 10},
            "head": {"kind": "attentive_pool", "n_classes": 174, "n_pool_layers": 3},
        },
    ),
    "vjepa2_1 vitb": (
        315,
        "vjepa2_1",
        {"embed_dim": 768, "n_layer": 12, "n_head": 12, "ffn_dim": 3072, "patch_size": 16}
        | {"tubelet_size": 2, "img_size": 384, "n_frames": 64, "hier_layers": [2, 5, 8, 11]}
        | {"modality_embed": True, "image_patch_embed": True},
        {
            "pred": MASKED
            | {"n_mask_tokens": 8, "out_dim": 1664, "modality_embed": True, "context_proj": True}
        },
    ),
    "levjepa vitl": (
        293,
        "levjepa",
        VITL | {"n_frames": 16, "cls_token": True, "attn_mode": "block_causal"},
        {},
    ),
    "vjepa2 ac": (
        484 + 298,
        "vjepa2",
        {"embed_dim": 1408, "n_layer": 40, "n_head": 22, "ffn_dim": 6144, "patch_size": 16} | VIDEO,
        {
            "pred": {"kind": "ac", "embed_dim": 1024, "n_layer": 24, "n_head": 16, "ffn_dim": 4096}
            | {"action_dim": 7, "state_dim": 7, "n_cond_tokens": 2, "grid_size": 16, "n_frames": 32}
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_templates_count_the_tensors_of_published_files(name):
    count, family, enc, parts = PUBLISHED[name]
    assert len(expected_tensors(meta_of(family, enc, **parts))) == count


def test_shapes_of_the_published_lewm():
    enc = {"embed_dim": 192, "n_layer": 12, "n_head": 3, "ffn_dim": 768, "patch_size": 14}
    pred = {"kind": "lewm", "embed_dim": 192, "n_layer": 6, "n_head": 16, "head_dim": 64}
    pred |= {"ffn_dim": 2048, "n_frames": 3, "action_dim": 10, "qkv_bias": False}
    expected = expected_tensors(meta_of("lewm", enc | {"cls_token": True}, pred=pred))
    shapes = {name: spec.shape for name, spec in expected.items()}
    assert shapes["enc.patch_embed.weight"] == (192, 588)
    assert shapes["enc.pos_embed"] == (257, 192)
    assert shapes["pred.pos_embed"] == (3, 192)
    assert shapes["pred.blk.5.adaln.weight"] == (1152, 192)
    assert shapes["pred.blk.0.attn_qkv.weight"] == (3072, 192)
    assert shapes["pred.blk.0.attn_out.weight"] == (192, 1024)
    assert "pred.blk.0.attn_qkv.bias" not in shapes
    assert shapes["pred.action_embed.0.weight"][1] == 10
    assert shapes["enc.proj.2.weight"][0] == shapes["pred.proj.2.weight"][0] == 192
    assert len(shapes) == 243


def test_shapes_that_depend_on_one_key():
    base = {"embed_dim": 8, "n_layer": 1, "n_head": 2, "ffn_dim": 16, "patch_size": 4}
    base |= {"img_size": 8, "cls_token": True, "n_registers": 3, "layer_scale": True}
    shapes = {k: s.shape for k, s in expected_tensors(meta_of("hfvit", base)).items()}
    assert shapes["enc.pos_embed"] == (5, 8)  # registers have no rows
    assert shapes["enc.reg_tokens"] == (3, 8) and shapes["enc.blk.0.ls2"] == (8,)
    split = expected_tensors(meta_of("hfvit", base | {"qkv_fused": False}))
    assert split["enc.blk.0.attn_k.weight"].shape == (8, 8)
    assert "enc.blk.0.attn_qkv.weight" not in split
    clip = base | {"n_frames": 6, "tubelet_size": 2, "cls_token": False, "n_registers": 0}
    assert expected_tensors(meta_of("vjepa", clip))["enc.pos_embed"].shape == (3 * 4, 8)
    big = {"n_head": 2, "n_hier_in": 4, "out_dim": 8, "n_mask_tokens": 8, "embed_dim": 12}
    big = meta_of(
        "vjepa2_1",
        with_clip(hier_layers=[5, 11, 17, 23]),
        pred={"kind": "masked", "n_layer": 1, "ffn_dim": 8} | big,
    )
    shapes = {k: s.shape for k, s in expected_tensors(big).items()}
    assert shapes["pred.embed.0.weight"][1] == 4 * 1024 and shapes["pred.embed.2.weight"][0] == 12
    assert shapes["pred.proj.weight"] == (32, 12)


def test_position_tables_with_a_leading_one_are_the_same():
    meta = check_meta(TINY_LEWM)[0]
    stored = {
        name: tuple(16 if isinstance(dim, str) else dim for dim in spec.shape)
        for name, spec in expected_tensors(meta).items()
    }
    assert tensor_faults(meta, stored)[1] == []
    shapes, faults = tensor_faults(meta, stored | {"enc.pos_embed": (1, 17, 8)})
    assert faults == [] and shapes["enc.pos_embed"] == (17, 8)
    assert tensor_faults(meta, stored | {"enc.pos_embed": (17, 1, 8)})[1]
    assert tensor_faults(meta, stored | {"enc.pos_embed": (2, 17, 8)})[1]


@pytest.mark.parametrize("cls_token", [True, False])
def test_a_linear_head_may_read_one_or_two_vectors(cls_token):
    """Two only where there are CLS and patches to read."""
    base = {"embed_dim": 8, "n_layer": 1, "n_head": 2, "ffn_dim": 16, "patch_size": 4}
    base["cls_token"] = cls_token
    meta = meta_of("hfvit", base, head={"kind": "linear_cls", "n_classes": 5})
    stored = {name: spec.shape for name, spec in expected_tensors(meta).items()}
    for width, is_right in ((8, True), (16, cls_token), (24, False)):
        faults = tensor_faults(meta, stored | {"head.cls.weight": (5, width)})[1]
        assert (faults == []) is is_right


def test_the_poolers_heads_divide_the_width():
    keys = {"jepa.head.kind": "attentive_pool", "jepa.head.n_classes": 5}
    keys |= {"jepa.head.n_pool_layers": 1, "jepa.head.n_head": 3}
    meta = TINY_LEWM | keys
    assert any("no multiple of jepa.head.n_head 3" in fault for fault in check_meta(meta)[1])
    assert check_meta(meta | {"jepa.head.n_head": 4})[1] == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("enc.norm.weight", True),
        ("enc.hier_norm.0.weight", True),
        ("enc.blk.3.ln1.weight", True),
        ("head.xattn.ln_kv.weight", True),
        ("enc.blk.3.attn_qkv.bias", True),
        ("enc.blk.3.ls1", True),
        ("pred.mask_tokens", True),
        ("enc.patch_embed.weight", False),
        ("pred.blk.0.adaln.weight", False),
    ],
)
def test_operands_are_told_from_matrices(name, expected):
    assert is_operand(name) is expected


def test_rows_are_sound():
    for name, row in TABLE.items():
        assert row.meaning and row.low <= row.high
        assert row.kind in {"u32", "f32", "bool", "str", "[u32]", "[f32]", "[str]"}, name
        if row.default in (REQUIRED, None, ()) or callable(row.default) or name.endswith("*"):
            continue
        assert coerce(row, row.default) == row.default, name


def test_defaults_depend_on_family_and_other_keys():
    meta = check_meta(TINY_LEWM)[0]
    assert value(meta, "jepa.pred.out_dim") == 8
    assert value(meta, "jepa_wm.enc.pos_interp") == "size"
    assert value(meta | {"jepa.family": "hfvit"}, "jepa_wm.enc.pos_interp") == "offset0.1"
    assert value(meta | {"jepa.family": "vjepa"}, "jepa_wm.enc.pos_interp") == "trilinear_scale"
    assert value(meta | {"jepa.family": "vjepa2_1"}, "jepa.pred.rope_freq_layout") == "interleaved"
    assert value(meta, "jepa.pred.rope_freq_layout") == "tiled"
    bare = {"jepa.family": "vjepa2", "jepa.enc.ln_eps": 3e-6, "jepa.pred.kind": "masked"}
    assert value(bare, "jepa.pred.ln_eps") == 3e-6
    assert value(bare | {"jepa.pred.kind": "ac"}, "jepa.pred.ln_eps") == 1e-6
    assert value(bare, "jepa.modality") == "video"
    assert value(bare, "jepa.pre.crop") == 224


def test_a_misspelt_key_is_an_error():
    with pytest.raises(ValueError, match=r"jepa\.enc\.embed_dims"):
        value({}, "jepa.enc.embed_dims")
    assert key_for("jepa_wm.source.sha256") is key_for("jepa_wm.source.entry") is not None
    assert key_for("jepa_wm.sauce.sha256") is None


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("gelu", "gelu_erf"),
        ("gelu_new", "gelu_tanh"),
        ("gelu_pytorch_tanh", "gelu_tanh"),
        ("swish", "silu"),
        ("silu", "silu"),
    ],
)
def test_activation_aliases(given, kept):
    assert coerce(TABLE["jepa.enc.act"], given) == kept


def test_types_are_kept_apart():
    dim, eps, flag = (TABLE[f"jepa.enc.{name}"] for name in ("embed_dim", "ln_eps", "cls_token"))
    assert coerce(dim, np.uint8(8)) == 8 and type(coerce(dim, np.int64(8))) is int
    assert type(coerce(eps, 1)) is float and type(coerce(flag, np.bool_(True))) is bool
    for row, wrong in ((dim, True), (dim, 8.0), (dim, "8"), (eps, True), (flag, 1), (flag, "true")):
        with pytest.raises(ValueError, match="wanted"):
            coerce(row, wrong)
    assert coerce(TABLE["jepa.pre.mean"], np.array([1, 2, 3], "f4")) == (1.0, 2.0, 3.0)
    with pytest.raises(ValueError, match="wanted"):
        coerce(TABLE["jepa.pre.mean"], "123")
    with pytest.raises(ValueError, match="at most"):
        coerce(TABLE["jepa.pre.mean"], np.zeros(schema.MAX_ARRAY + 1))


def test_both_spellings_of_the_source_url():
    meta, faults = check_meta(TINY_LEWM | {"general.source.url": "https://example.org"})
    assert faults == [] and value(meta, "general.source_url") == "https://example.org"


def test_statistics_of_one_action_or_of_the_whole_block():
    for n, is_right in ((2, True), (10, True), (5, False)):
        stats = {f"jepa_wm.action.{k}": [v] * n for k, v in (("mean", 0.0), ("std", 1.0))}
        bounds = {f"jepa_wm.action.{k}": [v] * n for k, v in (("low", -1.0), ("high", 1.0))}
        assert (check_meta(TINY_LEWM | stats | bounds)[1] == []) is is_right
