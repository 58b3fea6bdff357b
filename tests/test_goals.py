"""Goals as people give them: every source works, anything else is one line that lists them."""

import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

from jepa_wm import plan
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.goals import goal_pictures, read_goal, read_schedule
from jepa_wm.launch import launch

FRAME = np.zeros((96, 128, 3), np.uint8)


def picture(path, width=64, height=48, shade=0):
    colours = np.full((height, width, 3), shade, np.uint8)
    np.save(path, colours) if path.suffix == ".npy" else Image.fromarray(colours).save(path)
    return str(path)


@pytest.fixture
def saved(tmp_path):
    frames = np.arange(3, dtype=np.uint8)[:, None, None, None] * np.ones((96, 128, 3), np.uint8)
    np.savez(tmp_path / "episode_0007.npz", frames=frames, actions=np.zeros((2, 7)))
    np.savez(tmp_path / "traj.npz", observations=frames[None], states=np.zeros((1, 3, 7)))
    return tmp_path


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.npy"])
def test_a_picture_of_any_size_in_proportion(name, tmp_path):
    assert read_goal(picture(tmp_path / name), FRAME).shape == (48, 64, 3)


@pytest.mark.parametrize("name", ["episode_0007.npz", "traj.npz"])
def test_a_frame_of_an_episode_or_a_recording(name, saved):
    assert (read_goal(f"{saved / name}:2", FRAME) == 2).all()


def test_a_schedule_is_pictures_with_steps(saved):
    source = f"{saved / 'traj.npz'}:1"
    found = read_schedule([f"{source}:5", f"{source}:7"])
    assert [(one.source, one.steps) for one in found] == [(source, 5), (source, 7)]
    assert goal_pictures(found, FRAME).shape == (2, 96, 128, 3)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("absent.png", ["absent.png", "no such picture"]),
        ("{}/traj.npz:3", ["STEP must be 0 to 2"]),
        ("{}/traj.npz:-1", ["STEP must be 0 to 2"]),
        ("{}/square.png", ["64x64 px", "128x96"]),
        ("{}/grey.npy", ["float64 [4, 4]"]),
    ],
)
def test_a_missing_or_wrong_goal_lists_the_sources(source, words, saved):
    picture(saved / "square.png", 64, 64)
    np.save(saved / "grey.npy", np.zeros((4, 4)))
    with pytest.raises(ConfigError) as refusal:
        read_goal(source.format(saved), FRAME)
    said = str(refusal.value)
    for word in [*words, "play", "env", "FILE.npz:STEP", "goals=["]:
        assert word in said, said


def test_an_episode_that_claims_a_petabyte_is_refused(tmp_path):
    head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (99, 9999999, 999999, 3), }"
    head = head.ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "big.npz", "w") as archive:
        start = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little")
        archive.writestr("frames.npy", start + head)
    with pytest.raises(ConfigError, match=r"big.npz:1: not a saved episode"):
        read_goal(f"{tmp_path / 'big.npz'}:1")


@pytest.mark.parametrize("goals", [["a.png"], ["a.png:0"], [":5"], "a.png", [], [5]])
def test_what_is_no_schedule_lists_the_sources(goals):
    with pytest.raises(ConfigError, match=r"goals.* a goal is: play"):
        read_schedule(goals)


def run(monkeypatch, *arguments):
    fast = ["planner=cem_ac", "objective=goal_l1", "planner.iterations=1",
            "planner.num_samples=12", "episodes=1", "threads=1", "device=cpu", "video=none",
            "baselines=false"]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["plan", *fast, *arguments])
    launch(plan.main, "plan")


def test_an_arm_follows_sub_goals(arm, tmp_path, monkeypatch, capsys):
    first, second = (picture(tmp_path / name, 64, 64, 90) for name in ("a.png", "b.png"))
    goals = f"goals=[{first}:2,{second}:3]"
    run(monkeypatch, "env=reach", f"model={arm()}", goals, f"out={tmp_path / 'out'}")
    said = capsys.readouterr().out
    assert f"sub-goals {first}:2, {second}:3" in said and "budget 5 steps" in said
    assert "not scored" in said
    run(monkeypatch, "env=reach", f"model={arm()}", f"goals={first}:2", f"out={tmp_path / 'one'}")
    assert f"sub-goals {first}:2," in capsys.readouterr().out
    with np.load(tmp_path / "out" / "episodes" / "episode_0000.npz") as stored:
        assert stored["actions"].shape == (5, 7), "its own goal does not end the episode"


def test_a_recording_is_planned_in_and_its_frames_are_goals(arm, saved, monkeypatch, capsys):
    frames = np.random.default_rng(0).integers(0, 256, (2, 6, 32, 32, 3), dtype=np.uint8)
    poses = np.full((2, 6, 7), 0.4)
    np.savez(saved / "long.npz", observations=frames, states=poses)
    model, file = f"model={arm()}", f"file={saved / 'long.npz'}"
    run(monkeypatch, "env=recorded", model, file, "baselines=true", f"out={saved / 'o'}")
    table = capsys.readouterr().out
    assert "action score [of 80]" in table and "position [cm]" in table
    assert [line for line in table.splitlines() if line.startswith("replay") and "80.0" in line]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["goals=[nowhere.png:5]"], ["nowhere.png", "goals=["]),
        (["goals=[nowhere.png]"], ["PICTURE:STEPS"]),
        (["env=recorded", "file=nowhere.npz"], ["nowhere.npz", "observations"]),
        (["env=recorded", "model=simulator"], ["no simulator"]),
        (["planner.horizon=99", "shrink_horizon=false"], ["99 steps", "rolls out at most"]),
    ],
)
def test_refusals_are_one_line(arguments, words, arm, monkeypatch, capsys, tmp_path):
    given = [] if any(a.startswith("model=") for a in arguments) else [f"model={arm()}"]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        run(monkeypatch, "env=reach", *given, *arguments)
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1, said
    assert all(word in said for word in words), said
