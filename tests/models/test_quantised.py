"""Weights that stay quantised in memory: the same bits, less memory."""

import numpy as np
import pytest
import torch

from jepa_wm.bundle.groups import split_groups
from jepa_wm.bundle.quant import FILE_TYPES, Encoded, Q, decode, encode_as
from jepa_wm.bundle.reader import Bundle
from jepa_wm.control.interfaces import Context
from jepa_wm.errors import BundleError, ConfigError
from jepa_wm.models import load, load_world_model
from jepa_wm.models.quantised import QuantisedLinear

CPU = torch.device("cpu")
BLOCK_TYPES = [name for name in FILE_TYPES if name[0] == "q"]


@pytest.mark.parametrize("name", BLOCK_TYPES)
@pytest.mark.parametrize("parts", [1, 3])
def test_a_matrix_in_groups_is_the_decoded_one_bit_for_bit(name, parts):
    rng = np.random.default_rng(0)
    kind = FILE_TYPES[name][1]
    stored = []
    for _ in range(parts):  # random bytes reach codes and scales that no encoder writes
        example = encode_as(rng.standard_normal((6, 512)).astype(np.float32), kind)
        stored.append(example)
        noise = rng.integers(0, 256, example.data.shape, dtype=np.uint8)
        values = decode(Encoded(noise, (6, 512), kind))
        if np.isfinite(values).all():
            stored[-1] = Encoded(noise, (6, 512), kind)
    wanted = np.concatenate([decode(one) for one in stored])
    layer = QuantisedLinear([split_groups(one) for one in stored], None, torch.float32, CPU)
    assert (layer.out_features, layer.in_features) == (6 * parts, 512)
    np.testing.assert_array_equal(layer.weight.numpy(), wanted)
    assert layer.to(torch.bfloat16).weight.dtype == torch.float32, "a cast does not touch it"
    np.testing.assert_array_equal(layer.weight.numpy(), wanted)


@pytest.mark.parametrize("kind", [Q.F16, Q.F32, Q.Q2_K])
def test_types_without_groups_here_are_left_alone(kind):
    assert split_groups(Encoded(np.zeros((1, 512), np.uint8), (1, 256), kind)) is None


@pytest.mark.parametrize("name", BLOCK_TYPES)
@pytest.mark.parametrize("family", ["vjepa2", "hfvit", "lewm"])
def test_a_model_gives_the_same_numbers_either_way(tiny, family, name):
    path = tiny(family, file_type=name)
    plain, kept = (load(path, CPU, weights=way) for way in ("expanded", "quantised"))
    layers = [part for part in kept.modules() if isinstance(part, QuantisedLinear)]
    assert layers, "nothing was kept"
    frames = torch.randint(0, 256, (2, 24, 24, 3), dtype=torch.uint8)
    if family == "vjepa2":
        frames = frames[:, None].expand(-1, 4, -1, -1, -1)
        assert torch.allclose(kept.classify(frames), plain.classify(frames), atol=1e-5)
    torch.testing.assert_close(kept.embed(frames), plain.embed(frames), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_world_model_plans_with_kept_weights(arm, dtype):
    path = arm(file_type="q8_0")
    plain, kept = (load_world_model(path, CPU, dtype, way) for way in ("expanded", "quantised"))
    frames = torch.randint(0, 256, (1, 1, 16, 16, 3), dtype=torch.uint8)
    z = [model.encode(model.preprocess(frames)) for model in (plain, kept)]
    torch.testing.assert_close(z[1], z[0], rtol=1e-4, atol=1e-4)
    plans = torch.randn(1, 3, 2, 7) * 0.05
    start = Context(z[0], torch.zeros(1, 0, 7), torch.rand(1, 1, 7))
    torch.testing.assert_close(
        kept.rollout(start, plans), plain.rollout(start, plans), rtol=1e-3, atol=1e-3
    )


def test_kept_weights_take_the_memory_they_take_in_the_file(tiny):
    path = tiny("vjepa2", file_type="q8_0")
    kept = load(path, CPU, weights="quantised")
    for part in kept.modules():
        if isinstance(part, QuantisedLinear):
            size = sum(b.numel() * b.element_size() for b in part.buffers())
            assert size == part.in_features * part.out_features * 34 / 32


def test_infinite_scales_are_refused_by_name(tiny, tmp_path):
    path = tiny("hfvit", file_type="q8_0")
    stored = Bundle.open(path).encoded("enc.blk.0.ffn_up.weight").data.tobytes()
    broken = np.float16(np.inf).tobytes() + stored[2:]
    changed = tmp_path / "inf.gguf"
    changed.write_bytes(path.read_bytes().replace(stored, broken))
    with pytest.raises(BundleError, match=r"inf.gguf: tensor enc.blk.0.ffn_up.weight holds NaN"):
        load(changed, CPU, weights="quantised")


def test_another_way_to_hold_weights_is_refused(tiny):
    with pytest.raises(ConfigError, match="weights='small' is unknown; use expanded or quantised"):
        load(tiny("hfvit"), CPU, weights="small")
