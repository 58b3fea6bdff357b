"""Nearest points of convex sets, exact and for any number of points at once.

The set of one step is a box cut with balls around zero. The nearest point to y of a box and a ball
is found along a path x(q) that grows from the box's smallest point to y's nearest in the box: the
size of x(q) is piecewise linear in q between knots that are known, so the q at which it fills the
ball is one interpolation.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Ball:
    """Bounds the norm of some numbers of a step.

    Attributes:
        dims: Which, int64 [n].
        radius: >= 0.
        shape: ``l2`` or ``l1``.
    """

    dims: Tensor
    radius: float
    shape: str


@dataclass(frozen=True, eq=False)
class Steps:
    """A set of sequences of steps: each within a box and balls, and within reach of the one before.

    Attributes:
        low: Lower ends of the box, float [a]; infinite where there is none.
        high: Upper ends.
        reach: Most change of each number from step to step, float [a], or None for any.
        balls: Of different numbers.
    """

    low: Tensor
    high: Tensor
    reach: Tensor | None
    balls: tuple[Ball, ...]

    def to(self, device: torch.device) -> "Steps":
        """Return the set on a device."""
        balls = tuple(replace(ball, dims=ball.dims.to(device)) for ball in self.balls)
        reach = None if self.reach is None else self.reach.to(device)
        return Steps(self.low.to(device), self.high.to(device), reach, balls)

    def nearest(self, steps: Tensor, before: Tensor | None = None) -> Tensor:
        """Move sequences into the set, those inside to the bit where they are.

        Without a reach to the nearest sequences. With one, time is passed once: each step is moved
        to the nearest point of its box and balls that is within reach of the step before, as moved.
        There always is one, that step itself.

        Args:
            steps: Float [B,..,K,a].
            before: The step before the first, in the set, [B,a]; None leaves the first its reach.
        """
        if self.reach is None:
            return self._within(steps, self.low, self.high)
        last = None
        if before is not None:
            shape = (len(before), *[1] * (steps.ndim - 3), -1)
            last = before.to(steps).view(shape).expand_as(steps[..., 0, :])
        found = []
        for step in steps.unbind(-2):
            low, high = self.low, self.high
            if last is not None:
                low, high = (last - self.reach).maximum(low), (last + self.reach).minimum(high)
            last = self._within(step, low, high)
            found.append(last)
        return torch.stack(found, -2)

    def _within(self, steps: Tensor, low: Tensor, high: Tensor) -> Tensor:
        near = steps.clamp(low, high)
        for ball in self.balls:
            y, lower, upper = (x.index_select(-1, ball.dims) for x in (steps, low, high))
            part = in_box_and_ball(y, lower, upper, ball.radius, ball.shape)
            near = near.index_copy(-1, ball.dims, part)
        return near


def in_box_and_ball(y: Tensor, low: Tensor, high: Tensor, radius: float, shape: str) -> Tensor:
    """Return the nearest points to y within a box and a ball.

    Args:
        y: Points, float [..,n].
        low: Lower ends of the box, broadcast against y; infinite where there is none.
        high: Upper ends, likewise, not below ``low``.
        radius: Of the ball, >= 0.
        shape: ``l2`` or ``l1``, the norm the ball is of.

    Returns:
        float [..,n]. Points inside stay as they are, to the bit. Where box and ball do not meet,
        the point of the box nearest zero.

    Source: the KKT conditions of min |x - y|^2 / 2 with a multiplier of the ball: each x_i is the
        clipped y_i / (1 + m) for l2, the clipped shrunk y_i for l1.
    """
    low, high = low.expand_as(y), high.expand_as(y)
    grow = _scaled if shape == "l2" else _shrunk
    knots = _scale_knots(y, low, high) if shape == "l2" else _shrink_knots(y, low, high)
    path = grow(y[..., None, :], knots).clamp(low[..., None, :], high[..., None, :])  # [..,m,n]
    sizes = path.square().sum(-1) if shape == "l2" else path.abs().sum(-1)  # [..,m], ascending
    most = radius**2 if shape == "l2" else radius
    at = (sizes <= most).sum(-1, keepdim=True).sub(1).clamp(0, sizes.shape[-1] - 2)
    small, large = sizes.gather(-1, at), sizes.gather(-1, at + 1)
    part = ((most - small) / (large - small).clamp_min(torch.finfo(y.dtype).tiny)).clamp(0, 1)
    first, second = knots.gather(-1, at), knots.gather(-1, at + 1)
    near = grow(y[..., None, :], first + part * (second - first))[..., 0, :].clamp(low, high)
    return torch.where(sizes[..., -1:] <= most, y.clamp(low, high), near)


def _scaled(y: Tensor, squares: Tensor) -> Tensor:
    """Scale y [..,1,n] by the roots of q [..,m] -> [..,m,n]; |x|^2 is linear in q."""
    return y * squares.sqrt()[..., None]


def _scale_knots(y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Squares of the factors, ascending from 0 to 1, at which a number of x meets a side."""
    meets = torch.cat([low / y, high / y], -1).nan_to_num(0, 1, 0).clamp(0, 1)
    ends = [torch.zeros_like(y[..., :1]), meets, torch.ones_like(y[..., :1])]
    return torch.cat(ends, -1).sort(-1).values.square()


def _shrunk(y: Tensor, by: Tensor) -> Tensor:
    """Shrink the sizes of y [..,1,n] by q [..,m] -> [..,m,n]; |x|_1 is linear in q."""
    return y.sign() * (y.abs() - by[..., None]).clamp_min(0)


def _shrink_knots(y: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Shrinkages, descending to 0, at which a number of x meets a side or zero."""
    sizes = y.abs()
    most = sizes.amax(-1, keepdim=True)
    meets = torch.cat([sizes, (y - low).abs(), (y - high).abs()], -1)
    inner = torch.minimum(meets, most)
    return torch.cat([most, inner, torch.zeros_like(most)], -1).sort(-1, descending=True).values
