"""The codec between solver blocks and env actions."""

import numpy as np
import pytest
import torch

from jepa_wm.control.actions import ActionCodec
from jepa_wm.errors import ConfigError

STATS = {"mean": [0.1, -0.2], "std": [0.5, 0.25], "low": [-1.0, -1.0], "high": [1.0, 1.0]}


def codec(**changes):
    return ActionCodec(**{"block": 5, **STATS, **changes})


def test_zero_is_the_mean_action_and_one_a_std_above():
    one = codec(block=1)
    torch.testing.assert_close(one.decode([[0.0, 0.0]]), torch.tensor([[0.1, -0.2]]))
    torch.testing.assert_close(one.encode([[0.6, 0.05]]), torch.tensor([[1.0, 1.0]]))


def test_a_block_is_time_major():
    steps = np.arange(10.0).reshape(5, 2)  # (x, y) of five steps
    blocks = codec(mean=[0, 0], std=[1, 1], low=[-99, -99], high=[99, 99]).encode(steps)
    assert blocks.tolist() == [list(range(10))]


@pytest.mark.parametrize("shape", [(5, 2), (3, 10, 2), (2, 3, 15, 2)])
def test_decode_undoes_encode(shape):
    generator = torch.Generator().manual_seed(0)
    actions = torch.rand(shape, generator=generator) * 2 - 1
    blocks = codec().encode(actions)
    assert blocks.shape == (*shape[:-2], shape[-2] // 5, 10)
    torch.testing.assert_close(codec().decode(blocks), actions)


def test_statistics_of_an_action_and_of_a_tiled_block_are_the_same():
    tiled = codec(mean=STATS["mean"] * 5, std=np.tile(STATS["std"], 5))
    actions = torch.rand(10, 2)
    assert torch.equal(tiled.encode(actions), codec().encode(actions))
    assert tiled.mean.shape == (2,)


@pytest.mark.parametrize("length", [1, 3, 4, 9, 20])
def test_statistics_of_any_other_length_are_refused(length):
    with pytest.raises(
        ConfigError, match=f"mean has {length} numbers; the env action has 2, .* 10"
    ):
        codec(mean=[0.0] * length)
    with pytest.raises(ConfigError, match=f"std has {length} numbers"):
        codec(std=[1.0] * length)


def test_a_block_statistic_that_changes_with_time_is_refused():
    with pytest.raises(ConfigError, match="differs between the steps"):
        codec(std=[0.5, 0.25] * 4 + [0.5, 0.3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"std": [0.0, 1.0]}, "std must be finite and > 0"),
        ({"std": [float("nan"), 1.0]}, "std must be finite and > 0"),
        ({"mean": [float("inf"), 1.0]}, "mean is not finite"),
        ({"low": [2.0, -1.0]}, "low .* must not exceed high"),
        ({"high": [1.0]}, "low has 2 numbers, high 1"),
        ({"block": 0}, "block must be a whole number >= 1, got 0"),
        ({"block": 2.0}, "block must be a whole number"),
        ({"std": [0.0, 1.0], "low": [2.0, 0.0]}, "std .*; low"),
    ],
)
def test_impossible_codecs_are_refused_with_every_fault(changes, message):
    with pytest.raises(ConfigError, match=message):
        codec(**changes)


def test_equal_first_actions_scale_equally_whatever_follows():
    one, other = torch.zeros(5, 2), torch.full((5, 2), 9.0)
    one[0] = other[0] = torch.tensor([0.3, -0.7])
    assert torch.equal(codec().encode(one)[0, :2], codec().encode(other)[0, :2])


def test_numpy_lists_and_tensors_of_any_float_type_are_the_same():
    actions = [[0.5, 0.25], [0.125, -0.5]]
    expected = codec(block=2).encode(torch.tensor(actions))
    for given in (actions, np.array(actions), torch.tensor(actions).double()):
        assert torch.equal(codec(block=2).encode(given), expected)
        assert codec(block=2).encode(given).dtype == torch.float32


def test_wrong_shapes_are_refused_with_both_shapes():
    with pytest.raises(ValueError, match=r"\[..., n\*5, 2\], got \[5, 3\]"):
        codec().encode(np.zeros((5, 3)))
    with pytest.raises(ValueError, match=r"got \[7, 2\]"):
        codec().encode(np.zeros((7, 2)))
    with pytest.raises(ValueError, match=r"\[..., n, 10\] .*, got \[1, 9\]"):
        codec().decode(np.zeros((1, 9)))


def test_decoded_actions_stay_in_the_box_in_float32():
    low, high = np.float32([-0.1, -0.3]), np.float32([0.7, 0.9])
    box = codec(low=low, high=high)
    actions = box.decode(torch.randn(1000, 1, 10) * 100)
    assert actions.dtype == torch.float32
    assert (actions.numpy() >= low).all()
    assert (actions.numpy() <= high).all()
    assert (actions.numpy() == high).any()


def test_bounds_are_the_box_seen_from_solver_space():
    low, high = codec().bounds()
    assert low.shape == high.shape == (10,)
    torch.testing.assert_close(low, torch.tensor([-2.2, -3.2] * 5))
    torch.testing.assert_close(high, torch.tensor([1.8, 4.8] * 5))
    torch.testing.assert_close(codec().decode(low[None]), torch.full((5, 2), -1.0))
    open_box = codec(low=[-np.inf, -1], high=[np.inf, 1]).bounds()
    assert open_box[1][0] == torch.inf


def test_the_codec_owns_its_numbers():
    mean = np.array([0.1, -0.2], np.float32)
    held = codec(mean=mean)
    mean[:] = 9
    torch.testing.assert_close(held.mean, torch.tensor([0.1, -0.2]))


def test_what_lies_in_the_dead_zone_is_executed_as_nothing():
    held = codec(block=1, mean=[0, 0], std=[1, 1], dead_zone=[0, 0.25])
    actions = held.decode([[0.01, 0.249], [0.01, -0.25], [-0.01, -0.1]])
    torch.testing.assert_close(actions, torch.tensor([[0.01, 0], [0.01, -0.25], [-0.01, 0]]))
    for wrong in ([0.25], [0, -1]):
        with pytest.raises(ConfigError, match=r"dead_zone must be 2 numbers >= 0, got"):
            codec(dead_zone=wrong)
