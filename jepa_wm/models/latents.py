"""Real latents to hold a masked prediction against, and how far apart the two are.

A masked predictor is trained towards the target encoder's output on the whole input, each level of
it normed over its features without weights. A bundle holds one encoder, which stands for the
target's here.

Source: facebookresearch/ijepa ``src/train.py``, jepa and vjepa2 ``app/vjepa/train.py``, vjepa2
    ``app/vjepa_2_1/train.py`` (``F.layer_norm`` of the targets, 2.1 level by level).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from jepa_wm.models.masked import MaskedPredictor
from jepa_wm.models.model import Model

TARGET_EPS = 1e-5  # of the references' F.layer_norm, whatever eps the model has


class Agreement(NamedTuple):
    """How well predicted latents agree with real ones, level by level.

    Attributes:
        cosine: float32 [B,M,levels], -1..1.
        l1: float32 [B,M,levels], mean absolute difference of a feature.
    """

    cosine: Tensor
    l1: Tensor


def has_real_latents(model: Model) -> bool:
    """Say whether the predictor aims at this encoder's latents, not at a larger teacher's."""
    pred = model.pred
    return isinstance(pred, MaskedPredictor) and pred.config.out_dim == pred.config.enc_dim


@torch.inference_mode()
def real_latents(model: Model, pixels: Tensor) -> Tensor:
    """Return what the masked predictor should give for every patch, float32 [B,N,levels*D].

    Args:
        model: One that ``has_real_latents``.
        pixels: float [B,C,h,w] or [B,T,C,h,w], preprocessed, whole.

    Raises:
        ValueError: the model has no such predictor.
    """
    if not (isinstance(model.pred, MaskedPredictor) and has_real_latents(model)):
        raise ValueError("the model's predictor does not aim at its own encoder's latents")
    config = model.pred.config
    z = model.encode(pixels, levels=config.n_hier_in > 1)[:, model.enc.config.prefix :]
    z = z.unflatten(-1, (config.n_hier_in, -1))
    return F.layer_norm(z, z.shape[-1:], eps=TARGET_EPS).flatten(-2)


def agreement(predicted: Tensor, real: Tensor, levels: int = 1) -> Agreement:
    """Compare predicted latents float [B,M,levels*D] with the real ones of the same patches."""
    a, b = (z.float().unflatten(-1, (levels, -1)) for z in (predicted, real))
    return Agreement(F.cosine_similarity(a, b, dim=-1), (a - b).abs().mean(-1))
