import socket

import numpy as np
import pytest

from jepa_wm.collect import CollectConfig, collect
from jepa_wm.envs.reach_play import play
from jepa_wm.envs.reach_rendering import ReachRenderer
from jepa_wm.training.ac import ACRun, PredictorSizes
from jepa_wm.training.dataset import DatasetInfo, PlayDataset
from jepa_wm.training.lewm import TrainConfig
from jepa_wm.training.masked import EncoderRun
from jepa_wm.training.masked_network import EncoderSizes
from jepa_wm.training.network import NetworkConfig

RUN = {
    "steps": 6, "batch": 8, "learning_rate": 2e-3, "warmup": 2, "weight_decay": 0.01,
    "betas": (0.9, 0.98), "clip": 1.0, "seed": 5, "amp": False, "log_every": 2, "probe_every": 0,
    "save_every": 100,
}  # fmt: skip


@pytest.fixture
def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def play_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("play")
    collect(
        CollectConfig(
            out=folder,
            episodes=6,
            steps=40,
            block=5,
            image_size=16,
            seed=3,
            workers=1,
            jitter=0.3,
            model=None,
        )
    )
    return folder


@pytest.fixture
def dataset(play_folder):
    return PlayDataset(play_folder)


@pytest.fixture
def config():
    network = NetworkConfig(
        image_size=16, patch_size=8, embed_dim=16, latent_dim=4, enc_layers=1, enc_heads=2,
        pred_layers=1, pred_heads=2, pred_head_dim=8, pred_ffn_dim=32, proj_hidden=16, n_frames=3,
    )  # fmt: skip
    return TrainConfig(
        network=network, steps=6, batch=8, learning_rate=1e-3, warmup=2, weight_decay=0.01,
        betas=(0.9, 0.98), clip=1.0, sigreg_weight=0.05, sigreg_directions=16,
        sigreg_over="batch_time", rollout_weight=0.5, state_weight=2.0, seed=5, amp=False,
        log_every=2, probe_every=0, save_every=100, recalibrate=3,
    )  # fmt: skip


@pytest.fixture(scope="session")
def arm_folder(tmp_path_factory):
    """Play of an arm: 8 episodes of 12 steps at 16 px."""
    folder = tmp_path_factory.mktemp("arm")
    episodes, renderer = play(4, 8, 12), ReachRenderer(16)
    frames = [[renderer.render(state) for state in states] for states in episodes.states]
    np.save(folder / "frames.npy", np.array(frames))
    np.save(folder / "states.npy", episodes.states.astype(np.float32))
    np.save(folder / "actions.npy", episodes.actions)
    DatasetInfo(
        episodes=8, done=8, frames=13, image_size=16, block=1, action_dim=7, seed=4, env="Reach",
        state_dim=10,
    ).save(folder)  # fmt: skip
    return folder


@pytest.fixture
def arm_data(arm_folder):
    return PlayDataset(arm_folder)


@pytest.fixture
def encoder_run():
    network = EncoderSizes(
        image_size=16, patch_size=4, embed_dim=24, n_layer=1, n_head=2, pred_dim=24, pred_layers=1,
        pred_heads=2,
    )  # fmt: skip
    return EncoderRun(
        network=network, frames=2, still_share=0.3, mask_share=(0.2, 0.6), ema=(0.9, 0.99),
        state_weight=1.0, state_columns=(0, 1, 2, 7, 8), **RUN,
    )  # fmt: skip


@pytest.fixture
def ac_run():
    network = PredictorSizes(embed_dim=24, n_layer=1, n_head=2, n_frames=4)
    return ACRun(network=network, rollout_steps=3, rollout_weight=1.0, **RUN)
