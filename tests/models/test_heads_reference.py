"""Heads against transformers and timm: pooled video classifiers, linear image classifiers."""

import json

import pytest
import torch
from drawn import difference, draw, draw_weights
from head_cases import D
from small_vit import CPU, EXACT, PRE

from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import Reading, convert
from jepa_wm.errors import ConversionError
from jepa_wm.models import load

pytestmark = pytest.mark.reference


@pytest.fixture
def from_hugging_face(tmp_path):
    """Save a transformers model as its authors publish them, convert, load."""

    def run(family, reference, given=None, **reading):
        reference.save_pretrained(tmp_path / "hf")
        keys = {**PRE, **(given or {})}
        src, out = reading.pop("src", tmp_path / "hf"), tmp_path / "x.gguf"
        convert(family, src, out, "f32", keys, Reading(**reading))
        return load(out, CPU), Bundle.open(out)

    return run


def randomise(model):
    """Every parameter random, none of them trivial."""
    layout = {name: list(tensor.shape) for name, tensor in model.named_parameters()}
    drawn = draw_weights(layout)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            tensor.copy_(drawn[name])
    return model.eval()


def video_classifier(**changes):
    transformers = pytest.importorskip("transformers")
    config = transformers.VJEPA2Config(
        patch_size=4, crop_size=16, frames_per_clip=4, hidden_size=D, num_attention_heads=2,
        num_hidden_layers=2, mlp_ratio=3, pred_hidden_size=32, pred_num_attention_heads=2,
        pred_num_hidden_layers=1, pred_num_mask_tokens=2, pred_zero_init_mask_tokens=False,
        num_pooler_layers=2, **changes,
    )  # fmt: skip
    config.id2label = {str(i): name for i, name in enumerate("abcdefghijkl")}
    return randomise(transformers.VJEPA2ForVideoClassification(config))


def test_hugging_face_video_classifier(from_hugging_face):
    reference = video_classifier()
    model, bundle = from_hugging_face("vjepa2", reference)
    pixels = draw("pixels", (2, 4, 3, 16, 16))
    with torch.no_grad():
        output = reference(pixels)
        tokens = reference.vjepa2(pixels, skip_predictor=True).last_hidden_state
        pooled = reference.pooler(tokens)
    errors = [
        difference(model.head(model.encode(pixels)), output.logits),
        difference(model.head.pooled(tokens), pooled),
    ]
    assert max(errors) < EXACT, errors
    # the encoder's heads and epsilon, ten labels and more in numeric order, an MLP of 4 D
    assert not {"jepa.head.n_head", "jepa.head.ln_eps"} & set(bundle.meta)
    assert bundle.get("jepa.head.labels") == tuple("abcdefghijkl") == model.labels
    rows = {bundle.shape(f"head.{part}.ffn_up.bias")[0] for part in ("blk.0", "blk.1", "xattn")}
    assert rows == {4 * D} and bundle.get("jepa.enc.ffn_dim") == 3 * D


def test_a_config_of_another_depth_is_refused(from_hugging_face):
    reference = video_classifier()
    reference.config.num_pooler_layers = 3
    with pytest.raises(ConversionError, match="n_pool_layers is 2 by the tensors, but 3 is stated"):
        from_hugging_face("vjepa2", reference)


def test_the_head_of_a_folder_goes_on_another_checkpoint(from_hugging_face, tmp_path):
    reference = video_classifier()
    reference.save_pretrained(tmp_path / "classifier")
    model, bundle = from_hugging_face("vjepa2", reference.vjepa2, head=tmp_path / "classifier")
    pixels = draw("pixels", (2, 4, 3, 16, 16))
    with torch.no_grad():
        wanted = reference(pixels).logits
    assert difference(model.head(model.encode(pixels)), wanted) < EXACT
    assert bundle.get("jepa.head.labels") == tuple("abcdefghijkl")


