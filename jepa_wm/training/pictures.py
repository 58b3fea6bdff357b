"""Frames of play made smaller, as a model's preprocessing would."""

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray


def shrink(frames: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Resize uint8 [N,H,W,3] to [N,size,size,3], as a bundle's ``squash`` preprocessing does."""
    pixels = torch.from_numpy(frames).permute(0, 3, 1, 2)
    small = F.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    return small.permute(0, 2, 3, 1).numpy()
