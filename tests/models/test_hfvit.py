"""The hfvit family against its four reference implementations, and its own quirks."""

import json

import pytest
import torch
from lewm_reference import unpack

from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import convert
from jepa_wm.errors import ConversionError
from jepa_wm.models import load
from jepa_wm.models.positions import interpolate_table

CPU = torch.device("cpu")
RELATIVE = 1e-5
GRIDS = [(4, 4), (2, 8), (6, 5), (3, 2)]  # native, as many patches, more, fewer
PATCH = 4
WEIGHTS, ARRAYS = unpack("hfvit.npz")
VITV2 = {
    "model_type": "vitv2", "img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2,
    "num_heads": 2, "mlp_ratio": 2, "num_register_tokens": 3, "init_values": 0.1,
    "interpolate_offset": 0.1, "qkv_bias": True,
}  # fmt: skip
PROCESSOR = {
    "image_processor_type": "BitImageProcessor", "do_center_crop": True, "resample": 3,
    "crop_size": {"height": 16, "width": 16}, "size": {"shortest_edge": 18},
    "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4], "rescale_factor": 1 / 255,
}  # fmt: skip


@pytest.fixture
def to_model(tmp_path):
    """Write a source folder, convert it, load the bundle: checkpoint -> file -> runtime."""

    def run(weights, config, given=None, processor=PROCESSOR, file_type="f32"):
        from safetensors.torch import save_file

        folder = tmp_path / f"source{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        save_file({n: t.contiguous() for n, t in weights.items()}, folder / "model.safetensors")
        if config is not None:
            (folder / "config.json").write_text(json.dumps(config))
        if processor is not None:
            (folder / "preprocessor_config.json").write_text(json.dumps(processor))
        out = folder / "model.gguf"
        convert("hfvit", folder, out, file_type, given or {})
        return load(out, CPU), Bundle.open(out)

    return run


def difference(found, wanted):
    return ((found - wanted).abs().max() / wanted.abs().max()).item()


