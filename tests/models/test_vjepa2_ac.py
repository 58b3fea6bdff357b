"""V-JEPA 2-AC against its authors' numbers, the quirks of its predictor, its converter."""

from dataclasses import replace

import pytest
import torch
from drawn import difference, draw, draw_weights, read
from vjepa2_cases import (
    AC_CASES,
    AC_DIM,
    AC_FRAMES,
    ACTION,
    GRID,
    SIDE,
    STATE,
    D,
    faint,
    scaled,
    views,
)

from jepa_wm.bundle.reader import Bundle
from jepa_wm.convert import Reading, convert, main
from jepa_wm.errors import ConversionError
from jepa_wm.models import ac, load, vjepa2
from jepa_wm.models.source import Source

CPU = torch.device("cpu")
EXACT, FAR, NOT_ERF = 1e-5, 1e-3, 5e-5
LAYOUTS, ARRAYS = read("vjepa2_ac.npz")
ENCODER = draw_weights(read("vjepa2.npz")[0]["encoder"], "encoder")
PREDICTOR = draw_weights(LAYOUTS["ac"], "ac")
GIVEN = {
    "jepa.enc.n_head": 2,
    "jepa.pred.n_head": 2,
    "jepa.enc.img_size": SIDE,
    "jepa.enc.n_frames": AC_FRAMES,
}


def authors_file(predictor=PREDICTOR, other=ENCODER):
    return {
        "encoder": {f"module.backbone.{n}": t for n, t in ENCODER.items()},
        "target_encoder": {f"module.backbone.{n}": t for n, t in other.items()},
        "predictor": {f"module.{n}": t for n, t in predictor.items()},
        "opt": {"param_groups": [{"lr": 0.1}]},
        "epoch": 300,
    }


@pytest.fixture
def to_model(tmp_path):
    """Write the authors' file, convert it, load the bundle."""

    def run(value=None, given=GIVEN, **reading):
        number = len(list(tmp_path.iterdir()))
        src, out = tmp_path / f"{number}.pt", tmp_path / f"{number}.gguf"
        torch.save(authors_file() if value is None else value, src)
        convert("vjepa2", src, out, "f32", given, Reading(**reading))
        return load(out, CPU), Bundle.open(out)

    return run


def inputs(name, rows, columns, frames):
    z = draw(f"{name}/z", (1, frames * rows * columns, D)).unflatten(1, (frames, -1))
    return (
        z,
        draw(f"{name}/actions", (1, frames, ACTION)),
        draw(f"{name}/states", (1, frames, STATE)),
    )


def error_of(model, name):
    """Run a case through a model; say how far it is from the authors."""
    rows, columns, frames = AC_CASES.get(name, (GRID, GRID, 2))
    grid = None if (rows, columns) == (GRID, GRID) else (rows, columns)
    with torch.no_grad():
        found = model.pred(*inputs(name, rows, columns, frames), grid)
    return difference(found.flatten(1, 2), ARRAYS[name])


@pytest.mark.parametrize("name", AC_CASES)
def test_predictor_with_up_to_all_frames_on_every_grid(to_model, name):
    model, _ = to_model()
    error = error_of(model, name)
    assert error < EXACT, f"{name}: {error:.2g}"


def test_a_longer_sequence_holds_every_shorter_one(to_model):
    model, _ = to_model()
    z, actions, states = inputs("four frames", *AC_CASES["four frames"])
    with torch.no_grad():
        whole = model.pred(z, actions, states)
        for T in (1, 2, 3):
            part = model.pred(z[:, :T], actions[:, :T], states[:, :T])
            assert difference(whole[:, :T], part) < EXACT, f"{T} frames"


def test_a_frame_depends_on_frames_actions_and_states_up_to_its_own(to_model):
    model, _ = to_model()
    given = inputs("four frames", *AC_CASES["four frames"])
    with torch.no_grad():
        usual = model.pred(*given)
        for changed in range(3):
            other = [x.clone() for x in given]
            other[changed][:, 2] += 1
            moved = (model.pred(*other) - usual).abs().amax((0, 2, 3))
            assert moved[:2].max() < 1e-5 and moved[2:].min() > 1e-3, list(moved)


# quirks: each left out is far from the authors' numbers


def configure(model, **changes):
    model.pred.config = replace(model.pred.config, **changes)


def change_norms(model, eps):
    for module in model.pred.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = eps


