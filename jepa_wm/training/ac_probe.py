"""How well an action-conditioned predictor follows play, and whether it tells actions apart."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from jepa_wm.models.pose import compose
from jepa_wm.training.latent_play import LatentPlay, Sequences

Predict = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Latents [B,T,N,D], actions [B,T,7], poses [B,T,7] -> every next frame's latents [B,T,N,D]."""

_SEQUENCES, _FEW = 128, 48
_STEPS = 4
_RIVALS = 50  # random actions beside the true one
_PLACE = 3


@dataclass(frozen=True)
class ACProbe:
    """Figures of one evaluation.

    Attributes:
        error_1: Mean absolute error of the latents after one step.
        copy_1: The same of predicting no change.
        error_4: After four steps of rollout from one frame.
        copy_4: The same of predicting no change.
        rank: Median share of random actions that explain the next frame better than the true one,
            0 (it is the best) to 1; 0.5 is chance.
        top_10: Share of frames where less than a tenth of them does.
        best_cm: Mean distance in centimetres between the true translation and that of the action
            that explains the frame best.
    """

    error_1: float
    copy_1: float
    error_4: float
    copy_4: float
    rank: float
    top_10: float
    best_cm: float


@torch.no_grad()
def probe_predictor(predict: Predict, play: LatentPlay, device: torch.device) -> ACProbe:
    """Evaluate a predictor on sequences drawn from ``play``, poses moved as in a rollout."""
    rng = np.random.default_rng(0)
    batch = play.sequences(rng, _SEQUENCES, min(_STEPS, play.actions.shape[1]))
    found = rollout(predict, batch, device)
    errors = (found - batch.z[:, 1:]).abs().mean((0, 2, 3))
    copies = (batch.z[:, :1] - batch.z[:, 1:]).abs().mean((0, 2, 3))
    shares, misses = _tell_apart(predict, play, rng, device)
    return ACProbe(
        error_1=float(errors[0]),
        copy_1=float(copies[0]),
        error_4=float(errors[-1]),
        copy_4=float(copies[-1]),
        rank=float(shares.median()),
        top_10=float((shares < 0.1).float().mean()),
        best_cm=100 * float(misses.mean()),
    )


def rollout(predict: Predict, batch: Sequences, device: torch.device) -> Tensor:
    """Roll the first frame of sequences through their actions -> float32 [B,T,N,D], on the CPU."""
    z, pose = batch.z[:, :1].to(device), batch.poses[:, :1].to(device)
    actions = batch.actions.to(device)
    for step in range(actions.shape[1]):
        nxt = predict(z, actions[:, : step + 1], pose)[:, -1:]
        z = torch.cat([z, nxt], 1)
        pose = torch.cat([pose, compose(pose[:, -1:], actions[:, step : step + 1])], 1)
    return z[:, 1:].float().cpu()


def _tell_apart(
    predict: Predict, play: LatentPlay, rng: np.random.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Compare true actions with random translations: shares of better ones, misses in metres."""
    batch = play.sequences(rng, _FEW, 1)
    widest = play.actions[..., :_PLACE].abs().amax((0, 1))
    shares, misses = [], []
    for z, action, pose in zip(batch.z, batch.actions, batch.poses, strict=True):
        rivals = action.repeat(_RIVALS + 1, 1)
        drawn = torch.from_numpy(rng.uniform(-1, 1, (_RIVALS, _PLACE))).float()
        rivals[1:, :_PLACE] = drawn * widest
        many = (x.expand(_RIVALS + 1, 1, *x.shape).to(device) for x in (z[0], pose[0]))
        start, poses = many
        nxt = predict(start, rivals[:, None].to(device), poses)[:, 0].float().cpu()
        energy = (nxt - z[1]).abs().mean((1, 2))
        shares.append((energy[1:] < energy[0]).float().mean())
        misses.append((rivals[energy.argmin(), :_PLACE] - action[0, :_PLACE]).norm())
    return torch.stack(shares), torch.stack(misses)
