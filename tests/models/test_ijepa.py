"""The ijepa family against its authors' code and transformers, and its own quirks."""

import json
import subprocess
import sys

import pytest
import torch
from drawn import difference
from lewm_reference import unpack
from table_reference import (
    QUIRKS_OF_BLOCKS,
    QUIRKS_OF_CONTEXTS,
    QUIRKS_OF_PREDICTIONS,
    Reference,
)

from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import Reading, convert, main
from jepa_wm.errors import ConversionError
from jepa_wm.models import load

CPU = torch.device("cpu")
RELATIVE = 1e-5
FAR = 5 * RELATIVE
WEIGHTS, ARRAYS = unpack("ijepa.npz")
HEADS = {"jepa.enc.n_head": 2}
BLOCKS = ("one_one", "one_four", "two_three")
GRIDS = [(4, 4), (2, 8), (6, 5), (3, 2)]  # native, as many patches, more, fewer
PATCH = 4


def checkpoint(wrapper="module."):
    """The authors' training checkpoint; its two encoders differ."""
    parts = {"encoder": {}, "predictor": {}}
    for name, tensor in WEIGHTS.items():
        part, _, rest = name.partition(".")
        parts[part][wrapper + rest] = tensor
    target = {name: tensor * 1.5 for name, tensor in parts["encoder"].items()}
    return {
        **parts, "target_encoder": target, "epoch": 3, "lr": 0.1, "scaler": None,
        "opt": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1}]},
    }  # fmt: skip


@pytest.fixture
def to_model(tmp_path):
    """Save the authors' checkpoint, convert it, load the bundle."""

    def run(value=None, given=HEADS, entry=None):
        path = tmp_path / f"model{len(list(tmp_path.iterdir()))}.pth.tar"
        torch.save(checkpoint() if value is None else value, path)
        out = path.with_suffix(".gguf")
        convert("ijepa", path, out, "f32", given, Reading(entry=entry))
        return load(out, CPU), Bundle.open(out)

    return run


@pytest.fixture
def from_folder(tmp_path):
    """Convert a Hugging Face folder of given weights and config, load the bundle."""

    def run(weights, config, given=None, processor=True):
        from safetensors.torch import save_file

        folder = tmp_path / f"source{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        save_file({n: t.contiguous() for n, t in weights.items()}, folder / "model.safetensors")
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        if processor:
            (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
        out = folder / "model.gguf"
        convert("ijepa", folder, out, "f32", given or {})
        return load(out, CPU), Bundle.open(out)

    return run


PROCESSOR = {
    "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_normalize": True,
    "size": {"height": 16, "width": 16}, "resample": 2, "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3, "rescale_factor": 1 / 255,
}  # fmt: skip


def ids_of(name):
    """Contexts and targets of a case, lists of int64 [B,K]."""
    return [list(ARRAYS[f"{name}/{kind}"].long()) for kind in ("contexts", "targets")]


def latents(z, contexts):
    """Latents as the authors return them: context blocks one after the other."""
    return list(z.reshape(len(contexts), -1, *z.shape[1:]))


# the authors' code


def test_the_authors_tokens(to_model):
    model, bundle = to_model()
    assert bundle.get("jepa.enc.ln_eps") == pytest.approx(1e-6) and bundle.modality == "image"
    pixels = ARRAYS["all/pixels"].float()
    tokens = model.encode(pixels)
    assert difference(tokens, ARRAYS["all/tokens"]) < RELATIVE
    assert difference(model.embed_pixels(pixels), ARRAYS["all/tokens"].mean(1)) < RELATIVE


@pytest.mark.parametrize("case", BLOCKS)
def test_the_authors_predictions(to_model, case):
    """Contexts are encoded alone; rows come target block first, then context, then image."""
    model, bundle = to_model()
    assert bundle.get("jepa.pred.n_head") == 2 and bundle.get("jepa.pred.n_mask_tokens") == 1
    contexts, targets = ids_of(case)
    pixels = ARRAYS["all/pixels"].float()
    z = [model.encode(pixels, ids) for ids in contexts]
    assert difference(torch.cat(z), ARRAYS[f"{case}/z"]) < RELATIVE
    predicted = model.pred.predict_blocks(z, contexts, targets)
    assert difference(predicted, ARRAYS[f"{case}/predicted"]) < RELATIVE
    first = model.predict(pixels, contexts[0], targets[0]).target
    assert difference(first, ARRAYS[f"{case}/predicted"][:2]) < RELATIVE


def test_the_order_of_block_predictions_shows(to_model):
    """Contexts outermost would be another order."""
    model, _ = to_model()
    contexts, targets = ids_of("two_three")
    z = latents(ARRAYS["two_three/z"], contexts)
    rows = model.pred.predict_blocks(z, contexts, targets).unflatten(0, (3, 2, 2))
    assert difference(rows.transpose(0, 1).flatten(0, 2), ARRAYS["two_three/predicted"]) > FAR


@pytest.mark.parametrize("quirk", ["", *QUIRKS_OF_BLOCKS, *QUIRKS_OF_CONTEXTS])
def test_each_quirk_of_the_encoder_shows_in_the_authors_numbers(quirk):
    reference = Reference(WEIGHTS, 2, (1, 4, 4), quirk)
    contexts, _ = ids_of("one_one")
    z = reference.encode(ARRAYS["all/pixels"], contexts[0]).float()
    error = difference(z, ARRAYS["one_one/z"])
    assert error > FAR if quirk else error < RELATIVE, f"{quirk or 'all kept'}: {error:.2g}"


@pytest.mark.parametrize("quirk", ["", *QUIRKS_OF_BLOCKS, *QUIRKS_OF_PREDICTIONS])
def test_each_quirk_of_the_predictor_shows_in_the_authors_numbers(quirk):
    reference = Reference(WEIGHTS, 2, (1, 4, 4), quirk)
    (context,), (target,) = ids_of("one_one")
    predicted = reference.predict(ARRAYS["one_one/z"], context, target).float()
    error = difference(predicted, ARRAYS["one_one/predicted"])
    assert error > FAR if quirk else error < RELATIVE, f"{quirk or 'all kept'}: {error:.2g}"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("jepa.enc.ln_eps", 1e-12), ("jepa.enc.act", "gelu_tanh"), ("jepa.enc.n_head", 4),
        ("jepa.pred.ln_eps", 1e-12), ("jepa.pred.act", "gelu_tanh"), ("jepa.pred.n_head", 4),
    ],
)  # fmt: skip
def test_each_setting_shows_in_the_authors_numbers(to_model, key, value):
    """What the converter settles is what the authors ran."""
    model, bundle = to_model(given={**HEADS, "jepa.pred.n_head": 2, key: value})
    assert bundle.get(key) == pytest.approx(value)
    (context,), (target,) = ids_of("one_one")
    z, predicted = ARRAYS["one_one/z"], ARRAYS["one_one/predicted"]
    if key.startswith("jepa.enc."):
        assert difference(model.encode(ARRAYS["all/pixels"].float(), context), z) > FAR
    else:
        assert difference(model.pred(z, context, target).target, predicted) > FAR


