"""The converter's doors: files, wrappers, command line. Families test what they make of it."""

import json
import socket
import sys
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from jepa_wm.bundle import schema
from jepa_wm.bundle.quant import FILE_TYPES
from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import convert, main, parse_settings
from jepa_wm.errors import BundleError, ConversionError
from jepa_wm.models import FAMILIES
from jepa_wm.models.checkpoint import open_source
from jepa_wm.runtime import command

ANCHORS = FAMILIES["hfvit"].anchors
D, P = 8, 2
GIVEN = [
    "enc.n_head=2", "pre.mean=0.5,0.5,0.5", "pre.std=0.5,0.5,0.5", "pre.resize_short=8",
    "pre.crop=8", "pre.resample=bilinear", "pre.resize_mode=squash",
]  # fmt: skip


def state(seed=0):
    """A one-layer ViT in timm's names."""
    generator = torch.Generator().manual_seed(seed)
    shapes = {
        "cls_token": (1, 1, D), "pos_embed": (1, 17, D), "patch_embed.proj.weight": (D, 3, P, P),
        "patch_embed.proj.bias": (D,), "norm.weight": (D,), "norm.bias": (D,),
        "blocks.0.norm1.weight": (D,), "blocks.0.norm1.bias": (D,),
        "blocks.0.attn.qkv.weight": (3 * D, D), "blocks.0.attn.qkv.bias": (3 * D,),
        "blocks.0.attn.proj.weight": (D, D), "blocks.0.attn.proj.bias": (D,),
        "blocks.0.norm2.weight": (D,), "blocks.0.norm2.bias": (D,),
        "blocks.0.mlp.fc1.weight": (16, D), "blocks.0.mlp.fc1.bias": (16,),
        "blocks.0.mlp.fc2.weight": (D, 16), "blocks.0.mlp.fc2.bias": (D,),
    }  # fmt: skip
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


@pytest.fixture
def saved(tmp_path):
    def save(value, name="model.pt"):
        torch.save(value, tmp_path / name)
        return tmp_path / name

    return save


def run(source, out, *more):
    settings = [part for pair in GIVEN for part in ("--set", pair)]
    main(["--family", "hfvit", "--src", str(source), "--out", str(out), *settings, *more])
    return Bundle.open(out)


def prefixed(weights, prefix):
    return {prefix + name: tensor for name, tensor in weights.items()}


# wrappers


@pytest.mark.parametrize("prefix", ["", "module.", "module.backbone."])
@pytest.mark.parametrize("wrapper", ["encoder", "target_encoder", "state_dict", "model", None])
def test_wrappers_and_prefixes_give_identical_tensors(saved, wrapper, prefix):
    weights = prefixed(state(), prefix)
    value = weights if wrapper is None else {wrapper: weights, "epoch": 3, "opt": {"lr": 0.1}}
    source = open_source(saved(value), ANCHORS)
    assert source.entry == (wrapper or "")
    assert source.tensors.keys() == state().keys()
    assert all(torch.equal(source.tensors[n], t) for n, t in state().items())


def test_two_different_encoders_need_a_choice(saved):
    path = saved({"encoder": state(0), "target_encoder": prefixed(state(1), "module.")})
    with pytest.raises(ConversionError, match=r"'encoder', 'target_encoder'.*--entry"):
        open_source(path, ANCHORS)
    with pytest.raises(ConversionError, match="'ema' not found; entries: 'encoder', 'target_enc"):
        open_source(path, ANCHORS, "ema")
    chosen = open_source(path, ANCHORS, "target_encoder")
    assert torch.equal(chosen.tensors["norm.bias"], state(1)["norm.bias"])


def test_two_models_in_one_flat_dict_need_a_choice_too(saved):
    path = saved(prefixed(state(0), "student.") | prefixed(state(1), "teacher.backbone."))
    with pytest.raises(ConversionError, match="'student', 'teacher'"):
        open_source(path, ANCHORS)
    chosen = open_source(path, ANCHORS, "teacher")
    assert chosen.tensors.keys() == state().keys()
    assert torch.equal(chosen.tensors["norm.bias"], state(1)["norm.bias"])


def test_two_equal_encoders_need_none(saved):
    source = open_source(saved({"encoder": state(), "target_encoder": state()}), ANCHORS)
    assert source.entry == "encoder"


