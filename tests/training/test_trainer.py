"""The training loop: windows, exact resume, data parallelism, collapse, export."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from jepa_wm.collect import CollectConfig, collect
from jepa_wm.control.interfaces import Context
from jepa_wm.errors import ConfigError
from jepa_wm.models import load_world_model
from jepa_wm.training.dataset import PlayDataset, open_datasets
from jepa_wm.training.export import export
from jepa_wm.training.lewm import Trainer
from jepa_wm.training.loop import learning_rate
from jepa_wm.training.probes import effective_rank
from jepa_wm.training.targets import StateTargets

CPU = torch.device("cpu")


def weights(trainer):
    return torch.cat([p.detach().flatten() for p in trainer.network.parameters()])


def test_a_window_pairs_frames_with_the_actions_between_them(dataset):
    batch = dataset.windows(np.random.default_rng(0), 5, 4)
    assert batch.frames.shape == (5, 4, 16, 16, 3) and batch.actions.shape == (5, 3, 10)
    for row in range(5):
        found = [
            (e, f)
            for e in range(6)
            for f in range(6)
            if np.array_equal(dataset.states[e, f : f + 4], batch.states[row])
        ]
        episode, first = found[0]
        assert np.array_equal(batch.actions[row], dataset.actions[episode, first : first + 3])
        assert np.array_equal(batch.frames[row], dataset.frames[episode, first : first + 4])


def test_ranks_read_disjoint_parts_of_one_draw(dataset):
    whole = dataset.windows(np.random.default_rng(1), 6, 3)
    halves = [dataset.windows(np.random.default_rng(1), 6, 3, slice(r, None, 2)) for r in (0, 1)]
    for rank, half in enumerate(halves):
        assert np.array_equal(half.frames, whole.frames[rank::2])


def test_predictor_input_does_not_see_the_target_frame(dataset, config, tmp_path):
    trainer = Trainer(config, dataset, None, tmp_path, CPU)
    trainer.network.eval()
    frames = torch.from_numpy(dataset.windows(np.random.default_rng(2), 3, 4).frames)
    changed = frames.clone()
    changed[:, -1] = 255 - changed[:, -1]
    with torch.no_grad():
        before, after = trainer.network.encode(frames), trainer.network.encode(changed)
    assert torch.equal(before[:, :-1], after[:, :-1])
    assert not torch.allclose(before[:, -1], after[:, -1])


def test_rollout_term_predicts_from_predictions(dataset, config, tmp_path):
    """With z' = z + a the second pass must see predicted, not encoded, latents."""
    trainer = Trainer(config, dataset, None, tmp_path, CPU)
    seen = []

    def toy(z, actions):
        seen.append(z)
        return z + 1000.0

    trainer.network.predict = toy
    trainer.losses(0)
    encoded, own = seen
    assert torch.equal(own[:, 0], encoded[:, 0])
    assert torch.equal(own[:, 1:], encoded[:, :-1] + 1000.0)


def test_a_mixture_takes_equal_parts(play_folder, tmp_path):
    other = tmp_path / "other"
    collect(
        CollectConfig(
            out=other, episodes=2, steps=20, block=5, image_size=16, seed=8, workers=1,
            jitter=0.0, model=None,
        )
    )  # fmt: skip
    mixture = open_datasets([play_folder, other])
    batch = mixture.windows(np.random.default_rng(0), 7, 3)
    assert batch.frames.shape == (7, 3, 16, 16, 3)
    for row, states in enumerate(batch.states):
        source = mixture.parts[row % 2].states.reshape(-1, 7)
        assert (source == states[0]).all(1).any()
    halves = [mixture.windows(np.random.default_rng(0), 7, 3, slice(r, None, 2)) for r in (0, 1)]
    assert np.array_equal(
        np.concatenate([h.actions for h in halves])[[0, 4, 1, 5, 2, 6, 3]], batch.actions
    )


