"""A decoder on disk: one .npz of arrays, described by one of them; nothing is unpickled.

Files come from anywhere: every size is checked before memory is taken for it.
"""

import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jepa_wm.errors import ConfigError
from jepa_wm.training.decoder import Decoder, DecoderSizes

_LARGEST_LATENT = 1 << 20  # numbers of a latent a file may claim
_LONGEST = 1 << 16  # bytes of the description
_UNREADABLE = (
    OSError, EOFError, ValueError, KeyError, TypeError, ConfigError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip
_CONFIG = "config"  # entry of a file that describes the others


def save_decoder(network: Decoder, path: Path, about: Mapping[str, Any]) -> Path:
    """Write a decoder and what is to be known of it (plain values) as one .npz; return its path."""
    text = {"sizes": asdict(network.sizes), "latent": list(network.latent), **about}
    arrays: dict[str, Any] = {k: v.cpu().numpy() for k, v in network.state_dict().items()}
    arrays[_CONFIG] = np.frombuffer(json.dumps(text).encode(), np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("wb") as sink:
        np.savez(sink, **arrays)
    part.replace(path)
    return path


def load_decoder(path: Path, device: torch.device) -> tuple[Decoder, dict[str, Any]]:
    """Read what ``save_decoder`` wrote; every size is checked before memory is taken for it.

    Raises:
        ConfigError: the file is missing or holds something else.
    """
    if not path.is_file():
        raise ConfigError(f"decoder={path}: no such file; train one with train=decoder")
    try:
        with zipfile.ZipFile(path) as archive:
            about = json.loads(_array(archive, _CONFIG, None, _LONGEST).tobytes())
            latent = tuple(int(n) for n in about["latent"])
            if not all(n > 0 for n in latent) or math.prod(latent) > _LARGEST_LATENT:
                raise ValueError(f"latents of {list(latent)}")
            with torch.device("meta"):
                network = Decoder(DecoderSizes(**about["sizes"]), latent)
            state = {
                name: torch.from_numpy(_array(archive, name, tuple(empty.shape), 4 * empty.numel()))
                for name, empty in network.state_dict().items()
            }
    except _UNREADABLE as error:
        raise ConfigError(f"decoder={path} is no decoder of ours: {error}") from error
    network.load_state_dict(state, assign=True)
    return network.to(device).eval(), about


def _array(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...] | None, most: int
) -> np.ndarray:
    """Read one array of at most ``most`` bytes, float32 of a shape, or without one uint8 [n]."""
    with archive.open(f"{name}.npy") as source:
        version = np.lib.format.read_magic(source)
        if version != (1, 0):
            raise ValueError(f"{name} is an array of version {version}")
        found, is_fortran, dtype = np.lib.format.read_array_header_1_0(source)
        wanted = np.dtype(np.uint8 if shape is None else np.float32)
        size = math.prod(found) * wanted.itemsize
        if dtype != wanted or is_fortran or size > most or (shape is not None and found != shape):
            text = f"{wanted} {'[n]' if shape is None else list(shape)}, at most {most} bytes"
            raise ValueError(f"{name} is {dtype} {list(found)}, wanted {text}")
        data = source.read(size + 1)
    if len(data) != size:
        raise ValueError(f"{name} holds {len(data)} bytes of {size}")
    return np.frombuffer(data, wanted).reshape(found).copy()
