"""Recording play: a scripted policy and a world, stepped together, for every world of a point."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from jepa_wm.envs.points import PointWorlds

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class PointEpisodes:
    """Recorded play, E episodes of K environment steps.

    Attributes:
        states: Before each step and after the last, float64 [E,K+1,P].
        actions: As commanded, float32 [E,K,2].
    """

    states: Floats
    actions: NDArray[np.float32]


class PointPolicy(Protocol):
    """Acts in N worlds at once."""

    def act(self, states: Floats) -> NDArray[np.float32]:
        """Return actions [N,2] for states [N,P]."""
        ...


def episode_streams(seed: int, first: int, episodes: int) -> list[np.random.Generator]:
    """Return one random stream an episode; episode ``i`` has the same whatever is beside it."""
    return [np.random.default_rng([seed, first + i]) for i in range(episodes)]


def record(worlds: PointWorlds, policy: PointPolicy, starts: Floats, steps: int) -> PointEpisodes:
    """Let a policy act for some steps from states [E,P]."""
    worlds.set_states(starts)
    states = np.empty((len(starts), steps + 1, starts.shape[1]))
    actions = np.empty((len(starts), steps, 2), np.float32)
    states[:, 0] = starts
    for t in range(steps):
        actions[:, t] = policy.act(states[:, t])
        worlds.act(actions[:, t])
        states[:, t + 1] = worlds.states()
    return PointEpisodes(states, actions)
