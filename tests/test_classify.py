"""``python -m jepa_wm.classify``: the likeliest classes of everything that can be read."""

import json
import math
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import jepa_wm
from jepa_wm import classify
from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.models.heads import top_classes
from jepa_wm.runtime import command
from jepa_wm.viz.video import write_video

LINEAR = {
    "jepa.head.kind": "linear_cls", "jepa.head.n_classes": 7, "jepa.head.labels": list("abcdefg")
}  # fmt: skip


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def run(*arguments):
    classify.main([str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path):
    """Pictures of different sizes, whose natural order is not that of their names."""
    path = tmp_path / "pictures"
    path.mkdir()
    for i in (1, 2, 10):
        Image.fromarray(noise(20 + i, 31 - i, 3, seed=i)).save(path / f"{i}.png")
    return path


@pytest.mark.parametrize(
    ("logits", "k", "order"),
    [
        ([0.0, 2.0, 2.0, 1.0, 2.0], 4, [1, 2, 4, 3]),
        ([1.0] * 300, 5, [0, 1, 2, 3, 4]),
        ([0.0, -300.0, -200.0], 3, [0, 2, 1]),  # two probabilities that round to 0
        ([3.0, 4.0], 5, [1, 0]),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_likeliest_come_first_and_the_lower_index_of_equals(logits, k, order, dtype):
    probabilities, indices = top_classes(torch.tensor([logits, logits], dtype=dtype), k)
    assert indices.tolist() == [order, order] and probabilities.dtype == torch.float32
    total = sum(math.exp(x) for x in logits)
    wanted = [math.exp(logits[i]) / total for i in order]
    assert probabilities[0].tolist() == pytest.approx(wanted, rel=1e-5, abs=1e-30)


def test_pictures_of_a_folder(tiny, folder, capsys):
    path = tiny("hfvit", **LINEAR)
    run(path, folder, "--json", "-k", 3, "--batch", 2)
    found = json.loads(capsys.readouterr().out)
    assert found["model"]["family"] == "hfvit" and len(found["model"]["sha256"]) == 64
    files = [folder / f"{i}.png" for i in (1, 2, 10)]
    assert [entry["name"] for entry in found["results"]] == list(map(str, files))
    model = jepa_wm.load(path)
    for entry, file in zip(found["results"], files, strict=True):
        wanted = model.classify(np.array(Image.open(file))).softmax(-1)
        order = wanted.argsort(descending=True)[:3].tolist()
        assert [row["index"] for row in entry["classes"]] == order
        assert [row["label"] for row in entry["classes"]] == ["abcdefg"[i] for i in order]
        probabilities = [row["probability"] for row in entry["classes"]]
        assert probabilities == pytest.approx(wanted[order].tolist(), abs=1e-6)


def test_text_for_people(tiny, folder, capsys):
    run(tiny("hfvit", **LINEAR), folder / "1.png", folder / "2.png")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * (1 + 5) and lines[0].endswith("1.png") and lines[6].endswith("2.png")
    percents = [float(line.split("%")[0]) for line in lines[1:6]]
    assert percents == sorted(percents, reverse=True) and 0 < sum(percents) <= 100.03
    assert {line.split()[-1] for line in lines[1:6]} < set("abcdefg")


def test_classes_without_names_have_numbers(tiny, folder, capsys):
    path = tiny("hfvit", **LINEAR | {"jepa.head.labels": None})
    run(path, folder / "1.png", "-k", 100)
    lines = capsys.readouterr().out.splitlines()
    assert {line.split("%")[1].strip() for line in lines[1:]} == {f"class {i}" for i in range(7)}
    run(path, folder / "1.png", "-k", 1, "--json")
    (entry,) = json.loads(capsys.readouterr().out)["results"]
    assert entry["classes"][0]["label"] is None


def test_a_label_cannot_move_the_cursor(tiny, folder, capsys):
    labels = ["\x1b[2J" + letter for letter in "abcdefg"]
    run(tiny("hfvit", **LINEAR | {"jepa.head.labels": labels}), folder / "1.png")
    said = capsys.readouterr().out
    assert "\x1b" not in said and "\\x1b[2J" in said


def test_clips_videos_and_arrays(tiny, folder, tmp_path, capsys):
    """The tiny vjepa2 has an attentive pooler of five classes and takes four frames."""
    path, clips = tiny("vjepa2"), noise(2, 6, 16, 16, 3)
    film = write_video(tmp_path / "x.gif", list(clips[0]), 10)
    np.save(tmp_path / "x.npy", clips)
    run(path, tmp_path / "x.npy", film, folder, "--json", "-k", 1)
    found = json.loads(capsys.readouterr().out)["results"]
    model, chosen = jepa_wm.load(path), [0, 2, 3, 5]  # 0, 1.67, 3.33, 5
    logits = model.classify(clips[:, chosen])
    assert [row["classes"][0]["index"] for row in found[:2]] == logits.argmax(-1).tolist()
    assert [row["classes"][0]["label"] for row in found[:2]] == [
        "abcde"[i] for i in logits.argmax(-1)
    ]
    assert [row["name"] for row in found[2:]] == [str(film), str(folder)]
    run(path, tmp_path / "x.npy", "--as", "images", "--frames", 3, "--json")
    assert len(json.loads(capsys.readouterr().out)["results"]) == 6


@pytest.mark.parametrize("family", ["ijepa", "vjepa", "vjepa2", "vjepa2_1", "levjepa", "hfvit"])
@pytest.mark.parametrize("kind", ["linear_cls", "attentive_pool"])
def test_every_family_takes_every_head(tiny, folder, family, kind, capsys):
    changes = LINEAR | {"jepa.head.kind": kind, "jepa.head.n_pool_layers": 1}
    run(tiny(family, **changes), folder / "1.png", "--json", "-k", 7)
    (entry,) = json.loads(capsys.readouterr().out)["results"]
    assert sum(row["probability"] for row in entry["classes"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.png"], "absent.png: no such file"),
        (["good.png", "broken.png", "--json"], "broken.png: cannot be read"),
        (["good.png", "--as", "clip"], "single images"),
        (["good.png", "-k", "0"], "-k 0: wanted at least 1"),
        (["good.png", "--batch", "0"], "--batch 0: wanted at least 1"),
        (["good.png", "--device", "tpu"], "cpu, cuda"),
    ],
)
def test_refusals_are_one_line(arguments, words, tiny, tmp_path, monkeypatch, capsys):
    path = tiny("hfvit", **LINEAR)
    monkeypatch.chdir(tmp_path)
    Image.fromarray(noise(20, 20, 3)).save("good.png")
    (tmp_path / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    refused(monkeypatch, capsys, [str(path), *arguments], words)


def refused(monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(sys, "argv", ["classify", *map(str, arguments)])
    with pytest.raises(SystemExit) as status:
        command(classify.main)
    said = capsys.readouterr()
    assert status.value.code == 1 and said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and words in said.err


def test_a_bundle_without_a_head_says_where_one_comes_from(tiny, folder, monkeypatch, capsys):
    path = tiny("hfvit")
    words = f"{path}: has no classifier (jepa.head.kind = none)"
    refused(monkeypatch, capsys, [path, folder / "1.png"], words)


def test_logits_beyond_the_dtype_are_refused(tiny, folder, tmp_path, monkeypatch, capsys):
    bundle = Bundle.open(tiny("hfvit", **LINEAR))
    tensors = {name: bundle.tensor(name) for name in bundle.names()}
    tensors["head.cls.weight"] = tensors["head.cls.weight"] * 6e4
    path = write_bundle(tmp_path / "loud.gguf", bundle.meta, tensors)
    run(path, folder / "1.png")
    capsys.readouterr()
    arguments = [path, folder / "1.png", "--dtype", "float16"]
    refused(monkeypatch, capsys, arguments, "1.png: the logits are not finite")
