"""Read pictures from disk."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from jepa_wm.errors import ConfigError


def read_picture(path: Path) -> NDArray[np.uint8]:
    """Read a goal picture, uint8 [H,W,3], from .npy or any image file.

    Raises:
        ConfigError: the file is not a picture.
    """
    try:
        if path.suffix == ".npy":
            return np.load(path, allow_pickle=False)
        return np.asarray(Image.open(path).convert("RGB"))
    except (OSError, ValueError, UnidentifiedImageError) as error:
        raise ConfigError(f"goal={path} cannot be read as a picture: {error}") from error
