"""Pictures and clips from files: which frames, in which order, and what is refused."""

import io
import os
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, features

from jepa_wm.errors import ConfigError
from jepa_wm.media import samples, videos
from jepa_wm.media.pictures import read_picture
from jepa_wm.viz.video import write_video

AVIF = pytest.param(
    "AVIF", marks=pytest.mark.skipif(not features.check("avif"), reason="an older Pillow")
)
EXIF = Image.Exif()
EXIF[0x0112] = 6  # orientation: the camera was turned


def grey(level, height=6, width=8):
    return np.full((height, width, 3), level, np.uint8)


def save(path, frame):
    Image.fromarray(frame).save(path)
    return path


def read(path, as_clip=False, n_frames=None):
    found = samples.find([path], as_clip)
    taken = list(samples.read(found, as_clip, n_frames))
    assert samples.count(found, as_clip, n_frames) in (None, len(taken))
    return taken


@pytest.fixture
def film(tmp_path):
    """Twenty-three grey frames, each ten levels brighter, as the mp4 encoder leaves them."""
    return write_video(tmp_path / "film.mp4", [grey(10 * i, 16, 32) for i in range(23)], 10)


@pytest.mark.parametrize("kind", ["png", "jpg", "bmp", "webp", "tiff", "ppm"])
def test_a_picture_of_any_kind(kind, tmp_path):
    path = save(tmp_path / f"x.{kind}", grey(77))
    (sample,) = read(path)
    assert sample.name == str(path) and sample.frames.shape == (6, 8, 3)
    assert sample.frames.dtype == np.uint8 and sample.frames.flags.writeable
    assert abs(int(sample.frames.mean()) - 77) <= 1


def test_pictures_come_out_upright(tmp_path):
    """The file's rows are the picture's columns."""
    frame = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    Image.fromarray(frame).save(tmp_path / "x.png", exif=EXIF)
    assert np.array_equal(read_picture(tmp_path / "x.png"), np.rot90(frame, -1))


def test_sixteen_bits_are_cut_not_clipped(tmp_path):
    deep = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    Image.fromarray(deep).save(tmp_path / "x.png")
    assert read_picture(tmp_path / "x.png")[0, :, 0].tolist() == [0, 0, 1, 128, 255]


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA", "CMYK"])
def test_every_mode_becomes_rgb(mode, tmp_path):
    kind = "tiff" if mode == "CMYK" else "png"
    Image.fromarray(grey(255)).convert(mode).save(tmp_path / f"x.{kind}")
    assert np.array_equal(read_picture(tmp_path / f"x.{kind}"), grey(255))


def test_a_folder_is_in_natural_order(tmp_path):
    for i in (10, 9, 1, 2, 100):
        save(tmp_path / f"f{i}.png", grey(i))
    (tmp_path / "notes.txt").write_text("not a picture")
    (tmp_path / ".hidden.png").write_bytes(b"")
    assert [int(s.frames[0, 0, 0]) for s in read(tmp_path)] == [1, 2, 9, 10, 100]
    (clip,) = read(tmp_path, as_clip=True)
    assert [int(f[0, 0, 0]) for f in clip.frames] == [1, 2, 9, 10, 100]
    (clip,) = read(tmp_path, as_clip=True, n_frames=3)
    assert [int(f[0, 0, 0]) for f in clip.frames] == [1, 9, 100]


def test_frames_of_a_folder_may_differ_in_size(tmp_path):
    save(tmp_path / "1.png", grey(1, 6, 8))
    save(tmp_path / "2.png", grey(2, 9, 5))
    (clip,) = read(tmp_path, as_clip=True)
    assert [f.shape for f in clip.frames] == [(6, 8, 3), (9, 5, 3)]


def test_a_folder_of_videos_is_several_clips(tmp_path, film):
    (tmp_path / "film2.mp4").write_bytes(film.read_bytes())
    assert [s.name for s in read(tmp_path, as_clip=True, n_frames=2)] == [
        str(film), str(tmp_path / "film2.mp4")
    ]  # fmt: skip
    save(tmp_path / "1.png", grey(1))
    with pytest.raises(ConfigError, match=r"pictures and film\.mp4"):
        samples.find([tmp_path], as_clip=True)
    assert len(read(tmp_path)) == 1 + 23 + 23


@pytest.mark.parametrize(
    ("count", "wanted", "ids"),
    [
        (23, 4, [0, 7, 15, 22]),
        (2, 3, [0, 0, 1]),  # 0.5 goes to the even neighbour
        (4, 3, [0, 2, 3]),  # and so does 1.5
        (10, 1, [0]),
        (5, 5, [0, 1, 2, 3, 4]),
        (1, 4, [0, 0, 0, 0]),
    ],
)
def test_frames_are_taken_evenly_halves_to_even(count, wanted, ids):
    assert videos.sample_ids(count, wanted) == ids