def test_tables_are_stored_as_they_are(to_model):
    _, bundle = to_model()
    assert torch.equal(bundle.tensor("enc.pos_embed"), WEIGHTS["encoder.pos_embed"][0])
    stored = bundle.tensor("pred.pos_embed")
    assert torch.equal(stored, WEIGHTS["predictor.predictor_pos_embed"][0])


def test_positions_are_added_once(to_model):
    """With silent blocks and no norm, tokens are patch embedding plus table."""
    value = checkpoint()
    for name, tensor in value["encoder"].items():
        if "blocks." in name and ".norm" not in name:
            value["encoder"][name] = torch.zeros_like(tensor)
    model, _ = to_model(value)
    model.enc.norm = torch.nn.Identity()
    pixels = ARRAYS["all/pixels"].float()
    kernel, bias = (WEIGHTS[f"encoder.patch_embed.proj.{part}"] for part in ("weight", "bias"))
    patches = torch.nn.functional.conv2d(pixels, kernel, bias, stride=PATCH).flatten(2).mT
    torch.testing.assert_close(model.encode(pixels), patches + WEIGHTS["encoder.pos_embed"][0])


# transformers


def hf_model(**extra):
    transformers = pytest.importorskip("transformers")
    config = transformers.IJepaConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        image_size=16, patch_size=PATCH, layer_norm_eps=1e-6, **extra,
    )  # fmt: skip
    return faint(transformers.IJepaModel(config))


