"""The levjepa family against its authors' code, its quirks one by one, its sources."""

import json
from functools import cache

import pytest
import torch
from drawn import difference, draw, draw_weights, read
from levjepa_cases import CLIPS, D
from safetensors.torch import save_file

from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.rules import check_meta
from jepa_wm.bundle.templates import tensor_faults
from jepa_wm.convert import convert, main, parse_settings
from jepa_wm.errors import ConversionError
from jepa_wm.models import levjepa, load
from jepa_wm.runtime import command

CPU = torch.device("cpu")
RELATIVE = 1e-5
LAYOUTS, ARRAYS = read("levjepa.npz")
CONFIG = {
    "model_type": "levjepa", "embed_dim": D, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0,
    "patch_size": 8, "tubelet_size": 1, "in_chans": 3, "img_size": 24, "num_frames": 4,
    "qkv_bias": True, "use_rope": True, "attn_mode": "block_causal", "token_drop_rate": 0.95,
    "auto_map": {"AutoModel": "modeling_levjepa.LeVJEPAModel"},
}  # fmt: skip
CONFIGS = {
    "frames": CONFIG,
    "full": CONFIG | {"attn_mode": "full"},
    "tubelets": CONFIG | {"tubelet_size": 2},
}
RECIPE = [
    "pre.mean=0.5,0.5,0.5", "pre.std=0.5,0.5,0.5", "pre.resize_short=24", "pre.crop=24",
    "pre.resample=bicubic", "pre.resize_mode=shortest_edge",
]  # fmt: skip


@cache
def weights(which="frames"):
    return draw_weights(LAYOUTS[which])