@given(st.integers(1, 5000), st.integers(1, 200))
def test_samples_rise_and_stay_inside(count, wanted):
    ids = videos.sample_ids(count, wanted)
    assert ids == sorted(ids) and len(ids) == wanted and 0 == ids[0]
    assert ids[-1] == (count - 1 if wanted > 1 else 0)


def test_a_video_is_a_clip_or_its_frames(film):
    (clip,) = read(film, as_clip=True, n_frames=4)
    levels = [float(frame.mean()) for frame in clip.frames]
    assert clip.name == str(film) and np.allclose(levels, [0, 70, 150, 220], atol=2)
    images = read(film)
    assert [s.name for s in images[:2]] == [f"{film}[0]", f"{film}[1]"] and len(images) == 23
    assert [s.name for s in read(film, n_frames=3)] == [f"{film}[{i}]" for i in (0, 11, 22)]
    assert len(read(film, as_clip=True)[0].frames) == 23


def test_decoding_is_ffmpegs_plain_rgb(film):
    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    stream = imageio_ffmpeg.read_frames(str(film), output_params=["-fps_mode", "passthrough"])
    size = next(stream)["size"]
    wanted = [np.frombuffer(raw, np.uint8).reshape(size[1], size[0], 3) for raw in stream]
    assert np.array_equal(wanted, list(videos.video_frames(film)))


def test_a_wrong_count_in_the_container_is_found_out(film, monkeypatch):
    right = videos.sampled_frames(film, 5)
    for announced in (1, 40, 0):
        monkeypatch.setattr(videos, "_packets", lambda path, n=announced: n)
        found = videos.sampled_frames(film, 5)
        assert [i for i, _ in found] == [i for i, _ in right] == [0, 6, 11, 16, 22]  # 5.5, 16.5


def test_a_gif_is_a_video(tmp_path):
    path = write_video(tmp_path / "x.gif", [grey(0), grey(100), grey(200)], 10)
    (clip,) = read(path, as_clip=True)
    assert [int(frame[0, 0, 0]) for frame in clip.frames] == [0, 100, 200]


