"""What a control loop is shown, from any caller: one observation a row, as tensors."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Frames = np.ndarray | Tensor | Sequence[Any]
"""One observation a row, [B,...]: numpy, a tensor or nested lists."""


def as_tensor(values: Frames) -> Tensor:
    """Take numpy of any strides, lists or a tensor."""
    if isinstance(values, Tensor):
        return values
    return torch.from_numpy(np.require(values, requirements=["C", "W"]))  # copies where it must


def read_proprio(
    values: Frames | None, batch: int, rows: np.ndarray, what: str, device: torch.device
) -> Tensor | None:
    """Return proprioception of some rows, float32 [n,P], if there is any.

    Args:
        values: Of all rows, [B,P].
        batch: B.
        rows: Which are wanted, int64 [n]; the others may hold anything.
        what: Its name in an error.
        device: Where to.

    Raises:
        ValueError: it is not one a row, or not finite.
    """
    if values is None:
        return None
    if len(values) != batch:
        raise ValueError(f"{what} must be [{batch}, P], got {len(values)} rows")
    found = as_tensor(values)[rows].to(device, torch.float32)
    if not found.isfinite().all():
        raise ValueError(f"{what} is not finite: {found.tolist()}")
    return found
