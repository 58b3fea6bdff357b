"""Coloured noise: Gaussian sequences whose steps hang together, each step of unit variance."""

import math
from functools import lru_cache

import torch
from torch import Tensor


def coloured(white: Tensor, beta: float) -> Tensor:
    """Give white noise the power spectrum f^-beta along its last axis.

    y = irfft(s rfft(x)) / sigma with s_k = f_k^(-beta/2), s_0 = s_1, and sigma^2 the mean of s^2
    over all n frequencies: every step is exactly N(0, 1), whatever n and beta, and the mean of a
    sequence (k = 0) is as free as its slowest wave.

    It is computed as the circular filter that this is, y_i = sum_d h_d x_(i-d), lag by lag. Every
    operation is one rounding of one number, in a fixed order, so the bits depend neither on threads
    nor on the rows beside (an FFT's do). The filter's numbers are arguments of the kernels: nothing
    is copied to a device and no library plans anything, so that a CUDA graph can hold it.

    Args:
        white: Standard normal noise, float [..,n].
        beta: 0 leaves the noise white; higher is smoother.

    Returns:
        Coloured noise, float [..,n].

    Source: Pinneri et al. 2020 (iCEM); Timmer and Koenig 1995. The ``colorednoise`` package they
        use leaves k = 0 out of sigma, so its steps are wider than 1, up to a factor 1.22.
    """
    n = white.shape[-1]
    if beta == 0 or n == 1:
        return white
    taps = _taps(n, float(beta))
    round_twice = torch.cat([white, white], -1)
    noise = white * taps[0]
    for lag in range(1, n // 2 + 1):
        ahead = round_twice[..., lag : lag + n]
        # h_d = h_(n-d); the lag n/2 is its own partner
        both = ahead if 2 * lag == n else ahead + round_twice[..., n - lag : 2 * n - lag]
        noise = noise + both * taps[lag]  # two roundings: a fused one is not the same everywhere
    return noise


@lru_cache(maxsize=32)
def _taps(n: int, beta: float) -> tuple[float, ...]:
    """Return the filter's numbers h_0 .. h_(n/2) in double precision."""
    power = [max(min(k, n - k), 1) ** -beta for k in range(n)]  # s^2; the unit of f drops out
    scale = [math.sqrt(one * n / math.fsum(power)) for one in power]
    return tuple(
        math.fsum(s * math.cos(2 * math.pi * (k * lag % n) / n) for k, s in enumerate(scale)) / n
        for lag in range(n // 2 + 1)
    )
