"""Forged folders of benchmarks: cells and records as a run would have left them."""

import numpy as np

from jepa_wm.experiments.bench_records import Cell, EpisodeRecord, append_record, write_cell

MEASURES = [
    {"key": "block_err", "label": "block", "unit": "px", "threshold": 20.0},
    {"key": "angle_err", "label": "angle", "unit": "deg", "scale": 57.3, "threshold": 20.0},
]


def make_cell(number, axes, *, env="pusht", episodes=4, dtype="bfloat16", **protocol):
    """A cell as the runner writes it; its episodes are those of its seed."""
    seed = int(axes.get("seed", 0))
    told = {
        "label": "own*(episodes)", "version": 1, "environment": {"id": env}, "goal": "play",
        "goals": None, "goal_offset": 25, "budget": 50, "success": "success_pose", "hold": 1,
        "success_at": "any_step", "stop_on_success": True, "replace_presolved": False,
        "episodes": episodes, "seed": seed, "planner_seed": int(axes.get("planner_seed", seed)),
        "episodes_hash": f"episodes{seed}", "hash": f"hash{seed}",
        "criterion": "success_pose at any step within 50",
    }  # fmt: skip
    told |= protocol
    words = "-".join(value.replace("/", "_") for value in axes.values())
    preset = {"name": axes.get("planner", axes.get("policy")), "env": env}
    if "planner" in axes:
        preset["settings"] = "5e771465"
    return Cell(
        id=f"{number:03d}-{''.join(c if c.isalnum() else '_' for c in words)[:40]}-0123abcd",
        axes=axes,
        options={
            "preset": {"env": env}, "budget": told["budget"],
            "task": {"measures": MEASURES, "fps": 10},
        },
        protocol=told,
        model={"name": axes.get("model"), "sha256": "85a51ada4e67" * 5, "family": "lewm"},
        preset=preset,
        versions={"jepa_wm": "0.1.0", "torch": "2.14.1"},
        machine={"platform": "Linux", "processor": "EPYC", "threads": 1, "device": "cpu",
                 "dtype": dtype},
    )  # fmt: skip


def make_record(id, success, **fields):
    """An episode: 5 solves of 100 candidates, 2 s of planning; success at step 25."""
    record = {
        "id": id, "seed": 1000 + id, "success": success, "presolved": False,
        "steps": 25 if success else 50, "success_step": 25 if success else None,
        "decisions": 5, "evaluations": 500, "final": {"block": 10.0 + id, "angle": 5.0},
        "mean_cost": [1.1], "best_cost": [1.0], "mean_cost_fp32": [1.0], "best_cost_fp32": [1.0],
        "seconds": {"encode": 0.5, "plan": 2.0, "environment": 0.25, "render": 0.25},
        "worker": "host:7", "peak_memory": 2**30,
    }  # fmt: skip
    return EpisodeRecord(**(record | fields))


def add_cell(out, cell, records, failure=None):
    """Write a cell with its records; ``records`` may be a string such as "10p1": p is presolved."""
    folder = write_cell(cell, out)
    if isinstance(records, str):
        records = [
            make_record(i, letter == "1", presolved=letter == "p")
            for i, letter in enumerate(records)
        ]
    for record in records:
        append_record(folder, record)
    if failure:
        (folder / "failure.txt").write_text(failure + "\n")
    return folder


def add_baselines(out, number, count, env="pusht", seed=0):
    """Random, no-op and replay: no solves, no candidates."""
    rng = np.random.default_rng(3)
    idle = {"decisions": 0, "evaluations": 0, "mean_cost": [], "best_cost": [],
            "mean_cost_fp32": [], "best_cost_fp32": [],
            "seconds": {"encode": 0.0, "plan": 0.0, "environment": 0.2, "render": 0.0}}  # fmt: skip
    for index, (policy, rate) in enumerate((("random", 0.1), ("no-op", 0.0), ("replay", 1.0))):
        cell = make_cell(number + index, {"policy": policy, "seed": str(seed)}, env=env,
                         episodes=count)  # fmt: skip
        records = [make_record(i, bool(rng.random() < rate), **idle) for i in range(count)]
        add_cell(out, cell, records)
