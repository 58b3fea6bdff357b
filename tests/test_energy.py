"""The energy command: what it says, marks, warns of and writes."""

import json
import sys

import numpy as np
import pytest

from jepa_wm import energy
from jepa_wm.launch import launch
from jepa_wm.viz.energy import Plane, energy_landscape


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["energy", *arguments])
    launch(energy.main, "energy")


FAST = ["plane_points=5", "solid_points=3", "planner.iterations=1", "planner.num_samples=12",
        "threads=1", "device=cpu"]  # fmt: skip


def test_with_the_simulator_as_model_the_true_action_is_the_best(monkeypatch, capsys, tmp_path):
    run(monkeypatch, "model=simulator", *FAST, "span=0.2", "plane_points=9",
        "solid_points=9", f"out={tmp_path}")  # fmt: skip
    said = capsys.readouterr()
    assert "range     x y z from -0.2 to 0.2 m" in said.out
    assert "the true action is number 1 of 730" in said.out
    assert "warning" not in said.err
    (one,) = json.loads((tmp_path / "energy.json").read_text())["landscapes"]
    assert one["rank_of_true_action"] == 1 and one["costs"]["true action"] < 1e-6
    assert [plane["dims"] for plane in one["planes"]] == [[0, 1], [0, 2]]
    assert (tmp_path / "energy_000.png").stat().st_size > 10_000


def test_a_minimum_on_the_border_is_warned_of(monkeypatch, capsys, tmp_path):
    run(monkeypatch, "model=simulator", *FAST, "span=0.001", f"out={tmp_path}")
    said = capsys.readouterr().err
    assert "warning: the minimum of x/y lies on the border in" in said and "widen span" in said
    (one,) = json.loads((tmp_path / "energy.json").read_text())["landscapes"]
    assert one["warnings"]


def test_a_recording_and_a_model_of_an_arm(monkeypatch, capsys, tmp_path, arm):
    run(monkeypatch, "env=recorded", f"model={arm()}", *FAST, "episodes=2", f"out={tmp_path}")
    assert "of 28" in capsys.readouterr().out
    two = json.loads((tmp_path / "energy.json").read_text())["landscapes"]
    assert len(two) == 2 and len(two[0]["solid"][0]["costs"]) == 3
    assert np.isfinite(two[0]["solid"][0]["costs"]).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dims=[0]"], ["dims=[0]", "two or three"]),
        (["names=[x]", "through=goal"], ["one name for each", "through='goal'"]),
        (["goal=env"], ["must be play"]),
        (["span=0"], ["span=0"]),
        (["dims=[0,1,9]"], ["dimensions [9]", "0 to 6"]),
        (["span=wide"], ["span"]),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(arguments, words, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, "model=simulator", *FAST, *arguments)
    said = capsys.readouterr().err
    assert ended.value.code == 1 and said.startswith("error: ") and said.count("\n") == 1, said
    assert all(word in said for word in words), said
    assert not list(tmp_path.iterdir())


def test_a_plane_that_does_not_fit_is_refused():
    points = np.linspace(-1, 1, 3)
    with pytest.raises(ValueError, match=r"costs \[3, 2\] do not fit 3 points"):
        Plane(title="", points=points, costs=np.zeros((3, 2)), labels=("", ""), marks={})
    with pytest.raises(ValueError, match="at least one plane"):
        energy_landscape([], [])
