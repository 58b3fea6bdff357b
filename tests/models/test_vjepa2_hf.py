"""The vjepa2 family against transformers, through folders as it saves them."""

import json

import pytest
import torch
from drawn import difference, draw, draw_weights
from vjepa2_cases import GRID, KEPT, PATCH, SIDE, TARGETS, on_trained_grid

from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import convert
from jepa_wm.errors import ConversionError
from jepa_wm.models import load, vit

pytestmark = pytest.mark.reference
CPU = torch.device("cpu")
EXACT = 1e-5
IDS = torch.tensor(KEPT), torch.tensor(TARGETS)

HF_SIZES = dict(
    hidden_size=40, num_hidden_layers=2, num_attention_heads=2, mlp_ratio=1.7, patch_size=PATCH,
    crop_size=SIDE, frames_per_clip=4, tubelet_size=2, pred_hidden_size=36,
    pred_num_attention_heads=2, pred_num_hidden_layers=2, pred_num_mask_tokens=3,
    pred_mlp_ratio=1.5, num_pooler_layers=1,
)  # fmt: skip
HF_PROCESSOR = {
    "video_processor_type": "VJEPA2VideoProcessor", "crop_size": {"height": 16, "width": 16},
    "size": {"shortest_edge": 99}, "do_center_crop": True, "resample": 2,
    "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225],
}  # fmt: skip


def hf_model(name="VJEPA2Model", **changes):
    transformers = pytest.importorskip("transformers")
    config = transformers.VJEPA2Config(**HF_SIZES | changes)
    reference = getattr(transformers, name)(config).eval()
    weights = draw_weights({n: list(t.shape) for n, t in reference.state_dict().items()})
    reference.load_state_dict(weights)
    return reference


@pytest.fixture
def from_hf(tmp_path):
    """Save a reference as transformers does (in shards if told), convert, load."""

    def run(reference, shards=False, processor=HF_PROCESSOR, given=None, config=None):
        folder = tmp_path / f"hf{len(list(tmp_path.iterdir()))}"
        reference.save_pretrained(folder, max_shard_size="20KB" if shards else "5GB")
        assert (folder / "model.safetensors").exists() != shards
        if processor is not None:
            (folder / "video_preprocessor_config.json").write_text(json.dumps(processor))
        if config is not None:
            path = folder / "config.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | config))
        convert("vjepa2", folder, folder / "x.gguf", "f32", given or {})
        return load(folder / "x.gguf", CPU), Bundle.open(folder / "x.gguf")

    return run


@pytest.mark.parametrize("shards", [False, True])
def test_transformers_encoder(from_hf, shards):
    """Full clips, shorter and longer ones, odd ones, and one frame, which it repeats."""
    reference = hf_model()
    model, bundle = from_hf(reference, shards)
    assert bundle.get("jepa.enc.ffn_dim") == 68 and bundle.get("jepa.pred.ffn_dim") == 54
    for frames in (4, 2, 6, 3, 1):
        pixels = draw(f"{frames} frames", (2, frames, 3, SIDE, SIDE))
        with torch.no_grad():
            wanted = reference(pixels, skip_predictor=True).last_hidden_state
        error = difference(model.encode(pixels), wanted)
        assert error < EXACT, f"{frames} frames: {error:.2g}"


@pytest.mark.parametrize(("width", "pred_width"), [(128, 64), (160, 64), (48, 52), (44, 24)])
def test_head_widths(from_hf, width, pred_width):
    """64 and 80 of the published encoders, 32 of their predictor; 24, 26, 22 and 12."""
    reference = hf_model(hidden_size=width, pred_hidden_size=pred_width)
    model, _ = from_hf(reference)
    pixels, seen = draw("clip", (1, 4, 3, SIDE, SIDE)), torch.arange(20)[None]
    with torch.no_grad():
        output = reference(pixels, context_mask=[seen], target_mask=[seen + 12])
    predicted = model.predict(pixels, seen, seen + 12, whole_clip=True).target
    errors = (
        difference(model.encode(pixels), output.last_hidden_state),
        difference(predicted, output.predictor_output.last_hidden_state),
    )
    assert max(errors) < EXACT, f"{width}, {pred_width}: {errors}"


def test_transformers_predictor(from_hf):
    """Own ids for each clip, unordered and overlapping; whole clips; all against all."""
    reference = hf_model()
    model, _ = from_hf(reference)
    pixels = draw("clip", (2, 4, 3, SIDE, SIDE))
    everything = torch.arange(2 * GRID**2).expand(2, -1)
    for seen, wanted in (IDS[0], IDS[1] % 32), (everything, everything), (IDS[0], IDS[0]):
        with torch.no_grad():
            output = reference(pixels, context_mask=[seen], target_mask=[wanted])
        found = model.predict(pixels, seen, wanted, whole_clip=True).target
        error = difference(found, output.predictor_output.last_hidden_state)
        assert error < EXACT, f"{list(seen.shape)}: {error:.2g}"