def test_a_classifier_can_be_left_out(from_hugging_face):
    given = {"jepa.head.kind": "none"}
    model, bundle = from_hugging_face("vjepa2", video_classifier(), given)
    assert model.head is None and bundle.get("jepa.head.kind") == "none"
    assert not any(name.startswith("head.") for name in bundle.names())
    with pytest.raises(ValueError, match="no classifier"):
        model.classify(torch.zeros(4, 16, 16, 3, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("labels", "match"),
    [
        ({"0": "a", "1": "b"}, "2 labels for 12 classes, wanted one for each of 0 to 11"),
        ({str(i): "x" for i in range(1, 13)}, "12 labels for 12 classes, wanted one for each"),
        ({f"n{i}": "x" for i in range(12)}, "wanted one for each of 0 to 11"),
    ],
)
def test_labels_that_do_not_fit_are_refused(from_hugging_face, tmp_path, labels, match):
    reference = video_classifier()
    reference.save_pretrained(tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"id2label": labels}))
    weights = (tmp_path / "hf" / "model.safetensors").read_bytes()
    (tmp_path / "other" / "model.safetensors").write_bytes(weights)
    with pytest.raises(ConversionError, match=match):
        from_hugging_face("vjepa2", reference, src=tmp_path / "other")


def image_classifier(kind):
    transformers = pytest.importorskip("transformers")
    sizes = dict(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, image_size=16, patch_size=4,
        num_labels=3,
    )  # fmt: skip
    name, more = {
        "ijepa": ("IJepa", {"intermediate_size": 40, "layer_norm_eps": 1e-6}),
        "vit": ("ViT", {"intermediate_size": 40}),
        "dinov2": ("Dinov2", {"mlp_ratio": 2}),
        "dinov2_with_registers": ("Dinov2WithRegisters", {"mlp_ratio": 2}),
    }[kind]
    config = getattr(transformers, f"{name}Config")(**sizes, **more)
    config.id2label = {0: "tench", 1: "goldfish", 2: "great white shark, white shark"}
    return randomise(getattr(transformers, f"{name}ForImageClassification")(config))


@pytest.mark.parametrize("kind", ["ijepa", "vit", "dinov2", "dinov2_with_registers"])
def test_hugging_face_image_classifiers(from_hugging_face, kind):
    """The mean patch, CLS, or both; registers belong to neither."""
    reference = image_classifier(kind)
    model, bundle = from_hugging_face("ijepa" if kind == "ijepa" else "hfvit", reference)
    for size in ((16, 16), (24, 20)):
        pixels = draw("pixels", (2, 3, *size))
        extra = {} if kind.startswith("dino") else {"interpolate_pos_encoding": True}
        with torch.no_grad():
            wanted = reference(pixels, **extra).logits
        error = difference(model.head(model.encode(pixels)), wanted)
        assert error < EXACT, f"{kind} {size}: {error:.2g}"
    assert bundle.get("jepa.head.kind") == "linear_cls" and bundle.get("jepa.head.n_classes") == 3
    assert model.labels == ("tench", "goldfish", "great white shark, white shark")


@pytest.mark.parametrize(
    "layout", [{}, {"reg_tokens": 2}, {"global_pool": "avg", "fc_norm": False, "reg_tokens": 2}]
)
def test_timm_classifiers(tmp_path, layout):
    """On CLS; on the mean patch although there is a CLS, by zeros for it."""
    timm = pytest.importorskip("timm")
    reference = randomise(
        timm.models.vision_transformer.VisionTransformer(
            img_size=16, patch_size=4, embed_dim=24, depth=2, num_heads=3, num_classes=5, **layout
        )
    )
    torch.save(reference.state_dict(), tmp_path / "model.pt")
    args = {"num_heads": 3, "img_size": 16, **layout}
    config = {"architecture": "vit", "model_args": args, "label_names": list("vwxyz")}
    (tmp_path / "config.json").write_text(json.dumps(config))
    convert("hfvit", tmp_path, tmp_path / "x.gguf", "f32", PRE)
    model, pixels = load(tmp_path / "x.gguf", CPU), draw("pixels", (2, 3, 16, 16))
    with torch.no_grad():
        wanted = reference(pixels)
    assert difference(model.head(model.encode(pixels)), wanted) < EXACT
    assert model.labels == tuple("vwxyz")
