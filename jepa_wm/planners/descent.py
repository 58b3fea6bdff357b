"""The steps of a planner that follows gradients: slope, optimiser, noise, trace."""

from typing import Protocol

import torch
from torch import Tensor

from jepa_wm.control.interfaces import CostFn, Plan, PlanTrace
from jepa_wm.control.streams import Streams, draw_normal
from jepa_wm.errors import ConfigError
from jepa_wm.planners.rounds import score

OPTIMIZERS = ("adam", "adamw", "sgd")
BETAS, EPSILON = (0.9, 0.999), 1e-8  # torch's own


FLAT = (
    "this planner follows the gradient of the cost and this cost has none; a model without one, "
    "such as the simulator, needs a planner that samples, e.g. cem"
)


class Optimizer:
    """torch's Adam, AdamW or plain SGD for one tensor, elementwise: no restart touches another.

    Written out since the first step of torch's own loads its compiler, which takes seconds.

    Args:
        name: One of ``OPTIMIZERS``.
        learning_rate: Step size.
        weight_decay: Pull to zero: added to the gradient, for AdamW to the step.
    """

    def __init__(self, name: str, learning_rate: float, weight_decay: float = 0.0) -> None:
        self.name, self.learning_rate, self.weight_decay = name, learning_rate, weight_decay
        self.steps = 0
        self.first: Tensor | float = 0.0  # running mean of the gradient
        self.second: Tensor | float = 0.0  # and of its square

    def step(self, values: Tensor, gradient: Tensor) -> Tensor:
        """Return the values [..] after one step down their gradient [..]."""
        if self.name == "adamw":
            values = values * (1 - self.learning_rate * self.weight_decay)
        elif self.weight_decay:
            gradient = gradient + self.weight_decay * values
        if self.name == "sgd":
            return values - self.learning_rate * gradient
        self.steps += 1
        self.first = BETAS[0] * self.first + (1 - BETAS[0]) * gradient
        self.second = BETAS[1] * self.second + (1 - BETAS[1]) * gradient.square()
        mean, square = (
            moment / (1 - beta**self.steps)
            for moment, beta in zip((self.first, self.second), BETAS, strict=True)
        )
        return values - self.learning_rate * mean / (torch.as_tensor(square).sqrt() + EPSILON)


def slope(cost: CostFn, actions: Tensor) -> tuple[Tensor, Tensor]:
    """Return the costs [B,S] of actions [B,S,H,A] and each one's gradient [B,S,H,A].

    Raises:
        ConfigError: the cost has no gradient.
    """
    leaf = actions.detach().requires_grad_()
    costs = score(cost, leaf)
    if not costs.requires_grad:
        raise ConfigError(FLAT)
    (gradient,) = torch.autograd.grad(costs.sum(), leaf)
    return costs.detach(), gradient


def limit_norm(gradient: Tensor, most: float | None) -> Tensor:
    """Scale each gradient [..,H,A] down to a norm of at most ``most``; None leaves all as is."""
    if most is None:
        return gradient
    norm = gradient.square().sum((-2, -1), keepdim=True).sqrt()
    return gradient * (most / norm.clamp_min(torch.finfo(norm.dtype).tiny)).clamp_max(1.0)


def finite(values: Tensor) -> Tensor:
    """Say which of [B,S,..] are finite throughout, bool [B,S]."""
    return values.isfinite().flatten(2).all(2)


class Restarts(Protocol):
    """The settings of a planner that begins at several plans."""

    @property
    def num_samples(self) -> int: ...  # noqa: D102
    @property
    def include_mean(self) -> bool: ...  # noqa: D102


def restarts(plan: Plan, tried: Tensor | None, settings: Restarts, generators: Streams) -> Tensor:
    """Return where a search begins [B,S,H,A]: the mean, then plans to be tried, then draws.

    Where a plan to be tried is NaN, it is drawn.
    """
    shape = (settings.num_samples, *plan.actions.shape[1:])
    drawn = draw_normal(generators, shape, plan.actions)
    begin = drawn * plan.std[:, None] + plan.actions[:, None]
    at = int(settings.include_mean)
    if tried is not None:
        place = begin[:, at : at + tried.shape[1]]
        given = tried[:, : place.shape[1]]
        begin[:, at : at + place.shape[1]] = torch.where(given.isnan(), place, given)
    if settings.include_mean:
        begin[:, 0] = plan.actions
    return begin


def seen(costs: Tensor, samples: Tensor) -> PlanTrace:
    """Return one round's trace [1,B] of restarts [B,S,H,A] with costs [B,S]."""
    good = costs.isfinite()
    count = good.sum(1).float()
    average = torch.where(good, costs, 0).sum(1) / count  # nan where no cost is finite
    spread = samples.std(1, correction=0).mean((1, 2))
    average = average.nan_to_num(nan=torch.inf)
    return PlanTrace(costs.amin(1)[None], average[None], spread[None], count[None])