def change_activations(model):
    for block in model.pred.blk:
        block.act = "gelu_tanh"


def swap_embeddings(model):
    model.pred.action_embed, model.pred.state_embed = (
        model.pred.state_embed,
        model.pred.action_embed,
    )


def change_positions(change):
    """Return a change of the positions [T*(2+N),3] before they are made into factors."""

    def apply(model, patch):
        def table(positions, *args):
            return rope_table(change(positions.clone()), *args)

        rope_table = ac.rope_table
        patch.setattr(ac, "rope_table", table)

    return apply


WIDE_ROWS = 2 + 3 * 5


def unscaled(positions):
    positions[:, 2] *= 5 / 3
    return positions


def resting(positions):
    """Conditioning rows that do not turn with time."""
    frames = positions.unflatten(0, (-1, WIDE_ROWS))
    frames[:, :2] = 0
    return frames.flatten(0, 1)


def in_the_sequence(positions):
    """Conditioning rows with a place in the sequence, as patches have."""
    frames = positions.unflatten(0, (-1, WIDE_ROWS))
    frames[:, 0, 2], frames[:, 1, 2] = 1, 2
    return frames.flatten(0, 1)


QUIRKS = {
    "columns on the rows' span": change_positions(unscaled),
    "conditioning turns with time": change_positions(resting),
    "conditioning has no place": change_positions(in_the_sequence),
    "frame-causal": lambda model, patch: configure(model, frame_causal=False),
    "tiled tables": lambda model, patch: configure(model, rope_freq_layout="interleaved"),
    "actions and states": lambda model, patch: swap_embeddings(model),
    "erf": lambda model, patch: change_activations(model),
    "final norm": lambda model, patch: setattr(model.pred, "norm", torch.nn.Identity()),
}


@pytest.mark.parametrize("quirk", ["", *QUIRKS])
def test_each_quirk_of_the_predictor_shows(to_model, monkeypatch, quirk):
    model, _ = to_model()
    QUIRKS.get(quirk, lambda model, patch: None)(model, monkeypatch)
    error = error_of(model, "wide")
    far = NOT_ERF if quirk == "erf" else FAR
    assert error > far if quirk else error < EXACT, f"{quirk or 'all kept'}: {error:.2g}"


def test_eps_shows_where_the_input_is_faint(to_model):
    model, _ = to_model(authors_file(faint(PREDICTOR)))
    assert error_of(model, "faint") < EXACT
    change_norms(model, 1e-5)
    assert error_of(model, "faint") > FAR


# shapes


def test_what_does_not_fit_is_refused(to_model):
    model, _ = to_model()
    z, actions, states = inputs("two frames", *AC_CASES["two frames"])
    with pytest.raises(ValueError, match=r"actions must be \[1, 2, 5\], got \[1, 1, 5\]"):
        model.pred(z, actions[:, :1], states)
    with pytest.raises(ValueError, match=r"states must be \[1, 2, 5\]"):
        model.pred(z, actions, states[..., :4])
    with pytest.raises(ValueError, match=r"\[B,T,15,40\] with 1 to 4 frames"):
        model.pred(z, actions, states, (3, 5))
    with pytest.raises(ValueError, match="with 1 to 4 frames"):
        model.pred(z.repeat(1, 3, 1, 1), actions.repeat(1, 3, 1), states.repeat(1, 3, 1))


# converter


def test_what_is_in_the_bundle(to_model):
    _, bundle = to_model()
    keys = (
        "kind", "embed_dim", "n_layer", "ffn_dim", "out_dim", "action_dim", "state_dim",
        "n_cond_tokens", "cond_order", "normalize_reps", "frame_causal", "n_frames", "grid_size",
        "rope_freq_layout",
    )  # fmt: skip
    assert [bundle.get(f"jepa.pred.{key}") for key in keys] == [
        "ac", 44, 2, 66, 40, ACTION, STATE, 2, "action,state", True, True, 4, 4, "tiled",
    ]  # fmt: skip
    assert bundle.get("jepa.pred.norm_reps_eps") == pytest.approx(1e-5)
    assert bundle.get("jepa.pred.ln_eps") == pytest.approx(1e-6)
    assert bundle.family == "vjepa2" and bundle.get("jepa_wm.source.entry") == "encoder"
    # frames are shrunk to the crop itself
    assert bundle.get("jepa.pre.resize_short") == bundle.get("jepa.pre.crop") == SIDE


