"""The benchmark scripts' own parts, at tiny sizes and without peers."""

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from jepa_wm.errors import BundleError, ConfigError, JepaError
from jepa_wm.models import load_world_model
from jepa_wm.models.packed import PackedLinear
from jepa_wm.models.pose import compose
from jepa_wm.runtime import has_fast_bfloat16

FOLDER = Path(__file__).parent.parent / "benchmarks"
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["lewm_solve"])
def bench(request):
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module(request.param)
    finally:
        sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def sizes(bench):
    return bench.Sizes(
        image=16, patch=8, dim=16, enc_layers=1, enc_heads=2, enc_ffn=32, layers=2, heads=2,
        head_dim=4, ffn=32, hidden=24,
    )  # fmt: skip


def last_json(capsys):
    return json.loads(capsys.readouterr().out.strip().split("\n")[-1])


def options(*extra):
    return ["--quick", "--no-peer", _threads(), *extra]


def test_the_last_line_holds_everything_measured(bench, sizes, capsys):
    bench.main(options("--bf16=yes"), sizes)
    found = last_json(capsys)
    solves = found["solves"]
    assert list(solves) == ["ours bfloat16", "ours float32"]
    for row in solves.values():
        assert row["median"] > 0 and row["flops"] > 0
        assert set(row["parts"]) == {"encode", "rollout", "update"}
    agreed = found["parity"]["ours float32"]
    assert list(agreed) == ["0", "2"]
    assert 0 < agreed["0"]["max_relative_difference"] < 0.2, agreed
    assert agreed["0"]["spearman"] > 0.9, agreed
    assert found["machine"]["threads"] == torch.get_num_threads()
    assert found["options"]["iterations"] == 2


def test_a_bundle_is_timed_with_both_presets(bench, tiny, capsys):
    bench.main(options("--model", str(tiny("lewm")), "--dtype=float32"))
    found = last_json(capsys)
    assert {name: row["size"] for name, row in found["solves"].items()} == {
        "cem": "300x2x5",
        "lewm": "300x2x5",
    }


def test_a_missing_bundle_is_our_error(bench):
    with pytest.raises(BundleError, match=r"no\.gguf"):
        bench.main(options("--model", "no.gguf"))


@pytest.mark.parametrize("argument", ["--rounds=0", "--bf16=maybe", "--iterations=x"])
def test_impossible_options_are_refused(bench, argument, capsys):
    with pytest.raises(SystemExit):
        bench.main([argument])
    assert argument.split("=")[0] in capsys.readouterr().err


