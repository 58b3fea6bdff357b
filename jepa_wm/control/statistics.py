"""What episodes say: rates with their intervals, paired comparisons, distances and times.

Small numbers of episodes mislead, so nothing here reports a rate without its n and its interval,
and two agents are compared on the episodes they share. Pure Python and numpy; input is ``Episode``,
output plain numbers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from jepa_wm.control.episode import Episode, tally
from jepa_wm.control.rates import Paired, pair_outcomes, wilson_interval
from jepa_wm.errors import ConfigError


def compare(first: Sequence[Episode], second: Sequence[Episode]) -> Paired:
    """Compare two agents episode by episode, matched by id; presolved episodes are left out.

    Raises:
        ValueError: ids repeat, the two lists are not of the same episodes, or all are presolved.
    """
    mine, theirs = _by_id(first), _by_id(second)
    if mine.keys() != theirs.keys():
        lonely = sorted(mine.keys() ^ theirs.keys())
        raise ValueError(f"episodes {lonely} are only on one side; a paired test needs both")
    wrong = sorted(i for i in mine if _start(mine[i]) != _start(theirs[i]))
    if wrong:
        raise ValueError(f"episodes {wrong} have one id but differ in seed or start")
    ids = [i for i in mine if not mine[i].presolved]
    if not ids:
        raise ValueError("no episode was run; there is nothing to compare")
    return pair_outcomes([(mine[i].success, theirs[i].success) for i in ids])


def _start(episode: Episode) -> tuple[int, bool]:
    return episode.seed, episode.presolved


def _by_id(episodes: Sequence[Episode]) -> dict[int, Episode]:
    found = {episode.id: episode for episode in episodes}
    if len(found) != len(episodes):
        raise ValueError("episode ids repeat; each id may appear once")
    return found


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A number of ``Episode.metrics`` worth reporting: where it is, what to call it, in which unit.

    Attributes:
        key: Its key in the metrics.
        label: Name in tables and on axes, e.g. "block distance".
        unit: Unit after scaling, e.g. "px" or "deg".
        scale: Factor from the metric's unit to ``unit``, e.g. 180/pi.
        threshold: Largest value that counts as success, in ``unit``; None where there is none.
    """

    key: str
    label: str
    unit: str
    scale: float = 1.0
    threshold: float | None = None

    def of(self, episode: Episode) -> np.ndarray:
        """Return its values over time, float64 [K+1], in ``unit``.

        Raises:
            ConfigError: the episode has no such metric; the text lists those it has.
        """
        if self.key not in episode.metrics:
            raise ConfigError(
                f"metric {self.key!r} is not in episode {episode.id}; it has "
                f"{sorted(episode.metrics)}"
            )
        return np.asarray(episode.metrics[self.key], dtype=np.float64) * self.scale


def success_step(episode: Episode) -> int | None:
    """Return the environment step (1 = after the first action) at which success was met, or None.

    The rules stored with the episode say which metric it is and how long it must hold. 0 for a
    presolved episode. Without those rules a successful episode is taken to have ended at its
    success.
    """
    if episode.presolved:
        return 0
    if not episode.success:
        return None
    solved = episode.metrics.get(str(episode.config.get("success")))
    if solved is None:
        return episode.steps
    streak, hold = 0, int(episode.config.get("hold", 1))
    for step, met in enumerate(solved[1:], start=1):
        streak = streak + 1 if met else 0
        if streak >= hold:
            return step
    return episode.steps


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Median and 90th percentile (linear interpolation) of a sample, NaN if it is empty."""

    median: float
    p90: float

    @staticmethod
    def of(values: Sequence[float] | np.ndarray) -> "Spread":
        """Summarise numbers of any shape; NaNs are left out."""
        array = np.asarray(values, dtype=np.float64).ravel()
        array = array[~np.isnan(array)]
        if not array.size:
            return Spread(median=math.nan, p90=math.nan)
        return Spread(median=float(np.median(array)), p90=float(np.quantile(array, 0.9)))


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A list of episodes in numbers; everything but ``presolved`` counts only episodes that ran.

    Attributes:
        count: Episodes evaluated, n.
        successes: Of them, successful.
        presolved: Episodes whose start already met the goal; in no rate.
        rate: successes / n, NaN without episodes.
        low: Lower end of the Wilson 95 % interval of the rate.
        high: Upper end.
        steps_to_success: Median environment steps to success among the successful, NaN if none is.
        final: Value of each measure when the episode ended, by its label, in the measure's unit.
        decision_seconds: Wall time of a decision as the user waits for it: one solve for the whole
            batch.
        share_seconds: The same divided by the episodes solved together.
        batch: Median number of episodes solved together, NaN without decisions.
    """

    count: int
    successes: int
    presolved: int
    rate: float
    low: float
    high: float
    steps_to_success: float
    final: Mapping[str, Spread]
    decision_seconds: Spread
    share_seconds: Spread
    batch: float

    def record(self) -> dict[str, Any]:
        """Return it as plain JSON values, NaN as None."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def summarise(episodes: Sequence[Episode], measures: Sequence[Measure] = ()) -> Summary:
    """Summarise episodes of one agent.

    Args:
        episodes: As ``run_episodes`` gives them; may be empty.
        measures: What to report at the end of each episode.

    Raises:
        ConfigError: an episode lacks a measure's metric.
    """
    ran = [episode for episode in episodes if not episode.presolved]
    successes, count, presolved = tally(episodes)
    low, high = wilson_interval(successes, count)
    taken = [step for episode in ran if (step := success_step(episode)) is not None]
    seconds, rows = _decisions(ran)
    return Summary(
        count=count,
        successes=successes,
        presolved=presolved,
        rate=successes / count if count else math.nan,
        low=low,
        high=high,
        steps_to_success=Spread.of(taken).median,
        final={
            measure.label: Spread.of([measure.of(episode)[-1] for episode in ran])
            for measure in measures
        },
        decision_seconds=Spread.of(seconds),
        share_seconds=Spread.of(seconds / rows),
        batch=Spread.of(rows).median,
    )


def _decisions(episodes: Sequence[Episode]) -> tuple[np.ndarray, np.ndarray]:
    """Wall seconds and batch size of every decision of every episode, float64 [n] each."""
    seconds = [np.asarray(episode.seconds, dtype=np.float64) for episode in episodes]
    rows = [
        np.asarray(episode.plans.get("rows", np.ones(len(episode.seconds))), dtype=np.float64)
        for episode in episodes
    ]
    return np.concatenate([np.zeros(0), *seconds]), np.concatenate([np.zeros(0), *rows])
