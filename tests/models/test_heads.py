"""Attentive poolers against their authors' numbers; their quirks, and what is refused."""

from functools import partial

import pytest
import torch
from drawn import difference, draw, draw_weights
from head_cases import CLASSES, PROBES, TOKENS, D
from small_vit import BODY, CPU, EXACT, FAR, GOLDEN, PRE, probe, probe_file, vit_with

from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import main
from jepa_wm.errors import ConversionError
from jepa_wm.models import load
from jepa_wm.models.attention import attention
from jepa_wm.models.layers import merge_heads
from jepa_wm.runtime import command


@pytest.fixture
def to_model(tmp_path):
    return partial(vit_with, tmp_path)


def tokens_of(case):
    shape, scale = TOKENS[case]
    return draw(case, shape) * scale


# the authors' numbers


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", PROBES)
def test_reduced_matrices_keep_the_direction(to_model, name, dtype):
    exact, bundle = to_model(head=probe_file(probe(name), name))
    near, tokens = load(bundle, CPU, dtype), tokens_of("several")
    pooled = near.head.pooled(tokens)
    worst = torch.cosine_similarity(pooled, exact.head.pooled(tokens), -1).min().item()
    assert pooled.dtype == torch.float32 and 0.999 <= worst < 1, f"cosine {worst:.6f}"


def test_a_probe_takes_the_place_of_the_checkpoints_head(to_model):
    own = {"head.weight": torch.ones(3, D), "head.bias": torch.ones(3)}
    model, bundle = to_model(beside=own, head=probe_file(probe("vjepa2")))
    assert bundle.get("jepa.head.kind") == "attentive_pool" and len(model.head.cls.bias) == CLASSES


# what is refused


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
