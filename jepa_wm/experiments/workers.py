"""Workers: processes of this machine, or a Ray cluster, that do jobs from one queue.

A job is a function of one argument, both of which travel by pickle. Jobs come in groups whose
members share what is slow to load, so a worker stays in its group while there is work in it. An
error, or the death of a worker, is the outcome of that job and stops no other.
"""

import logging
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self

from jepa_wm.errors import ConfigError, JepaError

OBJECT_STORE = 256 << 20  # bytes of Ray's shared memory on one machine; our results are small


@dataclass(frozen=True)
class Job:
    """Something to do: ``work(argument)``, for ``group``."""

    group: str
    work: Callable[[Any], Any]
    argument: Any


@dataclass(frozen=True)
class Outcome:
    """What a job gave: ``value``, or the ``error`` in one line and its ``details``."""

    job: Job
    value: Any = None
    error: str | None = None
    details: str = ""


class JobQueue:
    """Jobs that wait, group by group in the order given."""

    def __init__(self, groups: Mapping[str, Sequence[Job]]) -> None:
        self._waiting = {name: list(jobs) for name, jobs in groups.items() if jobs}
        self._begun: set[str] = set()

    def take(self, group: str | None = None) -> Job | None:
        """Take a job: of ``group``, else of the first group nobody began, else of the first.

        None when all are taken.
        """
        if not self._waiting:
            return None
        name = group
        if name is None or name not in self._waiting:
            fresh = [name for name in self._waiting if name not in self._begun]
            name = next(iter(fresh or self._waiting))
        self._begun.add(name)
        job = self._waiting[name].pop(0)
        if not self._waiting[name]:
            del self._waiting[name]
        return job

    def drop(self, group: str) -> int:
        """Forget what waits of a group; return how many jobs."""
        return len(self._waiting.pop(group, ()))


def attempt(job: Job) -> Outcome:
    """Do a job where it may fail."""
    try:
        return Outcome(job, job.work(job.argument))
    except Exception as error:  # at the edge of a process: whatever it is, others go on
        text = " ".join(str(error).split())
        told = text if isinstance(error, JepaError) else f"{type(error).__name__}: {text}"
        return Outcome(job, error=told, details=traceback.format_exc())


def _serve(pipe: Connection) -> None:
    """Do what comes through the pipe until it closes. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            pipe.send(attempt(pipe.recv()))
    except (EOFError, OSError):  # the parent is gone, or is done with us
        return


class _Hand:
    """One process and the pipe to it."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()  # so that its death closes the pipe
        self.job: Job | None = None

    @property
    def group(self) -> str | None:
        """What it worked for last."""
        return self.job.group if self.job else None

    def give(self, job: Job) -> None:
        """Send it a job."""
        self.job = job
        self.pipe.send(job)

    def result(self) -> Outcome:
        """Take what it sends back; a process that died says nothing."""
        assert self.job is not None  # only those with a job are waited for
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            code = self.process.exitcode
            hint = ", as when memory runs out" if code == -signal.SIGKILL else ""
            return Outcome(self.job, error=f"the worker died (exit code {code}{hint})")

    def end(self) -> None:
        """End the process, whatever it does."""
        self.pipe.close()
        self.process.terminate()
        self.process.join()


class LocalWorkers:
    """``count`` processes of this machine; all end with the context, or with this process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._hands: list[_Hand] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hand in self._hands:
            hand.end()
        self._hands = []

    def run(self, queue: JobQueue) -> Iterator[Outcome]:
        """Do every job of a queue; a worker that died is replaced."""
        idle = [hand for hand in self._hands if hand.process.is_alive()]
        busy: dict[Any, _Hand] = {}
        while True:
            while len(busy) < self.count and (job := queue.take(idle[0].group if idle else None)):
                hand = idle.pop(0) if idle else self._hire()
                hand.give(job)
                busy[hand.pipe] = hand
            if not busy:
                return
            for pipe in wait(list(busy)):
                hand = busy.pop(pipe)
                outcome = hand.result()
                if hand.process.is_alive():
                    idle.append(hand)
                yield outcome

    def _hire(self) -> _Hand:
        hand = _Hand()
        self._hands.append(hand)
        return hand


class RayWorkers:
    """Tasks of a Ray cluster, ``count`` at a time; without an address Ray starts on this machine.

    Args:
        count: Jobs at a time; None takes the cluster's processors.
        address: Of a running cluster (``auto``, ``ray://HOST:10001``), or None.
        threads: Processors a job needs.
        gpus: GPUs a job needs.

    Raises:
        ConfigError: Ray is not installed, or there is no cluster at the address.
    """

    def __init__(
        self, count: int | None, address: str | None, threads: int = 1, gpus: float = 0
    ) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would call home
        try:
            import ray
        except ImportError as error:
            told = "launcher=ray needs Ray: pip install 'jepa_wm[ray]'"
            raise ConfigError(told) from error
        os.environ.setdefault("RAY_TQDM_PATCH_PRINT", "0")  # print is not Ray's to replace
        here: dict[str, Any] = {}
        if address is None:
            here = {"num_cpus": count, "object_store_memory": OBJECT_STORE}
        try:
            ray.init(
                address=address, include_dashboard=None if address else False,
                log_to_driver=False, logging_level=logging.ERROR, **here,
            )  # fmt: skip
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            told = " ".join(str(error).split())
            raise ConfigError(f"launcher=ray, ray_address={address}: {told}") from error
        self.count = count or max(1, int(ray.cluster_resources().get("CPU", 1)) // threads)
        self._ray, self._call = (
            ray,
            ray.remote(num_cpus=threads, num_gpus=gpus, max_retries=0)(attempt),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ray.shutdown()

    def run(self, queue: JobQueue) -> Iterator[Outcome]:
        """Do every job of a queue."""
        busy: dict[Any, Job] = {}
        while True:
            while len(busy) < self.count and (job := queue.take()):
                busy[self._call.remote(job)] = job
            if not busy:
                return
            done, _ = self._ray.wait(list(busy), num_returns=1)
            job = busy.pop(done[0])
            try:
                yield self._ray.get(done[0])
            except self._ray.exceptions.RayError as error:
                told = " ".join(str(error).split())
                yield Outcome(job, error=f"the worker died: {told}")


Workers = LocalWorkers | RayWorkers


def make_workers(
    launcher: str, count: int | None, address: str | None, threads: int, gpus: float = 0
) -> Workers:
    """Return the workers of a launcher.

    Args:
        launcher: ``local`` or ``ray``.
        count: Of workers; None is one for every ``threads`` processors.
        address: Of a Ray cluster, or None.
        threads: Of each.
        gpus: Of each; for Ray, which hides what was not asked for.

    Raises:
        ConfigError: the launcher is unknown, or is not to be had.
    """
    if launcher == "ray":
        return RayWorkers(count, address, threads, gpus)
    if launcher != "local":
        raise ConfigError(f"launcher={launcher!r} is unknown; use local or ray")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return LocalWorkers(count or max(1, (cores or 1) // threads))
