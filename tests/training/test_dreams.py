"""Collecting from a planner's plans: what is stored is what the simulator did."""

import numpy as np
import pytest
from bundle.tiny import TINY_LEWM, random_tensors

from jepa_wm.bundle.writer import write_bundle
from jepa_wm.collect import CollectConfig, collect
from jepa_wm.envs.play import PlayWorlds
from jepa_wm.errors import ConfigError
from jepa_wm.training.dataset import PlayDataset


@pytest.fixture
def model(tmp_path):
    return str(write_bundle(tmp_path / "tiny.gguf", TINY_LEWM, random_tensors(TINY_LEWM, 0)))


def config(tmp_path, model, **changes):
    values = {
        "out": tmp_path / "dreams", "episodes": 12, "steps": 25, "block": 5, "image_size": 16,
        "seed": 1, "workers": 1, "jitter": 0.0, "model": model,
    }  # fmt: skip
    return CollectConfig(**(values | changes))


def test_stored_outcomes_are_the_simulators(tmp_path, model):
    collect(config(tmp_path, model))
    data = PlayDataset(tmp_path / "dreams")
    assert data.states.shape == (12, 6, 7) and data.actions.shape == (12, 5, 10)
    worlds = PlayWorlds(12)
    worlds.set_states(np.asarray(data.states[:, 0], np.float64))
    for block in range(5):
        for step in range(5):
            worlds.act(data.actions[:, block, 2 * step : 2 * step + 2])
        np.testing.assert_allclose(worlds.states(), data.states[:, block + 1], atol=0.05)


def test_an_episode_is_a_plan(tmp_path, model):
    with pytest.raises(ConfigError, match="steps=25"):
        config(tmp_path, model, steps=50)
