"""The steps of one round of a sampling planner: score, keep the best, blend, pick."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Bounds, CostFn, Plan, PlanTrace


@dataclass(frozen=True)
class Round:
    """What is drawn in one round.

    Attributes:
        count: Candidates, S.
        with_mean: Whether candidate 0 is the mean.
        tried: Plans that take the place of draws, [B,K,H,A] or None; what is NaN stays drawn.
    """

    count: int
    with_mean: bool
    tried: Tensor | None


@dataclass(frozen=True)
class Pool:
    """Scored candidates.

    Attributes:
        samples: Candidates, [B,S,H,A].
        costs: Their costs, float32 [B,S]; infinite where they were not finite.
    """

    samples: Tensor
    costs: Tensor

    def joined(self, kept: "Pool | None") -> "Pool":
        """Add candidates of earlier rounds, at the costs they had, where this round has a cost."""
        if kept is None:
            return self
        failed = ~self.costs.isfinite().any(1, keepdim=True)  # [B,1]
        costs = kept.costs.masked_fill(failed, torch.inf)
        return Pool(torch.cat([self.samples, kept.samples], 1), torch.cat([self.costs, costs], 1))

    def cheapest(self, count: int) -> "Pool":
        """Keep the candidates of lowest cost, cheapest first."""
        costs, index = self.costs.topk(count, dim=1, largest=False)  # [B,K]
        return Pool(take(self.samples, index), costs)


def constant(values: float | Sequence[float], device: torch.device) -> Tensor:
    """Make a number or a list [n] of them float32 on the device, without a copy from the host.

    A recorded solve would read such a copy's memory again after it is gone.
    """
    if isinstance(values, Sequence):
        return torch.stack([torch.full((), float(value), device=device) for value in values])
    return torch.full((), float(values), device=device)


def clamp(actions: Tensor, box: Bounds | None) -> Tensor:
    """Clip actions [..,H,A] to a box, if there is one."""
    return actions if box is None else torch.clamp(actions, box[0], box[1])


def score(cost: CostFn, samples: Tensor) -> Tensor:
    """Call the cost and check its answer; whatever is not finite is infinitely bad."""
    costs = cost(samples)
    if not isinstance(costs, Tensor):
        raise TypeError(f"cost must return a tensor [B,S], got {type(costs).__name__}")
    if costs.shape != samples.shape[:2]:
        raise ValueError(
            f"cost must return {list(samples.shape[:2])} [B,S], got {list(costs.shape)}"
        )
    costs = costs.float()
    return torch.where(costs.isfinite(), costs, torch.inf)


def better(best: Plan, samples: Tensor, costs: Tensor) -> Plan:
    """Return the best plan so far or, where it is better, the best of the candidates."""
    lowest, index = costs.min(1)  # [B]
    found = samples[torch.arange(len(samples), device=samples.device), index]  # [B,H,A]
    wins = lowest < best.cost
    actions = torch.where(wins[:, None, None], found, best.actions)
    return Plan(actions, best.std, torch.where(wins, lowest, best.cost))


def blend(old: Plan, fit: Plan, momenta: tuple[Tensor, Tensor], floor: Tensor) -> Plan:
    """Apply momenta (of mean and std) and the floor; leave alone what is pinned or failed.

    Pinned is what has std 0, failed a row without a finite cost.
    """
    assert fit.trace is not None  # update() ends in fit()
    of_mean, of_std = momenta
    mean = of_mean * old.actions + (1 - of_mean) * fit.actions
    std = torch.maximum(of_std * old.std + (1 - of_std) * fit.std, floor)
    failed = ~fit.trace.best[0].isfinite()  # [B]
    keep = (old.std == 0) | failed[:, None, None]
    mean, std = torch.where(keep, old.actions, mean), torch.where(keep, old.std, std)
    trace = replace(fit.trace, spread=std.mean((1, 2))[None])
    return Plan(mean, std, fit.cost, trace)


def join(traces: Sequence[PlanTrace | None]) -> PlanTrace:
    """Stack the traces of all rounds, [1,B] each, into one of [I,B]."""
    rounds = [trace for trace in traces if trace is not None]
    names = [field.name for field in fields(PlanTrace)]
    return PlanTrace(*(torch.cat([getattr(one, name) for one in rounds]) for name in names))


def take(samples: Tensor, index: Tensor) -> Tensor:
    """Pick candidates by index: [B,S,H,A] and [B,K] -> [B,K,H,A]."""
    return samples[torch.arange(len(samples), device=samples.device)[:, None], index]
