"""Poses: compositions and differences, held against scipy's rotations."""

import math
import warnings

import numpy as np
import pytest
import torch

from jepa_wm.models.pose import compose, difference, euler_angles, rotation_matrix


def angles(count, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).uniform(-math.pi, math.pi, (count, 3)))


def pose(count, seed):
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=(count, 3)), angles(count, seed).numpy(), rng.random((count, 1))
    return torch.from_numpy(np.concatenate(parts, 1))


@pytest.mark.reference
@pytest.mark.parametrize("second", [None, math.pi / 2, -math.pi / 2, math.pi / 2 - 1e-5])
def test_rotations_are_scipys_and_so_is_gimbal_lock(second):
    rotation = pytest.importorskip("scipy.spatial.transform").Rotation
    given = angles(200)
    if second is not None:
        given[:, 1] = second
    theirs = rotation.from_euler("xyz", given.numpy())
    matrix = torch.from_numpy(theirs.as_matrix())
    torch.testing.assert_close(rotation_matrix(given), matrix, rtol=0, atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy says when it meets the lock
        wanted = torch.from_numpy(theirs.as_euler("xyz"))
    torch.testing.assert_close(euler_angles(matrix), wanted, rtol=0, atol=1e-9)


@pytest.mark.reference
def test_an_action_moves_the_pose_as_the_reference_does():
    rotation = pytest.importorskip("scipy.spatial.transform").Rotation
    start, action = pose(50, 1), 0.3 * pose(50, 2)
    moved = compose(start, action)
    turned = rotation.from_euler("xyz", action[:, 3:6]) * rotation.from_euler("xyz", start[:, 3:6])
    torch.testing.assert_close(moved[:, :3], start[:, :3] + action[:, :3])
    torch.testing.assert_close(moved[:, 3:6], torch.from_numpy(turned.as_euler("xyz")))
    torch.testing.assert_close(moved[:, 6], (start[:, 6] + action[:, 6]).clamp(0, 1))


def test_rotations_compose_from_the_left():
    start, action = torch.zeros(7, dtype=torch.float64), torch.zeros(7, dtype=torch.float64)
    start[3], action[5] = math.pi / 2, math.pi / 2  # about x, then about the fixed z
    wanted = rotation_matrix(action[3:6]) @ rotation_matrix(start[3:6])
    found = rotation_matrix(compose(start, action)[3:6])
    torch.testing.assert_close(found, wanted)
    assert not torch.allclose(found, rotation_matrix(start[3:6]) @ rotation_matrix(action[3:6]))


def test_the_difference_leads_from_one_pose_to_the_other():
    start, end = pose(50, 3), pose(50, 4)
    there = compose(start, difference(start, end))
    torch.testing.assert_close(there[:, :3], end[:, :3])
    torch.testing.assert_close(there[:, 6], end[:, 6])
    torch.testing.assert_close(rotation_matrix(there[:, 3:6]), rotation_matrix(end[:, 3:6]))


def test_the_gripper_stays_between_open_and_closed():
    full = torch.tensor([0.0] * 6 + [0.9])
    assert compose(full, torch.tensor([0.0] * 6 + [0.5]))[6] == 1
    assert compose(full, torch.tensor([0.0] * 6 + [-2.0]))[6] == 0


def test_float32_poses_stay_float32():
    moved = compose(pose(3, 5).float(), pose(3, 6).float())
    assert moved.dtype == torch.float32
