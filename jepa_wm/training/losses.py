"""The two losses of LeWM: next-latent prediction and SIGReg, both safe under data parallelism.

Paper: LeWM, arXiv 2603.19312, section 3; SIGReg from LeJEPA, arXiv 2511.08544.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

KNOTS = 17
LAST_KNOT = 3.0


class _SumOverRanks(Function):
    """Sum over ranks; the gradient of a sum is the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        total = upstream[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


def mean_over_ranks(x: Tensor) -> Tensor:
    """Average a tensor over all ranks, differentiably; the tensor itself when there is one rank.

    The backward pass sums the upstream gradients over ranks, so that averaging parameter
    gradients afterwards gives the gradient of the global loss.
    """
    if not (dist.is_initialized() and dist.get_world_size() > 1):
        return x
    total: Tensor = _SumOverRanks.apply(x)
    return total / dist.get_world_size()


def random_directions(dim: int, count: int, generator: torch.Generator) -> Tensor:
    """Draw ``count`` unit vectors, float32 [dim,count]; the same on every rank for equal seeds."""
    directions = torch.randn(dim, count, generator=generator)
    return directions / directions.norm(dim=0)


def sigreg(z: Tensor, directions: Tensor) -> Tensor:
    """Return the sketched Epps-Pulley distance of latents from a standard normal.

    For every direction the empirical characteristic function of the projections is compared with
    exp(-t^2/2) at 17 knots t in [0, 3]; squared differences are weighted by the trapezoid rule
    times exp(-t^2/2), summed, multiplied by the number of samples and averaged.

    Args:
        z: Latents float [G,N,D]; statistics are taken over N (and over ranks), averaged over G.
        directions: Unit vectors float32 [D,M].

    Returns:
        Scalar float32.

    Source: le-wm ``module.py`` SIGReg. There the statistics are one device's; here the mean
    cosine and sine are averaged over ranks before squaring, so n ranks with N/n samples give the
    value of one rank with N.
    """
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    with torch.autocast(z.device.type, enabled=False):
        t = torch.linspace(0, LAST_KNOT, KNOTS, device=z.device)
        normal = torch.exp(-0.5 * t**2)
        weight = torch.full_like(t, 2 * LAST_KNOT / (KNOTS - 1))
        weight[0] = weight[-1] = LAST_KNOT / (KNOTS - 1)
        angle = (z.float() @ directions.to(z.device)).unsqueeze(-1) * t  # [G,N,M,knots]
        ecf = mean_over_ranks(torch.stack([angle.cos().mean(1), angle.sin().mean(1)]))
        error = (ecf[0] - normal) ** 2 + ecf[1] ** 2  # [G,M,knots]
        return z.shape[1] * ranks * (error @ (weight * normal)).mean()


def prediction_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Return the mean squared error of predicted latents [B,T,D] in float32.

    The target is not detached: both encoder calls receive gradients, as in the paper.
    """
    return (predicted.float() - target.float()).square().mean()
