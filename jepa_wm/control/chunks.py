"""How many candidates go into one rollout: all of a planner's, or as many as memory allows."""

from dataclasses import dataclass

from jepa_wm.control.interfaces import WorldModel

GIB = 2**30


@dataclass(frozen=True)
class Chunk:
    """Candidates per rollout and why so many.

    Attributes:
        size: Candidates per rollout, >= 1; None for no limit.
        each: Estimated bytes of one candidate, or None where the model does not say.
        memory: The budget in bytes, or None where the size was given.
    """

    size: int | None
    each: int | None = None
    memory: int | None = None

    def __str__(self) -> str:
        count = "all candidates" if self.size is None else f"{self.size} candidates"
        if self.memory is None or self.each is None:
            return f"{count} per rollout"
        return (
            f"{count} per rollout: about {self.each / 2**20:.3g} MiB each, "
            f"budget {self.memory / GIB:.3g} GiB"
        )


def fit_chunk(
    model: WorldModel, num_samples: int | None, horizon: int, frames: int, memory: float
) -> Chunk:
    """Fit candidates into a memory budget, at most a planner's own number and at least one.

    The budget, not the machine, decides: the same settings give the same numbers everywhere.

    Args:
        model: Says ``candidate_bytes(horizon, frames)`` if a candidate is large; else all fit.
        num_samples: The planner's candidates per iteration, or None where it does not say.
        horizon: Blocks planned.
        frames: Most context frames.
        memory: Budget, GiB.

    Raises:
        ValueError: the budget is not above 0.
    """
    if not isinstance(memory, int | float) or isinstance(memory, bool) or not 0 < memory < 1e6:
        raise ValueError(f"memory={memory!r} must be a number of GiB > 0")
    measure = getattr(model, "candidate_bytes", None)  # only models of many tokens have it
    if measure is None:
        return Chunk(num_samples)
    each, budget = int(measure(horizon, frames)), int(memory * GIB)
    fits = budget // each if num_samples is None else min(num_samples, budget // each)
    return Chunk(max(1, fits), each, budget)


def check_horizon(model: WorldModel, steps: int) -> None:
    """Refuse plans longer than a model rolls out, where it says how far that is (``longest``).

    Raises:
        ValueError: there are more ``steps``.
    """
    most = getattr(model, "longest", None)
    if most is not None and steps > most:
        raise ValueError(
            f"planner.horizon: {steps} steps, the model rolls out at most {most} (its frame "
            f"slots); planner.horizon={most} would do"
        )
