"""``python -m jepa_wm.check``: every family's runtime is its specification; a wrong one shows."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import AC, TINY
from PIL import Image

from jepa_wm import check
from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import ConfigError
from jepa_wm.parity.compare import Distance, Row, distance, faults
from jepa_wm.parity.inputs import choose_clip, draw_passes

HEAD = {"jepa.head.kind": "linear_cls", "jepa.head.n_classes": 3}


def run(capsys, *arguments, code=0):
    """Run the command in this process; return what it prints."""
    status = 0
    try:
        check.main([str(argument) for argument in arguments])
    except SystemExit as error:
        status = error.code
    text = capsys.readouterr().out
    assert status == code, text
    return text


def document(capsys, *arguments, code=0):
    return json.loads(run(capsys, *arguments, "--json", code=code))


def stage_names(found, which="whole"):
    return [row["stage"] for row in found["stages"] if row["run"] == which]


# every family, on its own grid, on another, longer, shorter


@pytest.mark.parametrize("size", ["16", "12x24", "24x13"])
@pytest.mark.parametrize("family", sorted(TINY))
def test_every_family_is_its_specification(tiny, capsys, family, size):
    found = document(capsys, tiny(family), "--size", size)
    assert found["verdict"] == "equal" and not found["faults"]
    worst = max(row["runtime"]["relative"] for row in found["stages"] if "runtime" in row)
    assert 0 < worst < 1e-5
    names = stage_names(found)
    assert names[0] == "enc.patch_embed" and {"enc.blk.0", "enc.blk.1", "enc.norm"} < set(names)
    blocks = [row for row in found["stages"] if "blk" in row["stage"]]
    assert all("runtime" in row for row in blocks)


@pytest.mark.parametrize(("family", "frames"), [
    ("vjepa", 2), ("vjepa", 7), ("vjepa2", 1), ("vjepa2", 5), ("vjepa2_1", 1), ("vjepa2_1", 6),
    ("levjepa", 1), ("levjepa", 4), ("lewm", 1), ("lewm", 2),
])  # fmt: skip
def test_other_lengths(tiny, capsys, family, frames):
    found = document(capsys, tiny(family), "--frames", frames)
    assert found["verdict"] == "equal"
    assert found["pixels"][1] == frames


def test_the_parts_that_are_run(tiny, capsys):
    found = document(capsys, tiny("vjepa2"))
    assert {"head.blk.0", "head.xattn", "head", "pooled"} < set(stage_names(found))
    assert {"pred.blk.1", "pred.norm", "pred"} < set(stage_names(found, "masked"))
    found = document(capsys, tiny("vjepa2_1"))
    assert {"enc.hier_norm.0", "enc.hier_norm.1"} < set(stage_names(found))
    assert "pred.context" in stage_names(found, "masked")
    assert "enc.patch_embed_img" in stage_names(document(capsys, tiny("vjepa2_1"), "--frames", 1))
    assert "pred" in stage_names(document(capsys, tiny("lewm")))


@pytest.mark.parametrize("size", ["16", "12x24"])
def test_the_action_conditioned_predictor(tiny, capsys, size):
    keys = [k for k in TINY["vjepa2"] if k.startswith(("jepa.pred.", "jepa.head."))]
    path = tiny("vjepa2", **(dict.fromkeys(keys) | AC | {"jepa.pred.normalize_reps": True}))
    found = document(capsys, path, "--size", size)
    assert found["verdict"] == "equal" and "pred" in stage_names(found)


@pytest.mark.parametrize("family", ["ijepa", "hfvit", "levjepa"])
def test_a_linear_classifier(tiny, capsys, family):
    found = document(capsys, tiny(family, **HEAD))
    assert found["verdict"] == "equal" and "head" in stage_names(found)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_reduced_precision_is_judged_by_its_features(tiny, capsys, dtype):
    found = document(capsys, tiny("hfvit"), "--dtype", dtype)
    assert found["verdict"] == "equal"
    pooled, _ = [row["runtime"] for row in found["stages"] if row["stage"] == "pooled"]
    assert pooled["relative"] > 1e-5 and pooled["cosine"] > 0.999


# a runtime that is wrong is told apart


class Broken(torch.nn.Module):
    """A module whose output is off by a little."""

    def __init__(self, inner, by):
        super().__init__()
        self.inner, self.by = inner, by

    def forward(self, *arguments):
        return self.inner(*arguments) * (1 + self.by)


@pytest.mark.parametrize(("by", "code"), [(1e-4, 1), (1e-8, 0)])
def test_a_runtime_that_is_off_fails(tiny, capsys, monkeypatch, by, code):
    def load(*arguments):
        model = loaded(*arguments)
        model.enc.blk[1] = Broken(model.enc.blk[1], by)
        return model

    loaded = check.load
    monkeypatch.setattr(check, "load", load)
    found = document(capsys, tiny("hfvit"), code=code)
    assert found["verdict"] == ("apart" if code else "equal")
    wrong = " ".join(found["faults"])
    assert ("whole enc.blk.1" in wrong) == bool(code) and "enc.blk.0" not in wrong


def test_a_part_the_runtime_leaves_out_is_a_fault():
    near = Distance(0.0, 0.0, 1.0, 1.0)
    rows = [Row("whole", "enc.norm", (1,), near, None), Row("whole", "head", (1,), None, None)]
    assert faults(rows, "runtime", True) == ["runtime: whole head is not computed"]
    assert faults(rows, "reference", True) == ["reference: computes none of the stages"]


def test_distances():
    a = np.array([[3.0, -4.0]])
    assert distance(a, a) == Distance(0.0, 0.0, 1.0, 1.0)
    off = distance(a + np.array([0.0, 0.4]), a)
    assert off.max_abs == pytest.approx(0.4) and off.relative == pytest.approx(0.1)
    assert off.cosine == pytest.approx((9 + 14.4) / 5 / np.hypot(3, 3.6))
    tokens = distance(
        np.array([[[1.0, 0], [1, 0], [0, 1]]]), np.array([[[1.0, 0], [1, 0], [1, 0]]])
    )
    assert tokens.cosine == 1 and tokens.worst == 0  # the median, and the one that is off
    assert distance(np.zeros((1, 2)), np.zeros((1, 2))) == Distance(0.0, 0.0, 1.0, 1.0)
    assert distance(np.array([[np.nan, 1.0]]), a).relative == np.inf
    assert distance(np.zeros((1, 3)), a).relative == np.inf
    assert distance(-a, a).cosine == pytest.approx(-1)


# inputs


def test_inputs_are_small_and_of_unequal_sides_unless_told_otherwise(tiny):
    bundle = Bundle.open(tiny("levjepa", **{"jepa.enc.img_size": 64}))
    clip = choose_clip(bundle, None, None)
    assert (clip.frames, clip.height, clip.width) == (2, 16, 24)
    assert choose_clip(bundle, None, None, native=True).height == 64
    small = choose_clip(Bundle.open(tiny("levjepa")), None, None)
    assert (small.height, small.width) == (16, 16)


def test_one_grid_is_not_the_trained_one(tiny, capsys):
    """A wrong resampling is invisible on the table's own grid."""
    found = document(capsys, tiny("hfvit"))
    assert {row["run"] for row in found["stages"]} == {"whole", "other"}
    found = document(capsys, tiny("hfvit"), "--size", "12x24")
    assert {row["run"] for row in found["stages"]} == {"whole"}


