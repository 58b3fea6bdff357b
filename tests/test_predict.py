"""``python -m jepa_wm.predict``: masks from text, real latents, the picture, refusals."""

import re
import sys

import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

import jepa_wm
from jepa_wm import predict
from jepa_wm.errors import BundleError, ConfigError
from jepa_wm.models import masks
from jepa_wm.models.latents import agreement, has_real_latents, real_latents
from jepa_wm.runtime import command
from jepa_wm.viz.masks import MaskedView, masked_prediction
from jepa_wm.viz.style import BLUE, ORANGE

OWN = {"jepa.pred.out_dim": None}  # V-JEPA 2.1 whose predictor aims at its own encoder


def noise(*shape, seed=0):
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def run(capsys, *arguments):
    predict.main([str(argument) for argument in arguments])
    return capsys.readouterr().out


@pytest.fixture
def clip(tmp_path):
    path = tmp_path / "clip.npy"
    np.save(path, noise(4, 18, 22, 3))
    return path


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0:4", [0, 1, 2, 3]),
        ("7", [7]),
        ("9, 1:3", [9, 1, 2]),
        (":2,30:", [0, 1, 30, 31]),
        ("3,3", [3, 3]),
    ],
)
def test_ids_are_numbers_and_ranges(text, ids):
    assert masks.parse_ids(text, 32).tolist() == ids


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0:33", "wanted numbers 0 to 31"),
        ("32", "wanted numbers 0 to 31"),
        ("5:5", "rising"),
        ("6:2", "rising"),
        ("-1", "is no number"),
        ("", "is no number"),
        ("1,,2", "is no number"),
        ("1e3", "is no number"),
        ("\u0661", "is no number"),  # another script's digit
        ("9" * 5000, "is no number"),
    ],
)
def test_what_is_no_list_of_ids_is_refused(text, words):
    with pytest.raises(ConfigError, match=words):
        masks.parse_ids(text, 32)


def test_a_huge_range_is_refused_before_it_is_made():
    with pytest.raises(ConfigError, match=r"999999999 of them; at most"):
        masks.parse_ids("0:999999999", 32, 10**12)


def test_targets_may_lie_beyond_the_clip():
    assert masks.parse_ids("30:40", 32, 10**6).tolist() == list(range(30, 40))


def test_a_block_is_a_box_of_patches():
    grid = (3, 4, 5)
    wanted = [t * 20 + y * 5 + x for t in (1, 2) for y in (0, 1) for x in (3, 4)]
    assert masks.parse_block("1:3,:2,3:", grid).tolist() == wanted
    assert masks.parse_block("2,3,4", grid).tolist() == [59]
    assert masks.parse_block("1:2,0:1", (1, 4, 5)).tolist() == [5]


@pytest.mark.parametrize(
    "text", ["0:4,0:1,0:1", "0:1,2:2,0:1", "0:1", "0:1,0:1,0:1,0:1", "a,0,0", "9999999999,0,0"]
)
def test_a_block_outside_the_grid_is_refused(text):
    with pytest.raises(ConfigError, match=re.escape(f"'{text}'") + r".*(grid|no number)"):
        masks.parse_block(text, (3, 4, 5))


@pytest.mark.parametrize(
    "grid",
    [(1, 16, 16), (1, 14, 14), (1, 28, 28), (1, 4, 4), (1, 3, 3), (1, 2, 2), (1, 1, 2), (1, 5, 9)],
)
def test_a_picture_gets_four_squares_with_gaps(grid):
    blocks = masks.usual_targets(grid)
    together = torch.cat(blocks)
    assert len(blocks) == (4 if min(grid[1:]) >= 3 else 1)
    assert len(together.unique()) == len(together)  # blocks do not overlap
    assert 0 <= together.min() and together.max() < grid[1] * grid[2]
    context = masks.rest(grid, together)
    assert len(context) + len(together) == grid[1] * grid[2] and len(context) > 0
    if min(grid[1:]) >= 14:  # I-JEPA's blocks cover 0.15 to 0.2 of the picture
        assert all(0.13 <= len(block) / (grid[1] * grid[2]) <= 0.2 for block in blocks)


