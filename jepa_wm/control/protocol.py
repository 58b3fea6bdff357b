"""Evaluation protocols: which episodes a planner is tested on, and what their goals are.

The LeWM protocol: the start is a state of a recorded episode, the goal the state ``offset``
environment steps later in the same episode; the recorded actions in between reach it, so replaying
them is the ceiling of any open-loop plan.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jepa_wm.control.episode import Task
from jepa_wm.errors import ConfigError
from jepa_wm.runtime import stream_seed

Frame = NDArray[np.uint8]
Render = Callable[[NDArray[np.float64]], Frame]


@dataclass(frozen=True)
class Segments:
    """Starts and goals cut from recorded episodes, one a row.

    Attributes:
        starts: Start states float64 [E,P].
        goals: Goal states float64 [E,P].
        actions: Recorded environment actions from start to goal, float32 [E,offset,a].
    """

    starts: NDArray[np.float64]
    goals: NDArray[np.float64]
    actions: NDArray[np.float32]


def cut_segments(
    states: NDArray[np.float64], actions: NDArray[np.float32], offset: int, seed: int
) -> Segments:
    """Cut one segment of ``offset`` steps out of each recorded episode.

    Args:
        states: Float64 [E,K+1,P], before each action and after the last.
        actions: Float32 [E,K,a].
        offset: Environment steps between start and goal.
        seed: Episode e starts at a step drawn from (seed, e), whatever else is cut.

    Raises:
        ConfigError: the episodes are shorter than ``offset``.
    """
    steps = actions.shape[1]
    if not 1 <= offset <= steps:
        raise ConfigError(f"goal_offset={offset} must be 1..{steps}, the recorded steps")
    rows = np.arange(len(states))
    streams = [np.random.default_rng([seed, row]) for row in range(len(states))]
    first = np.array([rng.integers(steps - offset + 1) for rng in streams])
    times = first[:, None] + np.arange(offset)
    return Segments(
        states[rows, first], states[rows, first + offset], actions[rows[:, None], times]
    )


def segment_tasks(segments: Segments, seed: int, render: Render, from_states: bool) -> list[Task]:
    """Make one task a segment.

    Args:
        segments: Starts and goals.
        seed: Seeds the planner's randomness of each episode, together with its id.
        render: State -> the picture of it the camera takes, uint8 [H,W,3].
        from_states: The agent takes goals as states (the simulator as model), not as pictures.
    """
    tasks = []
    for index, (start, goal) in enumerate(zip(segments.starts, segments.goals, strict=True)):
        picture = render(goal)
        tasks.append(
            Task(
                id=index,
                seed=stream_seed(seed, index),
                options={"state": start, "goal_state": goal},
                goal=goal if from_states else picture,
                goal_frame=picture,
            )
        )
    return tasks


def picture_tasks(starts: NDArray[np.float64], seed: int, picture: Frame) -> list[Task]:
    """Make one task a start state [E,P], all with the same goal picture uint8 [H,W,3].

    A picture tells no goal state, so nothing can be scored (``Rules.scored``): the environment is
    left its own goal.
    """
    return [
        Task(
            id=index,
            seed=stream_seed(seed, index),
            options={"state": start},
            goal=picture,
        )
        for index, start in enumerate(starts)
    ]
