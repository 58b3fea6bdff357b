"""The specification against transformers, on tiny random models and every grid they can run."""

import numpy as np
import pytest
from spec.golden import bundle_of, distance, full

from jepa_wm.spec import Inputs, run

EXACT = 1e-6  # the references run in float64 too; HF's RoPE frequencies are float64 then
pytestmark = pytest.mark.reference
torch = pytest.importorskip("torch")

VIT_BLOCK = {
    "layernorm_before": "ln1", "layernorm_after": "ln2", "attention.o_proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down", "norm1": "ln1", "norm2": "ln2",
    "attention.proj": "attn_out",
}  # fmt: skip
POOLER_BLOCK = {
    "layer_norm1": "ln1", "layer_norm2": "ln2", "self_attn.out_proj": "attn_out",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip


def randomise(model, seed=0):
    """Every parameter and buffer random, norms and layer scales included; float64."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            values = torch.randn(tensor.shape, generator=generator)
            scale = tensor.shape[-1] ** -0.5 if tensor.ndim > 1 else 0.3
            tensor.copy_(values * scale + (tensor.ndim == 1 and name.endswith("weight")))
    return model.eval().double()


class Tensors(dict):
    """Tensors by bundle name, taken from a module's state."""

    def __init__(self, module):
        super().__init__()
        self.state = {n: t.detach().float().numpy() for n, t in module.state_dict().items()}

    def pair(self, source, target):
        for part in ("weight", "bias"):
            self[f"{target}.{part}"] = self.state[f"{source}.{part}"]

    def block(self, source, target, names, qkv):
        for part in ("weight", "bias"):
            rows = [self.state[f"{source}.{name}.{part}"] for name in qkv]
            self[f"{target}.attn_qkv.{part}"] = np.concatenate(rows)
        for name, ours in names.items():
            if f"{source}.{name}.weight" in self.state:
                self.pair(f"{source}.{name}", f"{target}.{ours}")

    def patches(self, source):
        self.pair(source, "enc.patch_embed")
        kernel = self["enc.patch_embed.weight"]
        self["enc.patch_embed.weight"] = kernel.reshape(len(kernel), -1)


def images(grid, patch=4):
    return np.random.default_rng(1).normal(size=(2, 3, grid[0] * patch, grid[1] * patch))


GRIDS = [(4, 4), (2, 8), (6, 5), (3, 2)]
SIZES = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "image_size": 16,
    "patch_size": 4, "layer_norm_eps": 1e-6, "num_labels": 5,
}  # fmt: skip


def vit_tensors(model, body):
    tensors = Tensors(model)
    tensors.patches(f"{body}.embeddings.patch_embeddings.projection")
    tensors["enc.pos_embed"] = tensors.state[f"{body}.embeddings.position_embeddings"][0]
    for name, ours in (("cls_token", "cls_token"), ("register_tokens", "reg_tokens")):
        if f"{body}.embeddings.{name}" in tensors.state:
            values = tensors.state[f"{body}.embeddings.{name}"][0]
            tensors[f"enc.{ours}"] = values if ours == "reg_tokens" else values[0]
    layers = f"{body}.layers" if f"{body}.layers.0.mlp.fc1.weight" in tensors.state else (
        f"{body}.encoder.layer"
    )  # fmt: skip
    qkv = tuple(f"attention.{letter}_proj" for letter in "qkv")
    for i in range(2):
        tensors.block(f"{layers}.{i}", f"enc.blk.{i}", VIT_BLOCK, qkv)
        for n in (1, 2):
            if f"{layers}.{i}.layer_scale{n}.lambda1" in tensors.state:
                scale = tensors.state[f"{layers}.{i}.layer_scale{n}.lambda1"]
                tensors[f"enc.blk.{i}.ls{n}"] = scale
    tensors.pair(f"{body}.layernorm", "enc.norm")
    tensors.pair("classifier", "head.cls")
    return tensors


@pytest.mark.parametrize("kind", ["ijepa", "vit", "dinov2", "dinov2_with_registers"])
def test_images_and_their_classifiers(tmp_path, kind):
    transformers = pytest.importorskip("transformers")
    name = {"ijepa": "IJepa", "vit": "ViT", "dinov2": "Dinov2",
            "dinov2_with_registers": "Dinov2WithRegisters"}[kind]  # fmt: skip
    is_dino = kind.startswith("dinov2")
    extra = {"mlp_ratio": 2} if is_dino else {"intermediate_size": 48}
    extra |= {"num_register_tokens": 2} if kind == "dinov2_with_registers" else {}
    config = getattr(transformers, f"{name}Config")(**SIZES, **extra)
    model = randomise(getattr(transformers, f"{name}ForImageClassification")(config))
    meta = full({
        "family": "ijepa" if kind == "ijepa" else "hfvit", "enc.embed_dim": 24,
        "enc.n_layer": 2, "enc.n_head": 3, "enc.ffn_dim": 48, "enc.patch_size": 4,
        "enc.img_size": 16, "enc.cls_token": kind != "ijepa", "enc.layer_scale": is_dino,
        "enc.n_registers": extra.get("num_register_tokens", 0), "head.kind": "linear_cls",
        "head.n_classes": 5,
        "jepa_wm.enc.pos_interp": "antialias" if "registers" in kind else "size",
    })  # fmt: skip
    bundle = bundle_of(tmp_path, meta, vit_tensors(model, kind))
    for grid in GRIDS:
        pixels = images(grid)
        found = run(bundle, Inputs(pixels))
        inputs = torch.from_numpy(pixels)
        arguments = {} if is_dino else {"interpolate_pos_encoding": True}
        with torch.no_grad():
            tokens = getattr(model, kind)(inputs, **arguments).last_hidden_state
            logits = model(inputs, **arguments).logits
        assert distance(found["enc.norm"], tokens) < EXACT, grid
        assert distance(found["head"], logits) < EXACT, grid