def randomise(model):
    """Every parameter random, norms and layer scales included."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            values = torch.randn(tensor.shape, generator=generator)
            scale = tensor.shape[-1] ** -0.5 if tensor.ndim > 1 else 0.3
            one = 1 if tensor.ndim == 1 and name.endswith("weight") else 0
            tensor.copy_(values * scale + one)
    return model.eval()


def pixels_for(grid, patch=PATCH):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 3, grid[0] * patch, grid[1] * patch, generator=generator)


# parity


@pytest.mark.parametrize("case", ["native", "same_count", "up", "down"])
def test_vitv2_gives_its_authors_tokens(to_model, case):
    """Registers, LayerScale, and the resampling with the 0.1 offset."""
    model, bundle = to_model(WEIGHTS, VITV2)
    assert bundle.get("jepa_wm.enc.pos_interp") == "offset0.1"
    tokens = model.enc(ARRAYS[f"{case}/pixels"])
    assert difference(tokens, ARRAYS[f"{case}/tokens"]) < RELATIVE
    assert torch.equal(model.embed_pixels(ARRAYS[f"{case}/pixels"]), tokens[:, 0])


def hf_model(kind):
    transformers = pytest.importorskip("transformers")
    sizes = dict(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, image_size=16, patch_size=4
    )
    name, extra = {
        "vit": ("ViT", {"intermediate_size": 40}),
        "dinov2": ("Dinov2", {"mlp_ratio": 2}),
        "dinov2_with_registers": ("Dinov2WithRegisters", {"num_register_tokens": 2}),
    }[kind]
    config = getattr(transformers, f"{name}Config")(**sizes, **extra)
    return randomise(getattr(transformers, f"{name}Model")(config))


@pytest.mark.reference
@pytest.mark.parametrize("names", ["published", "in memory"])
@pytest.mark.parametrize("kind", ["vit", "dinov2", "dinov2_with_registers"])
def test_hugging_face_models_on_every_grid(to_model, tmp_path, kind, names):
    reference = hf_model(kind)
    weights = reference.state_dict()
    if names == "published":
        from safetensors.torch import load_file

        reference.save_pretrained(tmp_path / "hf")
        weights = load_file(tmp_path / "hf" / "model.safetensors")
    model, bundle = to_model(weights, reference.config.to_dict())
    assert bundle.get("jepa.enc.ln_eps") == pytest.approx(reference.config.layer_norm_eps)
    for grid in GRIDS:
        pixels = pixels_for(grid)
        extra = {"interpolate_pos_encoding": True} if kind == "vit" else {}
        with torch.no_grad():
            output = reference(pixels, **extra)
        tokens = model.enc(pixels)
        error = difference(tokens, output.last_hidden_state)
        assert error < RELATIVE, f"{kind} {grid}: {error:.2g}"
        # CLS after the norm, not ViT's tanh pooler
        assert torch.equal(model.embed_pixels(pixels), tokens[:, 0])


@pytest.mark.reference
@pytest.mark.parametrize(
    "layout",
    [
        {},
        {"reg_tokens": 2},  # rows for CLS and registers in the table
        {"reg_tokens": 2, "no_embed_class": True},  # rows for patches only
        {"no_embed_class": True},
        {"init_values": 0.1, "reg_tokens": 9, "no_embed_class": True},
    ],
)
def test_timm_models_on_every_grid(to_model, layout):
    timm = pytest.importorskip("timm")
    reference = randomise(
        timm.models.vision_transformer.VisionTransformer(
            img_size=16,
            patch_size=4,
            embed_dim=24,
            depth=2,
            num_heads=3,
            num_classes=0,
            dynamic_img_size=True,
            **layout,
        )
    )
    config = {"architecture": "vit", "model_args": {"num_heads": 3, "img_size": 16, **layout}}
    config["pretrained_cfg"] = {
        "input_size": [3, 16, 16], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9,
        "interpolation": "bicubic",
    }  # fmt: skip
    model, bundle = to_model(reference.state_dict(), config, processor=None)
    assert bundle.get("jepa.pre.resize_short") == 17
    for grid in GRIDS:
        pixels = pixels_for(grid)
        with torch.no_grad():
            wanted = reference.forward_features(pixels)
        error = difference(model.enc(pixels), wanted)
        assert error < RELATIVE, f"{layout} {grid}: {error:.2g}"


def test_f16_keeps_pooled_and_median_token(to_model):
    exact, _ = to_model(WEIGHTS, VITV2)
    half, bundle = to_model(WEIGHTS, VITV2, file_type="f16")
    assert bundle.type_name("enc.blk.0.ffn_up.weight") == "F16"
    pixels = ARRAYS["native/pixels"]
    cosine = torch.cosine_similarity(half.enc(pixels), exact.enc(pixels), -1)
    pooled, median, worst = (x.item() for x in (cosine[:, 0].min(), cosine.median(), cosine.min()))
    text = f"pooled {pooled:.6f}, median token {median:.6f}, worst token {worst:.6f}"
    assert pooled >= 0.9995 and median >= 0.999, text


# quirks


def encode_without(model, quirk, pixels):
    """Encode with one quirk of the graph left out."""
    enc = model.enc
    c = enc.config
    grid = (pixels.shape[2] // PATCH, pixels.shape[3] // PATCH)
    from jepa_wm.models.vit import patchify

    pos = interpolate_table(enc.pos_embed, grid, 1, "size" if quirk == "offset" else c.pos_interp)
    x = enc.patch_embed(patchify(pixels[:, None], 1, PATCH)[0]) + pos[1:]
    cls = enc.cls_token if quirk == "position of CLS" else enc.cls_token + pos[0]
    registers = enc.reg_tokens
    if quirk == "registers have no position":
        registers = registers + pos[1 : 1 + len(registers)]
    parts = [cls.expand(len(x), 1, -1), registers.expand(len(x), -1, -1), x]
    if quirk == "registers before patches":
        parts = [parts[0], parts[2], parts[1]]
    x = torch.cat(parts, 1)
    for block in enc.blk:
        x = block(x)
    return x if quirk == "norm on every row" else enc.norm(x)


@pytest.mark.parametrize(
    "quirk",
    [
        "", "offset", "position of CLS", "registers have no position", "registers before patches",
        "norm on every row",
    ],
)  # fmt: skip
def test_each_quirk_shows_in_the_authors_numbers(to_model, quirk):
    model, _ = to_model(WEIGHTS, VITV2)
    pixels, wanted = ARRAYS["up/pixels"], ARRAYS["up/tokens"]
    error = difference(encode_without(model, quirk, pixels), wanted)
    assert error > 1e-3 if quirk else error < RELATIVE, f"{quirk or 'all kept'}: {error:.2g}"


@pytest.mark.reference
def test_eps_is_read_from_the_config(to_model):
    """Faint tokens tell 1e-12 (ViTConfig) from 1e-6 by order one."""
    reference = hf_model("vit")
    assert reference.config.layer_norm_eps == 1e-12
    with torch.no_grad():
        for tensor in reference.embeddings.parameters():
            tensor.mul_(1e-4)
        pixels = pixels_for((4, 4))
        wanted = reference(pixels).last_hidden_state
    model, _ = to_model(reference.state_dict(), reference.config.to_dict())
    assert difference(model.enc(pixels), wanted) < RELATIVE
    other = {"jepa.enc.ln_eps": 1e-6}
    wrong, _ = to_model(reference.state_dict(), reference.config.to_dict(), other)
    assert difference(wrong.enc(pixels), wanted) > 0.1


def test_positions_are_added_once(to_model):
    """With silent blocks and an identity norm, patch rows are patch embedding plus table."""
    weights = dict(WEIGHTS)
    for name, tensor in WEIGHTS.items():
        if name.startswith("blocks.") and ".norm" not in name:
            weights[name] = torch.zeros_like(tensor)
    model, _ = to_model(weights, VITV2)
    model.enc.norm = torch.nn.Identity()
    pixels = pixels_for((4, 4))
    kernel, bias = (WEIGHTS[f"patch_embed.proj.{part}"] for part in ("weight", "bias"))
    patches = torch.nn.functional.conv2d(pixels, kernel, bias, stride=4).flatten(2).mT
    table = WEIGHTS["pos_embed"][0]
    tokens = model.enc(pixels)
    torch.testing.assert_close(tokens[:, 4:], patches + table[1:])
    torch.testing.assert_close(tokens[0, 0], WEIGHTS["cls_token"][0, 0] + table[0])
    torch.testing.assert_close(tokens[0, 1:4], WEIGHTS["register_tokens"][0])


def test_what_is_left_of_whole_patches_is_dropped(to_model):
    model, _ = to_model(WEIGHTS, VITV2)
    pixels = torch.randn(1, 3, 18, 17, generator=torch.Generator().manual_seed(0))
    assert torch.equal(model.enc(pixels), model.enc(pixels[..., :16, :16]))
    with pytest.raises(ValueError, match="3x16 hold no whole patch of 1 frames of 4x4"):
        model.enc(torch.zeros(1, 3, 3, 16))
    with pytest.raises(ValueError, match=r"must be \[B,3,h,w\]"):
        model.enc(torch.zeros(1, 4, 16, 16))
    assert model.embed(torch.zeros(96, 90, 3, dtype=torch.uint8)).shape == (16,)  # resized instead


# conversion


@pytest.mark.parametrize("prefix", ["", "backbone.", "module.", "module.backbone.", "_orig_mod."])
def test_prefixes_do_not_matter(to_model, prefix):
    renamed = {prefix + name: tensor for name, tensor in WEIGHTS.items()}
    model, _ = to_model(renamed, VITV2)
    plain, _ = to_model(WEIGHTS, VITV2)
    assert all(torch.equal(t, plain.state_dict()[n]) for n, t in model.state_dict().items())


SWIGLU = {"blocks.0.mlp.w12.weight": torch.ones(4, 16)}


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({"norm_patch.weight": torch.ones(16)}, "norm of their own"),
        ({"fc_norm.weight": torch.ones(16)}, "follows pooling"),
        ({"norm_pre.weight": torch.ones(16)}, "before the blocks"),
        ({"blocks.0.attn.q_norm.weight": torch.ones(8)}, "queries and keys are normalised"),
        (SWIGLU, "SwiGLU"),
        ({"dist_token": torch.ones(1, 1, 16)}, "distillation token"),
        ({"blocks.3.norm1.weight": torch.ones(16)}, "1 left over: blocks.3.norm1.weight"),
    ],
)
def test_what_cannot_be_said_is_refused(to_model, extra, match):
    with pytest.raises(ConversionError, match=match):
        to_model(WEIGHTS | extra, VITV2)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"qkv_bias": False}, "qkv_bias"),
        ({"project_patch": True}, "project_patch"),
        ({"use_swiglu_ffn": True}, "use_swiglu_ffn"),
        ({"model_type": "vitv3"}, "model_type 'vitv3'"),
        ({"model_type": "ijepa"}, "model_type 'ijepa'"),
        ({"hidden_act": "relu"}, "hidden_act is 'relu'"),
        ({"interpolate_offset": 0.2}, "interpolate_offset 0.2"),
        ({"depth": 3}, "n_layer is 2 by the tensors, but 3 is stated"),
        ({"mlp_ratio": 4}, "ffn_dim is 32 by the tensors, but 64 is stated"),
        ({"num_register_tokens": 4}, "n_registers is 3 by the tensors"),
        ({"img_size": 20}, "fits 0 readings .25 patches stated"),
        ({"num_heads": None}, r"--set: jepa\.enc\.n_head="),
    ],
)
def test_a_config_that_asks_for_something_else_is_refused(to_model, change, match):
    with pytest.raises(ConversionError, match=match):
        to_model(WEIGHTS, VITV2 | change)


def test_missing_tensors_are_all_listed(to_model):
    fewer = {n: t for n, t in WEIGHTS.items() if n not in ("norm.bias", "blocks.1.mlp.fc1.bias")}
    with pytest.raises(ConversionError, match=r"2 missing: enc.norm.bias.*enc.blk.1.ffn_up.bias"):
        to_model(fewer, VITV2)


def test_training_heads_are_skipped(to_model):
    heads = {"cva_module_proj.mlp.0.weight": torch.ones(2, 16), "mask_token": torch.ones(1, 16)}
    model, _ = to_model(WEIGHTS | heads, VITV2)
    assert model.enc.config.embed_dim == 16


def test_offset_zero_means_the_plain_rule(to_model):
    _, bundle = to_model(WEIGHTS, VITV2 | {"interpolate_offset": 0.0})
    assert bundle.get("jepa_wm.enc.pos_interp") == "size"


def test_hugging_face_names_without_a_config_need_eps_and_rule(to_model):
    reference = hf_model("vit")
    with pytest.raises(ConversionError, match=r"n_head=, jepa\.enc\.ln_eps=, jepa_wm\.enc\.pos_"):
        to_model(reference.state_dict(), None)


def test_an_ambiguous_table_asks_for_the_image_size(to_model):
    """26 rows with 9 registers: 25 patches, or 16 patches with registers in the table."""
    pytest.importorskip("timm")
    weights = {n: t for n, t in WEIGHTS.items() if n != "register_tokens"}
    weights |= {"reg_token": torch.randn(1, 9, 16), "pos_embed": torch.randn(1, 26, 16)}
    given = {"jepa.enc.n_head": 2}
    with pytest.raises(ConversionError, match=r"fits 2 readings.*--set jepa\.enc\.img_size="):
        to_model(weights, None, given)
    small, _ = to_model(weights, None, given | {"jepa.enc.img_size": 16})
    large, _ = to_model(weights, None, given | {"jepa.enc.img_size": 20})
    assert len(small.enc.pos_embed) == 17 and len(large.enc.pos_embed) == 26
    torch.testing.assert_close(
        small.enc.reg_tokens, (weights["reg_token"] + weights["pos_embed"][:, 1:10])[0]
    )


# preprocessing of the source


def test_recipe_is_read_from_the_processor(to_model):
    model, _ = to_model(WEIGHTS, VITV2)
    recipe = model.preprocess
    assert (recipe.resize_short, recipe.crop, recipe.resample) == (18, 16, "bicubic")
    assert recipe.mean == pytest.approx((0.5, 0.4, 0.3)) and recipe.resize_mode == "shortest_edge"


@pytest.mark.parametrize(
    ("change", "mode", "short", "crop"),
    [
        ({"size": {"height": 16, "width": 16}, "do_center_crop": False}, "squash", 16, 16),
        ({"size": 16, "image_processor_type": "ViTImageProcessor", "do_center_crop": None},
         "squash", 16, 16),
        ({"size": 18}, "shortest_edge", 18, 16),
        ({"do_center_crop": False}, "shortest_edge", 18, 18),
        ({"crop_size": 12}, "shortest_edge", 18, 12),
        ({"size": {"height": 16, "width": 16}}, "squash", 16, 16),
        ({"size": {"shortest_edge": 18, "longest_edge": None}}, "shortest_edge", 18, 16),
    ],
)  # fmt: skip
def test_processor_sizes(to_model, change, mode, short, crop):
    _, bundle = to_model(WEIGHTS, VITV2, processor=PROCESSOR | change)
    keys = ("resize_mode", "resize_short", "crop")
    assert tuple(bundle.get(f"jepa.pre.{key}") for key in keys) == (mode, short, crop)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"do_normalize": False}, "do_normalize false"),
        ({"do_resize": False, "do_rescale": False}, "do_resize, do_rescale false"),
        ({"resample": 1}, "filter 1 is not bilinear or bicubic"),
        ({"size": {"height": 16, "width": 18}}, "not a square"),
        ({"size": {"height": 20, "width": 20}}, "a resize to 20x20 and then a crop of 16"),
        ({"size": {"shortest_edge": 18, "longest_edge": 40}}, "longest_edge"),
        ({"crop_size": None}, "crop_size None is not a square"),
    ],
)
def test_a_processor_that_cannot_be_said_is_refused(to_model, change, match):
    with pytest.raises(ConversionError, match=match):
        to_model(WEIGHTS, VITV2, processor=PROCESSOR | change)


def test_without_a_processor_the_recipe_must_be_given(to_model):
    with pytest.raises(ConversionError, match=r"--set jepa\.pre\.mean= .*pre\.resize_mode= \("):
        to_model(WEIGHTS, VITV2, processor=None)
