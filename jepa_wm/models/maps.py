"""Where an encoder looks: attention of its last block from CLS to the patches."""

from typing import cast

import torch
from torch import Tensor

from jepa_wm.models.layers import Block
from jepa_wm.models.model import Model


@torch.inference_mode()
def cls_attention(model: Model, pixels: Tensor) -> Tensor:
    """Return how CLS weighs patches in the last block, float32 [B,heads,rows,columns].

    The weights over patches and prefix sum to 1; those of the prefix (CLS itself, registers) are
    left out.

    Args:
        model: Of images, with a CLS token.
        pixels: Preprocessed, float [B,C,h,w].

    Raises:
        ValueError: the encoder has no CLS token or takes clips.
    """
    config, block = model.enc.config, cast("Block", model.enc.blk[-1])
    if not config.cls_token or config.takes_clips:
        raise ValueError("attention from CLS needs an encoder of images with a CLS token")
    seen: list[tuple] = []
    handle = block.register_forward_pre_hook(lambda _, inputs: seen.append(inputs))
    try:
        model.encode(pixels)
    finally:
        handle.remove()
    x, rope = seen[0][:2]
    q, k, _ = block.project(x, rope)  # [B,heads,N,d]
    scores = q[:, :, :1].float() @ k.float().transpose(-2, -1) * q.shape[-1] ** -0.5
    weights = scores.softmax(-1)[:, :, 0, config.prefix :]
    rows, columns = (side // config.patch_size for side in pixels.shape[-2:])
    return weights.unflatten(-1, (rows, columns))
