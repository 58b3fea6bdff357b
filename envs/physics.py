"""PushT physics: N independent worlds stepped side by side, each bit-identical to a world alone.

Every world has its own pymunk ``Space``. One big space with translated copies steps faster, but
the order in which Chipmunk resolves the contacts of one copy then depends on the other copies,
and the result with it (by pixels, not by rounding). The loops call Chipmunk through pymunk's
binding, which costs about 1 us a substep where pymunk's own methods cost 5.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymunk
from numpy.typing import NDArray
from pymunk._chipmunk_cffi import ffi, lib

from jepa_wm.envs.shapes import BlockShape, make_block

AGENT_RADIUS = 15.0
WALLS = (((5, 506), (5, 5)), ((5, 5), (506, 5)), ((506, 5), (506, 506)), ((5, 506), (506, 506)))
WALL_RADIUS = 2.0
SUBSTEPS = 10
DT = 0.01  # seconds a substep: 100 Hz physics, 10 Hz control
STIFFNESS, DAMPING = 100.0, 20.0  # k_p and k_v of the reference's controller
HASH_SIZE = 5  # bins of Chipmunk's hash set of moving shapes, fewer than 5 shapes in it
HOME_STATE = (256.0, 400.0, 256.0, 300.0, 0.0, 0.0, 0.0)  # where the references build their bodies

Segment = tuple[tuple[float, float], tuple[float, float]]


class PushTWorlds:
    """N copies of the PushT world: a kinematic disc pushes a free block inside four walls.

    The state of a world is float64 [7]: agent x, y; block x, y; block angle in radians as pymunk
    keeps it (not wrapped); agent velocity x, y in px/s. Positions are px in a 512 x 512 world, y
    down. Walls stop the block, not the agent.

    Args:
        count: Number of worlds N, at least 1.
        block_shape: One of ``jepa_wm.envs.shapes.BLOCK_NAMES``.
        block_scale: Thickness of the block's bars, px.
        count_contacts: Count contact points while stepping. It costs a Python call per contact, so
            it is meant for few worlds.

    Raises:
        ValueError: bad count, shape name or scale.

    Source: gym-pusht ``envs/pusht.py``, stable-worldmodel ``envs/pusht/env.py``. Kept: moment 3000
    and centre of gravity (0, 45) of the T, kinematic agent, zero damping.
    """

    def __init__(
        self,
        count: int,
        *,
        block_shape: str = "T",
        block_scale: float = 30.0,
        count_contacts: bool = False,
    ) -> None:
        if count < 1:
            raise ValueError(f"count={count} must be at least 1")
        self.count = count
        self.shape = make_block(block_shape, block_scale)
        self._counts_contacts = count_contacts
        self._contacts = [0] * count
        self._worlds = [_World(self.shape) for _ in range(count)]
        self._bind()
        self._schedule = np.empty((count, SUBSTEPS, 2))  # agents' velocities within a step
        view = ffi.from_buffer("cpVect[]", self._schedule)
        rows = [view[index] for index in range(count * SUBSTEPS)]  # C structs in that memory
        self._rows = [rows[at : at + SUBSTEPS] for at in range(0, len(rows), SUBSTEPS)]
        self.set_states(np.tile(np.array(HOME_STATE), (count, 1)))

    def set_states(self, states: NDArray[np.float64]) -> None:
        """Put every world into its state, with the block at rest and no memory of earlier contacts.

        The next ``states()`` gives back ``states`` bit for bit, and what follows depends on
        ``states`` alone: the worlds go on as newly built ones would.

        Args:
            states: float [N,7].

        Raises:
            ValueError: wrong shape or non-finite numbers.
        """
        states = self._checked(states, 7, "states")
        for world, row in zip(self._worlds, states.tolist(), strict=True):
            world.restart(row)
        self._position, self._velocity = states[:, :2].copy(), states[:, 5:].copy()
        self._states: NDArray[np.float64] | None = states
        self._contacts[:] = [0] * self.count

    def nudge(self, states: NDArray[np.float64], *, angle_first: bool = True) -> None:
        """Move the bodies inside the running spaces and step once: the references' inexact reset.

        Contacts and bias velocities of before leak into the start, agents drift by velocity x dt,
        and with ``angle_first=False`` (gym-pusht) blocks end up turned about the centre of gravity.

        Args:
            states: float [N,7].
            angle_first: Set the angle before the position.

        Raises:
            ValueError: wrong shape or non-finite numbers.
        """
        states = self._checked(states, 7, "states")
        for world, row in zip(self._worlds, states.tolist(), strict=True):
            world.place(row, angle_first=angle_first)
            world.space.step(DT)
        self._velocity[:] = states[:, 5:]
        self._position = states[:, :2] + self._velocity * DT
        self._states = None

    def step(self, targets: NDArray[np.float64]) -> None:
        """Drive every agent towards its target for 0.1 s.

        Ten substeps of v += (100 (target - p) - 20 v) dt, p += v dt.

        Args:
            targets: float [N,2], absolute px, not clipped.

        Raises:
            ValueError: wrong shape or non-finite numbers.
        """
        targets = self._checked(targets, 2, "targets")
        self._contacts[:] = [0] * self.count
        if self.count == 1:
            self._step_one(*targets[0].tolist())
        else:
            self._step_many(targets)
        self._states = None

    def states(self) -> NDArray[np.float64]:
        """Return the states, float64 [N,7], a fresh array."""
        if self._states is None:
            blocks = [lib.cpBodyGetPosition(block) for block in self._blocks]
            angles = map(lib.cpBodyGetAngle, self._blocks)
            poses = [(p.x, p.y, angle) for p, angle in zip(blocks, angles, strict=True)]
            self._states = np.concatenate([self._position, poses, self._velocity], axis=1)
        return self._states.copy()

    def contacts(self) -> NDArray[np.int64]:
        """Return the contact points per substep of the last step, averaged and rounded up, [N].

        Raises:
            ValueError: the worlds were made without ``count_contacts``.
        """
        if not self._counts_contacts:
            raise ValueError("contacts are not counted; make the worlds with count_contacts=True")
        return -(-np.array(self._contacts, dtype=np.int64) // SUBSTEPS)

    def contact_marks(self, index: int = 0) -> list[Segment]:
        """Return the short lines pymunk's debug drawing puts on the contact points of one world."""
        marks: list[Segment] = []
        self._worlds[index].block.each_arbiter(_collect_marks, marks)
        return marks

    def _checked(self, values: NDArray[np.float64], width: int, name: str) -> NDArray[np.float64]:
        values = np.array(values, dtype=np.float64)
        if values.shape != (self.count, width):
            raise ValueError(f"{name} must be [{self.count},{width}], got {list(values.shape)}")
        if not np.isfinite(values).all():
            raise ValueError(f"{name} must be finite; row {_first_bad(values)} is not")
        return values

    # The agent is kinematic: its motion is known without reading it back from Chipmunk.

    def _step_many(self, targets: NDArray[np.float64]) -> None:
        for substep in range(SUBSTEPS):
            pull = STIFFNESS * (targets - self._position) - DAMPING * self._velocity
            self._velocity += pull * DT
            self._position += self._velocity * DT
            self._schedule[:, substep] = self._velocity
        step, set_velocity = lib.cpSpaceStep, lib.cpBodySetVelocity
        # World by world, all its substeps: a space fits the cache, five hundred do not.
        for space, agent, velocities in zip(self._spaces, self._agents, self._rows, strict=True):
            for velocity in velocities:
                set_velocity(agent, velocity)
                step(space, DT)

    def _step_one(self, target_x: float, target_y: float) -> None:
        """Do the same as ``_step_many`` to the bit, in floats: numpy on one row takes longer."""
        (x, y), (vx, vy) = self._position[0].tolist(), self._velocity[0].tolist()
        agent, space = self._agents[0], self._spaces[0]
        for _ in range(SUBSTEPS):
            vx += (STIFFNESS * (target_x - x) - DAMPING * vx) * DT
            vy += (STIFFNESS * (target_y - y) - DAMPING * vy) * DT
            x, y = x + vx * DT, y + vy * DT
            lib.cpBodySetVelocity(agent, (vx, vy))
            lib.cpSpaceStep(space, DT)
        self._position[0], self._velocity[0] = (x, y), (vx, vy)

    def _bind(self) -> None:
        """Collect the C handles of the stepping loop."""
        self._spaces = [world.space._space for world in self._worlds]
        self._agents = [world.agent._body for world in self._worlds]
        self._blocks = [world.block._body for world in self._worlds]
        if self._counts_contacts:
            for index, world in enumerate(self._worlds):
                world.space.on_collision(0, 0, post_solve=_counter(self._contacts, index))


