"""Byte layouts of ggml's K types: how scales, minima and codes of a super-block of 256 lie.

Source: ggml src/ggml-common.h (``block_q4_K``, ``block_q5_K``, ``block_q6_K``).
"""

import numpy as np


def pack_shifted(
    d: np.ndarray,
    dmin: np.ndarray,
    scales: np.ndarray,
    mins: np.ndarray,
    codes: np.ndarray,
    has_fifth_bit: bool,
) -> np.ndarray:
    """Return the bytes: d, dmin, 12 of scales and mins, [32 of fifth bits,] 128 of nibbles."""
    s, m, q = (part.astype(np.uint8) for part in (scales, mins, codes))
    # groups 0-3 keep their 6 bits together; 4-7 lend their two high bits to bytes of 0-3
    first = s[:, :4] | s[:, 4:] >> 4 << 6
    second = m[:, :4] | m[:, 4:] >> 4 << 6
    third = s[:, 4:] & 15 | m[:, 4:] << 4
    parts = [_bytes(d), _bytes(dmin), first, second, third]
    if has_fifth_bit:  # bit g of byte k belongs to value k of group g
        parts.append(np.packbits(q >> 4, axis=1, bitorder="little").reshape(-1, 32))
    pairs = (q & 15).reshape(-1, 4, 2, 32)
    return np.concatenate([*parts, (pairs[:, :, 0] | pairs[:, :, 1] << 4).reshape(-1, 128)], -1)


def pack_q6(d: np.ndarray, scales: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return the bytes: 128 of nibbles, 64 of high bit pairs, 16 scales, d."""
    q = (codes + 32).astype(np.uint8)
    nibbles = (q & 15).reshape(-1, 2, 2, 64)  # halves of 128 values
    low = nibbles[:, :, 0] | nibbles[:, :, 1] << 4
    pairs = (q >> 4).reshape(-1, 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    high = np.bitwise_or.reduce(pairs, axis=2)
    signed = scales.astype(np.int8).view(np.uint8)
    return np.concatenate([low.reshape(-1, 128), high.reshape(-1, 64), signed, _bytes(d)], -1)


def _bytes(halfs: np.ndarray) -> np.ndarray:
    return halfs.astype("<f2")[:, None].view(np.uint8)