@pytest.mark.parametrize(("slots", "half"), [(8, 4), (2, 1), (3, 2)])
def test_a_clip_gets_its_second_half(slots, half):
    (block,) = masks.usual_targets((slots, 2, 3))
    assert block.tolist() == list(range(half * 6, slots * 6))


def test_nothing_to_predict_or_nothing_to_predict_from_is_refused():
    with pytest.raises(ConfigError, match="single patch"):
        masks.usual_targets((1, 1, 1))
    with pytest.raises(ConfigError, match="nothing is left as context"):
        masks.rest((1, 2, 2), torch.arange(4))


@pytest.mark.parametrize("family", ["ijepa", "vjepa", "vjepa2", "vjepa2_1"])
def test_real_latents_are_normed_level_by_level_without_weights(family, tiny):
    model = jepa_wm.load(tiny(family, **(OWN if family == "vjepa2_1" else {})))
    shape = (4, 16, 16, 3) if model.enc.config.takes_clips else (16, 16, 3)
    pixels = model.pixels(noise(*shape))[None]
    levels = model.pred.config.n_hier_in
    z = model.encode(pixels, levels=levels > 1).double().unflatten(-1, (levels, -1))
    centred = z - z.mean(-1, keepdim=True)
    wanted = centred / ((centred**2).mean(-1, keepdim=True) + 1e-5).sqrt()
    found = real_latents(model, pixels).double()
    torch.testing.assert_close(found, wanted.flatten(-2), rtol=0, atol=1e-5)


def test_the_eps_is_that_of_the_references_not_the_models(tiny):
    """On nearly constant latents the two differ."""
    model = jepa_wm.load(tiny("ijepa"))
    model.enc.norm.weight.mul_(1e-3)
    model.enc.norm.bias.zero_()
    assert real_latents(model, model.pixels(noise(16, 16, 3))[None]).std() < 0.5


def test_a_distilled_predictor_has_no_real_latents(tiny):
    model = jepa_wm.load(tiny("vjepa2_1"))
    assert not has_real_latents(model)
    with pytest.raises(ValueError, match="does not aim"):
        real_latents(model, torch.zeros(1, 4, 3, 16, 16))


def test_agreement_is_cosine_and_mean_difference_per_level():
    a, b = torch.randn(2, 5, 6), torch.randn(2, 5, 6)
    found = agreement(a, b, levels=2)
    assert found.cosine.shape == found.l1.shape == (2, 5, 2)
    x, y = a[1, 3, 3:].double(), b[1, 3, 3:].double()
    assert float(found.cosine[1, 3, 1]) == pytest.approx(float(x @ y / x.norm() / y.norm()), 1e-5)
    assert float(found.l1[1, 3, 1]) == pytest.approx(float((x - y).abs().mean()), 1e-5)
    same = agreement(a, a)
    assert same.cosine.min() > 1 - 1e-6 and same.l1.max() == 0


def test_numbers_and_array_are_those_of_the_models_calls(tiny, clip, tmp_path, capsys):
    path, out = tiny("vjepa2"), tmp_path / "x.npy"
    said = run(capsys, path, clip, "--context", "0:16", "--target", "16:32", "--mask-index", "2",
               "--out", out)  # fmt: skip
    model = jepa_wm.load(path)
    pixels = model.pixels(np.load(clip))[None]
    seen, hidden = torch.arange(16), torch.arange(16, 32)
    wanted = model.predict(pixels, seen, hidden, mask_index=2).target
    assert np.array_equal(np.load(out), wanted[0])
    real = real_latents(model, pixels)[:, 16:]
    cosine = torch.cosine_similarity(wanted, real, dim=-1)[0].numpy()
    l1 = (wanted - real).abs().mean(-1)[0].numpy()
    assert "context 16, target 16, mask token 2" in said and "2 x 4 x 4 patches" in said
    (line,) = re.findall(r"^cosine (.*)\(patch (\d+)\)$", said, re.M)
    printed = [float(word) for word in line[0].split()]
    assert printed == pytest.approx([cosine.mean(), np.median(cosine), cosine.min()], abs=1e-4)
    assert int(line[1]) == 16 + int(cosine.argmin())
    (line,) = re.findall(r"^L1 (.*)\(patch (\d+)\)$", said, re.M)
    assert float(line[0].split()[0]) == pytest.approx(float(l1.mean()), abs=1e-4)
    assert int(line[1]) == 16 + int(l1.argmax())


