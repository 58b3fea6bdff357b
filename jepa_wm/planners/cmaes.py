"""CMA-ES: evolution with a full covariance, through the PyPI package ``cmaes`` (an extra)."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from jepa_wm.control.interfaces import Bounds, CostFn, Plan, PlanTrace, Scored
from jepa_wm.control.streams import Streams, draw_seeds
from jepa_wm.errors import ConfigError
from jepa_wm.planners.base import ContinuousPlanner
from jepa_wm.planners.constraints import named, starting
from jepa_wm.planners.descent import seen
from jepa_wm.planners.rounds import better, clamp, join, score
from jepa_wm.planners.settings import choice_faults, count_faults, flag_faults

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class CMAES(ContinuousPlanner):
    """Covariance matrix adaptation: the search learns how plan numbers go together.

    Every row is a search of its own on the CPU, seeded from the row's generator, over the plan's
    H x A numbers in units of the initial spread; what has spread 0 is no part of it. Candidates
    are brought within constraints and box, and the search is told the numbers they have then. The
    start's mean and candidates are among the first generation. Costs are read on the host once an
    iteration, unlike in the other planners.

    Attributes:
        num_samples: Candidates per generation, S >= 2.
        iterations: Generations.
        separable: Learn a diagonal covariance only, for plans of many numbers: a full one needs
            about (H x A)^2 candidates to be learnt.
        returns: ``mean`` gives the last mean, scored once more on its own; ``best`` the best
            candidate seen.

    Raises:
        ConfigError: the package is not installed.

    Source: Hansen 2016, arXiv 1604.00772; Ros and Hansen 2008 (separable); PyPI ``cmaes``.
    """

    num_samples: int
    iterations: int
    separable: bool
    returns: str

    def __post_init__(self) -> None:
        super().__post_init__()
        _package()

    def faults(self) -> list[str]:
        """Name every impossible setting."""
        values = self._values()
        wrong = count_faults(values, ("num_samples", "iterations"))
        if not wrong and self.num_samples < 2:
            wrong = [f"num_samples={self.num_samples} must be at least 2"]
        return [
            *super().faults(),
            *wrong,
            *flag_faults(values, ("separable",)),
            *choice_faults(values, {"returns": ("mean", "best")}),
        ]

    @torch.inference_mode()
    def plan(self, cost: CostFn, start: Plan, bounds: Bounds, generators: Streams) -> Plan:
        """Improve ``start``; see ``SamplingPlanner.plan``.

        Raises:
            ValueError: a shape is not as it should be.
            TypeError: ``cost`` returned something else than a tensor.
        """
        box = self._box(start, bounds, generators)
        mean = clamp(starting(start.actions.float(), named(self.constraints)), box)
        best = plan = Plan(mean, start.std.float(), torch.full_like(start.cost, torch.inf))
        rows = [
            _Row(self, mean, std, seed)
            for mean, std, seed in zip(
                mean.cpu().double().numpy(),
                plan.std.cpu().double().numpy(),
                draw_seeds(generators),
                strict=True,
            )
        ]
        traces: list[PlanTrace | None] = []
        samples = mean[:, None]
        for index in range(self.iterations):
            asked = np.stack([row.ask() for row in rows]).astype(np.float32)  # [B,S,H,A]
            samples = torch.from_numpy(asked).to(mean.device)
            if index == 0:
                samples = _first(samples, mean, start.candidates)
            samples = self._allowed(samples, box)
            costs = score(cost, samples)
            best = better(best, samples, costs)
            traces.append(seen(costs, samples))
            told, values = samples.cpu().double().numpy(), costs.cpu().double().numpy()
            for row, solutions, prices in zip(rows, told, values, strict=True):
                row.tell(solutions, prices)
        actions = torch.from_numpy(np.stack([row.mean for row in rows]).astype(np.float32))
        actions = self._allowed(actions.to(mean.device), box)
        return self._chosen(cost, actions, best, samples.std(1, correction=0), join(traces))

    def _chosen(
        self, cost: CostFn, actions: Tensor, best: Plan, std: Tensor, trace: PlanTrace
    ) -> Plan:
        mean = Scored(actions, score(cost, actions[:, None])[:, 0])
        top = Scored(best.actions, best.cost)
        chosen = top if self.returns == "best" else mean
        failed = ~trace.best.isfinite().all(0)  # [B]
        final = chosen.cost.masked_fill(failed, torch.inf)
        return Plan(chosen.actions, std, final, trace, mean=mean, best=top)


class _Row:
    """The search of one problem over the numbers that are free."""

    def __init__(self, settings: CMAES, mean: Floats, std: Floats, seed: int) -> None:
        self.begin, self.std, self.count = mean, std, settings.num_samples
        self.free = std > 0
        size = int(self.free.sum())
        self.search: Any = None
        if size:
            diagonal = settings.separable and size > 1  # of one number either is
            kind = _package().SepCMA if diagonal else _package().CMA
            self.search = kind(
                mean=np.zeros(size), sigma=1.0, seed=seed, population_size=self.count
            )

    def ask(self) -> Floats:
        """Return candidates [S,H,A]."""
        asked = np.repeat(self.begin[None], self.count, 0)
        if self.search is not None:
            drawn = np.stack([self.search.ask() for _ in range(self.count)])
            asked[:, self.free] += drawn * self.std[self.free]
        return asked

    def tell(self, solutions: Floats, costs: Floats) -> None:
        """Learn from candidates [S,H,A]; nothing where no cost [S] is finite."""
        if self.search is not None and np.isfinite(costs).any():
            places = (solutions - self.begin)[:, self.free] / self.std[self.free]
            self.search.tell(list(zip(places, costs.tolist(), strict=True)))

    @property
    def mean(self) -> Floats:
        """Where the search stands, [H,A]."""
        mean = self.begin.copy()
        if self.search is not None:
            mean[self.free] += self.search.mean * self.std[self.free]
        return mean


def _first(samples: Tensor, mean: Tensor, tried: Tensor | None) -> Tensor:
    """Let the mean and plans to be tried be the first of the candidates; NaN leaves the draw."""
    given = mean[:, None] if tried is None else torch.cat([mean[:, None], tried], 1)
    given = given[:, : samples.shape[1]]
    place = samples[:, : given.shape[1]]
    given = torch.where(given.isnan(), place, given)
    return torch.cat([given, samples[:, given.shape[1] :]], 1)


def _package() -> Any:
    try:
        import cmaes  # an extra
    except ImportError as error:
        raise ConfigError(
            "planner cmaes needs the package cmaes: pip install 'jepa_wm[cmaes]'"
        ) from error
    return cmaes