def faint(model):
    """Every parameter random; what enters the first norm is of the size of sqrt(1e-6)."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            scale = tensor.shape[-1] ** -0.5 if tensor.ndim > 1 else 0.3
            one = 1 if tensor.ndim == 1 and name.endswith("weight") else 0
            values = torch.randn(tensor.shape, generator=generator) * scale + one
            tensor.copy_(values * (3e-3 if "embeddings" in name else 1))
    return model.eval()


def pixels_for(grid):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, grid[0] * PATCH, grid[1] * PATCH, generator=generator)


def saved_weights(reference, folder):
    from safetensors.torch import load_file

    reference.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.reference
@pytest.mark.parametrize("names", ["published", "in memory"])
def test_hugging_face_models_on_every_grid(from_folder, tmp_path, names):
    reference = hf_model()
    weights = reference.state_dict()
    if names == "published":
        weights = saved_weights(reference, tmp_path / "hf")
        assert "encoder.layer.0.attention.attention.query.weight" in weights
    model, bundle = from_folder(weights, reference.config.to_dict())
    assert bundle.get("jepa.pred.kind") is None
    for grid in GRIDS:
        pixels = pixels_for(grid)
        with torch.no_grad():
            wanted = reference(pixels, interpolate_pos_encoding=True).last_hidden_state
        error = difference(model.encode(pixels), wanted)
        assert error < RELATIVE, f"{grid}: {error:.2g}"
        assert difference(model.embed_pixels(pixels), wanted.mean(1)) < RELATIVE


@pytest.mark.reference
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("jepa_wm.enc.pos_interp", "offset0.1"), ("jepa_wm.enc.pos_interp", "antialias"),
        ("jepa.enc.ln_eps", 1e-12), ("jepa.enc.act", "gelu_tanh"),
    ],
)  # fmt: skip
def test_each_setting_shows_in_transformers_numbers(from_folder, key, value):
    reference = hf_model()
    model, _ = from_folder(reference.state_dict(), reference.config.to_dict(), {key: value})
    pixels = pixels_for((3, 2))
    with torch.no_grad():
        wanted = reference(pixels, interpolate_pos_encoding=True).last_hidden_state
    assert difference(model.encode(pixels), wanted) > FAR


@pytest.mark.reference
def test_a_grid_of_as_many_patches_is_resampled_too(from_folder):
    """The authors' code would add the table as it is; transformers looks at the sides."""
    reference = hf_model()
    model, _ = from_folder(reference.state_dict(), reference.config.to_dict())
    pixels = pixels_for((2, 8))
    with torch.no_grad():
        wanted = reference(pixels, interpolate_pos_encoding=True).last_hidden_state
        kept = reference.embeddings.patch_embeddings(pixels)
        kept = kept + reference.embeddings.position_embeddings
        for block in model.enc.blk:
            kept = block(kept)
    assert difference(model.enc.norm(kept), wanted) > FAR


@pytest.mark.reference
def test_the_body_of_a_classifier(from_folder):
    transformers = pytest.importorskip("transformers")
    config = hf_model().config
    config.num_labels = 3
    reference = faint(transformers.IJepaForImageClassification(config))
    model, _ = from_folder(reference.state_dict(), config.to_dict())
    pixels = pixels_for((4, 4))
    with torch.no_grad():
        wanted = reference.ijepa(pixels).last_hidden_state
    assert difference(model.encode(pixels), wanted) < RELATIVE


@pytest.mark.reference
def test_pooler_and_mask_token_are_no_part_of_the_feature(from_folder):
    transformers = pytest.importorskip("transformers")
    config = hf_model().config
    reference = faint(transformers.IJepaModel(config, add_pooling_layer=True, use_mask_token=True))
    weights = reference.state_dict()
    assert {"pooler.dense.weight", "embeddings.mask_token"} <= weights.keys()
    model, _ = from_folder(weights, config.to_dict())
    with torch.no_grad():
        wanted = reference(pixels_for((4, 4))).last_hidden_state
    assert difference(model.encode(pixels_for((4, 4))), wanted) < RELATIVE


@pytest.mark.reference
def test_the_recipe_is_the_processors(from_folder):
    reference = hf_model()
    model, _ = from_folder(reference.state_dict(), reference.config.to_dict())
    recipe = model.preprocess
    assert (recipe.crop, recipe.resample, recipe.resize_mode) == (16, "bilinear", "squash")
    assert recipe.mean == pytest.approx((0.5, 0.5, 0.5))
    with pytest.raises(ConversionError, match=r"--set jepa\.pre\.mean="):
        from_folder(reference.state_dict(), reference.config.to_dict(), processor=False)


# conversion


@pytest.mark.parametrize("wrapper", ["", "module.", "module.backbone."])
@pytest.mark.parametrize("entry", [None, "encoder", "target_encoder"])
def test_entries_and_wrappers(to_model, wrapper, entry):
    model, bundle = to_model(checkpoint(wrapper), entry=entry)
    assert bundle.get("jepa_wm.source.entry") == (entry or "encoder")
    factor = 1.5 if entry == "target_encoder" else 1
    wanted = WEIGHTS["encoder.blocks.1.attn.proj.weight"] * factor
    assert torch.equal(bundle.tensor("enc.blk.1.attn_out.weight"), wanted)
    assert model.pred is not None


