"""What the vjepa2_1 converter makes of a checkpoint, what it asks for and what it refuses."""

import pytest
import torch
from drawn import difference
from safetensors.torch import save_file
from vjepa2_1_cases import D
from vjepa2_1_source import (
    ARRAYS,
    CLIP,
    CPU,
    HEADS,
    RECIPE,
    RELATIVE,
    checkpoint,
    converter,
    encode,
    predict,
    weights,
    wrapped,
)

from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.rules import check_meta
from jepa_wm.bundle.templates import tensor_faults
from jepa_wm.convert import Reading, convert, main
from jepa_wm.errors import BundleError, ConversionError
from jepa_wm.models import load, vjepa2_1
from jepa_wm.runtime import command


@pytest.fixture(scope="module")
def to_bundle(tmp_path_factory):
    return converter(tmp_path_factory.mktemp)


def test_the_metadata_of_a_file(to_bundle):
    bundle = to_bundle(checkpoint())
    found = {
        key: bundle.get(f"jepa.{key}") for key in (
            "modality", "enc.embed_dim", "enc.ffn_dim", "enc.tubelet_size", "enc.rope_ref_grid",
            "enc.hier_layers", "enc.modality_embed", "enc.image_patch_embed", "pred.n_hier_in",
            "pred.out_dim", "pred.n_mask_tokens", "pred.grid_size", "pred.context_proj",
        )
    }  # fmt: skip
    assert found == {
        "modality": "image+video", "enc.embed_dim": D, "enc.ffn_dim": 2 * D,
        "enc.tubelet_size": 2, "enc.rope_ref_grid": 16, "enc.hier_layers": (2, 5, 8, 11),
        "enc.modality_embed": True, "enc.image_patch_embed": True, "pred.n_hier_in": 1,
        "pred.out_dim": 24, "pred.n_mask_tokens": 3, "pred.grid_size": 4,
        "pred.context_proj": True,
    }  # fmt: skip
    assert bundle.get("jepa.enc.ln_eps") == bundle.get("jepa.pred.ln_eps") == pytest.approx(1e-6)


@pytest.mark.parametrize("entry", ["ema_encoder", "target_encoder"])
def test_the_averaged_encoder_is_taken_and_the_student_on_demand(to_bundle, entry):
    source = checkpoint(entry=entry)
    assert to_bundle(source).get("jepa_wm.source.entry") == entry
    student = to_bundle(source, reading=Reading(entry="encoder"))
    assert student.get("jepa_wm.source.entry") == "encoder"
    assert difference(encode(load(student, CPU), "native"), ARRAYS["native"]) > 0.01


def test_an_encoder_alone(to_bundle):
    source = checkpoint()
    del source["predictor"], source["encoder"]
    model = load(to_bundle(source), CPU)
    assert model.pred is None
    assert difference(encode(model, "native"), ARRAYS["native"]) < RELATIVE


def test_a_flat_file_of_prefixed_names(tmp_path):
    flat = wrapped(weights("encoder"), "target_encoder.") | wrapped(weights("four"), "predictor.")
    save_file(flat, tmp_path / "model.safetensors")
    settings = [part for s in RECIPE + HEADS + CLIP for part in ("--set", s)]
    out = tmp_path / "out.gguf"
    main(["--family", "vjepa2_1", "--src", str(tmp_path), "--out", str(out), *settings])
    model = load(out, CPU)
    assert difference(encode(model, "native"), ARRAYS["native"]) < RELATIVE
    case = "four, picture"
    assert difference(predict(model, case).target, ARRAYS[f"{case}/target"]) < RELATIVE


