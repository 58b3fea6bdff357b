"""Where a bundle was trained, as far as it tells: a run elsewhere is possible, and rarely meant."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from jepa_wm.bundle.reader import Bundle


def strangeness(bundle: Bundle, env_id: str, space: gymnasium.Space) -> str | None:
    """Say in words that a bundle was trained in another environment, or None where nothing tells.

    Args:
        bundle: Of the model.
        env_id: Of the environment it is to plan in, e.g. ``jepa_wm/PushT-v0``.
        space: Its actions.
    """
    home = _home(bundle)
    here = env_id.rpartition(":")[2]
    if home is not None and home.lower() not in (here.lower(), _slug(here)):
        return f"the model was trained in {home}, this is {here}: expect nothing of it"
    ends = [bundle.get(f"jepa_wm.action.{name}") for name in ("low", "high")]
    if None in ends or not isinstance(space, gymnasium.spaces.Box):
        return None
    if np.shape(ends[0]) == space.shape and not np.allclose(ends, [space.low, space.high]):
        return (
            f"the model was trained with actions of {_numbers(ends[0])} to {_numbers(ends[1])}, "
            f"this environment's are {_numbers(space.low)} to {_numbers(space.high)}"
        )
    return None


def tell_strange(*models: Mapping[str, Any]) -> None:
    """Print a note on every model that was trained elsewhere, once each.

    Args:
        models: What is known of them, with ``name`` and perhaps ``strange`` (``strangeness``).
    """
    told = {(str(one["name"]), str(one["strange"])) for one in models if one.get("strange")}
    for name, text in sorted(told):
        print(f"note      {Path(name).name}: {text}" if len(models) > 1 else f"note      {text}")


def _home(bundle: Bundle) -> str | None:
    """Return the id of the environment, or its short name where only the bundle's name has it."""
    told = bundle.get("jepa_wm.source.env")
    if told:
        return str(told).partition(" ")[0]
    name = str(bundle.get("general.name")).split("-")  # lewm-pusht-64px, of jepa_wm.train
    is_ours = bundle.get("jepa_wm.source.play_seed") and len(name) == 3 and name[0] == "lewm"
    return name[1] if is_ours and name[2].endswith("px") else None


def _slug(env_id: str) -> str:
    return env_id.partition("/")[2].partition("-v")[0].lower()


def _numbers(values: object) -> str:
    return np.array2string(np.asarray(values, np.float64), precision=3, separator=" ")
