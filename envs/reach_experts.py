"""Scripted experts of Reach: what the tasks ask for, done by someone who sees the state.

They set the scale for planners: ``reach`` goes straight to its goal, ``push`` gets behind the block
and pushes it there. Both look at the present state alone and work on N worlds at once.
"""

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.reach_worlds import (
    BLOCK_HEIGHT,
    BLOCK_SIDE,
    GRIPPER_RADIUS,
    HIGH,
    LOW,
    MAX_STEP,
    POSE_SIZE,
)

Floats = NDArray[np.float64]

_CARRY = BLOCK_HEIGHT + 0.04  # metres: height at which the arm passes over the block
_PUSH_Z = 0.035  # metres: height at which it pushes
_BEHIND = BLOCK_SIDE / np.sqrt(2) + GRIPPER_RADIUS + 0.015  # metres: clear of the block's corners
_PUSH_STEP = 0.04  # metres a push moves in a step


def reach_expert(states: Floats, goals: Floats) -> NDArray[np.float32]:
    """Return the differences of poses float32 [N,7] that lead straight to the goal's position.

    Args:
        states: Where the worlds are, [N,10] (``ReachWorlds``).
        goals: Goal states [N,10].
    """
    return _actions(goals[:, :3] - states[:, :3])


def push_expert(states: Floats, goals: Floats) -> NDArray[np.float32]:
    """Return the differences of poses float32 [N,7] that bring the block to the goal's position.

    Over the block to the side away from the goal, down, and along the line to the goal, steering
    against the block's drift; when the arm has left that line it lifts off and begins anew.

    Args:
        states: Where the worlds are, [N,10] (``ReachWorlds``).
        goals: Goal states [N,10].
    """
    tip, block = states[:, :3], states[:, 7:9]
    gap = goals[:, 7:9] - block
    left = np.linalg.norm(gap, axis=1, keepdims=True)
    along = gap / np.maximum(left, 1e-9)
    across = np.stack([-along[:, 1], along[:, 0]], 1)
    offset = tip[:, :2] - block
    back, aside = -(offset * along).sum(1), (offset * across).sum(1)
    behind = np.clip(block - _BEHIND * along, LOW[:2], HIGH[:2])
    off_mark = np.linalg.norm(tip[:, :2] - behind, axis=1)

    is_low = tip[:, 2] < BLOCK_HEIGHT
    is_pushing = is_low & (back > 0.03) & (np.abs(aside) < 0.03)
    moves = np.where((tip[:, 2] < _CARRY - 0.01)[:, None], [0, 0, MAX_STEP], 0.0)  # lift off
    travel = np.column_stack([behind - tip[:, :2], _CARRY - tip[:, 2]])
    moves = np.where((tip[:, 2] >= _CARRY - 0.01)[:, None], travel, moves)
    down = np.column_stack([behind - tip[:, :2], _PUSH_Z - tip[:, 2]])
    moves = np.where((off_mark < 0.02)[:, None] & ~is_pushing[:, None], down, moves)
    # a push to one side of the centre turns the block and sends it to the other: stay on the line
    forth = np.minimum(_PUSH_STEP, left + np.maximum(back - _BEHIND, 0)[:, None]) * along
    push = np.column_stack([forth - 0.6 * aside[:, None] * across, _PUSH_Z - tip[:, 2]])
    return _actions(np.where(is_pushing[:, None], push, moves))


def _actions(moves: Floats) -> NDArray[np.float32]:
    """Turn wanted moves [N,3] into actions that keep the orientation and the gripper as they are.

    A move beyond what an axis can do is shortened, not bent.
    """
    most = np.abs(moves).max(1, keepdims=True)
    actions = np.zeros((len(moves), POSE_SIZE), np.float32)
    actions[:, :3] = moves * np.minimum(1.0, MAX_STEP / np.maximum(most, 1e-9))
    return actions
