"""The ijepa family against transformers."""

import json

import pytest
import torch
from drawn import difference

from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import convert
from jepa_wm.errors import ConversionError
from jepa_wm.models import load

CPU = torch.device("cpu")
RELATIVE = 1e-5
FAR = 5 * RELATIVE
GRIDS = [(4, 4), (2, 8), (6, 5), (3, 2)]  # native, as many patches, more, fewer
PATCH = 4
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_normalize": True,
    "size": {"height": 16, "width": 16}, "resample": 2, "image_mean": [0.5] * 3,
    "image_std": [0.5] * 3, "rescale_factor": 1 / 255,
}  # fmt: skip

pytestmark = pytest.mark.reference


@pytest.fixture
def from_folder(tmp_path):
    """Convert a Hugging Face folder of given weights and config, load the bundle."""

    def run(weights, config, given=None, processor=True):
        from safetensors.torch import save_file

        folder = tmp_path / f"source{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        save_file({n: t.contiguous() for n, t in weights.items()}, folder / "model.safetensors")
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        if processor:
            (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
        out = folder / "model.gguf"
        convert("ijepa", folder, out, "f32", given or {})
        return load(out, CPU), Bundle.open(out)

    return run


def hf_model():
    transformers = pytest.importorskip("transformers")
    config = transformers.IJepaConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        image_size=16, patch_size=PATCH, layer_norm_eps=1e-6,
    )  # fmt: skip
    return faint(transformers.IJepaModel(config))


def faint(model):
    """Every parameter random; what enters the first norm is of the size of sqrt(1e-6)."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            scale = tensor.shape[-1] ** -0.5 if tensor.ndim > 1 else 0.3
            one = 1 if tensor.ndim == 1 and name.endswith("weight") else 0
            values = torch.randn(tensor.shape, generator=generator) * scale + one
            tensor.copy_(values * (3e-3 if "embeddings" in name else 1))
    return model.eval()


def pixels_for(grid):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, grid[0] * PATCH, grid[1] * PATCH, generator=generator)


def saved_weights(reference, folder):
    from safetensors.torch import load_file

    reference.save_pretrained(folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("names", ["published", "in memory"])
def test_hugging_face_models_on_every_grid(from_folder, tmp_path, names):
    reference = hf_model()
    weights = reference.state_dict()
    if names == "published":
        weights = saved_weights(reference, tmp_path / "hf")
        assert "encoder.layer.0.attention.attention.query.weight" in weights
    model, bundle = from_folder(weights, reference.config.to_dict())
    assert bundle.get("jepa.pred.kind") is None
    for grid in GRIDS:
        pixels = pixels_for(grid)
        with torch.no_grad():
            wanted = reference(pixels, interpolate_pos_encoding=True).last_hidden_state
        error = difference(model.encode(pixels), wanted)
        assert error < RELATIVE, f"{grid}: {error:.2g}"
        assert difference(model.embed_pixels(pixels), wanted.mean(1)) < RELATIVE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("jepa_wm.enc.pos_interp", "offset0.1"), ("jepa_wm.enc.pos_interp", "antialias"),
        ("jepa.enc.ln_eps", 1e-12), ("jepa.enc.act", "gelu_tanh"),
    ],
)  # fmt: skip
def test_each_setting_shows_in_transformers_numbers(from_folder, key, value):
    reference = hf_model()
    model, _ = from_folder(reference.state_dict(), reference.config.to_dict(), {key: value})
    pixels = pixels_for((3, 2))
    with torch.no_grad():
        wanted = reference(pixels, interpolate_pos_encoding=True).last_hidden_state
    assert difference(model.encode(pixels), wanted) > FAR


def test_a_grid_of_as_many_patches_is_resampled_too(from_folder):
    """The authors' code would add the table as it is; transformers looks at the sides."""
    reference = hf_model()
    model, _ = from_folder(reference.state_dict(), reference.config.to_dict())
    pixels = pixels_for((2, 8))
    with torch.no_grad():
        wanted = reference(pixels, interpolate_pos_encoding=True).last_hidden_state
        kept = reference.embeddings.patch_embeddings(pixels)
        kept = kept + reference.embeddings.position_embeddings
        for block in model.enc.blk:
            kept = block(kept)
    assert difference(model.enc.norm(kept), wanted) > FAR


def test_the_body_of_a_classifier(from_folder):
    transformers = pytest.importorskip("transformers")
    config = hf_model().config
    config.num_labels = 3
    reference = faint(transformers.IJepaForImageClassification(config))
    model, _ = from_folder(reference.state_dict(), config.to_dict())
    pixels = pixels_for((4, 4))
    with torch.no_grad():
        wanted = reference.ijepa(pixels).last_hidden_state
    assert difference(model.encode(pixels), wanted) < RELATIVE


def test_pooler_and_mask_token_are_no_part_of_the_feature(from_folder):
    transformers = pytest.importorskip("transformers")
    config = hf_model().config
    reference = faint(transformers.IJepaModel(config, add_pooling_layer=True, use_mask_token=True))
    weights = reference.state_dict()
    assert {"pooler.dense.weight", "embeddings.mask_token"} <= weights.keys()
    model, _ = from_folder(weights, config.to_dict())
    with torch.no_grad():
        wanted = reference(pixels_for((4, 4))).last_hidden_state
    assert difference(model.encode(pixels_for((4, 4))), wanted) < RELATIVE


def test_the_recipe_is_the_processors(from_folder):
    reference = hf_model()
    model, _ = from_folder(reference.state_dict(), reference.config.to_dict())
    recipe = model.preprocess
    assert (recipe.crop, recipe.resample, recipe.resize_mode) == (16, "bilinear", "squash")
    assert recipe.mean == pytest.approx((0.5, 0.5, 0.5))
    with pytest.raises(ConversionError, match=r"--set: jepa\.enc\.n_head=, jepa\.enc\.ln_eps="):
        from_folder(reference.state_dict(), None)
    with pytest.raises(ConversionError, match=r"--set jepa\.pre\.mean="):
        from_folder(reference.state_dict(), reference.config.to_dict(), processor=False)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"qkv_bias": False}, "qkv_bias false"),
        ({"model_type": "vit"}, "model_type 'vit'"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"num_hidden_layers": 3}, "n_layer is 2 by the tensors, but 3 is stated"),
        ({"image_size": 20}, "16 rows, but jepa.enc.img_size 20"),
        ({"image_size": [16, 20]}, "image_size is an array of 2"),
        ({"num_attention_heads": None}, r"--set: jepa\.enc\.n_head="),
        ({"layer_norm_eps": None}, r"--set: jepa\.enc\.ln_eps="),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused(from_folder, change, match):
    reference = hf_model()
    with pytest.raises(ConversionError, match=match):
        from_folder(reference.state_dict(), reference.config.to_dict() | change)
