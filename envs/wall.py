"""Wall as a Gymnasium environment: a dot crosses from one room to the other through a door.

The Wall of DINO-WM: 65 px, a red dot on white, a black wall with one door; an action of length 1
moves the dot by 2 px. One picture shows where it is, another where it should be. Import this module
(or make ``jepa_wm.envs.wall:jepa_wm/Wall-v0``) to register it::

    env = gymnasium.make("jepa_wm.envs.wall:jepa_wm/Wall-v0", observation="state")
"""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from jepa_wm.envs.checks import check_flags
from jepa_wm.envs.points import PointEnv, PointOptions
from jepa_wm.envs.wall_play import draw_task
from jepa_wm.envs.wall_rendering import WallRenderer
from jepa_wm.envs.wall_worlds import HIGH, LOW, STATE_SIZE, WallWorlds

MAX_STEP = 1.8  # the longest action of the published data
FAR = 1e6  # px: bounds of the observation space; a step longer than the wall is thick passes it


class Wall(PointEnv):
    """Move until the dot is less than 4.5 px from its goal, as a rule in the other room.

    State, float64 [2]: the dot's x, y (px, 0-64, y down). Action, float32 [2]: a step in units of
    2 px. The Box is +-1.8 an axis; an action beyond it is executed as it is, as in the reference.
    There is no clock in this world; videos show 10 steps a second. For ``info`` and the reward see
    ``PointEnv``.

    Args:
        wall_x: Middle of the wall, px; 32 is published.
        door_y: Middle of the door, px; 30 is published.
        reference_nan: Divide by zero as the reference does: straight vertical moves pass the edges
            of the door, and give NaN at the border, where the dot is lost.
        observation: ``pixels`` uint8 [size,size,3]; ``state``; ``dict`` of ``pixels``, ``state``
            and ``proprio`` (the state, float32).
        render_size: Side of the frames, px; 224 is published.
        draw_goal: ``goal`` marks the goal in green; ``none`` does not.
        terminate: End the episode on success; the reference never ends one.
        render_mode: ``rgb_array``, ``human`` (a window, at the first ``render``) or None.

    ``reset(options={"state": s, "goal_state": g})`` takes vectors of 2, the start free of the
    walls. Without them start and goal are drawn in opposite rooms, clear of the walls by two
    standard deviations of the dot, either way round half of the time.

    Raises:
        ValueError: an argument, option, action or state that is not one of the above.

    Source: DINO-WM (gaoyuezhou/dino_wm) ``env/wall/wall_env_wrapper.py``.
    """

    tolerance = 4.5  # px

    def __init__(
        self,
        *,
        wall_x: int = 32,
        door_y: int = 30,
        reference_nan: bool = False,
        observation: str = "pixels",
        render_size: int = 224,
        draw_goal: str = "none",
        terminate: bool = True,
        render_mode: str | None = None,
    ) -> None:
        options = PointOptions(
            observation=observation,
            draw_goal=draw_goal,
            terminate=terminate,
            render_mode=render_mode,
        )
        check_flags(reference_nan=reference_nan)
        worlds = WallWorlds(1, wall_x=wall_x, door_y=door_y, reference_nan=reference_nan)
        self._layout = worlds.layout
        super().__init__(
            worlds,
            WallRenderer(render_size, self._layout),
            spaces.Box(-FAR, FAR, (STATE_SIZE,), np.float64),
            MAX_STEP,
            options,
        )

    def draw_task(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Draw a start and a goal in opposite rooms."""
        return draw_task(self.np_random, self._layout)

    def check_start(self, state: NDArray[np.float64]) -> None:
        """Refuse a start on or beyond the border, or in the wall."""
        x, y = state
        if not (LOW < state).all() or not (state < HIGH).all():
            raise ValueError(f"state {x:g}, {y:g} must be between {LOW:g} and {HIGH:g} px")
        low, high = self._layout.door
        if self._layout.left <= x <= self._layout.right and not low < y < high:
            raise ValueError(f"state {x:g}, {y:g} is in the wall; its door is y {low} to {high} px")


gym.register(id="jepa_wm/Wall-v0", entry_point="jepa_wm.envs.wall:Wall")
