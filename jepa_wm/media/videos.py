"""Decode a video frame by frame with the ffmpeg that imageio-ffmpeg brings.

Frames come as they are stored: neither turned by the container's rotation nor repeated or dropped
to a constant rate, in RGB by ffmpeg's default conversion. One frame is held at a time.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import imageio_ffmpeg
import numpy as np
from PIL import Image

from jepa_wm.errors import ConfigError
from jepa_wm.media.pictures import Frame, require_file

SUFFIXES = frozenset(
    ".mp4 .m4v .mov .avi .mkv .webm .gif .mpg .mpeg .wmv .flv .ts .ogv .3gp".split()
)
"""Names a video ends in, lower case."""


def sample_ids(count: int, wanted: int) -> list[int]:
    """Return which of ``count`` frames make a clip of ``wanted``: first to last, evenly.

    ``round(linspace(0, count - 1, wanted))``, halves to even; short videos repeat frames.
    """
    return [int(i) for i in np.rint(np.linspace(0, count - 1, wanted))]


def video_frames(path: Path) -> Iterator[Frame]:
    """Yield every frame of a video, uint8 [H,W,3].

    Raises:
        ConfigError: the file is absent or broken, holds no frame, or ffmpeg does not run.
    """
    # PPM states the size of each frame; raw bytes would leave it to the log
    options = ["-pix_fmt", "rgb24", "-c:v", "ppm", "-f", "image2pipe", "-"]
    count = 0
    with _ffmpeg(path, ["-fps_mode", "passthrough", *options]) as pipe:
        while (frame := _read_ppm(path, pipe)) is not None:
            count += 1
            yield frame
    if not count:
        raise ConfigError(f"{path}: holds no frames")


def sampled_frames(path: Path, wanted: int) -> list[tuple[int, Frame]]:
    """Return ``wanted`` frames from first to last (``sample_ids``), each with its index.

    No others are held. The container's count of frames picks them; where decoding gives another
    count, that one picks them in a second pass.

    Raises:
        ConfigError: as ``video_frames``.
    """
    count = max(_packets(path), 1)
    while True:
        ids = sample_ids(count, wanted)
        needed, kept, found = set(ids), {}, 0
        for index, frame in enumerate(video_frames(path)):
            found = index + 1
            if index in needed:
                kept[index] = frame
        if found == count:
            return [(i, kept[i]) for i in ids]
        count = found


def _packets(path: Path) -> int:
    """Count the frames the container announces, without decoding; 0 if it does not say."""
    with _ffmpeg(path, ["-c", "copy", "-progress", "-", "-f", "null", "-"]) as pipe:
        said = [line for line in pipe.read().split() if line.startswith(b"frame=")]
    digits = said[-1].removeprefix(b"frame=") if said else b""
    return int(digits) if digits.isdigit() else 0


@contextmanager
def _ffmpeg(path: Path, output: Sequence[str]) -> Iterator[IO[bytes]]:
    """Run ffmpeg on the first video stream of a local file and hand over its standard output."""
    require_file(path)
    try:
        executable = imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise ConfigError(f"{path}: reading a video needs ffmpeg: {error}") from error
    command = [executable, "-v", "error", "-nostdin", "-nostats", "-xerror", "-noautorotate"]
    # a playlist in disguise may not open the network; nor may a header ask for any memory
    limit = Image.MAX_IMAGE_PIXELS or 1 << 30
    command += ["-protocol_whitelist", "file", "-max_pixels", str(limit)]
    command += ["-i", f"file:{path.absolute()}", "-map", "0:v:0", *output]
    with tempfile.TemporaryFile() as errors:  # a pipe nobody reads could fill up and block ffmpeg
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors
            )
        except OSError as error:
            raise ConfigError(f"{path}: reading a video needs ffmpeg: {error}") from error
        assert process.stdout is not None
        try:
            yield process.stdout
            status = process.wait()
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    if status:
        reason = re.sub(r" @ 0x\w+", "", said[0].strip()) if said else f"ffmpeg exit {status}"
        raise ConfigError(f"{path}: cannot be decoded as a video: {reason[:200]}")


def _read_ppm(path: Path, pipe: IO[bytes]) -> Frame | None:
    """Read one frame of ffmpeg's PPM (``P6``, width and height, 255); None at the end."""
    head = pipe.readline(), pipe.readline(), pipe.readline()
    if not head[0]:
        return None
    sizes = [int(word) for word in head[1].split() if word.isdigit()]
    if head[0].strip() != b"P6" or len(sizes) != 2 or head[2].strip() != b"255":
        raise ConfigError(f"{path}: ffmpeg gave frames of an unknown form")
    width, height = sizes
    data = pipe.read(3 * width * height)
    if len(data) < 3 * width * height:
        return None  # ffmpeg stopped: its own words follow
    return np.frombuffer(bytearray(data), np.uint8).reshape(height, width, 3)
