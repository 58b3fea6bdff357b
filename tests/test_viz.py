"""Pictures: files decode to what was written, cards and figures show what the episodes hold."""

import os
import re
import subprocess
import sys

import imageio_ffmpeg
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image

from jepa_wm.control.episode import Episode
from jepa_wm.control.rates import wilson_interval
from jepa_wm.control.statistics import Measure
from jepa_wm.errors import ConfigError
from jepa_wm.viz.frames import DECORATION_NOTE, Film, film_frames, overlay, still
from jepa_wm.viz.plans import effective_samples, goal_distance, planner_cost, success_rates
from jepa_wm.viz.rollouts import NO_DECODER_NOTE, LatentDistances, filmstrip
from jepa_wm.viz.style import GREEN
from jepa_wm.viz.video import require_video, write_video

BLOCK = Measure(key="block_err", label="block distance", unit="px", threshold=20.0)
ANGLE = Measure(key="angle_err", label="block angle", unit="deg", scale=180 / np.pi, threshold=20.0)
GREEN_RGB = np.round(np.array(to_rgb(GREEN)) * 255).astype(np.uint8)


def make_frames(count, height, width, seed=0):
    """Smooth coloured frames, so that lossy encoders keep them nearly."""
    y, x = np.mgrid[:height, :width]
    shift = np.arange(seed, seed + count)[:, None, None]
    red, green = np.broadcast_to(x * 200 // width, (count, height, width)), (y + 4 * shift) % 256
    blue = np.full((count, height, width), 90)
    return np.stack([red, np.minimum(green, 250), blue], -1).astype(np.uint8)


def make_episode(id=0, distances=(60.0, 40.0, 30.0, 10.0), size=(24, 32), **fields):
    distances = np.array(distances)
    steps, decisions = len(distances) - 1, max(1, -(-(len(distances) - 1) // 5))
    iterations = np.array([4.0, 3.0, 2.0])
    plans = {
        "step": 5 * np.arange(decisions),
        "cost": np.full(decisions, 2.0),
        "best": np.tile(iterations, (decisions, 1)),
        "elite_mean": np.tile(iterations + 1, (decisions, 1)),
        "spread": np.tile(iterations / 4, (decisions, 1)),
        "effective_samples": np.tile([30.0, 20.0, 10.0], (decisions, 1)),
    }
    record = {
        "id": id,
        "seed": id,
        "success": bool(distances[-1] < 20),
        "presolved": False,
        "actions": np.zeros((steps, 2), np.float32),
        "rewards": np.zeros(steps),
        "metrics": {
            "block_err": distances,
            "angle_err": np.linspace(1, 0, steps + 1),
            "is_success": distances < 20,
        },
        "goal": make_frames(1, *size, seed=40)[0],
        "frames": make_frames(steps + 1, *size),
        "plans": plans,
        "config": {"success": "is_success", "hold": 1, "budget": 50},
    }
    return Episode(**(record | fields))


def read_gif(path):
    """Frames as shown, uint8 [n,H,W,3], and their durations in ms."""
    frames, durations = [], []
    with Image.open(path) as image:
        for index in range(image.n_frames):
            image.seek(index)
            frames.append(np.array(image.convert("RGB")))
            durations.append(image.info["duration"])
    return np.stack(frames), durations


def read_mp4(path):
    reader = imageio_ffmpeg.read_frames(str(path))
    width, height = next(reader)["size"]
    return np.stack([np.frombuffer(data, np.uint8).reshape(height, width, 3) for data in reader])


# Video files


def test_gif_keeps_odd_size_frames_and_colours(tmp_path):
    frames = make_frames(10, 129, 255)
    found, _ = read_gif(write_video(tmp_path / "new" / "film.gif", iter(frames), fps=10))
    assert found.shape == frames.shape
    assert np.abs(found.astype(int) - frames).mean() < 4


def test_gif_keeps_flat_colours_exactly(tmp_path):
    frames = np.full((3, 16, 16, 3), 255, np.uint8)
    for index, frame in enumerate(frames):
        frame[4:9, 2 + index : 8] = (144, 238, 144)
    found, _ = read_gif(write_video(tmp_path / "film.gif", frames, fps=10))
    np.testing.assert_array_equal(found, frames)


@pytest.mark.parametrize(("fps", "count"), [(10, 7), (15, 61), (30, 100), (7.5, 9), (50, 50)])
def test_gif_lasts_as_long_as_its_frames(tmp_path, fps, count):
    frames = make_frames(count, 12, 12)
    frames[count // 2 :] = frames[-1]  # equal frames are merged by the writer: their time must stay
    _, durations = read_gif(write_video(tmp_path / "film.gif", frames, fps))
    assert abs(sum(durations) - 1000 * count / fps) <= 5
    assert min(durations) >= 10


def test_mp4_pads_odd_sizes_and_never_rescales(tmp_path):
    frames = np.full((10, 129, 255, 3), 230, np.uint8)
    for index, frame in enumerate(frames):  # sharp grey edges: half a pixel off would show
        frame[::16], frame[:, ::16], frame[40:80, 10 * index : 10 * index + 40] = 20, 20, 20
    found = read_mp4(write_video(tmp_path / "film.mp4", iter(frames), fps=12.5)).astype(int)
    assert found.shape == (10, 130, 256, 3)
    error = np.abs(found[:, :129, :255] - frames).mean()
    assert error < 3, f"mean error {error:.1f} of 255: moved or rescaled"
    _, seconds = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "film.mp4"))
    assert seconds == pytest.approx(10 / 12.5, abs=0.02)


@pytest.mark.parametrize("kind", ["gif", "mp4"])
def test_a_single_frame_is_a_video(tmp_path, kind):
    path = write_video(tmp_path / f"film.{kind}", make_frames(1, 16, 16), fps=10)
    assert len((read_gif(path)[0]) if kind == "gif" else read_mp4(path)) == 1


def broken(frames):
    yield from frames
    raise RuntimeError("the renderer died")


@pytest.mark.parametrize("kind", ["gif", "mp4"])
def test_a_failure_leaves_no_file_and_keeps_the_old_one(tmp_path, kind):
    path = tmp_path / f"film.{kind}"
    path.write_bytes(b"old")
    frames = make_frames(5, 16, 16)
    with pytest.raises(RuntimeError, match="renderer died"):
        write_video(path, broken(frames), fps=10)
    with pytest.raises(ValueError, match=r"frame 5.*one size"):
        write_video(path, [*frames, frames[0][:8]], fps=10)
    with pytest.raises(ValueError, match="no frames"):
        write_video(path, [], fps=10)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == b"old"


def test_video_refuses_wrong_frames_rates_and_names(tmp_path):
    frames = make_frames(2, 8, 8)
    for wrong in (frames.astype(np.float32), frames[..., 0], frames[..., :2]):
        with pytest.raises(ValueError, match=r"frame 0.*uint8 \[H,W,3\]"):
            write_video(tmp_path / "film.gif", wrong, fps=10)
    for fps in (0, -1, float("nan"), 60):
        with pytest.raises(ValueError, match="fps"):
            write_video(tmp_path / "film.gif", frames, fps=fps)
    with pytest.raises(ConfigError, match=r"\.gif or \.mp4"):
        write_video(tmp_path / "film.avi", frames, fps=10)


def test_require_video_names_the_way_out(tmp_path, monkeypatch):
    require_video("gif")
    require_video("none")
    require_video("mp4")
    with pytest.raises(ConfigError, match=r"'webm'.*gif, mp4"):
        require_video("webm")
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="video=gif"):
        require_video("mp4")
    with pytest.raises(ConfigError, match=r"write a \.gif"):
        write_video(tmp_path / "film.mp4", make_frames(2, 8, 8), fps=10)
    require_video("gif")


@pytest.mark.skipif(os.name != "posix", reason="the stand-in for ffmpeg is a shell script")
def test_ffmpeg_that_cannot_or_does_not_encode_is_reported(tmp_path, monkeypatch):
    poor = tmp_path / "ffmpeg"
    poor.write_text(
        "#!/bin/sh\n[ $1 = -hide_banner ] && exit 0\n"  # answers, but knows no encoder
        'for file; do :; done\necho half > "$file"\necho disk on fire >&2\nexit 3\n'
    )
    poor.chmod(0o755)
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(poor))
    with pytest.raises(ConfigError, match="libx264"):
        require_video("mp4")
    with pytest.raises(ConfigError, match="disk on fire"):
        write_video(tmp_path / "film.mp4", make_frames(50, 200, 200), fps=10)
    assert [entry.name for entry in tmp_path.iterdir()] == ["ffmpeg"]


