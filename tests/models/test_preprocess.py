"""Pixels: the same as the torchvision-backed processors make, from a frame in any form."""

import numpy as np
import pytest
import torch

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import BundleError
from jepa_wm.models.preprocess import Preprocess

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def recipe(**changes):
    defaults = {"mean": MEAN, "std": STD, "resize_short": 24, "crop": 20}
    return Preprocess(**defaults | changes)


def noise(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


SIZES = [(24, 24), (37, 51), (320, 240), (20, 20), (7, 95), (25, 24), (31, 29)]


@pytest.mark.reference
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_squash_is_torchvisions_uint8_resize(size, resample):
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    frame = noise(*size, 3)
    wanted = functional.resize(
        frame.movedim(-1, 0).contiguous(),
        [20, 20],
        interpolation=functional.InterpolationMode(resample),
        antialias=True,
    )
    pixels = recipe(resize_mode="squash", resample=resample)(frame)
    assert torch.equal(pixels, normalised(wanted))


def normalised(pixels):
    mean, std = torch.tensor(MEAN) * 255, torch.tensor(STD) * 255
    return (pixels.float() - mean[:, None, None]) / std[:, None, None]


@pytest.mark.reference
@pytest.mark.parametrize("size", [*SIZES, (21, 24), (22, 23)])
@pytest.mark.parametrize(("resample", "number"), [("bilinear", 2), ("bicubic", 3)])
@pytest.mark.parametrize("crop", [20, 15, 30])
def test_shortest_edge_is_hugging_faces_processor(size, resample, number, crop):
    """Bit for bit, whatever is odd, and with padding where the crop is larger than the image."""
    transformers = pytest.importorskip("transformers")
    processor = transformers.BitImageProcessor(
        size={"shortest_edge": 24}, crop_size={"height": crop, "width": crop}, resample=number,
        image_mean=list(MEAN), image_std=list(STD), do_convert_rgb=False,
    )  # fmt: skip
    frame = noise(*size, 3)
    wanted = processor(frame.movedim(-1, 0), return_tensors="pt")["pixel_values"][0]
    assert torch.equal(recipe(crop=crop, resample=resample)(frame), wanted)


def test_every_form_of_a_frame_gives_the_same_pixels():
    frame, prepare = noise(33, 47, 3), recipe()
    pixels = prepare(frame)
    chw = frame.movedim(-1, 0)
    forms = [frame / 255, (frame / 255).double(), chw, chw.contiguous() / 255, (frame / 255).half()]
    for form in forms:
        assert torch.equal(prepare(form), pixels), (form.dtype, form.shape)


def test_lead_axes_are_kept():
    frames, prepare = noise(2, 5, 30, 28, 3), recipe()
    pixels = prepare(frames)
    assert pixels.shape == (2, 5, 3, 20, 20) and pixels.dtype == torch.float32
    assert torch.equal(pixels[1, 3], prepare(frames[1, 3]))


@pytest.mark.parametrize(
    ("frames", "match"),
    [
        (torch.full((9, 9, 3), 1.6), r"must lie in \[0, 1\]"),
        (torch.full((9, 9, 3), 255.0), r"must lie in \[0, 1\]"),
        (torch.full((9, 9, 3), -0.5), r"must lie in \[0, 1\]"),
        (torch.full((9, 9, 3), float("nan")), r"must lie in \[0, 1\]"),
        (torch.ones(9, 9, 3, dtype=torch.int64), "int64"),
        (torch.zeros(9, 9, dtype=torch.uint8), "3 or more axes"),
        (torch.zeros(9, 9, 4, dtype=torch.uint8), "no axis holds 3 channels"),
        (torch.zeros(3, 9, 3, dtype=torch.uint8), "either axis"),
        (torch.zeros(0, 9, 3, dtype=torch.uint8), "no pixels"),
    ],
)
def test_what_is_not_a_picture_is_refused(frames, match):
    with pytest.raises(ValueError, match=match):
        recipe()(frames)


def test_modes_differ_on_a_wide_image_and_agree_on_a_square_one():
    crop, squash = recipe(resize_short=20), recipe(resize_short=20, resize_mode="squash")
    wide, square = noise(240, 320, 3), noise(256, 256, 3)
    assert not torch.equal(crop(wide), squash(wide))
    assert torch.equal(crop(square), squash(square))


def test_filters_differ_on_noise():
    frame = noise(64, 64, 3)
    assert not torch.equal(recipe()(frame), recipe(resample="bicubic")(frame))


def test_an_image_of_the_right_size_is_only_normalised():
    frame = noise(20, 20, 3)
    assert torch.equal(recipe(resize_short=20)(frame), normalised(frame.movedim(-1, 0)))


def test_statistics_and_scale_are_the_bundles():
    frame = noise(20, 20, 3)
    pixels = recipe(resize_short=20, mean=(0.0,) * 3, std=(1.0,) * 3, rescale=1 / 128)(frame)
    np.testing.assert_allclose(pixels, frame.movedim(-1, 0) / 128, rtol=1e-6)


def test_float32_rescale_of_a_file_is_one_over_255():
    frame = noise(20, 20, 3)
    stored = recipe(resize_short=20, rescale=float(np.float32(1 / 255)))
    assert torch.equal(stored(frame), recipe(resize_short=20)(frame))


def test_reads_the_recipe_from_the_bundle(tiny):
    prepare = Preprocess.from_bundle(Bundle.open(tiny("hfvit")))
    assert (prepare.resize_short, prepare.crop, prepare.size) == (18, 16, 16)
    assert (prepare.resample, prepare.resize_mode) == ("bicubic", "shortest_edge")
    short = tiny("hfvit", **{"jepa.pre.crop": 0, "jepa.pre.resize_short": 16})
    assert Preprocess.from_bundle(Bundle.open(short)).size == 16


def test_an_unknown_filter_is_refused(tiny):
    with pytest.raises((BundleError, ValueError), match=r"lanczos.*bilinear, bicubic"):
        tiny("hfvit", **{"jepa.pre.resample": "lanczos"})


def test_frames_are_not_changed():
    frame = noise(20, 20, 3)
    kept = frame.clone()
    recipe(resize_short=20)(frame)
    assert torch.equal(frame, kept)
