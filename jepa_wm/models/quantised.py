"""Linear layers whose weights stay quantised in memory; the call that uses them makes floats.

A bundle of one billion weights takes 4 GB in float32 and 0.6 GB in q4_k; kept as it is stored it
fits small devices, at the price of making the floats anew in every call. The values are, bit for
bit, those of an expanded model.
"""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor, nn

from jepa_wm.bundle.groups import Groups
from jepa_wm.models.layers import ACTIVATIONS, Linear
from jepa_wm.models.packed import linear


class QuantisedLinear(Linear):
    """A linear layer around a matrix in groups; inference only.

    ``weight`` is a matrix made anew, in ``dtype``, each time it is asked for.

    Args:
        parts: The matrix, rows of one part below those of the one before.
        bias: float32 [out], or None.
        dtype: Of the products.
        device: Where it lives.
    """

    codes: Tensor
    d: Tensor
    s: Tensor | None
    dmin: Tensor | None
    m: Tensor | None

    def __init__(
        self,
        parts: Sequence[Groups],
        bias: Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        nn.Module.__init__(self)  # the base would make a weight of floats
        self._dtype = dtype
        self.is_packed, self.offset = parts[0].is_packed, parts[0].offset
        for name in ("codes", "d", "s", "dmin", "m"):
            arrays = [getattr(part, name) for part in parts]
            values = None
            if arrays[0] is not None:
                joined = np.concatenate(arrays)
                # halfs lie here as integers, or casting a model would round them
                joined = joined.view(np.int16) if joined.dtype == np.float16 else joined
                values = torch.from_numpy(joined).to(device)
            self.register_buffer(name, values)
        kept = None if bias is None else nn.Parameter(bias.to(device, dtype), False)
        self.register_parameter("bias", kept)
        self.out_features = len(self.codes)
        self.in_features = self.codes[0].numel() * (2 if self.is_packed else 1)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the products."""
        return self._dtype

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The matrix [out,in] in ``dtype``."""
        codes = self.codes
        if self.is_packed:
            codes = torch.cat([codes & 15, codes >> 4], -1)
        values = codes.float().sub_(self.offset)  # [out,groups,size]
        scale = self._per_group(self.d, self.s)
        values.mul_(scale[..., None])
        if self.dmin is not None:
            values.add_(self._per_group(self.dmin, self.m)[..., None])
        return values.flatten(1).to(self.dtype)

    def _per_group(self, halfs: Tensor, factors: Tensor | None) -> Tensor:
        """Multiply the halfs of blocks with the integers of their groups: float32 [out,groups]."""
        floats = halfs.view(torch.float16).float()
        if factors is None:
            return floats
        rows, blocks = floats.shape
        return (floats[..., None] * factors.view(rows, blocks, -1)).flatten(1)

    def pack(self, reorder: bool = True) -> None:
        """Do nothing: there are no floats to prepare."""

    def forward(self, x: Tensor, act: str = "none") -> Tensor:
        """Map [..,in] to [..,out] and through an activation (``packed.ACTIVATIONS``)."""
        if torch.is_grad_enabled():
            return ACTIVATIONS[act](nn.functional.linear(x.to(self.dtype), self.weight, self.bias))
        return linear(x.to(self.dtype), self.weight, self.bias, act)


def told_kept(model: nn.Module) -> str:
    """Say how many of a model's matrices are kept as they are stored: none of a file of floats."""
    linears = [part for part in model.modules() if isinstance(part, Linear)]
    kept = sum(isinstance(part, QuantisedLinear) for part in linears)
    return f"{kept} of {len(linears)} matrices kept quantised"


def can_join(parts: Sequence[Groups | None]) -> bool:
    """Say whether matrices are all in groups of one form, so that their rows make one matrix."""
    forms = [None if part is None else _form(part) for part in parts]
    return None not in forms and all(form == forms[0] for form in forms)


def are_finite(part: Groups) -> bool:
    """Say whether every value of a matrix is finite: its halfs are."""
    halfs = [part.d, part.dmin]
    return all(half is None or bool(np.isfinite(half).all()) for half in halfs)


def _form(part: Groups) -> tuple:
    arrays = [getattr(part, field.name) for field in fields(part)]
    return tuple(a.shape[1:] if isinstance(a, np.ndarray) else a for a in arrays)
