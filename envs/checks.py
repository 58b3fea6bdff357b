"""Refusals every environment makes in the same words."""

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
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


def check_flags(**given: object) -> None:
    """Refuse arguments that are neither true nor false.

    Raises:
        ValueError: naming every such argument and what was given.
    """
    faults = [f"{k}={v!r} must be true or false" for k, v in given.items() if type(v) is not bool]
    if faults:
        raise ValueError("; ".join(faults))


def check_size(size: object, most: int | None = None) -> None:
    """Refuse a side of frames that is no whole number of pixels, at least 1 and at most ``most``.

    Raises:
        ValueError: it is not.
    """
    is_fit = is_whole(size) and 1 <= size and (most is None or size <= most)  # type: ignore[operator]
    if not is_fit:
        wanted = "at least 1 pixel" if most is None else f"1 to {most} px"
        raise ValueError(f"render_size={size!r} must be {wanted}, a whole number")


def is_whole(value: object) -> bool:
    """Say whether a value is a whole number (true and false are none)."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Say whether a value is a number (true and false are none); it may be infinite or NaN."""
    return isinstance(value, Real) and not isinstance(value, bool)


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
