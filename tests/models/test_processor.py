"""Recipes read from processors' files give the pixels transformers makes with the same file."""

import json

import numpy as np
import pytest
import torch

from jepa_wm.models.preprocess import Preprocess
from jepa_wm.models.processor import preprocess_meta

STATISTICS = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4]}
BIT = STATISTICS | {
    "image_processor_type": "BitImageProcessor", "do_center_crop": True, "resample": 2,
    "size": {"shortest_edge": 18}, "crop_size": {"height": 16, "width": 16},
}  # fmt: skip
VIT = STATISTICS | {"image_processor_type": "ViTImageProcessor", "size": 16}


def without(processor, *names):
    return {name: value for name, value in processor.items() if name not in names}


CASES = {  # a file, and the model it lies beside; older files leave much of it out
    "whole": (BIT, "dinov2"),
    "no crop flag": (without(BIT, "do_center_crop"), "dinov2"),
    "no filter": (without(BIT, "resample"), "dinov2_with_registers"),
    "no class": (without(BIT, "image_processor_type", "resample"), "dinov2"),
    "square": (VIT, "vit"),
    "square, no class": (without(VIT, "image_processor_type"), "vit"),
    "square, no class, I-JEPA": (without(VIT, "image_processor_type"), "ijepa"),
    "old class": (
        without(VIT, "image_processor_type") | {"feature_extractor_type": "ViTFeatureExtractor"},
        "vit",
    ),
}


@pytest.mark.reference
@pytest.mark.parametrize("case", CASES)
def test_pixels_are_those_of_transformers(tmp_path, case):
    transformers = pytest.importorskip("transformers")
    processor, model_type = CASES[case]
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    reference = transformers.AutoImageProcessor.from_pretrained(tmp_path)
    meta = preprocess_meta(processor, {"model_type": model_type}, {})
    names = Preprocess.__dataclass_fields__
    recipe = Preprocess(**{name: meta[f"jepa.pre.{name}"] for name in names})
    rng = np.random.default_rng(0)
    for size in (30, 50), (17, 16), (90, 41):
        photo = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        wanted = reference(photo, return_tensors="pt")["pixel_values"][0]
        assert torch.equal(recipe(torch.from_numpy(photo)), wanted), (case, size)
