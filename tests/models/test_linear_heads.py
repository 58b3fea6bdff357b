"""Linear heads: which tokens they read, and the files they come in."""

from functools import partial

import pytest
import torch
from drawn import difference, draw, draw_weights
from head_cases import D
from small_vit import BODY, CPU, EXACT, PRE, probe, probe_file, vit_with

from jepa_wm.convert import Reading, convert
from jepa_wm.errors import ConversionError
from jepa_wm.models import load

OWN = {"head.weight": draw("head", (5, D)), "head.bias": draw("bias", (5,))}


@pytest.fixture
def to_model(tmp_path):
    return partial(vit_with, tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        {"global_pool": "map"},
        {"model_args": {"global_pool": "max"}},
        {"global_pool": "avg", "pool_include_prefix": True},
    ],
)
def test_other_timm_pools_are_refused(to_model, config):
    config = {"architecture": "vit", **config}
    with pytest.raises(ConversionError, match=r"global_pool \w+ is not rep.*kind=none"):
        to_model(beside=OWN, config=config)
    model, _ = to_model(beside=OWN, config=config, given={"jepa.head.kind": "none"})
    assert model.head is None


def test_a_head_of_the_training_is_none(to_model):
    """``head.mlp`` of DINO is skipped; a plain matrix called ``head`` is the classifier."""
    model, _ = to_model(beside={"head.mlp.0.weight": torch.ones(4, D)})
    assert model.head is None
    model, _ = to_model(beside=OWN)
    assert torch.equal(model.head.cls.weight, OWN["head.weight"])


def test_the_report_counts_a_head_as_used(to_model, tmp_path):
    to_model(beside=OWN)
    keys = {"jepa.enc.n_head": 4, **PRE}
    said = convert("hfvit", tmp_path / "0" / "model.pt", tmp_path / "y.gguf", "f32", keys)
    assert said.endswith(f"matched {len(BODY) + 2}/{len(BODY) + 2} required source tensors")


@pytest.mark.parametrize("start", ["classifier.", "head.", "linear.", "fc.", ""])
@pytest.mark.parametrize("has_bias", [True, False])
def test_a_bare_linear_probe(to_model, start, has_bias):
    weights = {f"{start}weight": draw("probe", (5, D))}
    weights |= {f"{start}bias": draw("bias", (5,))} if has_bias else {}
    model, bundle = to_model(head=weights)
    tokens = draw("tokens", (2, 17, D))
    wanted = tokens[:, 0] @ weights[f"{start}weight"].T + weights.get(f"{start}bias", 0)
    assert difference(model.head(tokens), wanted) < EXACT
    assert bundle.get("jepa.head.kind") == "linear_cls"


def authors_encoder(kernel, *, rows=0, cls_token=False, norm="norm"):
    """One block in the names all the authors share."""
    layout = {n: shape for n, shape in BODY.items() if n.startswith("blocks.")}
    layout |= {"patch_embed.proj.weight": [D, 3, *kernel], "patch_embed.proj.bias": [D]}
    layout |= {f"{norm}.weight": [D], f"{norm}.bias": [D]}
    layout |= {"pos_embed": [1, rows, D]} if rows else {}
    return draw_weights(layout | ({"cls_token": [1, 1, D]} if cls_token else {}), "encoder")


CLIP = {"jepa.enc.n_head": 4, "jepa.enc.img_size": 16, "jepa.enc.n_frames": 4}
AUTHORS = {  # family -> (encoder, what its file cannot say)
    "ijepa": (authors_encoder([4, 4], rows=16), {"jepa.enc.n_head": 4}),
    "vjepa": (authors_encoder([2, 4, 4], rows=32), {"jepa.enc.n_head": 4, "jepa.enc.n_frames": 4}),
    "vjepa2": (authors_encoder([2, 4, 4]), CLIP),
    "vjepa2_1": (
        authors_encoder([2, 4, 4], norm="norms_block.0"),
        CLIP | {"jepa.enc.rope_ref_grid": 4, "jepa.enc.hier_layers": (0,)},
    ),
    "levjepa": (
        authors_encoder([1, 4, 4], cls_token=True),
        CLIP | {"jepa.enc.attn_mode": "block_causal"},
    ),
}


@pytest.mark.parametrize("family", AUTHORS)
def test_probes_on_the_authors_encoders(tmp_path, family):
    """A linear one reads CLS where there is one, else the mean patch; a pooler all tokens."""
    encoder, given = AUTHORS[family]
    torch.save({"encoder": encoder}, tmp_path / "model.pt")
    bare = {"weight": draw("probe", (5, D)), "bias": draw("bias", (5,))}
    torch.save(bare, tmp_path / "linear.pt")
    torch.save(probe_file(probe("vjepa2")), tmp_path / "pool.pt")
    models = {}
    for head in ("linear", "pool", None):
        reading = Reading(head=head and tmp_path / f"{head}.pt")
        convert(family, tmp_path / "model.pt", tmp_path / "x.gguf", "f32", PRE | given, reading)
        models[head] = load(tmp_path / "x.gguf", CPU)
    pixels = draw("clip", (2, 3, 16, 16) if family == "ijepa" else (2, 4, 3, 16, 16))
    tokens = models[None].encode(pixels)
    feature = tokens[:, 0] if family == "levjepa" else tokens.mean(1)
    wanted = feature @ bare["weight"].T + bare["bias"]
    assert models[None].head is None
    assert difference(models["linear"].classify_pixels(pixels), wanted) < EXACT
    wanted = models["pool"].head(tokens)
    assert difference(models["pool"].classify_pixels(pixels), wanted) < EXACT


def test_a_probe_on_cls_and_the_mean_patch(to_model):
    weights = {"weight": draw("probe", (5, 2 * D)), "bias": draw("bias", (5,))}
    model, _ = to_model(head=weights)
    tokens = draw("tokens", (2, 17, D))
    features = torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1)
    assert difference(model.head(tokens), features @ weights["weight"].T + weights["bias"]) < EXACT


def test_labels_can_be_given(to_model):
    given = {"jepa.head.labels": ("a", "b", "c", "d", "e")}
    model, _ = to_model(beside=OWN, given=given)
    assert model.labels == tuple("abcde")
    with pytest.raises(Exception, match=r"labels has 2 entries, jepa\.head\.n_classes is 5"):
        to_model(beside=OWN, given={"jepa.head.labels": ("a", "b")})
