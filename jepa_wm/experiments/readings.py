"""What a linear map reads of the simulator's state in a latent, and how well it does.

Ridge regression in its dual form, since a token model's latents have more numbers than there are
frames. How much to shrink is chosen by leaving episodes out one by one; the score is of others that
were never fitted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jepa_wm.errors import ConfigError

Floats = NDArray[np.float64]

_SHRINK = 10.0 ** np.arange(-9, 4)  # of the mean squared length of a centred latent


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A thing that may be read from a latent.

    Attributes:
        label: Its name.
        at: Numbers of the state that are its position, or the one that is its angle in radians.
        unit: Unit of its error.
        scale: Factor from the state's unit to ``unit``.
        turns: 0 for a position; for an angle, how often the thing looks the same in a whole turn.

    Raises:
        ConfigError: nothing is read, or an angle is not one number.
    """

    label: str
    at: Sequence[int]
    unit: str
    scale: float = 1.0
    turns: int = 0

    def __post_init__(self) -> None:
        if not self.at or (self.turns and len(self.at) != 1):
            raise ConfigError(
                f"probe: {self.label!r} reads at={list(self.at)}; a position is one or more "
                "numbers of the state, an angle (turns above 0) exactly one"
            )

    @property
    def width(self) -> int:
        """Numbers a map has to give: an angle is its cosine and sine."""
        return 2 if self.turns else len(self.at)

    def targets(self, states: Floats) -> Floats:
        """Return what a map should give for states [..,P]: [..,width]."""
        values = states[..., list(self.at)]
        if not self.turns:
            return values
        angle = self.turns * values
        return np.concatenate([np.cos(angle), np.sin(angle)], -1)

    def values(self, targets: Floats) -> Floats:
        """Turn what a map gave, [..,width], into numbers of the state, [..,len(at)]."""
        if not self.turns:
            return targets
        return np.arctan2(targets[..., 1:], targets[..., :1]) / self.turns

    def error(self, found: Floats, states: Floats) -> Floats:
        """Return the distance [..], in ``unit``, between states [..,P] read and true."""
        gap = found[..., list(self.at)] - states[..., list(self.at)]
        if self.turns:
            period = 2 * np.pi / self.turns
            gap = (gap + period / 2) % period - period / 2
        return self.scale * np.sqrt(np.square(gap).sum(-1))


def make_readings(nodes: Sequence[Mapping[str, Any]], state_dim: int) -> tuple[Reading, ...]:
    """Build readings from plain values.

    Raises:
        ConfigError: one does not fit a state of ``state_dim`` numbers.
    """
    try:
        readings = tuple(Reading(**node) for node in nodes)
    except TypeError as error:
        raise ConfigError(f"probe.reads: {error}") from error
    wrong = [one.label for one in readings if not all(0 <= i < state_dim for i in one.at)]
    if wrong or not readings:
        raise ConfigError(
            f"probe.reads: {', '.join(wrong) or 'nothing'} at numbers outside the state, which has "
            f"{state_dim}, 0 to {state_dim - 1}"
        )
    return readings


@dataclass(frozen=True, eq=False)
class LinearProbe:
    """A fitted map from latents to states.

    Attributes:
        readings: What it reads.
        rows: Centred latents it was fitted on [M,K].
        centre: Their mean [K].
        weights: Of every row [M,W].
        offset: Mean of the targets [W].
        usual: State [P] that stands for what is not read.
        r2: Share of the variance it explains on frames that were not fitted, by label.
    """

    readings: tuple[Reading, ...]
    rows: Floats
    centre: Floats
    weights: Floats
    offset: Floats
    usual: Floats
    r2: Mapping[str, float]

    def read(self, z: Floats) -> Floats:
        """Read states float64 [..,P] from latents [..,K]."""
        found = (z - self.centre) @ self.rows.T @ self.weights + self.offset
        states = np.broadcast_to(self.usual, (*z.shape[:-1], len(self.usual))).copy()
        start = 0
        for one in self.readings:
            part = found[..., start : start + one.width]
            states[..., list(one.at)] = one.values(part)
            start += one.width
        return states


def fit_probe(
    z: Floats, states: Floats, episodes: NDArray[np.int64], readings: tuple[Reading, ...]
) -> LinearProbe:
    """Fit a probe on three of four episodes and score it on the others.

    Args:
        z: Latents [M,K].
        states: Their states [M,P].
        episodes: Which episode each is of, [M].
        readings: What to read.

    Raises:
        ConfigError: there are fewer than two episodes.
    """
    names = np.unique(episodes)
    if len(names) < 2:
        raise ConfigError("a probe needs frames of two episodes: one to fit, one to score it on")
    held_out = np.isin(episodes, names[3::4] if len(names) > 3 else names[-1:])
    targets = np.concatenate([one.targets(states) for one in readings], -1)
    fitted = _solve(z[~held_out], targets[~held_out], episodes[~held_out])
    usual = states[~held_out].mean(0)
    probe = LinearProbe(readings, *fitted, usual, {})
    found = (z[held_out] - probe.centre) @ probe.rows.T @ probe.weights + probe.offset
    r2, start = {}, 0
    for one in readings:
        part = slice(start, start + one.width)
        true = targets[held_out][:, part]
        missed = np.square(found[:, part] - true).sum()
        r2[one.label] = float(1 - missed / max(np.square(true - true.mean(0)).sum(), 1e-12))
        start += one.width
    return LinearProbe(readings, *fitted, usual, r2)


def _solve(
    z: Floats, targets: Floats, episodes: NDArray[np.int64]
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return centred rows, their mean, the rows' weights and the targets' mean.

    With K = X X^T = V diag(l) V^T and a shrink s, the weights are (K + s)^-1 Y. Fitting without the
    rows g of an episode would miss them by (1 - H_gg)^-1 (Y - H Y)_g, H = K (K + s)^-1; each target
    takes the shrink that misses least.
    """
    z = np.asarray(z, np.float64)
    centre, offset = z.mean(0), targets.mean(0)
    rows, y = z - centre, targets - offset
    size, vectors = np.linalg.eigh(rows @ rows.T)
    size = np.maximum(size, 0.0)
    seen = vectors.T @ y
    groups = [np.flatnonzero(episodes == name) for name in np.unique(episodes)]
    best, weights = np.full(y.shape[1], np.inf), np.zeros_like(y)
    for shrink in _SHRINK * max(size.mean(), 1e-12):
        kept = size / (size + shrink)
        residual = y - vectors @ (kept[:, None] * seen)
        missed = sum(_left_out(vectors[g], kept, residual[g], len(z)) for g in groups)
        better = missed < best
        found = vectors @ (seen / (size + shrink)[:, None])
        best, weights = np.where(better, missed, best), np.where(better, found, weights)
    return rows, centre, weights, offset


def _left_out(vectors: Floats, kept: Floats, residual: Floats, count: int) -> Floats:
    """Return the squared error [W] on rows of one episode had it not been fitted."""
    hat = (vectors * kept) @ vectors.T + 1 / count  # the mean is fitted as well
    missed = np.linalg.solve(np.eye(len(hat)) - hat + 1e-9 * np.eye(len(hat)), residual)
    return np.square(missed).sum(0)
