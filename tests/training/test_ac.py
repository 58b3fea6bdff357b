"""The trainer of the action-conditioned predictor: latents, losses, exact resume, export."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from jepa_wm.control.interfaces import Context
from jepa_wm.errors import ConfigError
from jepa_wm.models import load_world_model
from jepa_wm.training.ac import ACTrainer
from jepa_wm.training.ac_probe import probe_predictor, rollout
from jepa_wm.training.export_vjepa2 import ArmTask, export_ac
from jepa_wm.training.goal_map import fit_goal_map
from jepa_wm.training.latent_play import LatentPlay
from jepa_wm.training.masked import EncoderTrainer

CPU = torch.device("cpu")
TASK = ArmTask(low=(-0.5,) * 7, high=(0.5,) * 7, goal_columns=(0, 1, 2), tolerance=0.05)


@pytest.fixture
def encoder(arm_data, encoder_run, tmp_path):
    return EncoderTrainer(encoder_run, arm_data, None, tmp_path, CPU).network


@pytest.fixture
def make(encoder, arm_data, ac_run, tmp_path):
    def trainer(name="run", **changes):
        return ACTrainer(replace(ac_run, **changes), encoder, arm_data, None, tmp_path / name, CPU)

    return trainer


def test_a_sequence_pairs_latents_with_the_actions_between_them(make, arm_data):
    play = make().play
    batch = play.sequences(np.random.default_rng(0), 5, 3)
    assert batch.z.shape == (5, 4, 16, 24) and batch.actions.shape == (5, 3, 7)
    for row in range(5):
        found = [
            (e, f)
            for e in range(8)
            for f in range(10)
            if np.array_equal(arm_data.states[e, f : f + 4, :7], batch.poses[row])
        ]
        (episode, first) = found[0]
        assert np.array_equal(arm_data.actions[episode, first : first + 3], batch.actions[row])
        assert torch.equal(play.z[episode, first : first + 4].float(), batch.z[row])


def test_ranks_read_disjoint_parts_of_one_draw(make):
    play = make().play
    whole = play.sequences(np.random.default_rng(1), 6, 2)
    for rank in (0, 1):
        half = play.sequences(np.random.default_rng(1), 6, 2, slice(rank, None, 2))
        assert torch.equal(half.z, whole.z[rank::2])
        assert torch.equal(half.actions, whole.actions[rank::2])


def test_the_encoder_does_not_learn(make):
    trainer = make()
    before = [p.clone() for p in trainer.encoder.parameters()]
    trainer.run()
    assert all(map(torch.equal, before, trainer.encoder.parameters()))


def test_losses_fall(make):
    trainer = make(steps=60)
    found = [{k: float(v) for k, v in trainer.advance()[0].items()} for _ in range(60)]
    for name in ("prediction", "rollout"):
        first, last = (np.mean([terms[name] for terms in part]) for part in (found[:5], found[-5:]))
        assert last < 0.9 * first, f"{name}: {first:.3f} -> {last:.3f}"


def test_the_rollout_goes_on_from_its_own_predictions(make):
    network = make().network
    network.forward = lambda z, actions, poses: z + actions.sum(-1)[..., None, None]
    z = torch.zeros(1, 2, 1, 1)
    z[:, 1] = 5.0  # the prediction of the second frame
    actions = torch.arange(28.0).view(1, 4, 7)
    found = network.rollout(z, actions, torch.zeros(1, 4, 7), 4)
    sums = actions.sum(-1)[0]
    assert found[0, :, 0, 0].tolist() == [5 + sums[1], 5 + sums[1] + sums[2], 5 + sums[1:].sum()]


def test_rollout_loss_is_of_the_frames_after_the_first_prediction(make):
    """With a predictor that says 'no change' the rollout's error is that of the first frame."""
    trainer = make()
    trainer.network.forward = lambda z, actions, poses: z
    terms, _ = trainer.losses(0)
    z = trainer.play.sequences(np.random.default_rng([5, 0]), 8, 4).z
    assert terms["prediction"] == pytest.approx(float((z[:, :-1] - z[:, 1:]).abs().mean()))
    assert terms["rollout"] == pytest.approx(float((z[:, :1] - z[:, 2:4]).abs().mean()))
    assert set(make("one", rollout_steps=1).losses(0)[0]) == {"prediction"}


