"""Block types as they are: small integers and the scales of their groups, without the floats.

A value is ``d * s * (q - offset) + m``, where ``m`` is ``dmin * m`` with its sign; a runtime may
keep these parts in memory and make floats of them when it needs them. In this order of products the
result is, bit for bit, what ``quant.decode`` gives.

Source: ggml src/ggml-common.h and src/ggml-quants.c (``dequantize_row_*``).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jepa_wm.bundle.quant import Encoded, Q

Bytes = NDArray[np.uint8]
Halfs = NDArray[np.float16]


@dataclass(frozen=True)
class Groups:
    """A matrix [rows, columns] in groups of equal scale.

    Attributes:
        codes: Integers q: int8 [rows, groups, size]; ``is_packed``: uint8 [rows, groups, size / 2],
            the first half of a group in the low bits, the second in the high ones.
        is_packed: Two codes a byte.
        offset: What every code is too large by.
        d: Half [rows, blocks], one scale for each run of groups.
        s: Integer [rows, groups] that multiplies it, or None.
        dmin: Half [rows, blocks]: scale of the minima (sign included), or None for no minima.
        m: uint8 [rows, groups] that multiplies it, or None.
    """

    codes: NDArray[np.generic]
    is_packed: bool
    offset: int
    d: Halfs
    s: NDArray[np.generic] | None = None
    dmin: Halfs | None = None
    m: Bytes | None = None


def split_groups(stored: Encoded) -> Groups | None:
    """Take a stored matrix apart, or return None where its type is none of those known here.

    Args:
        stored: Of any type; rows as ``Bundle.encoded`` gives them, uint8 [rows, bytes of a row].
    """
    take = _SPLIT.get(stored.type)
    return None if take is None else take(stored.data.reshape(-1, stored.data.shape[-1]))


def _half(blocks: Bytes, at: int) -> Halfs:
    return np.ascontiguousarray(blocks[..., at : at + 2]).view("<f2")[..., 0].astype(np.float16)


def _blocks(data: Bytes, size: int) -> Bytes:
    return data.reshape(len(data), -1, size)


def _fifth(nibbles: Bytes, bits: Bytes) -> NDArray[np.int8]:
    """Add the fifth bit: nibbles [...,16] of two values each, bits [...,4] -> int8 [...,32]."""
    low = np.concatenate([nibbles & 15, nibbles >> 4], -1)
    return (low | np.unpackbits(bits, axis=-1, bitorder="little") << 4).astype(np.int8)


def _q8_0(data: Bytes) -> Groups:
    blocks = _blocks(data, 34)
    codes = np.ascontiguousarray(blocks[..., 2:]).view(np.int8)
    return Groups(codes, False, 0, _half(blocks, 0))


def _q4_0(data: Bytes) -> Groups:
    blocks = _blocks(data, 18)
    return Groups(np.ascontiguousarray(blocks[..., 2:]), True, 8, _half(blocks, 0))


def _q4_1(data: Bytes) -> Groups:
    blocks = _blocks(data, 20)
    codes = np.ascontiguousarray(blocks[..., 4:])
    return Groups(codes, True, 0, _half(blocks, 0), dmin=_half(blocks, 2))


def _q5_0(data: Bytes) -> Groups:
    blocks = _blocks(data, 22)
    return Groups(_fifth(blocks[..., 6:], blocks[..., 2:6]), False, 16, _half(blocks, 0))


def _q5_1(data: Bytes) -> Groups:
    blocks = _blocks(data, 24)
    codes = _fifth(blocks[..., 8:], blocks[..., 4:8])
    return Groups(codes, False, 0, _half(blocks, 0), dmin=_half(blocks, 2))


def _six_bits(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Take 12 bytes [...,12] apart into scales and minima [...,8] of 6 bits."""
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    s = np.concatenate([first & 63, third & 15 | first >> 6 << 4], -1)
    m = np.concatenate([second & 63, third >> 4 | second >> 6 << 4], -1)
    return s, m


def _q4_k(data: Bytes) -> Groups:
    blocks = _blocks(data, 144)
    rows = len(data)
    s, m = _six_bits(blocks[..., 4:16])
    nibbles = blocks[..., 16:].reshape(rows, -1, 4, 32)  # two groups share 32 bytes
    codes = np.stack([nibbles & 15, nibbles >> 4], 3).reshape(rows, -1, 32)
    packed = codes[..., :16] | codes[..., 16:] << 4
    minima = -_half(blocks, 2)
    return Groups(
        packed, True, 0, _half(blocks, 0), s.reshape(rows, -1), minima, m.reshape(rows, -1)
    )


def _q5_k(data: Bytes) -> Groups:
    blocks = _blocks(data, 176)
    rows = len(data)
    s, m = _six_bits(blocks[..., 4:16])
    bits = np.unpackbits(blocks[..., 16:48, None], axis=-1, bitorder="little")  # [...,32,8]
    nibbles = blocks[..., 48:].reshape(rows, -1, 4, 32)
    low = np.stack([nibbles & 15, nibbles >> 4], 3).reshape(rows, -1, 8, 32)
    codes = (low | bits.swapaxes(-1, -2) << 4).astype(np.int8).reshape(rows, -1, 32)
    minima = -_half(blocks, 2)
    return Groups(
        codes, False, 0, _half(blocks, 0), s.reshape(rows, -1), minima, m.reshape(rows, -1)
    )


def _q6_k(data: Bytes) -> Groups:
    blocks = _blocks(data, 210)
    rows = len(data)
    nibbles = blocks[..., :128].reshape(rows, -1, 2, 64)
    low = np.stack([nibbles & 15, nibbles >> 4], 3).reshape(rows, -1, 2, 4, 32)
    pairs = blocks[..., 128:192].reshape(rows, -1, 2, 1, 32)
    high = pairs >> np.array([0, 2, 4, 6], np.uint8)[:, None] & 3
    codes = (low | high << 4).astype(np.int8).reshape(rows, -1, 16)
    s = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).reshape(rows, -1)
    return Groups(codes, False, 32, _half(blocks, 208), s)


_SPLIT = {
    Q.Q8_0: _q8_0,
    Q.Q4_0: _q4_0,
    Q.Q4_1: _q4_1,
    Q.Q5_0: _q5_0,
    Q.Q5_1: _q5_1,
    Q.Q4_K: _q4_k,
    Q.Q5_K: _q5_k,
    Q.Q6_K: _q6_k,
}