def test_a_long_video_is_not_held_in_memory(tmp_path):
    """Each frame of 300 x 400 has 360 kB; two hundred of them would be 72 MB."""
    frames = (grey(i % 256, 300, 400) for i in range(200))
    path = write_video(tmp_path / "long.mp4", frames, 30)
    tracemalloc.start()
    found = videos.sampled_frames(path, 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 3 and peak < 8 << 20, peak


@pytest.mark.parametrize("executable", ["absent/ffmpeg", "/"])
def test_without_ffmpeg_the_video_is_named(executable, film, monkeypatch):
    monkeypatch.setattr(videos.imageio_ffmpeg, "get_ffmpeg_exe", lambda: executable)
    with pytest.raises(ConfigError, match=r"film\.mp4: reading a video needs ffmpeg"):
        read(film)


def test_a_video_of_huge_frames_is_refused(film, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 16 * 32 - 1)
    with pytest.raises(ConfigError, match=r"film\.mp4: cannot be decoded"):
        read(film)


def children():
    """Processes this one started and has not seen end, Linux only."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(listed.read_text().split())


def test_leaving_early_ends_ffmpeg(film):
    before = children()
    frames = videos.video_frames(film)
    next(frames)
    started = children() - before
    frames.close()  # waits for the process
    assert started and not started & children()


def test_arrays_of_every_rank(tmp_path):
    whole = np.arange(2 * 4 * 5 * 6 * 3, dtype=np.uint8).reshape(2, 4, 5, 6, 3)
    for name, array in (("image", whole[0, 0]), ("clip", whole[0]), ("clips", whole)):
        np.save(tmp_path / f"{name}.npy", array)
    (image,) = read(tmp_path / "image.npy", as_clip=True)
    assert np.array_equal(image.frames, whole[0, 0]) and image.frames.flags.writeable
    (clip,) = read(tmp_path / "clip.npy", as_clip=True)
    assert np.array_equal(clip.frames, whole[0])
    (clip,) = read(tmp_path / "clip.npy", as_clip=True, n_frames=2)
    assert np.array_equal(clip.frames, whole[0, [0, 3]])
    clips = read(tmp_path / "clips.npy", as_clip=True)
    assert [s.name.rpartition("/")[2] for s in clips] == ["clips.npy[0]", "clips.npy[1]"]
    assert np.array_equal([s.frames for s in clips], whole)
    images = read(tmp_path / "clips.npy")
    assert len(images) == 8 and images[5].name.endswith("clips.npy[1][1]")
    assert np.array_equal(images[5].frames, whole[1, 1])


def test_inputs_keep_their_order(tmp_path):
    first, second = save(tmp_path / "z.png", grey(1)), save(tmp_path / "a.png", grey(2))
    found = samples.find([first, second, first], as_clip=False)
    assert [s.name for s in samples.read(found, False, None)] == [
        str(first), str(second), str(first)
    ]  # fmt: skip


def png(frame=None):
    buffer = io.BytesIO()
    Image.fromarray(grey(9, 40, 40) if frame is None else frame).save(buffer, "PNG")
    return buffer.getvalue()


def npy(array, **options):
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


REFUSED = {
    "empty.png": (b"", "is empty"),
    "empty.mp4": (b"", "is empty"),
    "text.png": (b"no picture at all", "wanted a picture, a video"),
    "cut.png": (png()[:60], "cannot be read"),
    "cut.jpg": (b"\xff\xd8\xff\xe0\x00\x10JFIF", "cannot be read"),
    "text.mp4": (b"no video at all", "cannot be decoded as a video"),
    "playlist.mp4": (b"#EXTM3U\nhttp://127.0.0.1:9/x.ts\n", "cannot be decoded as a video"),
    "text.npy": (b"no array at all", "cannot be read as an .npy array"),
    "cut.npy": (npy(np.zeros((9, 9, 3), np.uint8))[:-1], "cannot be read as an .npy array"),
    "header.npy": (b"\x93NUMPY\x01\x00v\x00{'descr': (((", "cannot be read as an .npy array"),
    "float.npy": (npy(np.zeros((9, 9, 3))), r"float64 \[9, 9, 3\]; wanted uint8"),
    "grey.npy": (npy(np.zeros((9, 9), np.uint8)), r"uint8 \[9, 9\]; wanted uint8 \[H,W,3\]"),
    "none.npy": (npy(np.zeros((0, 9, 9, 3), np.uint8)), r"uint8 \[0, 9, 9, 3\]"),
    "code.npy": (npy(np.array([print], object), allow_pickle=True), "cannot be read"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_broken_file_is_refused_by_name(name, tmp_path):
    raw, words = REFUSED[name]
    path = tmp_path / name
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=words) as error:
        read(path, as_clip=True, n_frames=2)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.99])
def test_a_cut_video_is_refused(share, film, tmp_path):
    path = tmp_path / "cut.mp4"
    path.write_bytes(film.read_bytes()[: int(share * film.stat().st_size)])
    with pytest.raises(ConfigError, match=r"cut\.mp4: cannot be decoded as a video"):
        read(path)


def test_what_is_not_a_file_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "hollow").mkdir()
    for path, words in ((tmp_path / "pipe.png", "no regular file"),
                        (tmp_path / "absent.png", "no such file"),
                        (tmp_path / "hollow", "holds no pictures")):  # fmt: skip
        with pytest.raises(ConfigError, match=words):
            samples.find([path], as_clip=False)


def test_a_decompression_bomb_is_refused_unread(tmp_path, monkeypatch):
    path = save(tmp_path / "x.png", grey(1, 100, 100))
    for limit in (9000, 4000):  # where Pillow would warn, and where it would stop
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        with pytest.raises(ConfigError, match=f"more than {limit:,} pixels"):
            read_picture(path)


@pytest.mark.parametrize("kind", ["EPS", "PDF", "JPEG2000"])
def test_unsafe_formats_are_not_opened(kind, tmp_path):
    """Pillow hands EPS to ghostscript; its JPEG 2000 reader allocates what a header claims."""
    Image.fromarray(grey(9)).save(tmp_path / "x.png", kind)
    with pytest.raises(ConfigError, match="wanted a picture"):
        read_picture(tmp_path / "x.png")


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "WEBP", "TIFF", "PPM", "GIF", AVIF])
def test_changed_bytes_are_read_or_refused(kind, tmp_path):
    """Sixty mutations of each: a picture, or one line; never another exception or a warning."""
    rng = np.random.default_rng(0)
    buffer, path = io.BytesIO(), tmp_path / "x.png"
    frame = rng.integers(0, 256, (9, 13, 3), np.uint8)
    Image.fromarray(frame).save(buffer, kind, **({"exif": EXIF} if kind == "JPEG" else {}))
    for _ in range(60):
        raw = bytearray(buffer.getvalue())
        for place in rng.integers(0, min(len(raw), 120), rng.integers(1, 5)):
            raw[place] = rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))])
        path.write_bytes(raw[: len(raw) if rng.random() < 0.8 else rng.integers(1, len(raw))])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                assert read_picture(path).ndim == 3
            except ConfigError as error:
                assert str(path) in str(error) and "\n" not in str(error)


def test_pixels_without_a_range_are_refused(tmp_path):
    Image.fromarray(np.ones((4, 4), np.float32)).save(tmp_path / "x.tiff")
    with pytest.raises(ConfigError, match="32 bits"):
        read_picture(tmp_path / "x.tiff")


def test_odd_names_are_only_names(film, tmp_path):
    folder = tmp_path / "http:"
    folder.mkdir()
    path = folder / "-i %03d;x.mp4"
    path.write_bytes(film.read_bytes())
    assert len(read(path)) == 23
