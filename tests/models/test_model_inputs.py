"""What may be given to a loaded model: the same numbers in any form, or one sentence."""

import numpy as np
import pytest
import torch

from jepa_wm.models import load

CPU = torch.device("cpu")
SEEN, WANTED = torch.tensor([3, 0, 9]), torch.tensor([5, 4])


@pytest.fixture
def clips(tiny):
    """A model of clips with a masked predictor, and two clips for it."""
    generator = torch.Generator().manual_seed(0)
    return load(tiny("vjepa2"), CPU), torch.randn(2, 4, 3, 16, 16, generator=generator)


@pytest.fixture
def images(tiny):
    return load(tiny("hfvit"), CPU)


def photo():
    return np.random.default_rng(0).integers(0, 256, (20, 31, 3), dtype=np.uint8)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool, torch.complex64])
def test_pixels_that_are_no_floats_are_refused(clips, dtype):
    """Raw pictures would be encoded without their mean and deviation."""
    model, pixels = clips
    for run in model.encode, model.embed_pixels, model.classify_pixels:
        with pytest.raises(ValueError, match=r"wanted preprocessed floats: model\.pixels"):
            run(pixels.to(dtype))


def test_arrays_do_as_tensors_do(clips):
    model, pixels = clips
    ids = SEEN.numpy()
    assert torch.equal(model.encode(pixels.numpy(), ids), model.encode(pixels, SEEN))
    given = model.predict(pixels.numpy(), ids.tolist(), WANTED.int()).target
    assert torch.equal(given, model.predict(pixels, SEEN, WANTED).target)


@pytest.mark.parametrize("ids", [SEEN.bool(), SEEN.float(), [0.5], torch.ones(32).bool()])
def test_ids_that_are_no_integers_are_refused(clips, ids):
    """A mask would pick rows by position, or turn into the ids 0 and 1."""
    model, pixels = clips
    runs = (
        lambda: model.encode(pixels, ids),
        lambda: model.predict(pixels, ids, WANTED),
        lambda: model.predict(pixels, SEEN, ids),
        lambda: model.predict(pixels, ids, WANTED, whole_clip=True),
    )
    for run in runs:
        with pytest.raises(ValueError, match="wanted int64"):
            run()


@pytest.mark.parametrize("whole_clip", [False, True])
@pytest.mark.parametrize(
    ("ids", "match"),
    [
        ([32], "0 to 31"),
        ([-1], "0 to 31"),
        ([[0, 1]] * 3, r"\[2,K\]"),
        ([[[0]], [[1]]], r"got \[2, 1, 1\]"),
        (torch.zeros(0, dtype=torch.int64), "not empty"),
    ],
)
def test_context_ids_that_do_not_fit_are_refused(clips, ids, match, whole_clip):
    model, pixels = clips
    with pytest.raises(ValueError, match=match):
        model.predict(pixels, torch.as_tensor(ids), WANTED, whole_clip=whole_clip)


def test_a_turned_round_array_is_the_picture_it_shows(images):
    """``cv2.imread(path)[..., ::-1]`` has a negative stride."""
    turned = photo()[..., ::-1]
    assert torch.equal(images.embed(turned), images.embed(turned.copy()))


@pytest.mark.parametrize("frames", [None, "photo.png", ["photo.png"], object(), [[1, 2], [3, 4]]])
def test_what_holds_no_frames_is_refused(images, frames):
    with pytest.raises(TypeError, match="wanted a tensor or array"):
        images.embed(frames)


def test_a_sequence_is_not_empty_and_of_one_kind(clips, images):
    model, _ = clips
    clip = np.stack([photo()] * 4)
    for refused, frames in (images, []), (model, [clip, clip[:2]]), (model, [clip, photo()]):
        with pytest.raises(ValueError, match=r"of one kind wanted, got (none|\[4)"):
            refused.embed(frames)


def test_no_pictures_are_refused(clips, images):
    model, pixels = clips
    for shape in (0, 20, 31, 3), (2, 0, 20, 31, 3), (0, 3, 20, 31):
        for run in images.embed, images.pixels, model.embed, model.classify:
            with pytest.raises(ValueError, match=rf"frames \[{shape[0]}, .*hold no pixels"):
                run(np.zeros(shape, np.uint8))
    for none in pixels[:0], pixels[:, :0]:
        runs = model.encode, model.embed_pixels, model.classify_pixels
        for run in (*runs, lambda pixels: model.predict(pixels, SEEN, WANTED)):
            with pytest.raises(ValueError, match=r"pixels \[\d, \d, 3, 16, 16\] are none"):
                run(none)
