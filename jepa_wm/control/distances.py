"""Distances between vectors over the steps of a plan: what objectives share.

Differences are taken in float32 or wider whatever the dtype: a bfloat16 sum over 192 dimensions
would decide which candidates are elite. Everything is differentiable and changes no argument.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

NORMS = ("l2", "l1", "cosine", "huber")
REDUCTIONS = ("sum", "mean")
STEPS = ("last", "mean", "sum", "min", "discount")


@dataclass(frozen=True, eq=False)
class Distance:
    """How far vectors x_1..x_H are from y, as one number.

    d_t = sum_i f(x_ti - y_i) over all their numbers, where f is the square (``l2``), the absolute
    value (``l1``) or Huber's function (``huber``: e^2 / 2 up to ``delta``, then ``delta`` * (|e| -
    ``delta`` / 2)); or d_t = 1 - cos(x_t, y) over the last axis (``cosine``). Of d_1..d_H it takes
    d_H (``last``), the mean, the sum, the minimum (``min``: passing through is enough), or the mean
    weighted by ``gamma``^t (``discount``: below 1 early steps weigh more, above 1 late ones).

    Attributes:
        norm: ``l2``, ``l1``, ``cosine`` or ``huber``.
        reduce: ``sum`` or ``mean`` over the numbers (for cosine: over all axes but the last).
        steps: ``last``, ``mean``, ``sum``, ``min`` or ``discount``.
        delta: Where ``huber`` turns from a parabola to a line, > 0, in the vectors' units; None for
            the other norms.
        gamma: Weight of a step by that of the step before, > 0; None unless ``discount``.

    Raises:
        ValueError: a setting is not one of these; all faults at once.

    Source: DINO-WM's ``objectives.py``, mode ``all`` with base 2, is l2 / mean / discount with
        gamma 2.
    """

    _: KW_ONLY
    norm: str
    reduce: str
    steps: str
    delta: float | None = None
    gamma: float | None = None

    def __post_init__(self) -> None:
        words = {"norm": NORMS, "reduce": REDUCTIONS, "steps": STEPS}
        refuse(
            [
                *word_faults(self, words),
                *_given_faults(self, "delta", "norm", "huber"),
                *_given_faults(self, "gamma", "steps", "discount"),
            ]
        )

    def between(self, x: Tensor, y: Tensor) -> Tensor:
        """Return d [B,S,H] of vectors x [B,S,H,*L] from y [B,*L]; of ``last`` only d_H, H = 1."""
        if self.steps == "last":
            x = x[:, :, -1:]
        x = exact(x)
        y = y.to(x.dtype)[:, None, None]
        if self.norm == "cosine":
            each = 1 - F.cosine_similarity(x, y, dim=-1)
        else:
            each = self._size(x - y)
        flat = each.flatten(3) if each.ndim > 3 else each[..., None]  # [B,S,H,D]
        return flat.sum(-1) if self.reduce == "sum" else flat.mean(-1)

    def over(self, d: Tensor) -> Tensor:
        """Reduce d [B,S,H] over the steps to [B,S]."""
        if self.steps == "min":
            return d.amin(2)
        if self.steps == "sum":
            return d.sum(2)
        if self.gamma is not None:  # only of discount
            times = torch.arange(d.shape[2], device=d.device, dtype=d.dtype)
            return (d * torch.softmax(times * math.log(self.gamma), 0)).sum(2)
        return d.mean(2)

    def _size(self, gap: Tensor) -> Tensor:
        if self.norm == "l1":
            return gap.abs()
        if self.delta is None:  # all but huber
            return gap.square()
        return F.huber_loss(gap, torch.zeros_like(gap), reduction="none", delta=self.delta)


def exact(values: Tensor) -> Tensor:
    """Widen half precision to float32; leave the rest."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def word_faults(record: object, words: Mapping[str, Sequence[str]]) -> list[str]:
    """Name the attributes that are not one of their words."""
    found = {name: getattr(record, name) for name in words}
    return [
        f"{name}={got!r} (one of {', '.join(words[name])})"
        for name, got in found.items()
        if got not in words[name]
    ]


def refuse(faults: Sequence[str]) -> None:
    """Raise one ValueError of all faults, if there are any."""
    if faults:
        raise ValueError("objective: " + "; ".join(faults))


def is_positive(value: object) -> bool:
    """Whether a setting is a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < torch.inf


def _given_faults(record: object, name: str, other: str, word: str) -> list[str]:
    """A number that one word needs and the others do not know."""
    value, wanted = getattr(record, name), getattr(record, other) == word
    if wanted and not is_positive(value):
        return [f"{name}={value!r}: {other}={word} needs a number > 0"]
    if not wanted and value is not None:
        return [f"{name}={value!r} is for {other}={word} alone"]
    return []
