"""The worlds behind Reach: arms over tables with a block, N of them stepped side by side.

An arm's end effector follows differences of poses, as a robot under Cartesian control does; below
the block's height it pushes the block, which stands still as soon as nothing pushes it. Only worlds
in which the two can meet within a step are simulated; all else is arithmetic on arrays.
"""

import math

import numpy as np
import pymunk
from numpy.typing import NDArray

Floats = NDArray[np.float64]

STATE_SIZE, POSE_SIZE = 10, 7
LOW = np.array([0.30, -0.20, 0.02])  # workspace of the end effector, metres from the arm's base
HIGH = np.array([0.70, 0.20, 0.32])
BLOCK_LOW, BLOCK_HIGH = np.array([0.30, -0.20]), np.array([0.70, 0.20])
BLOCK_SIDE, BLOCK_HEIGHT = 0.09, 0.07  # metres
GRIPPER_RADIUS = 0.025  # metres, of the part that pushes
MAX_STEP = 0.075  # metres an axis moves at most in one step
MAX_TURN = 0.5  # radians
STEP_SECONDS = 0.25
SUBSTEPS = 15
SETTLING = 5  # more of them, in which the block leaves the arm it overlaps
HOME_STATE = (0.5, 0.0, 0.2, 0.0, 0.0, 0.0, 0.0, 0.5, 0.1, 0.0)
LOCK = 1e-7  # as scipy: cos b below which the first and third Euler angles are one
_MILLI = 1000.0  # pymunk works in millimetres
_GIVE = 0.002  # metres of overlap that count as touching only
_NEAR = BLOCK_SIDE / math.sqrt(2) + GRIPPER_RADIUS + 0.005


def rotation_matrices(angles: Floats) -> Floats:
    """Turn extrinsic xyz Euler angles [..,3], radians, into matrices [..,3,3]."""
    (sa, sb, sc), (ca, cb, cc) = (np.moveaxis(f(angles), -1, 0) for f in (np.sin, np.cos))
    rows = (
        cc * cb, cc * sb * sa - sc * ca, cc * sb * ca + sc * sa,
        sc * cb, sc * sb * sa + cc * ca, sc * sb * ca - cc * sa,
        -sb, cb * sa, cb * ca,
    )  # fmt: skip
    return np.stack(rows, -1).reshape(*angles.shape[:-1], 3, 3)


def euler_angles(matrices: Floats) -> Floats:
    """Turn matrices [..,3,3] into extrinsic xyz Euler angles [..,3]; the third is 0 at the lock."""
    cos_b = np.hypot(matrices[..., 0, 0], matrices[..., 1, 0])
    b = np.arctan2(-matrices[..., 2, 0], cos_b)
    a = np.arctan2(matrices[..., 2, 1], matrices[..., 2, 2])
    c = np.arctan2(matrices[..., 1, 0], matrices[..., 0, 0])
    is_locked = cos_b < LOCK
    a = np.where(is_locked, np.arctan2(-matrices[..., 1, 2], matrices[..., 1, 1]), a)
    return np.stack([a, b, np.where(is_locked, 0.0, c)], -1)


