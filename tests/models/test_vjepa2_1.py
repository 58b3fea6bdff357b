"""The vjepa2_1 family against its authors' code, its quirks one by one, its sources."""

from functools import cache

import pytest
import torch
from drawn import difference, draw, draw_weights, read
from safetensors.torch import save_file
from vjepa2_1_cases import CLIPS, CONTEXT, KEPT, LEVELS, PREDICTIONS, TARGETS, D

from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.rules import check_meta
from jepa_wm.bundle.templates import tensor_faults
from jepa_wm.convert import Reading, convert, main, parse_settings
from jepa_wm.errors import BundleError, ConversionError
from jepa_wm.models import load, vjepa2_1
from jepa_wm.runtime import command

AS_IT_IS = Reading()
CPU = torch.device("cpu")
RELATIVE = 1e-5
LAYOUTS, ARRAYS = read("vjepa2_1.npz")
RECIPE = [
    "pre.mean=0.5,0.5,0.5", "pre.std=0.5,0.5,0.5", "pre.resize_short=73", "pre.crop=64",
    "pre.resample=bilinear", "pre.resize_mode=shortest_edge",
]  # fmt: skip
HEADS = ["enc.n_head=2", "pred.n_head=2"]
CLIP = ["enc.img_size=64", "enc.n_frames=4"]


@cache
def weights(name):
    return draw_weights(LAYOUTS[name], name)


def wrapped(tensors, prefix):
    return {prefix + name: tensor for name, tensor in tensors.items()}


def checkpoint(encoder="encoder", predictor="one", entry="ema_encoder"):
    """The authors' file: the encoder to use beside a student, and what training left behind."""
    student = {name: tensor + 1 for name, tensor in weights(encoder).items()}
    return {
        "encoder": wrapped(student, "module.backbone."),
        entry: wrapped(weights(encoder), "module.backbone."),
        "predictor": wrapped(weights(predictor), "module."),
        "opt": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 1e-3}]},
        "epoch": 3, "loss": 0.5, "batch_size": 8, "world_size": 2, "lr": 1e-4, "scaler": None,
    }  # fmt: skip


@pytest.fixture(scope="module")
def to_bundle(tmp_path_factory):
    """Save a checkpoint and convert it; later settings win over the ones given here."""

    def run(source, *settings, reading=AS_IT_IS, file_type="f32"):
        folder = tmp_path_factory.mktemp("vjepa2_1")
        path = folder / "checkpoint.pt"
        torch.save(source, path)
        given = parse_settings([*RECIPE, *HEADS, *CLIP, *settings])
        convert("vjepa2_1", path, folder / "model.gguf", file_type, given, reading)
        return Bundle.open(folder / "model.gguf")

    return run


@pytest.fixture(scope="module")
def models(to_bundle):
    """Encoder and predictor of each kind: ``one`` level in, ``four`` levels in, and patch 14."""
    sources = {
        "one": to_bundle(checkpoint()),
        "four": to_bundle(checkpoint(predictor="four", entry="target_encoder")),
        "patch14": to_bundle(checkpoint("patch14"), "enc.img_size=56", "pre.crop=56"),
    }
    return {name: load(bundle, CPU) for name, bundle in sources.items()}


def encode(model, case, **options):
    return model.encode(draw(case, CLIPS[case][1]), **options)


def predict(model, case, kind=None, index=None):
    which, of, token = PREDICTIONS[case]
    seen = draw(case, (1, len(CONTEXT), (1 if which == "one" else 4) * D))
    ids = torch.tensor(CONTEXT), torch.tensor(TARGETS[of])
    token = token if index is None else index
    return model.pred(seen, *ids, mask_index=token, is_image=(kind or of) == "image")


# parity


@pytest.mark.parametrize("case", CLIPS)
def test_clips_and_pictures_of_every_size(models, case):
    """Patch 16 and 14, grids and lengths other than the trained ones, an odd last frame."""
    model = models["patch14" if CLIPS[case][0] == "patch14" else "one"]
    tokens = encode(model, case)
    assert difference(tokens, ARRAYS[case]) < RELATIVE
    pooled = model.embed_pixels(draw(case, CLIPS[case][1]))
    assert difference(pooled, ARRAYS[case].mean(1)) < RELATIVE


def test_levels_of_which_the_last_is_the_plain_output(models):
    pixels = draw("levels", LEVELS)
    levels = models["four"].encode(pixels, levels=True)
    assert difference(levels, ARRAYS["levels"]) < RELATIVE
    assert torch.equal(levels[..., -D:], models["four"].encode(pixels))


def test_a_context_subset_keeps_its_positions(models):
    clip = draw("kept", CLIPS["native"][1])
    tokens = models["one"].encode(clip, torch.tensor(KEPT))
    assert difference(tokens, ARRAYS["kept"]) < RELATIVE
    moved = models["one"].encode(clip, torch.tensor(KEPT).add(1))
    assert difference(moved, ARRAYS["kept"]) > 0.1


@pytest.mark.parametrize("case", PREDICTIONS)
def test_predictions_of_targets_and_context(models, case):
    found = predict(models[PREDICTIONS[case][0]], case)
    assert difference(found.target, ARRAYS[f"{case}/target"]) < RELATIVE
    assert difference(found.context, ARRAYS[f"{case}/context"]) < RELATIVE


