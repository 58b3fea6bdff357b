"""Write frames as a GIF or an MP4 file: every frame, at its size, or a refusal.

GIF needs nothing but Pillow; MP4 needs ffmpeg, which imageio-ffmpeg brings along on most systems.
Ask ``require_video`` before anything long, so that a missing encoder does not cost a finished run.
"""

import math
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path

import imageio_ffmpeg
import numpy as np
from PIL import Image

from jepa_wm.errors import ConfigError

KINDS = ("gif", "mp4")
_GIF_MAX_FPS = 50.0  # viewers play frames shorter than 2/100 s at a tenth of a second


def require_video(kind: str) -> None:
    """Return if videos of this kind can be written here.

    Args:
        kind: ``gif``, ``mp4``, or ``none`` for no video at all.

    Raises:
        ConfigError: the kind is unknown, or ``mp4`` without an ffmpeg that encodes H.264.
    """
    if kind not in (*KINDS, "none"):
        raise ConfigError(f"video={kind!r} is unknown; use {', '.join(KINDS)} or none")
    if kind != "mp4":
        return
    try:
        answer = subprocess.run(
            [imageio_ffmpeg.get_ffmpeg_exe(), "-hide_banner", "-encoders"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        raise ConfigError(
            f"video=mp4 needs ffmpeg, which does not run here ({error}); use video=gif, or "
            "install imageio-ffmpeg or ffmpeg"
        ) from error
    if "libx264" not in answer:
        raise ConfigError(
            "video=mp4 needs an ffmpeg with libx264, this one lacks it; use video=gif"
        )


def write_video(path: Path, frames: Iterable[np.ndarray], fps: float) -> Path:
    """Write frames to ``path``; its suffix, ``.gif`` or ``.mp4``, is the kind.

    Frames are taken one at a time. The file appears whole or not at all. Sizes are kept; MP4 cannot
    have odd ones, so one row below and one column on the right may be repeated. Colours: GIF has
    256 a frame, MP4 half the colour resolution.

    Args:
        path: Where to; an existing file is replaced, folders are made.
        frames: uint8 [H,W,3] each, RGB, all of one size, at least one.
        fps: Frames per second; for GIF at most 50. GIF counts in 1/100 s: single frames are rounded
            so that the whole lasts what it should, to 1/200 s.

    Returns:
        ``path``.

    Raises:
        ConfigError: unknown suffix, or ffmpeg is missing or fails.
        ValueError: no frames, a frame of another size or type, or an impossible ``fps``.
    """
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise ConfigError(f"{path}: a video's name ends in .{' or .'.join(KINDS)}")
    if not (math.isfinite(fps) and fps > 0) or (kind == "gif" and fps > _GIF_MAX_FPS):
        raise ValueError(f"fps={fps} must be above 0, and at most {_GIF_MAX_FPS:g} for GIF")
    checked = _checked(frames)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.stem}.{os.getpid()}.{kind}")
    try:
        (_write_gif if kind == "gif" else _write_mp4)(part, checked, fps)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _checked(frames: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield the frames; refuse none at all, and any that differs from the first in size."""
    shape = None
    for index, frame in enumerate(frames):
        shape = frame.shape if shape is None else shape
        if frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3 or not frame.size:
            raise ValueError(
                f"frame {index} is {frame.dtype} {list(frame.shape)}; frames are uint8 [H,W,3]"
            )
        if frame.shape != shape:
            raise ValueError(
                f"frame {index} is {list(frame.shape)}, the first was {list(shape)}; "
                "all frames of a video have one size"
            )
        yield np.ascontiguousarray(frame)
    if shape is None:
        raise ValueError("no frames; a video has at least one")


def _write_gif(path: Path, frames: Iterator[np.ndarray], fps: float) -> None:
    images: list[Image.Image] = []
    before = None
    for frame in frames:
        if before is None or not np.array_equal(frame, before):  # choosing colours is the slow part
            image = Image.fromarray(frame).quantize(256, dither=Image.Dither.NONE)
        images.append(image)
        before = frame
    ends = [10 * round(100 * count / fps) for count in range(len(images) + 1)]  # ms
    durations = [end - start for start, end in pairwise(ends)]
    images[0].save(path, save_all=True, append_images=images[1:], duration=durations, loop=0)


def _write_mp4(path: Path, frames: Iterator[np.ndarray], fps: float) -> None:
    first = next(frames)
    height, width = first.shape[:2]
    pad = ((0, height % 2), (0, width % 2), (0, 0))
    try:
        executable = imageio_ffmpeg.get_ffmpeg_exe()
    except RuntimeError as error:
        raise ConfigError(f"{path}: {error} Or write a .gif.") from error
    command = [executable, "-y", "-v", "error", "-f", "rawvideo", "-pix_fmt", "rgb24"]
    command += ["-s", f"{width + width % 2}x{height + height % 2}", "-r", f"{fps:.6f}", "-i", "-"]
    command += ["-an", "-c:v", "libx264", "-crf", "16", "-pix_fmt", "yuv420p"]
    command += ["-movflags", "+faststart", str(path)]
    with tempfile.TemporaryFile() as errors:  # a pipe nobody reads could fill up and block ffmpeg
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=errors
            )
        except OSError as error:
            raise ConfigError(f"{path}: ffmpeg does not run ({error}); write a .gif") from error
        try:
            assert process.stdin is not None
            for frame in chain([first], frames):
                process.stdin.write(np.pad(frame, pad, mode="edge").tobytes())
            process.stdin.close()
            status = process.wait()
        except BrokenPipeError:  # ffmpeg gave up: its own words follow
            status = process.wait() or 1
        finally:
            process.kill()
            process.wait()
        if status:
            errors.seek(0)
            said = errors.read().decode(errors="replace").strip()
            raise ConfigError(f"{path}: ffmpeg failed ({said or f'exit {status}'}); write a .gif")