def test_the_default_is_the_second_half_of_a_clip(tiny, clip, tmp_path, capsys):
    path = tiny("vjepa2")
    run(capsys, path, clip, "--out", tmp_path / "a.npy")
    run(capsys, path, clip, "--context", "0:16", "--target", "16:32", "--out", tmp_path / "b.npy")
    run(capsys, path, clip, "--block", "1:2,:,:", "--out", tmp_path / "c.npy")
    first = np.load(tmp_path / "a.npy")
    assert np.array_equal(first, np.load(tmp_path / "b.npy"))
    assert np.array_equal(first, np.load(tmp_path / "c.npy"))


def test_switches_change_what_is_predicted(tiny, clip, tmp_path, capsys):
    path, found = tiny("vjepa2"), {}
    for name, extra in (
        ("plain", []),
        ("whole", ["--whole-clip"]),
        ("token", ["--mask-index", "2"]),
        ("apart", ["--target", "16:20", "--target", "20:32", "--apart", "--context", "0:16"]),
    ):
        run(capsys, path, clip, *extra, "--out", tmp_path / "x.npy")
        found[name] = np.load(tmp_path / "x.npy")
    for name in ("whole", "token", "apart"):
        assert found[name].shape == found["plain"].shape
        assert not np.allclose(found[name], found["plain"], atol=1e-4), name


def test_blocks_of_a_picture_are_predicted_one_by_one(tiny, tmp_path, capsys):
    """As I-JEPA trains: no target sees another block's mask tokens."""
    picture, path, out = tmp_path / "x.png", tiny("ijepa"), tmp_path / "x.npy"
    Image.fromarray(noise(20, 20, 3)).save(picture)
    blocks = ["--block", "0:1,0:2", "--block", "2:4,2:4"]
    said = run(capsys, path, picture, *blocks, "--out", out)
    assert "target 6 in 2 blocks" in said
    model = jepa_wm.load(path)
    pixels = model.pixels(np.array(Image.open(picture)))[None]
    targets = [torch.tensor([0, 1]), torch.tensor([10, 11, 14, 15])]
    seen = torch.tensor([i for i in range(16) if i not in (0, 1, 10, 11, 14, 15)])
    context = model.encode(pixels, seen)
    wanted = [model.pred(context, seen, target).target[0] for target in targets]
    np.testing.assert_allclose(np.load(out), torch.cat(wanted), rtol=0, atol=1e-6)
    run(capsys, path, picture, *blocks, "--no-apart", "--out", out)
    assert not np.allclose(np.load(out), torch.cat(wanted), atol=1e-4)


def test_levels_have_lines_of_their_own(tiny, clip, capsys):
    said = run(capsys, tiny("vjepa2_1", **OWN), clip)
    assert "cosine of level 0" in said and "L1 of level 1" in said


def test_a_distilled_predictor_says_why_there_is_nothing_to_compare(tiny, clip, tmp_path, capsys):
    said = run(capsys, tiny("vjepa2_1"), clip, "--picture", tmp_path / "x.png")
    assert "no real latents" in said and "gives 48 numbers" in said and "cosine" not in said
    assert Image.open(tmp_path / "x.png").size[0] > 100


def test_targets_beyond_the_clip_and_seen_targets_are_said(tiny, clip, capsys):
    path = tiny("vjepa2")
    said = run(capsys, path, clip, "--context", "0:16", "--target", "15:48")
    assert "note: 16 targets lie beyond the input" in said
    assert "note: 1 targets are in the context" in said and "cosine" in said
    assert "cosine" not in run(capsys, path, clip, "--context", "0:16", "--target", "32:48")


def test_a_still_picture_takes_the_image_path(tiny, tmp_path, capsys):
    Image.fromarray(noise(20, 20, 3)).save(tmp_path / "x.png")
    said = run(capsys, tiny("vjepa2_1", **OWN), tmp_path / "x.png")
    assert "1 x 4 x 4 patches" in said
    assert "1 x 4 x 4 patches" in run(capsys, tiny("vjepa2"), tmp_path / "x.png")
    assert "2 x 4 x 4 patches" in run(capsys, tiny("vjepa"), tmp_path / "x.png")