class ReachWorlds:
    """N copies of the world.

    A move is straight, but where it crosses the height of the block it goes up first and down last:
    an arm that rises passes over the block, one that comes down on it rests on top. Lower down the
    block is pushed; at the border of the workspace it goes no further, and stops the arm.

    The state of a world is float64 [10]: x, y, z of the end effector (metres; x away from the base,
    y to the left, z up from the table), its extrinsic xyz Euler angles (radians; zero points the
    gripper straight down), gripper closedness (0 open, 1 closed), x, y of the block's centre
    (metres) and its angle (radians, within half a turn either way). There are no velocities: at 4
    steps a second everything has come to rest between steps.

    Args:
        count: Number of worlds N, at least 1.

    Raises:
        ValueError: ``count`` is below 1.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"count={count} must be at least 1")
        self.count = count
        self._states = np.tile(np.array(HOME_STATE), (count, 1))
        self._table = _Table()

    def set_states(self, states: Floats) -> None:
        """Put every world into its state [N,10]; ``states()`` gives back exactly that.

        Raises:
            ValueError: the states are not N rows of 10 finite numbers.
        """
        states = np.array(states, dtype=np.float64)
        if states.shape != (self.count, STATE_SIZE) or not np.isfinite(states).all():
            raise ValueError(
                f"states must be finite [{self.count}, {STATE_SIZE}], got {list(states.shape)}"
            )
        self._states = states

    def states(self) -> Floats:
        """Return the states, float64 [N,10]."""
        return self._states.copy()

    def act(self, actions: NDArray[np.floating]) -> None:
        """Execute one difference of poses in each world.

        Args:
            actions: [N,7]: metres, radians (composed from the left: R' = R(difference) R), gripper.
                What would leave the workspace stops at its border. Differences beyond ``MAX_STEP``
                and ``MAX_TURN`` are cut to them.
        """
        actions = np.asarray(actions, np.float64).reshape(self.count, POSE_SIZE)
        before = self._states[:, :3].copy()
        states = self._states
        step = np.clip(actions[:, :3], -MAX_STEP, MAX_STEP)
        after = np.clip(before + step, LOW, HIGH)
        turn = np.clip(actions[:, 3:6], -MAX_TURN, MAX_TURN)
        turned = rotation_matrices(turn) @ rotation_matrices(states[:, 3:6])
        states[:, 3:6] = np.where((turn == 0).all(1)[:, None], states[:, 3:6], euler_angles(turned))
        states[:, 6] = np.clip(states[:, 6] + actions[:, 6], 0, 1)
        for row in self._meeting(before, after):
            after[row] = self._push(row, before[row], after[row])
        states[:, :3] = after

    def _meeting(self, before: Floats, after: Floats) -> list[int]:
        """Return the worlds whose arm comes near its block, low enough to touch it."""
        is_low = np.minimum(before[:, 2], after[:, 2]) < BLOCK_HEIGHT
        centre, along = self._states[:, 7:9], after[:, :2] - before[:, :2]
        length = (along**2).sum(1)
        share = ((centre - before[:, :2]) * along).sum(1) / np.maximum(length, 1e-12)
        nearest = before[:, :2] + np.clip(share, 0, 1)[:, None] * along
        is_near = ((nearest - centre) ** 2).sum(1) < _NEAR**2
        rows = np.flatnonzero(is_low & is_near)
        points = before[rows, None, :2] + np.linspace(0, 1, 9)[:, None] * along[rows, None]
        gap = _gaps(self._states[rows, None, 7:10], points).min(1)
        between = np.sqrt(length[rows]) / 16  # from any point of the way to the next one looked at
        return rows[gap < GRIPPER_RADIUS + between + _GIVE].tolist()

    def _push(self, row: int, before: Floats, after: Floats) -> Floats:
        """Let one arm meet its block; return where it ends."""
        block = self._states[row, 7:10]
        if before[2] >= BLOCK_HEIGHT:  # from above: it comes to rest on the block
            if _touches(block, after[:2]):
                after[2] = max(after[2], BLOCK_HEIGHT)
            return after
        if after[2] < BLOCK_HEIGHT:
            after[:2] = self._shove(row, before[:2], after[:2])
        return after

    def _shove(self, row: int, start: Floats, end: Floats) -> Floats:
        """Move an arm against its block from ``start`` to ``end`` [2]; return where it ends.

        A block at the workspace's border goes no further, and nor does the arm that pushes it.
        """
        block = self._states[row, 7:10]
        moved = self._table.push(block, start, end)
        kept = np.append(np.clip(moved[:2], BLOCK_LOW, BLOCK_HIGH), moved[2])
        if (kept == moved).all():
            block[:] = moved
            return end
        if not _touches(kept, start, _GIVE):  # else it would be squeezed into the arm
            block[:] = kept
        shares = np.linspace(1, 0, 65)[:, None]
        free = (
            point for point in start + shares * (end - start) if not _touches(block, point, _GIVE)
        )
        return next(free, start)


def _gaps(blocks: Floats, points: Floats) -> Floats:
    """Return the distances [..] in metres of points [..,2] from blocks [..,3]; 0 inside."""
    c, s = np.cos(blocks[..., 2]), np.sin(blocks[..., 2])
    dx, dy = np.moveaxis(points - blocks[..., :2], -1, 0)
    outside = np.maximum(np.abs([c * dx + s * dy, c * dy - s * dx]) - BLOCK_SIDE / 2, 0)
    return np.hypot(outside[0], outside[1])


def _touches(block: Floats, point: Floats, give: float = 0.0) -> bool:
    """Say whether the gripper at ``point`` would overlap the block (x, y, angle) by ``give``."""
    return bool(_gaps(block, point) < GRIPPER_RADIUS - give)


class _Table:
    """One pymunk space, used for one push at a time: what follows depends on the push alone."""

    def push(self, block: Floats, start: Floats, end: Floats) -> Floats:
        """Move the gripper from ``start`` to ``end`` [2] against a block (x, y, angle) [3]."""
        space = pymunk.Space()
        space.damping = 0.0  # the block rests as soon as nothing pushes it
        space.collision_bias = 1e-12  # an overlap is gone within a few substeps
        body = pymunk.Body(1.0, pymunk.moment_for_box(1.0, (BLOCK_SIDE * _MILLI,) * 2))
        body.position, body.angle = tuple(block[:2] * _MILLI), float(block[2])
        box = pymunk.Poly.create_box(body, (BLOCK_SIDE * _MILLI,) * 2)
        box.friction = 0.6
        gripper = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
        gripper.position = tuple(start * _MILLI)
        disc = pymunk.Circle(gripper, GRIPPER_RADIUS * _MILLI)
        disc.friction = 0.6
        space.add(body, box, gripper, disc)
        gripper.velocity = tuple((end - start) * _MILLI / STEP_SECONDS)
        for _ in range(SUBSTEPS):
            space.step(STEP_SECONDS / SUBSTEPS)
        gripper.velocity = (0.0, 0.0)
        for _ in range(SETTLING):
            space.step(STEP_SECONDS / SUBSTEPS)
        position = np.array(body.position) / _MILLI
        angle = (body.angle + math.pi) % (2 * math.pi) - math.pi
        return np.array([*position, angle])
