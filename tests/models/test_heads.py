"""Heads against their authors' numbers, transformers and timm; their quirks and converters."""

import json

import pytest
import torch
from drawn import difference, draw, draw_weights, read
from head_cases import CLASSES, PROBES, TOKENS, D

from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import Reading, convert, main
from jepa_wm.errors import ConversionError
from jepa_wm.models import load
from jepa_wm.models.layers import attention, merge_heads
from jepa_wm.runtime import command

CPU = torch.device("cpu")
EXACT, FAR = 1e-5, 1e-3  # relative
GOLDEN = {name: read(f"heads_{name}.npz") for name in PROBES}
PRE = {
    "jepa.pre.mean": (0.5, 0.4, 0.3), "jepa.pre.std": (0.2, 0.3, 0.4), "jepa.pre.resize_short": 18,
    "jepa.pre.crop": 16, "jepa.pre.resample": "bilinear", "jepa.pre.resize_mode": "squash",
}  # fmt: skip
BODY = {
    "cls_token": [1, 1, D], "pos_embed": [1, 17, D], "patch_embed.proj.weight": [D, 3, 4, 4],
    "patch_embed.proj.bias": [D], "norm.weight": [D], "norm.bias": [D],
    "blocks.0.norm1.weight": [D], "blocks.0.norm1.bias": [D], "blocks.0.norm2.weight": [D],
    "blocks.0.norm2.bias": [D], "blocks.0.attn.qkv.weight": [3 * D, D],
    "blocks.0.attn.qkv.bias": [3 * D], "blocks.0.attn.proj.weight": [D, D],
    "blocks.0.attn.proj.bias": [D], "blocks.0.mlp.fc1.weight": [48, D],
    "blocks.0.mlp.fc1.bias": [48], "blocks.0.mlp.fc2.weight": [D, 48],
    "blocks.0.mlp.fc2.bias": [D],
}  # fmt: skip


def probe(name):
    return draw_weights(GOLDEN[name][0])


def probe_file(weights, layout="vjepa2"):
    """Wrap a probe as its authors save it; a second one was trained with other settings."""
    wrapped = {f"module.{name}": tensor for name, tensor in weights.items()}
    if layout == "vjepa":
        return {"classifier": wrapped, "epoch": 20}
    other = {name: tensor + 1 for name, tensor in wrapped.items()}
    return {"classifiers": [wrapped, other], "opt": [{}, {}], "epoch": 20}


@pytest.fixture
def to_model(tmp_path):
    """Convert a small ViT with 4 heads, with what is put beside its tensors, and a head's file."""

    def run(beside=None, head=None, given=None, config=None):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        torch.save(draw_weights(BODY, "body") | (beside or {}), folder / "model.pt")
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        if head is not None:
            torch.save(head, tmp_path / "probe.pt")
        reading = Reading(head=None if head is None else tmp_path / "probe.pt")
        keys = {"jepa.enc.n_head": 4, **PRE, **(given or {})}
        convert("hfvit", folder, folder / "x.gguf", "f32", keys, reading)
        return load(folder / "x.gguf", CPU), Bundle.open(folder / "x.gguf")

    return run


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


def tokens_of(case):
    shape, scale = TOKENS[case]
    return draw(case, shape) * scale


# attentive pool: the authors' probes


@pytest.mark.parametrize("case", TOKENS)
@pytest.mark.parametrize("name", PROBES)
def test_a_probe_gives_its_authors_numbers(to_model, name, case):
    model, bundle = to_model(head=probe_file(probe(name), name))
    tokens, arrays = tokens_of(case), GOLDEN[name][1]
    pooled = difference(model.head.pooled(tokens), arrays[f"{case}/pooled"])
    logits = difference(model.head(tokens), arrays[f"{case}/logits"])
    assert max(pooled, logits) < EXACT, f"pooled {pooled:.2g}, logits {logits:.2g}"
    heads, depth = PROBES[name]
    assert bundle.get("jepa.head.n_pool_layers") == depth - 1
    assert bundle.get("jepa.head.n_head") == heads and bundle.get("jepa.enc.n_head") == 4
    assert bundle.get("jepa.head.ln_eps") == pytest.approx(1e-5)
    assert bundle.get("jepa.enc.ln_eps") == pytest.approx(1e-6)
    assert bundle.get("jepa.head.n_classes") == CLASSES and bundle.get("jepa.head.labels") == ()