@pytest.mark.parametrize("size", [(12, 20), (24, 24), (8, 16)])
def test_other_grids_differ_from_transformers_by_the_grid_of_ids_alone(from_hf, monkeypatch, size):
    """It decodes ids on the trained grid, its authors on that of the clip; we follow them."""
    reference = hf_model()
    model, _ = from_hf(reference)
    pixels = draw("other", (1, 4, 3, *size))
    with torch.no_grad():
        wanted = reference(pixels, skip_predictor=True).last_hidden_state
    assert difference(model.encode(pixels), wanted) > 0.01
    monkeypatch.setattr(vit, "grid_positions", on_trained_grid)
    assert difference(model.encode(pixels), wanted) < EXACT


def test_body_of_a_classifier(from_hf):
    reference = hf_model("VJEPA2ForVideoClassification")
    model, _ = from_hf(reference)
    pixels = draw("clip", (2, 4, 3, SIDE, SIDE))
    with torch.no_grad():
        wanted = reference.vjepa2(pixels, skip_predictor=True).last_hidden_state
    assert difference(model.encode(pixels), wanted) < EXACT


def test_eps_and_activation_follow_the_config(from_hf):
    pixels = draw("clip", (1, 4, 3, SIDE, SIDE))
    for changes in ({"layer_norm_eps": 1e-2}, {"hidden_act": "gelu_pytorch_tanh"}):
        reference = hf_model(**changes)
        model, _ = from_hf(reference)
        seen = torch.arange(9)[None]
        with torch.no_grad():
            output = reference(pixels, context_mask=[seen], target_mask=[seen + 9])
        predicted = model.predict(pixels, seen, seen + 9, whole_clip=True).target
        assert difference(predicted, output.predictor_output.last_hidden_state) < EXACT, changes
        usual, _ = from_hf(hf_model())
        assert difference(usual.encode(pixels), model.encode(pixels)) > 1e-4, changes


def test_an_encoder_without_a_predictor(from_hf):
    reference = hf_model()
    del reference.predictor
    model, bundle = from_hf(reference)
    assert model.pred is None and bundle.get("jepa.pred.kind") is None


def test_size_in_the_processor_is_ignored_as_transformers_does(from_hf):
    transformers = pytest.importorskip("transformers")
    wanted = transformers.VJEPA2VideoProcessor(**HF_PROCESSOR)
    model, _ = from_hf(hf_model())
    assert wanted.size["shortest_edge"] == model.preprocess.resize_short == 18
    assert model.preprocess.crop == 16 and model.preprocess.resize_mode == "shortest_edge"
    without, _ = from_hf(hf_model(), processor=None)
    assert without.preprocess == model.preprocess


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"use_SiLU": True}, "use_SiLU"),
        ({"qkv_bias": False}, "qkv_bias false"),
        ({"model_type": "vjepa3"}, "model_type 'vjepa3'"),
        ({"num_hidden_layers": 3}, "n_layer is 2 by the tensors, but 3 is stated"),
        ({"mlp_ratio": -1}, "mlp_ratio is -1, wanted a positive number"),
        ({"mlp_ratio": 4}, "enc.ffn_dim is 68 by the tensors, but 160"),
        ({"pred_mlp_ratio": 4}, "pred.ffn_dim is 54 by the tensors, but 144"),
        ({"pred_num_mask_tokens": 10}, "n_mask_tokens is 3 by the tensors"),
        ({"patch_size": 16}, "patch_size is 4 by the tensors"),
        ({"tubelet_size": 1}, "tubelet_size is 2 by the tensors"),
        ({"num_attention_heads": None}, r"--set: jepa\.enc\.n_head="),
        ({"pred_num_attention_heads": None}, r"--set: jepa\.pred\.n_head="),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused(from_hf, config, match):
    with pytest.raises(ConversionError, match=match):
        from_hf(hf_model(), config=config)


def test_forged_shapes_of_transformers_are_refused(from_hf):
    for name, shape, match in (
        ("encoder.layer.0.attention.key.weight", (40, 41), r"\[40, 40\], \[40, 41\], \[40, 40\]"),
        ("encoder.layer.1.attention.value.bias", (), "value.bias is a single number"),
        ("predictor.embeddings.mask_tokens", (3, 36), r"wanted \[n,1,1,D\]"),
    ):
        reference = hf_model()
        owner, _, last = name.rpartition(".")
        setattr(reference.get_submodule(owner), last, torch.nn.Parameter(torch.zeros(shape)))
        with pytest.raises(ConversionError, match=match):
            from_hf(reference)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"crop_size": {"height": -4, "width": -4}}, "-4 is no number of pixels"),
        ({"crop_size": {"height": 16, "width": 20}}, "not a square"),
        ({"image_mean": 0.5}, "image_mean 0.5 is no list of numbers"),
        ({"image_std": None}, r"--set jepa\.pre\.std="),
        ({"resample": [2]}, r"filter \[2\]"),
        ({"rescale_factor": "x"}, "rescale_factor"),
        ({"do_rescale": False}, "do_rescale false"),
    ],
)
def test_a_processor_that_makes_no_sense_is_refused(from_hf, change, match):
    with pytest.raises(ConversionError, match=match):
        from_hf(hf_model(), processor=HF_PROCESSOR | change)
