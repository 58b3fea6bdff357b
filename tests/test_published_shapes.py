"""Every published shape runs as specified, in every precision; the README's table is made here.

``python benchmarks/family_table.py`` runs these tests and writes what they measured.
"""

import re
from pathlib import Path

import pytest
import torch
from bundle.tiny import random_tensors
from published_shapes import LAYOUTS, SHAPES

from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.models import load
from jepa_wm.parity.compare import compare
from jepa_wm.parity.inputs import choose_clip, draw_passes
from jepa_wm.parity.torch_stages import run_model

CPU = torch.device("cpu")
README = Path(__file__).parent.parent / "README.md"


def measure(bundle, model, passes):
    """Return the rows of a runtime against the specification of ``bundle``."""
    kind = bundle.get("jepa.pred.kind")
    return list(compare(bundle, passes, lambda one: run_model(model, kind, one.inputs)))


def worst_cosine(rows):
    return min(row.runtime.cosine for row in rows if row.stage == "pooled")


@pytest.mark.filterwarnings("ignore:record_property is incompatible")
@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.family} {s.size}")
def test_a_published_shape_runs_as_specified(shape, tmp_path, record_property):
    tensors = random_tensors(shape.meta)
    bundle = Bundle.open(write_bundle(tmp_path / "f32.gguf", shape.meta, tensors))
    small = write_bundle(tmp_path / "q8.gguf", shape.meta, tensors, "q8_0")
    passes = draw_passes(bundle, choose_clip(bundle, None, None))
    exact = measure(bundle, load(bundle, CPU), passes)
    error = max(row.runtime.relative for row in exact if row.runtime is not None)
    cosines = {
        "bf16": worst_cosine(measure(bundle, load(bundle, CPU, torch.bfloat16), passes)),
        "fp16": worst_cosine(measure(bundle, load(bundle, CPU, torch.float16), passes)),
        "q8_0": worst_cosine(measure(bundle, load(small, CPU), passes)),
    }
    layouts = shape.layouts or LAYOUTS[shape.family]
    facts = {"family": shape.family, "size": shape.size, "layouts": layouts, "fp32": error}
    for name, value in {**facts, **{n: 1 - cosine for n, cosine in cosines.items()}}.items():
        record_property(name, value)
    assert error < 1e-5, f"fp32: {error:.1e} relative"
    assert min(cosines.values()) >= 0.999, cosines
    computed = {row.stage for row in exact if row.runtime is not None}
    parts = {"pooled": True, "pred": shape.meta.get("jepa.pred.kind"),
             "head": shape.meta.get("jepa.head.kind")}  # fmt: skip
    assert {name for name, there in parts.items() if there} <= computed, computed


def test_the_table_in_the_readme_has_these_rows():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", README.read_text(), re.M)
    assert [row for row in rows if row[0] in {s.family for s in SHAPES}] == [
        (s.family, s.size) for s in SHAPES
    ]
