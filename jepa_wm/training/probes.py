"""What a latent knows and how well the predictor follows it, measured on held-out play."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from jepa_wm.training.dataset import Mixture, PlayDataset
from jepa_wm.training.network import BatchNorm, TrainingNetwork


@dataclass(frozen=True)
class ProbeResult:
    """Figures of one evaluation.

    Attributes:
        r2: Linear R2 of each part of the state (``StateTargets``), by its name.
        error_1: Mean squared one-step error a live column, from three context frames.
        error_5: The same after five steps from one context frame.
        static_5: The error after five steps of predicting no change.
        std_min: Smallest standard deviation of a live column.
        rank: Effective rank of the latent (exponential of the spectrum's entropy).
    """

    r2: dict[str, float]
    error_1: float
    error_5: float
    static_5: float
    std_min: float
    rank: float


def effective_rank(z: Tensor) -> float:
    """Return exp(entropy of the normalised covariance spectrum) of latents [N,D]."""
    spectrum = torch.linalg.eigvalsh(z.float().T.cov()).clamp(min=1e-12)
    share = spectrum / spectrum.sum()
    return float(torch.exp(-(share * share.log()).sum()))


def _linear_r2(z: Tensor, target: Tensor) -> Tensor:
    """Fit on even rows, score on odd rows: R2 of each target column."""
    x = torch.cat([z, torch.ones(len(z), 1)], 1).double()
    weights = torch.linalg.lstsq(x[::2], target[::2].double()).solution
    residual = target[1::2] - x[1::2] @ weights
    return 1 - residual.square().mean(0) / target[1::2].double().var(0)


@torch.no_grad()
def probe(
    network: TrainingNetwork, data: PlayDataset | Mixture, windows: int, seed: int
) -> ProbeResult:
    """Evaluate ``network`` on ``windows`` windows of six frames drawn from ``data``.

    BatchNorm uses the statistics of the probe's own batch: at high learning rates the running ones
    lag so far behind the weights that the figures would say nothing.
    """
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    for norm in norms:
        norm.frozen = True
    batch = data.windows(np.random.default_rng([seed, 0]), windows, 6)
    device = network.action_mean.device
    frames = torch.from_numpy(batch.frames).to(device)
    actions = torch.from_numpy(batch.actions).to(device)
    z = torch.cat([network.encode(part) for part in frames.split(64)])
    live = network.live(z).float()
    flat, r2 = live.flatten(0, 1).cpu(), {}
    if network.targets.size:
        target = network.targets(torch.from_numpy(batch.states)).flatten(0, 1)
        r2 = network.targets.by_part(_linear_r2(flat, target))
    one = network.live(network.rollout(z[:, :3], actions[:, :3])).float()
    five = network.live(network.rollout(z[:, :1], actions)).float()
    for norm in norms:
        norm.frozen = False
    return ProbeResult(
        r2=r2,
        error_1=float((one[:, 0] - live[:, 3]).square().mean()),
        error_5=float((five[:, -1] - live[:, 5]).square().mean()),
        static_5=float((live[:, 0] - live[:, 5]).square().mean()),
        std_min=float(flat.std(0).min()),
        rank=effective_rank(flat),
    )
