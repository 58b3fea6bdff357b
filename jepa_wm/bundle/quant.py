"""Stored tensor types: which tensors may take fewer bits, and the way there and back.

One predicate (``is_quantisable``) serves converter, quantiser and checks. The bit formats
themselves are ``gguf.quants``.

Source: jepa.cpp docs/gguf-schema.md, "Quantization rules"; ggml's file type numbers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from jepa_wm.errors import BundleError

Q = GGMLQuantizationType
FILE_TYPES = {
    "f32": (0, Q.F32),
    "f16": (1, Q.F16),
    "q4_0": (2, Q.Q4_0),
    "q4_1": (3, Q.Q4_1),
    "q8_0": (7, Q.Q8_0),
    "q5_0": (8, Q.Q5_0),
    "q5_1": (9, Q.Q5_1),
    "bf16": (24, Q.BF16),
}
"""What can be written: name to (``general.file_type`` number, type of the quantisable tensors)."""

READ_ONLY_TYPES = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
"""Types gguf's Python decodes but cannot encode."""

_F16_MAX = 65_504.0  # the scales of the block formats are halfs too
_QUANTISABLE = re.compile(
    r".*\.(attn_(qkv|q|k|v|out)|ffn_(up|down))\.weight"
    r"|pred\.(proj|proj_context|embed)(\.\d+)?\.weight|enc\.proj\.\d+\.weight"
    r"|head\.(blk\..*|xattn\.[qkv]|cls)\.weight"
)


@dataclass(frozen=True)
class Encoded:
    """A tensor as it lies in a file.

    Attributes:
        data: uint8 [..., bytes of a row], the stored bytes.
        shape: Torch order, in elements.
        type: ggml type.
    """

    data: np.ndarray
    shape: tuple[int, ...]
    type: GGMLQuantizationType


def is_quantisable(name: str, shape: Sequence[int]) -> bool:
    """Say whether a tensor may take fewer than 32 bits: a 2-D weight of the schema's list."""
    return len(shape) == 2 and _QUANTISABLE.fullmatch(name) is not None


def storage_type(name: str, shape: Sequence[int], file_type: str) -> GGMLQuantizationType:
    """Return the type a tensor is written in when the file is of ``file_type``.

    F32 unless ``is_quantisable``; F16 where the row is no multiple of the type's block.

    Raises:
        BundleError: the file type cannot be written; the text says which can.
    """
    if file_type in READ_ONLY_TYPES:
        raise BundleError(f"file type {file_type} can be read but not written here; {_writable()}")
    if file_type not in FILE_TYPES:
        raise BundleError(f"file type {file_type!r} is unknown; {_writable()}")
    if not is_quantisable(name, shape):
        return Q.F32
    wanted = FILE_TYPES[file_type][1]
    return Q.F16 if shape[-1] % GGML_QUANT_SIZES[wanted][0] else wanted


def _writable() -> str:
    return f"writable are {', '.join(FILE_TYPES)}"


def encode(array: np.ndarray, kind: GGMLQuantizationType) -> Encoded:
    """Encode a float32 array; values beyond the range of F16 stay F32 (BF16 has the range).

    Args:
        array: float32 [..., columns], finite, columns a multiple of the type's block.
        kind: Any type of ``FILE_TYPES``.
    """
    array = np.ascontiguousarray(array, dtype=np.float32)
    if kind not in (Q.F32, Q.BF16) and max(-array.min(), array.max()) > _F16_MAX:
        kind = Q.F32
    data = quants.quantize(array, kind)
    return Encoded(np.ascontiguousarray(data).view(np.uint8), array.shape, kind)


@cache
def can_decode(kind: GGMLQuantizationType) -> bool:
    """Say whether tensors of this type can be turned into float32."""
    block, n_bytes = GGML_QUANT_SIZES[kind]
    try:
        return (
            decode(Encoded(np.zeros((1, n_bytes), np.uint8), (1, block), kind)).dtype == np.float32
        )
    except NotImplementedError:
        return False


def decode(stored: Encoded) -> np.ndarray:
    """Decode to float32 of ``stored.shape``; F32 data is viewed, not copied.

    Raises:
        NotImplementedError: the type has no decoder.
    """
    if stored.type == Q.F64:  # gguf.quants leaves the plain types out
        return stored.data.view("<f8").astype(np.float32).reshape(stored.shape)
    with np.errstate(all="ignore"):  # absurd scales end as Inf, which the reader refuses
        return quants.dequantize(stored.data, stored.type).reshape(stored.shape)
