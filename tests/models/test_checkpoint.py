"""Layouts of checkpoints: entries, heads, shards, pickles and what is wrong with a file."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from jepa_wm.errors import ConversionError
from jepa_wm.models.checkpoint import open_source
from jepa_wm.models.source import Source

ANCHORS = ("patch_embed.weight",)


def body(seed=0):
    generator = torch.Generator().manual_seed(seed)
    names = ("patch_embed.weight", "norm.weight", "norm.bias")
    return {name: torch.randn(3, 4, generator=generator) for name in names}


def wrapped(tensors, where="module.backbone."):
    return {where + name: tensor for name, tensor in tensors.items()}


PREDICTOR = {"mask_tokens.0": torch.ones(1, 1, 4), "predictor_embed.weight": torch.ones(4, 4)}


def meta_file():
    """The authors' layout: entries beside an optimiser and counters."""
    return {
        "encoder": wrapped(body(0)),
        "target_encoder": wrapped(body(1)),
        "predictor": wrapped(PREDICTOR),
        "opt": {"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": [{"lr": 0.1}]},
        "scaler": None,
        "epoch": 300,
    }


@pytest.fixture
def saved(tmp_path):
    def save(value, name="model.pt"):
        torch.save(value, tmp_path / name)
        return tmp_path / name

    return save


def take_all(source):
    for name in list(source.tensors):
        source.take(name)


def same(found, wanted):
    return found.keys() == wanted.keys() and all(
        torch.equal(found[n], t) for n, t in wanted.items()
    )


# entries


@pytest.mark.parametrize("unused", ["", "module."])
def test_a_part_is_another_entry_without_wrappers(saved, unused):
    value = meta_file() | {"predictor": wrapped(PREDICTOR, f"{unused}backbone.")}
    source = open_source(saved(value), ANCHORS, "encoder")
    assert same(source.tensors, body(0))
    predictor = source.part("predictor")
    assert same(predictor.tensors, PREDICTOR)
    assert source.part("predictor") is predictor
    assert same(source.part("target_encoder").tensors, body(1))
    assert source.part("decoder") is None


def test_wrappers_go_from_the_middle_of_a_name_too(saved):
    value = {"encoder": {f"blocks.module.{n}": t for n, t in body().items()}}
    source = open_source(saved(value), ("blocks.patch_embed.weight",))
    assert source.tensors.keys() == {f"blocks.{n}" for n in body()}


def test_two_names_that_differ_by_a_wrapper_both_stay(saved):
    twice = body(0) | wrapped({"norm.bias": torch.ones(3, 4)}, "module.")
    source = open_source(saved(twice), ANCHORS)
    assert torch.equal(source.tensors["norm.bias"], body(0)["norm.bias"])
    take_all(source)
    source.taken.remove("module.norm.bias")
    with pytest.raises(ConversionError, match=r"left over: module\.norm\.bias"):
        source.finish({})


@pytest.mark.parametrize("outer", [None, "model"])
def test_a_part_of_a_flat_file_stands_beside_the_prefix(saved, outer):
    flat = wrapped(body(), "encoder.module.") | wrapped(PREDICTOR, "predictor.module.")
    flat |= {"stranger": torch.ones(1)}
    source = open_source(saved(flat if outer is None else {outer: flat}), ANCHORS)
    assert source.entry == ("encoder" if outer is None else "model.encoder")
    assert "predictor.mask_tokens.0" in source  # unopened, it is left over like the stranger
    assert same(source.part("predictor").tensors, PREDICTOR)
    assert source.tensors.keys() == body().keys() | {"stranger"}


@pytest.mark.parametrize("prefix", ["", "vjepa2."])
def test_names_under_the_models_own_prefix_are_no_part(saved, prefix):
    flat = wrapped(body(), "encoder.") | wrapped(PREDICTOR, "predictor.")
    source = open_source(saved(wrapped(flat, prefix)), ("encoder.patch_embed.weight",))
    assert source.part("predictor") is None
    assert "predictor.mask_tokens.0" in source


def test_the_account_covers_opened_parts_and_only_those(saved):
    source = open_source(saved(meta_file()), ANCHORS, "encoder")
    take_all(source)
    source.finish({})  # closed siblings are nobody's business
    assert source.counts() == (3, 0)
    predictor = source.part("predictor")
    with pytest.raises(
        ConversionError, match=r"because; 2 left over: predictor: mask_tokens\.0, pr"
    ):
        source.finish({r"mask_tokens.*": "because"})
    predictor.fill({"pred.norm.weight": ("predictor_norm.weight",)}, 0)
    with pytest.raises(ConversionError, match=r"1 missing: predictor: pred\.norm\.weight"):
        source.finish({})
    predictor.missing.clear()
    predictor.take("predictor_embed.weight")
    predictor.skip([r"mask_tokens\..*"])
    source.finish({})
    assert source.counts() == (4, 1)