def published_layout(dim, depth, ffn, levels, out):
    """Shapes of a published file, without their memory, in the bundle's names."""

    def norm(name, width=dim):
        return {f"{name}.weight": (width,), f"{name}.bias": (width,)}

    def linear(name, rows, *columns):
        return {f"{name}.weight": (rows, *columns), f"{name}.bias": (rows,)}

    def block(name, width, hidden):
        return {
            **norm(f"{name}.ln1", width), **linear(f"{name}.attn_qkv", 3 * width, width),
            **linear(f"{name}.attn_out", width, width), **norm(f"{name}.ln2", width),
            **linear(f"{name}.ffn_up", hidden, width), **linear(f"{name}.ffn_down", width, hidden),
        }  # fmt: skip

    shapes = linear("enc.patch_embed", dim, 3, 2, 16, 16)
    shapes |= linear("enc.patch_embed_img", dim, 3, 1, 16, 16)
    shapes |= {"enc.mod_embed_img": (dim,), "enc.mod_embed_video": (dim,)}
    for i in range(depth):
        shapes |= block(f"enc.blk.{i}", dim, ffn)
    for k in range(4):
        shapes |= norm(f"enc.hier_norm.{k}")
    for i in range(12 if levels == 1 else 24):
        shapes |= block(f"pred.blk.{i}", 384, 1536)
    if levels == 1:
        shapes |= linear("pred.embed", 384, dim)
    else:
        shapes |= linear("pred.embed.0", dim, 4 * dim) | linear("pred.embed.2", 384, dim)
    shapes |= {"pred.mask_tokens": (8, 384), **norm("pred.norm", 384)}
    shapes |= {"pred.mod_embed_img": (384,), "pred.mod_embed_video": (384,)}
    return shapes | linear("pred.proj", out, 384) | linear("pred.proj_context", out, 384)


@pytest.mark.parametrize(
    ("dim", "depth", "heads", "ffn", "last_levels", "levels", "out"),
    [
        (768, 12, 12, 3072, (2, 5, 8, 11), 1, 1664),
        (1024, 24, 16, 4096, (5, 11, 17, 23), 1, 1664),
        (1408, 40, 22, 6144, (9, 19, 29, 39), 4, 4 * 1408),
        (1664, 48, 26, 8192, (11, 23, 37, 47), 4, 4 * 1664),
    ],
)
def test_published_sizes_say_everything(dim, depth, heads, ffn, last_levels, levels, out):
    shapes = published_layout(dim, depth, ffn, levels, out)
    tensors = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    enc = vjepa2_1.encoder_meta(tensors, {})
    pred = vjepa2_1.predictor_meta(tensors, enc, {})
    assert enc["jepa.enc.n_head"] == heads and enc["jepa.enc.hier_layers"] == last_levels
    assert (enc["jepa.enc.img_size"], enc["jepa.enc.n_frames"]) == (384, 64)
    assert (pred["jepa.pred.n_head"], pred["jepa.pred.grid_size"]) == (12, 24)
    assert pred["jepa.pred.n_hier_in"] == levels and pred["jepa.pred.out_dim"] == out // levels
    general = {
        "general.architecture": "jepa", "jepa.schema_version": 1, "jepa.family": "vjepa2_1",
    }  # fmt: skip
    meta, faults = check_meta({**general, **enc, **pred})
    assert not faults
    assert not tensor_faults(meta, {name: tuple(t.shape) for name, t in tensors.items()})[1]
    assert vjepa2_1.pixel_recipe(enc) == {
        "jepa.pre.mean": (0.485, 0.456, 0.406), "jepa.pre.std": (0.229, 0.224, 0.225),
        "jepa.pre.resize_short": 438, "jepa.pre.crop": 384, "jepa.pre.resample": "bilinear",
        "jepa.pre.resize_mode": "shortest_edge",
    }  # fmt: skip


def test_a_published_size_needs_no_settings(tmp_path, monkeypatch):
    """Were these the published sizes: the checkpoint alone is enough."""
    monkeypatch.setitem(vjepa2_1.PUBLISHED, (D, 12, 2 * D, 16, 2), {"jepa.enc.n_head": 2})
    monkeypatch.setitem(vjepa2_1.PREDICTOR_HEADS, 44, 2)
    torch.save(checkpoint(), tmp_path / "model.pt")
    convert("vjepa2_1", tmp_path / "model.pt", tmp_path / "out.gguf", "f32", {})
    bundle = Bundle.open(tmp_path / "out.gguf")
    assert (bundle.get("jepa.pre.resize_short"), bundle.get("jepa.pre.crop")) == (438, 384)
    assert (bundle.get("jepa.pred.grid_size"), bundle.get("jepa.enc.n_frames")) == (24, 64)
    assert difference(encode(load(bundle, CPU), "native"), ARRAYS["native"]) < RELATIVE
    given = {"jepa.enc.img_size": 256}
    convert("vjepa2_1", tmp_path / "model.pt", tmp_path / "out.gguf", "f32", given)
    bundle = Bundle.open(tmp_path / "out.gguf")
    assert (bundle.get("jepa.pre.resize_short"), bundle.get("jepa.pred.grid_size")) == (292, 16)