CLIPS = {
    "hidden_size": 44, "num_hidden_layers": 1, "num_attention_heads": 2, "crop_size": 12,
    "patch_size": 4, "tubelet_size": 2, "frames_per_clip": 4, "pred_hidden_size": 32,
    "pred_num_hidden_layers": 1, "pred_num_attention_heads": 1, "pred_num_mask_tokens": 3,
    "pred_zero_init_mask_tokens": False, "num_pooler_layers": 2, "num_labels": 5,
    "layer_norm_eps": 1e-6,
}  # fmt: skip


def clip_bundle(folder, model):
    tensors, body = Tensors(model), "vjepa2"
    tensors.patches(f"{body}.encoder.embeddings.patch_embeddings.proj")
    qkv = ("attention.query", "attention.key", "attention.value")
    for ours, part in (("enc", "encoder"), ("pred", "predictor")):
        tensors.block(f"{body}.{part}.layer.0", f"{ours}.blk.0", VIT_BLOCK, qkv)
        tensors.pair(f"{body}.{part}.layernorm", f"{ours}.norm")
    tensors.pair(f"{body}.predictor.embeddings.predictor_embeddings", "pred.embed")
    tensors.pair(f"{body}.predictor.proj", "pred.proj")
    tensors["pred.mask_tokens"] = tensors.state[f"{body}.predictor.embeddings.mask_tokens"][:, 0, 0]
    letters = tuple(f"self_attn.{letter}_proj" for letter in "qkv")
    for i in range(2):
        source = f"pooler.self_attention_layers.{i}"
        tensors.block(source, f"head.blk.{i}", POOLER_BLOCK, letters)
    tensors["head.query"] = tensors.state["pooler.query_tokens"][0]
    cross = "pooler.cross_attention_layer"
    for name, ours in (
        ("layer_norm1", "ln_kv"), ("layer_norm2", "ln2"), ("mlp.fc1", "ffn_up"),
        ("mlp.fc2", "ffn_down"), *((f"cross_attn.{n}_proj", n) for n in "qkv"),
    ):  # fmt: skip
        tensors.pair(f"{cross}.{name}", f"head.xattn.{ours}")
    tensors.pair("classifier", "head.cls")
    meta = full({
        "family": "vjepa2", "enc.embed_dim": 44, "enc.n_layer": 1, "enc.n_head": 2,
        "enc.ffn_dim": 176, "enc.patch_size": 4, "enc.img_size": 12, "enc.tubelet_size": 2,
        "enc.n_frames": 4, "pred.kind": "masked", "pred.embed_dim": 32, "pred.n_layer": 1,
        "pred.n_head": 1, "pred.ffn_dim": 128, "pred.n_mask_tokens": 3,
        "head.kind": "attentive_pool", "head.n_classes": 5, "head.n_pool_layers": 2,
    })  # fmt: skip
    return bundle_of(folder, meta, tensors)


@pytest.fixture(scope="module")
def clips():
    transformers = pytest.importorskip("transformers")
    config = transformers.VJEPA2Config(**CLIPS)
    return randomise(transformers.VJEPA2ForVideoClassification(config))


@pytest.mark.parametrize("frames", [1, 3, 4, 6])
def test_clips_of_every_length_and_their_classifier(tmp_path, clips, frames):
    """Odd lengths lose a frame; one frame is repeated."""
    pixels = np.random.default_rng(2).normal(size=(2, frames, 3, 12, 12))
    found = run(clip_bundle(tmp_path, clips), Inputs(pixels))
    inputs = torch.from_numpy(pixels)
    with torch.no_grad():
        tokens = clips.vjepa2(inputs, skip_predictor=True).last_hidden_state
        logits = clips(inputs).logits
    assert distance(found["enc.norm"], tokens) < EXACT
    assert distance(found["head"], logits) < EXACT


def test_masked_prediction(tmp_path, clips):
    """transformers always uses mask token 1 and encodes the whole clip."""
    rng = np.random.default_rng(3)
    pixels = rng.normal(size=(2, 4, 3, 12, 12))
    ids = rng.permuted(np.tile(np.arange(18), (2, 1)), axis=1)
    context, targets = ids[:, :11], ids[:, 8:]  # overlapping
    found = run(clip_bundle(tmp_path, clips), Inputs(pixels, context=context, targets=targets))
    with torch.no_grad():
        output = clips.vjepa2(
            torch.from_numpy(pixels),
            context_mask=[torch.from_numpy(context)],
            target_mask=[torch.from_numpy(targets)],
        )
    assert distance(found["pred"], output.predictor_output.last_hidden_state) < EXACT