@pytest.mark.parametrize("kind", ["png", "pdf", "svg"])
def test_a_picture_is_drawn(kind, tiny, clip, tmp_path, capsys):
    path = tmp_path / f"x.{kind}"
    said = run(capsys, tiny("vjepa2"), clip, "--picture", path)
    start = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[kind]
    assert str(path) in said and path.read_bytes().startswith(start)


def view(slots=2, error=True):
    rng = np.random.default_rng(0)
    target = np.zeros((slots, 3, 4), bool)
    target[-1, 1:, 1:] = True
    context = ~target
    context[0, 0, 0] = False  # neither
    values = np.where(target, rng.random(target.shape), np.nan)
    frames = noise(slots, 12, 16, 3)
    return MaskedView(
        frames=frames, context=context, target=target, error=values if error else None
    )


def test_the_figure_shows_masks_and_error_where_they_are():
    shown = view()
    figure = masked_prediction(shown, "clip")
    assert isinstance(figure, Figure)
    above, heat = figure.axes[1], figure.axes[3]
    frame, overlay = above.images
    assert np.array_equal(frame.get_array(), shown.frames[1])
    colours = overlay.get_array()
    assert np.allclose(colours[shown.target[1]][:, :3], to_rgb(ORANGE))
    assert np.allclose(colours[shown.context[1]][:, :3], to_rgb(BLUE))
    dark = figure.axes[0].images[1].get_array()[0, 0]
    assert dark[:3].max() < 0.2 and dark[3] > 0.5
    values = heat.images[1].get_array()
    assert np.array_equal(values.mask, ~shown.target[1])
    assert np.allclose(values.compressed(), shown.error[1][shown.target[1]])
    assert overlay.get_extent() == heat.images[1].get_extent() == [-0.5, 15.5, 11.5, -0.5]
    assert "cosine [1]" in figure.axes[-1].get_ylabel()


def test_the_figure_without_error_has_one_row_and_many_slots_are_thinned():
    assert len(masked_prediction(view(error=False)).axes) == 2
    titles = [axes.get_title() for axes in masked_prediction(view(30, False), most=4).axes]
    assert titles == ["slot 0", "slot 10", "slot 19", "slot 29"]


def test_a_view_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="do not fit"):
        MaskedView(frames=noise(3, 4, 4, 3), context=np.ones((2, 1, 1), bool),
                   target=np.ones((2, 1, 1), bool), error=None)  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["clip.npy", "--target", "0:32"], "nothing is left as context"),
        (["clip.npy", "--context", "0:40"], "wanted numbers 0 to 31"),
        (["clip.npy", "--target", "x"], "'x' is no number"),
        (["clip.npy", "--block", "0:9,0:1,0:1"], "leaves the grid of 2 time slots"),
        (["clip.npy", "clip.npy"], "2 pictures or clips given"),
        (["clip.npy", "--as", "images"], "4 pictures given"),
        (["absent.npy"], "no such file"),
        (["clip.npy", "--picture", "x.gif"], "x.gif: the name must end in .png"),
        (["clip.npy", "--out", "x.csv"], "x.csv: the name must end in .npy"),
        (["clip.npy", "--out", "no/x.npy"], "cannot be written"),
        (["clip.npy", "--frames", "1x"], "--frames 1x"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(
    arguments, words, tiny, clip, tmp_path, monkeypatch, capsys
):
    path = tiny("vjepa2")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    extra = [] if "--picture" in arguments else ["--picture", "p.png"]
    monkeypatch.setattr(sys, "argv", ["predict", str(path), *arguments, *extra])
    with pytest.raises(SystemExit) as status:
        command(predict.main)
    said = capsys.readouterr()
    assert status.value.code == 1 and said.out == ""
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and words in said.err
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("family", "words"), [("lewm", "is lewm"), ("levjepa", "is absent.*the authors' own file")]
)
def test_a_model_without_a_masked_predictor_is_refused(family, words, tiny, clip):
    with pytest.raises(ConfigError, match=f"jepa.pred.kind {words}"):
        predict.main([str(tiny(family)), str(clip)])


def test_ids_beyond_a_position_table_are_refused(tiny, clip):
    with pytest.raises((ConfigError, BundleError), match="wanted numbers 0 to 31"):
        predict.main([str(tiny("vjepa")), str(clip), "--target", "16:40", "--context", "0:16"])
