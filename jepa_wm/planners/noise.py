"""Coloured noise: Gaussian sequences whose steps hang together, each step of unit variance."""

import torch
from torch import Tensor


def coloured(white: Tensor, beta: float) -> Tensor:
    """Give white noise the power spectrum f^-beta along its last axis.

    y = irfft(s rfft(x)) / sigma with s_k = f_k^(-beta/2), s_0 = s_1, and sigma^2 the mean of s^2
    over all n frequencies: every step is exactly N(0, 1), whatever n and beta, and the mean of a
    sequence (k = 0) is as free as its slowest wave.

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
    power = (
        torch.fft.rfftfreq(n, dtype=torch.float64, device=white.device).clamp_min(1 / n).pow(-beta)
    )  # s^2
    twice = torch.full_like(power, 2.0)  # a wave is two frequencies, +f and -f
    twice[0] = 1.0
    if n % 2 == 0:
        twice[-1] = 1.0
    scale = (power * n / (twice * power).sum()).sqrt().to(white.dtype)
    return torch.fft.irfft(torch.fft.rfft(white) * scale, n=n)
