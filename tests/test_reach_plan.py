"""Planning and collecting in Reach from the command line: a task has its own numbers."""

import json
import sys

import numpy as np
import pytest
from hydra import compose, initialize_config_module

from jepa_wm import collect, plan
from jepa_wm.envs.reach import Reach
from jepa_wm.envs.reach_play import play
from jepa_wm.envs.reach_worlds import ReachWorlds
from jepa_wm.launch import launch
from jepa_wm.training.dataset import PlayDataset

FAST = ["model=simulator", "planner.num_samples=48", "planner.num_elites=6", "planner.iterations=4",
        "planner.horizon=4", "planner.init_std=[0.05,0.05,0.05,0,0,0,0]", "video=none",
        "threads=1"]  # fmt: skip


def run(main, name, arguments, monkeypatch, capsys, folder):
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    launch(main, name)
    return capsys.readouterr().out


@pytest.fixture
def planned(monkeypatch, capsys, tmp_path):
    def call(*arguments):
        given = [*FAST, "output=json", *arguments]
        return json.loads(run(plan.main, "plan", given, monkeypatch, capsys, tmp_path))

    return call


@pytest.mark.parametrize(
    ("env", "offset", "budget"), [("pusht", 25, 50), ("reach", 12, 20), ("push", 20, 40)]
)
def test_every_task_has_its_own_protocol_and_the_command_line_wins(env, offset, budget):
    with initialize_config_module("jepa_wm.conf", version_base=None):
        own = compose("plan", overrides=[f"env={env}"])
        told = compose("plan", overrides=[f"env={env}", "goal_offset=7", "budget=9"])
    assert (own.goal_offset, own.budget) == (offset, budget)
    assert (told.goal_offset, told.budget) == (7, 9)


def test_the_gripper_is_planned_to_its_goal(planned):
    document = planned("env=reach", "episodes=6", "num_envs=3")
    assert document["rules"]["proprio"] == "proprio" and document["rules"]["budget"] == 20
    rates = {name: found["rate"] for name, found in document["policies"].items()}
    assert rates["planner"] == rates["replay"] == 1 and rates["no-op"] == 0
    assert rates["random"] < 0.7, rates


def test_goals_can_be_the_environments_own(planned):
    document = planned("env=reach", "episodes=2", "goal=env", "baselines=false", "num_envs=2")
    assert document["policies"]["planner"]["rate"] == 1


def test_blocks_that_are_at_their_goal_are_left_out_and_counted(planned):
    """A goal a few steps ahead often has the block where it is: that success is nobody's."""
    document = planned("env=push", "episodes=12", "num_envs=12", "goal_offset=8", "budget=8")
    policies = document["policies"]
    left = policies["planner"]["count"]
    assert 0 < left < 12 and policies["planner"]["presolved"] == 12 - left
    assert {found["count"] for found in policies.values()} == {left}
    assert policies["no-op"]["rate"] == 0 and policies["replay"]["rate"] == 1


@pytest.mark.parametrize(("env", "push"), [("reach", 0.35), ("push", 0.9)])
def test_collected_play_is_the_environments(env, push, monkeypatch, capsys, tmp_path):
    given = [f"env={env}", "out=play", "episodes=3", "steps=12", "image_size=64", "seed=5"]
    run(collect.main, "collect", given, monkeypatch, capsys, tmp_path)
    data, recorded = PlayDataset(tmp_path / "play"), play(5, 3, 12, push=push, jitter=0.3)
    assert data.info.env == f"jepa_wm/Reach-v0 ({env})"
    assert (data.info.block, data.info.action_dim, data.info.state_dim) == (1, 7, 10)
    assert np.array_equal(data.states, recorded.states.astype(np.float32))
    assert np.array_equal(data.actions, recorded.actions)
    frame = Reach(render_size=256).render_state(recorded.states[2, 7])
    assert np.array_equal(data.frames[2, 7], collect.shrink(frame[None], 64)[0])
    worlds = ReachWorlds(3)
    worlds.set_states(recorded.states[:, 0])
    worlds.act(data.actions[:, 0])
    assert np.array_equal(worlds.states(), recorded.states[:, 1])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["env=push", "out=play", "episodes=1", "steps=2"], "another collection"),
        (["env=reach", "out=other", "model=x.gguf"], "in PushT only"),
        (["env=nope"], "push pusht reach"),
    ],
)
def test_collect_refuses_in_one_line(given, words, monkeypatch, capsys, tmp_path):
    if words == "another collection":
        first = ["env=reach", "out=play", "episodes=1", "steps=2"]
        run(collect.main, "collect", first, monkeypatch, capsys, tmp_path)
    with pytest.raises(SystemExit):
        run(collect.main, "collect", given, monkeypatch, capsys, tmp_path)
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith("error: ") and words in said
    assert not (tmp_path / "other").exists()
