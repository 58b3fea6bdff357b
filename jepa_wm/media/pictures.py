"""Read one picture file or open one array file; whatever prevents that is one line with its name.

Pictures come out upright (the EXIF orientation is applied, as transformers' ``load_image`` does),
in RGB, with transparency dropped. Files are untrusted: only formats that Pillow decodes by itself
are opened: none for which it starts another program (EPS), nor JPEG 2000, where it allocates what a
header claims.
"""

import stat
import struct
import warnings
import zlib
from pathlib import Path
from tokenize import TokenError

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from jepa_wm.errors import ConfigError

Frame = NDArray[np.uint8]
"""RGB, uint8 [H,W,3]."""

SUFFIXES = frozenset(
    ".png .jpg .jpeg .jpe .jfif .bmp .webp .tif .tiff .ppm .pgm .pbm .avif".split()
)
"""What counts as a picture in a folder; a file named on its own may be called anything."""

FORMATS = ("PNG", "JPEG", "MPO", "BMP", "WEBP", "TIFF", "PPM", "AVIF", "GIF")
"""Pillow's names of the formats that are read, whatever a file is called."""

_BROKEN = (
    OSError, ValueError, SyntaxError, ArithmeticError, LookupError, RuntimeError, TypeError,
    EOFError, MemoryError, struct.error, zlib.error,
)  # fmt: skip
"""What Pillow's plugins raise on broken files."""


def require_file(path: Path) -> None:
    """Return if ``path`` is a file with something in it.

    Raises:
        ConfigError: it is absent, empty, or no regular file (opening a pipe would wait for ever).
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = "no such file" if isinstance(error, FileNotFoundError) else str(error)
        raise ConfigError(f"{path}: {reason}") from error
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{path}: is no regular file")
    if not status.st_size:
        raise ConfigError(f"{path}: is empty")


def read_picture(path: Path) -> Frame:
    """Read a picture in one of ``FORMATS``, uint8 [H,W,3], RGB and upright.

    Sixteen bits are cut to eight, as PNG readers do.

    Raises:
        ConfigError: the file is absent, broken, no picture, larger than Pillow's limit against
            decompression bombs, or has pixels of 32 bits, whose range nobody states.
    """
    require_file(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # odd metadata, which pixels do not need
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            Image.init()
            known = [name for name in FORMATS if name in Image.OPEN]  # AVIF is optional
            with Image.open(path, formats=known) as opened:
                opened.load()
                return _rgb(ImageOps.exif_transpose(opened))
    except UnidentifiedImageError as error:
        wanted = "a picture, a video (.mp4, .gif, ...), a .npy array or a folder of pictures"
        raise ConfigError(f"{path}: cannot be read as a picture; wanted {wanted}") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        limit = Image.MAX_IMAGE_PIXELS or 0
        raise ConfigError(f"{path}: has more than {limit:,} pixels; shrink it first") from error
    except _BROKEN as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"{path}: cannot be read as a picture: {said[:200]}") from error


def _rgb(image: Image.Image) -> Frame:
    if image.mode.startswith("I;16"):
        grey = (np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=-1)
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of 32 bits (mode {image.mode}) have no known range")
    return np.array(image.convert("RGB"))


def open_array(path: Path) -> NDArray[np.uint8]:
    """Open an ``.npy`` file of frames without reading them: uint8 [..,H,W,3] on disk.

    Raises:
        ConfigError: the file is absent or broken, or it does not hold uint8 [H,W,3], [T,H,W,3] or
            [B,T,H,W,3].
    """
    require_file(path)
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError, OverflowError, TypeError, TokenError) as error:
        said = " ".join(str(error).split())
        raise ConfigError(f"{path}: cannot be read as an .npy array: {said[:200]}") from error
    if not isinstance(found, np.ndarray):  # an archive of several
        raise ConfigError(f"{path}: holds several arrays; save one with numpy.save")
    is_frames = found.dtype == np.uint8 and 3 <= found.ndim <= 5 and found.shape[-1:] == (3,)
    if not is_frames or not found.size:
        raise ConfigError(
            f"{path}: holds {found.dtype} {list(found.shape)}; "
            "wanted uint8 [H,W,3], [T,H,W,3] or [B,T,H,W,3], RGB"
        )
    return found
