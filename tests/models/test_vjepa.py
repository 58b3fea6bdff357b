"""The vjepa family against its authors' code, and its own quirks."""

import pytest
import torch
from drawn import difference
from lewm_reference import unpack
from table_reference import (
    QUIRKS_OF_BLOCKS,
    QUIRKS_OF_CONTEXTS,
    QUIRKS_OF_PREDICTIONS,
    QUIRKS_OF_TABLES,
    Reference,
)

from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import Reading, convert, main
from jepa_wm.errors import BundleError, ConversionError
from jepa_wm.models import load

CPU = torch.device("cpu")
RELATIVE = 1e-5
FAR = 5 * RELATIVE
WEIGHTS, ARRAYS = unpack("vjepa.npz")
GIVEN = {"jepa.enc.n_head": 2, "jepa.enc.n_frames": 6}
STORED = (3, 3, 3)
CLIPS = ("native", "shorter", "longer", "wide", "tall_odd")


def checkpoint(wrapper="module.backbone."):
    """The authors' training checkpoint; its two encoders differ."""
    parts = {"encoder": {}, "predictor": {}}
    for name, tensor in WEIGHTS.items():
        part, _, rest = name.partition(".")
        parts[part][wrapper + rest] = tensor
    student = {name: tensor * 1.5 for name, tensor in parts["encoder"].items()}
    return {
        "encoder": student, "predictor": parts["predictor"], "target_encoder": parts["encoder"],
        "opt": {"state": {0: {"exp_avg": torch.ones(3)}}}, "epoch": 3, "loss": 0.5,
    }  # fmt: skip


def changed(part, extra=None, drop=()):
    value = checkpoint("")
    kept = {n: t for n, t in value[part].items() if n not in drop}
    return value | {part: kept | (extra or {})}


@pytest.fixture
def to_model(tmp_path):
    """Save the authors' checkpoint, convert it, load the bundle."""

    def run(value=None, given=GIVEN, entry=None):
        path = tmp_path / f"model{len(list(tmp_path.iterdir()))}.pth.tar"
        torch.save(checkpoint() if value is None else value, path)
        out = path.with_suffix(".gguf")
        convert("vjepa", path, out, "f32", given, Reading(entry=entry))
        return load(out, CPU), Bundle.open(out)

    return run


def pair(i):
    """Ids and numbers of one mask configuration."""
    names = ("context_ids", "target_ids", "z", "predicted")
    context, target, z, predicted = (ARRAYS[f"pair{i}/{name}"] for name in names)
    return context.long(), target.long(), z, predicted


# the authors' code


@pytest.mark.parametrize("case", CLIPS)
def test_the_authors_tokens(to_model, case):
    model, bundle = to_model()
    assert bundle.modality == "video" and bundle.get("jepa.enc.img_size") == 6
    pixels, wanted = ARRAYS[f"{case}/pixels"].float(), ARRAYS[f"{case}/tokens"]
    assert difference(model.encode(pixels), wanted) < RELATIVE
    assert difference(model.embed_pixels(pixels), wanted.mean(1)) < RELATIVE


@pytest.mark.parametrize("i", [0, 1])
def test_the_authors_predictions(to_model, i):
    """Mask configuration i is predicted with mask token i."""
    model, _ = to_model()
    context, target, z, predicted = pair(i)
    pixels = ARRAYS["native/pixels"].float()
    assert difference(model.encode(pixels, context), z) < RELATIVE
    found = model.predict(pixels, context, target, mask_index=i)
    assert difference(found.target, predicted) < RELATIVE and found.context is None
    wrong = model.predict(pixels, context, target, mask_index=1 - i).target
    assert difference(wrong, predicted) > FAR
    again = model.predict(pixels, context, target, mask_index=i + 2).target
    assert torch.equal(again, found.target)  # modulo their number


def test_the_second_mask_token_is_the_default(to_model):
    model, _ = to_model()
    context, target, z, _ = pair(0)
    found = model.predict(ARRAYS["native/pixels"].float(), context, target).target
    assert difference(found, ARRAYS["alone/predicted"]) < RELATIVE
    assert difference(model.pred(z, context, target).target, ARRAYS["alone/predicted"]) < RELATIVE


