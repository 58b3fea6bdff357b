"""Golden cases of the specification as bundles, and the distance to them."""

import json
from pathlib import Path

import numpy as np

from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.writer import write_bundle

GOLDEN = Path(__file__).parent.parent / "golden"


def distance(found, wanted):
    """The largest difference over the largest value wanted; sizes must agree."""
    found, wanted = np.asarray(found, np.float64), np.asarray(wanted, np.float64)
    assert found.size == wanted.size, (found.shape, wanted.shape)
    return np.abs(found.reshape(wanted.shape) - wanted).max() / np.abs(wanted).max()


def full(meta):
    """Metadata with short keys (``enc.n_head``) as a bundle has it."""
    keys = {k if k.startswith(("jepa", "general")) else f"jepa.{k}": v for k, v in meta.items()}
    return {"general.architecture": "jepa", "jepa.schema_version": 1} | keys


def read(name):
    """Read spec_<name>.npz: metadata, tensors by bundle name, and its cases by name."""
    arrays = np.load(GOLDEN / f"spec_{name}.npz")
    flat, tensors, at = arrays["weights"].astype(np.float32) / 64, {}, 0
    for key, shape in json.loads(str(arrays["layout"])).items():
        size = int(np.prod(shape))
        tensors[key] = flat[at : at + size].reshape(shape)
        at += size
    cases = {}
    for key in arrays.files:
        if "/" in key:
            case, part = key.split("/")
            cases.setdefault(case, {})[part] = arrays[key]
    return full(json.loads(str(arrays["meta"]))), tensors, cases


def bundle_of(folder, meta, tensors, name="case.gguf"):
    return Bundle.open(write_bundle(folder / name, meta, tensors))
