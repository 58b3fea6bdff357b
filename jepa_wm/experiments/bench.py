"""A benchmark: cells cut into jobs, jobs done by workers, records kept as they come.

One process writes; whoever ran an episode, its record is the same. What an interrupt leaves is gone
on with by the same call on the same folder.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from jepa_wm.control.episode import save_episode
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.bench_cells import Planned, plan_cells
from jepa_wm.experiments.bench_folder import open_folder, write_failure
from jepa_wm.experiments.bench_records import EpisodeRecord, append_record, read_records
from jepa_wm.experiments.origins import tell_strange
from jepa_wm.experiments.parts import PLANNER
from jepa_wm.experiments.precision import Pair, Priced, pairs, price, row_of
from jepa_wm.experiments.shards import Ran, Shard, run_shard
from jepa_wm.experiments.workers import Job, JobQueue, Outcome, Workers, make_workers

SHARE = 4  # jobs of a cell for every worker: the more, the less one of them waits at the end
PRECISION = "precision"


@dataclass
class Bench:
    """A benchmark under way.

    Attributes:
        planned: Its cells.
        out: Its folder.
        failures: Cells (and ``precision``) that failed, with their errors.
    """

    planned: Sequence[Planned]
    out: Path
    failures: dict[str, str] = field(default_factory=dict)

    def folder(self, cell: str) -> Path:
        """Return where a cell lies."""
        return self.out / "cells" / cell

    def records(self, cell: str) -> Sequence[EpisodeRecord]:
        """Return what a cell has so far."""
        return read_records(self.folder(cell))

    def run_cells(self, workers: Workers) -> None:
        """Run every episode that is not there yet, the longest cells first."""
        groups, done, total = {}, 0, 0
        for one in sorted(self.planned, key=lambda one: -one.weight):
            ran = {record.id for record in self.records(one.cell.id)}
            left = [index for index in one.ids if index not in ran]
            size = min(one.options["num_envs"], -(-len(one.ids) // (SHARE * workers.count)))
            groups[one.cell.id] = [
                _job(one, left[at : at + size]) for at in range(0, len(left), size)
            ]
            done, total = done + len(one.ids) - len(left), total + len(one.ids)
        queue = JobQueue(groups)
        with _bar(total, "episode", done) as bar:
            for outcome in workers.run(queue):
                bar.set_description_str(outcome.job.group)
                bar.update(len(outcome.job.argument.ids))
                if outcome.error is not None:
                    self._fail(outcome, queue)
                    continue
                for record in outcome.value.records:
                    append_record(self.folder(outcome.job.group), record)

    def finish(self, workers: Workers, film: bool, precision: bool) -> None:
        """Film the first success and the first failure of every planner; compare precisions."""
        wanted = pairs([one.options for one in self.planned if one.policy == PLANNER])
        if not precision or (self.out / "precision.json").exists():
            wanted = []
        probes = {
            _key(probe.options): probe for one in wanted for probe in (one.probe, one.reference)
        }
        groups = {key: [Job(key, price, probe)] for key, probe in probes.items()}
        groups |= {one.cell.id: self._films(one) for one in self.planned} if film else {}
        queue, priced = JobQueue(groups), dict[str, Priced]()
        with _bar(sum(map(len, groups.values())), "job") as bar:
            bar.set_description_str("films and precision")
            for outcome in workers.run(queue):
                bar.update()
                if isinstance(outcome.value, Ran):
                    self._keep_film(outcome.job.group, outcome.value)
                elif isinstance(outcome.value, Priced):
                    priced[outcome.job.group] = outcome.value
                else:
                    self._fail(outcome, queue)
        self._write_precision(wanted, priced)

    def _films(self, one: Planned) -> list[Job]:
        """Return the jobs that film a cell: the first success and the first failure."""
        records = self.records(one.cell.id)
        if one.policy != PLANNER or one.cell.id in self.failures:
            return []
        ran = [record for record in records if not record.presolved]
        first = [next((r.id for r in ran if r.success is wanted), None) for wanted in (True, False)]
        folder = self.folder(one.cell.id) / "episodes"
        return [
            _job(one, [index], is_filmed=True)
            for index in first
            if index is not None and not (folder / f"episode_{index:04d}.json").exists()
        ]

    def _keep_film(self, cell: str, ran: Ran) -> None:
        """Keep filmed episodes; on a CPU each must be what it was the first time.

        A GPU rounds by the size of a batch: there a film need only end as its record does.
        """
        known = {record.id: record for record in self.records(cell)}
        (device,) = {one.options["device"] for one in self.planned if one.cell.id == cell}
        for record, episode in zip(ran.records, ran.episodes, strict=True):
            first = known[record.id]
            if device == "cpu" and _timeless(record) != _timeless(first):
                self._note(cell, f"episode {record.id} was another when it was run again")
            elif record.success == first.success:
                save_episode(episode, self.folder(cell) / "episodes")
            else:
                tqdm.write(
                    f"no film   {cell}: episode {record.id} ended otherwise", file=sys.stderr
                )

    def _write_precision(self, wanted: Sequence[Pair], priced: Mapping[str, Priced]) -> None:
        keys = [(one, _key(one.probe.options), _key(one.reference.options)) for one in wanted]
        rows = [
            row_of(one, priced[ours], priced[theirs])
            for one, ours, theirs in keys
            if ours in priced and theirs in priced
        ]
        if rows and PRECISION not in self.failures:
            text = json.dumps([row for row in rows if row is not None], indent=1)
            (self.out / "precision.json").write_text(text + "\n", encoding="utf-8")

    def _fail(self, outcome: Outcome, queue: JobQueue) -> None:
        """Note an error; what waits of the same cell would meet it too."""
        cell = outcome.job.group
        queue.drop(cell)
        self._note(cell, str(outcome.error), outcome.details)

    def _note(self, cell: str, error: str, details: str = "") -> None:
        is_cell = any(one.cell.id == cell for one in self.planned)
        name = cell if is_cell else PRECISION
        if name in self.failures:
            return
        self.failures[name] = error
        tqdm.write(f"failed    {name}: {error}", file=sys.stderr)
        if is_cell:
            write_failure(self.folder(cell), error, details)


def run_bench(words: Sequence[str], settings: Mapping[str, Any]) -> Bench:
    """Run a benchmark, or what is left of it.

    Args:
        words: Overrides of ``conf/plan.yaml``; commas cross.
        settings: Plain values of ``conf/bench.yaml``.

    Raises:
        ConfigError: something cannot be run, or the folder holds something else.
    """
    check_settings(settings)
    planned = plan_cells(words, settings)
    needs_gpu = any(one.options["device"].startswith("cuda") for one in planned)
    count, address = settings["workers"], settings["ray_address"]
    if needs_gpu and settings["launcher"] == "local":
        count = count or 1  # each would load its own copy of the model
    with make_workers(
        settings["launcher"], count, address, settings["threads"], float(needs_gpu)
    ) as workers:
        bench = Bench(planned, open_folder(settings["out"], planned))
        _announce(bench, workers, settings)
        try:
            bench.run_cells(workers)
            bench.finish(workers, settings["video"], settings["precision"])
        except KeyboardInterrupt:
            print(f"finished episodes are kept; go on with out={bench.out}", file=sys.stderr)
            raise
    return bench


def check_settings(settings: Mapping[str, Any]) -> None:
    """Refuse values of ``conf/bench.yaml`` that are none of their kind.

    Raises:
        ConfigError: one is.
    """
    for name in ("exact_costs", "precision", "video", "cost"):
        if type(settings[name]) is not bool:
            raise ConfigError(f"{name}={settings[name]!r} must be true or false")
    for name, none in (("workers", "null or "), ("threads", "")):
        value = settings[name]
        if not (none and value is None) and (type(value) is not int or value < 1):
            raise ConfigError(f"{name}={value!r} must be {none}a whole number >= 1")
    if settings["ray_address"] is not None and settings["launcher"] != "ray":
        raise ConfigError("ray_address is for launcher=ray")


def _announce(bench: Bench, workers: Workers, settings: Mapping[str, Any]) -> None:
    done = sum(len(bench.records(one.cell.id)) for one in bench.planned)
    total = sum(len(one.ids) for one in bench.planned)
    left = f", {done} of them done" if done else ""
    print(f"cells     {len(bench.planned)}, {total} episodes{left}")
    print(
        f"workers   {workers.count} ({settings['launcher']}), {settings['threads']} thread(s) each"
    )
    tell_strange(*(one.cell.model for one in bench.planned))
    print(f"results   {bench.out}", flush=True)


def _job(one: Planned, ids: Sequence[int], is_filmed: bool = False) -> Job:
    shard = Shard(options=one.options, policy=one.policy, ids=tuple(ids), is_filmed=is_filmed)
    return Job(one.cell.id, run_shard, shard)


def _key(options: Mapping[str, Any]) -> str:
    return json.dumps(options, sort_keys=True)


def _timeless(record: EpisodeRecord) -> EpisodeRecord:
    """Return a record without what may differ between two runs of an episode."""
    return replace(record, seconds={}, worker="", peak_memory=0)


def _bar(total: int, unit: str, done: int = 0) -> "tqdm[Any]":
    return tqdm(total=total, initial=done, unit=unit, file=sys.stderr, smoothing=0.1)
