"""The lewm family against the authors' numbers, an independent reference and its own quirks."""

import json

import pytest
import torch
from lewm_reference import Reference, unpack

from jepa_wm.bundle.reader import Bundle
from jepa_wm.control.interfaces import Context
from jepa_wm.convert import convert
from jepa_wm.errors import BundleError, ConversionError
from jepa_wm.models import load_world_model
from jepa_wm.models.lewm_rollout import FastRollout
from jepa_wm.models.packed import has_packed_kernels

CPU = torch.device("cpu")
RELATIVE = 1e-5
WEIGHTS, ARRAYS = unpack("lewm.npz")
HEADS, DIM_HEAD = 2, 8
CONFIG = {
    "_target_": "nowhere.to.be.found.LeWM",
    "encoder": {
        "_target_": "no.such.module.vit_hf", "size": "tiny", "patch_size": 4, "image_size": 8,
        "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3,
        "intermediate_size": 20, "pretrained": False,
    },
    "predictor": {
        "_target_": "gone.Predictor", "num_frames": 3, "input_dim": 12, "hidden_dim": 12,
        "depth": 2, "heads": HEADS, "dim_head": DIM_HEAD, "mlp_dim": 20, "dropout": 0.1,
    },
    "projector": {"_target_": "x.MLP", "norm_fn": {"_target_": "torch.nn.BatchNorm1d"}},
}  # fmt: skip


@pytest.fixture
def checkpoint(tmp_path):
    """Write a checkpoint folder in the authors' layout."""

    def write(weights=WEIGHTS, config=CONFIG, name="src"):
        folder = tmp_path / name
        folder.mkdir()
        torch.save(weights, folder / "weights.pt")
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return write


@pytest.fixture
def world(checkpoint, tmp_path):
    out = tmp_path / "lewm.gguf"
    convert("lewm", checkpoint(), out, "f32", {})
    return load_world_model(out, CPU)


def difference(found, wanted):
    return ((found.double() - wanted.double()).abs().max() / wanted.abs().max()).item()


def context(T, B=2, generator=None):
    z = torch.randn(B, T, 12, generator=generator)
    return Context(z, torch.randn(B, T - 1, 4, generator=generator))


# parity with the authors' code, through converter, file and runtime


@pytest.mark.parametrize("case", ["native", "tall", "wide"])
def test_encodes_as_the_authors(world, case):
    z = world.encode(ARRAYS[f"{case}/pixels"])
    assert difference(z, ARRAYS[f"{case}/z"]) < RELATIVE


@pytest.mark.parametrize("T", [1, 2, 3])
def test_predicts_as_the_authors(world, T):
    z, actions = ARRAYS["predict/z"][:, :T], ARRAYS["predict/actions"][:, :T]
    assert difference(world.predict(z, actions), ARRAYS[f"predict/next{T}"]) < RELATIVE


@pytest.mark.parametrize("T", [1, 2, 3])
@pytest.mark.parametrize("path", ["rollout", "rollout_reference"])
def test_rolls_out_as_the_authors(world, T, path):
    start = Context(ARRAYS["predict/z"][:, :T], ARRAYS[f"rollout{T}/past"])
    z = getattr(world, path)(start, ARRAYS[f"rollout{T}/plans"])
    assert difference(z, ARRAYS[f"rollout{T}/z"]) < RELATIVE


# the fast path is the plain path


@pytest.mark.parametrize("horizon", range(1, 9))
@pytest.mark.parametrize("T", [1, 2, 3])
def test_fast_rollout_is_the_reference(world, T, horizon):
    start, plans = context(T), torch.randn(2, 5, horizon, 4)
    fast, plain = world.rollout(start, plans), world.rollout_reference(start, plans)
    assert fast.shape == (2, 5, horizon, 12) and fast.dtype == torch.float32
    assert difference(fast, plain) < RELATIVE


@pytest.mark.parametrize("T", [1, 3])
def test_chunks_join_seamlessly(world, T):
    start, plans = context(T), torch.randn(2, 700, 4, 4)  # more rows than one chunk
    assert difference(world.rollout(start, plans), world.rollout_reference(start, plans)) < RELATIVE


