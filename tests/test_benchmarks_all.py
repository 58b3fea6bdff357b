"""One command for all benchmarks: what it keeps, what it reports, the table it writes."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parent.parent / "benchmarks"
MACHINE = {"cpu": "forged", "flags": ["amx_bf16"], "threads": 2, "versions": {"torch": "9.9"}}
ABOUT = f"machine = {MACHINE!r}\n"
GOOD = (
    "import json, sys\n{about}print('a table')\nprint(json.dumps({{'machine': machine, {rest}}}))\n"
)
SOLVES = "'solves': {'lewm': {'median': 0.5}, 'cem': {'median': 0.2}}, 'dtype': 'torch.bfloat16'"
README = "before\n{0}an old table\n{1}after\n"


@pytest.fixture
def alle(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("all")


@pytest.fixture
def rows(alle):
    return importlib.import_module("performance_rows")


@pytest.fixture
def written(alle):
    return importlib.import_module("performance_table")


@pytest.fixture
def files(tmp_path, written):
    readme = tmp_path / "README.md"
    readme.write_text(README.format(*written.MARKS))
    return tmp_path / "results.json", readme


def script(path, text):
    path.write_text(text)
    return str(path)


def forged(alle, folder):
    """Three scripts: a good one, one that fails, one whose last line says nothing."""
    good = script(folder / "good.py", GOOD.format(about=ABOUT, rest=SOLVES))
    bad = script(folder / "bad.py", "print('{}')\nraise SystemExit('the peer is broken')\n")
    mute = script(folder / "mute.py", "print('done')\n")
    return [
        alle.Job("encoders", bad, takes=()), alle.Job("loading", mute, takes=()),
        alle.Job("lewm_bundle", good, ("--model", "x"), takes=()),
    ]  # fmt: skip


def given(files):
    return ["--results", str(files[0]), "--readme", str(files[1])]


def test_what_ran_is_merged_and_what_failed_is_told(alle, files, tmp_path, capsys):
    old = {"command": "p", "date": "2026-01-01", "commit": "c", "load": 0.0, "seconds": 1,
           "figures": {"machine": MACHINE, "environments": {}}}  # fmt: skip
    files[0].write_text(json.dumps({"schema": 1, "scripts": {"pusht_env": old, "lewm_bundle": {}}}))
    with pytest.raises(SystemExit) as stop:
        alle.main(given(files), forged(alle, tmp_path))
    told = str(stop.value)
    assert "encoders: status 1: the peer is broken" in told and "loading: its last line" in told
    assert "'done'" in told and "lewm_bundle" not in told
    kept = json.loads(files[0].read_text())["scripts"]
    assert kept.keys() == {"pusht_env", "lewm_bundle"} and kept["pusht_env"] == old
    new = kept["lewm_bundle"]
    assert new["figures"]["solves"]["lewm"] == {"median": 0.5} and new["seconds"] >= 0
    assert new["command"].endswith("--model x") and new["commit"]
    text = files[1].read_text()
    assert text.startswith("before\n") and text.endswith("after\n") and "old table" not in text
    assert "| 0.50 s (bfloat16) |  | 0.7 s | 0.3 s, **short** |" in text
    assert "peer not installed" in text and "no CUDA device at hand" in text
    assert "a table" in capsys.readouterr().out


def test_one_can_be_measured_again_alone(alle, files, tmp_path):
    assert alle.main([*given(files), "--only", "lewm_bundle"], forged(alle, tmp_path)) == {}
    assert list(json.loads(files[0].read_text())["scripts"]) == ["lewm_bundle"]


def test_quick_figures_are_not_kept(alle, files, tmp_path, monkeypatch):
    monkeypatch.setattr(alle, "RESULTS", files[0])
    before = files[1].read_text()
    jobs = forged(alle, tmp_path)[2:]
    assert alle.main(["--quick", "--readme", str(files[1])], jobs) == {}
    assert not files[0].exists() and files[1].read_text() == before


def test_quick_options_come_after_a_scripts_own(alle):
    args = alle.parse(["--quick", "--threads=3", "--peers=python"], alle.JOBS)
    jobs = {job.name: job for job in alle.JOBS}
    assert alle.command_of(jobs["lewm_bundle"], args)[2:] == [
        "--model", "lewm.gguf", "--quick", "--threads", "3",
    ]  # fmt: skip
    args = alle.parse(["--vjepa2=here"], alle.JOBS)
    assert alle.command_of(jobs["ac_rollout"], args)[-2:] == ["--vjepa2", "here"]
    assert "--quick" not in alle.command_of(jobs["threads"], args)


def test_names_and_interpreters_that_are_not_there(alle, files, tmp_path, capsys):
    with pytest.raises(SystemExit):
        alle.main([*given(files), "--only", "nothing"])
    assert "invalid choice: 'nothing'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="No such file"):
        alle.main([*given(files), "--peers", "/no/python"], forged(alle, tmp_path)[2:])


def test_without_cuda_its_jobs_are_left_out(alle, files, tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    bad = script(tmp_path / "bad.py", "raise SystemExit(1)\n")
    assert alle.main(given(files), [alle.Job("lewm_cuda", bad, needs_cuda=True)]) == {}
    assert "no CUDA device" in capsys.readouterr().out


def test_ctrl_c_keeps_what_is_done_and_stops_the_script(files, tmp_path):
    good = script(tmp_path / "good.py", GOOD.format(about=ABOUT, rest=SOLVES))
    slow = script(tmp_path / "slow.py",
                  f"import os, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))\n"
                  "time.sleep(600)\n")  # fmt: skip
    code = (
        f"import sys\nsys.path.insert(0, {str(FOLDER)!r})\n"
        f"sys.argv = ['all.py', *{given(files)!r}]\n"
        "import all\nfrom jepa_wm.runtime import command\n"
        f"jobs = [all.Job('lewm_bundle', {good!r}, takes=()), all.Job('x', {slow!r}, takes=())]\n"
        "command(lambda: all.main(None, jobs))\n"
    )
    running = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        pid = tmp_path / "pid"
        while running.poll() is None and not (pid.exists() and pid.read_text()):
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        assert running.wait(120) == 130  # seconds on a busy machine
    finally:
        running.kill()
        running.communicate()
    assert list(json.loads(files[0].read_text())["scripts"]) == ["lewm_bundle"]
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(
    ("wanted", "value", "reached"),
    [("1.5x", 1.6, True), ("1.5x", 1.4, False), ("0.7 s", 0.6, True), ("3 s", 3.1, False),
     ("within", 0.9, True), ("within", 1.1, False)],
)  # fmt: skip
def test_more_times_as_fast_is_better_and_more_seconds_are_worse(written, wanted, value, reached):
    assert written.reaches(wanted, value) is reached


def test_a_ratio_is_told_with_its_range_and_its_peer(written, rows):
    solves = {"ours float32": {"median": 8.0}, "peer float32": {"median": 16.0}}
    ratio = {"median": 2.0, "low": 1.9, "high": 2.2, "cpu": 2.1}
    stages = {"0": {"max_relative_difference": 2e-7}, "2": {"max_relative_difference": 6e-7}}
    figures = {
        "solves": solves, "ratios": {"peer float32 / ours float32": ratio},
        "parity": {"ours float32": stages},
    }  # fmt: skip
    row = rows.Row("s", "what", "peer", rows.solve("float32", problems=8), "1.5x", "2.2x")
    assert written.line(row, {"s": {"figures": figures}}) == (
        "| what | peer: 2.00 s | 1.00 s, costs within 6e-07 | 2.00x (1.90-2.20); 2.10x | 1.5x "
        "| 2.2x, **short** |\n"
    )
    slow = rows.Row("s", "what", "peer", rows.solve("bfloat16"), "1.5x", "2.2x")
    assert "no bfloat16 in hardware" in written.line(slow, {"s": {"figures": figures}})
    tiny = rows.Row("s", "what", "peer", rows.encoder("vjepa2", "float32"))
    assert "| not measured |" in written.line(tiny, {"s": {"figures": {"encoders": {"tiny": {}}}}})
    assert "not measured (no 'solves')" in written.line(row, {"s": {"figures": {}}})


def test_launches_are_told_per_iteration_beside_those_of_a_solve_that_is_not_recorded(
    written, rows
):
    (row,) = (row for row in rows.ROWS if row.script == "launches")
    solves = {"recorded": {"per_iteration": 22 / 30}, "eager": {"per_iteration": 1234.4}}
    told = written.line(row, {"launches": {"figures": {"solves": solves}}})
    assert "| 0.73 (1,234 if not recorded) |  | 3 | 1 |" in told, told
    solves["recorded"]["per_iteration"] = 3.5
    assert "| 3, **missed** | 1, **short** |" in written.line(
        row, {"launches": {"figures": {"solves": solves}}}
    )
    assert "no CUDA device at hand" in written.line(row, {})


def test_every_row_is_of_a_script_that_is_run(alle, rows):
    names = {job.name for job in alle.JOBS}
    assert {row.script for row in rows.ROWS} <= names
    assert all((FOLDER / job.script).is_file() for job in alle.JOBS)


def test_a_readme_without_a_place_is_refused_before_anything_runs(alle, files, tmp_path, capsys):
    files[1].write_text("nothing")
    with pytest.raises(SystemExit, match="no marks"):
        alle.main(given(files), forged(alle, tmp_path))
    files[1].unlink()
    with pytest.raises(SystemExit, match=r"No such file.*README\.md"):
        alle.main(given(files), forged(alle, tmp_path))
    assert capsys.readouterr().out == ""


def test_the_readme_has_what_the_results_say(written):
    results = written.load(written.RESULTS)
    assert written.MARKS[0] + written.table(results) in written.README.read_text()


@pytest.mark.slow
def test_a_fresh_process_is_timed_to_its_first_plan(alle, tmp_path):
    """Through the one command, which takes its JSON."""
    readme = tmp_path / "README.md"
    written = importlib.import_module("performance_table")
    readme.write_text(README.format(*written.MARKS))
    where = ["--results", str(tmp_path / "r.json"), "--readme", str(readme)]
    threads = f"--threads={torch.get_num_threads()}"
    alle.main(["--quick", "--only", "first_plan", threads, *where])
    parts = written.load(tmp_path / "r.json")["first_plan"]["figures"]["parts"]
    seconds = {name: row["median"] for name, row in parts.items()}
    split = sum(seconds[name] for name in ("interpreter", "torch", "package", "load", "plan"))
    assert seconds["total"] == pytest.approx(split, abs=1e-3) and min(split, seconds["cpu"]) > 0
    assert "of cpu) |  | 6 s" in readme.read_text()


@pytest.mark.slow
def test_threads_are_compared_bit_by_bit(capsys, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    before = torch.get_num_threads()
    importlib.import_module("threads").main(["--quick", "--most=1", "--episodes=1"])
    assert torch.get_num_threads() == before
    found = json.loads(capsys.readouterr().out.strip().split("\n")[-1])
    assert found["solves"]["lewm.gguf"]["1"]["same_bits"] and found["command"]["1"]["same_bits"]
    assert found["side_by_side"]["1 x 1"] > 0


def test_other_bits_are_seen(monkeypatch, tiny):
    """A solve that depends on the number of threads."""
    monkeypatch.syspath_prepend(FOLDER)
    threads = importlib.import_module("threads")
    plans = iter(range(100))
    solve = threads.make_solve(threads.find_bundle("lewm.gguf"), 1)
    monkeypatch.setattr(threads, "make_solve", lambda *_: lambda seed: solve(next(plans)))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    found = threads.time_solves(Path("any"), 1, [1, 2], 1)
    assert found["1"]["same_bits"] and not found["2"]["same_bits"]
