"""Linear layers prepared for inference: packed for the CPU's own kernels, activation fused in.

PyTorch sends float32 products to MKL, which on AMD processors stops at AVX2; oneDNN's kernels use
AVX-512 there (2.3 times as fast, measured on Zen 5) and write bias and activation in the same pass.
A row's result does not depend on how many rows there are, so a plan does not depend on the batch
it is made in; MKL does not promise that. The operators are the ones that ``torch.compile`` emits;
where they do not exist the plain functions run.
"""

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
    """Say whether this build of PyTorch has oneDNN's fused linear operators for ``device``."""
    return (
        device.type == "cpu"
        and dtype in (torch.float32, torch.bfloat16)  # halfs need AVX512-FP16, which few CPUs have
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
        and hasattr(torch.ops.mkldnn, "_reorder_linear_weight")
    )


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
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, name, [], algorithm)
    return function(F.linear(x, weight, bias))