def test_the_same_seed_draws_the_same(tiny):
    bundle = Bundle.open(tiny("vjepa"))
    clip = choose_clip(bundle, None, None)
    one, two, three = (draw_passes(bundle, clip, seed) for seed in (1, 1, 2))
    assert [p.name for p in one] == ["whole", "other", "masked"]
    assert np.array_equal(one[2].inputs.ids, two[2].inputs.ids)
    assert not np.array_equal(one[0].inputs.pixels, three[0].inputs.pixels)
    seen, wanted = one[2].inputs.ids, one[2].inputs.targets
    assert sorted(np.concatenate([seen, wanted], 1)[0]) == list(range(32))


@pytest.mark.parametrize(("family", "arguments", "words"), [
    ("hfvit", ["--size", "3x16"], "no patch of 4x4"),
    ("hfvit", ["--frames", "2"], "takes 1 to 1"),
    ("lewm", ["--frames", "4"], "takes 1 to 3"),
    ("levjepa", ["--frames", "0"], "--frames 0"),
    ("hfvit", ["--size", "99999x99999"], "--size 99999x99999 is over 16 Mpx"),
    ("hfvit", ["--seed", "-1"], "--seed -1: wanted at least 0"),
])  # fmt: skip
def test_impossible_inputs_are_refused(tiny, family, arguments, words):
    with pytest.raises(ConfigError, match=words):
        check.main([str(tiny(family)), *arguments])


