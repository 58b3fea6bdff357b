"""The encoder trainer: masks, the slow copy, learning, collapse, exact resume, export."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from jepa_wm.errors import ConfigError
from jepa_wm.models import load
from jepa_wm.training.encoder_probe import probe_encoder, rank_correlation
from jepa_wm.training.export_vjepa2 import export_encoder, load_encoder
from jepa_wm.training.masked import EncoderTrainer
from jepa_wm.training.masking import block_mask

CPU = torch.device("cpu")


@pytest.mark.parametrize("grid", [(1, 4, 4), (2, 4, 4), (2, 8, 8), (1, 2, 2)])
@pytest.mark.parametrize("share", [0.05, 0.4, 0.75])
def test_a_mask_hides_at_least_its_share_and_never_all(grid, share):
    for seed in range(20):
        seen, hidden = block_mask(np.random.default_rng(seed), grid, share)
        both = torch.cat([seen, hidden]).sort().values
        assert torch.equal(both, torch.arange(int(np.prod(grid))))
        assert len(seen) and len(hidden) >= share * len(both)


def test_blocks_cover_one_frame_or_all():
    masks = []
    for seed in range(30):
        hidden = torch.zeros(2 * 16, dtype=torch.bool)
        hidden[block_mask(np.random.default_rng(seed), (2, 4, 4), 0.05).target] = True
        masks.append(hidden.view(2, 16))
    same = [bool((first == second).all()) for first, second in masks]
    one = [not (first.any() and second.any()) for first, second in masks]
    assert sum(same) > 5 and sum(one) > 5


def test_a_mask_is_its_seeds():
    first, second = (block_mask(np.random.default_rng(7), (2, 8, 8), 0.6) for _ in range(2))
    assert torch.equal(first.target, second.target)


def test_the_target_follows_by_its_momentum(arm_data, encoder_run, tmp_path):
    trainer = EncoderTrainer(replace(encoder_run, ema=(0.5, 0.9)), arm_data, None, tmp_path, CPU)
    trainer.step = 3  # of 6: halfway between the two
    before = trainer.network.target.norm.weight.clone()
    with torch.no_grad():
        trainer.network.enc.norm.weight.fill_(2.0)
    trainer.after_step()
    expected = 0.7 * before + 0.3 * 2.0
    torch.testing.assert_close(trainer.network.target.norm.weight.data, expected)


def test_only_the_encoder_learns_by_gradients(arm_data, encoder_run, tmp_path):
    trainer = EncoderTrainer(replace(encoder_run, ema=(1.0, 1.0)), arm_data, None, tmp_path, CPU)
    before = [p.clone() for p in trainer.network.target.parameters()]
    weight = trainer.network.enc.patch_embed.weight.clone()
    trainer.advance()
    after = trainer.network.target.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert not torch.equal(weight, trainer.network.enc.patch_embed.weight)


def test_hidden_patches_reach_the_target_alone(arm_data, encoder_run, tmp_path):
    """What is hidden changes what is to be predicted, and nothing that predicts it."""
    network = EncoderTrainer(encoder_run, arm_data, None, tmp_path, CPU).network
    frames = torch.from_numpy(arm_data.windows(np.random.default_rng(0), 2, 2).frames)
    changed = frames.clone()
    changed[:, 1] = 255 - changed[:, 1]
    first = torch.arange(16)  # the patches of the first frame
    with torch.no_grad():
        seen, also = (network.enc(network.clips(x), first) for x in (frames, changed))
        target, other = (network.target(network.clips(x))[:, 16:] for x in (frames, changed))
    assert torch.equal(seen, also) and not torch.allclose(target, other)


def test_losses_fall(arm_data, encoder_run, tmp_path):
    trainer = EncoderTrainer(replace(encoder_run, steps=120), arm_data, None, tmp_path, CPU)
    found = [{k: float(v) for k, v in trainer.advance()[0].items()} for _ in range(120)]
    for name in ("prediction", "state"):
        first, last = (np.mean([terms[name] for terms in part]) for part in (found[:5], found[-5:]))
        assert last < 0.96 * first, f"{name}: {first:.3f} -> {last:.3f}"


def test_a_token_tells_the_state_of_its_own_frame(arm_data, encoder_run, tmp_path):
    trainer = EncoderTrainer(encoder_run, arm_data, None, tmp_path, CPU)
    states = torch.from_numpy(arm_data.windows(np.random.default_rng(0), 3, 2).states)
    found = trainer.wanted(states, torch.tensor([1, 0, 1]))
    back = found * trainer.network.state_std + trainer.network.state_mean
    expected = states[:, [1, 0, 1]][..., [0, 1, 2, 7, 8]]
    torch.testing.assert_close(back, expected)


def test_without_weight_there_is_no_state_term(arm_data, encoder_run, tmp_path):
    pure = replace(encoder_run, state_weight=0.0)
    assert set(EncoderTrainer(pure, arm_data, None, tmp_path, CPU).losses(0)[0]) == {"prediction"}


def test_a_collapse_is_warned_of(arm_data, encoder_run, tmp_path):
    trainer = EncoderTrainer(replace(encoder_run, log_every=1), arm_data, None, tmp_path, CPU)
    with torch.no_grad():
        trainer.network.target.patch_embed.weight.zero_()  # every picture gets the same latents
    with pytest.warns(UserWarning, match="collapsing"):
        trainer.run()


def test_a_resumed_run_is_the_uninterrupted_one(arm_data, encoder_run, tmp_path):
    whole = EncoderTrainer(encoder_run, arm_data, None, tmp_path / "whole", CPU)
    whole.run()
    first = EncoderTrainer(encoder_run, arm_data, None, tmp_path / "half", CPU)
    for _ in range(3):
        first.advance()
    first.save()
    second = EncoderTrainer(encoder_run, arm_data, None, tmp_path / "half", CPU)
    second.resume(tmp_path / "half" / "checkpoint.pt")
    second.run()
    states = whole.network.state_dict()
    assert all(torch.equal(states[k], v) for k, v in second.network.state_dict().items())


def test_the_bundle_is_the_trained_encoder(arm_data, encoder_run, tmp_path):
    trainer = EncoderTrainer(encoder_run, arm_data, None, tmp_path, CPU)
    trainer.run()
    model = load(export_encoder(trainer, tmp_path / "tiny.gguf"), CPU)
    frames = torch.from_numpy(arm_data.windows(np.random.default_rng(1), 2, 2).frames)
    seen, hidden = torch.arange(16), torch.arange(16, 32)
    clips = trainer.network.clips(frames)
    with torch.no_grad():
        z = trainer.network.target(clips)
        expected = trainer.network.pred(trainer.network.target(clips, seen), seen, hidden).target
    pixels = model.preprocess(frames).repeat_interleave(2, 1)
    torch.testing.assert_close(model.encode(pixels), z, rtol=1e-4, atol=1e-5)
    found = model.predict(pixels, seen, hidden).target
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_an_encoder_comes_back_from_its_checkpoint(arm_data, encoder_run, tmp_path):
    trainer = EncoderTrainer(encoder_run, arm_data, None, tmp_path, CPU)
    trainer.run()
    network, origin = load_encoder(tmp_path / "checkpoint.pt", CPU)
    frames = torch.from_numpy(np.array(arm_data.frames[0]))
    with torch.no_grad():
        assert torch.equal(network.encode(frames), trainer.network.encode(frames))
    assert origin == {"encoder_steps": "6", "encoder_state_weight": "1.0"}


def test_refusals_name_what_is_wrong(arm_data, encoder_run, tmp_path):
    with pytest.raises(ConfigError, match=r"mask_share=\[0.6, 0.3\]"):
        replace(encoder_run, mask_share=(0.6, 0.3))
    with pytest.raises(ConfigError, match=r"state_columns=\[10\].*10 columns"):
        EncoderTrainer(replace(encoder_run, state_columns=(10,)), arm_data, None, tmp_path, CPU)
    wide = replace(encoder_run, network=replace(encoder_run.network, image_size=32))
    with pytest.raises(ConfigError, match=r"16 px.*32"):
        EncoderTrainer(wide, arm_data, None, tmp_path, CPU)
    torch.save({"step": 1, "config": {"network": {}}, "network": {}}, tmp_path / "other.pt")
    with pytest.raises(ConfigError, match="not a checkpoint of recipe=encoder"):
        load_encoder(tmp_path / "other.pt", CPU)


def test_the_probe_reads_what_is_there(arm_data):
    """Latents that are the state itself are read whole and order frames by distance."""
    places = {frame.tobytes(): s for e in range(arm_data.info.done)
              for frame, s in zip(arm_data.frames[e], arm_data.states[e], strict=True)}  # fmt: skip

    def encode(frames):
        states = np.stack([places[frame.numpy().tobytes()] for frame in frames])
        return torch.from_numpy(states[:, None, :3]).repeat(1, 2, 1)

    found = probe_encoder(encode, arm_data, (0, 1, 2), CPU, pairs=60)
    assert found.r2_place > 0.99 and found.order > 0.9 and found.r2_rest == 1.0


def test_rank_correlation_sees_order_alone():
    x = torch.tensor([0.1, 0.5, 0.2, 0.9])
    assert rank_correlation(x, x.exp()) == pytest.approx(1)
    assert rank_correlation(x, -x) == pytest.approx(-1)
