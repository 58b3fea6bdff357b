"""What an encoder's latents know of the state, and whether their distances can lead a planner."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from jepa_wm.training.dataset import Mixture, PlayDataset
from jepa_wm.training.probes import effective_rank

Encode = Callable[[Tensor], Tensor]
"""Frames uint8 [B,s,s,3] -> layer-normed latents [B,N,D]."""

_PLACE = 3  # leading columns of a state: where the gripper is
_APART = 12  # steps between the frames of a pair
_RIDGE = 1e-2  # of the mean squared length of a picture's latents
_CHUNK = 128


@dataclass(frozen=True)
class EncoderProbe:
    """Figures of one evaluation.

    Attributes:
        r2_place: Linear R2 of the state's first three columns from all latents of a frame.
        r2_rest: Linear R2 of the other columns asked for; 1 where there are none.
        order: Rank correlation of the L1 distance of two frames' latents with the distance of
            their first three columns, over frames of one episode: what a planner that lowers the
            one can rely on.
        std: Mean standard deviation of latents between pictures.
        rank: Effective rank of what differs between pictures.
    """

    r2_place: float
    r2_rest: float
    order: float
    std: float
    rank: float


@torch.no_grad()
def encode_all(encode: Encode, frames: Tensor, device: torch.device) -> Tensor:
    """Encode frames uint8 [M,s,s,3] in parts, to float32 [M,N,D] on the CPU."""
    return torch.cat([encode(part.to(device)).float().cpu() for part in frames.split(_CHUNK)])


def probe_encoder(
    encode: Encode,
    data: PlayDataset | Mixture,
    columns: Sequence[int],
    device: torch.device,
    pairs: int = 600,
) -> EncoderProbe:
    """Evaluate an encoder on ``pairs`` pairs of frames of one episode, 12 steps apart."""
    length = min(_APART + 1, data.info.frames)
    batch = data.windows(np.random.default_rng(0), pairs, length)
    ends = [0, length - 1]
    frames = torch.from_numpy(batch.frames[:, ends]).flatten(0, 1)
    states = torch.from_numpy(batch.states[:, ends])
    z = encode_all(encode, frames, device)
    wanted = [*range(_PLACE), *(c for c in columns if c >= _PLACE)]
    r2 = _ridge_r2(z.flatten(1), states.flatten(0, 1)[:, wanted])
    ends_z = z.unflatten(0, (-1, 2))
    energy = (ends_z[:, 0] - ends_z[:, 1]).abs().mean((1, 2))
    distance = (states[:, 0, :_PLACE] - states[:, 1, :_PLACE]).norm(dim=1)
    centred = z - z.mean(0)
    return EncoderProbe(
        r2_place=float(r2[:_PLACE].mean()),
        r2_rest=float(r2[_PLACE:].mean()) if len(wanted) > _PLACE else 1.0,
        order=rank_correlation(energy, distance),
        std=float(centred.std(0).mean()),
        rank=effective_rank(centred.flatten(0, 1)),
    )


def rank_correlation(x: Tensor, y: Tensor) -> float:
    """Return Spearman's correlation of two vectors without ties."""
    ranks = torch.stack([v.argsort().argsort().double() for v in (x, y)])
    return float(torch.corrcoef(ranks)[0, 1])


def _ridge_r2(x: Tensor, target: Tensor) -> Tensor:
    """Fit three quarters of the rows [M,P] from x [M,K] with a ridge, score the rest: R2 [C]."""
    fit = 3 * len(x) // 4
    x, target = (x - x[:fit].mean(0)).double(), (target - target[:fit].mean(0)).double()
    gram = x @ x[:fit].T  # [M,fit]: fewer rows than columns
    ridge = _RIDGE * gram[:fit].diagonal().mean() * torch.eye(fit, dtype=gram.dtype)
    weights = torch.linalg.solve(gram[:fit] + ridge, target[:fit])
    residual = target[fit:] - gram[fit:] @ weights
    return 1 - residual.square().sum(0) / target[fit:].square().sum(0).clamp(min=1e-12)