def test_the_hash_follows_what_was_opened(saved):
    path = saved(meta_file())
    plain, opened = (open_source(path, ANCHORS, "encoder") for _ in range(2))
    opened.part("predictor")
    hashes = {
        plain.sha256(),
        opened.sha256(),
        open_source(path, ANCHORS, "target_encoder").sha256(),
    }
    assert len(hashes) == 3
    counted = []
    opened.sha256(counted.append)
    assert sum(counted) == opened.n_bytes == 3 * 12 * 4 + (4 + 16) * 4


@pytest.mark.parametrize(
    ("default", "entry"),
    [("target_encoder", "target_encoder"), (("ema_encoder", "target_encoder"), "target_encoder"),
     (("encoder", "target_encoder"), "encoder")],
)  # fmt: skip
def test_a_family_has_a_default_entry(saved, default, entry):
    source = open_source(saved(meta_file()), ANCHORS, default_entry=default)
    assert source.entry == entry
    assert open_source(saved(meta_file()), ANCHORS, "encoder", default).entry == "encoder"


def test_a_default_that_is_not_there_decides_nothing(saved):
    with pytest.raises(ConversionError, match="choose one with --entry"):
        open_source(saved(meta_file()), ANCHORS, default_entry="ema_encoder")
    only = open_source(saved({"model": body()}), ANCHORS, default_entry="ema_encoder")
    assert only.entry == "model"


def test_encoders_that_differ_in_dtype_alone_need_a_choice(saved):
    ones = {name: torch.ones(2) for name in body()}
    half = {name: tensor.half() for name, tensor in ones.items()}
    with pytest.raises(ConversionError, match="several different models"):
        open_source(saved({"encoder": ones, "target_encoder": half}), ANCHORS)


def test_an_entry_is_found_by_the_end_of_its_name(saved):
    inner = {"encoder": body(0), "target_encoder": body(1)}
    path = saved({"model": inner})
    assert open_source(path, ANCHORS, "encoder").entry == "model.encoder"
    assert (
        open_source(path, ANCHORS, default_entry="target_encoder").entry == "model.target_encoder"
    )


# heads

PROBE = {"pooler.query_tokens": torch.ones(1, 1, 4), "linear.weight": torch.ones(2, 4)}


@pytest.mark.parametrize(
    ("value", "entry"),
    [({"classifiers": [wrapped(PROBE, "module."), wrapped(body(), "module.")], "epoch": 1},
      "classifiers.0"),
     ({"classifier": wrapped(PROBE, "module."), "opt": {"x": torch.ones(1)}}, "classifier"),
     ({"state_dict": wrapped(PROBE, "module.")}, "state_dict"), (PROBE, "")],
)  # fmt: skip
def test_a_head_comes_from_a_probe_or_a_plain_file(saved, value, entry):
    path = saved(body())
    (path.parent / "config.json").write_text('{"num_attention_heads": 22}')
    source = open_source(path, ANCHORS, head=saved(value, "probe.pt"))
    assert same(source.head.tensors, PROBE) and source.head.entry == entry
    assert source.head.config == {}  # the folder's config is the model's
    assert open_source(path, ANCHORS).head is None


def test_a_head_in_a_folder_brings_its_config(saved, tmp_path):
    folder = tmp_path / "head"
    folder.mkdir()
    save_file(PROBE, folder / "model.safetensors")
    (folder / "config.json").write_text('{"num_attention_heads": 2}')
    source = open_source(saved(body()), ANCHORS, head=folder)
    assert source.head.config == {"num_attention_heads": 2} and same(source.head.tensors, PROBE)


def test_a_file_of_several_models_is_no_head(saved):
    head = saved({"a": PROBE, "b": PROBE}, "probe.pt")
    with pytest.raises(ConversionError, match=r"probe\.pt: no head found.*found 'a', 'b'"):
        open_source(saved(body()), ANCHORS, head=head)


@pytest.mark.parametrize("empty", [{"classifier": {}}, {"classifiers": {"epoch": 3}}])
def test_a_probe_without_tensors_is_no_head(saved, empty):
    with pytest.raises(ConversionError, match=r"probe\.pt: no head found.*found no tensors"):
        open_source(saved(body()), ANCHORS, head=saved(empty, "probe.pt"))


def test_the_head_is_part_of_account_and_hash(saved):
    path, head = saved(body()), saved({"classifier": PROBE}, "probe.pt")
    source = open_source(path, ANCHORS, head=head)
    assert source.sha256() != open_source(path, ANCHORS).sha256()
    take_all(source)
    with pytest.raises(ConversionError, match="holds nothing this model can use; 2 left over: hea"):
        source.finish({})
    source.head.take("linear.weight")
    with pytest.raises(ConversionError, match=r"4 of 5 .*1 left over: head: pooler") as refused:
        source.finish({})
    assert "nothing" not in str(refused.value)
    source.head.take("pooler.query_tokens")
    source.finish({})
    assert source.counts() == (5, 0)