def test_metadata_records_entry_and_hash_and_both_follow_the_choice(saved, tmp_path):
    path = saved({"encoder": state(0), "target_encoder": state(1)})
    found = {}
    for key in ("encoder", "target_encoder"):
        bundle = run(path, tmp_path / f"{key}.gguf", "--entry", key)
        found[key] = (bundle.get("jepa_wm.source.entry"), bundle.get("jepa_wm.source.sha256"))
    assert [entry for entry, _ in found.values()] == ["encoder", "target_encoder"]
    hashes = {digest for _, digest in found.values()}
    assert len(hashes) == 2 and all(len(digest) == 64 for digest in hashes)


def test_tensors_beside_the_prefix_stay_in_sight(saved, tmp_path):
    path = saved(prefixed(state(), "vit.") | {"stranger": torch.ones(2)})
    with pytest.raises(ConversionError, match="1 left over: stranger"):
        run(path, tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


# files


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("part", [0.0, 0.25, 0.5, 0.75, 0.99])
def test_a_truncated_source_leaves_no_output(tmp_path, saved, suffix, part):
    path = tmp_path / f"model.{suffix}"
    if suffix == "pt":
        saved(state())
    else:
        save_file(state(), path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(ConversionError, match=f"model.{suffix} cannot be read"):
        run(path, tmp_path / "x.gguf")
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("photo.jpg", "is no checkpoint: neither safetensors nor a PyTorch file"),
        ("notes.pt", "is no checkpoint: neither safetensors nor a PyTorch file"),
        ("weights.bin", "name that ends in .safetensors"),
        ("cut.pt", "finding central directory)"),
    ],
)
def test_what_is_no_checkpoint_is_said_in_our_words(tmp_path, saved, name, words):
    path = tmp_path / name
    if name == "photo.jpg":
        Image.new("RGB", (40, 40), "red").save(path)
    elif name == "weights.bin":
        save_file(state(), path)
    else:
        path.write_bytes(b"notes" * 20 if name == "notes.pt" else saved(state()).read_bytes()[:999])
    with pytest.raises(ConversionError) as error:
        run(path, tmp_path / "x.gguf")
    said = str(error.value)
    assert said.endswith(words) and len(said) < len(str(path)) + 160, said


@pytest.mark.parametrize("name", ["weights.pt", "model.safetensors"])
def test_a_git_lfs_pointer_is_named(tmp_path, name):
    (tmp_path / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    with pytest.raises(ConversionError, match=f"{name} is a git LFS pointer"):
        open_source(tmp_path, ANCHORS)


class Malicious:
    def __reduce__(self):
        return (print, ("executed",))


def test_a_pickle_that_runs_code_is_refused_unrun(saved, capsys):
    path = saved({"state_dict": state(), "x": Malicious()})
    wanted = r"asks for (builtins\.)?print;.*--unsafe-pickle"
    with pytest.raises(ConversionError, match=f"needs code to load.*{wanted}") as refused:
        open_source(path, ANCHORS)
    assert "\n" not in str(refused.value) and "executed" not in capsys.readouterr().out
    assert not (path.parent / "x.gguf").exists()
    assert run(path, path.parent / "x.gguf", "--unsafe-pickle").family == "hfvit"
    assert "executed" in capsys.readouterr().out


def test_what_is_not_there_or_not_clear_is_said(tmp_path, saved):
    with pytest.raises(ConversionError, match="no such file"):
        open_source(tmp_path / "nothing", ANCHORS)
    with pytest.raises(ConversionError, match="found none"):
        open_source(tmp_path, ANCHORS)
    saved(state(), "a.pt"), saved(state(), "b.pth")
    with pytest.raises(ConversionError, match=r"found a\.pt, b\.pth"):
        open_source(tmp_path, ANCHORS)
    with pytest.raises(ConversionError, match="holds a list"):
        open_source(saved([1, 2], "list.pt"), ANCHORS)
    with pytest.raises(ConversionError, match="0 of 1 tensors matched"):
        open_source(saved({"a": torch.ones(1)}, "other.pt"), ANCHORS)


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_a_broken_config_is_named(tmp_path, saved, text):
    path = saved(state())
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConversionError, match=r"config\.json"):
        open_source(path, ANCHORS)


def test_an_index_without_a_map_is_refused(tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ConversionError, match=r"index\.json has no weight_map"):
        open_source(tmp_path, ANCHORS)


