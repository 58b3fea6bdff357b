"""Packed linear layers: the plain functions' numbers, rows independent of each other."""

import copy

import pytest
import torch
import torch.nn.functional as F

from jepa_wm.models import packed as kernels
from jepa_wm.models.layers import Linear, prepare_linears
from jepa_wm.models.packed import ACTIVATIONS, PackedLinear, has_packed_kernels

CPU = torch.device("cpu")
ACTS = {
    "none": lambda x: x,
    "gelu_erf": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("act", sorted(ACTIVATIONS))
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("lead", [(1,), (7,), (2, 5), (2, 3, 4)])
def test_is_the_linear_layer_and_its_activation(act, bias, lead, packed):
    if packed and not has_packed_kernels(CPU):
        pytest.skip("this PyTorch has no packed kernels")
    weight, x = torch.randn(12, 10), torch.randn(*lead, 10)
    offset = torch.randn(12) if bias else None
    layer = PackedLinear(weight, offset, torch.float32, act)
    if not packed:
        layer.is_packed, layer.weight = False, weight
    wanted = ACTS[act](
        F.linear(x.double(), weight.double(), None if offset is None else offset.double())
    )
    torch.testing.assert_close(layer(x).double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not has_packed_kernels(CPU), reason="plain kernels do not promise it")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("reorder", [True, False])
def test_a_row_is_the_same_in_any_company(dtype, reorder):
    layer = PackedLinear(torch.randn(96, 80), torch.randn(96), dtype, "gelu_erf", reorder)
    x = torch.randn(700, 80).to(dtype)
    together = layer(x)
    for rows in (1, 3, 17, 64, 320):
        assert torch.equal(layer(x[:rows].clone()), together[:rows]), rows
    assert layer(x[:1, None]).shape == (1, 1, 96)


def test_a_linear_follows_changed_weights_and_gradients():
    layer, x = Linear(6, 5), torch.randn(4, 6)
    prepare_linears(layer, torch.float32)
    with torch.no_grad():
        before = layer(x)
        layer.weight.mul_(2)
        changed = layer(x)
    torch.testing.assert_close(changed - layer.bias, 2 * (before - layer.bias))
    loss = layer(x).sum()
    loss.backward()
    assert layer.weight.grad.abs().sum() > 0


@torch.no_grad()
def test_a_packed_linear_takes_what_autocast_makes():
    layer, x = Linear(12, 8), torch.randn(3, 12)
    wanted = layer(x)
    layer.pack()
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x.bfloat16(), "none")
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, rtol=0.05, atol=0.05)


def test_a_cast_or_copied_linear_is_still_the_layer():
    layer, x = Linear(6, 5), torch.randn(4, 6)
    prepare_linears(layer, torch.float32)
    with torch.no_grad():
        wanted = layer(x)
        torch.testing.assert_close(copy.deepcopy(layer)(x), wanted)
        assert layer.double()(x.double()).dtype == torch.float64


@torch.inference_mode()
def test_weights_made_in_inference_mode_can_be_packed():
    layer, x = Linear(6, 5), torch.randn(4, 6)
    plain = layer(x)
    prepare_linears(layer, torch.float32)
    torch.testing.assert_close(layer(x), plain)


def test_reduced_weights_take_any_input():
    layer = Linear(6, 5)
    prepare_linears(layer, torch.bfloat16)
    with torch.inference_mode():
        assert layer(torch.randn(4, 6)).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("act", sorted(ACTIVATIONS))
def test_a_processor_without_half_precision_multiplies_in_float32(monkeypatch, dtype, act):
    monkeypatch.setattr(kernels, "_multiplies", lambda dtype: False)
    assert kernels.is_widened(CPU, dtype) and not has_packed_kernels(CPU, dtype)
    layer = Linear(6, 5).to(dtype)
    layer.pack()
    assert layer.packed is not None
    x = torch.randn(7, 6).to(dtype)
    with torch.inference_mode():
        wide = kernels.linear(x.float(), layer.weight.float(), layer.bias.float(), act)
        assert torch.equal(layer(x, act), wide.to(dtype))
        assert torch.equal(kernels.linear(x, layer.weight, layer.bias, act), wide.to(dtype))
