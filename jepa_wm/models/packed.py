"""Linear layers prepared for inference: packed for the CPU's own kernels, activation fused in.

PyTorch sends float32 products to MKL, which on AMD processors stops at AVX2; oneDNN's kernels use
AVX-512 there (2.3 times as fast, measured on Zen 5) and write bias and activation in the same pass.
A row's result does not depend on how many rows there are, so a plan does not depend on the batch
it is made in; MKL does not promise that. The operators are the ones that ``torch.compile`` emits;
where they do not exist the plain functions run. A processor that cannot multiply half precision
takes its products in float32 and rounds them, as one that can does inside: the plain functions
would take seven times as long (measured on Zen 1).
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

# our name -> oneDNN's (attribute, algorithm) and the plain function
ACTIVATIONS = {
    "none": ("none", "", lambda x: x),
    "gelu_erf": ("gelu", "none", F.gelu),
    "gelu_tanh": ("gelu", "tanh", lambda x: F.gelu(x, approximate="tanh")),
    "silu": ("swish", "", F.silu),
}
ROWS_HINT = 512  # the number of rows the weight layout is chosen for; any other number works


def has_packed_kernels(device: torch.device, dtype: torch.dtype = torch.float32) -> bool:
    """Say whether oneDNN's fused linear operators run here, in this build of PyTorch."""
    return (
        device.type == "cpu"
        # float16 has no fused operators
        and (dtype == torch.float32 or (dtype == torch.bfloat16 and _multiplies(dtype)))
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


def is_widened(device: torch.device, dtype: torch.dtype) -> bool:
    """Say whether products of a dtype are taken in float32 here."""
    halves = (torch.bfloat16, torch.float16)
    return device.type == "cpu" and dtype in halves and not _multiplies(dtype)


@cache
def _multiplies(dtype: torch.dtype) -> bool:
    """Say whether oneDNN multiplies a dtype of half precision on this processor."""
    name = "bf16" if dtype == torch.bfloat16 else "fp16"
    supported = getattr(torch.ops.mkldnn, f"_is_mkldnn_{name}_supported", None)
    return supported is not None and bool(supported())


class PackedLinear:
    """act(W x + b), settled when it is built: a later change of the weights is not seen.

    Args:
        weight: float [out,in].
        bias: float [out], or None.
        dtype: Dtype of inputs and outputs.
        act: Activation fused behind the product.
        reorder: Keep a copy of the weight in the kernel's own layout: faster by a tenth with
            thousands of rows and twice as fast with a few. Without it the weight is shared.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        dtype: torch.dtype,
        act: str = "none",
        reorder: bool = True,
    ) -> None:
        self.act = act
        self.is_packed = has_packed_kernels(weight.device, dtype)
        self.weight = weight.detach().to(dtype).contiguous()
        self.bias = None if bias is None else bias.detach().to(dtype).contiguous()
        if self.is_packed and reorder:
            self.weight = torch.ops.mkldnn._reorder_linear_weight(self.weight, ROWS_HINT)

    def __call__(self, x: Tensor, act: str | None = None) -> Tensor:
        """Map float [..,in] in the layer's dtype to [..,out], with another activation if given."""
        act = self.act if act is None else act
        return _linear(x, self.weight, self.bias, act, self.is_packed)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, act: str) -> Tensor:
    """Return act(W x + b) of float [..,in] once, without a layer: all of one dtype."""
    return _linear(x, weight, bias, act, has_packed_kernels(weight.device, weight.dtype))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, act: str, is_packed: bool) -> Tensor:
    name, algorithm, function = ACTIVATIONS[act]
    if is_packed:
        is_lone = x.numel() == x.shape[-1] and not weight.is_mkldnn
        # a lone row and a weight in the plain layout meet a kernel that rounds otherwise
        rows = x.reshape(1, -1).expand(2, -1) if is_lone else x
        found = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, name, [], algorithm)
        return found[0].view(*x.shape[:-1], -1) if is_lone else found
    if is_widened(x.device, x.dtype):
        offset = None if bias is None else bias.float()
        return linear(x.float(), weight.float(), offset, act).to(x.dtype)
    return function(F.linear(x, weight, bias))
