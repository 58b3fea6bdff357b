"""How many candidates go into one rollout: all of a planner's, or as many as memory allows."""

from dataclasses import dataclass

import torch

from jepa_wm.control.interfaces import WorldModel

GIB = 2**30
CPU_MEMORY = 2.0  # GiB


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


def settle_memory(memory: float | str, device: torch.device) -> float:
    """Return a budget in GiB: a given one, or for ``auto`` 2 on a CPU, half of what a GPU has free.

    Raises:
        ValueError: it is neither a number above 0 nor auto.
    """
    if memory == "auto":
        return _free(device) / GIB / 2 if device.type == "cuda" else CPU_MEMORY
    is_number = isinstance(memory, int | float) and not isinstance(memory, bool)
    if not is_number or not 0 < float(memory) < 1e6:
        raise ValueError(f"memory={memory!r} must be auto or a number of GiB > 0")
    return float(memory)


def _free(device: torch.device) -> int:
    """Bytes of a GPU that nobody holds, or that PyTorch holds for nobody."""
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + held


def fit_chunk(
    model: WorldModel, num_samples: int | None, horizon: int, frames: int, memory: float
) -> Chunk:
    """Fit candidates into a memory budget, at most a planner's own number and at least one.

    A given budget, not the machine, decides: the same settings give the same numbers everywhere.

    Args:
        model: Says ``candidate_bytes(horizon, frames)`` if a candidate is large; else all fit.
        num_samples: The most candidates that go together, e.g. the planner's per iteration; None
            for no limit but memory.
        horizon: Blocks planned.
        frames: Most context frames.
        memory: Budget, GiB (``settle_memory``).

    """
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