# Film frames


def find(page, picture):
    """Top-left corners at which a picture stands in a page, exactly."""
    windows = np.lib.stride_tricks.sliding_window_view(page, picture.shape)[:, :, 0]
    first = (page[: windows.shape[0], : windows.shape[1]] == picture[0, 0]).all(-1)
    return [tuple(spot) for spot in np.argwhere(first) if (windows[tuple(spot)] == picture).all()]


def magnified(picture, zoom):
    return picture.repeat(zoom, 0).repeat(zoom, 1)


def test_card_holds_execution_goal_and_overlay_unharmed():
    episode = make_episode(size=(200, 210))
    page = still([episode], Film(measures=(BLOCK, ANGLE), ghost=0.25), 1)
    mixed = overlay(episode.frames[1], episode.goal, 0.25)
    spots = [find(page, picture) for picture in (episode.frames[1], episode.goal, mixed)]
    assert [len(spot) for spot in spots] == [1, 1, 1]
    (top, left), (goal_top, goal_left), (ghost_top, ghost_left) = (spot[0] for spot in spots)
    assert top == goal_top == ghost_top
    assert left + 210 < goal_left < goal_left + 210 < ghost_left


def test_overlay_is_the_weighted_mean():
    frame, ghost = np.full((2, 2, 3), 100, np.uint8), np.full((2, 2, 3), 200, np.uint8)
    np.testing.assert_array_equal(overlay(frame, ghost, 0.25), 125)
    np.testing.assert_array_equal(overlay(frame, frame, 0.3), frame)


