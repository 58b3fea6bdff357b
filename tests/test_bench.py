"""python -m jepa_wm.bench: the same records whatever runs them, resumed, refused, reported."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from jepa_wm.bench import main, split_words
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.control.episode import load_episode
from jepa_wm.errors import ConfigError, JepaError
from jepa_wm.experiments.bench import Bench, run_bench
from jepa_wm.experiments.bench_cells import plan_cells
from jepa_wm.experiments.bench_folder import open_folder
from jepa_wm.experiments.bench_records import read_records, read_results
from jepa_wm.experiments.parts import forget_parts
from jepa_wm.experiments.shards import Ran, Shard, run_shard
from jepa_wm.experiments.workers import JobQueue, RayWorkers, attempt

from bundle.tiny import TINY_LEWM, random_tensors  # isort: skip
from test_bench_workers import jobs  # isort: skip

torch.set_num_threads(1)
META = TINY_LEWM | {
    "jepa_wm.action.block": 5,
    "jepa_wm.action.mean": [0.0, 0.0],
    "jepa_wm.action.std": [0.3, 0.3],
    "jepa.pred.action_dim": 10,
}
FAST = ["episodes=7", "planner.iterations=2", "planner.num_samples=8", "planner.num_elites=3",
        "budget=15", "goal_offset=10", "dtype=bfloat16"]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return write_bundle(path, META, random_tensors(META, 0))


def words_of(model, *more):
    """The last word of a key counts."""
    words = [f"model={model}", *FAST, *more]
    return list({word.partition("=")[0]: word for word in words}.values())


def settings(*own):
    return split_words(own)[0]


def planned(model, *words, own=()):
    return plan_cells(words_of(model, *words), settings(*own))


class Here:
    """Does the jobs in this process."""

    count = 1

    def run(self, queue):
        while job := queue.take():
            yield attempt(job)


def timeless(record):
    return replace(record, seconds={}, worker="", peak_memory=0)


def run(*arguments, cwd, ok=True):
    done = subprocess.run(
        [sys.executable, "-m", "jepa_wm.bench", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    if ok:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0 and "Traceback" not in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
    return done


@pytest.fixture(scope="module")
def alone(model):
    """Every record of a cell, each episode run by itself in this process."""
    (cell,) = planned(model, "baselines=false")
    shards = [Shard(options=cell.options, policy="planner", ids=(index,)) for index in cell.ids]
    return [timeless(run_shard(shard).records[0]) for shard in shards]


def test_records_say_what_happened(alone):
    assert [record.id for record in alone] == list(range(7))
    assert len({record.seed for record in alone}) == 7
    for record in alone:
        assert record.decisions == len(record.mean_cost) == len(record.best_cost_fp32)
        assert record.evaluations == record.decisions * 17  # 2 x 8, and the last mean
        assert record.success == (record.success_step is not None)
        assert set(record.final) == {"agent and block", "block", "angle"}
        gaps = [
            abs(a - b) / b for a, b in zip(record.mean_cost, record.mean_cost_fp32, strict=True)
        ]
        assert all(0 < gap < 0.2 for gap in gaps)  # bfloat16 rounds, and no more


@pytest.mark.parametrize("size", [3, 10])
def test_a_batch_of_any_size_gives_the_same_records(model, alone, size):
    (cell,) = planned(model, "baselines=false", f"num_envs={size}")
    pieces = [cell.ids[at : at + size] for at in range(0, len(cell.ids), size)]
    shards = [Shard(options=cell.options, policy="planner", ids=ids) for ids in reversed(pieces)]
    records = [timeless(record) for shard in shards for record in run_shard(shard).records]
    assert sorted(records, key=lambda record: record.id) == alone
    assert cell.cell.id == planned(model, "baselines=false")[0].cell.id


def test_float32_is_its_own_reference(model):
    (cell,) = planned(model, "baselines=false", "dtype=float32", "episodes=1")
    (record,) = run_shard(Shard(options=cell.options, policy="planner", ids=(0,))).records
    assert record.mean_cost_fp32 == record.mean_cost and record.best_cost_fp32 == record.best_cost


# --- cells --------------------------------------------------------------------------------------


def test_baselines_are_run_once_for_every_test_and_ceilings_for_every_planner(model):
    found = planned(model, "planner=cem,mppi", "seed=0,1", "dtype=float32,bfloat16", "ceiling=true")
    axes = [dict(one.cell.axes) for one in found]
    assert len(found) == len({one.cell.id for one in found}) == 8 + 4 + 6
    name = str(model)
    assert axes[0] == {"model": name, "planner": "cem", "seed": "0", "dtype": "float32"}
    assert axes[8:12] == [
        {"model": "simulator", "planner": planner, "seed": seed}
        for planner in ("cem", "mppi")
        for seed in "01"
    ]
    assert axes[12:] == [
        {"policy": policy, "seed": seed}
        for seed in "01"
        for policy in ("random", "no-op", "replay")
    ]
    weights = [one.weight for one in found]
    assert min(weights[8:12]) > max(weights[:8]) > max(weights[12:]) == 0


def test_a_cell_tells_what_it_depends_on(model):
    cell = planned(model, "planner.iterations=3")[0].cell
    assert cell.protocol["label"].startswith("own*") and len(cell.protocol["hash"]) == 64
    assert "success_pose" in cell.protocol["criterion"]
    assert cell.model["sha256"] and cell.preset["name"] == "cem"
    assert cell.machine["dtype"] == "bfloat16" and cell.machine["threads"] == 1
    json.dumps(cell.options)


def test_paths_are_found_from_wherever_a_worker_starts(model, monkeypatch):
    monkeypatch.chdir(model.parent)
    (here,) = planned("tiny.gguf", "baselines=false")
    monkeypatch.chdir("/")
    (there,) = planned(model, "baselines=false")
    assert here.options["model"] == str(model) and here.cell.axes["model"] == "tiny.gguf"
    assert here.cell.id == there.cell.id


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["planer=cem"], "Could not override 'planer'; did you mean planner"),
        (["worker=2"], "did you mean workers"),
        (["env=nope"], "Available options in 'env'.*pusht"),
        (["planner=cem,nope"], "Could not find 'planner/nope'"),
        (["model=1e5"], "quote it"),
        (["goal=picture.png"], "picture.png"),
        (["workers=0"], "workers=0 must be null or a whole number >= 1"),
        (["video=gif"], "video='gif' must be true or false"),
        (["cost=3"], "cost=3 must be true or false"),
        (["launcher=slurm"], "use local or ray"),
        (["-m"], "commas cross without -m"),
        (["film=3"], "bench has no film"),
        (["replan_every=9"], "replan_every=9 must be 1..horizon=5"),
        (["model=none.gguf"], "none.gguf"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JepaError, match=message) as caught:
        own, rest = split_words(words)
        run_bench(rest, own)
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == []


# --- folders ------------------------------------------------------------------------------------


def test_a_folder_of_other_settings_is_refused_by_what_differs(model, tmp_path):
    open_folder(str(tmp_path / "a"), planned(model))
    for word, told in {
        "budget=20": "budget=15 there, 20 here",
        "planner.num_samples=9": "planner.num_samples=8 there, 9 here",
        "planner=cem,mppi": "4 cells there, 5 here",
    }.items():
        with pytest.raises(ConfigError, match=told):
            open_folder(str(tmp_path / "a"), planned(model, word))
    with pytest.raises(ConfigError, match="exact_costs=True there, False here"):
        open_folder(str(tmp_path / "a"), planned(model, own=["exact_costs=false"]))
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="holds something else"):
        open_folder(str(tmp_path / "b"), planned(model))


def test_another_model_under_the_same_name_is_another_benchmark(model, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(model.read_bytes())
    open_folder(str(tmp_path / "out"), planned(path))
    open_folder(str(tmp_path / "out"), planned(path))
    write_bundle(path, META, random_tensors(META, 1))
    with pytest.raises(ConfigError, match="model="):
        open_folder(str(tmp_path / "out"), planned(path))


def test_a_line_cut_off_is_run_again(model, tmp_path, alone):
    cells = planned(model, "baselines=false")
    out = open_folder(str(tmp_path), cells)
    bench = Bench(cells, out)
    bench.run_cells(Here())
    path = bench.folder(cells[0].cell.id) / "episodes.jsonl"
    text = path.read_text()
    path.write_text(text[: text.rindex('"success"')])  # as if power had failed
    open_folder(str(tmp_path), cells)
    assert len(path.read_text().splitlines()) == 6
    bench.run_cells(Here())
    assert [timeless(record) for record in bench.records(cells[0].cell.id)] == alone
    assert len(path.read_text().splitlines()) == 7


# --- the command --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    words = words_of(model, "workers=2", "out=there", "num_envs=3")
    return folder, words, run(*words, cwd=folder)


def test_two_workers_give_the_same_records(whole, alone):
    folder, _, _ = whole
    first, *others = read_results(folder / "there")
    assert [timeless(record) for record in first.records] == alone
    assert [len(other.records) for other in others] == [7, 7, 7]
    assert len({record.worker for result in (first, *others) for record in result.records}) == 2
    for record in first.records:
        assert set(record.seconds) == {"encode", "plan", "environment", "render"}
        assert record.peak_memory > 50e6 and min(record.seconds.values()) > 0


def test_the_last_line_is_json_and_only_the_folder_is_written(whole):
    folder, _, done = whole
    assert isinstance(json.loads(done.stdout.splitlines()[-1]), dict)
    assert "4, 28 episodes" in done.stdout and "2 (local)" in done.stdout
    assert [path.name for path in folder.iterdir()] == ["there"]


def test_the_first_success_and_failure_are_filmed(whole):
    folder, _, _ = whole
    first, *others = read_results(folder / "there")
    wanted = {next((r.id for r in first.records if r.success is w), None) for w in (True, False)}
    paths = sorted((first.folder / "episodes").glob("*.npz"))
    assert {load_episode(path).id for path in paths} == wanted - {None}
    assert all(load_episode(path).frames is not None for path in paths)
    assert not any((other.folder / "episodes").exists() for other in others)


def test_precision_ranks_the_same_candidates(whole):
    folder, _, _ = whole
    (row,) = json.loads((folder / "there" / "precision.json").read_text())
    assert row["dtype"] == "bfloat16" and row["env"] == "pusht"
    assert 0.9 < row["spearman"]["min"] <= row["spearman"]["median"] < 1
    assert 0 <= row["elite_overlap"]["min"] <= row["elite_overlap"]["mean"] <= 1
    assert 0 < row["max_relative"] < 0.5


def test_run_again_it_runs_nothing(whole, monkeypatch, capsys):
    folder, words, _ = whole
    paths = sorted((folder / "there" / "cells").rglob("*.*"))
    before = {path: path.read_bytes() for path in paths}
    monkeypatch.chdir(folder)
    own, rest = split_words(words)
    bench = run_bench(rest, own)
    assert "28 of them done" in capsys.readouterr().out and bench.failures == {}
    assert {path: path.read_bytes() for path in paths} == before


def test_an_interrupt_loses_no_episode_and_is_gone_on_with(model, alone, tmp_path):
    own = ["workers=1", "video=false", "precision=false", f"out={tmp_path / 'here'}"]
    words = words_of(model, "num_envs=1", "baselines=false", *own)
    command = [sys.executable, "-m", "jepa_wm.bench", *words]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    lines = []
    while len(lines) < 2 and process.poll() is None:
        lines = [line for path in tmp_path.rglob("episodes.jsonl") for line in path.open()]
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 130 and "Traceback" not in said
    assert f"go on with {own[-1]}" in said
    (folder,) = (tmp_path / "here" / "cells").iterdir()
    kept = read_records(folder)
    assert 2 <= len(kept) < 7
    settled, rest = split_words(words)
    run_bench(rest, settled)
    again = read_records(folder)
    assert [timeless(record) for record in again] == alone
    assert [again[record.id] for record in kept] == kept  # not run twice


def test_a_cell_that_fails_stops_no_other(model, tmp_path):
    """A model that vanishes after it was looked at."""
    path = tmp_path / "gone.gguf"
    path.write_bytes(model.read_bytes())
    cells = plan_cells([f"model={path},{model}", *FAST, "baselines=false"], settings())
    path.unlink()
    forget_parts()
    bench = Bench(cells, open_folder(str(tmp_path / "out"), cells))
    bench.run_cells(Here())
    bench.finish(Here(), film=True, precision=True)
    gone, there = read_results(bench.out)
    assert "gone.gguf" in gone.failure and "\n" not in gone.failure and not gone.records
    assert there.failure is None and len(there.records) == 7
    assert gone.cell.id in bench.failures and "precision" in bench.failures
    open_folder(str(bench.out), cells)  # gone on with, it is tried again
    assert read_results(bench.out)[0].failure is None


def test_an_episode_that_is_another_when_filmed_is_a_failure(model, tmp_path):
    cells = planned(model, "baselines=false", "episodes=2")
    bench = Bench(cells, open_folder(str(tmp_path), cells))
    bench.run_cells(Here())
    path = bench.folder(cells[0].cell.id) / "episodes.jsonl"
    path.write_text(path.read_text().replace('"mean_cost": [', '"mean_cost": [0.5, '))
    bench.finish(Here(), film=True, precision=False)
    (result,) = read_results(tmp_path)
    assert "was another when it was run again" in result.failure
    assert not (result.folder / "episodes").exists()
    # a GPU rounds by the batch: there only how it ended must be the same
    shard = Shard(options=cells[0].options, policy="planner", ids=(0, 1), is_filmed=True)
    ran = run_shard(shard)
    elsewhere = replace(cells[0], options=cells[0].options | {"device": "cuda"})
    bench = Bench([elsewhere], tmp_path)
    other = replace(ran.records[1], success=not ran.records[1].success)
    bench._keep_film(cells[0].cell.id, Ran([ran.records[0], other], ran.episodes))
    names = [path.name for path in sorted((result.folder / "episodes").iterdir())]
    assert names == ["episode_0000.json", "episode_0000.npz"] and bench.failures == {}


def test_help_lists_the_options(tmp_path):
    done = run("--help", cwd=tmp_path)
    for word in ("exact_costs", "launcher", "planner", "conf/plan.yaml"):
        assert word in done.stdout


@pytest.mark.slow
def test_ray_gives_the_same_records_and_outcomes(model, alone, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    cells = planned(model, "baselines=false", "num_envs=3")
    bench = Bench(cells, open_folder(str(tmp_path), cells))
    with RayWorkers(2, None) as workers:
        bench.run_cells(workers)
        ways = {way: jobs(way, 1, way) for way in ("work", "fail", "die")}
        outcomes = {outcome.job.group: outcome for outcome in workers.run(JobQueue(ways))}
    assert bench.failures == {}
    assert [timeless(record) for record in bench.records(cells[0].cell.id)] == alone
    assert outcomes["work"].value[0] == "work0"
    assert outcomes["fail"].error == "ValueError: number fail0"
    assert outcomes["die"].error.startswith("the worker died")


def test_costs_count_a_decision_of_every_combination_and_run_none(model, capsys, monkeypatch):
    words = words_of(model, "planner=cem,mppi", "cost=true", f"out={model.parent}/none")
    monkeypatch.setattr("sys.argv", ["bench", *words])
    main()
    *lines, last = capsys.readouterr().out.splitlines()
    costs = json.loads(last)["costs"]
    assert [one["axes"]["planner"] for one in costs] == ["cem", "mppi"]
    for one in costs:
        assert one["evaluations"] == 2 * 8 + 1
        names = [stage["stage"] for stage in one["stages"]]
        assert names == ["encode", "rollout", "update", "decision"]
        assert one["stages"][3]["floor_seconds"] > 0
    assert sum("measured / floor" in line for line in lines) == 2
    assert not (model.parent / "none").exists()


def test_an_arms_planner_survives_being_written_as_json(arm):
    """Its constraints are by dimension, and JSON has no whole numbers as keys."""
    words = ["env=reach", "planner=cem_ac", "episodes=1", f"model={arm()}", "baselines=false"]
    assert len(plan_cells(words, settings())) == 1
