"""V-JEPA 2.1 and LeVJEPA against their authors' code: weights drawn by name, outputs stored."""

import numpy as np
import pytest
from models.drawn import draw, draw_weights, read
from models.levjepa_cases import CLIPS as LEVJEPA_CLIPS
from models.vjepa2_1_cases import CLIPS, CONTEXT, KEPT, LEVELS, PREDICTIONS, TARGETS
from spec.golden import bundle_of, distance, full, named

from jepa_wm.spec import Inputs, run
from jepa_wm.spec.ops import Weights
from jepa_wm.spec.predictors import masked

EXACT = 1e-6  # outputs were computed in float64 and stored in float32
SIZES = {"enc.embed_dim": 40, "enc.n_head": 2, "enc.ffn_dim": 80}
LEVJEPA = full(SIZES | {
    "family": "levjepa", "enc.n_layer": 2, "enc.patch_size": 8, "enc.img_size": 24,
    "enc.n_frames": 4, "enc.cls_token": True, "enc.attn_mode": "block_causal",
})  # fmt: skip
VJEPA2_1 = full(SIZES | {
    "family": "vjepa2_1", "enc.n_layer": 12, "enc.patch_size": 16, "enc.img_size": 64,
    "enc.tubelet_size": 2, "enc.n_frames": 4, "enc.rope_interpolate": True,
    "enc.rope_ref_grid": 16, "enc.rope_freq_layout": "interleaved", "enc.modality_embed": True,
    "enc.image_patch_embed": True, "enc.hier_layers": [2, 5, 8, 11], "pred.kind": "masked",
    "pred.embed_dim": 44, "pred.n_layer": 4, "pred.n_head": 2, "pred.ffn_dim": 88,
    "pred.n_mask_tokens": 3, "pred.modality_embed": True, "pred.context_proj": True,
})  # fmt: skip
CHANGES = {
    "one": full({"pred.out_dim": 24}),
    "four": full({"pred.n_hier_in": 4}),
    "patch14": full({
        "enc.patch_size": 14, "enc.img_size": 56, "enc.rope_ref_grid": 18, "pred.out_dim": 24,
    }),
    "frames": {}, "full": full({"enc.attn_mode": "full"}),
    "tubelets": full({"enc.tubelet_size": 2}),
}  # fmt: skip


@pytest.fixture(scope="module")
def vjepa2_1(tmp_path_factory):
    """Bundles with a predictor of one level, of four, and an encoder of patches of 14 pixels."""
    layouts, _ = read("vjepa2_1.npz")
    folder = tmp_path_factory.mktemp("vjepa2_1")

    def write(name):
        encoder, predictor = ("patch14", "one") if name == "patch14" else ("encoder", name)
        tensors = named(draw_weights(layouts[encoder], encoder))
        for part in ("weight", "bias"):
            tensors[f"enc.norm.{part}"] = tensors[f"enc.hier_norm.3.{part}"]
        tensors |= named(draw_weights(layouts[predictor], predictor), "pred")
        return bundle_of(folder, VJEPA2_1 | CHANGES[name], tensors, f"{name}.gguf")

    return {name: write(name) for name in ("one", "four", "patch14")}


@pytest.mark.parametrize("case", CLIPS)
def test_vjepa2_1_clips_and_pictures(vjepa2_1, case):
    which, shape = CLIPS[case]
    found = run(vjepa2_1["patch14" if which == "patch14" else "one"], Inputs(draw(case, shape)))
    wanted = read("vjepa2_1.npz")[1][case]
    assert distance(found["enc.norm"], wanted) < EXACT
    assert distance(found["pooled"], wanted.mean(1)) < EXACT


def test_vjepa2_1_levels(vjepa2_1):
    found = run(vjepa2_1["one"], Inputs(draw("levels", LEVELS)))
    levels = np.concatenate([found[f"enc.hier_norm.{k}"] for k in range(4)], -1)
    assert distance(levels, read("vjepa2_1.npz")[1]["levels"]) < EXACT


def test_vjepa2_1_context_keeps_its_positions(vjepa2_1):
    pixels = draw("kept", CLIPS["native"][1])
    found = run(vjepa2_1["one"], Inputs(pixels, ids=np.array([KEPT])))
    assert distance(found["enc.norm"], read("vjepa2_1.npz")[1]["kept"]) < EXACT


@pytest.mark.parametrize("case", PREDICTIONS)
def test_vjepa2_1_predictions(vjepa2_1, case):
    which, kind, index = PREDICTIONS[case]
    seen = draw(case, (1, len(CONTEXT), (1 if which == "one" else 4) * 40)).double().numpy()
    ids = np.array([CONTEXT]), np.array([TARGETS[kind]])
    found = dict(masked(Weights(vjepa2_1[which]), seen, ids, index, image=kind == "image"))
    arrays = read("vjepa2_1.npz")[1]
    assert distance(found["pred"], arrays[f"{case}/target"]) < EXACT
    assert distance(found["pred.context"], arrays[f"{case}/context"]) < EXACT


@pytest.mark.parametrize("frames", [1, 4])
@pytest.mark.parametrize("which", ["one", "four"])
def test_vjepa2_1_from_pixels_to_predictions(vjepa2_1, which, frames):
    """The encoder's last levels go in where the predictor takes several; one frame is a picture."""
    bundle, pixels = vjepa2_1[which], draw("joined", (1, frames, 3, 64, 64))
    ids = np.array([[0, 5, 7]]), np.array([[9, 2]])
    found = run(bundle, Inputs(pixels, ids=ids[0], targets=ids[1], mask_index=0))
    seen = found["enc.norm"]
    if which == "four":
        seen = np.concatenate([found[f"enc.hier_norm.{k}"] for k in range(4)], -1)
    wanted = dict(masked(Weights(bundle), seen, ids, 0, image=frames == 1))
    assert distance(found["pred"], wanted["pred"]) < 1e-12


@pytest.mark.parametrize("case", LEVJEPA_CLIPS)
def test_levjepa_clips(tmp_path, case):
    layouts, arrays = read("levjepa.npz")
    which, shape = LEVJEPA_CLIPS[case]
    bundle = bundle_of(tmp_path, LEVJEPA | CHANGES[which], named(draw_weights(layouts[which])))
    found = run(bundle, Inputs(draw(case, shape)))
    assert distance(found["enc.norm"], arrays[case]) < EXACT
    assert distance(found["pooled"], arrays[case][:, 0]) < EXACT


def test_a_block_causal_context_sees_what_the_clip_would_show_it(tmp_path):
    """Whole slots may be left out at the end without a change for those before them."""
    layouts, _ = read("levjepa.npz")
    bundle = bundle_of(tmp_path, LEVJEPA, named(draw_weights(layouts["frames"])))
    pixels = draw("native", LEVJEPA_CLIPS["native"][1])
    everything = run(bundle, Inputs(pixels))["enc.norm"]
    early = run(bundle, Inputs(pixels, ids=np.arange(18)[None]))["enc.norm"]
    assert distance(early[:, 1:], everything[:, 1:19]) < 1e-12
    assert distance(early[:, 0], everything[:, 0]) > 1e-3  # CLS reads all there is