def test_small_pictures_are_magnified_by_a_whole_factor():
    episode = make_episode(size=(64, 64))
    page = still([episode], Film(ghost=None), 0)
    assert len(find(page, magnified(episode.frames[0], 3))) == 1


def test_the_border_turns_green_at_success_and_not_before():
    episode = make_episode(size=(200, 200))
    film = Film(ghost=None)
    for step in range(4):
        page = still([episode], film, step)
        (top, left) = find(page, episode.frames[step])[0]
        border = page[top - 2, left : left + 200]
        assert (border == GREEN_RGB).all() == (step == 3), f"step {step}"


def test_a_film_has_every_step_then_holds_and_waits_for_the_longest():
    short, long = make_episode(0), make_episode(1, distances=[50.0] * 8)
    frames = list(film_frames([short, long], Film(hold=2)))
    assert len(frames) == 8 + 2
    assert len({frame.shape for frame in frames}) == 1
    np.testing.assert_array_equal(frames[7], frames[9])
    last = magnified(short.frames[3], 8)
    assert all(find(frame, last) for frame in frames[3:])


def test_a_grid_puts_cards_in_columns_with_one_note():
    episodes = [make_episode(index) for index in range(6)]
    one = still(episodes[:1], Film(), 0)
    six = still(episodes, Film(), 0)
    assert six.shape == (3 * one.shape[0], 2 * one.shape[1], 3)
    noted = still(episodes, Film(note=DECORATION_NOTE, columns=3), 0)
    assert 2 * one.shape[0] < noted.shape[0] < 2.5 * one.shape[0]
    assert (noted[2 * one.shape[0] :] < 200).any(), "the note is not written"


