"""Poses of a robot arm's end effector, and actions as differences of poses, on any device.

A pose has 7 numbers on the last axis: x, y, z in metres, extrinsic xyz Euler angles in radians,
gripper closedness 0 to 1. Rotations compose from the left: R' = R(difference) R, with
R = Rz(c) Ry(b) Rx(a) for the angles (a, b, c).

Source: facebookresearch/vjepa2 ``notebooks/utils/mpc_utils.py`` (``compute_new_pose``,
    ``poses_to_diff``), which goes through scipy's ``Rotation`` on the CPU, one pose at a time.
"""

import torch
from torch import Tensor

POSE_DIM = 7
LOCK = 1e-7  # cos b below which the first and third angles turn about the same axis, as in scipy


def rotation_matrix(angles: Tensor) -> Tensor:
    """Turn extrinsic xyz Euler angles float [..,3], radians, into rotation matrices [..,3,3]."""
    sin_a, sin_b, sin_c = angles.sin().unbind(-1)
    cos_a, cos_b, cos_c = angles.cos().unbind(-1)
    rows = (
        cos_c * cos_b, cos_c * sin_b * sin_a - sin_c * cos_a, cos_c * sin_b * cos_a + sin_c * sin_a,
        sin_c * cos_b, sin_c * sin_b * sin_a + cos_c * cos_a, sin_c * sin_b * cos_a - cos_c * sin_a,
        -sin_b, cos_b * sin_a, cos_b * cos_a,
    )  # fmt: skip
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def euler_angles(matrix: Tensor) -> Tensor:
    """Turn rotation matrices float [..,3,3] into extrinsic xyz Euler angles [..,3], radians.

    The second angle lies in [-pi/2, pi/2]. At its ends (gimbal lock) only the sum or difference of
    the others is defined and the third is 0, as scipy chooses.
    """
    cos_b = torch.hypot(matrix[..., 0, 0], matrix[..., 1, 0])
    b = torch.atan2(-matrix[..., 2, 0], cos_b)  # an arc sine would lose digits near the lock
    a = torch.atan2(matrix[..., 2, 1], matrix[..., 2, 2])
    c = torch.atan2(matrix[..., 1, 0], matrix[..., 0, 0])
    locked = cos_b < LOCK
    a = torch.where(locked, torch.atan2(-matrix[..., 1, 2], matrix[..., 1, 1]), a)
    c = torch.where(locked, torch.zeros_like(c), c)
    return torch.stack((a, b, c), -1)


def compose(pose: Tensor, action: Tensor) -> Tensor:
    """Return the pose after an action, both float [..,7] (broadcasting), in the pose's dtype."""
    turned = rotation_matrix(action[..., 3:6].double()) @ rotation_matrix(pose[..., 3:6].double())
    parts = (
        pose[..., :3] + action[..., :3],
        euler_angles(turned).to(pose.dtype),
        (pose[..., 6:] + action[..., 6:]).clamp(0, 1),
    )
    return torch.cat(parts, -1)


def difference(start: Tensor, end: Tensor) -> Tensor:
    """Return the action float [..,7] that leads from one pose to the other."""
    before, after = (rotation_matrix(pose[..., 3:6].double()) for pose in (start, end))
    angles = euler_angles(after @ before.mT).to(start.dtype)
    return torch.cat((end[..., :3] - start[..., :3], angles, end[..., 6:] - start[..., 6:]), -1)
