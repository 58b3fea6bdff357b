"""Pictures and clips from files and folders, one at a time, in a stable order.

``find`` looks at every name before anything long begins; ``read`` then yields what a model embeds,
holding one sample at a time. ``as_clip`` says what several pictures are: one clip or single images.

| input | as images | as a clip |
|---|---|---|
| picture | one image | one still image |
| folder | its files in natural order | its pictures in natural order are the frames |
| video | each frame an image | one clip |
| .npy [H,W,3] | one image | one still image |
| .npy [T,H,W,3] | T images | one clip |
| .npy [B,T,H,W,3] | B*T images | B clips |
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from jepa_wm.errors import ConfigError
from jepa_wm.media import pictures, videos
from jepa_wm.media.pictures import Frame, open_array, read_picture, require_file
from jepa_wm.media.videos import sample_ids, sampled_frames, video_frames

MAX_FRAMES = 4096
"""Most frames a clip may be sampled to: all of them are held at once."""


@dataclass(frozen=True)
class Sample:
    """One thing to embed.

    Attributes:
        name: Where it came from, ``clip.mp4`` or ``frames.npy[3]``.
        frames: A picture, uint8 [H,W,3]; or a clip, a tuple of such pictures, which need not have
            one size.
    """

    name: str
    frames: Frame | tuple[Frame, ...]


class Source(Protocol):
    """One input, found but not read."""

    def count(self, as_clip: bool, n_frames: int | None) -> int | None:
        """Return how many samples there are, or None where only reading would tell."""

    def samples(self, as_clip: bool, n_frames: int | None) -> Iterator[Sample]:
        """Yield the samples; ``n_frames`` of each clip or video, all where it is None."""


def find(inputs: Iterable[Path | str], as_clip: bool) -> list[Source]:
    """Return the sources behind files and folders, in the order given, folders in natural order.

    Raises:
        ConfigError: an input is absent or empty, or a folder holds nothing to read or, as a clip,
            videos beside pictures.
    """
    return [source for name in inputs for source in _sources(Path(name).expanduser(), as_clip)]


def count(sources: Sequence[Source], as_clip: bool, n_frames: int | None) -> int | None:
    """Return how many samples ``read`` will yield, or None where only reading would tell."""
    counts = [source.count(as_clip, n_frames) for source in sources]
    return None if None in counts else sum(n for n in counts if n is not None)


def joined(sources: Iterable[Source]) -> list[tuple[Path, int]]:
    """Return the folders whose pictures are the frames of one clip, with how many they are."""
    return [(s.path, len(s.files)) for s in sources if isinstance(s, _Folder)]


def read(sources: Iterable[Source], as_clip: bool, n_frames: int | None) -> Iterator[Sample]:
    """Yield every sample.

    Args:
        sources: From ``find``.
        as_clip: Videos, folders and time axes are clips; otherwise their frames are single images.
        n_frames: Frames taken of each clip or video, evenly from first to last
            (``videos.sample_ids``); None takes all.

    Raises:
        ConfigError: a file is broken or not of its kind.
    """
    for source in sources:
        yield from source.samples(as_clip, n_frames)


def natural(path: Path) -> tuple[list[tuple[str, int]], str]:
    """Return the key of natural order: ``2.png`` before ``10.png``, ties by the name itself."""
    pieces = re.findall(r"(\D*)(\d*)", path.stem.lower())
    return [(text, int(digits or -1)) for text, digits in pieces], path.name


def _sources(path: Path, as_clip: bool) -> list[Source]:
    if not path.is_dir():
        return [_file(path)]
    try:
        files = [p for p in path.iterdir() if not p.name.startswith(".") and p.is_file()]
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    kinds = pictures.SUFFIXES | videos.SUFFIXES | {".npy"}
    files = sorted((p for p in files if p.suffix.lower() in kinds), key=natural)
    if not files:
        raise ConfigError(f"{path}: the folder holds no pictures, videos or .npy files")
    stills = [p for p in files if p.suffix.lower() in pictures.SUFFIXES]
    if not as_clip or not stills:
        return [_file(p) for p in files]
    if len(stills) < len(files):
        other = next(p.name for p in files if p not in stills)
        raise ConfigError(
            f"{path}: the folder holds pictures and {other}, so it is no single clip; "
            "separate them, or read single images"
        )
    return [_Folder(path, tuple(stills))]


def _file(path: Path) -> Source:
    require_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return _Array(path, open_array(path).shape)
    return _Video(path) if suffix in videos.SUFFIXES else _Picture(path)


def _pick(length: int, n_frames: int | None) -> list[int]:
    return list(range(length)) if n_frames is None else sample_ids(length, n_frames)


@dataclass(frozen=True)
class _Picture:
    path: Path

    def count(self, as_clip: bool, n_frames: int | None) -> int:
        return 1

    def samples(self, as_clip: bool, n_frames: int | None) -> Iterator[Sample]:
        yield Sample(str(self.path), read_picture(self.path))


@dataclass(frozen=True)
class _Folder:
    """A folder of pictures that is one clip."""

    path: Path
    files: tuple[Path, ...]

    def count(self, as_clip: bool, n_frames: int | None) -> int:
        return 1

    def samples(self, as_clip: bool, n_frames: int | None) -> Iterator[Sample]:
        chosen = _pick(len(self.files), n_frames)
        frames = {i: read_picture(self.files[i]) for i in sorted(set(chosen))}
        yield Sample(str(self.path), tuple(frames[i] for i in chosen))


@dataclass(frozen=True)
class _Video:
    path: Path

    def count(self, as_clip: bool, n_frames: int | None) -> int | None:
        return 1 if as_clip else n_frames

    def samples(self, as_clip: bool, n_frames: int | None) -> Iterator[Sample]:
        frames: Iterable[tuple[int, Frame]] = (
            enumerate(video_frames(self.path))
            if n_frames is None
            else sampled_frames(self.path, n_frames)
        )
        yield from _clip_or_images(str(self.path), frames, as_clip)


@dataclass(frozen=True)
class _Array:
    path: Path
    shape: tuple[int, ...]

    def count(self, as_clip: bool, n_frames: int | None) -> int:
        B, T = (1, 1, *self.shape[:-3])[-2:]
        return B if as_clip else B * len(_pick(T, n_frames))

    def samples(self, as_clip: bool, n_frames: int | None) -> Iterator[Sample]:
        stored = open_array(self.path)
        if stored.shape != self.shape:
            raise ConfigError(f"{self.path}: has changed since it was found")
        if stored.ndim == 3:
            yield Sample(str(self.path), np.array(stored))
            return
        whole = stored.ndim == 4
        for place, clip in enumerate(stored[None] if whole else stored):
            name = str(self.path) if whole else f"{self.path}[{place}]"
            frames = ((i, np.array(clip[i])) for i in _pick(len(clip), n_frames))
            yield from _clip_or_images(name, frames, as_clip)


def _clip_or_images(
    name: str, frames: Iterable[tuple[int, Frame]], as_clip: bool
) -> Iterator[Sample]:
    if as_clip:
        yield Sample(name, tuple(frame for _, frame in frames))
    else:
        yield from (Sample(f"{name}[{index}]", frame) for index, frame in frames)
