"""Recordings of an arm: what is read, what is refused, and how actions are compared."""

import zipfile

import gymnasium
import numpy as np
import pygame
import pytest
import torch
from gymnasium.utils.env_checker import check_env

from jepa_wm.envs.recorded import STATE_SIZE, Recorded, action_errors, action_score, play
from jepa_wm.envs.recordings import difference, load_recording
from jepa_wm.models.pose import compose
from jepa_wm.models.pose import difference as torch_difference


def trajectory(episodes=2, length=5, seed=0):
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 256, (episodes, length, 12, 16, 3), dtype=np.uint8)
    steps = rng.normal(0, [0.03] * 3 + [0.1] * 3 + [0.05], (episodes, length, 7))
    poses = np.array([0.5, 0.0, 0.3, 3.0, 0.1, -1.9, 0.5]) + steps.cumsum(1)
    return frames, poses.astype(np.float32)


@pytest.fixture
def file(tmp_path):
    frames, poses = trajectory()
    path = tmp_path / "traj.npz"
    np.savez(path, observations=frames, states=poses)
    return str(path)


@pytest.mark.parametrize("observation", ["pixels", "state", "dict"])
@pytest.mark.filterwarnings("error")
def test_passes_gymnasiums_check_without_a_warning(observation, file):
    name = "jepa_wm.envs.recorded:jepa_wm/Recorded-v0"
    env = gymnasium.make(name, file=file, observation=observation, render_mode="rgb_array")
    check_env(env.unwrapped)


def test_the_example_needs_no_file():
    env = gymnasium.make("jepa_wm.envs.recorded:jepa_wm/Recorded-v0", render_mode="rgb_array")
    frame, info = env.reset(seed=0)
    assert frame.shape == (256, 256, 3) and frame.std() > 1
    assert info["proprio"].shape == (7,)


def test_actions_are_the_models_own_differences_of_poses():
    _, poses = trajectory(3, 6)
    start, end = (torch.tensor(x).double() for x in (poses[:, :-1], poses[:, 1:]))
    actions = difference(poses[:, :-1].astype(float), poses[:, 1:].astype(float))
    np.testing.assert_allclose(actions, torch_difference(start, end).numpy(), atol=1e-12)
    moved = compose(start, torch.from_numpy(actions)).numpy()
    np.testing.assert_allclose(moved[..., :3], end.numpy()[..., :3], atol=1e-9)
    turns = np.exp(1j * moved[..., 3:6]) - np.exp(1j * end.numpy()[..., 3:6])
    assert np.abs(turns).max() < 1e-7


def test_replaying_the_recording_is_no_error_and_a_full_score(file):
    env = Recorded(file=file)
    recorded = play(0, 2, file=file)
    goal = recorded.states[1, 4]
    frame, info = env.reset(options={"state": recorded.states[1, 1], "goal_state": goal})
    assert np.array_equal(frame, trajectory()[0][1, 1])
    for step in range(1, 4):
        np.testing.assert_allclose(info["proprio"], trajectory()[1][1, step], atol=1e-6)
        assert not info["success"]
        np.testing.assert_allclose(info["action"], recorded.actions[1, step])
        frame, _, terminated, truncated, info = env.step(recorded.actions[1, step])
        assert np.array_equal(frame, trajectory()[0][1, step + 1])
    assert truncated and not terminated and info["success"]
    assert info["pos_err"] < 1e-6 and info["angle_err"] < 1e-6 and info["end_err"] < 1e-6
    assert info["score"] == pytest.approx(80)
    assert np.array_equal(env.render_state(goal), frame)


def test_errors_are_means_over_steps_and_the_end_is_their_sum(file):
    env = Recorded(file=file)
    recorded = play(0, 2, file=file)
    env.reset(options={"state": recorded.states[0, 0], "goal_state": recorded.states[0, 2]})
    first = env.step(recorded.actions[0, 0] + [0.03, 0, 0, 0, 0, 0, 0.2])[-1]
    assert first["pos_err"] == pytest.approx(0.03, abs=1e-6)
    last = env.step(recorded.actions[0, 1] + [0, 0.04, 0, 0, 0, 0, 0])[-1]
    assert last["step_pos_err"] == pytest.approx(0.04, abs=1e-6)
    assert last["pos_err"] == pytest.approx(0.035, abs=1e-6)
    assert last["grip_err"] == pytest.approx(0.1, abs=1e-6)
    assert last["end_err"] == pytest.approx(0.05, abs=1e-6)
    assert last["score"] == pytest.approx(40, abs=1e-3)
    assert action_score(0.2) == 0


@pytest.mark.parametrize("angle", [0.0, 1e-4, 0.4, 3.0, np.pi])
def test_the_angle_between_two_turns(angle):
    turned = np.array([0, 0, 0, 0.3, -0.2, 0.5, 0])
    end = compose(torch.from_numpy(turned), torch.tensor([0, 0, 0, angle, 0, 0, 0]).double())
    found = action_errors(end.numpy(), turned)["angle_err"]
    assert found == pytest.approx(angle, abs=1e-6)