def test_conversion_opens_no_socket(saved, tmp_path, monkeypatch):
    def blocked(*_):
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", blocked)
    assert run(saved(state()), tmp_path / "x.gguf").family == "hfvit"


def test_a_checkpoint_of_another_family_is_told_so(tmp_path):
    torch.save({"predictor.pos_embedding": torch.ones(1, 3, 8)}, tmp_path / "model.pt")
    for family, looks in (("hfvit", "; it looks like lewm"), ("ijepa", "; it looks like lewm")):
        out = tmp_path / "x.gguf"
        with pytest.raises(ConversionError) as refused:
            convert(family, tmp_path, out, "f32", {})
        text = str(refused.value)
        assert "0 of 1 tensors matched: looked for" in text and f"as {family} has{looks}" in text
        assert "\n" not in text and not out.exists()
    torch.save({"a": torch.ones(2)}, tmp_path / "model.pt")
    with pytest.raises(ConversionError, match="as lewm has; nor is it any other family's"):
        convert("lewm", tmp_path, tmp_path / "x.gguf", "f32", {})


def test_a_head_nobody_uses_is_refused(saved, tmp_path):
    head = saved({"classifiers": [{"module.probe.weight": torch.ones(2, D)}]}, "probe.tar")
    with pytest.raises(ConversionError, match=r"given as head.*1 left over: head: probe\.w"):
        run(saved(state()), tmp_path / "x.gguf", "--head", str(head))
    assert not (tmp_path / "x.gguf").exists()


def test_what_other_readers_cannot_hold_is_not_written(saved, tmp_path, monkeypatch):
    """A C reader has 64 bytes for a name with its closing zero, and four dimensions."""
    odd = {"x" * 64: torch.ones(1), "deep": torch.ones(1, 1, 1, 1, 2)}

    def too_much(source, given):
        meta, tensors = FAMILIES["hfvit"].convert(source, given)
        return meta, tensors | odd

    family = replace(FAMILIES["hfvit"], name="odd", convert=too_much)
    monkeypatch.setitem(FAMILIES, "odd", family)
    with pytest.raises(BundleError, match=r"xxx has 64 bytes.*\[1, 1, 1, 1, 2\], wanted 1 to 4"):
        convert("odd", saved(state()), tmp_path / "x.gguf", "f32", parse_settings(GIVEN))
    assert not (tmp_path / "x.gguf").exists()


def test_not_a_number_is_refused(saved, tmp_path):
    weights = state()
    weights["norm.bias"][3] = float("nan")
    with pytest.raises(Exception, match=r"enc\.norm\.bias") as caught:
        run(saved(weights), tmp_path / "x.gguf")
    assert caught.type.__mro__[1].__name__ == "JepaError"
    assert not (tmp_path / "x.gguf").exists()


# command line


def test_report_counts_what_was_matched(saved, tmp_path, capsys):
    run(saved(state() | {"mask_token": torch.ones(2, D)}), tmp_path / "x.gguf")
    said = capsys.readouterr().out
    size = (tmp_path / "x.gguf").stat().st_size / 1e6
    assert f"{size:.1f} MB; matched 18/18 required source tensors, 1 skipped" in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("file_type", list(FILE_TYPES))
def test_every_file_type_can_be_asked_for(saved, tmp_path, file_type):
    bundle = run(saved(state()), tmp_path / "x.gguf", "--ftype", file_type)
    assert bundle.get("general.file_type") == FILE_TYPES[file_type][0]


def test_progress_is_shown_for_large_sources_only(saved, tmp_path, capsys, monkeypatch):
    run(saved(state()), tmp_path / "x.gguf")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("jepa_wm.convert.LARGE", 1)
    run(saved(state()), tmp_path / "x.gguf")
    assert "reading: 100%" in capsys.readouterr().err


def test_name_licence_and_file_type(saved, tmp_path):
    path = saved(state())
    (tmp_path / "README.md").write_text("---\ntags: [a]\nlicense: apache-2.0\n---\n# Card\n")
    bundle = run(path, tmp_path / "x.gguf", "--name", "my-vit", "--ftype", "f16")
    assert bundle.get("general.name") == "my-vit" and bundle.get("general.file_type") == 1
    assert bundle.get("general.license") == "apache-2.0"
    assert run(path, tmp_path / "y.gguf").get("general.name") == "model"
    (tmp_path / "named.pt").symlink_to(path)  # a cache holds files under their hash
    named = run(tmp_path / "named.pt", tmp_path / "z.gguf")
    assert named.get("general.name") == "named"