def test_a_run_can_start_from_anothers_weights(dataset, config, tmp_path):
    first = Trainer(config, dataset, None, tmp_path, CPU)
    first.run()
    second = Trainer(replace(config, seed=9), dataset, None, tmp_path / "second", CPU)
    assert not torch.equal(weights(first), weights(second))
    second.start_from([tmp_path / "checkpoint.pt"])
    assert torch.equal(weights(first), weights(second)) and second.step == 0
    third = Trainer(replace(config, seed=9), dataset, None, tmp_path / "third", CPU)
    other = weights(third)
    third.save()
    third.start_from([tmp_path / "checkpoint.pt", tmp_path / "third" / "checkpoint.pt"])
    torch.testing.assert_close(weights(third), (weights(first) + other) / 2)
    wider = replace(config, network=replace(config.network, proj_hidden=32))
    with pytest.raises(ConfigError, match="another network"):
        Trainer(wider, dataset, None, tmp_path, CPU).start_from([tmp_path / "checkpoint.pt"])


def test_a_resumed_run_is_the_uninterrupted_one(dataset, config, tmp_path):
    whole = Trainer(config, dataset, None, tmp_path / "whole", CPU)
    whole.run()
    first = Trainer(config, dataset, None, tmp_path / "half", CPU)
    for _ in range(3):
        first.advance()
    first.save()
    second = Trainer(config, dataset, None, tmp_path / "half", CPU)
    second.resume(tmp_path / "half" / "checkpoint.pt")
    second.run()
    assert torch.equal(weights(whole), weights(second))
    states = whole.network.state_dict()
    assert all(torch.equal(states[k], v) for k, v in second.network.state_dict().items())


def test_resume_refuses_other_settings_and_missing_files(dataset, config, tmp_path):
    trainer = Trainer(config, dataset, None, tmp_path, CPU)
    with pytest.raises(ConfigError, match="no such checkpoint"):
        trainer.resume(tmp_path / "absent.pt")
    trainer.save()
    other = Trainer(replace(config, learning_rate=0.5), dataset, None, tmp_path, CPU)
    with pytest.raises(ConfigError, match=r"learning_rate was 0.001, is 0.5"):
        other.resume(tmp_path / "checkpoint.pt")
    (tmp_path / "checkpoint.pt").write_bytes(b"version https://git-lfs")
    with pytest.raises(ConfigError, match="not a checkpoint"):
        trainer.resume(tmp_path / "checkpoint.pt")


def test_learning_rate_warms_up_and_falls_to_zero(config):
    run = replace(config, steps=100, warmup=10)
    rates = [learning_rate(run, step) for step in range(101)]
    assert rates[0] == pytest.approx(1e-4) and max(rates) == pytest.approx(1e-3)
    assert rates[10:] == sorted(rates[10:], reverse=True) and rates[100] == pytest.approx(0)


def test_pure_lewm_has_no_state_term(dataset, config, tmp_path):
    trainer = Trainer(
        replace(config, state_weight=0.0, rollout_weight=0.0), dataset, None, tmp_path, CPU
    )
    terms, _ = trainer.losses(0)
    assert set(terms) == {"prediction", "sigreg"}


def test_collapse_is_warned_of_at_the_first_record(dataset, config, tmp_path):
    trainer = Trainer(replace(config, log_every=1), dataset, None, tmp_path, CPU)
    last = trainer.network.model.enc.proj[3]
    with torch.no_grad():
        last.weight.zero_()  # every frame gets the same latent
    with pytest.warns(UserWarning, match="collapsing"):
        trainer.run()


def test_metrics_are_recorded(dataset, config, tmp_path):
    Trainer(replace(config, probe_every=3), dataset, dataset, tmp_path, CPU).run()
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    train = [record for record in records if record["kind"] == "train"]
    assert [record["step"] for record in train] == [2, 4, 6]
    assert {"prediction", "sigreg", "state", "rank", "std_min", "images_per_second"} <= set(
        train[0]
    )
    assert [record["step"] for record in records if record["kind"] == "probe"] == [3, 6]


