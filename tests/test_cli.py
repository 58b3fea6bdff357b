"""Every command in a fresh process: what it prints, what it writes, how it refuses."""

import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from jepa_wm import __main__, plan
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.launch import launch

from bundle.tiny import TINY_LEWM, random_tensors  # isort: skip

ACTIONS = {
    "jepa_wm.action.block": 5,
    "jepa_wm.action.mean": [0.0, 0.0],
    "jepa_wm.action.std": [0.3, 0.3],
}
FAST = ["episodes=3", "num_envs=2", "planner.iterations=2", "planner.num_samples=8",
        "planner.num_elites=3", "budget=10", "goal_offset=10", "threads=1"]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    meta = TINY_LEWM | ACTIONS | {"jepa.pred.action_dim": 10}
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return write_bundle(path, meta, random_tensors(meta, 0))


def run(module, *arguments, cwd, ok=True):
    done = subprocess.run(
        [sys.executable, "-m", f"jepa_wm.{module}" if module else "jepa_wm", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=900,
        env=os.environ | {"SDL_VIDEODRIVER": "dummy"},
    )  # fmt: skip
    if ok:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    return done


@pytest.fixture(scope="module")
def planned(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    done = run("plan", f"model={model}", *FAST, "seed=1", "ceiling=true", cwd=folder)
    return folder, done


def test_plan_says_what_it_does_and_compares(planned, model):
    _, done = planned
    for word in (str(model), "cpu", "CEM", "held-out play", "success_pose", "from the bundle"):
        assert word in done.stdout
    for policy in ("random", "no-op", "replay", "simulator", "95 % interval"):
        assert policy in done.stdout
    assert "CEM" in done.stderr and "%" in done.stderr  # the progress bar
    # whose first step plans for those after it: no rate is told by it alone
    assert "?step/s" not in done.stderr and re.search(r"step/s\]|s/step\]", done.stderr)


def test_plan_writes_one_folder(planned):
    folder, _ = planned
    assert [path.name for path in folder.iterdir()] == ["outputs"]  # nothing else lies about
    (out,) = (folder / "outputs").iterdir()
    names = {path.name for path in out.iterdir()}
    assert names >= {"config.json", "episodes.jsonl", "episodes", "result.json", "episodes.gif",
                     "planner_cost.png", "goal_distance.png", "success.png"}  # fmt: skip
    records = [json.loads(line) for line in (out / "episodes.jsonl").read_text().splitlines()]
    assert [record["id"] for record in records] == [0, 1, 2]
    assert len({record["seed"] for record in records}) == 3
    assert len(list((out / "episodes").glob("*.npz"))) == 3
    stored = json.loads((out / "config.json").read_text())
    assert stored["options"]["planner"]["num_samples"] == 8 and "torch" in stored["versions"]


def test_json_is_one_document_and_the_same_whatever_runs_beside(planned, model, tmp_path):
    folder, _ = planned
    done = run("plan", f"model={model}", *FAST, "seed=1", "num_envs=3", "video=none",
               "output=json", "baselines=false", cwd=tmp_path)  # fmt: skip
    document = json.loads(done.stdout)
    assert document["policies"]["planner"]["count"] == 3
    (first,) = (folder / "outputs").iterdir()
    lines = [
        (first / "episodes.jsonl").read_text(),
        (next((tmp_path / "outputs").iterdir()) / "episodes.jsonl").read_text(),
    ]
    finals = [[json.loads(line)["final"] for line in text.splitlines()] for text in lines]
    assert finals[0] == finals[1]


def test_replayed_actions_reach_their_goals(tmp_path, model):
    """The protocol's ceiling: goal and recorded actions belong together."""
    done = run("plan", f"model={model}", *FAST, "episodes=8", "output=json", "video=none",
               "goal_offset=25", "budget=25", cwd=tmp_path)  # fmt: skip
    policies = json.loads(done.stdout)["policies"]
    assert policies["replay"]["rate"] >= 0.75 > policies["no-op"]["rate"]


def test_the_simulator_can_be_the_model(tmp_path):
    done = run(
        "plan", "model=simulator", *FAST, "episodes=1", "output=json", "video=none", cwd=tmp_path
    )
    assert json.loads(done.stdout)["model"]["family"] == "simulator"


@pytest.mark.parametrize("suffix", [".png", ".npy"])
def test_the_goal_can_be_a_picture(tmp_path, model, suffix):
    picture = np.full((64, 64, 3), 200, np.uint8)
    path = tmp_path / f"goal{suffix}"
    np.save(path, picture) if suffix == ".npy" else Image.fromarray(picture).save(path)
    done = run("plan", f"model={model}", *FAST, f"goal={path}", "video=none", cwd=tmp_path)
    assert "not scored" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["env=nope"], ["env/nope", "pusht"]),
        (["planner=nope"], ["cem", "mppi"]),
        (["planer=mppi"], ["planer"]),
        (["planner.num_sample=3"], ["num_sample"]),
        (["planner.num_elites=9999"], ["num_elites"]),
        (["model=null"], ["model is required"]),
        (["model=1e5"], ["quote"]),
        (["model=absent.gguf"], ["absent.gguf", "lewm.gguf"]),
        (["model=epoch=3-step=9.gguf"], ["model=\"epoch"]),
        (["goal=nowhere"], ["play", "env", "picture"]),
        (["episodes=0"], ["episodes=0"]),
        (["video=avi"], ["gif", "mp4"]),
        (["output=xml"], ["json"]),
        (["device=tpu"], ["cpu, cuda"]),
        (["dtype=int4"], ["bfloat16"]),
        (["replan_every=9"], ["replan_every=9"]),
        (["planner=cem_ac"], ["7 numbers", "10"]),
        (["chunk=many"], ["chunk='many'", "auto"]),
        (["memory=0"], ["memory=0", "GiB"]),
        (["seed=-1"], ["seed=-1", ">= 0"]),
        (["planner_seed=-1"], ["planner_seed=-1", ">= 0"]),
        (["goal_offset=2.5"], ["goal_offset=2.5", "whole number"]),
        (["goal_offset=null"], ["goal_offset=None"]),
        (["history=x"], ["history='x'", "null"]),
        (["history=1.5"], ["history=1.5", "null"]),
        (["threads=0"], ["threads=0", "null"]),
        (["threads=1.5"], ["threads=1.5", "null"]),
        (["threads=many"], ["threads='many'", "auto", "null"]),
        (["film=x"], ["film='x'", "whole number"]),
        (["warm_start=x"], ["warm_start='x'", "true or false"]),
        (["shrink_horizon=3"], ["shrink_horizon=3", "true or false"]),
        (["baselines=3"], ["baselines=3", "true or false"]),
        (["planner=null"], ["group", "NoneType"]),
        (["out=/dev/null"], ["out=/dev/null", "File exists", "choose another"]),
        (["out=/dev/null/x"], ["out=/dev/null/x", "Not a directory"]),
    ],
)  # fmt: skip
def test_plan_refuses_in_one_line(arguments, words, tmp_path, model, monkeypatch, capsys):
    given = [] if arguments[0].startswith("model=") else [f"model={model}"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["plan", *given, *arguments])
    with pytest.raises(SystemExit) as exit_status:  # in this process: sixteen imports cost a minute
        launch(plan.main, "plan")
    assert exit_status.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1, said
    assert all(word in said for word in words), said
    assert not list(tmp_path.glob("outputs/*/episodes.jsonl"))


