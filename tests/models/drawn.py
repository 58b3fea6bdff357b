"""Numbers drawn by name, the same on every machine, so that golden files hold outputs alone.

NumPy keeps the stream of ``RandomState`` for good; values are multiples of 2^-14, which hides the
last bit of a platform's logarithm.
"""

import json
import zlib
from math import prod
from pathlib import Path

import numpy as np
import torch

GOLDEN = Path(__file__).parent.parent / "golden"
SMALL = 0.01  # of what enters the first norm, whose epsilon then counts
SMALL_NAMES = ("patch_embed", "mod_embed", "cls_token")


def draw(name, shape):
    """Standard normal float32 of a name."""
    values = np.random.RandomState(zlib.crc32(name.encode())).standard_normal(shape)
    return torch.from_numpy(np.round(values * 2**14) / 2**14).float()


def draw_weights(layout, salt=""):
    """Every parameter of a state dict (name -> shape), none of them trivial."""
    weights = {}
    for name, shape in layout.items():
        values = draw(salt + name, shape)
        if len(shape) == 1:
            values = values * 0.3 + float(name.endswith("weight"))
        elif "mask_token" not in name:
            values = values * prod(shape[1:]) ** -0.5
        small = SMALL if any(part in name for part in SMALL_NAMES) else 1
        weights[name] = values * small
    return weights


def shapes(model):
    return {name: list(tensor.shape) for name, tensor in model.state_dict().items()}


def save(name, layouts, arrays):
    """Write a golden file: layouts of the models as JSON, outputs as float32."""
    path = GOLDEN / name
    kept = {key: np.asarray(array, np.float32) for key, array in arrays.items()}
    np.savez_compressed(path, layouts=np.array(json.dumps(layouts)), **kept)
    print(path, path.stat().st_size, "bytes")


def read(name):
    """Read a golden file: (layouts, outputs)."""
    arrays = np.load(GOLDEN / name)
    layouts = json.loads(str(arrays["layouts"]))
    return layouts, {n: torch.from_numpy(arrays[n]) for n in arrays.files if n != "layouts"}


def difference(found, wanted):
    """Largest deviation relative to the largest output."""
    assert found.shape == wanted.shape, f"{list(found.shape)} for {list(wanted.shape)}"
    return ((found - wanted).abs().max() / wanted.abs().max()).item()
