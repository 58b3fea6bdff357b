"""Building blocks shared by every encoder and predictor: activations, attention, the pre-LN block.

Attribute names are GGUF tensor names (``blk.{i}.attn_qkv`` ...), so a bundle loads with
``load_state_dict`` and nothing in between.
"""

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from jepa_wm.models.attention import FrameCausal, attention
from jepa_wm.models.packed import ACTIVATIONS as FUSED
from jepa_wm.models.packed import PackedLinear, has_packed_kernels, is_widened
from jepa_wm.models.rope import Rope

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    act: function for act, (_, _, function) in FUSED.items()
}
PACKED_BYTES = 256 << 20  # up to this size of a model a second, reordered copy is worth its memory


class Linear(nn.Linear):
    """A linear layer that takes its input in the weights' dtype and may be packed for inference.

    Float32 weights leave the input to autocast, for training. Once packed, calls without gradients
    use the packed weights, until the weights are changed, cast or moved.
    """

    packed: PackedLinear | None = None
    packed_version: int = -1

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the products."""
        return self.weight.dtype

    def pack(self, reorder: bool = True) -> None:
        """Prepare for inference where this PyTorch can (``packed``)."""
        weight, bias = self.weight, self.bias
        kind = weight.device, weight.dtype
        if has_packed_kernels(*kind) or is_widened(*kind):
            self.packed = PackedLinear(weight, bias, weight.dtype, reorder=reorder)
            self.packed_version = _version(self.weight)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Self:
        self.packed = None  # cast or moved weights are others
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"packed": None}  # a copy's weights go their own way

    def forward(self, x: Tensor, act: str = "none") -> Tensor:
        """Map [..,in] to [..,out] and through an activation (``packed.ACTIVATIONS``)."""
        dtype = self.dtype
        x = x if dtype == torch.float32 else x.to(dtype)
        packed = self.packed
        if (
            packed is None
            or x.dtype != dtype  # autocast made it so, and takes the plain product
            or torch.is_grad_enabled()
            or _version(self.weight) != self.packed_version
        ):
            return ACTIVATIONS[act](super().forward(x))
        return packed(x, act)


def _version(weight: Tensor) -> int:
    """Count in-place changes; a tensor made in inference mode has no count."""
    return -1 if weight.is_inference() else weight._version


def prepare_linears(module: nn.Module, dtype: torch.dtype) -> None:
    """Cast the weights of every ``Linear`` in ``module`` to ``dtype`` and pack them, in place.

    Tokens, norms and tables stay float32, so a bfloat16 model loses precision in products alone.
    """
    linears = [part for part in module.modules() if isinstance(part, Linear)]
    for part in linears:
        part.to(dtype)
    size = sum(p.numel() * p.element_size() for part in linears for p in part.parameters())
    for part in linears:
        part.pack(reorder=size <= PACKED_BYTES)


def split_heads(
    qkv: Tensor, n_head: int, rope: Rope | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Split fused rows [q; k; v], float [B,N,3*heads*d], into three [B,heads,N,d]; turn q and k."""
    B, N, width = qkv.shape
    qkv = qkv.view(B, N, 3, n_head, width // (3 * n_head))
    if rope is None:
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        return q, k, v
    q, k = rope(qkv[:, :, :2]).permute(2, 0, 3, 1, 4)
    return q, k, qkv[:, :, 2].transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Concatenate heads in order: [B,heads,N,d] -> [B,N,heads*d]."""
    return x.transpose(1, 2).flatten(2)


class Block(nn.Module):
    """Pre-LN transformer block with exact LayerNorm and optional layer scale.

    Source: families of the schema share it; DINOv2 ``layers/block.py`` for the layer scale.
    """

    def __init__(
        self,
        dim: int,
        n_head: int,
        ffn_dim: int,
        *,
        eps: float,
        act: str,
        layer_scale: bool = False,
        qkv_bias: bool = True,
    ) -> None:
        super().__init__()
        self.n_head = n_head
        self.ln1 = nn.LayerNorm(dim, eps)
        self.attn_qkv = Linear(dim, 3 * dim, bias=qkv_bias)
        self.attn_out = Linear(dim, dim)
        self.ln2 = nn.LayerNorm(dim, eps)
        self.ffn_up = Linear(dim, ffn_dim)
        self.act = act
        self.ffn_down = Linear(ffn_dim, dim)
        self.ls1 = nn.Parameter(torch.ones(dim)) if layer_scale else None
        self.ls2 = nn.Parameter(torch.ones(dim)) if layer_scale else None

    def forward(
        self, x: Tensor, rope: Rope | None = None, frames: FrameCausal | None = None
    ) -> Tensor:
        """Map tokens [B,N,D] to [B,N,D], queries and keys turned by ``rope``, masked by frames."""
        return self.finish(x, attention(*self.project(x, rope), frames=frames))

    def project(self, x: Tensor, rope: Rope | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return what attention takes of tokens [B,N,D]: q, k and v [B,heads,N,d]."""
        return split_heads(self.attn_qkv(self.ln1(x)), self.n_head, rope)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Add attention's result [B,heads,N,d] and the feed-forward layer to tokens [B,N,D]."""
        y = self.attn_out(merge_heads(attended))
        x = x + (y if self.ls1 is None else self.ls1 * y)
        y = self.ffn_down(self.ffn_up(self.ln2(x), self.act))
        return x + (y if self.ls2 is None else self.ls2 * y)


class Activation(nn.Module):
    """One of ``ACTIVATIONS`` as a module."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Tensor:
        """Apply it, elementwise."""
        return ACTIVATIONS[self.name](x)


def mlp(dim_in: int, hidden: int, dim_out: int, act: str) -> nn.Sequential:
    """Two linear layers with an activation between; parameters are named ``0`` and ``2``."""
    return nn.Sequential(Linear(dim_in, hidden), Activation(act), Linear(hidden, dim_out))
