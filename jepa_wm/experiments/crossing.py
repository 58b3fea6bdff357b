"""Crossing: ``planner=cem,mppi seed=0,1`` -> one list of overrides a combination."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jepa_wm.errors import ConfigError

_OPENS, _CLOSES, _QUOTES = "([{", ")]}", "\"'"


@dataclass(frozen=True)
class Combination:
    """One way to set everything.

    Attributes:
        overrides: One ``key=value`` a word of the command line.
        axes: What differs between combinations: key -> the text of its value.
    """

    overrides: tuple[str, ...]
    axes: Mapping[str, str]


def key_of(override: str) -> str:
    """Return what a word of the command line sets, ``+`` and ``~`` left out."""
    return override.partition("=")[0].lstrip("+~")


def split_values(text: str) -> list[str]:
    """Split at commas that are in no quotes and no brackets.

    What is never closed is left whole: whoever reads the values knows how to say so.
    """
    parts, depth, quote, begin, at = [], 0, "", 0, 0
    while at < len(text):
        char = text[at]
        if char == "\\":
            at += 1  # whatever follows is itself
        elif quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote = char
        elif char in _OPENS:
            depth += 1
        elif char in _CLOSES:
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[begin:at])
            begin = at + 1
        at += 1
    return [text] if quote or depth > 0 else [*parts, text[begin:]]


def cross(overrides: Sequence[str]) -> list[Combination]:
    """Return every combination, the last key running fastest.

    Raises:
        ConfigError: a key is set twice, or one of its values is empty or there twice.
    """
    keys = [key_of(override) for override in overrides]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)} is set twice; write {twice[0]}=one,other")
    choices = []
    for override in overrides:
        name, equals, value = override.partition("=")
        values = split_values(value)
        if len(values) > 1 and not all(values):
            raise ConfigError(f"{override}: a value between commas is empty")
        if len(set(values)) < len(values):
            raise ConfigError(f"{override}: a value is there twice")
        choices.append([(name + equals + one, one, len(values) > 1) for one in values])
    return [
        Combination(
            tuple(text for text, _, _ in chosen),
            {key: value for key, (_, value, varies) in zip(keys, chosen, strict=True) if varies},
        )
        for chosen in itertools.product(*choices)
    ]