def test_a_refusal_is_one_line_in_a_fresh_process(tmp_path):
    assert "pusht" in run("plan", "env=nope", cwd=tmp_path, ok=False).stderr


def test_odd_paths_work_with_the_quoting_the_error_shows(tmp_path, model):
    odd = tmp_path / "epoch=3-step=9 (1).gguf"
    odd.write_bytes(model.read_bytes())
    run("plan", f'model="{odd.name}"', *FAST, "episodes=1", "video=none", "baselines=false",
        cwd=tmp_path)  # fmt: skip


def test_a_bundle_without_statistics_takes_the_environments(tmp_path):
    meta = {k: v for k, v in TINY_LEWM.items() if not k.startswith("jepa_wm.action.")}
    write_bundle(tmp_path / "bare.gguf", meta, random_tensors(meta, 0))
    done = run("plan", "model=bare.gguf", *FAST, "episodes=1", "video=none", cwd=tmp_path)
    assert "DINO-WM" in done.stdout
    done = run("plan", "model=bare.gguf", *FAST, "task.action=null", cwd=tmp_path, ok=False)
    assert "no action statistics" in done.stderr


@pytest.mark.parametrize("module", ["", "plan", "collect", "train", "info", "convert"])
def test_version_names_what_can_change_a_result(module, tmp_path):
    done = run(module, "--version", cwd=tmp_path)
    for name in ("jepa_wm", "torch", "gguf", "gymnasium", "pymunk"):
        assert name in done.stdout


@pytest.mark.parametrize("module", ["plan", "collect", "train", "info", "convert"])
def test_help_exits_zero(module, tmp_path):
    assert run(module, "--help", cwd=tmp_path).stdout


TOOLS = ["info", "embed", "classify", "predict", "check", "quantize", "convert"]


@pytest.mark.parametrize("module", TOOLS)
def test_help_of_a_file_tool_names_what_it_takes(module, capsys):
    """In this process: these are plain argparse."""
    with pytest.raises(SystemExit) as status:
        importlib.import_module(f"jepa_wm.{module}").main(["--help"])
    said = capsys.readouterr().out
    assert status.value.code == 0 and f"python -m jepa_wm.{module}" in said


def test_the_package_lists_its_commands(capsys):
    __main__.main()
    listed = capsys.readouterr().out.partition("commands: ")[2].strip().split(", ")
    files = Path(plan.__file__).parent.glob("*.py")
    runs = [p.stem for p in files if '__name__ == "__main__"' in p.read_text()]
    assert listed == sorted(set(runs) - {"__main__"}) and set(TOOLS) < set(listed)


def test_collect_continues_and_refuses_another_collection(tmp_path):
    small = ["out=play", "steps=10", "image_size=16"]
    run("collect", *small, "episodes=2", cwd=tmp_path)
    before = np.load(tmp_path / "play" / "states.npy")
    run("collect", *small, "episodes=2", cwd=tmp_path)  # done already
    assert np.array_equal(before, np.load(tmp_path / "play" / "states.npy"))
    done = run("collect", *small, "episodes=2", "seed=1", cwd=tmp_path, ok=False)
    assert "another collection" in done.stderr


def test_train_refuses_a_missing_dataset_and_a_missing_checkpoint(tmp_path):
    done = run("train", "data=nothing", cwd=tmp_path, ok=False)
    assert "jepa_wm.collect" in done.stderr
    run("collect", "out=play", "steps=20", "episodes=2", "image_size=64", cwd=tmp_path)
    done = run("train", "data=play", "resume=absent.pt", cwd=tmp_path, ok=False)
    assert "no such checkpoint" in done.stderr


def test_importing_the_package_is_light():
    code = (
        "import jepa_wm, sys; print(sorted({'matplotlib', 'pygame', 'hydra'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert torch.get_num_threads() >= 1
