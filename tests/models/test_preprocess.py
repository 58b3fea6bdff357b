"""Pixels: the same as the torchvision-backed processors make, from a frame in any form."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import BundleError
from jepa_wm.models import load, preprocess
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
    frame = noise(*size, 3)
    pixels = recipe(resize_mode="squash", resample=resample)(frame)
    assert torch.equal(pixels, normalised(resized(frame, [20, 20], resample)))


def resized(frame, size, resample):
    """Resize as torchvision does, uint8 [3,h,w] from [H,W,3]; an int is the short side."""
    functional = pytest.importorskip("torchvision.transforms.v2.functional")
    mode = functional.InterpolationMode(resample)
    return functional.resize(
        frame.movedim(-1, 0).contiguous(), size, interpolation=mode, antialias=True
    )


# to a single pixel torchvision cannot resize
SIDES = st.integers(1, 90) | st.sampled_from([127, 128, 255, 400, 1001])
HEIGHTS = SIDES.filter(lambda height: height != 3)  # which could be the channels
FILTERS = st.sampled_from(["bilinear", "bicubic"])


@pytest.mark.reference
@settings(max_examples=150, deadline=None)
@given(HEIGHTS, SIDES, st.integers(2, 70), FILTERS, st.integers(0, 2**31))
def test_squash_of_any_size_is_torchvisions(height, width, size, resample, seed):
    """Bit for bit: growing and shrinking, odd sizes, one pixel, aspects up to 1001 to 1."""
    frame = noise(height, width, 3, seed=seed)
    prepare = recipe(resize_mode="squash", crop=size, resample=resample)
    assert torch.equal(prepare(frame), normalised(resized(frame, [size, size], resample)))


@pytest.mark.reference
@settings(max_examples=150, deadline=None)
@given(HEIGHTS, SIDES, st.integers(2, 40), st.data(), FILTERS, st.integers(0, 2**31))
def test_shortest_edge_of_any_size_is_torchvisions(height, width, short, data, resample, seed):
    frame = noise(height, width, 3, seed=seed)
    crop = data.draw(st.integers(1, short))
    whole = resized(frame, [short], resample)
    top, left = (whole.shape[1] - crop) // 2, (whole.shape[2] - crop) // 2
    wanted = whole[:, top : top + crop, left : left + crop]
    prepare = recipe(resize_short=short, crop=crop, resample=resample)
    assert torch.equal(prepare(frame), normalised(wanted))


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


def clip(*shape):
    return noise(2, 5, *shape, 3)


@pytest.mark.parametrize("frames", [clip(30, 28), clip(7, 95), clip(60, 41)[:, :, 3:50:2, 1:]])
@pytest.mark.parametrize("mode", ["squash", "shortest_edge"])
def test_every_frame_of_a_clip_is_prepared_on_its_own(frames, mode):
    """Memory layout and neighbours change nothing."""
    prepare = recipe(resize_mode=mode)
    alone = [prepare(frame.clone()) for frame in frames.flatten(0, 1)]
    assert torch.equal(prepare(frames).flatten(0, 1), torch.stack(alone))


def test_frames_are_resized_in_portions(monkeypatch):
    frames, prepare = clip(30, 28), recipe()
    wanted = prepare(frames)
    for limit in (30 * 24, 3 * 30 * 24 + 7):  # one and three frames of 30 rows, 24 columns
        monkeypatch.setattr(preprocess, "MAX_PIXELS", limit)
        assert torch.equal(prepare(frames), wanted)
    monkeypatch.setattr(preprocess, "MAX_PIXELS", 30 * 24 - 1)
    with pytest.raises(ValueError, match="crop them first"):
        prepare(frames)


@pytest.mark.parametrize("size", [(1, 10**7), (10**7, 1)])
def test_a_thin_picture_is_refused_before_it_is_resized(size):
    frame = torch.zeros(1, dtype=torch.uint8).expand(*size, 3)
    with pytest.raises(ValueError, match=r"resized to .*limit is 64: crop them first"):
        recipe()(frame)
    assert recipe(resize_mode="squash")(frame[:1000, :1000]).shape == (3, 20, 20)


@pytest.mark.parametrize("mode", ["squash", "shortest_edge"])
def test_a_recipe_of_giant_pictures_is_refused_before_they_are_made(mode):
    """A crop beyond the picture is padded with zeros: 65,536 px would take 13 GB."""
    with pytest.raises(ValueError, match="pictures of 65536x65536 pixels; the limit is 64 Mpx"):
        recipe(crop=1 << 16, resize_mode=mode)(noise(30, 28, 3))


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


SQUASH = {"jepa.pre.resize_mode": "squash"}
CROP = {"jepa.pre.resize_mode": "shortest_edge", "jepa.pre.resize_short": 16}


@pytest.mark.reference
def test_the_bundle_says_squash_or_crop(tiny):
    """On a wide picture the two differ, each as torchvision has it; on a square one they agree."""
    prepare = {
        mode: Preprocess.from_bundle(Bundle.open(tiny("hfvit", **keys)))
        for mode, keys in (("squash", SQUASH), ("crop", CROP))
    }
    wide = noise(240, 320, 3)
    squashed, cropped = prepare["squash"](wide), prepare["crop"](wide)
    assert torch.equal(squashed, normalised(resized(wide, [16, 16], "bicubic")))
    assert torch.equal(cropped, normalised(resized(wide, [16], "bicubic")[:, :, 2:18]))
    assert not torch.equal(squashed, cropped)
    square = noise(256, 256, 3)
    assert torch.equal(prepare["squash"](square), prepare["crop"](square))


def test_the_bundle_says_the_filter(tiny):
    paths = [tiny("hfvit", **{"jepa.pre.resample": name}) for name in ("bilinear", "bicubic")]
    bilinear, bicubic = (Preprocess.from_bundle(Bundle.open(path)) for path in paths)
    assert not torch.equal(bilinear(noise(64, 64, 3)), bicubic(noise(64, 64, 3)))


def test_an_embedding_does_not_depend_on_the_form_of_the_frame(tiny):
    """The file's mean and std are applied, whatever comes; nothing is guessed from the values."""
    model = load(tiny("hfvit"), torch.device("cpu"))
    frame = noise(33, 47, 3)
    wanted = model.embed(frame)
    for form in (frame / 255, frame.movedim(-1, 0), (frame / 255).movedim(-1, 0)):
        torch.testing.assert_close(model.embed(form), wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        model.embed(frame / 160)
    raw = load(
        tiny("hfvit", **{"jepa.pre.mean": [0.0] * 3, "jepa.pre.std": [1.0] * 3}),
        torch.device("cpu"),
    )
    assert not torch.allclose(raw.embed(frame), wanted, atol=1e-2)


def test_an_unknown_filter_is_refused(tiny):
    with pytest.raises((BundleError, ValueError), match=r"lanczos.*bilinear, bicubic"):
        tiny("hfvit", **{"jepa.pre.resample": "lanczos"})


def test_frames_are_not_changed():
    frame = noise(20, 20, 3)
    kept = frame.clone()
    recipe(resize_short=20)(frame)
    assert torch.equal(frame, kept)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("resample", ["bilinear", "bicubic"])
def test_cuda_rounds_to_the_same_level_or_the_next(resample):
    frames, prepare = noise(4, 123, 217, 3), recipe(resample=resample)
    std = torch.tensor(STD)[:, None, None] * 255
    levels = ((prepare(frames.cuda()).cpu() - prepare(frames)) * std).round()
    assert levels.abs().max() <= 1 and (levels != 0).float().mean() < 0.05


@pytest.mark.parametrize("rescale", [1 / 255, float(np.float32(1 / 255)), 1 / 128])
def test_a_picture_is_what_the_model_sees(rescale):
    frames, prepare = noise(2, 20, 24, 3), recipe(resize_short=20, rescale=rescale)
    assert torch.equal(prepare.picture(prepare(frames)), frames[:, :, 2:22])
