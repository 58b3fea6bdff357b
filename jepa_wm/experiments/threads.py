"""How many CPU threads a run uses: a given number, all cores, or as many as a measurement finds.

More threads are not always faster: a small model's operations are short, threads wait for each
other at the end of every one, and where other programs want the same cores they wait long. On a
server of many cores all of them can be slower than four.
"""

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.interfaces import Planner
from jepa_wm.control.mpc import MPC
from jepa_wm.errors import ConfigError

AUTO = "auto"
LONG = 0.5  # seconds of one measured rollout from which the model is large: it wants every core
STEPS = 2  # blocks of a measured rollout; a whole plan takes longer and tells the same
GAIN = 0.93  # of the time with fewer threads that more must stay below to be worth it
TRIES = 3
CORES = torch.get_num_threads()  # what the process began with; jobs of a multirun share it


def check_threads(wanted: object) -> None:
    """Refuse what is neither ``auto``, None nor a count.

    Raises:
        ConfigError: it is none of these.
    """
    is_count = type(wanted) is int and wanted >= 1
    if wanted not in (AUTO, None) and not is_count:
        raise ConfigError(
            f"threads={wanted!r} must be auto, a whole number >= 1, or null for all cores"
        )


def told_threads(wanted: object, device: torch.device) -> str:
    """Say how many threads are in use, and that they were measured where they were."""
    count = torch.get_num_threads()
    how = " (auto: measured)" if wanted == AUTO and _is_measured(device) else ""
    return f"{count} thread{'s' * (count > 1)}{how}"


def settle_threads(wanted: int | str | None, agent: MPC, look: Callable[[], RolloutCost]) -> None:
    """Let torch use so many CPU threads.

    ``auto`` measures an agent's rollouts with 1, 2, 4, ... threads and takes the fewest that are
    fastest; it stops where twice as many no longer help. The bits of plans are the same with any
    number (tested with LeWM and the bundled arm's model); a model whose rollouts take long, for
    which nobody promises that, takes all cores unmeasured.

    Args:
        wanted: As checked by ``check_threads``.
        agent: The control loop.
        look: Makes its cost function, for one problem (``first_cost``).
    """
    torch.set_num_threads(wanted if isinstance(wanted, int) else CORES)
    if wanted == AUTO and _is_measured(agent.device):
        work = scoring(agent.planner, look(), agent.codec.action_dim)
        torch.set_num_threads(fastest(work, CORES))


def fastest(work: Callable[[], Tensor], cores: int) -> int:
    """Return the fewest threads, of 1, 2, 4, ... ``cores``, with which ``work`` is fastest."""
    if _seconds(work, 1) > LONG:  # also warms up
        return cores
    best, least = cores, float("inf")
    for count in _doubling(cores):
        torch.set_num_threads(count)
        seconds = _seconds(work, TRIES)
        if seconds > GAIN * least:
            break
        best, least = count, seconds
    return best


def scoring(planner: Planner, cost: RolloutCost, action_dim: int) -> Callable[[], Tensor]:
    """Return what scores a round of candidates, and takes their gradient if the planner does."""
    follows = bool(getattr(planner, "needs_gradient", False))
    count, steps = getattr(planner, "num_samples", 1), min(STEPS, planner.horizon)
    actions = torch.zeros(1, count, steps, action_dim, requires_grad=follows)

    def work() -> Tensor:
        costs = cost(actions)
        if costs.requires_grad:  # the planner itself refuses a cost without a gradient
            (slope,) = torch.autograd.grad(costs.sum(), actions)
            return slope
        return costs

    return work


def _is_measured(device: torch.device) -> bool:
    return CORES > 1 and device.type == "cpu"


def _doubling(most: int) -> Iterator[int]:
    count = 1
    while count < most:
        yield count
        count *= 2
    yield most


def _seconds(work: Callable[[], Tensor], tries: int) -> float:
    found = []
    for _ in range(tries):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)
