"""The numbers of imagined rollouts: distances, nearest real frames, what a probe reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jepa_wm.experiments.observer import Floats
from jepa_wm.experiments.readings import LinearProbe
from jepa_wm.experiments.rollouts import Bank, Imagined, distance

STATIC = "nothing predicted"
_PAIRS = 2000  # random pairs of bank frames whose distance sets the scale


@dataclass(frozen=True, eq=False)
class Nearest:
    """Real frames nearest to the predicted latents of one rollout, k each.

    Attributes:
        rows: Rows of the bank, int64 [n,k], nearest first.
        distances: float64 [n,k].
    """

    rows: NDArray[np.int64]
    distances: Floats


@dataclass(frozen=True, eq=False)
class Numbers:
    """What is measured over B rollouts at n moments.

    Attributes:
        distances: ``predicted`` and ``nothing predicted`` from the encoded truth, [B,n] each.
        random_pair: Median distance of two real frames of different episodes.
        nearer: Frames of the bank that are nearer to the prediction than the true frame, int [B,n].
        nearest: Of the rollout that is drawn.
        errors: Label of a reading -> ``encoded`` and ``predicted`` -> its error [B,n].
    """

    distances: Mapping[str, Floats]
    random_pair: float
    nearer: NDArray[np.int64]
    nearest: Nearest
    errors: Mapping[str, Mapping[str, Floats]]


def measure(
    imagined: Imagined, bank: Bank, probe: LinearProbe | None, options: dict[str, Any]
) -> Numbers:
    """Measure rollouts; ``options`` has ``distance``, ``nearest``, ``show`` and ``seed``."""
    kind = options["distance"]
    encoded, predicted = imagined.flat()
    distances = {
        "predicted": distance(predicted, encoded, kind),
        STATIC: distance(encoded[:, :1], encoded, kind),
    }
    far = [np.stack([distance(bank.z, z, kind) for z in path]) for path in predicted]  # [B][n,M]
    own = distances["predicted"][..., None]
    nearer = np.stack([(far[row] < own[row]).sum(1) for row in range(len(far))])
    drawn = far[options["show"]]
    rows = drawn.argsort(1)[:, : options["nearest"]]
    nearest = Nearest(rows, np.take_along_axis(drawn, rows, 1))
    errors: dict[str, dict[str, Floats]] = {}
    if probe is not None:
        read = {"encoded": probe.read(encoded), "predicted": probe.read(predicted)}
        errors = {
            one.label: {name: one.error(found, imagined.states) for name, found in read.items()}
            for one in probe.readings
        }
    return Numbers(distances, random_pair(bank, kind, options["seed"]), nearer, nearest, errors)


def random_pair(bank: Bank, kind: str, seed: int) -> float:
    """Return the median distance of two frames of different episodes; NaN where there is one."""
    rng = np.random.default_rng(seed)
    first, second = rng.integers(len(bank.z), size=(2, _PAIRS))
    apart = bank.episodes[first] != bank.episodes[second]
    pairs = zip(first[apart], second[apart], strict=True)
    found = [float(distance(bank.z[i], bank.z[j], kind)) for i, j in pairs]
    return float(np.median(found)) if found else float("nan")


def quartiles(values: NDArray[Any]) -> dict[str, list[float]]:
    """Return median and quartiles over rollouts of values [B,n], a number a moment."""
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
    return {"median": middle.tolist(), "q25": low.tolist(), "q75": high.tolist()}


def record(numbers: Numbers, probe: LinearProbe | None, bank: Bank) -> dict[str, Any]:
    """Return everything as plain JSON values."""
    return {
        "distance": {name: quartiles(values) for name, values in numbers.distances.items()},
        "random_pair": numbers.random_pair,
        "frames_nearer_than_the_true_one": quartiles(numbers.nearer),
        "nearest": {
            "bank_rows": numbers.nearest.rows.tolist(),
            "distances": numbers.nearest.distances.tolist(),
            "states": bank.states[numbers.nearest.rows[:, 0]].tolist(),
        },
        "probe_r2": {} if probe is None else dict(probe.r2),
        "probe_error": {
            label: {name: quartiles(values) for name, values in found.items()}
            for label, found in numbers.errors.items()
        },
    }