def test_solves_depend_on_the_seed_alone(bench, sizes, tmp_path):
    path = bench.random_bundle(tmp_path / "random.gguf", sizes)
    model = load_world_model(path, CPU)
    planner = bench.preset("planner", "lewm")
    entry = bench.ours("ours", model, bench.random_frames(sizes.image), planner)
    first, again, other = (entry.solve(2, seed).actions for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_several_problems_are_solved_as_each_would_be_alone(bench, sizes, tmp_path):
    model = load_world_model(bench.random_bundle(tmp_path / "random.gguf", sizes), CPU)
    planner = bench.preset("planner", "lewm")
    start, goal = bench.random_frames(sizes.image, 2)
    both = bench.ours("both", model, (start, goal), planner)
    last = bench.ours("last", model, (start[1:], goal[1:]), planner)
    plans = both.solve(2, 3)
    assert torch.equal(plans.actions[1], last.solve(2, 1003).actions[0])
    assert not torch.equal(plans.actions[0], plans.actions[1])
    together = bench.ours("at once", model, (start, goal), planner, None)
    candidates = torch.randn(2, 50, 5, 10, generator=torch.Generator().manual_seed(0))
    apart, once = both.cost(candidates), together.cost(candidates)
    assert (apart - once).abs().max() < 1e-5 * apart.abs().max()


def test_a_batch_is_timed_row_by_row_and_at_once(bench, sizes, capsys):
    bench.main(options("--bf16=no", "--problems=2"), sizes)
    found = last_json(capsys)
    assert list(found["solves"]) == ["ours float32, at once", "ours float32"]
    assert found["options"]["problems"] == 2 and not found["ratios"]
    assert found["parity"]["ours float32"]["0"]["elite_overlap"] == 1


def test_random_models_listen_to_their_actions(bench, sizes, tmp_path):
    """A benchmark model whose costs ignored the candidates would prove no parity."""
    path = bench.random_bundle(tmp_path / "random.gguf", sizes)
    planner = bench.preset("planner", "lewm")
    entry = bench.ours(
        "ours", load_world_model(path, CPU), bench.random_frames(sizes.image), planner
    )
    costs = entry.cost(torch.randn(1, 50, 5, 10, generator=torch.Generator().manual_seed(0)))
    assert costs.std() > 0.01 * costs.mean(), costs


def test_agreement_sees_differences_orders_and_elites(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    bench = importlib.import_module("lewm_parity")
    reference = torch.arange(1.0, 101).reshape(2, 50)
    same = bench.agreement(reference, reference.clone(), 5)
    assert same["max_relative_difference"] == 0
    assert same["elite_overlap"] == 1 and same["spearman"] == pytest.approx(1)
    worse = bench.agreement(reference, reference.flip(1), 5)
    assert worse["spearman"] == pytest.approx(-1) and worse["elite_overlap"] == 0
    scaled = bench.agreement(reference, reference * 1.01, 5)
    assert scaled["max_relative_difference"] == pytest.approx(0.01, rel=1e-3)
    swapped = reference.clone()
    swapped[:, [4, 5]] = reference[:, [5, 4]]  # one of five elites changes places
    assert bench.agreement(reference, swapped, 5)["elite_overlap"] == pytest.approx(0.8)


def test_flops_of_packed_and_plain_products_are_counted(bench):
    linear = torch.nn.Linear(7, 11)
    packed = PackedLinear(linear.weight, linear.bias, torch.float32)
    x = torch.zeros(3, 5, 7)
    with torch.inference_mode():
        for layer in (linear, packed):
            assert bench.count_flops(lambda layer=layer: layer(x)) == 2 * 3 * 5 * 7 * 11


def test_rounds_alternate_and_the_first_is_left_out(bench):
    calls = []
    solvers = [lambda seed, name=name: calls.append((name, seed)) or (name, seed) for name in "ab"]
    timings = bench.alternate(solvers, 2)
    assert calls == [(name, seed) for seed in range(3) for name in "ab"]
    assert timings.results == [[("a", 1), ("b", 1)], [("a", 2), ("b", 2)]]
    assert timings.wall.shape == timings.cpu.shape == (2, 2)


def test_the_summary_is_the_median_and_the_tail(bench):
    wall = np.arange(11.0)[:, None]
    found = bench.summary(bench.Timings(wall, wall / 2, []), 0)
    assert found == {"median": 5, "p90": 9, "cpu": 2.5}


@pytest.mark.reference
def test_the_peer_scores_candidates_alike(bench, sizes, tmp_path):
    pytest.importorskip("stable_worldmodel.planning")
    planner = bench.preset("planner", "lewm")
    frames, theirs = bench.random_frames(sizes.image), bench.build_peer(sizes)
    path = bench.convert_peer(theirs, sizes, tmp_path)
    entries = [
        bench.peer("peer", theirs, frames, planner, torch.float32),
        bench.ours("ours", load_world_model(path, CPU), frames, planner),
    ]
    found = bench.parity(entries, [0, 2], 1)["ours"]
    assert max(row["max_relative_difference"] for row in found.values()) < 1e-4, found


def test_encoders_alike_are_timed_in_turn(capsys, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.syspath_prepend(FOLDER)
    importlib.import_module("encoders").main(["--quick", "--rounds=2", _threads()])
    found = last_json(capsys)["encoders"]["tiny"]
    assert found["float32"]["relative_difference"] < 1e-5, found
    assert found["bfloat16"]["relative_difference"] < 0.05, found
    assert all(row["ratio"]["low"] <= row["ratio"]["median"] for row in found.values())


def test_loading_reports_the_peak_of_a_child_process(capsys, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    importlib.import_module("loading").main(["--gigabytes=0.03", _threads()])
    found = last_json(capsys)
    assert 0.5 < found["weights"] / found["file"] < 1.05  # the patch embedding is F32 in the file
    assert 0 < found["weights"] < found["bound"] and found["peak"] > 0


def test_attention_by_frame_and_by_a_dense_mask_agree(capsys, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    importlib.import_module("levjepa_attention").main(["--quick", "--rounds=2", _threads()])
    found = last_json(capsys)
    for part in ("blocks", "attention"):
        assert found["levjepa"]["float32"][part]["relative_difference"] < 1e-5, found
        assert found["levjepa"]["bfloat16"][part]["relative_difference"] < 0.05, found
    assert found["peak_bytes"].keys() == {"by frame", "dense mask"}
    assert all(min(row.values()) >= 0 for row in found["peak_bytes"].values())


def test_rollouts_alike_are_timed_in_turn(capsys, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    importlib.import_module("ac_rollout").main(["--quick", "--rounds=2", _threads()])
    found = last_json(capsys)["rollouts"]
    for horizon in ("2", "4"):
        assert found["float32"][horizon]["relative_difference"] < 1e-5, found
        assert found["bfloat16"][horizon]["relative_difference"] < 0.05, found


def test_a_loop_of_the_published_form_rolls_out_alike(monkeypatch, tmp_path):
    """The loop that drives the peer, with our predictor in its place."""
    monkeypatch.syspath_prepend(FOLDER)
    ac = importlib.import_module("ac_models")
    sizes = ac.Sizes(width=48, heads=2, layers=1, latent=48, side=4)
    world = load_world_model(ac.random_bundle(tmp_path / "random.gguf", sizes), CPU)

    class Predictor(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = world.predictor

        def forward(self, rows, actions, poses):
            z = rows.unflatten(1, (poses.shape[1], -1))
            return self.inner(z, actions, poses).flatten(1, 2)

    given = ac.problem(sizes, 3, 3, 2)
    theirs = ac.peer_rollout(ac.Peer(Predictor(), Predictor(), compose), *given)
    mine = world.rollout(*given)
    assert (mine - theirs).abs().max() < 1e-5 * theirs.abs().max()


def test_launches_are_counted_by_kind_and_nothing_else_is(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    count = importlib.import_module("launches").count_launches
    calls = ["cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx",
             "cudaLaunchCooperativeKernel", "cudaGraphLaunch", "cudaMemcpyAsync", "cudaMemcpyAsync",
             "cudaMemsetAsync"]  # fmt: skip
    others = ["aten::add", "aten::copy_", "Memcpy HtoD (Pinned -> Device)", "Memset (Device)",
              "void at::native::vectorized_elementwise_kernel<4>", "cudaStreamSynchronize",
              "cudaDeviceSynchronize", "cudaEventRecord", "cudaStreamIsCapturing", "cudaMalloc",
              "cudaGraphInstantiate", "ProfilerStep#1", ""]  # fmt: skip
    assert count(others + calls) == {"kernels": 5, "graphs": 1, "copies": 2, "fills": 1}
    assert count([]) == {"kernels": 0, "graphs": 0, "copies": 0, "fills": 0}


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_a_solve_without_launches_is_an_error_and_no_zero(bench, tiny):
    """On a CPU the solve runs and launches nothing."""
    launches = importlib.import_module("launches")
    planner = dataclasses.replace(
        bench.preset("planner", "lewm"), iterations=1, horizon=2, num_samples=30
    )
    model = load_world_model(tiny("lewm"), CPU)
    z, goal_z = torch.randn(2, 3, model.predictor.config.embed_dim).unbind()
    solves = launches.Solves(model, planner, (z, goal_z), None)
    with pytest.raises(JepaError, match="saw no launch"):
        launches.launches_of(solves)
    assert solves.cost.evaluations == 3 * (planner.num_samples + 1)


@pytest.mark.parametrize("device", ["cpu", "cuda:99"])
def test_launches_are_refused_without_a_cuda_device(bench, device):
    with pytest.raises(ConfigError, match=f"device='{device}'"):
        importlib.import_module("launches").main([f"--device={device}"])


@pytest.mark.gpu
def test_a_recorded_solve_is_launched_at_once(bench, capsys):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    importlib.import_module("launches").main([])
    solves = last_json(capsys)["solves"]
    assert solves["recorded"]["kinds"]["graphs"] == 1
    assert solves["recorded"]["per_iteration"] <= 3, solves
    assert solves["eager"]["per_iteration"] > 100, solves


def test_memory_of_candidates_is_measured_in_a_child_process(capsys, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    options = ["--quick", "--budget=64", "--candidates=100", _threads()]
    importlib.import_module("ac_memory").main(options)
    found = last_json(capsys)
    assert 0 < found["peak"] < found["budget"], found
    assert found["largest"] < found["repeated_frames"], found


def test_kept_weights_are_smaller_and_give_the_same(capsys, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    importlib.import_module("low_precision").main(["--quick", "--rounds=1", _threads()])
    found = last_json(capsys)
    for row in found["kept"].values():
        assert row["bytes"]["quantised"] < 0.7 * row["bytes"]["expanded"]
        assert row["difference"] < 1e-2
    # without VNNI the kernel adds pairs of products in 16 bits, which overflow
    if torch.cpu._is_vnni_supported():
        assert all(row["errors"]["int8"] < 0.05 for row in found["int8"].values())
    assert all(row["errors"]["floats"] < 0.05 for row in found["int8"].values())


def test_every_schedule_of_a_rollout_gives_the_same(capsys, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    importlib.import_module("schedules").main(["--quick", _threads()])
    found = last_json(capsys)["schedules"]["bundled LeWM"]
    assert found["ways"].keys() > {"windows anew", "pieces of 40", "whole"}
    assert found["relative_difference"] < (1e-5 if not has_fast_bfloat16(CPU) else 0.1)


def _threads():
    return f"--threads={torch.get_num_threads()}"
