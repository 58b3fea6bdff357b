"""PushT physics: N independent worlds stepped side by side, each bit-identical to a world alone.

Every world has its own pymunk ``Space``. One big space with translated copies would step faster, but the order in which
Chipmunk resolves the contacts of one copy then depends on the other copies, and its result with it (by pixels, not by
rounding). The loop over spaces calls Chipmunk through pymunk's binding, which costs about 1 us a substep.
"""

from collections import deque
from collections.abc import Callable
from itertools import repeat
from typing import Any

import numpy as np
import pymunk
from jepa_wm.envs.shapes import BlockShape, make_block
from numpy.typing import NDArray
from pymunk._chipmunk_cffi import ffi, lib

WORLD_SIZE = 512.0
AGENT_RADIUS = 15.0
WALLS = (((5, 506), (5, 5)), ((5, 5), (506, 5)), ((506, 5), (506, 506)), ((5, 506), (506, 506)))
WALL_RADIUS = 2.0
SUBSTEPS = 10
DT = 0.01
STIFFNESS, DAMPING = 100.0, 20.0  # k_p and k_v of the reference's controller


class PushTWorlds:
    """N copies of the PushT world: a kinematic disc pushes a free block inside four walls.

    The state of a world is float64 [7]: agent x, y; block x, y; block angle in radians, as pymunk keeps it (not wrapped);
    agent velocity x, y in px/s. Positions are px in a 512 x 512 world, y down.

    Args:
        count: Number of worlds N, at least 1.
        block_shape: One of ``jepa_wm.envs.shapes.BLOCK_NAMES``.
        block_scale: Thickness of the block's bars, px.
        count_contacts: Count contact points while stepping (a Python call per contact: for few worlds only).

    Raises:
        ValueError: bad count, shape name or scale.

    Source: gym-pusht ``envs/pusht.py``, stable-worldmodel ``envs/pusht/env.py``. Kept: moment 3000 and centre of gravity
    (0, 45) of the T, kinematic agent (walls do not stop it), zero damping.
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
        self._contacts = np.zeros(count, dtype=np.int64)
        start = np.tile(np.array([256.0, 400, 256, 300, 0, 0, 0]), (count, 1))
        self.set_states(start)

    def set_states(self, states: NDArray[np.float64]) -> None:
        """Put every world into its state, at rest but for the agent, with no memory of earlier contacts.

        The next ``states()`` gives back ``states`` bit for bit. Chipmunk remembers contacts, bias velocities and the
        order of its search tree, so the spaces are built anew: what follows depends on ``states`` alone.

        Args:
            states: float [N,7].

        Raises:
            ValueError: wrong shape or non-finite numbers.
        """
        states = np.array(states, dtype=np.float64)
        if states.shape != (self.count, 7) or not np.isfinite(states).all():
            raise ValueError(f"states must be finite numbers [{self.count},7], got {states.shape}")
        self._worlds = [_World(self.shape, row) for row in states.tolist()]
        self._position, self._velocity = states[:, :2].copy(), states[:, 5:].copy()
        self._states: NDArray[np.float64] | None = states
        self._bind()

    def _bind(self) -> None:
        """Collect the C handles of the stepping loop; ``_refs[i]`` is row i of ``_velocity``, shared memory."""
        self._spaces = [world.space._space for world in self._worlds]
        self._agents = [world.agent._body for world in self._worlds]
        self._blocks = [world.block._body for world in self._worlds]
        view = ffi.from_buffer("cpVect[]", self._velocity, require_writable=True)
        self._refs = [view[index] for index in range(self.count)]
        self._contacts[:] = 0
        if self._counts_contacts:
            for index, world in enumerate(self._worlds):
                world.space.on_collision(0, 0, post_solve=self._contact_counter(index))

    def _contact_counter(self, index: int) -> Callable[[pymunk.Arbiter, pymunk.Space, Any], None]:
        def count(arbiter: pymunk.Arbiter, space: pymunk.Space, data: Any) -> None:
            self._contacts[index] += len(arbiter.contact_point_set.points)

        return count

    def step(self, targets: NDArray[np.float64]) -> None:
        """Drive every agent towards its target for 0.1 s: ten substeps of v += (100 (target - p) - 20 v) dt.

        Args:
            targets: float [N,2], absolute px, not clipped.

        Raises:
            ValueError: wrong shape or non-finite numbers.
        """
        targets = np.asarray(targets, dtype=np.float64)
        if targets.shape != (self.count, 2) or not np.isfinite(targets).all():
            raise ValueError(
                f"targets must be finite numbers [{self.count},2], got {targets.shape}"
            )
        self._contacts[:] = 0
        for _ in range(SUBSTEPS):
            # The agent is kinematic, so its motion is known without asking Chipmunk: no reading back in the loop.
            self._velocity += (
                STIFFNESS * (targets - self._position) - DAMPING * self._velocity
            ) * DT
            self._position += self._velocity * DT
            deque(map(lib.cpBodySetVelocity, self._agents, self._refs), maxlen=0)
            deque(map(lib.cpSpaceStep, self._spaces, repeat(DT)), maxlen=0)
        self._states = None

    def states(self) -> NDArray[np.float64]:
        """Return the states, float64 [N,7], a fresh array."""
        if self._states is None:
            place, angle = lib.cpBodyGetPosition, lib.cpBodyGetAngle
            agents, blocks = map(place, self._agents), map(place, self._blocks)
            rows = [
                (a.x, a.y, b.x, b.y, t)
                for a, b, t in zip(agents, blocks, map(angle, self._blocks), strict=True)
            ]
            self._states = np.concatenate([np.array(rows), self._velocity], axis=1)
        return self._states.copy()

    def contacts(self) -> NDArray[np.int64]:
        """Return the contact points per substep of the last step, averaged and rounded up, int64 [N].

        Raises:
            ValueError: the worlds were made without ``count_contacts``.
        """
        if not self._counts_contacts:
            raise ValueError("contacts are not counted; make the worlds with count_contacts=True")
        return -(-self._contacts // SUBSTEPS)


class _World:
    """One space with its agent and block; built to a state row [7] and then only stepped."""

    def __init__(self, shape: BlockShape, state: list[float]) -> None:
        self.space = pymunk.Space()
        self.space.damping = 0.0
        ground = self.space.static_body
        walls = [pymunk.Segment(ground, a, b, WALL_RADIUS) for a, b in WALLS]
        self.agent = pymunk.Body(body_type=pymunk.Body.KINEMATIC)
        disc = pymunk.Circle(self.agent, AGENT_RADIUS)
        self.block = pymunk.Body(1.0, shape.moment)
        parts = [pymunk.Poly(self.block, polygon) for polygon in shape.polygons]
        self.block.center_of_gravity = shape.centre_of_gravity
        self.agent.velocity = state[5], state[6]
        self.agent.position = state[0], state[1]
        self.block.angle = state[4]  # before the position: turning is about the centre of gravity
        self.block.position = state[2], state[3]
        self.space.add(*walls, self.agent, disc, self.block, *parts)