@pytest.mark.parametrize("quirk", ["", *QUIRKS_OF_BLOCKS, *QUIRKS_OF_CONTEXTS])
def test_each_quirk_of_the_encoder_shows_in_the_authors_numbers(quirk):
    context, _, wanted, _ = pair(0)
    reference = Reference(WEIGHTS, 2, STORED, quirk)
    error = difference(reference.encode(ARRAYS["native/pixels"], context).float(), wanted)
    assert error > FAR if quirk else error < RELATIVE, f"{quirk or 'all kept'}: {error:.2g}"


@pytest.mark.parametrize("case", ["shorter", "longer", "wide", "tall_odd"])
@pytest.mark.parametrize("quirk", ["", *QUIRKS_OF_TABLES])
def test_each_quirk_of_resampling_shows_in_the_authors_numbers(quirk, case):
    pixels, wanted = ARRAYS[f"{case}/pixels"], ARRAYS[f"{case}/tokens"]
    error = difference(Reference(WEIGHTS, 2, STORED, quirk).encode(pixels).float(), wanted)
    if quirk == "resampled in time" and pixels.shape[1] == 6:
        quirk = ""  # as many slots as stored
    assert error > FAR if quirk else error < RELATIVE, f"{quirk or 'all kept'}: {error:.2g}"


@pytest.mark.parametrize("quirk", ["", *QUIRKS_OF_BLOCKS, *QUIRKS_OF_PREDICTIONS])
def test_each_quirk_of_the_predictor_shows_in_the_authors_numbers(quirk):
    context, target, z, wanted = pair(0)
    reference = Reference(WEIGHTS, 2, STORED, quirk)
    error = difference(reference.predict(z, context, target, "mask_tokens.0").float(), wanted)
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
    model, bundle = to_model(given={**GIVEN, "jepa.pred.n_head": 2, key: value})
    assert bundle.get(key) == pytest.approx(value)
    context, target, z, predicted = pair(0)
    if key.startswith("jepa.enc."):
        found, wanted = model.encode(ARRAYS["native/pixels"].float(), context), z
    else:
        found, wanted = model.pred(z, context, target, mask_index=0).target, predicted
    assert difference(found, wanted) > FAR


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_smaller_dtypes_keep_the_direction(to_model, dtype):
    _, bundle = to_model()
    model = load(bundle, CPU, dtype)
    context, target, _, predicted = pair(0)
    pixels = ARRAYS["native/pixels"].float()
    found = model.predict(pixels, context, target, mask_index=0).target
    for near, exact in ((model.encode(pixels), ARRAYS["native/tokens"]), (found, predicted)):
        worst = torch.cosine_similarity(near.mean(1), exact.mean(1), -1).min().item()
        assert worst >= 0.999, f"cosine {worst:.6f}"


def test_a_still_picture_is_a_clip_of_it(to_model):
    model, _ = to_model()
    still = torch.randint(0, 256, (9, 7, 3), dtype=torch.uint8)
    repeated = model.embed(still.expand(6, 9, 7, 3))
    assert model.still_frames == 6 and torch.equal(model.embed(still), repeated)


def test_tables_and_mask_tokens_are_stored_as_they_are(to_model):
    _, bundle = to_model()
    assert torch.equal(bundle.tensor("enc.pos_embed"), WEIGHTS["encoder.pos_embed"][0])
    table = WEIGHTS["predictor.predictor_pos_embed"][0]
    assert torch.equal(bundle.tensor("pred.pos_embed"), table)
    tokens = [WEIGHTS[f"predictor.mask_tokens.{j}"].flatten() for j in (0, 1)]
    assert torch.equal(bundle.tensor("pred.mask_tokens"), torch.stack(tokens))


# conversion


@pytest.mark.parametrize("wrapper", ["", "module.", "module.backbone."])
@pytest.mark.parametrize("entry", [None, "encoder", "target_encoder"])
def test_entries_and_wrappers(to_model, wrapper, entry):
    model, bundle = to_model(checkpoint(wrapper), entry=entry)
    assert bundle.get("jepa_wm.source.entry") == (entry or "target_encoder")
    factor = 1.5 if entry == "encoder" else 1
    wanted = WEIGHTS["encoder.blocks.1.attn.proj.weight"] * factor
    assert torch.equal(bundle.tensor("enc.blk.1.attn_out.weight"), wanted)
    assert model.pred is not None


