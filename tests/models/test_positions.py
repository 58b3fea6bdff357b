"""Position tables on other grids."""

import pytest
import torch

from jepa_wm.errors import BundleError
from jepa_wm.models.positions import RULES, interpolate_table, table_side


def bicubic(table, steps, grid, a=-0.75):
    """Resample a square table [S,S,D] by hand: step s samples at (i + 0.5) s - 0.5, clamped."""

    def weights(step, n, size):
        matrix = torch.zeros(n, size, dtype=torch.float64)
        for i in range(n):
            at = (i + 0.5) * step - 0.5
            base = int(torch.tensor(at).floor())
            for k in range(base - 1, base + 3):
                d = abs(at - k)
                near = ((a + 2) * d - (a + 3)) * d * d + 1
                far = a * (((d - 5) * d + 8) * d - 4)
                matrix[i, min(max(k, 0), size - 1)] += near if d <= 1 else far
        return matrix

    rows, columns = (weights(s, n, len(table)) for s, n in zip(steps, grid, strict=True))
    return torch.einsum("hi,wj,ijd->hwd", rows, columns, table.double())


@pytest.fixture
def table():
    return torch.randn(1 + 16, 5, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("rule", RULES)
def test_native_grid_is_the_table_itself(table, rule):
    assert interpolate_table(table, (4, 4), 1, rule) is table


@pytest.mark.parametrize("rule", RULES)
def test_every_grid_has_its_rows(rule):
    for side in (4, 14, 16):
        table = torch.randn(1 + side * side, 2)
        for rows in range(1, 41):
            for columns in range(1, 41):
                found = interpolate_table(table, (rows, columns), 1, rule)
                assert found.shape == (1 + rows * columns, 2), (side, rows, columns)


@pytest.mark.parametrize("grid", [(2, 8), (5, 3), (9, 7), (1, 1), (3, 4)])
@pytest.mark.parametrize(("rule", "offset"), [("size", 0.0), ("offset0.1", 0.1)])
def test_is_torchs_bicubic_with_the_rules_step(table, rule, offset, grid):
    wanted = bicubic(table[1:].reshape(4, 4, 5), [4 / (g + offset) for g in grid], grid)
    found = interpolate_table(table, grid, 1, rule)
    assert torch.equal(found[0], table[0])  # CLS keeps its row
    torch.testing.assert_close(found[1:].double(), wanted.reshape(-1, 5), rtol=0, atol=1e-5)


@pytest.mark.parametrize("grid", [(2, 8), (2, 3)])
def test_rules_differ_off_the_native_grid(table, grid):
    """Also on as many patches: only the stored grid itself is exempt."""
    found = {rule: interpolate_table(table, grid, 1, rule) for rule in RULES}
    for a, b in (("size", "offset0.1"), ("size", "antialias"), ("offset0.1", "antialias")):
        assert (found[a] - found[b]).abs().max() > 1e-2, (a, b)


def test_half_precision_tables_are_resampled_in_float32(table):
    half = table.to(torch.bfloat16)
    found = interpolate_table(half, (6, 5), 1, "size")
    wanted = interpolate_table(half.float(), (6, 5), 1, "size")
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wanted.to(torch.bfloat16))


def test_a_table_that_is_not_square_is_refused():
    assert table_side(17, 1) == 4 and table_side(16, 0) == 4
    for rows, prefix in ((16, 1), (0, 0), (1, 1), (15, 0)):
        with pytest.raises(BundleError, match=f"{rows} rows, which is not {prefix}"):
            table_side(rows, prefix)


def test_an_unknown_rule_is_refused(table):
    with pytest.raises(ValueError, match="trilinear_scale"):
        interpolate_table(table, (2, 2), 1, "trilinear_scale")
