"""A LeWM learns from the play of Wall and of Maze, and plans in them."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from jepa_wm import plan
from jepa_wm.bundle.reader import Bundle
from jepa_wm.collect import CollectConfig, collect_chunk, prepare
from jepa_wm.launch import launch, preset_node
from jepa_wm.training.dataset import PlayDataset
from jepa_wm.training.export import export
from jepa_wm.training.lewm import Trainer
from jepa_wm.training.loop import figures


@pytest.mark.parametrize(("env", "told", "high"), [("wall", "dot", 1.8), ("maze", "ball", 1.0)])
def test_a_lewm_trains_on_play_and_its_bundle_plans(
    env, told, high, config, tmp_path, monkeypatch, capsys
):
    collected = CollectConfig(
        out=tmp_path / "play", episodes=4, steps=30, block=5, image_size=16, seed=3, workers=1,
        jitter=0.3, model=None, env=preset_node("env", env), task=preset_node("task", env),
    )  # fmt: skip
    info = prepare(collected)
    replace(info, done=collect_chunk(collected, 0, 4)).save(collected.out)
    data = PlayDataset(collected.out)

    trainer = Trainer(config, data, None, tmp_path, torch.device("cpu"))
    before = trainer.losses(0)[0]["state"].item()
    trainer.run()
    assert f"r2_{told}" in figures(trainer.probe(windows=8))
    assert trainer.losses(0)[0]["state"].item() < before
    trainer.recalibrate()
    path = export(trainer, tmp_path / "tiny.gguf")
    assert Bundle.open(path).get("jepa_wm.action.high") == pytest.approx((high, high))

    given = [f"env={env}", f"model={path}", "episodes=1", "budget=10", "video=none", "threads=1",
             "planner.num_samples=16", "planner.num_elites=4", "planner.iterations=2",
             "planner.horizon=2", "output=json", "baselines=false"]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["plan", *given])
    launch(plan.main, "plan")
    document = json.loads(capsys.readouterr().out)
    assert document["policies"]["planner"]["count"] == 1
    assert np.isfinite(data.states).all()