def test_film_faults_show_before_the_first_frame():
    with pytest.raises(ConfigError, match="episode 4 has no frames"):
        film_frames([make_episode(4, frames=None)], Film())
    with pytest.raises(ConfigError, match="goal picture"):
        film_frames([make_episode(4, goal=np.zeros(7))], Film())
    with pytest.raises(ConfigError, match=r"\[9, 9, 3\].*differ"):
        film_frames([make_episode(4, goal=np.zeros((9, 9, 3), np.uint8))], Film())
    with pytest.raises(ConfigError, match="block_err"):
        film_frames([make_episode(4)], Film(measures=(Measure(key="x", label="x", unit="px"),)))
    with pytest.raises(ValueError, match="no episodes"):
        film_frames([], Film())
    with pytest.raises(ValueError, match="differ in size"):
        film_frames([make_episode(0), make_episode(1, size=(64, 32))], Film())
    for wrong in ({"ghost": 1.5}, {"columns": 0}, {"hold": -1}, {"measures": (BLOCK,) * 4}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Film(**wrong)


def test_numbers_that_are_not_finite_do_not_stop_a_film():
    episode = make_episode(distances=[np.nan, np.inf, 30.0])
    assert len(list(film_frames([episode], Film(measures=(BLOCK,), hold=0)))) == 3


# Figures


def check_labels(figure):
    """Every axes with data says what it shows and in which unit."""
    assert isinstance(figure, Figure)
    for axes in figure.axes:
        if axes.images or not axes.has_data():
            continue
        assert axes.get_xlabel(), "x axis without a label"
        assert axes.get_ylabel(), "y axis without a label"
        assert re.search(r"\(.+\)|agent", axes.get_ylabel()), f"no unit in {axes.get_ylabel()!r}"


def line(axes, label):
    return next(line for line in axes.lines if line.get_label() == label)


def test_planner_cost_shows_median_and_quartiles_of_all_decisions():
    low, high = make_episode(0), make_episode(1)
    high.plans["best"][:] += 4
    high.plans["best"][0, 2] = np.inf  # a decision without a finite cost takes no part
    figure = planner_cost([low, high, make_episode(2, plans={})], "latent L2")
    check_labels(figure)
    cost, spread = figure.axes
    np.testing.assert_allclose(line(cost, "best sample").get_ydata(), [6, 5, 2])
    np.testing.assert_allclose(line(cost, "best sample").get_xdata(), [1, 2, 3])
    corners = cost.collections[0].get_paths()[0].vertices
    assert corners[corners[:, 0] == 1][:, 1].min() == pytest.approx(5.0)
    assert corners[corners[:, 0] == 1][:, 1].max() == pytest.approx(7.0)
    np.testing.assert_allclose(line(spread, "proposal").get_ydata(), [1, 0.75, 0.5])


def test_planner_figures_need_one_planner():
    with pytest.raises(ConfigError, match="nothing was planned"):
        planner_cost([make_episode(plans={})])
    other = make_episode(1)
    other.plans["effective_samples"] = np.ones((1, 7))
    with pytest.raises(ConfigError, match=r"\[3, 7\] planner iterations"):
        effective_samples([make_episode(), other])


def test_effective_samples_show_the_most_there_can_be():
    figure = effective_samples([make_episode()], num_samples=300)
    check_labels(figure)
    assert line(figure.axes[0], "drawn").get_ydata()[0] == 300
    np.testing.assert_allclose(line(figure.axes[0], "effective").get_ydata(), [30, 20, 10])


def test_goal_distance_keeps_ended_episodes_in_the_median():
    solved = make_episode(0, distances=[60.0, 10.0])
    others = [make_episode(i, distances=[60.0, 60.0, 60.0, 50.0]) for i in (1, 2)]
    presolved = make_episode(3, distances=[1.0], presolved=True)
    also = make_episode(4, distances=[60.0, 12.0])
    figure = goal_distance([solved, *others, presolved, also], (BLOCK, ANGLE))
    check_labels(figure)
    block, angle = figure.axes
    np.testing.assert_allclose(line(block, "median").get_ydata(), [60, 36, 36, 31])
    assert line(block, "success threshold").get_ydata()[0] == 20.0
    assert block.get_ylabel() == "block distance (px)"
    assert angle.get_ylabel() == "block angle (deg)"
    assert line(angle, "median").get_ydata()[0] == pytest.approx(180 / np.pi)
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words == ["reached (2)", "not reached (2)", "median", "success threshold"]


def test_goal_distance_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="no episode was run"):
        goal_distance([make_episode(presolved=True)], (BLOCK,))
    with pytest.raises(ValueError, match="no measures"):
        goal_distance([make_episode()], ())