@pytest.mark.parametrize("known", ["jepa.enc.n_frames", "jepa.enc.img_size"])
def test_frames_and_picture_size_follow_from_each_other(to_model, known):
    given = {"jepa.enc.n_head": 2, known: 6}
    _, bundle = to_model(given=given)
    assert (bundle.get("jepa.enc.n_frames"), bundle.get("jepa.enc.img_size")) == (6, 6)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({}, r"--set: jepa\.enc\.n_head=, jepa\.enc\.n_frames=, jepa\.enc\.img_size="),
        ({"jepa.enc.n_head": 2, "jepa.enc.n_frames": 1}, r"--set: jepa\.enc\.img_size="),
        ({"jepa.enc.n_head": 2, "jepa.enc.n_frames": 4}, "no square grid in 2 time slots"),
        ({"jepa.enc.n_head": 2, "jepa.enc.img_size": 8}, "27 rows, but jepa.enc.img_size 8"),
        ({"jepa.enc.n_head": 2, "jepa.enc.img_size": 1}, r"--set: jepa\.enc\.n_frames="),
        ({**GIVEN, "jepa.enc.tubelet_size": 1}, "tubelet_size is 2 by the tensors, but 1 is"),
        ({**GIVEN, "jepa.pred.n_mask_tokens": 3}, "n_mask_tokens is 2 by the tensors"),
    ],
)
def test_sizes_that_contradict_the_tensors_are_refused(to_model, given, match):
    with pytest.raises(ConversionError, match=match):
        to_model(given=given)


FC3 = {"blocks.0.mlp.fc3.weight": torch.ones(2, 2)}
KERNEL = {"patch_embed.proj.weight": torch.ones(16, 3, 2, 2)}
TOKENS = ("mask_tokens.0", "mask_tokens.1")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (changed("target_encoder", {"cls_token": torch.ones(1, 1, 16)}), "there is a CLS token"),
        (changed("target_encoder", FC3), "SwiGLU"),
        (changed("target_encoder", {"stranger": torch.ones(2)}), "1 left over: stranger"),
        (changed("target_encoder", KERNEL), "patch embedding is that of images"),
        (changed("target_encoder", drop=["pos_embed"]), r"1 missing: enc.pos_embed"),
        (changed("predictor", drop=TOKENS), "missing: predictor: pred.mask_tokens"),
        (changed("predictor", drop=TOKENS[:1]), "left over: predictor: mask_tokens.1"),
        (changed("predictor", {"mask_tokens.3": torch.ones(1, 1, 12)}), "mask_tokens.3"),
        (changed("predictor", {"mask_tokens.0": torch.ones(1)}), "mask tokens are 1, 12 wide"),
        (changed("predictor", {"predictor_norm.weight": torch.tensor(1.0)}), "a single number"),
        (
            changed("target_encoder", {"patch_embed.proj.weight": torch.ones(16, 3, 2, 0, 0)}),
            "is not a convolution",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(to_model, value, match):
    with pytest.raises(ConversionError, match=match):
        to_model(value)


def test_a_predictor_of_another_width_is_refused(to_model):
    wrong = {"predictor_proj.weight": torch.ones(16, 11)}
    with pytest.raises(BundleError, match=r"pred\.proj\.weight has shape \[16, 11\], expected"):
        to_model(changed("predictor", wrong))


def test_the_command_line(tmp_path, capsys):
    path, out = tmp_path / "model.pth.tar", tmp_path / "model.gguf"
    torch.save(checkpoint(), path)
    arguments = ["--family", "vjepa", "--src", str(path), "--out", str(out)]
    main([*arguments, "--set", "enc.n_head=2", "--set", "enc.n_frames=6", "--ftype", "f16"])
    assert "matched 62/62 required source tensors" in capsys.readouterr().out
    assert load(out, CPU).embed(torch.zeros(9, 7, 3, dtype=torch.uint8)).shape == (16,)
