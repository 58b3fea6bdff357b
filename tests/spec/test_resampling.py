"""Tables and angles: the four resampling rules against torch, RoPE lane by lane."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from jepa_wm.spec import positions
from jepa_wm.spec.ops import gelu_erf, gelu_tanh, rotate, silu

GRIDS = [(4, 4), (2, 8), (9, 5), (3, 2), (1, 1), (7, 16)]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("rule", ["size", "offset0.1", "antialias"])
def test_a_table_is_resampled_as_torch_does(rule, grid):
    table = np.random.default_rng(0).normal(size=(16, 3))
    square = torch.from_numpy(table).reshape(1, 4, 4, 3).permute(0, 3, 1, 2)
    how = {"size": grid, "antialias": rule == "antialias"}
    if rule == "offset0.1":
        how = {"scale_factor": tuple((n + 0.1) / 4 for n in grid)}
    wanted = F.interpolate(square, mode="bicubic", align_corners=False, **how)
    found = positions.interpolate_2d(table, *grid, rule)
    if grid == (4, 4):
        assert np.array_equal(found, table)
    else:
        assert np.abs(found - wanted[0].flatten(1).T.numpy()).max() < 2e-6


def test_the_rules_differ_also_where_the_grid_grows():
    table = np.random.default_rng(0).normal(size=(16, 3))
    one, two, three = (
        positions.interpolate_2d(table, 6, 6, rule) for rule in ("size", "offset0.1", "antialias")
    )
    assert min(np.abs(a - b).max() for a, b in ((one, two), (one, three), (two, three))) > 1e-2


@pytest.mark.parametrize("wanted", [(3, 5, 4), (1, 2, 2), (2, 3, 3), (4, 3, 7)])
def test_a_clips_table_is_resampled_with_the_quotient_of_sizes(wanted):
    stored = (2, 3, 3)
    table = np.random.default_rng(0).normal(size=(18, 2))
    cube = torch.from_numpy(table).reshape(1, *stored, 2).permute(0, 4, 1, 2, 3)
    scale = tuple(n / N for n, N in zip(wanted, stored, strict=True))
    reference = F.interpolate(cube, scale_factor=scale, mode="trilinear")
    found = positions.interpolate_3d(table, stored, wanted)
    assert np.abs(found - reference[0].flatten(1).T.numpy()).max() < 1e-6


def test_a_clips_table_keeps_its_length_where_the_product_falls_short():
    """floor(14 * (61 / 14)) is 60 in floating point, which upstream cannot run."""
    assert math.floor(14 * (61 / 14)) == 60
    table = np.random.default_rng(0).normal(size=(14, 2))
    assert positions.interpolate_3d(table, (14, 1, 1), (61, 1, 1)).shape == (61, 2)


@pytest.mark.parametrize("head_dim", [64, 80, 32, 24, 22, 26, 12, 6])
@pytest.mark.parametrize("layout", ["tiled", "interleaved"])
def test_every_lane_has_the_angle_of_its_axis_and_frequency(head_dim, layout):
    segment = {64: 20, 80: 26, 32: 10, 24: 8, 22: 6, 26: 8, 12: 4, 6: 2}[head_dim]
    half, place = segment // 2, np.array([[3.0, 5.0, 7.5]])
    angles = positions.rope_angles(place, head_dim, layout, 10000.0)[0]
    for lane in range(head_dim):
        axis, j = divmod(lane, segment)
        if axis > 2:
            assert angles[lane] == 0
            continue
        k = j - half if layout == "tiled" and j >= half else j
        k = j // 2 if layout == "interleaved" else k
        assert angles[lane] == pytest.approx(place[0, axis] / 10000 ** (k / half)), lane


def test_interleaved_angles_rotate_and_tiled_ones_do_not():
    x = np.random.default_rng(0).normal(size=(1, 32))
    place = np.array([[2.0, 3.0, 1.0]])
    norms = {
        layout: np.linalg.norm(rotate(x, positions.rope_angles(place, 32, layout, 1e4)))
        for layout in ("tiled", "interleaved")
    }
    assert norms["interleaved"] == pytest.approx(np.linalg.norm(x))
    assert abs(norms["tiled"] - np.linalg.norm(x)) > 1e-2


def test_ids_are_decoded_slot_by_slot_and_row_by_row():
    found = positions.decode_ids(np.array([0, 4, 5, 14, 33]), 2, 5)
    assert found.tolist() == [[0, 0, 0], [0, 0, 4], [0, 1, 0], [1, 0, 4], [3, 0, 3]]


def test_rescaled_positions_end_where_the_reference_grid_ends():
    found = positions.rescale_to(np.array([[9.0, 23.0, 4.0]]), 24, 5, 16)
    assert found.tolist() == [[9.0, 15.0, 15.0]]
    assert positions.rescale_to(np.array([[1.0, 0.0, 2.0]]), 1, 3, 16).tolist() == [[1, 0, 15]]


def test_activations_are_torchs():
    x = np.linspace(-60, 60, 1001)
    t = torch.from_numpy(x)
    for ours, theirs in (
        (gelu_erf, F.gelu),
        (gelu_tanh, lambda v: F.gelu(v, approximate="tanh")),
        (silu, F.silu),
    ):
        assert np.abs(ours(x) - theirs(t).numpy()).max() < 1e-13
