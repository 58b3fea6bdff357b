"""Every recipe composes into its trainer's configuration; encoder and predictor by the commands."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_module
from omegaconf import OmegaConf

import jepa_wm.conf
from jepa_wm.bundle.reader import Bundle
from jepa_wm.envs.reach import Reach
from jepa_wm.errors import ConfigError
from jepa_wm.models import load_world_model
from jepa_wm.runtime import has_fast_bfloat16
from jepa_wm.train import TRAINERS, main, run_config, settle_amp, train_config
from jepa_wm.training.ac import ACRun, PredictorSizes
from jepa_wm.training.masked import EncoderRun
from jepa_wm.training.masked_network import EncoderSizes

CPU = torch.device("cpu")
RECIPES = sorted(p.stem for p in (Path(jepa_wm.conf.__path__[0]) / "recipe").glob("*.yaml"))


def options(*overrides):
    with initialize_config_module("jepa_wm.conf", version_base=None):
        return OmegaConf.to_container(compose("train", overrides=list(overrides)), resolve=True)


def test_every_recipe_has_its_trainer():
    assert {options(f"recipe={name}")["trainer"] for name in RECIPES} == set(TRAINERS)


def test_the_yaml_is_the_configuration():
    assert train_config(options()).network.image_size == 64
    encoder = run_config(options("recipe=encoder"), EncoderRun, EncoderSizes)
    assert encoder.mask_share == (0.15, 0.75) and encoder.network.patch_size == 16
    predictor = run_config(options("recipe=ac", "loss.rollout_steps=3"), ACRun, PredictorSizes)
    assert predictor.rollout_steps == 3


def test_the_bounds_are_the_environments():
    task, box = options("recipe=ac")["task"], Reach().action_space
    assert task["low"] == pytest.approx(box.low.tolist())
    assert task["high"] == pytest.approx(box.high.tolist())


def test_a_misspelt_size_is_refused_by_name():
    wrong = options("recipe=encoder", "+network.depth=3")
    with pytest.raises(ConfigError, match="depth"):
        run_config(wrong, EncoderRun, EncoderSizes)
    with pytest.raises(ConfigError, match="init="):
        main(options("recipe=encoder", "init=other.pt"))


def test_bfloat16_is_used_where_it_is_fast():
    found = settle_amp(options(), CPU)
    assert found["amp"] is has_fast_bfloat16(CPU) and train_config(found).amp is found["amp"]
    assert settle_amp(options("amp=true"), CPU)["amp"] is True
    with pytest.raises(ConfigError, match="amp='maybe' must be auto"):
        settle_amp(options("amp=maybe"), CPU)


@pytest.mark.parametrize("began", [True, False])
def test_a_continued_run_keeps_the_precision_it_began_with(began, tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"step": 1, "config": {"amp": began}}, path)
    assert settle_amp(options(f"resume={path}"), CPU)["amp"] is began
    torch.save(torch.zeros(2), path)  # refused by the trainer, which says why
    assert settle_amp(options(f"resume={path}"), CPU)["amp"] is has_fast_bfloat16(CPU)
    with pytest.raises(ConfigError, match="no such checkpoint"):
        settle_amp(options(f"resume={tmp_path / 'other.pt'}"), CPU)


@pytest.mark.slow
def test_encoder_and_predictor_by_the_commands(arm_folder, tmp_path):
    def train(*given):
        command = [sys.executable, "-m", "jepa_wm.train", f"data={arm_folder}", "batch=4", *given]
        short = ("steps=2", "warmup=1", "log_every=1", "device=cpu", "network.n_head=2")
        return subprocess.run(
            [*command, *short, "network.n_layer=1"], cwd=tmp_path, capture_output=True, text=True
        )

    sizes = ("image_size=16", "patch_size=4", "embed_dim=24", "pred_dim=24", "pred_heads=2")
    done = train("recipe=encoder", "out=enc", *(f"network.{size}" for size in sizes))
    assert done.returncode == 0 and "r2_place" in done.stdout, done.stderr
    done = train("recipe=ac", "encoder=enc/checkpoint.pt", "out=ac", "network.embed_dim=24")
    assert done.returncode == 0 and "best_cm" in done.stdout, done.stderr
    assert (tmp_path / "ac" / "curves.png").is_file()
    world = load_world_model(tmp_path / "ac" / "vjepa2-ac.gguf", CPU)
    assert (world.action_dim, world.history) == (7, 4)
    bundle = Bundle.open(tmp_path / "ac" / "vjepa2-ac.gguf")
    assert bundle.get("jepa_wm.action.std") == (1.0,) * 7
    assert bundle.get("jepa_wm.source.encoder_steps") == "2"
    done = train("recipe=ac", "encoder=absent.pt", "out=other")
    assert done.returncode and done.stderr.count("\n") == 1 and "absent.pt" in done.stderr