def test_latents_come_from_frames_doubled(to_model):
    """A frame is encoded as a clip of two of it."""
    model, _ = to_model()
    frame = draw("frame", (2, 1, 3, SIDE, SIDE))
    assert torch.equal(model.encode(frame), model.encode(frame.repeat(1, 2, 1, 1, 1)))


def test_the_encoder_is_the_one_of_the_hub(to_model):
    other = {name: tensor + 1 for name, tensor in ENCODER.items()}
    model, _ = to_model(authors_file(other=other))
    assert torch.equal(model.enc.norm.bias, ENCODER["norm.bias"])
    model, _ = to_model(authors_file(other=other), entry="target_encoder")
    assert torch.equal(model.enc.norm.bias, ENCODER["norm.bias"] + 1)


def test_the_layer_for_extrinsics_is_skipped_here_alone(to_model):
    without = {n: t for n, t in PREDICTOR.items() if "extrinsics" not in n}
    assert len(without) == len(PREDICTOR) - 2
    usual, _ = to_model()
    model, _ = to_model(authors_file(without))
    assert model.state_dict().keys() == usual.state_dict().keys()


def test_the_published_file_needs_no_settings():
    encoder = scaled(read("vjepa2.npz")[0]["encoder"], 1408, 40, 6144)
    predictor = scaled(LAYOUTS["ac"], 1024, 24, 4096, "predictor_blocks", AC_DIM)
    predictor |= {f"{name}_encoder.weight": [1024, 7] for name in ("action", "state")}
    predictor |= {"predictor_embed.weight": [1024, 1408], "predictor_proj.weight": [1408, 1024]}
    predictor |= {"predictor_proj.bias": [1408], "extrinsics_encoder.weight": [1024, 6]}
    source = Source(views(encoder), "encoder", siblings={"predictor": views(predictor)})
    meta, tensors = vjepa2.convert(source, {})
    keys = "enc.n_head", "enc.img_size", "pred.n_head", "pred.n_frames", "pred.grid_size"
    assert [meta[f"jepa.{key}"] for key in keys] == [22, 256, 16, 32, 16]
    assert meta["jepa.pre.resize_short"] == meta["jepa.pre.crop"] == 256
    assert source.counts() == (484 + 298, 2) and len(tensors) == 484 + 298


@pytest.mark.parametrize(
    ("predictor", "match"),
    [
        ({"mask_tokens.0": torch.ones(1, 1, 44)}, "left over: predictor: mask_tokens.0"),
        ({"proprio_encoder.weight": torch.ones(44, 5)}, "jepa-wms"),
        ({"predictor_blocks.0.mlp.fc3.weight": torch.ones(3)}, "SwiGLU"),
    ],
)
def test_another_predictor_is_refused(to_model, predictor, match):
    with pytest.raises(ConversionError, match=match):
        to_model(authors_file(PREDICTOR | predictor))


def test_missing_layers_are_listed(to_model):
    fewer = {n: t for n, t in PREDICTOR.items() if "state_encoder" not in n}
    with pytest.raises(ConversionError, match=r"2 missing: .*pred\.state_embed\.weight"):
        to_model(authors_file(fewer))


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("jepa.pred.kind", "masked", "kind is ac by the tensors"),
        ("jepa.pred.n_cond_tokens", 3, "n_cond_tokens is 2 by the tensors"),
        ("jepa.pred.action_dim", 7, "action_dim is 5 by the tensors"),
        ("jepa.pred.n_layer", 24, "n_layer is 2 by the tensors"),
    ],
)
def test_settings_cannot_contradict_the_tensors(to_model, key, value, match):
    with pytest.raises(ConversionError, match=match):
        to_model(given=GIVEN | {key: value})


def test_a_bundle_with_the_conditions_in_another_order_is_refused(to_model):
    with pytest.raises(ConversionError, match="cond_order = 'state,action'"):
        to_model(given=GIVEN | {"jepa.pred.cond_order": "state,action"})


def test_both_names_of_the_family_on_the_command_line(tmp_path):
    torch.save(authors_file(), tmp_path / "ac.pt")
    settings = [f"--set={key}={value}" for key, value in GIVEN.items()]
    for name in ("vjepa2", "vjepa2_ac"):
        out = tmp_path / f"{name}.gguf"
        main(["--family", name, "--src", str(tmp_path / "ac.pt"), "--out", str(out), *settings])
        assert Bundle.open(out).family == "vjepa2"