def test_a_folder_of_pictures_and_poses_is_the_same_recording(tmp_path):
    frames, poses = trajectory(1, 11)
    for index, frame in enumerate(frames[0]):
        surface = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        pygame.image.save(surface, str(tmp_path / f"{index}.png"))
    lines = [",".join(str(x) for x in pose.tolist()) for pose in poses[0]]
    (tmp_path / "poses.csv").write_text("\n".join(["x,y,z,rx,ry,rz,gripper", *lines]))
    recording = load_recording(str(tmp_path))
    assert np.array_equal(recording.frames, frames), "10.png comes after 9.png"
    np.testing.assert_allclose(recording.poses, poses, atol=1e-7)
    (tmp_path / "poses.csv").write_text("\n".join(lines[:-1]) + "\n1,2,3\n")
    with pytest.raises(ValueError, match=r"poses.csv: line 11 must be 7 numbers .* got '1,2,3'"):
        load_recording(str(tmp_path))


def test_columns_in_another_order_are_refused(tmp_path):
    frames, poses = trajectory(1, 2)
    for index, frame in enumerate(frames[0]):
        surface = pygame.surfarray.make_surface(frame.swapaxes(0, 1))
        pygame.image.save(surface, str(tmp_path / f"{index}.png"))
    lines = [",".join(str(x) for x in pose.tolist()) for pose in poses[0]]
    (tmp_path / "poses.csv").write_text("\n".join(["gripper,x,y,z,rx,ry,rz", *lines]))
    with pytest.raises(ValueError, match=r"poses.csv: column 1 is 'gripper', it must be column 7"):
        load_recording(str(tmp_path))


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [(0, 400.0, "metres"), (4, -170.0, "radians, not degrees"), (6, 255.0, "0 is open, 1 closed")],
)
def test_poses_in_other_units_are_refused(column, value, words, tmp_path):
    frames, poses = trajectory(1)
    poses[0, 2, column] = value
    np.savez(tmp_path / "units.npz", observations=frames, states=poses)
    with pytest.raises(ValueError, match=words):
        load_recording(str(tmp_path / "units.npz"))


def test_one_episode_needs_no_leading_dimension(tmp_path):
    frames, poses = trajectory(1)
    np.savez(tmp_path / "one.npz", observations=frames[0], states=poses[0])
    assert load_recording(str(tmp_path / "one.npz")).poses.shape == (1, 5, 7)


def claims(path):
    """An .npz whose frames claim a petabyte."""
    header = b"{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2, 999999999, 999999, 3), }"
    header += b" " * (118 - 1 - len(header)) + b"\n"
    with zipfile.ZipFile(path, "w") as archive:
        start = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little")
        archive.writestr("observations.npy", start + header)
        archive.writestr("states.npy", start + header)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": np.zeros(3)}, ["lacks", "observations", "states", "images"]),
        ({"observations": np.zeros((1, 2, 4, 4, 3)), "states": np.zeros((1, 2, 7))}, ["float64"]),
        ({"observations": np.zeros((1, 2, 4, 4, 3), np.uint8), "states": np.zeros((1, 3, 7))},
         ["[1, 3, 7]"]),
        ({"observations": np.zeros((1, 2, 4, 4, 3), np.uint8),
          "states": np.full((1, 2, 7), np.nan)}, ["not finite"]),
        ({"observations": np.zeros((1, 1, 4, 4, 3), np.uint8), "states": np.zeros((1, 1, 7))},
         ["fewer than 2"]),
        ({"observations": np.array([{}], object), "states": np.zeros((1, 2, 7))}, ["allow_pickle"]),
        (None, ["claims", "holds"]),
        (b"no zip", ["not a zip file"]),
    ],
)  # fmt: skip
def test_what_is_no_recording_is_refused_in_one_line(arrays, words, tmp_path):
    path = tmp_path / "bad.npz"
    if arrays is None:
        claims(path)
    elif isinstance(arrays, bytes):
        path.write_bytes(arrays)
    else:
        np.savez(path, **arrays)
    with pytest.raises(ValueError) as refusal:
        load_recording(str(path))
    said = str(refusal.value)
    assert "bad.npz" in said and "observations uint8 [E,T,H,W,3]" in said and "\n" not in said
    assert all(word in said for word in words), said


def test_other_places_than_the_recordings_are_refused(file):
    env = Recorded(file=file)
    with pytest.raises(ValueError, match="not in the recording of 2 episodes of 5 frames"):
        env.reset(options={"state": np.full(STATE_SIZE, 7.0)})
    states = play(0, 2, file=file).states
    with pytest.raises(ValueError, match="must come after the start"):
        env.reset(options={"state": states[0, 3], "goal_state": states[0, 1]})
    with pytest.raises(ValueError, match="no such file or folder"):
        load_recording("absent.npz")
