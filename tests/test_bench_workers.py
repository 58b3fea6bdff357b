"""Whoever does the jobs of a benchmark: every job once, whatever becomes of the others."""

import os
import signal
import sys
import time

import pytest

from jepa_wm.errors import ConfigError
from jepa_wm.experiments.workers import Job, JobQueue, LocalWorkers, make_workers


def work(argument):
    """What a worker imports by name: fail, die, or say who did it."""
    number, way = argument
    if way == "fail":
        raise ValueError(f"number\n{number}")
    if way == "refuse":
        raise ConfigError("as told")
    if way == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if way == "wait":
        time.sleep(0.3)
    return number, os.getpid()


def jobs(group, count, way="work"):
    return [Job(group, work, (f"{group}{number}", way)) for number in range(count)]


def test_a_worker_stays_in_its_group_and_others_begin_another():
    queue = JobQueue({"a": jobs("a", 2), "b": jobs("b", 2), "c": []})
    taken = [queue.take(group).argument[0] for group in (None, None, "a", "a")]
    assert taken == ["a0", "b0", "a1", "b1"]
    assert queue.take() is None


def test_what_is_dropped_is_not_done():
    queue = JobQueue({"a": jobs("a", 3), "b": jobs("b", 1)})
    queue.take()
    assert queue.drop("a") == 2 and queue.drop("a") == 0
    assert queue.take("a").group == "b" and queue.take("a") is None


def test_every_job_has_one_outcome_though_some_fail_and_some_die(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    groups = {way: jobs(way, 2, way) for way in ("work", "fail", "refuse", "die", "wait")}
    with LocalWorkers(2) as workers:
        outcomes = list(workers.run(JobQueue(groups)))
        again = list(workers.run(JobQueue({"more": jobs("more", 2)})))
    by_name = {outcome.job.argument[0]: outcome for outcome in outcomes}
    assert len(outcomes) == len(by_name) == 10
    assert {name for name, outcome in by_name.items() if outcome.error is None} == {
        "work0", "work1", "wait0", "wait1",
    }  # fmt: skip
    assert by_name["work0"].value[0] == "work0" and by_name["work0"].value[1] != os.getpid()
    assert by_name["fail1"].error == "ValueError: number fail1"  # one line
    assert "Traceback" in by_name["fail1"].details
    assert by_name["refuse0"].error == "as told"
    assert by_name["die0"].error == (
        "the worker died (exit code -9, as when memory runs out)"
    )  # and a new one did the rest
    assert [outcome.value[0] for outcome in again] in (["more0", "more1"], ["more1", "more0"])


def test_leaving_ends_the_processes_at_once(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(__file__))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt), LocalWorkers(1) as workers:
        for outcome in workers.run(JobQueue({"a": jobs("a", 40, "wait")})):
            pid = outcome.value[1]
            raise KeyboardInterrupt
    assert time.monotonic() - began < 10  # forty would take twelve seconds and more
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_unknown_launchers_are_refused():
    with pytest.raises(ConfigError, match="launcher='slurm' is unknown; use local or ray"):
        make_workers("slurm", 1, None, 1)


def test_ray_is_named_where_it_is_absent(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"launcher=ray needs Ray: pip install 'jepa_wm\[ray\]'"):
        make_workers("ray", 1, None, 1)
