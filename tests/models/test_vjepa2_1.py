"""The vjepa2_1 family against its authors' code, and its quirks one by one."""

import pytest
import torch
from drawn import difference, draw
from vjepa2_1_cases import CLIPS, KEPT, LEVELS, PREDICTIONS, D
from vjepa2_1_source import ARRAYS, CPU, RELATIVE, checkpoint, converter, encode, predict, weights

from jepa_wm.models import load


@pytest.fixture(scope="module")
def to_bundle(tmp_path_factory):
    return converter(tmp_path_factory.mktemp)


@pytest.fixture(scope="module")
def models(to_bundle):
    """Encoder and predictor of each kind: ``one`` level in, ``four`` levels in, and patch 14."""
    sources = {
        "one": to_bundle(checkpoint()),
        "four": to_bundle(checkpoint(predictor="four", entry="target_encoder")),
        "patch14": to_bundle(checkpoint("patch14"), "enc.img_size=56", "pre.crop=56"),
    }
    return {name: load(bundle, CPU) for name, bundle in sources.items()}


# parity


@pytest.mark.parametrize("case", CLIPS)
def test_clips_and_pictures_of_every_size(models, case):
    """Patch 16 and 14, grids and lengths other than the trained ones, an odd last frame."""
    model = models["patch14" if CLIPS[case][0] == "patch14" else "one"]
    tokens = encode(model, case)
    assert difference(tokens, ARRAYS[case]) < RELATIVE
    pooled = model.embed_pixels(draw(case, CLIPS[case][1]))
    assert difference(pooled, ARRAYS[case].mean(1)) < RELATIVE


def test_levels_of_which_the_last_is_the_plain_output(models):
    pixels = draw("levels", LEVELS)
    levels = models["four"].encode(pixels, levels=True)
    assert difference(levels, ARRAYS["levels"]) < RELATIVE
    assert torch.equal(levels[..., -D:], models["four"].encode(pixels))


def test_a_context_subset_keeps_its_positions(models):
    clip = draw("kept", CLIPS["native"][1])
    tokens = models["one"].encode(clip, torch.tensor(KEPT))
    assert difference(tokens, ARRAYS["kept"]) < RELATIVE
    moved = models["one"].encode(clip, torch.tensor(KEPT).add(1))
    assert difference(moved, ARRAYS["kept"]) > 0.1


@pytest.mark.parametrize("case", PREDICTIONS)
def test_predictions_of_targets_and_context(models, case):
    found = predict(models[PREDICTIONS[case][0]], case)
    assert difference(found.target, ARRAYS[f"{case}/target"]) < RELATIVE
    assert difference(found.context, ARRAYS[f"{case}/context"]) < RELATIVE


@pytest.mark.parametrize("kind", ["one", "four"])
@pytest.mark.parametrize("frames", [1, 4])
def test_predicting_joins_the_encoder_and_the_predictor(models, kind, frames):
    """Four levels go in where the predictor takes them; one frame is a picture."""
    model, pixels = models[kind], draw("joined", (2, frames, 3, 64, 64))
    seen, wanted = torch.tensor([0, 5, 7]), torch.tensor([9, 2])
    found = model.predict(pixels, seen, wanted, mask_index=0)
    z = model.encode(pixels, seen, levels=kind == "four")
    with torch.inference_mode():
        direct = model.pred(z, seen, wanted, mask_index=0, is_image=frames == 1)
    assert torch.equal(found.target, direct.target)
    assert torch.equal(found.context, direct.context)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_direction(to_bundle, dtype):
    model = load(to_bundle(checkpoint()), CPU, dtype)
    for case in ("native", "picture"):
        pooled = model.embed_pixels(draw(case, CLIPS[case][1]))
        cosine = torch.cosine_similarity(pooled, ARRAYS[case].mean(1)).min().item()
        assert cosine >= 0.999, f"{dtype} {case}: {cosine:.5f}"


# quirks: the wrong variant is far from the authors' numbers


@pytest.mark.parametrize(
    "wrong",
    [
        "enc.rope_freq_layout=tiled",
        "enc.rope_interpolate=false",
        "enc.rope_ref_grid=18",
        "enc.rope_theta=1000",
        "enc.ln_eps=1e-5",
        "enc.ln_eps=1e-12",
        "enc.act=gelu_tanh",
        "enc.n_head=1",
    ],
)
def test_a_wrong_encoder_is_noticed(to_bundle, wrong):
    error = difference(
        encode(load(to_bundle(checkpoint(), wrong), CPU), "native"), ARRAYS["native"]
    )
    assert error > 10 * RELATIVE, f"{wrong}: {error:.2g}"


@pytest.mark.parametrize(
    "wrong",
    [
        ("pred.rope_freq_layout=tiled",),
        ("pred.rope_interpolate=true", "pred.rope_ref_grid=16"),  # as in training
        ("pred.grid_size=5",),
        ("pred.n_head=1",),
        ("pred.act=gelu_tanh",),
    ],
)
def test_a_wrong_predictor_is_noticed(to_bundle, wrong):
    case = "four, token 0"
    bundle = to_bundle(checkpoint(predictor="four", entry="target_encoder"), *wrong)
    error = difference(predict(load(bundle, CPU), case).target, ARRAYS[f"{case}/target"])
    assert error > 10 * RELATIVE, f"{wrong}: {error:.2g}"


def test_the_mask_token_counts_and_wraps(models):
    case, n = "one, token 1", 3
    for index in range(-1, 6):
        error = difference(
            predict(models["one"], case, index=index).target, ARRAYS[f"{case}/target"]
        )
        assert error < RELATIVE if index % n == 1 else error > 1e-3, f"{index}: {error:.2g}"


@pytest.mark.parametrize("case", ["one, picture", "one, token 1"])
def test_the_modality_counts_in_the_predictor(models, case):
    other = "video" if PREDICTIONS[case][1] == "image" else "image"
    error = difference(predict(models["one"], case, kind=other).target, ARRAYS[f"{case}/target"])
    assert error > 1e-4, f"{error:.2g}"


def test_a_picture_shown_as_two_frames_is_a_clip(models):
    still = draw("picture", CLIPS["picture"][1])
    assert difference(models["one"].encode(still.repeat(1, 2, 1, 1, 1)), ARRAYS["picture"]) > 0.01


@pytest.mark.parametrize("part", ["video_mod_embed", "img_mod_embed", "patch_embed_img.proj.bias"])
def test_every_vector_of_a_modality_is_used(to_bundle, part):
    source = checkpoint()
    source["ema_encoder"][f"module.backbone.{part}"] = 3 * weights("encoder")[part]
    model = load(to_bundle(source), CPU)
    changed, same = ("native", "picture") if part.startswith("video") else ("picture", "native")
    assert difference(encode(model, same), ARRAYS[same]) < RELATIVE
    assert difference(encode(model, changed), ARRAYS[changed]) > 1e-3


def test_levels_are_read_where_the_depth_says(to_bundle):
    wrong = load(to_bundle(checkpoint(), "enc.hier_layers=2,5,9,11"), CPU)
    levels = wrong.encode(draw("levels", LEVELS), levels=True)
    assert difference(levels[..., : 2 * D], ARRAYS["levels"][..., : 2 * D]) < RELATIVE
    assert difference(levels[..., 2 * D : 3 * D], ARRAYS["levels"][..., 2 * D : 3 * D]) > 0.01


def test_a_grid_of_one_row_is_defined(models):
    """The authors divide 0 by 0 there; our only row is at 0, wherever the grid ends."""
    assert models["one"].encode(draw("row", (1, 2, 3, 16, 64))).isfinite().all()