def pooled_without(head, quirk, tokens, projection):
    """Pool with one quirk left out."""
    blocks = list(head.blk)
    cross, x = head.xattn, tokens
    if quirk == "blocks before the cross-attention":
        blocks = []
    for block in blocks:
        x = block(x)
    query = head.query.expand(len(x), -1, -1)
    kv = x if quirk == "tokens normalised" else cross.ln_kv(x)
    asked = cross.ln_kv(query) if quirk == "query not normalised" else query
    parts = (cross.q(asked), cross.k(kv), cross.v(kv))
    if quirk == "rows are k then v":
        parts = (cross.q(asked), cross.v(kv), cross.k(kv))
    heads = 4 if quirk == "16 heads" else cross.n_head
    q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts)
    y = merge_heads(attention(q, k, v))
    if quirk == "no output projection":
        y = torch.nn.functional.linear(y, *projection)
    y = y if quirk == "query added" else query + y
    y = y + cross.ffn_down(cross.ffn_up(cross.ln2(y), cross.act))
    if quirk == "blocks before the cross-attention":
        for block in head.blk:
            y = block(y)
    return y[:, 0]


@pytest.mark.parametrize(
    "quirk",
    [
        "", "query not normalised", "tokens normalised", "no output projection", "query added",
        "blocks before the cross-attention", "rows are k then v", "16 heads",
    ],
)  # fmt: skip
def test_each_quirk_shows_in_the_authors_numbers(to_model, quirk):
    model, _ = to_model(head=probe_file(probe("vjepa2")))
    stored = probe("vjepa")  # whose files have the projection, although it is never applied
    name = "pooler.cross_attention_block.xattn.proj."
    projection = stored[name + "weight"], stored[name + "bias"]
    pooled = pooled_without(model.head, quirk, tokens_of("several"), projection)
    error = difference(pooled, GOLDEN["vjepa2"][1]["several/pooled"])
    assert error > FAR if quirk else error < EXACT, f"{quirk or 'all kept'}: {error:.2g}"


@pytest.mark.parametrize(
    ("key", "wrong", "case"),
    [
        ("jepa.head.ln_eps", 1e-6, "faint"),  # the encoder's
        ("jepa.head.n_head", 4, "several"),  # the encoder's
        ("jepa.enc.act", "gelu_tanh", "several"),
    ],
)
def test_each_setting_shows_in_the_authors_numbers(to_model, key, wrong, case):
    model, _ = to_model(head=probe_file(probe("vjepa2")), given={key: wrong})
    error = difference(model.head(tokens_of(case)), GOLDEN["vjepa2"][1][f"{case}/logits"])
    assert error > (2 * EXACT if key == "jepa.enc.act" else FAR), f"{key}: {error:.2g}"


def test_the_whole_of_a_classifier(to_model):
    """Every token goes in, CLS too, and ``classify`` is encoder, pooler and classifier."""
    model, _ = to_model(head=probe_file(probe("vjepa2")))
    frames = torch.randint(0, 256, (3, 16, 16, 3), dtype=torch.uint8)
    logits = model.classify(frames)
    tokens = model.encode(model.pixels(frames))
    assert logits.shape == (3, CLASSES) and tokens.shape[1] == 17
    torch.testing.assert_close(logits, model.head(tokens), rtol=1e-5, atol=1e-5)


def test_a_probe_takes_the_place_of_the_checkpoints_head(to_model):
    own = {"head.weight": torch.ones(3, D), "head.bias": torch.ones(3)}
    model, bundle = to_model(beside=own, head=probe_file(probe("vjepa2")))
    assert bundle.get("jepa.head.kind") == "attentive_pool" and len(model.head.cls.bias) == CLASSES


# attentive pool: what is refused


def changed(**changes):
    """The V-JEPA 2 probe with tensors replaced (``.`` written ``__``), or taken out by None."""
    weights = probe("vjepa2") | {name.replace("__", "."): t for name, t in changes.items()}
    return {name: tensor for name, tensor in weights.items() if tensor is not None}


def linear(classes, width=D):
    return {"linear.weight": torch.ones(classes, width), "linear.bias": torch.ones(classes)}


QUERY = "pooler.query_tokens"
DEEP = probe("vjepa2") | {
    f"pooler.cross_attention_block.xattn.proj.{end}": torch.ones([D, D][: 2 - (end == "bias")])
    for end in ("weight", "bias")
}
ANTICIPATION = {
    **{n: t for n, t in probe("vjepa2").items() if not n.startswith("linear")},
    QUERY: torch.ones(1, 3, D),
    **{f"{n}_classifier.{e}": torch.ones([5, D][: 2 - (e == "bias")])
       for n in ("verb", "noun", "action") for e in ("weight", "bias")},
}  # fmt: skip


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (ANTICIPATION, r"action anticipation head.*verb_classifier\.weight.*one classifier"),
        (probe("vjepa2") | {QUERY: torch.ones(1, 2, D)}, r"is \[1, 2, 32\], wanted one query"),
        (DEEP, "V-JEPA 1 probe deeper than 1 .*after the cross-attention"),
        (probe("vjepa2") | linear(48), r"of Diving48.*\(4 N\).*--set jepa\.head\.n_classes=48"),
        (probe("vjepa2") | linear(27), r"of Jester.*\(4 N\)"),
        (changed(linear__bias=None), r"1 missing: head: head\.cls\.bias \(from linear\.bias\)"),
        (changed(pooler__cross_attention_block__xattn__kv__bias=None), r"head\.xattn\.kv\.bias"),
        (changed(pooler__blocks__2__x=torch.ones(1)), r"left over: head: pooler\.blocks\.2\.x"),
        (linear(5, 4 * D), r"features of width 128, the encoder gives 32 or 64; heads on several"),
        ({"weight": torch.ones(5, 5 * D)}, "features of width 160"),
        ({"mlp.weight": torch.ones(5, D)}, "the file given as head holds nothing"),
    ],
)
def test_other_heads_are_refused_with_the_reason(to_model, tmp_path, weights, match):
    with pytest.raises(ConversionError, match=match) as refused:
        to_model(head={"classifiers": [weights]})
    assert "\n" not in str(refused.value) and not list(tmp_path.rglob("*.gguf"))