def test_a_table_without_rows_for_all_ids_limits_the_prediction(tiny, capsys):
    """The predictors of I-JEPA and V-JEPA have positions for the training grid only."""
    assert document(capsys, tiny("ijepa"), "--size", "24x24")["verdict"] == "equal"


# the command


def test_text_says_stage_distance_and_verdict(tiny, capsys):
    path = tiny("hfvit")
    text = run(capsys, path)
    assert str(path) in text and "family hfvit" in text and "verdict: equal" in text
    (row,) = [line.split() for line in text.splitlines() if line.startswith("whole pooled")]
    assert len(row) == 6 and 0 < float(row[3]) < 1e-5 and float(row[4]) > 0.999999
    (legend,) = [line for line in text.splitlines() if line.startswith("whole: all patches")]
    assert "other: all" in legend and "masked" not in legend
    masked = run(capsys, tiny("ijepa"))
    assert "masked: hidden patches predicted from the others" in masked


def test_in_a_process_of_its_own(tiny, tmp_path):
    def command(*arguments):
        return subprocess.run(
            [sys.executable, "-m", "jepa_wm.check", *map(str, arguments)],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip

    done = command(tiny("hfvit"))
    assert done.returncode == 0 and "verdict: equal" in done.stdout and done.stderr == ""
    for arguments in (["nothing.gguf"], [tiny("hfvit"), "--against", tmp_path]):
        done = command(*arguments)
        assert done.returncode == 1 and done.stdout.count("\n") <= 1
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


# against a reference implementation


def source(folder, kind, **changes):
    """Save a tiny random transformers model; return its folder and its bundle's settings."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 4}
    if kind == "VJEPA2":
        sizes |= {
            "crop_size": 16, "frames_per_clip": 4, "pred_hidden_size": 24, "mlp_ratio": 2,
            "pred_num_attention_heads": 2, "pred_num_hidden_layers": 1,
            "pred_zero_init_mask_tokens": False,
        }  # fmt: skip
    else:
        sizes |= {"image_size": 16, "intermediate_size": 40}
    config = getattr(transformers, f"{kind}Config")(**sizes, **changes)
    name = "ForImageClassification" if "num_labels" in changes else "Model"
    getattr(transformers, f"{kind}{name}")(config).save_pretrained(folder)
    Image.new("RGB", (1, 1)).save(folder / "picture.png")  # other files do not disturb
    return folder


PIXELS = ["--set", "pre.mean=0.5,0.5,0.5", "--set", "pre.std=0.5,0.5,0.5", "--set",
          "pre.resample=bilinear", "--set", "pre.resize_mode=squash", "--set",
          "pre.resize_short=16", "--set", "pre.crop=16"]  # fmt: skip


@pytest.fixture
def converted(tmp_path):
    def write(family, folder, file_type="f32"):
        from jepa_wm import convert

        out = tmp_path / f"{family}-{file_type}.gguf"
        convert.main(["--family", family, "--src", str(folder), "--out", str(out), "--ftype",
                      file_type, *PIXELS])  # fmt: skip
        return out

    return write


@pytest.mark.reference
@pytest.mark.parametrize(("family", "kind"), [("hfvit", "ViT"), ("ijepa", "IJepa"),
                                              ("vjepa2", "VJEPA2")])  # fmt: skip
def test_against_transformers(tmp_path, capsys, converted, family, kind):
    folder = source(tmp_path / "source", kind)
    path = converted(family, folder)
    capsys.readouterr()
    found = document(capsys, path, "--against", folder)
    assert found["verdict"] == "equal"
    compared = {(row["run"], row["stage"]) for row in found["stages"] if "reference" in row}
    grids = ("whole",) if kind == "VJEPA2" else ("whole", "other")
    names = ("enc.blk.0", "enc.blk.1", "enc.norm")
    wanted = {(grid, name) for grid in grids for name in names}
    assert compared >= wanted | ({("masked", "pred")} if kind == "VJEPA2" else set())
    text = run(capsys, path, "--against", folder)
    assert "reference" in text


@pytest.mark.reference
def test_the_one_reference_that_misplaces_other_sizes(tmp_path, converted):
    folder = source(tmp_path / "source", "VJEPA2")
    with pytest.raises(ConfigError, match="a grid of 16 pixels"):
        check.main([str(converted("vjepa2", folder)), "--against", str(folder), "--size", "16x24"])


@pytest.mark.reference
def test_another_source_than_the_files_is_told_apart(tmp_path, capsys, converted):
    path = converted("hfvit", source(tmp_path / "one", "ViT"))
    other = source(tmp_path / "two", "ViT", layer_norm_eps=1e-2)
    capsys.readouterr()
    found = document(capsys, path, "--against", other, code=1)
    assert any(fault.startswith("reference: whole enc.norm") for fault in found["faults"])
    assert not any(fault.startswith("runtime") for fault in found["faults"])


@pytest.mark.reference
def test_a_source_of_another_model_is_refused_before_anything_is_compared(
    tiny, tmp_path, capsys, converted
):
    path = converted("hfvit", source(tmp_path / "one", "ViT"))
    other = source(tmp_path / "two", "IJepa")
    with pytest.raises(ConfigError, match=r"two: is ijepa, the bundle is hfvit$"):
        check.main([str(path), "--against", str(other)])
    with pytest.raises(ConfigError, match=r"two: is ijepa, the bundle is lewm$"):
        check.main([str(tiny("lewm")), "--against", str(other)])
    sizes = r"one: has embed_dim 24, .*; the bundle has embed_dim 32, n_layer 2, patch_size 4$"
    with pytest.raises(ConfigError, match=sizes):
        check.main([str(tiny("hfvit")), "--against", str(tmp_path / "one")])


@pytest.mark.reference
def test_a_rounded_file_is_judged_by_its_features(tmp_path, capsys, converted):
    folder = source(tmp_path / "source", "ViT")
    path = converted("hfvit", folder, "f16")
    capsys.readouterr()
    found = document(capsys, path, "--against", folder)
    assert found["verdict"] == "equal"
    far = [row["reference"]["relative"] for row in found["stages"] if "reference" in row]
    assert max(far) > 1e-5


@pytest.mark.reference
def test_against_timm(tmp_path, capsys, converted):
    vit = pytest.importorskip("timm.models.vision_transformer")
    from safetensors.torch import save_file

    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3,
             "reg_tokens": 2}  # fmt: skip
    torch.manual_seed(0)
    model = vit.vit_tiny_patch16_224(num_classes=0, **sizes)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 0, "model_args": sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = converted("hfvit", tmp_path)
    for size in ("16", "24x12"):
        capsys.readouterr()
        found = document(capsys, path, "--against", tmp_path, "--size", size)
        assert found["verdict"] == "equal"
        assert {row["stage"] for row in found["stages"] if "reference" in row} == {
            "enc.blk.0", "enc.blk.1", "enc.norm"
        }  # fmt: skip


@pytest.mark.parametrize(("config", "words"), [
    ({"architecture": "hf-hub:somebody/something"}, "architecture 'hf-hub:somebody/something'"),
    ({"architecture": "vit_tiny_patch16_224", "model_args": {"checkpoint_path": "x.pt"}},
     "checkpoint_path"),
    ({"architecture": "vit_tiny_patch16_224"}, "timm cannot load it"),
    ({"model_type": "vit", "hidden_size": 7}, "transformers cannot load it"),
])  # fmt: skip
@pytest.mark.reference
def test_a_config_neither_fetches_nor_unpickles(tiny, tmp_path, config, words):
    pytest.importorskip("timm")
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=words) as caught:
        check.main([str(tiny("hfvit")), "--against", str(tmp_path)])
    assert "\n" not in str(caught.value)


@pytest.mark.reference
def test_a_source_without_all_weights_is_refused(tiny, tmp_path):
    """The library would draw the missing ones at random."""
    from safetensors.torch import load_file, save_file

    file = source(tmp_path / "source", "ViT") / "model.safetensors"
    weights = load_file(file)
    save_file({n: t for n, t in weights.items() if "layernorm.weight" not in n}, file,
              {"format": "pt"})  # fmt: skip
    with pytest.raises(ConfigError, match=r"has no weights .*layernorm\.weight"):
        check.main([str(tiny("hfvit")), "--against", str(file.parent)])


def test_a_source_without_a_reference_is_refused(tiny, tmp_path):
    for text, kind in (('{"model_type": "mamba"}', "mamba"), ("[]", "None")):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ConfigError, match=f"model_type '{kind}' has no reference"):
            check.main([str(tiny("hfvit")), "--against", str(tmp_path)])


def test_a_reference_that_is_not_installed_is_named(tiny, tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ConfigError, match="pip install transformers"):
        check.main([str(tiny("hfvit")), "--against", str(tmp_path)])
