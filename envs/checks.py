"""Refusals every environment makes in the same words."""

from collections.abc import Mapping, Sequence


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