def test_a_probe_of_its_own_may_have_48_classes(to_model):
    _, bundle = to_model(
        head=probe_file(probe("vjepa2") | linear(48)), given={"jepa.head.n_classes": 48}
    )
    assert bundle.get("jepa.head.n_classes") == 48


def test_a_width_that_16_does_not_divide_asks_for_the_heads(to_model, monkeypatch):
    monkeypatch.setattr("jepa_wm.models.head_sources.PROBE_HEADS", 24)
    with pytest.raises(ConversionError, match=r"width 32 .* 24 heads.*--set jepa\.head\.n_head="):
        to_model(head=probe_file(probe("vjepa2")))
    _, bundle = to_model(head=probe_file(probe("vjepa2")), given={"jepa.head.n_head": 8})
    assert bundle.get("jepa.head.n_head") == 8


def test_the_tensors_have_the_last_word(to_model):
    for key, value in (("n_pool_layers", 3), ("n_classes", 9), ("kind", "linear_cls")):
        with pytest.raises(ConversionError, match=f"jepa.head.{key} is .* by the tensors, but"):
            to_model(head=probe_file(probe("vjepa2")), given={f"jepa.head.{key}": value})


def test_command_line_with_a_head(tmp_path, capsys):
    torch.save(draw_weights(BODY, "body"), tmp_path / "model.pt")
    torch.save(probe_file(DEEP), tmp_path / "deep.pt")
    torch.save(probe_file(probe("vjepa2")), tmp_path / "probe.pt")
    given = {"jepa.enc.n_head": 4, **PRE}
    text = {k: ",".join(map(str, v)) if isinstance(v, tuple) else str(v) for k, v in given.items()}
    settings = [part for key, value in text.items() for part in ("--set", f"{key}={value}")]
    arguments = ["--family", "hfvit", "--src", str(tmp_path / "model.pt"), *settings]
    out = tmp_path / "x.gguf"
    with pytest.raises(SystemExit) as stopped:
        head = str(tmp_path / "deep.pt")
        command(lambda: main([*arguments, "--head", head, "--out", str(out)]))
    said = capsys.readouterr().err
    assert stopped.value.code == 1 and said.count("\n") == 1 and not out.exists()
    assert "V-JEPA 1 probe deeper than 1" in said and "deep.pt" in said
    main([*arguments, "--head", str(tmp_path / "probe.pt"), "--out", str(out)])
    assert "57/57 required" in capsys.readouterr().out
    assert Bundle.open(out).get("jepa.head.kind") == "attentive_pool"


# attentive pool: transformers


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


@pytest.mark.reference
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


@pytest.mark.reference
def test_the_head_of_a_folder_goes_on_another_checkpoint(from_hugging_face, tmp_path):
    reference = video_classifier()
    reference.save_pretrained(tmp_path / "classifier")
    model, bundle = from_hugging_face("vjepa2", reference.vjepa2, head=tmp_path / "classifier")
    pixels = draw("pixels", (2, 4, 3, 16, 16))
    with torch.no_grad():
        wanted = reference(pixels).logits
    assert difference(model.head(model.encode(pixels)), wanted) < EXACT
    assert bundle.get("jepa.head.labels") == tuple("abcdefghijkl")


@pytest.mark.reference
def test_a_classifier_can_be_left_out(from_hugging_face):
    given = {"jepa.head.kind": "none"}
    model, bundle = from_hugging_face("vjepa2", video_classifier(), given)
    assert model.head is None and bundle.get("jepa.head.kind") == "none"
    assert not any(name.startswith("head.") for name in bundle.names())
    with pytest.raises(ValueError, match="no classifier"):
        model.classify(torch.zeros(4, 16, 16, 3, dtype=torch.uint8))


@pytest.mark.reference
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


# linear heads


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


@pytest.mark.reference
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


@pytest.mark.reference
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


OWN = {"head.weight": draw("head", (5, D)), "head.bias": draw("bias", (5,))}


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
