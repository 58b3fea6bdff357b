"""What every family must do, over the registry: nothing here knows a family's graph."""

import pytest
import torch

from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.errors import BundleError
from jepa_wm.models import FAMILIES, WORLD_MODELS, load, load_world_model

CPU = torch.device("cpu")


@pytest.fixture(params=sorted(FAMILIES))
def family(request):
    return request.param


@pytest.fixture
def frames():
    return torch.randint(0, 256, (2, 3, 20, 24, 3), dtype=torch.uint8, generator=_generator())


def _generator():
    return torch.Generator().manual_seed(0)


def test_embeds_frames_of_any_lead_shape(tiny, family, frames):
    """Models of clips take [..,T,H,W,3]: one axis less comes out."""
    model = load(tiny(family), CPU)
    z = model.embed(frames)
    lead = (2,) if model.enc.config.takes_clips else (2, 3)
    assert z.shape == (*lead, model.enc.config.embed_dim)
    assert z.dtype == torch.float32 and z.isfinite().all() and z.std() > 0.01
    again = model.embed(frames[None])
    assert torch.equal(again[0], z)


def test_a_picture_does_not_see_the_batch(tiny, family, frames):
    model = load(tiny(family), CPU)
    alone = torch.stack([model.embed(one) for one in frames])
    assert torch.equal(alone, model.embed(frames))


def test_a_still_picture_is_a_clip_of_it(tiny, family, frames):
    model = load(tiny(family), CPU)
    still = frames[0, 0]
    z = model.embed(still)
    assert z.shape == (model.enc.config.embed_dim,)
    if model.enc.config.takes_clips:
        assert torch.equal(z, model.embed(still.repeat(model.still_frames, 1, 1, 1)))


def test_every_pool_of_the_family(tiny, family, frames):
    model = load(tiny(family), CPU)
    c, tokens = model.enc.config, model.embed(frames, "none")
    assert torch.equal(model.embed(frames, "mean"), tokens[..., c.prefix :, :].mean(-2))
    if c.cls_token:
        assert torch.equal(model.embed(frames, "cls"), tokens[..., 0, :])
    else:
        with pytest.raises(ValueError, match="this model has mean, none"):
            model.embed(frames, "cls")