def test_settings_are_typed_by_the_schema():
    given = parse_settings(
        ["enc.n_head=6", "jepa.enc.ln_eps=1e-12", "pre.mean=0.1, 0.2,0.3",
         "jepa_wm.action.std=0.5,1", "general.license=mit", "enc.act=gelu"]
    )  # fmt: skip
    assert given == {
        "jepa.enc.n_head": 6, "jepa.enc.ln_eps": 1e-12, "jepa.pre.mean": (0.1, 0.2, 0.3),
        "jepa_wm.action.std": (0.5, 1.0), "general.license": "mit", "jepa.enc.act": "gelu_erf",
    }  # fmt: skip


def test_all_wrong_settings_are_listed():
    with pytest.raises(ConversionError) as caught:
        parse_settings(["enc.heads=6", "enc.n_head", "enc.n_head=six", "pre.resample=lanczos"])
    text = str(caught.value)
    for part in ("enc.heads=6", "'enc.n_head'", "enc.n_head=six", "bilinear, bicubic"):
        assert part in text


@pytest.mark.parametrize("given", ["enc.n_heads=4", "jepa.enc.n_heads=4"])
def test_a_misspelt_setting_is_told_the_nearest_key(given):
    with pytest.raises(ConversionError, match=r"did you mean jepa\.enc\.n_head\?"):
        parse_settings([given])
    with pytest.raises(ConversionError, match=r"bundle schema$"):
        parse_settings(["size=4"])


def test_unsaid_preprocessing_is_asked_for_with_what_may_be_said(saved, tmp_path):
    arguments = ["--family", "hfvit", "--src", str(saved(state())), "--set", "enc.n_head=2"]
    with pytest.raises(ConversionError, match="give with --set") as error:
        main([*arguments, "--out", str(tmp_path / "x.gguf")])
    said = str(error.value)
    for key in "jepa.pre.resample", "jepa.pre.resize_mode":
        choices = said.split(f"{key}= (")[1].split(")")[0].split(" or ")
        assert sorted(choices) == sorted(schema.key_for(key).choices)
    assert "jepa.pre.mean= (0.485,0.456,0.406 for" in said and "\n" not in said


def test_a_mistake_is_one_line_and_status_one(tmp_path, capsys, monkeypatch):
    arguments = ["--family", "hfvit", "--src", str(tmp_path / "no"), "--out", str(tmp_path / "x")]
    monkeypatch.setattr(sys, "argv", ["convert", *arguments])
    with pytest.raises(SystemExit) as stopped:
        command(lambda: main(arguments))
    assert stopped.value.code == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1


def test_the_source_is_never_written_over(saved, tmp_path):
    path = saved(state())
    (tmp_path / "link.gguf").symlink_to(path)
    for src, out in (path, path), (path, tmp_path / "link.gguf"), (tmp_path, path):
        before = path.read_bytes()
        with pytest.raises(ConversionError, match="is part of the source; write to another file"):
            run(src, out)
        assert path.read_bytes() == before
    for _ in range(2):  # a bundle beside the weights may be replaced
        run(tmp_path, tmp_path / "x.gguf")


def test_an_impossible_place_is_one_of_our_errors(saved, tmp_path):
    given = parse_settings(GIVEN)
    for place, words in ("no/such/x.gguf", "no/such"), ("x" * 300, "File name too long"):
        with pytest.raises(Exception, match=words) as caught:
            convert("hfvit", saved(state()), tmp_path / place, "f32", given)
        assert caught.type.__mro__[1].__name__ == "JepaError"


def test_a_user_may_overrule_the_config_but_not_the_tensors(saved, tmp_path):
    path = saved(state())
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vitv2", "num_heads": 4}))
    assert run(path, tmp_path / "x.gguf").get("jepa.enc.n_head") == 2
    with pytest.raises(ConversionError, match="embed_dim is 8 by the tensors, but 16 is stated"):
        run(path, tmp_path / "y.gguf", "--set", "enc.embed_dim=16")


def test_what_could_be_written_but_not_loaded_is_refused(saved, tmp_path):
    out = tmp_path / "out.gguf"
    with pytest.raises(ConversionError, match=r"model\.pt: jepa_wm\.enc\.pos_interp = 'trilinear"):
        run(saved(state()), out, "--set", "jepa_wm.enc.pos_interp=trilinear_scale")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["model.pt"]
