"""``python -m jepa_wm.embed``, ``jepa_wm.load`` and the tables they write."""

import csv
import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
import torch
from PIL import Image

import jepa_wm
from jepa_wm import embed
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.errors import BundleError, ConfigError
from jepa_wm.media import tables
from jepa_wm.models import batching
from jepa_wm.runtime import command
from jepa_wm.viz.video import write_video

from bundle.tiny import random_tensors  # isort: skip
from conftest import TINY  # isort: skip


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def run(*arguments):
    embed.main([str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path):
    """Twelve pictures of different sizes, whose natural order is not that of their names."""
    path = tmp_path / "pictures"
    path.mkdir()
    for i in range(12):
        Image.fromarray(noise(20 + i, 31 - i, 3, seed=i)).save(path / f"{i}.png")
    return path


def close(found, wanted):
    torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(wanted), rtol=0, atol=1e-5)


@pytest.mark.parametrize("pool", ["cls", "mean", "none"])
def test_a_folder_becomes_one_array_in_order(pool, tiny, folder, tmp_path, capsys):
    path, out = tiny("hfvit"), tmp_path / "x.npy"
    run(path, folder, "--pool", pool, "--batch", 5, "--out", out)
    model = jepa_wm.load(path)
    files = [folder / f"{i}.png" for i in range(12)]
    wanted = [model.embed(np.array(Image.open(file)), pool) for file in files]
    found = np.load(out)
    assert found.dtype == np.float32
    close(found, torch.stack(wanted))
    about = json.loads((tmp_path / "x.npy.json").read_text())
    assert about["names"] == [str(file) for file in files] and about["pool"] == pool
    assert about["model"]["family"] == "hfvit" and len(about["model"]["sha256"]) == 64
    said = capsys.readouterr().out
    assert str(out) in said and "12 x" in said and "x.npy.json" in said
    assert sorted(p.name for p in tmp_path.glob(".*")) == []  # no temporary file stays


def test_all_formats_hold_the_same(tiny, folder, tmp_path):
    path = tiny("hfvit")
    for suffix in ("npy", "json", "csv"):
        run(path, folder, "--out", tmp_path / f"x.{suffix}")
    array = np.load(tmp_path / "x.npy")
    document = json.loads((tmp_path / "x.json").read_text())
    assert [entry["name"] for entry in document["embeddings"]][10] == str(folder / "10.png")
    values = np.array([entry["values"] for entry in document["embeddings"]], np.float32)
    assert np.array_equal(values, array) and document["pool"] == "cls"
    rows = list(csv.reader((tmp_path / "x.csv").read_text().splitlines()))
    assert rows[0] == ["name", *(str(i) for i in range(32))]
    assert np.array_equal(np.array([row[1:] for row in rows[1:]], np.float32), array)
    assert rows[11][0] == str(folder / "10.png")


def test_tokens_have_rows_of_their_own_in_csv(tiny, folder, tmp_path):
    path = tiny("hfvit")
    for suffix in ("npy", "csv"):
        run(path, folder / "3.png", "--pool", "none", "--out", tmp_path / f"x.{suffix}")
    array = np.load(tmp_path / "x.npy")
    rows = list(csv.reader((tmp_path / "x.csv").read_text().splitlines()))
    assert rows[0][:3] == ["name", "token", "0"] and array.shape == (1, 20, 32)
    assert [int(row[1]) for row in rows[1:]] == list(range(20))
    assert np.array_equal(np.array([row[2:] for row in rows[1:]], np.float32), array[0])


def test_the_batch_does_not_change_the_numbers(tiny, folder, tmp_path):
    path = tiny("lewm")
    for batch in (1, 5, 100):
        run(path, folder, "--batch", batch, "--out", tmp_path / f"{batch}.npy")
    close(np.load(tmp_path / "1.npy"), np.load(tmp_path / "5.npy"))
    close(np.load(tmp_path / "1.npy"), np.load(tmp_path / "100.npy"))


def test_a_video_is_a_clip_for_a_model_of_clips(tiny, tmp_path):
    frames = [noise(24, 32, 3, seed=i) for i in range(11)]
    film = write_video(tmp_path / "x.gif", frames, 10)
    path, out = tiny("vjepa2"), tmp_path / "x.npy"
    run(path, film, "--out", out)
    stored = np.stack([np.array(f) for f in _gif_frames(film)])
    chosen = stored[[0, 3, 7, 10]]  # of 11 frames the model's four: 0, 3.33, 6.67, 10
    close(np.load(out), jepa_wm.load(path).embed(chosen[None]))
    run(path, film, "--frames", "all", "--out", out)
    close(np.load(out), jepa_wm.load(path).embed(stored[None]))
    run(path, film, "--as", "images", "--out", out)
    assert np.load(out).shape == (11, 64)


