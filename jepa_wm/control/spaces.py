"""What environments take as an action: a Box of one dimension, or choices."""

from collections.abc import Callable

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from jepa_wm.errors import ConfigError

Actions = Box | Discrete | MultiDiscrete
"""A Discrete takes one whole number, a MultiDiscrete several."""


def check_space(space: gymnasium.Space) -> Actions:
    """Return the action space if it can be planned in.

    Raises:
        ConfigError: it is of another kind or has more dimensions than one.
    """
    dims = len(space.shape or ())
    if not isinstance(space, Actions) or dims != (0 if isinstance(space, Discrete) else 1):
        raise ConfigError(
            f"action space {space} is a {type(space).__name__}; planning needs a Box of one "
            "dimension, or choices: a Discrete or a MultiDiscrete of one dimension"
        )
    return space


def space_size(space: Actions) -> int:
    """Return the numbers in one action, a."""
    return int(np.prod(space.shape or ()))  # a Discrete has no dimensions: 1


def fit_actions(
    actions: np.ndarray, rows: np.ndarray, space: Actions, num_envs: int, name: Callable[[int], int]
) -> np.ndarray:
    """Put an agent's actions [n,a] in the form a vector of environments takes.

    Args:
        actions: One a row; choices are whole numbers.
        rows: The rows that act, the first n of the vector at most.
        space: Of one environment.
        num_envs: Size of the vector; who does not act gets zeros, or the first choice.
        name: Row -> what to call it.

    Raises:
        ValueError: the space does not contain an action.
    """
    shape = tuple(space.shape or ())
    full = np.zeros((num_envs, *shape), dtype=space.dtype)
    if not isinstance(space, Box):
        full += space.start
    full[rows] = actions[rows].reshape(len(rows), *shape)
    for row in rows.tolist():
        cut = not isinstance(space, Box) and not np.array_equal(full[row].reshape(-1), actions[row])
        if cut or not space.contains(full[row]):
            raise ValueError(
                f"action {actions[row].tolist()} of task {name(row)} is outside {space}"
            )
    return full