class _World:
    """One space with its agent and block."""

    def __init__(self, shape: BlockShape) -> None:
        self.space = pymunk.Space()
        self.space.damping = 0.0
        ground = self.space.static_body
        walls = [pymunk.Segment(ground, a, b, WALL_RADIUS) for a, b in WALLS]
        self.agent = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
        self.block = pymunk.Body(1.0, shape.moment)
        moving: list[pymunk.Shape] = [pymunk.Circle(self.agent, AGENT_RADIUS)]
        moving += [pymunk.Poly(self.block, polygon) for polygon in shape.polygons]
        self.block.center_of_gravity = shape.centre_of_gravity
        self.place(list(HOME_STATE))
        self.space.add(*walls, self.agent, self.block, *moving)
        self._spare = pymunk.Circle(self.agent, 1.0)  # never in the space during a step
        self._moving = [part._shape for part in moving]

    def restart(self, state: list[float]) -> None:
        """Put the bodies into a state row [7] and forget all else, as if built anew.

        Chipmunk remembers contacts and its search tree (gone with the shapes), bias velocities
        (gone after an update over no time) and counts the shapes ever added. That count decides
        the order in which shapes are visited, modulo the size of its hash set, so spare shapes
        bring it back to where a new space has it. Ten times as fast as building.
        """
        space, block = self.space._space, self.block._body
        for part in self._moving:
            lib.cpSpaceRemoveShape(space, part)
        for _ in range(-len(self._moving) % HASH_SIZE):
            lib.cpSpaceAddShape(space, self._spare._shape)
            lib.cpSpaceRemoveShape(space, self._spare._shape)
        lib.cpBodyUpdatePosition(block, 0.0)
        lib.cpBodySetVelocity(block, (0.0, 0.0))
        lib.cpBodySetAngularVelocity(block, 0.0)
        self.place(state)
        for part in self._moving:
            lib.cpSpaceAddShape(space, part)

    def place(self, state: list[float], *, angle_first: bool = True) -> None:
        """Write a state row [7] into the bodies; turning is about the centre of gravity."""
        agent, block = self.agent._body, self.block._body
        lib.cpBodySetVelocity(agent, state[5:])
        lib.cpBodySetPosition(agent, state[:2])
        if angle_first:
            lib.cpBodySetAngle(block, state[4])
        lib.cpBodySetPosition(block, state[2:4])
        if not angle_first:
            lib.cpBodySetAngle(block, state[4])


def _first_bad(values: NDArray[np.float64]) -> int:
    return int(np.flatnonzero(~np.isfinite(values).all(axis=1))[0])


def _counter(counts: list[int], index: int) -> Callable[[pymunk.Arbiter, pymunk.Space, Any], None]:
    def count(arbiter: pymunk.Arbiter, space: pymunk.Space, data: Any) -> None:
        counts[index] += lib.cpArbiterGetCount(arbiter._arbiter)

    return count


def _collect_marks(arbiter: pymunk.Arbiter, marks: list[Segment]) -> None:
    contacts = arbiter.contact_point_set
    nx, ny = 2.0 * contacts.normal
    lines = []
    for point in contacts.points:
        (ax, ay), (bx, by) = point.point_a, point.point_b
        lines.append(((ax - nx, ay - ny), (bx + nx, by + ny)))
    marks[:0] = lines  # a body lists its arbiters last first; overlapping marks blend in order
