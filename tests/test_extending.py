"""The guide to extending the package, followed to the letter in an empty folder."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from jepa_wm import plan
from jepa_wm.launch import launch

GUIDE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
FILES = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", GUIDE, re.S)
COMMANDS = [
    shlex.split(line)
    for block in re.findall(r"```bash\n(.*?)```", GUIDE, re.S)
    for line in block.splitlines()
]
QUICK = ["baselines=false", "video=none"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of the guide, each where its first line says."""
    root = tmp_path_factory.mktemp("mine")
    for name, text in FILES:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Run a command line of the guide in this process, from its folder."""

    def run(words):
        assert words[:3] == ["python", "-m", "jepa_wm.plan"]
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
        monkeypatch.setattr(sys, "argv", [*words[2:], *QUICK])
        launch(plan.main, "plan")
        return capsys.readouterr().out

    return run


def test_the_guide_names_all_its_files():
    listed = re.search(r"```\n(.*?)```", GUIDE, re.S)[1].split()
    assert sorted(listed) == sorted(name for name, _ in FILES)
    assert len(COMMANDS) == 3


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[5])
def test_a_command_of_the_guide_runs(words, run):
    said = run(words)
    assert "success" in said and "results" in said


def test_a_folder_may_be_named_as_a_search_path_and_settings_as_options(folder, run):
    said = run(
        shlex.split(
            f"python -m jepa_wm.plan hydra.searchpath=[file://{folder}/conf] env=pond goal=env "
            "model=simulator planner=halving planner.factor=0.7 episodes=1"
        )
    )
    assert "Halving" in said and "factor 0.7" in said


@pytest.mark.slow
def test_a_misspelt_setting_of_a_planner_of_ones_own_is_one_line(folder):
    """In a process of its own, where nothing but the folder it starts in leads to the file."""
    words = [*COMMANDS[0][1:], "+planner.factr=2"]
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=900,
        env=os.environ | {"SDL_VIDEODRIVER": "dummy"},
    )  # fmt: skip
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "planner: " in done.stderr and "factr" in done.stderr
