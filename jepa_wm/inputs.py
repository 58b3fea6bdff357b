"""What the commands that show files to a model share: their options, the model, its input."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass

from jepa_wm.bundle.faults import printable
from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.errors import ConfigError
from jepa_wm.media import samples
from jepa_wm.models import WEIGHTS, Model, load
from jepa_wm.models.model import Frames
from jepa_wm.runtime import resolve_device, resolve_dtype

INPUTS_HELP = (
    "pictures, folders of pictures, videos, and .npy arrays uint8 [H,W,3], [T,H,W,3] or [B,T,H,W,3]"
)


@dataclass(frozen=True)
class Shown:
    """What a model will be shown.

    Attributes:
        named_frames: Names and frames, read as they are taken.
        count: How many there are, or None where only reading would tell.
        as_clip: Videos, folders and time axes are clips, not single images.
        n_frames: Frames taken of each; None for all.
    """

    named_frames: Iterator[tuple[str, Frames]]
    count: int | None
    as_clip: bool
    n_frames: int | None

    @property
    def default_batch(self) -> int:
        """How many at once keep memory small: a clip holds many frames."""
        return 1 if self.as_clip else 16


def add_options(parser: ArgumentParser) -> None:
    """Add FILE, INPUT... and the options of how inputs are read and the model is run."""
    parser.add_argument("file", help="path of a GGUF bundle, hf:// name, or name of a bundled one")
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help=INPUTS_HELP)
    parser.add_argument(
        "--as", dest="kind", choices=("clip", "images"),
        help="what a video, a folder or a time axis is: one clip, or single images (a clip for a "
        "model of clips, else images)",
    )  # fmt: skip
    parser.add_argument(
        "--frames", metavar="N",
        help="frames taken of each clip or video, evenly from first to last; all takes every one "
        "(a clip: as many as the model was trained on; images: all)",
    )  # fmt: skip
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--dtype", default="float32", help="float32, bfloat16, float16 or auto")
    parser.add_argument(
        "--weights", default=WEIGHTS[0], choices=WEIGHTS,
        help="make floats of quantised matrices once, or in every call that uses them: the same "
        "numbers, less memory, slower",
    )  # fmt: skip


def open_model(options: Namespace) -> tuple[Bundle, Model]:
    """Open the bundle and load the model the options ask for.

    Raises:
        BundleError: the file is broken.
        ConfigError: the device or dtype does not exist.
    """
    device = resolve_device(options.device)
    bundle = Bundle.open(find_bundle(options.file))
    dtype = resolve_dtype(options.dtype, device)
    return bundle, load(bundle, device, dtype, options.weights)


def show(options: Namespace, bundle: Bundle, model: Model) -> Shown:
    """Find the inputs and say how they will be read; a clip nobody asked for is told on stderr.

    Raises:
        ConfigError: an input is absent or unreadable, or an option does not fit the model.
    """
    takes_clips = model.enc.config.takes_clips
    as_clip = options.kind == "clip" if options.kind else takes_clips
    if as_clip and not takes_clips:
        raise ConfigError(
            f"{bundle.path}: embeds single images, no clips; leave --as clip out for each frame"
        )
    n_frames = _n_frames(options.frames, bundle.get("jepa.enc.n_frames") if as_clip else None)
    sources = samples.find(options.inputs, as_clip)
    for path, count in samples.joined(sources) if options.kind is None else ():
        note = f"note: {printable(path)}: {count} pictures as one clip; --as images for each"
        print(note, file=sys.stderr)
    found = samples.read(sources, as_clip, n_frames)
    named = ((sample.name, sample.frames) for sample in found)
    return Shown(named, samples.count(sources, as_clip, n_frames), as_clip, n_frames)


def _n_frames(text: str | None, default: int | None) -> int | None:
    if text is None:
        return default
    if text == "all":
        return None
    if not text.isdecimal() or not 1 <= int(text) <= samples.MAX_FRAMES:
        raise ConfigError(f"--frames {text}: wanted a number 1 to {samples.MAX_FRAMES}, or all")
    return int(text)
