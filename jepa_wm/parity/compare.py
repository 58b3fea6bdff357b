"""Distances between stages, and what they are worth."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from jepa_wm.bundle.reader import Bundle
from jepa_wm.parity.inputs import Pass
from jepa_wm.spec import stages

FLOAT32_LIMIT = 1e-5  # of the largest value of a stage
COSINE_LIMIT = 0.999  # of features, where precision is reduced
FEATURES = ("pooled", "pred", "head")
"""Stages that are somebody's output."""

Runner = Callable[[Pass], Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class Distance:
    """How far an array is from the specification's.

    Attributes:
        max_abs: Largest absolute difference.
        relative: That over the largest absolute value specified.
        cosine: Between the vectors on the last axis (tokens): their median.
        worst: The lowest of these. Single tokens can be far off in half precision where the median
            and every pooled vector are not.
    """

    max_abs: float
    relative: float
    cosine: float
    worst: float


@dataclass(frozen=True)
class Row:
    """One stage of one pass.

    Attributes:
        run: Name of the pass.
        stage: Name of the stage.
        shape: Its shape in the specification.
        runtime: Distance of the torch runtime, None where it does not compute the stage.
        reference: Distance of the reference implementation, likewise.
    """

    run: str
    stage: str
    shape: tuple[int, ...]
    runtime: Distance | None
    reference: Distance | None


def distance(found: np.ndarray, wanted: np.ndarray) -> Distance:
    """Measure how far ``found`` is from ``wanted``; NaN or another size is infinitely far."""
    if found.size != wanted.size or not np.isfinite(found).all():
        return Distance(np.inf, np.inf, -1.0, -1.0)
    a, b = found.reshape(wanted.shape), wanted
    largest, max_abs = float(np.abs(b).max()), float(np.abs(a - b).max())
    relative = max_abs / largest if largest else (np.inf if max_abs else 0.0)
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosines = np.where(norms > 0, (a * b).sum(-1) / np.where(norms > 0, norms, 1), max_abs == 0)
    return Distance(max_abs, relative, float(np.median(cosines)), float(cosines.min()))


def compare(
    bundle: Bundle, runs: list[Pass], runtime: Runner, reference: Runner | None = None
) -> Iterator[Row]:
    """Yield the distance of every stage of every pass, as the specification gets there.

    Args:
        bundle: The bundle, for the specification.
        runs: The passes.
        runtime: Stages of the torch runtime for a pass.
        reference: Stages of a reference implementation for a pass, or None.
    """
    for one in runs:
        found = runtime(one)
        other = reference(one) if reference is not None else {}
        for name, wanted in stages(bundle, one.inputs):
            if name == "pooled" and one.inputs.targets is not None:
                continue  # the feature of an input is the other passes'
            pair = (distance(s[name], wanted) if name in s else None for s in (found, other))
            yield Row(one.name, name, wanted.shape, *pair)


def faults(rows: list[Row], whose: str, is_exact: bool) -> list[str]:
    """Say which stages are too far away.

    Args:
        rows: All stages.
        whose: ``runtime`` or ``reference``.
        is_exact: Judge every stage by ``FLOAT32_LIMIT``; else the tokens after the norm, the pooled
            vector and the logits by ``COSINE_LIMIT``.
    """
    wrong, seen = [], 0
    for row in rows:
        d, name = getattr(row, whose), f"{whose}: {row.run} {row.stage}"
        seen += d is not None
        if d is None:
            if row.stage in FEATURES and whose == "runtime":
                wrong.append(f"{name} is not computed")
        elif is_exact and d.relative > FLOAT32_LIMIT:
            wrong.append(f"{name} is {d.relative:.1e} apart (limit {FLOAT32_LIMIT:.0e})")
        elif (
            not is_exact and row.stage in ("enc.norm", "pooled", "head") and d.cosine < COSINE_LIMIT
        ):
            wrong.append(f"{name} has the cosine {d.cosine:.6f} (limit {COSINE_LIMIT})")
    return wrong if seen else [f"{whose}: computes none of the stages"]
