"""Pictures of rollouts: every number lands where it belongs, and what does not fit is refused."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from jepa_wm.viz.embeddings import COLOURS, Fan, fans, latent_plane
from jepa_wm.viz.imagined import MAP, Maps, Row, overlays, patch_maps, shown, strip

STEPS = np.array([0, 5, 10])
HEADS = [f"step {step}" for step in STEPS]
FEW = np.ones((2, 2))
FRAMES = np.random.default_rng(0).integers(0, 255, (3, 8, 12, 3), dtype=np.uint8)


def drawn(figure):
    """Render, so that a layout that fails does so here; return the axes with data."""
    figure.canvas.draw()
    return [axes for axes in figure.axes if axes.has_data()]


def test_a_fan_is_the_median_within_its_quartiles():
    values = np.arange(15.0).reshape(5, 3) ** 2
    panel = Fan(title="Distance", unit="latent units", curves={"predicted": values},
                scale=(9.0, "random pair"))  # fmt: skip
    figure = fans([panel], STEPS, "note")
    (axes,) = drawn(figure)
    curve, level = axes.lines
    np.testing.assert_array_equal(curve.get_xdata(), STEPS)
    np.testing.assert_allclose(curve.get_ydata(), np.median(values, 0))
    assert to_hex(curve.get_color()) == COLOURS["predicted"] and curve.get_linestyle() == "--"
    assert set(level.get_ydata()) == {9.0} and level.get_label() == "random pair"
    band = axes.collections[0].get_paths()[0].vertices
    low, high = np.quantile(values, (0.25, 0.75), axis=0)
    assert {*np.round(low, 6), *np.round(high, 6)} <= {*np.round(band[:, 1], 6)}
    assert axes.get_xlabel() == "environment step" and axes.get_ylabel() == "latent units"
    assert figure.legends[0].get_title().get_text() == "note"


def test_each_measure_has_its_panel():
    panels = [Fan(title=f"m{i}", unit="px", curves={"encoded": np.ones((2, 3))}) for i in range(4)]
    assert [axes.get_title(loc="left") for axes in drawn(fans(panels, STEPS))] == [
        "m0", "m1", "m2", "m3",
    ]  # fmt: skip


def test_the_plane_shows_both_paths_and_how_much_it_shows():
    bank, path = np.random.default_rng(0).normal(size=(2, 20, 2))
    paths = {"encoded": path[:3], "predicted": path[:3] + 0.1}
    (axes,) = drawn(latent_plane(bank, paths, STEPS, (0.5, 0.25)))
    np.testing.assert_array_equal(axes.collections[0].get_offsets(), bank)
    for line, (name, places) in zip(axes.lines, paths.items(), strict=True):
        np.testing.assert_array_equal(line.get_xydata(), places)
        assert line.get_label() == name
    assert "50 % of variance" in axes.get_xlabel() and "25 % of variance" in axes.get_ylabel()
    assert {text.get_text() for text in axes.texts} == {"step 0", "step 10"}


def test_a_strip_has_a_row_of_frames_for_each_source():
    rows = [Row(label="true", pictures=FRAMES), Row(label="near", pictures=255 - FRAMES,
            captions=["d = 1", "d = 2", "d = 3"])]  # fmt: skip
    axes = drawn(strip(rows, HEADS, "a note"))
    assert len(axes) == 6
    for index, one in enumerate(axes):
        row, column = divmod(index, 3)
        np.testing.assert_array_equal(one.images[0].get_array(), rows[row].pictures[column])
    assert [one.get_title() for one in axes[:3]] == HEADS
    assert [one.get_xlabel() for one in axes[3:]] == ["d = 1", "d = 2", "d = 3"]


def test_a_long_note_stays_within_a_narrow_figure():
    figure = strip([Row(label="true", pictures=FRAMES)], HEADS, "word " * 60)
    drawn(figure)
    (note,) = [text for text in figure.texts if "word" in text.get_text()]
    box = note.get_window_extent()
    assert 0 <= box.x0 and box.x1 <= figure.bbox.x1 and note.get_text().count("word") == 60


def test_outlines_land_on_the_pixels_they_name():
    """A quarter of the way across and half of the way down a frame of 12 x 8 pixels."""
    curve = np.array([[0.25, 0.5], [0.5, 0.5]])
    found = {"agent": curve}
    outlines = {
        "true": [found] * 3,
        "encoded": [found] * 3,
        "predicted": [{"agent": curve + 0.25}] * 3,
    }
    figure = overlays(FRAMES, outlines, HEADS)
    axes = drawn(figure)
    assert len(axes) == 6  # encoded and predicted, the truth in both
    for one in axes:
        true, read = one.lines
        np.testing.assert_allclose(true.get_xydata(), [[2.5, 3.5], [5.5, 3.5]])
        assert to_hex(true.get_color()) == COLOURS["true"]
    assert to_hex(read.get_color()) == COLOURS["predicted"] and read.get_linestyle() == "--"
    np.testing.assert_allclose(read.get_xydata(), [[5.5, 5.5], [8.5, 5.5]])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["true", "encoded", "predicted"]


def test_maps_share_one_scale_and_cover_the_frame():
    rows = [
        Maps(label="a", values=np.full((3, 2, 2), 0.5)),
        Maps(label="b", values=np.eye(2)[None].repeat(3, 0)),
    ]
    figure = patch_maps(FRAMES, rows, HEADS, "cosine (1)")
    maps = [axes.images[1] for axes in drawn(figure) if len(axes.images) == 2]
    assert len(maps) == 6
    for image in maps:
        assert image.get_clim() == (0.0, 1.0) and image.get_cmap().name == MAP
        assert list(image.get_extent()) == [-0.5, 11.5, 7.5, -0.5]
    assert "cosine (1)" in {axes.get_ylabel() for axes in figure.axes}


def test_shown_moments_are_spread_evenly_with_both_ends():
    assert (
        shown(3, 8) == [0, 1, 2] and shown(11, 6) == [0, 2, 4, 6, 8, 10] and shown(11, 2) == [0, 10]
    )


def fan(**curves):
    return Fan(title="t", unit="", curves={k: np.ones(shape) for k, shape in curves.items()})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fans([], STEPS), "at least one panel"),
        (lambda: fan(encoded=(2, 3), predicted=(2, 4)), r"t: curves must be \[B,n\]"),
        (lambda: fans([fan(encoded=(2, 4))], STEPS), "4 moments of 3"),
        (lambda: latent_plane(np.ones((4, 2)), {"encoded": FEW}, STEPS, (1, 0)), r"\[3,2\]"),
        (lambda: strip([], HEADS), "strip needs rows"),
        (lambda: strip([Row(label="", pictures=FRAMES, captions=["a"])], HEADS), "or none"),
        (lambda: overlays(FRAMES, {"encoded": []}, HEADS), "3 sets of outlines"),
        (lambda: patch_maps(FRAMES, [Maps(label="", values=FEW)], HEADS, "m"), "3 maps"),
    ],
)
def test_what_does_not_fit_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
