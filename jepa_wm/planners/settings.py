"""What makes a planner's settings impossible, said by name: one line a fault."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


def count_faults(values: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Settings that must be whole numbers of at least 1; names that are not there are skipped."""
    return [
        f"{name}={values[name]!r} must be a whole number >= 1"
        for name in names
        if name in values and (type(values[name]) is not int or values[name] < 1)
    ]


def choice_faults(values: Mapping[str, Any], choices: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Settings that must be one of a few words."""
    return [
        f"{name}={values[name]!r} must be one of {', '.join(words)}"
        for name, words in choices.items()
        if values[name] not in words
    ]


def flag_faults(values: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Settings that must be true or false."""
    return [
        f"{name}={values[name]!r} must be true or false"
        for name in names
        if name in values and type(values[name]) is not bool
    ]


def range_faults(values: Mapping[str, Any], tops: Mapping[str, float]) -> list[str]:
    """Settings, one number or one a dimension, that must be >= 0 and below a top."""
    faults = []
    for name, top in tops.items():
        try:
            numbers = np.atleast_1d(np.asarray(values[name], dtype=np.float64))
        except (TypeError, ValueError):
            numbers = np.array([np.nan])
        if not (numbers.size and ((numbers >= 0) & (numbers < top)).all()):
            faults.append(
                f"{name}={values[name]!r} must be >= 0 and < {top}, a number or one per dimension"
            )
    return faults


def elite_faults(values: Mapping[str, Any]) -> list[str]:
    """More elites than candidates, where both are numbers at all."""
    elites, samples = values.get("num_elites"), values["num_samples"]
    if type(elites) is int and type(samples) is int and elites > samples:
        return [f"num_elites={elites} exceeds num_samples={samples}"]
    return []


def number_faults(
    values: Mapping[str, Any],
    names: Iterable[str],
    *,
    above: float | None = None,
    least: float = -np.inf,
) -> list[str]:
    """Settings that must be one finite number, above a number or at least another."""
    said = f">= {least:g}" if above is None else f"> {above:g}"
    return [
        f"{name}={values[name]!r} must be a number {said}"
        for name in names
        if type(values[name]) not in (int, float)
        or not np.isfinite(values[name])
        or (values[name] < least if above is None else values[name] <= above)
    ]