def test_an_encoder_alone_has_no_predictor(to_model):
    for value in (checkpoint()["encoder"], {"encoder": checkpoint()["encoder"]}):
        model, bundle = to_model(value)
        assert model.pred is None and bundle.get("jepa.pred.kind") is None
        with pytest.raises(ValueError, match="no masked predictor"):
            model.predict(ARRAYS["all/pixels"].float(), torch.tensor([0]), torch.tensor([1]))


def changed(part, extra=None, drop=()):
    value = checkpoint("")
    kept = {n: t for n, t in value[part].items() if n not in drop}
    return value | {part: kept | (extra or {})}


FC3 = {"blocks.0.mlp.fc3.weight": torch.ones(2, 2)}
KERNEL = {"patch_embed.proj.weight": torch.ones(16, 3, 1, 4, 4)}


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (changed("encoder", {"cls_token": torch.ones(1, 1, 16)}), "CLS token.*left over: cls_tok"),
        (changed("encoder", FC3), "SwiGLU"),
        (changed("encoder", {"stranger": torch.ones(2)}), "1 left over: stranger"),
        (changed("encoder", KERNEL), "patch embedding is that of clips"),
        (changed("encoder", {"pos_embed": torch.ones(2, 16, 16)}), r"wanted \[1,N,D\]"),
        (changed("encoder", {"pos_embed": torch.ones(1, 15, 16)}), "15 rows is no square grid"),
        (changed("encoder", drop=["norm.bias"]), r"1 missing: enc.norm.bias \(from norm.bias"),
        (changed("predictor", drop=["mask_token"]), "missing: predictor: pred.mask_tokens"),
        (changed("predictor", {"extra": torch.ones(2)}), "left over: predictor: extra"),
        (
            changed("predictor", drop=["predictor_pos_embed"]),
            "missing: predictor: pred.pos_embed",
        ),
        (
            {n: t for n, t in checkpoint("")["encoder"].items() if "blocks" not in n},
            "missing: enc.blk.0.ln1.weight",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(to_model, value, match):
    with pytest.raises(ConversionError, match=match):
        to_model(value)


def test_sizes_that_contradict_the_tensors_are_refused(to_model):
    for key, match in (("img_size", "16 rows, but .* 1 x 5 x 5"), ("ffn_dim", "32 by the tensors")):
        with pytest.raises(ConversionError, match=match):
            to_model(given={**HEADS, f"jepa.enc.{key}": 20})
    with pytest.raises(ConversionError, match=r"give with --set: jepa\.enc\.n_head="):
        to_model(given={})


@pytest.mark.reference
@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"qkv_bias": False}, "qkv_bias false"),
        ({"model_type": "vit"}, "model_type 'vit'"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"num_hidden_layers": 3}, "n_layer is 2 by the tensors, but 3 is stated"),
        ({"image_size": 20}, "16 rows, but jepa.enc.img_size 20"),
        ({"image_size": [16, 20]}, "image_size is an array of 2"),
        ({"num_attention_heads": None}, r"--set: jepa\.enc\.n_head="),
        ({"layer_norm_eps": None}, r"--set: jepa\.enc\.ln_eps="),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused(from_folder, change, match):
    reference = hf_model()
    with pytest.raises(ConversionError, match=match):
        from_folder(reference.state_dict(), reference.config.to_dict() | change)


# the command line


def test_the_command_line_converts_both_layouts(tmp_path, capsys):
    path, out = tmp_path / "model.pth.tar", tmp_path / "model.gguf"
    torch.save(checkpoint(), path)
    arguments = ["--family", "ijepa", "--src", str(path), "--out", str(out)]
    main([*arguments, "--set", "enc.n_head=2", "--ftype", "bf16"])
    assert "matched 61/61 required source tensors" in capsys.readouterr().out
    assert load(out, CPU).embed(torch.zeros(20, 24, 3, dtype=torch.uint8)).shape == (16,)


def test_a_refusal_is_one_line_and_leaves_nothing(tmp_path):
    torch.save(changed("encoder", {"stranger": torch.ones(2)}), tmp_path / "model.pth.tar")
    command = [sys.executable, "-m", "jepa_wm.convert", "--family", "ijepa", "--out", "x.gguf"]
    done = subprocess.run(
        [*command, "--src", "model.pth.tar", "--set", "enc.n_head=2"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "model.pth.tar: 61 of 62" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["model.pth.tar"]