def test_effective_rank_counts_dimensions():
    z = torch.randn(4000, 6, generator=torch.Generator().manual_seed(0))
    assert effective_rank(z) == pytest.approx(6, rel=0.01)
    z[:, 3:] = 0
    assert effective_rank(z) == pytest.approx(3, rel=0.01)


def test_state_targets_are_about_unit_scale(dataset):
    targets = StateTargets(dataset.info.targets, 7)
    states = torch.tensor([[366.0, 146.0, 256.0, 256.0, 0.0, 9.0, 9.0]])
    expected = [1.0, -1.0, 0.0, 285 / 7 / 110, 1.4, 0.0]
    assert targets(states)[0].tolist() == pytest.approx(expected)
    states[0, 4] = torch.pi / 2  # a quarter turn: the T's stem points to -x
    expected = [1.0, -1.0, -285 / 7 / 110, 0.0, 0.0, 1.4]
    assert targets(states)[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert targets.in_tolerances() == pytest.approx([5.5] * 4 + [9 / 1.4 / np.pi] * 2)


def test_the_bundle_is_the_trained_network(dataset, config, tmp_path):
    """Folded and padded, the runtime's encoder and rollout are the training network's."""
    trainer = Trainer(config, dataset, None, tmp_path, CPU)
    trainer.run()
    trainer.recalibrate()
    trainer.network.eval()
    path = export(trainer, tmp_path / "tiny.gguf")
    model = load_world_model(path, CPU)
    batch = dataset.windows(np.random.default_rng(9), 4, 5)
    frames, actions = torch.from_numpy(batch.frames), torch.from_numpy(batch.actions)
    with torch.no_grad():
        z = trainer.network.encode(frames)
        expected = trainer.network.rollout(z[:, :2], actions)
    found = model.encode(model.preprocess(frames))
    torch.testing.assert_close(found, z, rtol=1e-4, atol=1e-5)
    assert found[..., 4:].abs().max() == 0  # dead columns are exact zeros
    mean, std = dataset.action_statistics()
    blocks = (actions - torch.tensor(np.tile(mean, 5))) / torch.tensor(np.tile(std, 5))
    context = Context(found[:, :2], blocks[:, :1].float())
    rolled = model.rollout(context, blocks[:, None, 1:].float())[:, 0]
    torch.testing.assert_close(rolled, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_two_processes_train_like_one(play_folder, tmp_path, free_port):
    """torchrun with two ranks of half the batch ends where one rank with the whole batch does."""
    tiny = (
        "steps=4 batch=8 warmup=2 amp=false log_every=1 probe_every=0 save_every=100 recalibrate=2 "
        "network.image_size=16 network.patch_size=8 network.embed_dim=16 network.latent_dim=4 "
        "network.enc_layers=1 network.pred_layers=1 network.pred_heads=2 network.pred_head_dim=8 "
        "network.pred_ffn_dim=32 network.proj_hidden=16 device=cpu"
    ).split()
    one = [sys.executable, "-m", "jepa_wm.train"]
    two = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
        "--master-port", str(free_port), "-m", "jepa_wm.train",
    ]  # fmt: skip
    frames = torch.from_numpy(PlayDataset(play_folder).frames[:, :4])
    finals = []
    for name, start in (("one", one), ("two", two)):
        out = tmp_path / name
        subprocess.run(
            [*start, f"data={play_folder}", f"out={out}", *tiny],
            check=True, capture_output=True, cwd=tmp_path,
        )  # fmt: skip
        assert (out / "lewm.gguf").is_file() and (out / "curves.png").is_file()
        model = load_world_model(out / "lewm.gguf", CPU)
        z = model.encode(model.preprocess(frames))
        finals.append(torch.cat([z, model.predict(z[:, :3], torch.ones(len(z), 3, 10))], 1))
    # weights may differ where they cancel (a bias before BatchNorm); what the model does may not
    apart = (finals[0] - finals[1]).abs().max().item()
    assert apart < 0.01, f"latents of about unit size are {apart:.1e} apart"