@pytest.mark.parametrize("T", [1, 2, 3])
def test_the_gradient_of_a_rollout_is_its_slope(world, T):
    torch.manual_seed(T)
    start, plans = context(T), torch.randn(2, 3, 4, world.action_dim)
    along = torch.randn_like(plans)
    wanted = plans.clone().requires_grad_()
    z = world.rollout(start, wanted)
    assert difference(z.detach(), world.rollout(start, plans)) < 1e-5
    weights = torch.randn_like(z)
    (gradient,) = torch.autograd.grad((weights * z).sum(), wanted)
    ends = [world.rollout(start, plans + sign * 2e-3 * along) for sign in (1, -1)]
    slope = (weights * (ends[0] - ends[1])).double().sum() / 4e-3
    assert (gradient * along).double().sum().item() == pytest.approx(slope.item(), rel=2e-2)


@pytest.mark.parametrize("T", [1, 2, 3])
def test_a_row_does_not_see_the_batch(world, T):
    start, plans = context(T, B=3), torch.randn(3, 40, 5, 4)
    together = world.rollout(start, plans)
    for b in range(3):
        one = Context(start.z[b : b + 1], start.actions[b : b + 1])
        alone = world.rollout(one, plans[b : b + 1])[0]
        if has_packed_kernels(CPU):
            assert torch.equal(alone, together[b])
        else:
            assert difference(alone, together[b]) < RELATIVE


def test_bfloat16_stays_near_and_answers_in_float32(tiny):
    path = tiny("lewm")
    start = Context(torch.randn(2, 2, 32), torch.randn(2, 1, 10))
    plans = torch.randn(2, 50, 5, 10)
    exact = load_world_model(path, CPU).rollout(start, plans)
    z = load_world_model(path, CPU, torch.bfloat16).rollout(start, plans)
    error = ((z - exact).norm() / exact.norm()).item()
    assert z.dtype == torch.float32 and 0 < error < 0.05, f"relative error {error:.2g}"


@pytest.mark.parametrize("act", ["gelu_tanh", "silu"])
@pytest.mark.parametrize("key", ["pred.act", "pred.action_act", "pred.proj_act"])
def test_activations_come_from_the_file(tiny, key, act):
    """Also in the fast path, which names them for other kernels."""
    world = load_world_model(tiny("lewm", **{f"jepa.{key}": act}), CPU)
    default = load_world_model(tiny("lewm"), CPU)
    start, plans = Context(torch.randn(1, 1, 32), torch.zeros(1, 0, 10)), torch.randn(1, 4, 4, 10)
    fast, plain = world.rollout(start, plans), world.rollout_reference(start, plans)
    assert difference(fast, plain) < RELATIVE
    if (key, act) != ("pred.action_act", "silu"):  # that is the default
        assert difference(fast, default.rollout(start, plans)) > 2 * RELATIVE


def test_a_bundle_may_have_a_qkv_bias(tiny):
    world = load_world_model(tiny("lewm", **{"jepa.pred.qkv_bias": True}), CPU)
    start, plans = Context(torch.randn(1, 3, 32), torch.randn(1, 2, 10)), torch.randn(1, 4, 4, 10)
    fast, plain = world.rollout(start, plans), world.rollout_reference(start, plans)
    assert difference(fast, plain) < RELATIVE


# each quirk: the reference with it agrees, without it does not

QUIRKS = [
    "adaln on silu", "silu in the action embedding", "positions", "ln inside attention",
    "ln inside the mlp", "causal mask", "scale by head_dim", "erf gelu", "scale is 1 + s",
    "order of the modulation", "final norm", "batch norm eps", "ln eps", "adaln eps",
]  # fmt: skip
ROLLOUT_QUIRKS = ["action of index k leaves frame k", "positions restart"]


@pytest.mark.parametrize("drop", ["", *QUIRKS])
def test_predictor_quirks(world, drop):
    # small latents: an eps of another size must show
    z, actions = ARRAYS["predict/z"] * 1e-2, ARRAYS["predict/actions"]
    wanted = Reference(WEIGHTS, HEADS, DIM_HEAD, drop).predict(z, actions)
    error = difference(world.predict(z, actions), wanted)
    assert error > 1e-4 if drop else error < RELATIVE, f"{drop or 'all kept'}: {error:.2g}"