def test_other_sizes_are_encoded(tiny, family):
    model = load(tiny(family), CPU)
    c = model.enc.config
    lead = (2, 6) if c.takes_clips else (2,)
    pixels = torch.randn(*lead, 3, 20, 28, generator=_generator())
    patches = 5 * 7 if not c.takes_clips else 5 * 7 * (6 // c.tubelet_size)
    if c.patch_size == 2:
        patches *= 4
    tokens = model.encode(pixels)
    assert tokens.shape == (2, c.prefix + patches, c.embed_dim) and tokens.isfinite().all()


def test_a_context_subset_hides_the_rest(tiny, family):
    model = load(tiny(family), CPU)
    c = model.enc.config
    pixels = torch.randn(*((2, 4) if c.takes_clips else (2,)), 3, 16, 16, generator=_generator())
    ids = torch.tensor([[0, 3, 5], [9, 2, 1]])
    if c.attn_mode == "block_causal":
        with pytest.raises(ValueError, match="block-causal"):
            model.encode(pixels, ids)
        return
    tokens = model.encode(pixels, ids)
    assert tokens.shape == (2, c.prefix + 3, c.embed_dim)
    for row in (0, 1):
        alone = model.encode(pixels[row : row + 1], ids[row])
        torch.testing.assert_close(alone[0], tokens[row], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(tokens[0, c.prefix :], model.encode(pixels)[0, c.prefix + ids[0]])
    with pytest.raises(ValueError, match="ids must lie in 0 to"):
        model.encode(pixels, torch.tensor([0, 10_000]))


def test_every_form_of_a_frame_is_the_same_picture(tiny, family, frames):
    model = load(tiny(family), CPU)
    z = model.embed(frames)
    for same in (frames / 255, frames.movedim(-1, -3), frames.movedim(-1, -3).double() / 255):
        torch.testing.assert_close(model.embed(same), z, rtol=1e-5, atol=0)


def test_state_names_are_tensor_names(tiny, family):
    path = tiny(family)
    assert set(load(path, CPU).state_dict()) == set(Bundle.open(path).names())


def test_written_again_gives_the_same_numbers(tiny, family, frames, tmp_path):
    path = tiny(family)
    model, bundle = load(path, CPU), Bundle.open(path)
    again = write_bundle(tmp_path / "again.gguf", bundle.meta, model.state_dict())
    assert torch.equal(load(again, CPU).embed(frames), model.embed(frames))


def test_a_missing_tensor_is_named(tiny, family, tmp_path):
    bundle = Bundle.open(tiny(family))
    tensors = {name: bundle.tensor(name) for name in bundle.names()}
    for name in tensors:
        fewer = {n: t for n, t in tensors.items() if n != name}
        with pytest.raises(BundleError, match=f"{name} .*missing"):
            write_bundle(tmp_path / "less.gguf", bundle.meta, fewer)


@pytest.mark.parametrize(("file_type", "bound"), [("f16", 2e-3), ("q8_0", 0.05), ("q4_0", 0.6)])
def test_a_smaller_file_stays_near(tiny, family, frames, file_type, bound):
    exact = load(tiny(family), CPU).embed(frames)
    near = load(tiny(family, file_type), CPU).embed(frames)
    error = ((near - exact).norm() / exact.norm()).item()
    assert 0 < error < bound, f"{family} {file_type}: relative error {error:.2g}"


def test_f16_keeps_the_direction_of_embeddings(tiny, family, frames):
    exact = load(tiny(family), CPU).embed(frames).flatten(0, 1)
    near = load(tiny(family, "f16"), CPU).embed(frames).flatten(0, 1)
    worst = torch.cosine_similarity(exact, near, -1).min().item()
    assert worst >= 0.9995, f"cosine {worst:.6f}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_the_direction_of_embeddings(tiny, family, frames, dtype):
    path = tiny(family)
    exact, near = (load(path, CPU, kind).embed(frames) for kind in (torch.float32, dtype))
    worst = torch.cosine_similarity(exact, near, -1).min().item()
    assert near.dtype == torch.float32 and worst >= 0.999, f"{dtype}: cosine {worst:.6f}"


def test_eight_bits_keep_the_direction_of_embeddings(tiny, family, frames):
    exact, near = (load(tiny(family, kind), CPU).embed(frames) for kind in ("f32", "q8_0"))
    worst = torch.cosine_similarity(exact, near, -1).min().item()
    assert worst >= 0.999, f"cosine {worst:.6f}"


def test_bfloat16_reduces_the_matrices_only(tiny, family, frames):
    path = tiny(family)
    exact, model = load(path, CPU).embed(frames), load(path, CPU, torch.bfloat16)
    kinds = {name: tensor.dtype for name, tensor in model.state_dict().items()}
    assert kinds["enc.blk.0.attn_qkv.weight"] == torch.bfloat16
    others = {k for n, k in kinds.items() if n in ("enc.norm.weight", "enc.pos_embed")}
    assert others == {torch.float32}
    z = model.embed(frames)
    error = ((z - exact).norm() / exact.norm()).item()
    assert z.dtype == torch.float32 and 0 < error < 0.05, f"relative error {error:.2g}"


def test_separate_qkv_is_the_same_model(tiny, family, frames, tmp_path):
    bundle = Bundle.open(tiny(family))
    tensors = {}
    for name in bundle.names():
        # the flag covers every block but LeWM's predictor, which is always fused
        if ".attn_qkv." in name and not (family == "lewm" and name.startswith("pred.")):
            for letter, part in zip("qkv", bundle.tensor(name).chunk(3), strict=True):
                tensors[name.replace("attn_qkv", f"attn_{letter}")] = part
        else:
            tensors[name] = bundle.tensor(name)
    meta = {**bundle.meta, "jepa.enc.qkv_fused": False}
    split = write_bundle(tmp_path / "split.gguf", meta, tensors)
    assert torch.equal(load(split, CPU).embed(frames), load(bundle, CPU).embed(frames))


def test_loading_leaves_no_gradients_and_takes_open_bundles(tiny, family):
    model = load(Bundle.open(tiny(family)), CPU)
    assert not model.training and not any(p.requires_grad for p in model.parameters())


def test_a_world_model_or_a_reason(tiny, family):
    path = tiny(family)
    kind = Bundle.open(path).get("jepa.pred.kind")
    if kind in WORLD_MODELS:
        world = load_world_model(path, CPU)
        assert world.action_dim > 0 and world.history > 0
    else:
        with pytest.raises(BundleError, match=r"jepa\.pred\.kind"):
            load_world_model(path, CPU)
