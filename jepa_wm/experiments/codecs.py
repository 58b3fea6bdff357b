"""Codecs of a run: from a bundle's statistics, or its task's, and the action space."""

from collections.abc import Mapping
from typing import Any

import gymnasium

from jepa_wm.bundle.reader import Bundle
from jepa_wm.control.actions import ActionCodec, as_float32
from jepa_wm.control.discrete import Codec, DiscreteCodec, MovesCodec, StepCodec
from jepa_wm.control.spaces import check_space
from jepa_wm.errors import ConfigError

GRIPPER_DEAD_ZONE = 0.25  # of its way, as published for V-JEPA 2-AC: less is no motion


def action_codec(
    bundle: Bundle | None, space: gymnasium.Space, fallback: Mapping[str, Any] | None
) -> tuple[Codec, str]:
    """Return the action codec and where its statistics come from.

    Args:
        bundle: Tried first: its ``jepa_wm.action.*`` keys.
        space: Action space of the environment; sets the bounds. Choices need no statistics, only
            the block.
        fallback: ``block``, ``mean`` and ``std`` of the environment (``task.action``), or None; its
            ``dead_zone``, if it has one, holds whatever the source.

    Raises:
        ConfigError: neither has them, without statistics an action has no scale; or the space
            cannot be planned in.
    """
    space = check_space(space)
    if not isinstance(space, gymnasium.spaces.Box):
        return _choice_codec(bundle, space, fallback)
    names = ("block", "mean", "std")
    stored: dict[str, Any] = {}
    if bundle is not None:
        stored = {name: bundle.get(f"jepa_wm.action.{name}") for name in names}
    if all(stored.get(name) is not None for name in names):
        source, values = "bundle", stored
    elif fallback and all(fallback.get(name) is not None for name in names):
        source, values = str(fallback.get("source", "task.action")), dict(fallback)
    elif bundle is not None and bundle.get("jepa.pred.kind") == "ac":
        size = int(bundle.get("jepa.pred.action_dim"))
        source, values = "model's own units", {"block": 1, "mean": [0] * size, "std": [1] * size}
        values["dead_zone"] = [0.0] * (size - 1) + [GRIPPER_DEAD_ZONE]
    else:
        raise ConfigError(
            f"{bundle.path if bundle else 'a model of states'}: no action statistics; the bundle "
            "lacks jepa_wm.action.block, .mean, .std and the task's YAML has no action"
        )
    mean, std, low, high = map(as_float32, (values["mean"], values["std"], space.low, space.high))
    zone = (fallback or values).get("dead_zone")
    block = int(values["block"])
    codec = ActionCodec(block=block, mean=mean, std=std, low=low, high=high, dead_zone=zone)
    return codec, source


def _choice_codec(
    bundle: Bundle | None, space: gymnasium.Space, fallback: Mapping[str, Any] | None
) -> tuple[Codec, str]:
    block = None if bundle is None else bundle.get("jepa_wm.action.block")
    source = "bundle" if block is not None else "task.action"
    block = (fallback or {}).get("block") if block is None else block
    if block is None:
        raise ConfigError(
            f"action space {space}: how many choices make a block? The bundle lacks "
            "jepa_wm.action.block and the task's YAML has no action.block"
        )
    return DiscreteCodec.of(space, int(block)), source


def step_codec(codec: Codec, task: Mapping[str, Any]) -> StepCodec:
    """Return the codec of a model that steps numbers: ``task.moves`` says what a choice does.

    Raises:
        ConfigError: the actions are choices and the task does not say it, or not for each.
    """
    if isinstance(codec, ActionCodec):
        return codec
    moves = task.get("moves")
    if moves is None:
        raise ConfigError(
            f"actions are {codec}; to plan with states the task's YAML must say what each choice "
            "does, as numbers (task.moves)"
        )
    return MovesCodec(codec=codec, moves=as_float32(moves))


def numbers_codec(codec: Codec, what: str) -> ActionCodec:
    """Return the codec if actions are numbers.

    Raises:
        ConfigError: they are choices, which ``what`` cannot be shown over.
    """
    if isinstance(codec, ActionCodec):
        return codec
    raise ConfigError(f"{what} is over actions that are numbers, here they are {codec}")


def random_settings(codec: Codec, task: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a random policy draws: as ``task.random`` says, else by the statistics."""
    if not isinstance(codec, ActionCodec):
        return {"whole": True}
    return task.get("random") or {"mean": codec.mean.tolist(), "std": codec.std.tolist()}
