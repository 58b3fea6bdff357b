"""How much worse a candidate may be: temperatures of softmax weights, row by row."""

import torch
from torch import Tensor

STEPS = 40
DECADES = 6.0
"""Bisection looks this far to both sides of the spread of the costs."""


def spread(excess: Tensor) -> Tensor:
    """Standard deviation of each row's finite costs, [B,1].

    Not zero: equal costs weigh equally. Nor infinite where squares overflow, as they do when a
    rollout explodes: an infinite cost over it would be no number.
    """
    finite = excess.isfinite()
    count = finite.sum(1, keepdim=True)
    values = torch.where(finite, excess, 0)
    mean = values.sum(1, keepdim=True) / count
    squares = torch.where(finite, (values - mean).square(), 0).sum(1, keepdim=True)
    limits = torch.finfo(torch.float32)
    return (squares / count).sqrt().clamp(limits.tiny, limits.max**0.5)


def temperature_for(target: float, excess: Tensor, pull: Tensor) -> Tensor:
    """Solve for the temperature t at which 1 / sum w^2 is ``target``, w = softmax(-c / t - u).

    Bisection of log t, a fixed number of steps and no host read. Where no temperature reaches the
    target, as with fewer finite costs, t is about the highest or lowest looked at.

    Args:
        target: Effective samples, >= 1.
        excess: Costs over the lowest, [B,K]; c.
        pull: What is added to the exponent whatever the temperature, [B,K]; u.

    Returns:
        Temperatures, [B,1], in the cost's units.
    """
    low = spread(excess).log() - DECADES * 2.302585
    high = low + 2 * DECADES * 2.302585
    for _ in range(STEPS):
        middle = (low + high) / 2
        weights = torch.softmax(-excess / _exp(middle) - pull, dim=1)
        few = 1 / weights.square().sum(1, keepdim=True) < target  # [B,1]
        low, high = torch.where(few, middle, low), torch.where(few, high, middle)
    return _exp((low + high) / 2)


def _exp(log: Tensor) -> Tensor:
    return log.exp().clamp_min(torch.finfo(torch.float32).tiny)