# folders


def shard(folder, split, index=None, stem="model", write=save_file):
    ending = "safetensors" if write is save_file else "bin"
    places = {}
    for number, tensors in enumerate(split):
        write(tensors, folder / f"{stem}-{number}.{ending}")
        places |= dict.fromkeys(tensors, f"{stem}-{number}.{ending}")
    index = {"metadata": {"total_size": 1}, "weight_map": places | (index or {})}
    (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(index))
    return folder


def halves():
    names = list(body())
    return [{n: body()[n] for n in names[:1]}, {n: body()[n] for n in names[1:]}]


@pytest.mark.parametrize(("stem", "write"), [("model", save_file), ("pytorch_model", torch.save)])
def test_shards_are_one_model(tmp_path, stem, write):
    source = open_source(shard(tmp_path, halves(), stem=stem, write=write), ANCHORS)
    assert same(source.tensors, body()) and source.entry == ""
    by_name = open_source(next(tmp_path.glob("*.index.json")), ANCHORS)
    assert by_name.sha256() == source.sha256()


def test_a_shard_missing_is_named(tmp_path):
    shard(tmp_path, halves())
    (tmp_path / "model-1.safetensors").unlink()
    with pytest.raises(ConversionError, match=r"1 of 2 shards missing: model-1\.safetensors$"):
        open_source(tmp_path, ANCHORS)


def test_a_tensor_too_many_or_too_few_is_named(tmp_path):
    shard(tmp_path, halves(), {"ghost": "model-1.safetensors"})
    save_file(halves()[0] | {"stray": torch.ones(1)}, tmp_path / "model-0.safetensors")
    with pytest.raises(ConversionError, match=r"model-0\.safetensors holds stray besides, by"):
        open_source(tmp_path, ANCHORS)
    save_file(halves()[0], tmp_path / "model-0.safetensors")
    with pytest.raises(ConversionError, match=r"model-1\.safetensors lacks ghost, by"):
        open_source(tmp_path, ANCHORS)


@pytest.mark.parametrize(
    "place", ["../model.safetensors", "/etc/passwd", "", 3, None, "model.safetensors.index.json"]
)
def test_shards_lie_beside_their_index(tmp_path, place):
    shard(tmp_path, halves(), {"x": place})
    with pytest.raises(ConversionError, match=r"x lies in .*, wanted a file's name"):
        open_source(tmp_path, ANCHORS)


def test_a_truncated_shard_is_named(tmp_path):
    shard(tmp_path, halves())
    path = tmp_path / "model-1.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(ConversionError, match=r"model-1\.safetensors cannot be read"):
        open_source(tmp_path, ANCHORS)


def test_the_processor_of_videos_is_read_where_there_is_no_other(saved):
    path = saved(body())
    (path.parent / "video_preprocessor_config.json").write_text('{"crop_size": 256}')
    assert open_source(path, ANCHORS).processor == {"crop_size": 256}
    (path.parent / "preprocessor_config.json").write_text('{"crop_size": 224}')
    assert open_source(path, ANCHORS).processor == {"crop_size": 224}


# hostile and broken files


def refusal(path, **how):
    with pytest.raises(ConversionError) as refused:
        open_source(path, ANCHORS, **how)
    text = str(refused.value)
    assert path.name in text and "\n" not in text, text
    return text


class Shell:
    def __reduce__(self):
        return (exec, ("open('ran', 'w')",))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Linear(4, 3)


