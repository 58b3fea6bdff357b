"""Stored tensor types: which tensors may take fewer bits, and the way there and back.

One predicate (``is_quantisable``) serves converter, quantiser and checks. The bit formats
themselves are ``gguf.quants``; the K types, which it only decodes, are encoded by ``kquants``.

Source: jepa.cpp docs/gguf-schema.md, "Quantization rules"; ggml's file type numbers.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from jepa_wm.bundle.kquants import K_TYPES, encode_k
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
    "q4_k": (12, Q.Q4_K),
    "q5_k": (13, Q.Q5_K),
    "q6_k": (14, Q.Q6_K),
    "bf16": (24, Q.BF16),
}
"""What can be written: name to (``general.file_type`` number, type of the quantisable tensors)."""

READ_ONLY_TYPES = ("q2_k", "q3_k")
"""Types that are decoded but not encoded here."""

FALLBACKS = {Q.Q4_K: Q.Q4_0, Q.Q5_K: Q.Q5_0, Q.Q6_K: Q.Q8_0}
"""What a row takes instead that is no multiple of 256; no multiple of 32 either: F16."""

_F16_MIN, _F16_MAX = 2.0**-14, 65_504.0  # normal halfs; the scales of the block formats are halfs
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

    F32 unless ``is_quantisable``; where the row is no multiple of the type's block, its
    ``FALLBACKS`` entry, else F16.

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
    for kind in (wanted, FALLBACKS.get(wanted, Q.F16)):
        if shape[-1] % GGML_QUANT_SIZES[kind][0] == 0:
            return kind
    return Q.F16


def _writable() -> str:
    return f"writable are {', '.join(FILE_TYPES)}"


def is_block_type(kind: GGMLQuantizationType) -> bool:
    """Say whether values of a type share scales: Q types, not F32, F16 or BF16."""
    return GGML_QUANT_SIZES[kind][0] > 1


def can_hold(kind: GGMLQuantizationType, peak: float) -> bool:
    """Say whether a type can carry a tensor whose largest magnitude is ``peak``.

    Halfs, and block types by their scales, end at 65504 and lose digits below 6e-5.
    """
    return kind in (Q.F32, Q.BF16) or peak == 0 or _F16_MIN <= peak <= _F16_MAX


def encode(array: np.ndarray, kind: GGMLQuantizationType) -> Encoded:
    """Encode a float32 array; one that the type cannot hold (``can_hold``) stays F32.

    Args:
        array: float32 [..., columns], finite, columns a multiple of the type's block.
        kind: Any type of ``FILE_TYPES``.
    """
    return encode_as(array, kind if can_hold(kind, peak_of(array)) else Q.F32)


def encode_as(array: np.ndarray, kind: GGMLQuantizationType) -> Encoded:
    """Encode as ``encode`` does, in ``kind`` whatever the values."""
    array = np.ascontiguousarray(array, dtype=np.float32)
    if kind in K_TYPES:
        data = encode_k(array, kind)
    else:
        with np.errstate(all="ignore"):  # a block of values near 1e-40 has an infinite 1/scale
            data = quants.quantize(array, kind)
    return Encoded(np.ascontiguousarray(data).view(np.uint8), array.shape, kind)


def peak_of(array: np.ndarray) -> float:
    """Return the largest magnitude; NaN if any value is."""
    return float(max(-array.min(), array.max()))  # no copy, as abs would make


def n_bytes(shape: Sequence[int], kind: GGMLQuantizationType) -> int:
    """Return the size of a tensor's data in bytes."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    return prod(shape) // block * block_bytes


@cache
def can_decode(kind: GGMLQuantizationType) -> bool:
    """Say whether tensors of this type can be turned into float32."""
    block, block_bytes = GGML_QUANT_SIZES[kind]
    zeros = np.zeros((1, block_bytes), np.uint8)
    try:
        return decode(Encoded(zeros, (1, block), kind)).dtype == np.float32
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
