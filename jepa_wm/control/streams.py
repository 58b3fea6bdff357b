"""Where planners get random numbers: one stream a row, so that no row's plan depends on another.

On a CPU a stream is PyTorch's generator. ``CounterStreams`` makes the numbers on the device, each
from its own place in its row's stream: a number is a hash of (row's key, call, index), so it
depends neither on the rows beside it nor on what was drawn before, costs no copy from the host, and
is the same in a recorded CUDA graph. Integer arithmetic makes the bits the same on every device;
the logarithm and cosine behind them may differ in the last place.

Source: Widynski, "Squares: A Fast Counter-Based RNG", arXiv 2004.06278 (five rounds, 64 bits);
normals by Box and Muller 1958.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_UNIT = 2.0**-24  # floats have 24 bits of fraction: no uniform number rounds up to 1
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2^64 over the golden ratio: spreads keys and calls


def draw_normal(streams: "Streams", shape: Sequence[int], like: Tensor) -> Tensor:
    """Draw standard normal numbers, float32 [B,*shape], on the device of ``like``.

    Generators draw on the CPU, row by row; nothing waits for the device.
    """
    if isinstance(streams, CounterStreams):
        return streams.normal(*shape)
    rows = _rows(streams, shape, like)
    for row, generator in zip(rows, streams, strict=True):
        torch.randn(row.shape, generator=generator, out=row)
    return rows.to(like.device, non_blocking=True)


def draw_exponential(streams: "Streams", shape: Sequence[int], like: Tensor) -> Tensor:
    """Draw exponentially distributed numbers of mean 1, as ``draw_normal``."""
    if isinstance(streams, CounterStreams):
        return streams.exponential(*shape)
    rows = _rows(streams, shape, like)
    for row, generator in zip(rows, streams, strict=True):
        row.exponential_(generator=generator)
    return rows.to(like.device, non_blocking=True)


def draw_seeds(streams: "Streams") -> list[int]:
    """Draw a seed below 2^31 for each row; waits for the device."""
    if isinstance(streams, CounterStreams):
        high, _ = streams._bits((1,))
        return [int(value) for value in high[:, 0].tolist()]
    return [int(torch.randint(2**31 - 1, (), generator=one)) for one in streams]


def _rows(streams: Sequence[torch.Generator], shape: Sequence[int], like: Tensor) -> Tensor:
    return torch.empty(len(streams), *shape, pin_memory=like.device.type == "cuda")


class CounterStreams:
    """One stream a row; every call draws from a new part of each.

    Args:
        seeds: One a row, any 63-bit integers, e.g. of ``stream_seed``.
        device: Where numbers are made.
    """

    def __init__(self, seeds: Sequence[int] | Tensor, device: torch.device) -> None:
        given = torch.as_tensor(seeds, dtype=torch.int64)
        if device.type == "cuda" and given.device.type == "cpu":
            given = given.pin_memory()  # a pinned copy does not make the host wait
        self.seeds = given.to(device, non_blocking=True)  # [B]
        self.calls = 0

    def __len__(self) -> int:
        return len(self.seeds)

    def normal(self, *shape: int) -> Tensor:
        """Draw standard normal numbers, float32 [B,*shape]."""
        high, low = self._bits(shape)
        radius = (-2 * ((high + 1) * _UNIT).log()).sqrt()
        return (radius * (2 * torch.pi * _UNIT * low).cos()).view(-1, *shape)

    def exponential(self, *shape: int) -> Tensor:
        """Draw exponentially distributed numbers of mean 1, float32 [B,*shape]."""
        high, _ = self._bits(shape)
        return -((high + 1) * _UNIT).log().view(-1, *shape)

    def _bits(self, shape: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return two integers of 24 bits a number as float32, [B,n] each."""
        count = torch.Size(shape).numel()
        index = torch.arange(count, device=self.seeds.device) + (self.calls << 32)
        self.calls += 1
        key = (self.seeds * 2 + 1) * _ODD  # odd, with its digits mixed: products wrap modulo 2^64
        bits = _squares(index[None], (key ^ key >> 29)[:, None] | 1)
        return ((bits >> 40) & 0xFFFFFF).float(), ((bits >> 8) & 0xFFFFFF).float()


def _squares(counter: Tensor, key: Tensor) -> Tensor:
    """Hash int64 counters [1,n] with odd keys [B,1] to 64 random bits [B,n]."""
    x = counter * key
    y, z = x, x + key
    for add in (y, z, y):
        x = _swap(x * x + add)
    t = x * x + z
    x = _swap(t)
    return t ^ ((x * x + y) >> 32 & _LOW)


def _swap(x: Tensor) -> Tensor:
    """Exchange the halves of 64-bit words; int64 shifts keep the sign, the mask drops it."""
    return (x >> 32 & _LOW) | x << 32


Streams = Sequence[torch.Generator] | CounterStreams
"""One stream of random numbers a row."""
