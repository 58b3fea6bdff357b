"""Multirun: every command of docs/clusters.md runs here, and gives the episodes of a plain run."""

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from bundle.tiny import TINY_LEWM, random_tensors

from jepa_wm import plan
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.launch import compose, launch

DOCUMENT = (Path(__file__).parent.parent / "docs" / "clusters.md").read_text()
BLOCKS = [block.replace("\\\n", " ") for block in re.findall(r"```bash\n(.*?)```", DOCUMENT, re.S)]
COMMANDS = [block.strip() for block in BLOCKS if "jepa_wm.plan -m" in block]
TINY = ("episodes=1", "num_envs=1", "planner.iterations=1", "planner.num_samples=8", "budget=5",
        "planner.num_elites=3", "video=none", "baselines=false", "env.render_size=64",
        "env.terminate=false", "threads=1")  # fmt: skip
HERE = {"joblib": "hydra_plugins.hydra_joblib_launcher", "ray": "hydra_plugins.hydra_ray_launcher",
        "submitit_local": "hydra_plugins.hydra_submitit_launcher"}  # fmt: skip
ELSEWHERE = ("ray.init.address", "submitit_slurm")  # clusters: their options are looked at


def launcher_of(command):
    return (re.search(r"hydra/launcher=(\w+)", command) or [None, "basic"])[1]


def needs(launcher):
    """Skip where a launcher is not installed."""
    module = HERE.get(launcher.replace("slurm", "local"))
    if module is not None and importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model, and what a plain multirun does in it."""
    folder = tmp_path_factory.mktemp("multirun")
    keys = {"block": 5, "mean": [0.0, 0.0], "std": [0.3, 0.3]}
    meta = TINY_LEWM | {f"jepa_wm.action.{key}": value for key, value in keys.items()}
    meta |= {"jepa.pred.action_dim": 10}
    write_bundle(folder / "tiny.gguf", meta, random_tensors(meta, 0))
    (plain,) = [command for command in COMMANDS if launcher_of(command) == "basic"]
    return folder, episodes(run(plain, folder))


def run(command, folder, *more):
    """Run a command of the document, made small; return the folder it wrote."""
    before = set(folder.glob("outputs/*"))
    words = [word for word in shlex.split(command) if "=" not in word or word[0] != "R"]
    done = subprocess.run(
        [sys.executable, *words[1:], "model=tiny.gguf", *TINY, *more],
        cwd=folder, capture_output=True, text=True, timeout=900,
        env=os.environ | {"SDL_VIDEODRIVER": "dummy", "OMP_NUM_THREADS": "1",
                          "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (new,) = set(folder.glob("outputs/*")) - before
    return new


def episodes(folder):
    """What came out of every run, by what it was asked for."""
    found = {}
    for path in folder.glob("*/config.json"):
        options = json.loads(path.read_text())["options"]
        lines = (path.parent / "episodes.jsonl").read_text().splitlines()
        records = [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in lines]
        found[options["preset"]["planner"], options["seed"]] = records
    return found


def test_a_multirun_is_one_folder(folder):
    root, found = folder
    assert set(found) == {("cem", 0), ("cem", 1), ("mppi", 0), ("mppi", 1)}
    assert sorted(path.name for path in root.iterdir()) == ["outputs", "tiny.gguf"]
    (out,) = [path for path in root.glob("outputs/*") if not (path / ".submitit").exists()][:1]
    assert {path.name for path in out.iterdir()} == {"multirun.yaml", "0", "1", "2", "3"}
    assert len({json.dumps(records) for records in found.values()}) == 4


@pytest.mark.slow
@pytest.mark.parametrize("launcher", HERE)
def test_a_launcher_gives_the_same_episodes(launcher, folder):
    needs(launcher)
    root, expected = folder
    (command,) = [
        one for one in COMMANDS
        if launcher_of(one) == launcher and not any(word in one for word in ELSEWHERE)
    ]  # fmt: skip
    small = ["+hydra.launcher.ray.init.object_store_memory=100000000"] if launcher == "ray" else []
    assert episodes(run(command, root, *small)) == expected


@pytest.mark.parametrize("command", [c for c in COMMANDS if any(word in c for word in ELSEWHERE)])
def test_the_options_of_a_cluster_are_a_launchers_own(command):
    needs(launcher_of(command))
    words = shlex.split(command)
    given = [word for word in words[words.index("-m", 3) + 1 :] if word.partition("=")[0] in (
        "threads", "hydra/launcher") or "hydra.launcher" in word]  # fmt: skip
    options, _ = compose("plan", given)
    assert options["threads"] == 1


def test_every_launcher_is_documented_with_its_extra():
    assert {launcher_of(command) for command in COMMANDS} == {"basic", *HERE, "submitit_slurm"}
    project = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    for extra in ("joblib", "ray", "submitit"):
        assert f"pip install 'jepa_wm[{extra}]'" in DOCUMENT
        assert re.search(rf"^{extra} = ", project, re.M)


def test_a_failed_job_is_one_line_with_its_name_and_the_others_ran(
    folder, tmp_path, monkeypatch, capsys
):
    model = folder[0] / "tiny.gguf"
    tiny = [word for word in TINY if "num_elites" not in word]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        sys, "argv", ["plan", "-m", f"model={model}", *tiny, "planner.num_elites=99,3"]
    )
    with pytest.raises(SystemExit) as status:
        launch(plan.main, "plan")
    said = re.split(r"[\r\n]+", capsys.readouterr().err)
    lines = [line for line in said if line and "at a time: " not in line]  # without the bar
    assert status.value.code == 1 and len(lines) == 1, lines
    assert lines[0].startswith("error: job 0 (") and "planner.num_elites=99" in lines[0]
    (out,) = tmp_path.glob("outputs/multirun_*")
    assert str(out) in lines[0]
    assert "num_elites=99" in (out / "0" / "error.txt").read_text()
    assert (out / "1" / "result.json").is_file() and not (out / "1" / "error.txt").exists()


def test_a_misspelt_multirun_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["plan", "-m", "planer=cem,mppi"])
    with pytest.raises(SystemExit):
        launch(plan.main, "plan")
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and "did you mean planner" in said


def test_a_launcher_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["plan", "-m", "seed=0,1", "hydra/launcher=nowhere"])
    with pytest.raises(SystemExit):
        launch(plan.main, "plan")
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and "launcher" in said, said