@pytest.mark.parametrize("drop", ["", *ROLLOUT_QUIRKS])
@pytest.mark.parametrize("T", [1, 2, 3])
def test_rollout_quirks(world, T, drop):
    start, plans = context(T, B=1), torch.randn(1, 1, 5, 4)
    reference = Reference(WEIGHTS, HEADS, DIM_HEAD, drop)
    wanted = reference.rollout(start.z[0], start.actions[0], plans[0, 0])
    error = difference(world.rollout(start, plans)[0, 0], wanted)
    assert error > 1e-3 if drop else error < RELATIVE, f"{drop or 'all kept'}: {error:.2g}"


def test_the_future_is_not_seen(world):
    z, actions = torch.randn(1, 3, 12), torch.randn(1, 3, 4)
    before = world.predict(z, actions)
    actions[:, 2] += 1
    z[:, 2] += 1
    after = world.predict(z, actions)
    assert torch.equal(after[:, :2], before[:, :2])
    assert difference(after[:, 2], before[:, 2]) > 1e-2


def test_only_the_window_counts(world):
    long = context(5)
    short = Context(long.z[:, -3:], long.actions[:, -2:])
    plans = torch.randn(2, 3, 4, 4)
    assert torch.equal(world.rollout(long, plans), world.rollout(short, plans))


def test_encoder_eps_is_vit_configs(checkpoint, tmp_path):
    """1e-12, not 1e-6: latents of faint tokens differ by order one."""
    faint = dict(WEIGHTS)
    for name, tensor in WEIGHTS.items():
        if name.startswith("encoder.embeddings"):
            faint[name] = tensor * 1e-4
    out = {}
    for eps in (1e-12, 1e-6):
        given = {} if eps == 1e-12 else {"jepa.enc.ln_eps": eps}
        path = tmp_path / f"{eps}.gguf"
        convert("lewm", checkpoint(faint, name=str(eps)), path, "f32", given)
        assert Bundle.open(path).get("jepa.enc.ln_eps") == pytest.approx(eps)
        out[eps] = load_world_model(path, CPU).encode(ARRAYS["native/pixels"])
    assert difference(out[1e-6], out[1e-12]) > 0.1


def test_latent_is_the_projected_cls_token(world):
    pixels = ARRAYS["native/pixels"][0]
    tokens = world.model.enc(pixels)
    reference = Reference(WEIGHTS, HEADS, DIM_HEAD)
    wanted = reference.mlp(tokens[:, 0].double(), "projector")
    assert difference(world.encode(pixels[None])[0], wanted) < RELATIVE


def test_recipe_is_a_squash_with_imagenet_statistics(world):
    recipe = world.model.preprocess
    assert (recipe.resize_mode, recipe.resample, recipe.crop) == ("squash", "bilinear", 8)
    assert recipe.mean == pytest.approx((0.485, 0.456, 0.406))
    frames = torch.zeros(1, 2, 30, 20, 3, dtype=torch.uint8)
    assert world.preprocess(frames).shape == (1, 2, 3, 8, 8)


# purity and shapes


def test_arguments_are_not_changed(world):
    start, plans = context(3), torch.randn(2, 4, 5, 4)
    copies = start.z.clone(), start.actions.clone(), plans.clone()
    first = world.rollout(start, plans)
    kept = first.clone()
    assert all(map(torch.equal, copies, (start.z, start.actions, plans)))
    world.rollout(start, torch.randn(2, 4, 5, 4))
    assert torch.equal(first, kept)


def test_plans_may_be_expanded_views(world):
    start, plan = context(2), torch.randn(2, 1, 4, 4)
    wide = world.rollout(start, plan.expand(2, 3, 4, 4))
    assert torch.equal(wide[:, 0], wide[:, 2])