def test_code_in_a_pickle_is_named_and_runs_only_on_demand(saved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = saved({"state_dict": body(), "x": Shell()})
    assert re.search(r"needs code to load: its pickle asks for (builtins\.)?exec;", refusal(path))
    assert not (tmp_path / "ran").exists()
    assert same(open_source(path, ANCHORS, unsafe_pickle=True).tensors, body())
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("value", [Net(), {"model": Net(), "epoch": 1}])
def test_a_whole_module_is_read_on_demand(saved, value):
    path = saved(value)
    assert ".Net" in refusal(path)
    source = open_source(path, ANCHORS, unsafe_pickle=True)
    assert source.tensors.keys() == {"patch_embed.weight", "patch_embed.bias"}


def test_a_module_whose_code_is_missing_is_said(saved):
    path = saved({"x": Shell()})
    data = path.read_bytes()
    path.write_bytes(data.replace(b"__builtin__\nexec", b"no_such_one\nexec"))  # as long
    assert "not installed (No module named 'no_such_one')" in refusal(path, unsafe_pickle=True)


@pytest.mark.parametrize("name", ["a.pt", "a.pth.tar", "a.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize(
    ("data", "said"),
    [(b"", "it is empty"), (b"version https://git-lfs.github.com/spec/v1\noid", "LFS pointer"),
     (b"GGUF\3\0\0\0", "is a GGUF file already"), (b"<!doctype html>", " checkpoint")],
)  # fmt: skip
def test_what_is_no_checkpoint_is_said(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    assert said in refusal(tmp_path / name)


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("part", [0.25, 0.5, 0.75, 0.99])
def test_both_pickle_formats_may_be_truncated(tmp_path, is_zip, part):
    path = tmp_path / "model.pth.tar"
    torch.save(meta_file(), path, _use_new_zipfile_serialization=is_zip)
    assert same(open_source(path, ANCHORS, "encoder").tensors, body(0))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    assert "cannot be read: truncated or not a checkpoint" in refusal(path)


def test_damaged_bytes_end_in_one_line_or_in_numbers(tmp_path):
    rng, refused = random.Random(0), 0
    whole = {}
    for name, is_zip in (("a.pt", True), ("b.pt", False)):
        torch.save(meta_file(), tmp_path / name, _use_new_zipfile_serialization=is_zip)
        whole[name] = (tmp_path / name).read_bytes()
    save_file(body(), tmp_path / "c.safetensors")
    whole["c.safetensors"] = (tmp_path / "c.safetensors").read_bytes()
    for _ in range(150):
        name = rng.choice(list(whole))
        data = bytearray(whole[name])
        for _ in range(rng.choice([1, 3, 10])):
            data[rng.randrange(min(len(data), 1500))] = rng.randrange(256)
        (tmp_path / name).write_bytes(data)
        try:
            take_all(open_source(tmp_path / name, ANCHORS, default_entry="encoder"))
        except ConversionError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 50


def test_a_shape_beyond_its_storage_is_refused_unread(saved):
    huge = torch.ones(1).expand(1 << 20, 1 << 20)
    text = refusal(saved(body() | {"norm.bias": huge}))
    assert "1 tensors are sparse, quantised, without data or larger than their storage" in text
    assert "norm.bias" in text


@pytest.mark.parametrize(
    "odd", [torch.ones(2, 2).to_sparse(), torch.ones(2, device="meta")], ids=["sparse", "meta"]
)
def test_tensors_without_plain_numbers_are_refused(saved, odd):
    assert "norm.bias" in refusal(saved(body() | {"norm.bias": odd}))
    assert same(open_source(saved(meta_file() | {"odd": {"x": odd}}), ANCHORS, "encoder").tensors,
                body(0))  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.complex64, torch.int8, torch.bool])
def test_numbers_that_are_no_floats_are_refused(dtype):
    source = Source({"x": torch.ones(2, dtype=dtype)})
    with pytest.raises(ConversionError, match=r"x is torch\.\w+, wanted floating numbers"):
        source.take("x")


def test_a_dict_that_holds_itself_ends(saved):
    loop = dict(body())
    loop["loop"] = loop
    source = open_source(saved({"encoder": loop}), ANCHORS, "encoder")
    assert "patch_embed.weight" in source


def test_unprintable_names_do_not_reach_the_terminal(saved):
    source = open_source(saved(body() | {"a\x1b[31m\nb": torch.ones(1)}), ANCHORS)
    with pytest.raises(ConversionError) as refused:
        source.finish({})
    assert "\x1b" not in str(refused.value) and "\n" not in str(refused.value)


def test_json_is_bounded(saved, monkeypatch):
    path = saved(body())
    config = path.parent / "config.json"
    config.write_text("[" * 100_000)
    with pytest.raises(ConversionError, match=r"config\.json is not valid JSON"):
        open_source(path, ANCHORS)
    monkeypatch.setattr("jepa_wm.models.weights.MAX_JSON", 8)
    config.write_text('{"a":     1}')
    with pytest.raises(ConversionError, match=r"config\.json has 12 bytes, wanted <= 8"):
        open_source(path, ANCHORS)


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs /proc")
@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_tensors_are_read_from_the_mapped_file(tmp_path, name):
    """Opening 64 MB takes no memory of its own; neither does reading one tensor after another."""
    tensors = {f"w{i}": torch.zeros(1 << 20) for i in range(15)} | {
        ANCHORS[0]: torch.zeros(1 << 20)
    }
    (save_file if name.endswith("s") else torch.save)(tensors, tmp_path / name)
    code = """
import sys
from pathlib import Path
from jepa_wm.models.checkpoint import open_source
def own():
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024
before = own()
source = open_source(Path(sys.argv[1]), ("patch_embed.weight",))
for name in source.tensors:
    source.take(name).sum()
source.sha256()
print(own() - before)
"""
    command = [sys.executable, "-c", code, str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 16, f"{done.stdout.strip()} MB"
