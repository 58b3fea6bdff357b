"""How a PushT episode begins: drawing a state, and putting the worlds into it.

``exact`` starts a fresh world in exactly the state asked for and never draws an overlapping one.
The other modes repeat what a reference implementation does, flaws included, so that its seeds and
recorded episodes can be compared.
"""

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.metrics import TURN, clearance, is_block_inside
from jepa_wm.envs.physics import HOME_STATE, PushTWorlds
from jepa_wm.envs.shapes import BlockShape

RESET_MODES = ("exact", "swm", "gym_pusht", "dino_wm")
AGENT_RANGE, BLOCK_RANGE = (50.0, 450.0), (100.0, 400.0)  # px, both axes
TRIES = 10_000
ROOM_TRIES = 1_000  # of a block that is asked for; later draws have ten times as many

Floats = NDArray[np.float64]


def check_fits(shape: BlockShape, scale: float) -> None:
    """Refuse a block that has no room between the walls and beside the agent.

    Args:
        shape: The block.
        scale: What it was made of, px, for the text.

    Raises:
        ValueError: of many places drawn it fits in none.
    """
    try:
        draw_state("exact", np.random.default_rng(0), shape, ROOM_TRIES)
    except ValueError as error:
        raise ValueError(
            f"block_scale={scale:g}: a block_shape={shape.name} that reaches {shape.reach:.0f} px "
            "does not fit between the walls; choose a smaller one, 30 is published"
        ) from error


def draw_state(
    mode: str, rng: np.random.Generator, shape: BlockShape, tries: int = TRIES
) -> Floats:
    """Draw a state: agent in [50,450]^2, block in [100,400]^2, at rest, float64 [7].

    ``exact`` draws the angle from [0, 2 pi) and rejects states in which block and agent or block
    and walls overlap; the other modes draw it from [-2 pi, 2 pi) as stable-worldmodel does.

    Raises:
        ValueError: the block is too large to fit.
    """
    for _ in range(tries):
        low_angle = 0.0 if mode == "exact" else -TURN
        agent, block = rng.uniform(*AGENT_RANGE, 2), rng.uniform(*BLOCK_RANGE, 2)
        state = np.array([*agent, *block, rng.uniform(low_angle, TURN), 0.0, 0.0])
        if mode != "exact" or (clearance(shape, state) > 0 and is_block_inside(shape, state)):
            return state
    raise ValueError(f"no free start found: is the block (reach {shape.reach:.0f} px) too large?")


def draw_legacy_state(seed: int) -> Floats:
    """Draw the state gym-pusht and dino_wm start from for a seed, float64 [7].

    Source: gym-pusht 0.1.5 ``envs/pusht.py`` (reset; 0.1.8 draws otherwise); unbounded angle.
    """
    rng = np.random.RandomState(seed % 2**32)
    places = [rng.randint(50, 450), rng.randint(50, 450), rng.randint(100, 400)]
    places.append(rng.randint(100, 400))
    return np.array([*places, rng.randn() * 2 * np.pi - np.pi, 0.0, 0.0])


def begin(worlds: PushTWorlds, mode: str, state: Floats, goal: Floats) -> None:
    """Put one world into ``state`` [7] the way ``mode`` does.

    ``swm`` visits the goal first and keeps what Chipmunk remembers of it; ``gym_pusht`` sets the
    angle after the position, which turns the block about its centre of gravity; all but ``exact``
    end with one physics step, so a moving agent drifts and overlaps are pushed apart.

    Source: the ``_set_state`` of each reference.
    """
    if mode == "exact":
        worlds.set_states(state[None])
        return
    worlds.set_states(np.array(HOME_STATE)[None])
    if mode == "swm":
        worlds.nudge(goal[None])
    worlds.nudge(state[None], angle_first=mode != "gym_pusht")
