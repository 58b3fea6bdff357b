import socket

import pytest

from jepa_wm.collect import CollectConfig, collect
from jepa_wm.training.dataset import PlayDataset
from jepa_wm.training.lewm import TrainConfig
from jepa_wm.training.network import NetworkConfig


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