def test_a_resumed_run_is_the_uninterrupted_one(make):
    whole = make("whole")
    whole.run()
    first = make("half")
    for _ in range(3):
        first.advance()
    first.save()
    second = make("half")
    second.resume(first.out / "checkpoint.pt")
    second.run()
    states = whole.network.state_dict()
    assert all(torch.equal(states[k], v) for k, v in second.network.state_dict().items())


def test_folded_weights_take_raw_actions_and_poses(make):
    network, batch = make().network, make().play.sequences(np.random.default_rng(0), 2, 3)
    with torch.no_grad():
        expected = network(batch.z[:, :-1], batch.actions, batch.poses[:, :-1])
        found = network.folded()(batch.z[:, :-1], batch.actions, batch.poses[:, :-1])
    found = torch.nn.functional.layer_norm(found, found.shape[-1:])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("file_type", "near"), [("f32", 1e-4), ("f16", 2e-2)])
def test_the_bundle_is_the_trained_world_model(make, arm_data, tmp_path, file_type, near):
    trainer = make()
    trainer.run()
    path = export_ac(trainer, tmp_path / "tiny.gguf", TASK, file_type, {"encoder_steps": "6"})
    model = load_world_model(path, CPU)
    frames = torch.from_numpy(np.array(arm_data.frames[:2, :1]))
    z = model.encode(model.preprocess(frames))
    with torch.no_grad():
        known = trainer.encoder.encode(frames[:, 0])
    torch.testing.assert_close(z[:, 0], known, rtol=near, atol=near)
    batch = trainer.play.sequences(np.random.default_rng(3), 4, 3)
    with torch.no_grad():
        expected = rollout(trainer.network, batch, CPU)
    context = Context(batch.z[:, :1], batch.actions[:, :0], batch.poses[:, :1])
    found = model.rollout(context, batch.actions[:, None])[:, 0]
    torch.testing.assert_close(found, expected, rtol=near, atol=near)


def test_an_exact_predictor_has_no_error_and_finds_every_action():
    rng = np.random.default_rng(0)
    actions = torch.from_numpy(rng.uniform(-0.05, 0.05, (20, 6, 7))).float()
    poses = torch.cat([torch.zeros(20, 1, 7), actions.cumsum(1)], 1)
    z = 20 * poses[:, :, None, :3]

    def predict(z, actions, poses):
        return z + 20 * actions[:, :, None, :3]

    found = probe_predictor(predict, LatentPlay(z, actions, poses), CPU)
    assert found.error_1 < 1e-5 and found.error_4 < 1e-5 and found.copy_4 > 0.1
    assert found.rank == 0 and found.top_10 == 1 and found.best_cm < 1e-4
    blind = probe_predictor(lambda z, a, p: z, LatentPlay(z, actions, poses), CPU)
    assert blind.error_1 == blind.copy_1 and blind.error_4 == pytest.approx(blind.copy_4)


def test_the_goal_map_tells_the_state_in_tolerances():
    rng = torch.Generator().manual_seed(0)
    states, mix = torch.randn(400, 2, generator=rng), torch.randn(2, 6, generator=rng)
    z = (states @ mix)[:, None] + 0.01 * torch.randn(400, 3, 6, generator=rng)
    found = torch.tensor(fit_goal_map(z, states, 0.05)).view(2, 6)
    gap = (z[1] - z[0]) @ found.T  # every token says it
    expected = ((states[1] - states[0]) / 0.05).expand(3, 2)
    torch.testing.assert_close(gap, expected, rtol=0.05, atol=0.5)


def test_refusals_name_what_is_wrong(dataset, encoder, ac_run, make, tmp_path):
    with pytest.raises(ConfigError, match=r"PushT.*blocks of 5.*env=reach"):
        ACTrainer(ac_run, encoder, dataset, None, tmp_path, CPU)
    with pytest.raises(ConfigError, match=r"rollout_steps=5.*n_frames=4"):
        replace(ac_run, rollout_steps=5)
    with pytest.raises(ConfigError, match="7 numbers each"):
        replace(TASK, low=(0.0, 0.0))
    with pytest.raises(ConfigError, match="13 frames"):
        make().play.sequences(np.random.default_rng(0), 1, 13)