def write(folder, tensors, config=CONFIG):
    """The published layout: one file of ``encoder.*`` and a config.json, or no config."""
    named = {f"encoder.{name}": tensor.clone() for name, tensor in tensors.items()}
    save_file(named, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture(scope="module")
def to_bundle(tmp_path_factory):
    """Write a source folder and convert it; later settings win over the ones given here."""

    def run(tensors, config, *settings, recipe=RECIPE):
        folder = tmp_path_factory.mktemp("levjepa")
        write(folder, tensors, config)
        given = parse_settings([*recipe, *settings])
        convert("levjepa", folder, folder / "model.gguf", "f32", given)
        return Bundle.open(folder / "model.gguf")

    return run


@pytest.fixture(scope="module")
def models(to_bundle):
    return {name: load(to_bundle(weights(name), CONFIGS[name]), CPU) for name in CONFIGS}


def encode(model, case):
    return model.encode(draw(case, CLIPS[case][1]))


# parity


@pytest.mark.parametrize("case", CLIPS)
def test_clips_of_every_size(models, case):
    """By frame and full, other grids and lengths than trained, one frame, tubelets, a left-over."""
    model = models[CLIPS[case][0]]
    tokens = encode(model, case)
    assert difference(tokens, ARRAYS[case]) < RELATIVE
    pooled = model.embed_pixels(draw(case, CLIPS[case][1]))
    assert difference(pooled, ARRAYS[case][:, 0]) < RELATIVE  # CLS


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_direction(to_bundle, dtype):
    pooled = encode(load(to_bundle(weights(), CONFIG), CPU, dtype), "native")[:, 0]
    cosine = torch.cosine_similarity(pooled, ARRAYS["native"][:, 0]).min().item()
    assert cosine >= 0.999, f"{dtype}: {cosine:.5f}"


# quirks: the wrong variant is far from the authors' numbers


@pytest.mark.parametrize(
    "wrong",
    [
        "enc.attn_mode=full",
        "enc.rope_freq_layout=interleaved",
        "enc.rope_theta=1000",
        "enc.ln_eps=1e-5",
        "enc.ln_eps=1e-12",
        "enc.act=gelu_tanh",
        "enc.n_head=1",
    ],
)
def test_a_wrong_encoder_is_noticed(to_bundle, wrong):
    error = difference(
        encode(load(to_bundle(weights(), CONFIG, wrong), CPU), "native"), ARRAYS["native"]
    )
    assert error > 10 * RELATIVE, f"{wrong}: {error:.2g}"


def test_interpolated_positions_are_noticed(to_bundle):
    wrong = ("enc.rope_interpolate=true", "enc.rope_ref_grid=5")
    model = load(to_bundle(weights(), CONFIG, *wrong), CPU)
    assert difference(encode(model, "native"), ARRAYS["native"]) > 0.001


def test_no_frame_sees_a_later_one_and_cls_sees_all(models):
    clip = draw("native", CLIPS["native"][1])
    changed = clip.clone()
    changed[:, 2] += 1
    before, after = (models["frames"].encode(x) for x in (clip, changed))
    assert torch.equal(before[:, 1 : 1 + 2 * 9], after[:, 1 : 1 + 2 * 9])
    assert (before - after)[:, 1 + 2 * 9 :].abs().amax(-1).min() > 1e-3
    assert (before - after)[:, 0].abs().max() > 1e-3


def test_no_patch_sees_cls(to_bundle):
    changed = weights() | {"cls_token": 3 * weights()["cls_token"]}
    tokens = encode(load(to_bundle(changed, CONFIG), CPU), "native")
    assert difference(tokens[:, 1:], ARRAYS["native"][:, 1:]) < RELATIVE
    assert difference(tokens[:, 0], ARRAYS["native"][:, 0]) > 1e-3


def test_a_still_picture_is_a_whole_clip_and_a_frame_is_one_slot(models):
    model = models["frames"]
    still = torch.randint(0, 256, (24, 24, 3), dtype=torch.uint8)
    assert torch.equal(model.embed(still), model.embed(still.repeat(4, 1, 1, 1)))
    assert difference(model.embed(still[None]), model.embed(still)) > 1e-3


# sources


def test_the_metadata_of_a_folder(to_bundle):
    bundle = to_bundle(weights(), CONFIG)
    found = {
        key: bundle.get(f"jepa.enc.{key}") for key in (
            "embed_dim", "n_layer", "n_head", "ffn_dim", "patch_size", "tubelet_size", "img_size",
            "n_frames", "attn_mode", "cls_token", "rope_freq_layout", "rope_interpolate",
        )
    }  # fmt: skip
    assert found == {
        "embed_dim": D, "n_layer": 2, "n_head": 2, "ffn_dim": 2 * D, "patch_size": 8,
        "tubelet_size": 1, "img_size": 24, "n_frames": 4, "attn_mode": "block_causal",
        "cls_token": True, "rope_freq_layout": "tiled", "rope_interpolate": False,
    }  # fmt: skip
    assert bundle.get("jepa.enc.ln_eps") == pytest.approx(1e-6)
    assert bundle.get("jepa.modality") == "video" and bundle.get("jepa.pred.kind") is None


def test_bare_weights_with_settings(tmp_path):
    torch.save({"state_dict": {f"module.{n}": t for n, t in weights().items()}}, tmp_path / "w.pt")
    out = tmp_path / "out.gguf"
    settings = [*RECIPE, "n_head=2", "img_size=24", "n_frames=4", "attn_mode=block_causal"]
    settings = [s if "." in s else f"enc.{s}" for s in settings]
    more = [part for s in settings for part in ("--set", s)]
    main(["--family", "levjepa", "--src", str(tmp_path / "w.pt"), "--out", str(out), *more])
    assert difference(encode(load(out, CPU), "native"), ARRAYS["native"]) < RELATIVE


def test_the_published_size_says_everything():
    D, layers, ffn = 1024, 24, 4096
    shapes = {"enc.patch_embed.weight": (D, 3, 1, 16, 16), "enc.patch_embed.bias": (D,)}
    shapes |= {"enc.cls_token": (D,), "enc.norm.weight": (D,), "enc.norm.bias": (D,)}
    for i in range(layers):
        for name, size in (
            ("ln1", (D,)), ("attn_qkv", (3 * D, D)), ("attn_out", (D, D)), ("ln2", (D,)),
            ("ffn_up", (ffn, D)), ("ffn_down", (D, ffn)),
        ):  # fmt: skip
            shapes |= {f"enc.blk.{i}.{name}.weight": size, f"enc.blk.{i}.{name}.bias": size[:1]}
    assert len(shapes) == 293
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    meta = levjepa.encoder_meta(tensors, {}, {})
    names = ("n_head", "img_size", "n_frames", "attn_mode")
    assert [meta[f"jepa.enc.{n}"] for n in names] == [16, 224, 16, "block_causal"]
    general = {
        "general.architecture": "jepa", "jepa.schema_version": 1, "jepa.family": "levjepa",
    }  # fmt: skip
    checked, faults = check_meta({**general, **meta})
    assert not faults
    assert not tensor_faults(checked, {name: tuple(t.shape) for name, t in tensors.items()})[1]
    assert levjepa.pixel_recipe(meta) == {
        "jepa.pre.mean": (0.485, 0.456, 0.406), "jepa.pre.std": (0.229, 0.224, 0.225),
        "jepa.pre.resize_short": 224, "jepa.pre.crop": 224, "jepa.pre.resample": "bicubic",
        "jepa.pre.resize_mode": "shortest_edge",
    }  # fmt: skip


PROCESSOR = {
    "image_processor_type": "BitImageProcessor", "do_center_crop": True, "resample": 2,
    "crop_size": {"height": 24, "width": 24}, "size": {"shortest_edge": 28},
    "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "rescale_factor": 1 / 255,
}  # fmt: skip


def test_a_published_size_needs_no_settings(tmp_path, to_bundle, monkeypatch):
    """Were this the published size: weights alone are enough, and what lies beside them wins."""
    large = levjepa.PUBLISHED[1024, 24, 4096, 16, 1]
    small = large | {"jepa.enc.n_head": 2, "jepa.enc.img_size": 24, "jepa.enc.n_frames": 4}
    monkeypatch.setitem(levjepa.PUBLISHED, (D, 2, 2 * D, 8, 1), small)
    bundle = to_bundle(weights(), None, recipe=())
    assert (bundle.get("jepa.pre.crop"), bundle.get("jepa.pre.resample")) == (24, "bicubic")
    assert difference(encode(load(bundle, CPU), "native"), ARRAYS["native"]) < RELATIVE
    write(tmp_path, weights(), CONFIG | {"attn_mode": "full"})
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    convert("levjepa", tmp_path, tmp_path / "out.gguf", "f32", {"jepa.pre.crop": 20})
    bundle = Bundle.open(tmp_path / "out.gguf")
    found = [bundle.get(f"jepa.pre.{key}") for key in ("resize_short", "crop", "resample")]
    assert found == [28, 20, "bilinear"] and bundle.get("jepa.enc.attn_mode") == "full"


# refusals


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"use_rope": False}, "not representable: use_rope false"),
        ({"qkv_bias": False}, "not representable: qkv_bias false"),
        ({"model_type": "vjepa2"}, r"model_type 'vjepa2' \(wanted 'levjepa'\)"),
        ({"attn_mode": "causal"}, "attn_mode .*causal"),
        ({"depth": 3}, r"jepa\.enc\.n_layer is 2 by the tensors, but 3 is stated"),
        ({"mlp_ratio": 4}, r"jepa\.enc\.ffn_dim is 80 by the tensors, but 160 is stated"),
        ({"tubelet_size": 2}, r"jepa\.enc\.tubelet_size is 1 by the tensors, but 2"),
        ({"num_heads": None}, r"give with --set: jepa\.enc\.n_head="),
        ({"attn_mode": None}, r"give with --set: jepa\.enc\.attn_mode="),
    ],
)
def test_a_config_that_cannot_be_is_refused(to_bundle, change, match):
    with pytest.raises(ConversionError, match=match):
        to_bundle(weights(), CONFIG | change)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"cls_token": None}, r"1 missing: enc\.cls_token \(from cls_token\)"),
        ({"blocks.1.attn.proj.bias": None}, r"enc\.blk\.1\.attn_out\.bias"),
        ({"pos_embed": torch.ones(1, 37, D)}, "positions are a table .*left over: pos_embed"),
        ({"blocks.0.mlp.fc3.weight": torch.ones(2, 2)}, "SwiGLU"),
        ({"projector.net.0.weight": torch.ones(2, 2)}, r"left over: projector\.net\.0\.weight"),
    ],
)
def test_tensors_that_do_not_fit_are_named(to_bundle, change, match):
    tensors = {n: t for n, t in (weights() | change).items() if t is not None}
    with pytest.raises(ConversionError, match=match):
        to_bundle(tensors, CONFIG)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (CONFIG, "jepa.pre.std= (0.229,0.224,0.225 for"),
        (None, "jepa.enc.n_head=, jepa.enc.img_size=, jepa.enc.n_frames=, jepa.enc.attn_mode="),
    ],
)
def test_what_nobody_says_is_asked_for_in_one_line(tmp_path, capsys, config, named):
    write(tmp_path, weights(), config)
    out = tmp_path / "out.gguf"
    with pytest.raises(SystemExit) as stop:
        command(lambda: main(["--family", "levjepa", "--src", str(tmp_path), "--out", str(out)]))
    lines = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code and not out.exists() and len(lines) == 1, lines
    assert named in lines[0]
