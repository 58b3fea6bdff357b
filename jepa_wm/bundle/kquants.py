"""Encoders for ggml's K types (q4_k, q5_k, q6_k), which ``gguf.quants`` can only decode.

A super-block is 256 values of a row. q4_k and q5_k cut it into 8 groups of 32 and store
``x = d * s * q - dmin * m`` (s, m: 6 bits); q6_k cuts it into 16 groups of 16 and stores
``x = d * s * q`` (s: 8 bits, signed). d and dmin are halfs. Codes and scales are searched for the
least squared error: candidate grids per group, each fitted by least squares; then the halfs and
small integers that carry the fitted scales best; then rounds of refitting. Values that already lie
on such a grid are found again.

Source: ggml src/ggml-quants.c (``dequantize_row_q4_K``, ``_q5_K``, ``_q6_K``) and ggml-common.h for
the layouts.
"""

from collections.abc import Callable
from itertools import product

import numpy as np
from gguf.constants import GGMLQuantizationType

from jepa_wm.bundle.klayout import pack_q6, pack_shifted

Q = GGMLQuantizationType
K_TYPES = (Q.Q4_K, Q.Q5_K, Q.Q6_K)

Fit = tuple[np.ndarray, ...]
"""Halfs a super-block [n], small integers a group [n, groups], codes [n, groups, values]."""

_BLOCK = 256
_CHUNK = 512  # super-blocks at a time: the working arrays stay in the cache
_STRETCH = sorted((at / 10 for at in range(-10, 10)), key=abs)  # levels more than the range has
_OFFSETS = (0, 1, 2, -1)  # codes a group may be lifted by, so that its minimum fits dmin better
_MAX_ROUNDS = 3
_TINY = np.float32(1e-30)
_NOISE = np.float32(1e-11)  # squared rounding errors of float32, relative to the sum of squares
_EXACT = np.float32(1e-9)  # of a fit whose only errors are those; a chance hit on few values is not
_ANY = np.float32(1)  # of a fit no worse than none