@pytest.mark.parametrize("kind", ["one", "four"])
@pytest.mark.parametrize("frames", [1, 4])
def test_predicting_joins_the_encoder_and_the_predictor(models, kind, frames):
    """Four levels go in where the predictor takes them; one frame is a picture."""
    model, pixels = models[kind], draw("joined", (2, frames, 3, 64, 64))
    seen, wanted = torch.tensor([0, 5, 7]), torch.tensor([9, 2])
    found = model.predict(pixels, seen, wanted, mask_index=0)
    z = model.encode(pixels, seen, levels=kind == "four")
    with torch.inference_mode():
        direct = model.pred(z, seen, wanted, mask_index=0, is_image=frames == 1)
    assert torch.equal(found.target, direct.target)
    assert torch.equal(found.context, direct.context)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_direction(to_bundle, dtype):
    model = load(to_bundle(checkpoint()), CPU, dtype)
    for case in ("native", "picture"):
        pooled = model.embed_pixels(draw(case, CLIPS[case][1]))
        cosine = torch.cosine_similarity(pooled, ARRAYS[case].mean(1)).min().item()
        assert cosine >= 0.999, f"{dtype} {case}: {cosine:.5f}"


# quirks: the wrong variant is far from the authors' numbers


@pytest.mark.parametrize(
    "wrong",
    [
        "enc.rope_freq_layout=tiled",
        "enc.rope_interpolate=false",
        "enc.rope_ref_grid=18",
        "enc.rope_theta=1000",
        "enc.ln_eps=1e-5",
        "enc.ln_eps=1e-12",
        "enc.act=gelu_tanh",
        "enc.n_head=1",
    ],
)
def test_a_wrong_encoder_is_noticed(to_bundle, wrong):
    error = difference(
        encode(load(to_bundle(checkpoint(), wrong), CPU), "native"), ARRAYS["native"]
    )
    assert error > 10 * RELATIVE, f"{wrong}: {error:.2g}"


@pytest.mark.parametrize(
    "wrong",
    [
        ("pred.rope_freq_layout=tiled",),
        ("pred.rope_interpolate=true", "pred.rope_ref_grid=16"),  # as in training
        ("pred.grid_size=5",),
        ("pred.n_head=1",),
        ("pred.act=gelu_tanh",),
    ],
)
def test_a_wrong_predictor_is_noticed(to_bundle, wrong):
    case = "four, token 0"
    bundle = to_bundle(checkpoint(predictor="four", entry="target_encoder"), *wrong)
    error = difference(predict(load(bundle, CPU), case).target, ARRAYS[f"{case}/target"])
    assert error > 10 * RELATIVE, f"{wrong}: {error:.2g}"


def test_the_mask_token_counts_and_wraps(models):
    case, n = "one, token 1", 3
    for index in range(-1, 6):
        error = difference(
            predict(models["one"], case, index=index).target, ARRAYS[f"{case}/target"]
        )
        assert error < RELATIVE if index % n == 1 else error > 1e-3, f"{index}: {error:.2g}"


@pytest.mark.parametrize("case", ["one, picture", "one, token 1"])
def test_the_modality_counts_in_the_predictor(models, case):
    other = "video" if PREDICTIONS[case][1] == "image" else "image"
    error = difference(predict(models["one"], case, kind=other).target, ARRAYS[f"{case}/target"])
    assert error > 1e-4, f"{error:.2g}"


def test_a_picture_shown_as_two_frames_is_a_clip(models):
    still = draw("picture", CLIPS["picture"][1])
    assert difference(models["one"].encode(still.repeat(1, 2, 1, 1, 1)), ARRAYS["picture"]) > 0.01


@pytest.mark.parametrize("part", ["video_mod_embed", "img_mod_embed", "patch_embed_img.proj.bias"])
def test_every_vector_of_a_modality_is_used(to_bundle, part):
    source = checkpoint()
    source["ema_encoder"][f"module.backbone.{part}"] = 3 * weights("encoder")[part]
    model = load(to_bundle(source), CPU)
    changed, same = ("native", "picture") if part.startswith("video") else ("picture", "native")
    assert difference(encode(model, same), ARRAYS[same]) < RELATIVE
    assert difference(encode(model, changed), ARRAYS[changed]) > 1e-3


def test_levels_are_read_where_the_depth_says(to_bundle):
    wrong = load(to_bundle(checkpoint(), "enc.hier_layers=2,5,9,11"), CPU)
    levels = wrong.encode(draw("levels", LEVELS), levels=True)
    assert difference(levels[..., : 2 * D], ARRAYS["levels"][..., : 2 * D]) < RELATIVE
    assert difference(levels[..., 2 * D : 3 * D], ARRAYS["levels"][..., 2 * D : 3 * D]) > 0.01


def test_a_grid_of_one_row_is_defined(models):
    """The authors divide 0 by 0 there; our only row is at 0, wherever the grid ends."""
    assert models["one"].encode(draw("row", (1, 2, 3, 16, 64))).isfinite().all()


# sources


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