# refusals


def without(part, name):
    def change(source):
        del source[part][name]

    return change


def replace(part, name, tensor):
    def change(source):
        source[part][name] = tensor

    return change


E = "module.backbone."


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (without("ema_encoder", E + "norms_block.2.bias"), r"enc\.hier_norm\.2\.bias"),
        (without("ema_encoder", E + "img_mod_embed"), r"enc\.mod_embed_img \(from img_mod_embed"),
        (without("ema_encoder", E + "blocks.0.norm1.weight"), r"enc\.blk\.0\.ln1\.weight"),
        (without("predictor", "module.predictor_norm.bias"), r"predictor: pred\.norm\.bias"),
        (replace("ema_encoder", E + "blocks.3.mlp.fc3.weight", torch.ones(2, 2)), "SwiGLU"),
        (replace("ema_encoder", E + "norm.weight", torch.ones(D)), "left over: norm.weight"),
        (replace("predictor", "module.cls", torch.ones(D)), "left over: predictor: cls"),
        (
            replace("ema_encoder", E + "patch_embed_img.proj.weight", torch.ones(D, 3, 1, 8, 8)),
            r"patch_embed_img\.proj\.weight: sizes \[40, 3, 1, 8\] .* wanted \[40, 3, 1, 16\]",
        ),
        (
            replace("ema_encoder", E + "patch_embed.proj.weight", torch.ones(D, 3, 2, 16, 8)),
            "is not a convolution",
        ),
    ],
)
def test_what_does_not_fit_is_named(to_bundle, change, match):
    source = checkpoint()
    change(source)
    with pytest.raises(ConversionError, match=match):
        to_bundle(source)


def test_four_levels_are_all_levels(to_bundle, tiny):
    source = checkpoint(predictor="four")
    source["predictor"]["module.predictor_embed.0.weight"] = torch.ones(D, 2 * D)
    with pytest.raises(ConversionError, match=r"takes 2 levels of 40, wanted 1 or all 4"):
        to_bundle(source)
    three = {"jepa.enc.n_layer": 3, "jepa.enc.hier_layers": [0, 1, 2]}
    with pytest.raises(BundleError, match=r"n_hier_in = 2 \(a vjepa2_1 has 1 or all 3\)"):
        load(tiny("vjepa2_1", **three), CPU)


def test_levels_and_norms_must_agree(to_bundle):
    with pytest.raises(ConversionError, match=r"4 norms_block, but .* names 2 blocks"):
        to_bundle(checkpoint(), "enc.hier_layers=5,11")


def run_command(source, tmp_path, capsys, *settings):
    torch.save(source, tmp_path / "model.pt")
    out = tmp_path / "out.gguf"
    argv = ["--family", "vjepa2_1", "--src", str(tmp_path / "model.pt"), "--out", str(out)]
    argv += [part for setting in settings for part in ("--set", setting)]
    with pytest.raises(SystemExit) as stop:
        command(lambda: main(argv))
    lines = capsys.readouterr().err.strip().splitlines()
    assert stop.value.code and not out.exists() and len(lines) == 1, lines
    return lines[0]


def test_an_unknown_size_is_asked_for_by_name(tmp_path, capsys):
    line = run_command(checkpoint(), tmp_path, capsys)
    assert "give with --set: jepa.enc.n_head=, jepa.enc.img_size=, jepa.enc.n_frames=" in line
    line = run_command(checkpoint(), tmp_path, capsys, "enc.n_head=2", *CLIP)
    assert "give with --set: jepa.pred.n_head=" in line
    line = run_command(checkpoint(), tmp_path, capsys, *HEADS, *CLIP)
    assert "jepa.pre.mean=" in line and "jepa.pre.resize_mode=" in line


def test_a_contradiction_is_told(tmp_path, capsys):
    line = run_command(checkpoint(), tmp_path, capsys, *HEADS, *CLIP, "enc.ffn_dim=64")
    assert "jepa.enc.ffn_dim is 80 by the tensors, but 64 is stated" in line


def test_another_family_is_told(tmp_path, capsys):
    source = {"encoder": {n: t for n, t in weights("encoder").items() if "norms_block" not in n}}
    line = run_command(source, tmp_path, capsys)
    assert "looked for norms_block.0.weight" in line
