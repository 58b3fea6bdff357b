"""Maze as a Gymnasium environment: a ball is pushed through a maze to a goal.

A stand-in for PointMaze (D4RL's maze2d, as in DINO-WM's experiments) that needs no MuJoCo: its
ball, its U-shaped maze and its numbers, but other contacts and pictures. It is not claimed to be
compatible: success is not comparable with published figures, nor is a model of one good in the
other.
Import this module (or make ``jepa_wm.envs.maze:jepa_wm/Maze-v0``) to register it::

    env = gymnasium.make("jepa_wm.envs.maze:jepa_wm/Maze-v0", observation="state")
"""

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from jepa_wm.envs.maze_play import draw_place
from jepa_wm.envs.maze_rendering import MazeRenderer
from jepa_wm.envs.maze_worlds import RADIUS, STATE_SIZE, MazeWorlds
from jepa_wm.envs.points import PointEnv, PointOptions

FASTEST = 7.0  # m/s an axis: more than a step can reach from any speed
TOUCH = 1e-9  # m of overlap a state may have from rounding


class Maze(PointEnv):
    """Push until the ball is less than 0.5 m from its goal.

    State, float64 [4]: the ball's x, y (m, from the maze's published origin) and velocity x, y
    (m/s). Action, float32 [2]: the force along x and y in units of 100 N, cut to +-1. One step is
    0.05 s. Only the position counts for success and is seen in a picture; a model must tell the
    velocity from several. For ``info`` and the reward see ``PointEnv``.

    Args:
        layout: ``u`` or ``medium``, the maps of D4RL's maze2d.
        observation: ``pixels`` uint8 [size,size,3]; ``state``; ``dict`` of ``pixels``, ``state``
            and ``proprio`` (the state, float32).
        render_size: Side of the frames, px.
        draw_goal: ``goal`` marks the goal in green; ``none`` does not.
        terminate: End the episode on success.
        render_mode: ``rgb_array``, ``human`` (a window, at the first ``render``) or None.

    ``reset(options={"state": s, "goal_state": g})`` takes vectors of 4, the start clear of the
    walls. Without them start and goal are drawn at rest, 0.2 m clear of the walls and not solved
    already; DINO-WM draws from the same region but lets the ball fly off at up to 5.2 m/s.

    Raises:
        ValueError: an argument, option, action or state that is not one of the above.

    Source: DINO-WM (gaoyuezhou/dino_wm) ``env/pointmaze/maze_model.py`` for the numbers.
    """

    metadata = {"render_modes": ["human", "rgb_array"], "render_fps": 20}  # noqa: RUF012
    tolerance = 0.5  # m

    def __init__(
        self,
        *,
        layout: str = "u",
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
        worlds = MazeWorlds(1, layout=layout)
        self._map = worlds.map
        low = [*(self._map.centres.min(0) - 0.5), -FASTEST, -FASTEST]
        high = [*(self._map.centres.max(0) + 0.5), FASTEST, FASTEST]
        space = spaces.Box(np.array(low), np.array(high), (STATE_SIZE,), np.float64)
        super().__init__(worlds, MazeRenderer(render_size, self._map), space, 1.0, options)

    def draw_task(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Draw a start and a goal at rest."""
        start, goal = (draw_place(self.np_random, self._map) for _ in range(2))
        return np.append(start, [0.0, 0.0]), np.append(goal, [0.0, 0.0])

    def check_start(self, state: NDArray[np.float64]) -> None:
        """Refuse a ball that overlaps a wall, is outside, or is faster than balls are."""
        if np.abs(state[2:]).max() > FASTEST:
            raise ValueError(f"state has velocity {state[2:]}; at most {FASTEST:g} m/s an axis")
        x, y = state[:2]
        is_outside = np.abs(state[:2] - self._map.centres).max(1).min() > 0.5
        if is_outside or self._map.gaps(state[None, :2])[1][0] < RADIUS - TOUCH:
            raise ValueError(f"state {x:g}, {y:g} is not {RADIUS:g} m clear of the walls")


gym.register(id="jepa_wm/Maze-v0", entry_point="jepa_wm.envs.maze:Maze")