@pytest.mark.parametrize(
    ("z", "past", "plans", "match"),
    [
        ((2, 1, 11), (2, 0, 4), (2, 3, 4, 4), "latents must be"),
        ((2, 0, 12), (2, 0, 4), (2, 3, 4, 4), "T >= 1"),
        ((2, 2, 12), (2, 2, 4), (2, 3, 4, 4), r"must be \[2, 1, 4\]"),
        ((2, 2, 12), (2, 1, 5), (2, 3, 4, 4), r"must be \[2, 1, 4\]"),
        ((2, 1, 12), (2, 0, 4), (3, 3, 4, 4), "do not fit B=2"),
        ((2, 1, 12), (2, 0, 4), (2, 3, 4, 5), "A=4"),
        ((2, 1, 12), (2, 0, 4), (2, 3, 0, 4), "not empty"),
        ((2, 1, 12), (2, 0, 4), (2, 3, 4), "B,S,H,A"),
    ],
)
def test_wrong_shapes_are_refused(world, z, past, plans, match):
    with pytest.raises(ValueError, match=match):
        world.rollout(Context(torch.zeros(z), torch.zeros(past)), torch.zeros(plans))


def test_predict_refuses_more_frames_than_the_window(world):
    with pytest.raises(ValueError, match="window holds 3"):
        world.predict(torch.zeros(1, 4, 12), torch.zeros(1, 4, 4))


# conversion


def test_targets_in_the_config_are_not_used(checkpoint, tmp_path):
    """The fixture's config names modules that do not exist; only its numbers count."""
    report = convert("lewm", checkpoint(), tmp_path / "x.gguf", "f32", {})
    bundle = Bundle.open(tmp_path / "x.gguf")
    assert "matched 73/73" in report
    assert bundle.get("jepa.pred.n_head") == HEADS and bundle.get("jepa.pred.head_dim") == DIM_HEAD
    assert bundle.get("jepa.enc.n_head") == 3 and bundle.get("jepa.pred.action_dim") == 4


def test_new_vit_names_are_the_same_model(checkpoint, tmp_path, world):
    renamed = {}
    table = {
        "encoder.encoder.layer.0.attention.attention.query": "layers.0.attention.q_proj",
        "encoder.encoder.layer.0.attention.attention.key": "layers.0.attention.k_proj",
        "encoder.encoder.layer.0.attention.attention.value": "layers.0.attention.v_proj",
        "encoder.encoder.layer.0.attention.output.dense": "layers.0.attention.o_proj",
        "encoder.encoder.layer.0.intermediate.dense": "layers.0.mlp.fc1",
        "encoder.encoder.layer.0.output.dense": "layers.0.mlp.fc2",
        "encoder.encoder.layer.0.layernorm_before": "layers.0.layernorm_before",
        "encoder.encoder.layer.0.layernorm_after": "layers.0.layernorm_after",
    }
    back = {f"encoder.{new}": old for old, new in table.items()}
    for name, tensor in WEIGHTS.items():
        stem, _, part = name.rpartition(".")
        new = table.get(stem)
        renamed[f"encoder.{new}.{part}" if new else name] = tensor
    if renamed.keys() == WEIGHTS.keys():  # the golden file was made with the new names
        renamed = {}
        for name, tensor in WEIGHTS.items():
            stem, _, part = name.rpartition(".")
            renamed[f"{back[stem]}.{part}" if stem in back else name] = tensor
    assert renamed.keys() != WEIGHTS.keys()
    convert("lewm", checkpoint(renamed, name="new"), tmp_path / "n.gguf", "f32", {})
    pixels = ARRAYS["native/pixels"]
    other = load_world_model(tmp_path / "n.gguf", CPU)
    assert torch.equal(other.encode(pixels), world.encode(pixels))


def changed(**replace):
    """The golden weights with tensors added (value), or removed (None); ``__`` stands for a dot."""
    weights = dict(WEIGHTS)
    for name, value in replace.items():
        name = name.replace("__", ".")
        if value is None:
            weights = {n: t for n, t in weights.items() if not n.startswith(name)}
        else:
            weights[name] = value
    return weights


LAYER = "predictor__transformer__layers__0__"


