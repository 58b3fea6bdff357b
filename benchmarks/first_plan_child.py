"""The process that ``first_plan.py`` times; prints one JSON object.

Run by it: ``python benchmarks/first_plan_child.py BEGAN MODEL PLANNER DTYPE THREADS``, BEGAN being
``time.time()`` when it was started. What is imported is imported inside ``measure``, under the
clock.
"""

import json
import sys
import time

LATER = 3  # plans after the first


def measure(model: str, planner: str, dtype: str, threads: int) -> dict[str, float]:
    """Import, load and plan; return seconds by part, and those of later plans."""
    marks = {"interpreter": time.time()}
    import torch

    marks["torch"] = time.time()
    import gymnasium
    import numpy as np

    from jepa_wm.experiments.setup import load_agent
    from jepa_wm.runtime import resolve_dtype

    torch.set_num_threads(threads)
    marks["package"] = time.time()
    device, space = torch.device("cpu"), gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    given = {"planner": planner, "dtype": resolve_dtype(dtype, device)}
    agent = load_agent(model, space, device, **given)
    marks["load"] = time.time()
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (2 + LATER, 1, 224, 224, 3), np.uint8)
    agent.reset(frames[0], [0])
    agent.act(frames[1])
    marks["plan"] = time.time()
    cpu = time.process_time()
    later = []
    for frame in frames[2:]:
        began = time.time()
        agent.reset(frames[0], [0])
        agent.act(frame)
        later.append(time.time() - began)
    times = [float(sys.argv[1]), *marks.values()]
    parts = dict(zip(marks, np.diff(times).tolist(), strict=True))
    return parts | {
        "later": float(np.median(later)),
        "total": times[-1] - times[0],
        "cpu": cpu,
    }


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[2:5], int(sys.argv[5]))))
