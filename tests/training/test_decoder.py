"""The decoder: it learns where things are, resumes exactly, and its file is checked before use."""

import json
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from jepa_wm import train
from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import ConfigError
from jepa_wm.launch import launch
from jepa_wm.training.decoder import (
    Decoder,
    DecoderRun,
    DecoderSizes,
    DecoderTrainer,
    Pairs,
    psnr,
)
from jepa_wm.training.decoder_file import load_decoder, save_decoder

CPU = torch.device("cpu")
SIZES = DecoderSizes(image_size=16, points=8, width=8)
RUN = DecoderRun(
    network=SIZES, frames=200, steps=6, batch=16, learning_rate=5e-3, warmup=2, weight_decay=1e-4,
    betas=(0.9, 0.98), clip=1.0, seed=5, amp=False, log_every=2, probe_every=0, save_every=100,
)  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small wait for a second thread longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def dots(count, seed=0):
    """Dark dots on white; the latent is a mix of their places and of nothing."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(3, 12, (count, 2))
    at = np.arange(16)
    squares = (at - places[:, :1])[:, None] ** 2 + ((at - places[:, 1:]) ** 2)[:, :, None]
    shade = 255 * (1 - 0.9 * np.exp(-squares / 4))
    frames = torch.from_numpy(shade.astype(np.uint8)[..., None].repeat(3, -1))
    mix = np.random.default_rng(1).normal(size=(2, 3, 4))
    return Pairs(torch.from_numpy(np.einsum("np,pij->nij", places, mix)).float(), frames)


@pytest.fixture
def saved(tmp_path):
    trainer = DecoderTrainer(RUN, dots(64), None, tmp_path / "run", CPU)
    trainer.run()
    path = save_decoder(trainer.network, tmp_path / "decoder.npz", {"model_sha256": "abc"})
    return trainer.network, path


def test_it_starts_at_the_mean_picture_and_learns_where_the_dot_is(tmp_path):
    data = dots(300)
    trainer = DecoderTrainer(replace(RUN, steps=120), data, dots(40, seed=2), tmp_path, CPU)
    mean = (255 * data.frames.double().mean(0) / 255).round()
    first = trainer.network.pictures(data.z[:2])
    assert (first.double() - mean).abs().max() <= 1
    before = trainer.probe()
    assert before.psnr == pytest.approx(before.psnr_mean, abs=0.05)
    trainer.run()
    after = trainer.probe()
    assert after.psnr > after.psnr_mean + 3, f"{after.psnr:.1f} dB, mean {after.psnr_mean:.1f}"


def test_latents_of_any_shape_are_whitened():
    pairs = dots(300)
    network = Decoder(SIZES, (3, 4))
    network.fit_scales(pairs.z, pairs.frames)
    told = (pairs.z.flatten(1) - network.centre) @ network.basis
    live = told.std(0) > 1e-3
    assert live.sum() == 2  # of 12 numbers: the places
    torch.testing.assert_close(told[:, live].T.cov(), torch.eye(2), atol=2e-2, rtol=0)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path):
    whole = DecoderTrainer(RUN, dots(64), None, tmp_path / "whole", CPU)
    whole.run()
    first = DecoderTrainer(RUN, dots(64), None, tmp_path / "half", CPU)
    for _ in range(3):
        first.advance()
    first.save()
    second = DecoderTrainer(RUN, dots(64), None, tmp_path / "half", CPU)
    second.resume(tmp_path / "half" / "checkpoint.pt")
    second.run()
    states = whole.network.state_dict()
    assert all(torch.equal(states[k], v) for k, v in second.network.state_dict().items())


def test_pairs_are_frames_of_the_play_and_their_latents(dataset):
    pairs = Pairs.encode(dataset, RUN, lambda frames: frames.float().mean((1, 2)), CPU)
    frames = dataset.frames.reshape(-1, 16, 16, 3)
    assert len(pairs.z) == len(frames)  # fewer than asked for
    np.testing.assert_array_equal(pairs.frames, frames)
    np.testing.assert_allclose(pairs.z, frames.mean((1, 2)), rtol=1e-5)
    few = Pairs.encode(dataset, replace(RUN, frames=7), lambda frames: frames.float(), CPU)
    assert len(few.z) == 7 and np.array_equal(few.frames[-1], frames[-1])


def test_psnr_is_that_of_its_definition():
    true = torch.zeros(2, 4, 4, 3, dtype=torch.uint8)
    found = true.clone()
    found[0] = 51  # a fifth of the range
    assert psnr(found, true).tolist() == pytest.approx([20 * np.log10(5), 100.0])


def test_a_file_draws_what_its_network_did(saved):
    network, path = saved
    loaded, about = load_decoder(path, CPU)
    z = dots(5, seed=3).z
    assert torch.equal(loaded.pictures(z), network.pictures(z))
    assert about["model_sha256"] == "abc" and about["latent"] == [3, 4]


def forge(path, target, name, array):
    """Copy a file with one array replaced, or left out."""
    with np.load(path) as stored:
        arrays = {key: stored[key] for key in stored.files}
    arrays.pop(name)
    np.savez(target, **arrays, **({} if array is None else {name: array}))
    return target


def described(**changes):
    text = {"sizes": {"image_size": 16, "points": 8, "width": 8}, "latent": [3, 4], **changes}
    return np.frombuffer(json.dumps(text).encode(), np.uint8)


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("config", None, "config"),
        ("usual", None, "usual"),
        (
            "usual",
            np.zeros((3, 8, 8), np.float32),
            r"usual is float32 \[3, 8, 8\], wanted .*16, 16",
        ),
        ("usual", np.zeros((3, 16, 16)), "usual is float64"),
        ("usual", np.array([[{}]], dtype=object), "usual is object"),
        ("config", described(latent=[1 << 30]), "latents of"),
        ("config", described(latent=[-3, -4]), "latents of"),
        ("config", described(sizes={"image_size": 1 << 20, "points": 8, "width": 8}), "image_size"),
        ("config", described(sizes={"image_size": 16, "points": 1 << 20, "width": 8}), "points"),
        ("config", described(sizes={"depth": 3}), "depth"),
        ("config", np.zeros(1 << 17, np.uint8), "at most"),
    ],
)
def test_files_that_are_no_decoders_are_refused(saved, tmp_path, name, array, words):
    forged = forge(saved[1], tmp_path / "forged.npz", name, array)
    with pytest.raises(ConfigError, match=rf"forged\.npz is no decoder of ours.*{words}") as error:
        load_decoder(forged, CPU)
    assert "\n" not in str(error.value)


def test_a_header_that_claims_more_than_there_is_takes_no_memory(saved, tmp_path):
    """The right shape over too few bytes, and a broken archive."""
    short = tmp_path / "short.npz"
    with zipfile.ZipFile(saved[1]) as old, zipfile.ZipFile(short, "w") as new:
        for item in old.namelist():
            data = old.read(item)
            new.writestr(item, data[:-100] if item == "usual.npy" else data)
    with pytest.raises(ConfigError, match=r"usual holds 2972 bytes of 3072"):
        load_decoder(short, CPU)
    (tmp_path / "cut.npz").write_bytes(saved[1].read_bytes()[:500])
    with pytest.raises(ConfigError, match="no decoder of ours"):
        load_decoder(tmp_path / "cut.npz", CPU)


def test_the_command_trains_one_for_a_model(play_folder, tiny, tmp_path, monkeypatch, capsys):
    model = tiny("lewm")  # looks at 8 px, the play has 16
    monkeypatch.setattr(sys, "argv", [
        "train", "recipe=decoder", f"data={play_folder}", f"model={model}",
        f"out={tmp_path / 'run'}", "steps=4", "batch=4", "network.image_size=16", "log_every=2",
        "device=cpu",
    ])  # fmt: skip
    launch(train.main, "train")
    assert "psnr_mean" in capsys.readouterr().out
    network, about = load_decoder(tmp_path / "run" / "decoder.npz", CPU)
    assert about["model_sha256"] == Bundle.open(model).sha256 and network.latent == (32,)
    records = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [2, 4] and records[0]["pixels"] > 0
    big = tiny(
        "lewm", **{"jepa.pre.resize_short": 64, "jepa.pre.crop": 64, "jepa.enc.img_size": 64}
    )
    sys.argv[3:5] = [f"model={big}", f"out={tmp_path / 'other'}"]
    with pytest.raises(SystemExit):
        launch(train.main, "train")
    assert "holds frames of 16 px" in capsys.readouterr().err


def test_impossible_sizes_are_refused():
    with pytest.raises(ConfigError, match="image_size=17"):
        DecoderSizes(image_size=17, points=8, width=8)
    with pytest.raises(ConfigError, match="frames=1"):
        replace(RUN, frames=1)