def _gif_frames(path):
    with Image.open(path) as film:
        for i in range(film.n_frames):
            film.seek(i)
            yield film.convert("RGB")


def test_a_folder_is_a_clip_or_images(tiny, folder, tmp_path):
    path, out = tiny("levjepa"), tmp_path / "x.npy"
    run(path, folder, "--out", out)
    pictures = [np.array(Image.open(folder / f"{i}.png")) for i in (0, 6, 11)]  # 5.5 to the even
    close(np.load(out), jepa_wm.load(path).embed(pictures)[None])
    run(path, folder, "--as", "images", "--out", out)
    assert np.load(out).shape == (12, 64)


def test_a_folder_taken_as_a_clip_is_told(tiny, folder, capsys):
    path = tiny("levjepa")
    run(path, folder)
    assert f"note: {folder}: 12 pictures as one clip; --as images" in capsys.readouterr().err
    for more in (["--as", "clip"], ["--as", "images"]):
        run(path, folder, *more)
        assert "note:" not in capsys.readouterr().err
    run(tiny("hfvit"), folder)
    assert "note:" not in capsys.readouterr().err


def test_stills_and_clips_mix(tiny, tmp_path):
    """Neighbours of another length have a batch of their own; the order stays."""
    still, clips = noise(16, 16, 3), noise(2, 6, 16, 16, 3)
    for name, array in (("a", still), ("b", clips), ("c", clips[0])):
        np.save(tmp_path / f"{name}.npy", array)
    path, out = tiny("vjepa2_1"), tmp_path / "x.npy"
    inputs = [tmp_path / f"{name}.npy" for name in "abca"]
    run(path, *inputs, "--frames", "all", "--batch", 4, "--out", out)
    model = jepa_wm.load(path)
    wanted = [model.embed(x) for x in (still, clips[0], clips[1], clips[0], still)]
    close(np.load(out), torch.stack(wanted))


def test_without_out_a_line_each(tiny, folder, capsys):
    run(tiny("lewm"), folder / "1.png", folder / "2.png")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and "1.png" in lines[0] and "[32]" in lines[0] and "norm" in lines[0]


