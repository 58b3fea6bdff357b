"""Refusals every environment makes in the same words."""

from collections.abc import Mapping, Sequence
from typing import Any

RESET_OPTIONS = ("state", "goal_state")


def check_choices(choices: Mapping[str, Sequence[str]], **given: str) -> None:
    """Refuse arguments that are none of their choices.

    Raises:
        ValueError: naming every such argument, what was given and what is possible.
    """
    faults = [
        f"{name}={value!r} is unknown; use one of {', '.join(choices[name])}"
        for name, value in given.items()
        if value not in choices[name]
    ]
    if faults:
        raise ValueError("; ".join(faults))


def check_render_mode(render_mode: str | None, modes: Sequence[str]) -> None:
    """Refuse a render mode an environment does not have.

    Raises:
        ValueError: it is neither None nor one of ``modes``.
    """
    if render_mode not in (None, *modes):
        raise ValueError(f"render_mode={render_mode!r} is unknown; use {', '.join(modes)} or None")


def check_reset_options(options: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the options of a reset, an empty mapping for none.

    Raises:
        ValueError: there are others than ``RESET_OPTIONS``.
    """
    unknown = sorted(set(options or {}) - set(RESET_OPTIONS))
    if unknown:
        raise ValueError(f"unknown reset options {unknown}; use {', '.join(RESET_OPTIONS)}")
    return options or {}
