"""The specification against what the authors' code made of the same weights and inputs."""

import json

import numpy as np
import pytest
from models.lewm_reference import unpack
from spec.golden import bundle_of, distance, read

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import BundleError
from jepa_wm.spec import Inputs, run
from jepa_wm.spec.ops import Weights
from jepa_wm.spec.predictors import lewm

EXACT = 1e-6  # outputs were computed in float64 and stored in float32

CASES = [
    ("ijepa", "native"), ("ijepa", "one"), ("ijepa", "other"),
    ("vjepa", "native"), ("vjepa", "longer"), ("vjepa", "other"),
    ("vjepa", "mask_index_0"), ("vjepa", "mask_index_3"),
    ("vjepa2", "native"), ("vjepa2", "odd"), ("vjepa2", "other"), ("vjepa2", "mask_index_4"),
    ("ac", "window"), ("pool", "clip"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "case"), CASES)
def test_authors_numbers(tmp_path, name, case):
    meta, tensors, cases = read(name)
    arrays = cases[case]
    stages = run(bundle_of(tmp_path, meta, tensors), _inputs(case, arrays))
    for stage, key in (("enc.norm", "tokens"), ("pred", "pred"), ("head", "head")):
        if key in arrays:
            assert distance(stages[stage], arrays[key]) < EXACT, stage
    assert {"tokens", "pred", "head"} & set(arrays)


def _inputs(case, arrays):
    ids = {k: arrays[f"{k}ids"].astype(int) for k in ("", "target_") if f"{k}ids" in arrays}
    index = int(case.rsplit("_", 1)[1]) if case.startswith("mask_index") else 1
    return Inputs(
        arrays["pixels"], ids=ids.get(""), targets=ids.get("target_"), mask_index=index,
        actions=arrays.get("actions"), states=arrays.get("states"),
    )  # fmt: skip


def test_separate_query_key_and_value_are_the_fused_ones(tmp_path):
    meta, tensors, cases = read("vjepa2")
    apart = {}
    for name, tensor in tensors.items():
        if ".attn_qkv." in name:
            for letter, rows in zip("qkv", np.split(tensor, 3), strict=True):
                apart[name.replace("attn_qkv", f"attn_{letter}")] = rows
        else:
            apart[name] = tensor
    bundle = bundle_of(tmp_path, meta | {"jepa.enc.qkv_fused": False}, apart)
    case = cases["mask_index_4"]
    assert distance(run(bundle, _inputs("mask_index_4", case))["pred"], case["pred"]) < EXACT


def test_a_rule_for_clips_does_not_resample_an_image(tmp_path):
    meta, tensors, _ = read("ijepa")
    bundle = bundle_of(tmp_path, meta | {"jepa_wm.enc.pos_interp": "trilinear_scale"}, tensors)
    with pytest.raises(BundleError, match="pos_interp = trilinear_scale is for clips"):
        run(bundle, Inputs(np.zeros((1, 3, 16, 16))))


def test_an_encoded_clip_and_its_context_picked_afterwards(tmp_path):
    """transformers' way: every patch is encoded, the predictor sees some rows."""
    meta, tensors, _ = read("vjepa2")
    bundle = bundle_of(tmp_path, meta, tensors)
    pixels = np.random.default_rng(0).normal(size=(2, 4, 3, 12, 12))
    ids = np.random.default_rng(1).permuted(np.tile(np.arange(18), (2, 1)), axis=1)
    everything = run(bundle, Inputs(pixels, ids=ids, targets=ids))
    picked = run(bundle, Inputs(pixels, context=ids, targets=ids))
    assert distance(picked["pred"], everything["pred"]) < 1e-12
    some = run(bundle, Inputs(pixels, context=ids[:, :5], targets=ids))
    assert distance(some["pred"], everything["pred"]) > 1e-3


def test_hfvit_authors_numbers(tmp_path):
    weights, arrays = unpack("hfvit.npz")
    config = {
        "model_type": "vitv2", "img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2,
        "num_heads": 2, "mlp_ratio": 2, "num_register_tokens": 3, "init_values": 0.1,
        "interpolate_offset": 0.1, "qkv_bias": True,
    }  # fmt: skip
    bundle = _converted(tmp_path, "hfvit", weights, config)
    for case in ("native", "same_count", "up", "down"):
        found = run(bundle, Inputs(arrays[f"{case}/pixels"].numpy()))["enc.norm"]
        assert distance(found, arrays[f"{case}/tokens"]) < 2e-6, case  # a float32 reference


LEWM = {
    "encoder": {
        "image_size": 8, "patch_size": 4, "num_attention_heads": 3, "num_hidden_layers": 1,
        "hidden_size": 12, "intermediate_size": 20,
    },
    "predictor": {"depth": 2, "heads": 2, "mlp_dim": 20, "dim_head": 8, "num_frames": 3},
}  # fmt: skip


def test_lewm_authors_numbers(tmp_path):
    weights, arrays = unpack("lewm.npz")
    bundle = _converted(tmp_path, "lewm", weights, LEWM)
    for case in ("native", "tall", "wide"):
        found = run(bundle, Inputs(arrays[f"{case}/pixels"].numpy()))["pooled"]
        assert distance(found, arrays[f"{case}/z"]) < 2e-6, case
    z, actions = (arrays[f"predict/{key}"].numpy().astype(float) for key in ("z", "actions"))
    for T in (1, 2, 3):
        found = dict(lewm(Weights(bundle), z[:, :T], actions[:, :T]))["pred"]
        assert distance(found, arrays[f"predict/next{T}"]) < 2e-6, T


def test_one_step_of_lewm_from_pixels(tmp_path):
    """``run`` encodes the frames of a window one by one and predicts from their latents."""
    weights, arrays = unpack("lewm.npz")
    bundle = _converted(tmp_path, "lewm", weights, LEWM)
    pixels, actions = arrays["native/pixels"].numpy(), arrays["predict/actions"].numpy()[:1, :2]
    z = arrays["native/z"].numpy().astype(float)
    stages = run(bundle, Inputs(pixels, actions=actions))
    wanted = dict(lewm(Weights(bundle), z, actions.astype(float)))["pred"]
    assert stages["pred"].shape == (1, 2, 12)
    assert distance(stages["pred"], wanted) < 1e-5


PIXELS = {
    "jepa.pre.mean": (0.5, 0.5, 0.5), "jepa.pre.std": (0.5, 0.5, 0.5),
    "jepa.pre.resample": "bilinear", "jepa.pre.resize_mode": "squash",
    "jepa.pre.resize_short": 16, "jepa.pre.crop": 16,
}  # fmt: skip


def _converted(folder, family, weights, config):
    from safetensors.torch import save_file

    from jepa_wm.convert import convert  # the other tests stand without the runtime

    source = folder / "source"
    source.mkdir()
    save_file({n: t.contiguous() for n, t in weights.items()}, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps(config))
    convert(family, source, folder / "model.gguf", "f32", PIXELS)
    return Bundle.open(folder / "model.gguf")