def test_success_rates_carry_wilson_whiskers_and_counts():
    figure = success_rates({"CEM": (43, 50), "random": (2, 50), "not run": (0, 0)})
    check_labels(figure)
    axes = figure.axes[0]
    assert [bar.get_width() for bar in axes.patches] == [0.86, 0.04, 0.0]
    whiskers = [path.vertices[:, 0] for bar in axes.collections for path in bar.get_paths()]
    assert len(whiskers) == 2, "an agent without episodes has no interval"
    np.testing.assert_allclose(whiskers[0], wilson_interval(43, 50))
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["86.0 %  (43/50)", "4.0 %  (2/50)", "no episodes"]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["CEM", "random", "not run"]


def test_filmstrip_works_without_a_decoder_and_says_so():
    episode = make_episode(distances=np.linspace(60, 10, 41))
    figure = filmstrip(episode, most=4)
    check_labels(figure)
    titles = [axes.get_title() for axes in figure.axes if axes.images]
    assert titles == ["step 0", "step 20", "step 35", "end (40)", "goal"]
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    np.testing.assert_array_equal(shown[1], episode.frames[20])
    np.testing.assert_array_equal(shown[-1], episode.goal)
    notes = [text.get_text() for part in figure.subfigs for text in part.texts]
    assert NO_DECODER_NOTE in notes
    assert "unavailable" in NO_DECODER_NOTE


def test_filmstrip_draws_promise_and_outcome():
    episode = make_episode(distances=np.linspace(60, 10, 11))
    predicted = np.array([[4.0, 2.0], [3.0, np.nan]])
    distances = LatentDistances(
        steps=np.array([0, 5]), achieved=np.array([9.0, 7.0]), predicted=predicted, block=5
    )
    nearest = episode.frames[[3, 7]]
    figure = filmstrip(episode, distances, nearest)
    check_labels(figure)
    curve = figure.axes[-1]
    np.testing.assert_allclose(line(curve, "came true").get_ydata(), [9, 7])
    np.testing.assert_allclose(line(curve, "foreseen by the plan").get_xdata(), [0, 5, 10])
    np.testing.assert_allclose(line(curve, "foreseen by the plan").get_ydata(), [9, 4, 2])
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert any(np.array_equal(picture, episode.frames[7]) for picture in shown)
    with pytest.raises(ValueError, match="1 frames for 2 decisions"):
        filmstrip(episode, distances, nearest[:1])


def test_filmstrip_without_plans_goal_picture_or_frames():
    filmstrip(make_episode(plans={}, goal=np.zeros(7))).savefig(os.devnull, format="png")
    with pytest.raises(ConfigError, match="no frames"):
        filmstrip(make_episode(frames=None))
    with pytest.raises(ValueError, match="most=1"):
        filmstrip(make_episode(), most=1)
    with pytest.raises(ValueError, match=r"\[D,H\]"):
        LatentDistances(steps=np.arange(2), achieved=np.ones(3), predicted=np.ones((2, 5)), block=5)


def test_pictures_leave_no_global_state():
    program = """
import io, sys, matplotlib
before = matplotlib.rcParams.copy()
import jepa_wm.viz.frames, jepa_wm.viz.plans, jepa_wm.viz.rollouts, jepa_wm.viz.video
jepa_wm.viz.plans.success_rates({"a": (1, 2)}).savefig(io.BytesIO())
assert "matplotlib.pyplot" not in sys.modules, "pyplot keeps figures in a global list"
assert matplotlib.rcParams.copy() == before, "global settings changed"
"""
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