@pytest.mark.parametrize(
    ("weights", "match"),
    [
        (changed(predictor__transformer__input_proj__weight=torch.ones(12, 9)), "input_proj"),
        (changed(predictor__transformer__output_proj__bias=torch.ones(12)), "output_proj"),
        (changed(**{LAYER + "attn__to_out__0": None}), "no output projection"),
        (changed(**{LAYER + "attn__to_qkv__bias": torch.ones(48)}), "to_qkv has a bias"),
        (changed(projector=None), "projector is not a two-layer MLP"),
        (changed(pred_proj=None), "pred_proj is not a two-layer MLP"),
        (changed(projector__net__1__running=None), "another norm than BatchNorm1d"),
        (changed(surprise=torch.ones(1)), "1 left over: surprise"),
        (changed(predictor__transformer__norm=None), "2 missing: pred.norm.weight"),
        (changed(action_encoder__patch_embed__weight=torch.ones(6, 4, 3)), "not a 1x1 convolution"),
    ],
)
def test_what_cannot_be_said_is_refused(checkpoint, tmp_path, weights, match):
    with pytest.raises(ConversionError, match=match):
        convert("lewm", checkpoint(weights), tmp_path / "x.gguf", "f32", {})
    assert not (tmp_path / "x.gguf").exists()


def test_training_leftovers_are_skipped(checkpoint, tmp_path):
    extra = changed(
        value_function__0__weight=torch.ones(3), encoder__pooler__dense__bias=torch.ones(2)
    )
    report = convert("lewm", checkpoint(extra), tmp_path / "x.gguf", "f32", {})
    assert "skipped" in report


@pytest.mark.parametrize(
    ("section", "key", "value", "match"),
    [
        ("predictor", "depth", 3, "n_layer is 2 by the tensors, but 3 is stated"),
        ("predictor", "dim_head", 4, "head_dim is 8 by the tensors, but 4 is stated"),
        ("encoder", "patch_size", 7, "patch_size is 4 by the tensors"),
        ("encoder", "num_hidden_layers", 4, "n_layer is 1 by the tensors"),
        (
            "projector",
            "act_fn",
            {"_target_": "torch.nn.SiLU"},
            "act_fn 'torch.nn.SiLU' is not GELU",
        ),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_refused(
    checkpoint, tmp_path, section, key, value, match
):
    config = CONFIG | {section: CONFIG[section] | {key: value}}
    with pytest.raises(ConversionError, match=match):
        convert("lewm", checkpoint(config=config), tmp_path / "x.gguf", "f32", {})


def test_without_a_config_the_heads_must_be_given(checkpoint, tmp_path):
    source = checkpoint(config={})
    with pytest.raises(ConversionError, match=r"--set: jepa\.enc\.n_head="):
        convert("lewm", source, tmp_path / "x.gguf", "f32", {})
    with pytest.raises(ConversionError, match=r"--set: jepa\.pred\.n_head="):
        convert("lewm", source, tmp_path / "x.gguf", "f32", {"jepa.enc.n_head": 3})
    given = {"jepa.enc.n_head": 3, "jepa.pred.n_head": HEADS}
    convert("lewm", source, tmp_path / "x.gguf", "f32", given)
    assert Bundle.open(tmp_path / "x.gguf").get("jepa.pred.head_dim") == DIM_HEAD


def test_an_encoder_this_graph_does_not_have_is_refused(tiny):
    path = tiny("lewm", **{"jepa.enc.tubelet_size": 2, "jepa.enc.n_frames": 2})
    with pytest.raises(BundleError, match=r"jepa\.enc\.tubelet_size = 2 \(a lewm has 1\)"):
        load_world_model(path, CPU)


def test_f16_rollouts_keep_their_direction(checkpoint, tmp_path, world):
    convert("lewm", checkpoint(name="half"), tmp_path / "half.gguf", "f16", {})
    half = load_world_model(tmp_path / "half.gguf", CPU)
    start, plans = context(3), torch.randn(2, 50, 5, 4)
    cosine = torch.cosine_similarity(half.rollout(start, plans), world.rollout(start, plans), -1)
    worst, median = cosine.min().item(), cosine.median().item()
    assert worst >= 0.9995 and median >= 0.9999, f"worst {worst:.6f}, median {median:.6f}"


@pytest.mark.skipif(not has_packed_kernels(CPU), reason="plain kernels do not promise it")
@pytest.mark.parametrize("T", [1, 3])
def test_no_bit_of_a_candidate_depends_on_how_many_there_are(world, T):
    start, plans = context(T, 1), torch.randn(1, 41, 5, 4)
    with torch.inference_mode():
        whole = FastRollout(world.predictor, 64)(start.z, start.actions, plans)
        for rows in (1, 7, 20):
            pieces = FastRollout(world.predictor, rows)(start.z, start.actions, plans)
            assert torch.equal(pieces, whole), rows
