"""Numbers from counters: normal, independent of company and of what was drawn before."""

import math

import pytest
import torch

from jepa_wm.control.streams import CounterStreams, _squares
from jepa_wm.runtime import stream_seed

CPU = torch.device("cpu")


def streams(*seeds):
    return CounterStreams([stream_seed(seed) for seed in seeds], CPU)


def test_the_hash_is_squares64_as_published():
    """In Python's own integers: five rounds, halves exchanged between them."""

    def published(counter, key, mask=(1 << 64) - 1):
        x = y = counter * key & mask
        z = y + key & mask
        for add in (y, z, y):
            x = x * x + add & mask
            x = x >> 32 | x << 32 & mask
        t = x = x * x + z & mask
        x = x >> 32 | x << 32 & mask
        return t ^ (x * x + y & mask) >> 32

    counters, keys = [0, 1, 12345, 1 << 40], [0x548C9DECBCE65297, 0xC58D7E3F2A9B6C1D]
    signed = [key - (1 << 64) if key >> 63 else key for key in keys]
    found = _squares(torch.tensor(counters)[None], torch.tensor(signed)[:, None])
    for row, key in zip(found.tolist(), keys, strict=True):
        assert [value & (1 << 64) - 1 for value in row] == [published(c, key) for c in counters]


def test_normal_numbers_have_the_moments_of_the_normal_distribution():
    x = streams(*range(20)).normal(50_000).double()
    n = x.numel()
    for power, wanted, spread in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        error = x.pow(power).mean().item() - wanted
        assert abs(error) < 5 * math.sqrt(spread / n), (power, error)
    tail = (x.abs() > 3).double().mean().item()
    assert tail == pytest.approx(0.0027, rel=0.1)
    assert x.isfinite().all() and x.abs().max() < 6


def test_neither_rows_nor_calls_nor_neighbours_are_correlated():
    source = streams(*range(40))
    first, second = source.normal(5000).double(), source.normal(5000).double()
    limit = 5 / math.sqrt(5000)
    assert (first @ first.T / 5000 - torch.eye(40)).abs().max() < 2 * limit
    assert (first * second).mean(1).abs().max() < limit
    assert (first[:, 1:] * first[:, :-1]).mean(1).abs().max() < limit
    assert (first.square()[:, 1:] - 1).mul(first.square()[:, :-1] - 1).mean(1).abs().max() < 0.2


def test_a_row_draws_the_same_alone_and_in_company_and_call_by_call():
    together, alone = streams(3, 4, 5), streams(4)
    for shape in ((7, 2, 3), (1,), (300, 5, 10)):
        assert torch.equal(together.normal(*shape)[1], alone.normal(*shape)[0])
    longer, shorter = streams(4).normal(10), streams(4).normal(4)
    assert torch.equal(longer[:, :4], shorter), "a number depends on its place alone"
    assert not torch.equal(streams(4).normal(10), streams(5).normal(10))


def test_exponential_numbers_have_mean_and_spread_one():
    x = streams(*range(20)).exponential(20_000)
    assert x.mean().item() == pytest.approx(1, abs=0.01)
    assert x.std().item() == pytest.approx(1, abs=0.02)
    assert (x >= 0).all() and x.isfinite().all()


@pytest.mark.gpu
def test_cuda_draws_the_same_numbers():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    device = torch.device("cuda")
    here, there = streams(1, 2), CounterStreams(streams(1, 2).seeds, device)
    together = there.normal(1 << 20)
    torch.testing.assert_close(together.cpu(), here.normal(1 << 20))
    alone = CounterStreams(streams(2).seeds, device).normal(1 << 20)
    assert torch.equal(alone[0], together[1])
