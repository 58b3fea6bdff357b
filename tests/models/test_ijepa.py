"""The ijepa family against its authors' code, and its own quirks."""

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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_smaller_dtypes_keep_the_direction(to_model, dtype):
    _, bundle = to_model()
    model = load(bundle, CPU, dtype)
    (context,), (target,) = ids_of("one_one")
    pixels = ARRAYS["all/pixels"].float()
    found = model.predict(pixels, context, target).target
    wanted = ((ARRAYS["all/tokens"], model.encode(pixels)), (ARRAYS["one_one/predicted"], found))
    for exact, near in wanted:
        worst = torch.cosine_similarity(near.mean(1), exact.mean(1), -1).min().item()
        assert worst >= 0.999, f"cosine {worst:.6f}"


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