def test_memory_does_not_grow_with_the_inputs(tiny, tmp_path):
    """Sixty-four frames of 1 MB, embedded to all their tokens: a few are held, never all."""
    path, frames = tiny("hfvit"), tmp_path / "x.npy"
    np.save(frames, np.zeros((64, 600, 600, 3), np.uint8))
    run(path, frames, "--out", tmp_path / "warm.npy", "--frames", 2)
    tracemalloc.start()
    run(path, frames, "--batch", 2, "--pool", "none", "--out", tmp_path / "y.npy")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.load(tmp_path / "y.npy").shape == (64, 20, 32) and peak < 12 << 20, peak


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["absent.png"], "absent.png: no such file"),
        (["broken.png"], "broken.png: cannot be read"),
        (["good.png", "broken.png"], "broken.png: cannot be read"),  # after the first batch
        (["good.png", "--pool", "projected"], "this model has cls, mean, none"),
        (["good.png", "--as", "clip"], "embeds single images"),
        (["good.png", "--frames", "0"], "--frames 0: wanted a number"),
        (["good.png", "--frames", "99999"], "--frames 99999: wanted a number"),
        (["good.png", "--batch", "0"], "--batch 0"),
        (["good.png", "--device", "tpu"], "cpu, cuda"),
        (["good.png", "--dtype", "int4"], "bfloat16"),
        (["thin.npy"], "thin.npy: frames of 1x10000000"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(
    arguments, words, tiny, tmp_path, monkeypatch, capsys
):
    path, work = tiny("hfvit"), tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    Image.fromarray(noise(20, 20, 3)).save("good.png")
    (work / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    if "thin.npy" in arguments:
        np.save("thin.npy", np.zeros((1, 10**7, 3), np.uint8))
    before = sorted(work.iterdir())
    for out in ("x.npy", "x.json", "x.csv"):
        monkeypatch.setattr(
            sys, "argv", ["embed", str(path), *arguments, "--batch", "1", "--out", out]
            if "--batch" not in arguments else ["embed", str(path), *arguments, "--out", out],
        )  # fmt: skip
        with pytest.raises(SystemExit) as status:
            command(embed.main)
        said = capsys.readouterr()
        assert status.value.code == 1 and said.out == ""
        assert said.err.startswith("error: ") and said.err.count("\n") == 1 and words in said.err
    assert sorted(work.iterdir()) == before


@pytest.mark.parametrize(
    ("out", "words"),
    [("x.txt", "must end in .npy, .json, .csv"), ("no/x.npy", r"no/x\.npy: cannot be written"),
     ("d.csv", "is a directory")],
)  # fmt: skip
def test_an_impossible_output_is_refused_before_anything_is_read(out, words, tiny, tmp_path):
    (tmp_path / "d.csv").mkdir()
    (tmp_path / "in.png").write_bytes(b"broken, and never looked into")
    with pytest.raises((ConfigError, BundleError), match=words):
        run(tiny("hfvit"), tmp_path / "in.png", "--out", tmp_path / out)


def test_numbers_that_are_none_are_refused(folder, tmp_path):
    """In half precision a model can overflow; its features would be worthless."""
    meta = TINY["hfvit"]
    tensors = random_tensors(meta, 0)
    tensors["enc.patch_embed.weight"] = tensors["enc.patch_embed.weight"] * 1e6
    path = write_bundle(tmp_path / "loud.gguf", meta, tensors)
    run(path, folder, "--out", tmp_path / "x.npy")
    with pytest.raises(ConfigError, match=r"0\.png: gives NaN or infinity; .*float32"):
        run(path, folder, "--dtype", "float16", "--out", tmp_path / "y.npy")
    assert not (tmp_path / "y.npy").exists()


def test_an_older_result_survives_a_failure(tiny, folder, tmp_path):
    path, out = tiny("hfvit"), tmp_path / "x.npy"
    run(path, folder, "--out", out)
    before = out.read_bytes(), (tmp_path / "x.npy.json").read_bytes()
    (folder / "3.png").write_bytes(b"broken")
    with pytest.raises(ConfigError, match=r"3\.png"):
        run(path, folder, "--batch", 1, "--out", out)
    assert before == (out.read_bytes(), (tmp_path / "x.npy.json").read_bytes())


def test_an_array_needs_one_shape(tmp_path):
    with (
        pytest.raises(ConfigError, match=r"b: gives \[3\], those before gave \[2\]"),
        tables.npy_table(tmp_path / "x.npy", tmp_path / "n.json", {"pool": "cls"}) as table,
    ):
        table.add("a", np.zeros(2, np.float32))
        table.add("b", np.zeros(3, np.float32))


def test_odd_names_come_back(tmp_path):
    names = ['a,"b"\n.png', "\u00e9\x1b[2J", ""]
    with tables.text_table(tmp_path / "x.csv", ".csv", {}) as table:
        for name in names:
            table.add(name, np.float32([1 / 3, 1e-30]))
    with open(tmp_path / "x.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.reader(file))[1:]
    assert [row[0] for row in rows] == names
    assert np.float32(rows[0][1]) == np.float32(1 / 3)
    with tables.text_table(tmp_path / "x.json", ".json", {"pool": "cls"}) as table:
        for name in names:
            table.add(name, np.float32([0]))
    found = json.loads((tmp_path / "x.json").read_text())
    assert [entry["name"] for entry in found["embeddings"]] == names


def test_frames_that_do_not_fit_are_named(tiny):
    model = jepa_wm.load(tiny("hfvit"))
    pairs = [("good", noise(20, 20, 3)), ("bad", noise(20, 20, 4))]
    rows = batching.run_batched(model, pairs, model.embed_pixels, 1)
    assert next(rows)[0] == "good"
    with pytest.raises(ConfigError, match=r"bad: .*no axis holds 3 channels"):
        list(rows)


def test_load_takes_names_and_torchs_own(tiny):
    path = tiny("hfvit")
    frame = noise(20, 20, 3)
    wanted = jepa_wm.load(path).embed(frame)
    close(jepa_wm.load(str(path), torch.device("cpu"), torch.float32).embed(frame), wanted)
    for dtype in ("bfloat16", torch.bfloat16):
        half = jepa_wm.load(path, dtype=dtype)
        assert half.enc.patch_embed.weight.dtype == torch.bfloat16
        assert torch.cosine_similarity(half.embed(frame), wanted, dim=-1) > 0.999
    assert jepa_wm.load("lewm.gguf").embed(frame).shape == (128,)
    with pytest.raises(BundleError, match=r"absent\.gguf.*lewm\.gguf"):
        jepa_wm.load("absent.gguf")
    with pytest.raises(ConfigError, match="bfloat16"):
        jepa_wm.load(path, dtype="int4")
    with pytest.raises(ConfigError, match="cpu, cuda"):
        jepa_wm.load(path, device="tpu")


def test_a_fresh_process(tiny, folder, tmp_path):
    command_line = [sys.executable, "-m", "jepa_wm.embed", tiny("lewm"), folder, "--out", "x.npy"]
    done = subprocess.run(command_line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert np.load(tmp_path / "x.npy").shape == (12, 32)


def test_importing_the_package_loads_no_torch():
    code = "import sys, jepa_wm; print(sorted({'torch', 'numpy', 'gguf'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