def encode_k(rows: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    """Return rows in a K type.

    Args:
        rows: float32 [..., columns], finite and within the range of halfs; columns a multiple of
            256.
        kind: One of ``K_TYPES``.

    Returns:
        uint8 [..., bytes of a row].
    """
    blocks = rows.reshape(-1, _BLOCK)
    chunks = [_encode(blocks[at : at + _CHUNK], kind) for at in range(0, len(blocks), _CHUNK)]
    return np.concatenate(chunks).reshape(*rows.shape[:-1], -1)


def _encode(blocks: np.ndarray, kind: GGMLQuantizationType) -> np.ndarray:
    if kind == Q.Q6_K:
        return pack_q6(*_fit_signed(blocks.reshape(-1, 16, 16)))
    top = 15 if kind == Q.Q4_K else 31
    d, dmin, scales, mins, codes = _fit_shifted(blocks.reshape(-1, 8, 32), top)
    return pack_shifted(d, dmin, scales, mins, codes, has_fifth_bit=top == 31)


# x = step * q - low, q in 0..top: groups [n, 8, 32]


def _fit_shifted(x: np.ndarray, top: int) -> Fit:
    """Return d, dmin [n], scales, mins [n, 8] and codes [n, 8, 32] of groups [n, 8, 32]."""
    codes, step = _search_shifted(x, top)
    # a minimum well above 0 can move to make up for the scale; one at 0 cannot
    is_free = step * codes.mean(-1) - x.mean(-1) > step
    weights = np.where(is_free, codes.var(-1), np.square(codes).mean(-1))
    d, scales = _share(step[None], weights, 63)
    step = d[:, None] * scales
    low = step * codes.mean(-1) - x.mean(-1)
    low = np.maximum(low, 0)
    offsets = np.array(_OFFSETS, np.float32)[:, None, None]
    lifted = low + step * offsets
    least, most = codes.min(-1) + offsets, codes.max(-1) + offsets
    lifted = np.where((lifted >= 0) & (least >= 0) & (most <= top), lifted, low)
    dmin, mins = _share(lifted, np.ones_like(step), 63)
    codes = _codes_shifted(x, d[:, None] * scales, dmin[:, None] * mins, top)
    best = d, dmin, scales, mins, codes
    return _improve(x, best, lambda fit: _refit_shifted(x, fit, top), _value_shifted)


def _search_shifted(x: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes and float steps [n, 8] of least squared error, each group on its own."""
    lowest = x.min(-1)
    floor = np.minimum(lowest, 0)
    span = np.maximum(x.max(-1) - floor, _TINY)
    gap = _least_gap(np.sort(x, -1), span, top)
    trials = [((top + more) / span, -floor * (top + more) / span, _ANY) for more in _STRETCH]
    # values that lie on a grid: its step is their least gap
    trials.append((1 / gap, np.ceil(np.maximum(lowest, 0) / gap) - lowest / gap, _EXACT))
    best = np.zeros(x.shape, np.float32)
    power = error = np.square(x).sum(-1)
    for rate, start, limit in trials:
        codes = x * rate[..., None]
        codes += start[..., None]
        np.rint(codes, out=codes)
        np.clip(codes, 0, top, out=codes)
        fitted, low = _line(x, codes)
        rest = codes * fitted[..., None]
        rest -= low[..., None]
        rest -= x
        found = np.einsum("ngk,ngk->ng", rest, rest)
        better = (found < error - _NOISE * power) & (found <= limit * power)
        error = np.where(better, found, error)
        np.copyto(best, codes, where=better[..., None])
    return best, _line(x.astype(np.float64), best.astype(np.float64))[0].astype(np.float32)


def _line(x: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return step and low >= 0 that minimise sum (step * codes - low - x)^2 of each group."""
    n = x.shape[-1]
    mean_q, mean_x = codes.mean(-1), x.mean(-1)
    qq, qx = np.einsum("ngk,ngk->ng", codes, codes), np.einsum("ngk,ngk->ng", codes, x)
    spread = qq - n * mean_q**2
    step = (qx - n * mean_q * mean_x) / np.where(spread > 0.5, spread, np.inf)
    low = step * mean_q - mean_x
    step = np.where(low > 0, step, qx / np.maximum(qq, 1))
    return np.maximum(step, 0), np.maximum(low, 0)


def _codes_shifted(x: np.ndarray, step: np.ndarray, low: np.ndarray, top: int) -> np.ndarray:
    rate = 1 / np.where(step > 0, step, np.inf)
    return np.clip(np.rint((x + low[..., None]) * rate[..., None]), 0, top)


def _refit_shifted(x: np.ndarray, fit: Fit, top: int) -> Fit:
    """Return the fit with small integers, then halfs, then codes each renewed for the others."""
    d, dmin, scales, mins, codes = fit
    step, low = _line(x, codes)
    scales = np.clip(np.rint(step / _safe(d)[:, None]), 0, 63)
    low = d[:, None] * scales * codes.mean(-1) - x.mean(-1)
    mins = np.clip(np.rint(low / _safe(dmin)[:, None]), 0, 63)
    # two unknowns a super-block: x = d * a - dmin * b
    a, b = scales[..., None] * codes, np.broadcast_to(mins[..., None], x.shape)
    aa, ab, bb, ax, bx = (
        np.einsum("ngk,ngk->n", left, right, dtype=np.float64)
        for left, right in ((a, a), (a, b), (b, b), (a, x), (b, x))
    )
    det = aa * bb - ab**2
    is_sound = det > 1e-6 * aa * bb
    det = np.where(is_sound, det, 1)
    d = np.where(is_sound, _half((ax * bb - bx * ab) / det), d)
    dmin = np.where(is_sound, _half((ax * ab - bx * aa) / det), dmin)
    d, dmin = np.maximum(d, 0), np.maximum(dmin, 0)
    codes = _codes_shifted(x, d[:, None] * scales, dmin[:, None] * mins, top)
    return d, dmin, scales, mins, codes


def _value_shifted(fit: Fit) -> np.ndarray:
    d, dmin, scales, mins, codes = fit
    return (d[:, None] * scales)[..., None] * codes - (dmin[:, None] * mins)[..., None]


# x = step * q, q in -32..31: groups [n, 16, 16]


def _fit_signed(x: np.ndarray) -> Fit:
    """Return d [n], scales [n, 16] and codes [n, 16, 16] of groups [n, 16, 16]."""
    codes, step = _search_signed(x)
    d, scales = _share(step[None], np.square(codes).sum(-1), 128)
    best = d, scales, _codes_signed(x, d[:, None] * scales)
    return _improve(x, best, lambda fit: _refit_signed(x, fit), _value_signed)


def _search_signed(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes and float steps [n, 16] of least squared error, each group on its own."""
    at = np.abs(x).argmax(-1)[..., None]
    peak = np.take_along_axis(x, at, -1)[..., 0]
    sign = np.where(peak > 0, np.float32(-1), np.float32(1))  # the peak takes the code -32
    span = np.maximum(np.abs(peak), _TINY)
    distances = np.sort(np.abs(x), -1)
    gap = _least_gap(np.concatenate([0 * distances[..., :1], distances], -1), span, 32)
    trials = [(sign * (32 + more) / span, _ANY) for more in _STRETCH]
    trials.append((sign / gap, _EXACT))
    best = np.zeros(x.shape, np.float32)
    power = error = np.square(x).sum(-1)
    for rate, limit in trials:
        codes = x * rate[..., None]
        np.rint(codes, out=codes)
        np.clip(codes, -32, 31, out=codes)
        fitted = _slope(x, codes)
        rest = codes * fitted[..., None]
        rest -= x
        found = np.einsum("ngk,ngk->ng", rest, rest)
        better = (found < error - _NOISE * power) & (found <= limit * power)
        error = np.where(better, found, error)
        np.copyto(best, codes, where=better[..., None])
    return best, _slope(x.astype(np.float64), best.astype(np.float64)).astype(np.float32)


def _slope(x: np.ndarray, codes: np.ndarray) -> np.ndarray:
    qq, qx = np.einsum("ngk,ngk->ng", codes, codes), np.einsum("ngk,ngk->ng", codes, x)
    return qx / np.maximum(qq, 1)


def _codes_signed(x: np.ndarray, step: np.ndarray) -> np.ndarray:
    rate = 1 / np.where(step != 0, step, np.inf)
    return np.clip(np.rint(x * rate[..., None]), -32, 31)


def _refit_signed(x: np.ndarray, fit: Fit) -> Fit:
    d, scales, codes = fit
    scales = np.clip(np.rint(_slope(x, codes) / _safe(d)[:, None]), -128, 127)
    a = scales[..., None] * codes
    aa = np.einsum("ngk,ngk->n", a, a, dtype=np.float64)
    d = _half(np.einsum("ngk,ngk->n", a, x, dtype=np.float64) / np.maximum(aa, 1))
    return d, scales, _codes_signed(x, d[:, None] * scales)


def _value_signed(fit: Fit) -> np.ndarray:
    d, scales, codes = fit
    return (d[:, None] * scales)[..., None] * codes


# both


def _share(options: np.ndarray, weights: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Write a step of each group as unit * integer: a half [n] and integers [n, groups].

    The largest step gets an integer from top/2 to top, whichever loses least: the sum of weights *
    (step - unit * integer)^2. Integers are 0..63, or -128..127 for ``top`` 128.

    Args:
        options: [options, n, groups], the steps a group could take; the first is the plain one.
        weights: [n, groups].
        top: 63 or 128.
    """
    lowest, highest = (-128, 127) if top == 128 else (0, top)
    at = np.abs(options[0]).argmax(-1)
    peaks = options[:, np.arange(len(at)), at]  # [options, n]

    def rounded(unit: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        near = options * (1 / _safe(unit))[:, None]
        np.rint(near, out=near)
        np.clip(near, lowest, highest, out=near)
        return near, np.square(near * unit[:, None] - options)

    unit = np.zeros_like(peaks[0])
    error = (weights * np.square(options).min(0)).sum(-1)
    counts = [*range(highest, top // 2 - 1, -1)]
    counts += [-k for k in range(top, top // 2 - 1, -1)] if lowest < 0 else []
    for k, peak in product(counts, peaks):
        half = _half(peak / k)
        found = (weights * rounded(half)[1].min(0)).sum(-1)
        better = found < error
        error = np.where(better, found, error)
        unit = np.where(better, half, unit)
    near, loss = rounded(unit)
    return unit, np.take_along_axis(near, loss.argmin(0)[None], 0)[0]


def _least_gap(ordered: np.ndarray, span: np.ndarray, top: int) -> np.ndarray:
    """Return the least difference of sorted values that a grid of ``top`` steps could have."""
    gaps = np.diff(ordered)
    gaps[gaps < span[..., None] / (2 * top + 1)] = np.inf
    return np.minimum(gaps.min(-1), span)


def _half(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float16).astype(np.float32)


def _safe(values: np.ndarray) -> np.ndarray:
    return np.where(values == 0, np.float32(np.inf), values)


def _improve(
    x: np.ndarray, best: Fit, refit: Callable[[Fit], Fit], value: Callable[[Fit], np.ndarray]
) -> Fit:
    """Refit while that helps; a super-block keeps the fit of least squared error it has seen."""
    error = np.square(value(best) - x).sum((1, 2))
    for _ in range(_MAX_ROUNDS):
        trial = refit(best)
        found = np.square(value(trial) - x).sum((1, 2))
        better = found < error
        if not better.any():
            break
        error = np.where(better, found, error)
        best = tuple(
            np.where(better.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
            for new, old in zip(trial, best, strict=True)
        )
    return best
