"""Make tworoom.npz: transitions and pictures of stable-worldmodel's TwoRoom.

Run: ``python tests/golden/make_tworoom.py CHECKOUT`` with a checkout of
github.com/galilai-group/stable-worldmodel. Nothing but its ``envs/two_room/env.py`` is used; what
that imports of the rest (its variation spaces) is stood in for by the values below.
"""

import sys
import types
from pathlib import Path

import numpy as np
import torch

OUT = Path(__file__).parent / "tworoom.npz"
VARIANTS = (  # speed, vertical wall, thickness, doors (centre, half width)
    (5.0, 1, 10, ((49, 14),)),
    (10.5, 1, 41, ((49, 8),)),
    (3.3, 0, 15, ((100, 1), (40, 12), (200, 21))),
)
COUNT, FRAMES = 160, 2


class Value:
    def __init__(self, value):
        self.value = value


def reference(checkout):
    stand_in = types.ModuleType("stable_worldmodel")
    stand_in.spaces = types.ModuleType("stable_worldmodel.spaces")
    sys.modules |= {"stable_worldmodel": stand_in, "stable_worldmodel.spaces": stand_in.spaces}
    path = Path(checkout) / "stable_worldmodel/envs/two_room/env.py"
    names = {"__name__": "two_room"}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names["TwoRoomEnv"]


def make(kind, speed, axis, thickness, doors):
    env = kind.__new__(kind)
    line = torch.arange(224, dtype=torch.float32)
    env.grid_y, env.grid_x = torch.meshgrid(line, line, indexing="ij")
    padded = [*doors, *[(49, 14)] * (3 - len(doors))]
    dot = {"radius": Value(np.array([7.0], np.float32))}
    env.variation_space = {
        "agent": dot | {"color": Value((255, 0, 0)), "speed": Value(np.array([speed], np.float32))},
        "target": dot | {"color": Value((0, 255, 0))},
        "wall": {"color": Value((0, 0, 0)), "thickness": Value(thickness), "axis": Value(axis)},
        "door": {
            "color": Value((255, 255, 255)),
            "number": Value(len(doors)),
            "size": Value(np.array([half for _, half in padded])),
            "position": Value(np.array([centre for centre, _ in padded])),
        },
        "background": {"color": Value((255, 255, 255))},
        "rendering": {"render_target": Value(0)},
    }
    env.render_target_flag = False
    env.target_position = torch.zeros(2)
    env._cache_params()
    return env


def step(env, place, action):
    speed = float(env.variation_space["agent"]["speed"].value.item())
    before = torch.tensor(place)
    after = before + torch.clamp(torch.tensor(action), -1.0, 1.0) * speed
    return env._apply_collisions(before, after).numpy()


def draw(env, place, goal):
    env.render_target_flag = goal is not None
    env.target_position = torch.zeros(2) if goal is None else torch.tensor(goal)
    return env._render_frame(torch.tensor(place)).numpy().transpose(1, 2, 0)


def main():
    kind, rng, stored = reference(sys.argv[1]), np.random.default_rng(0), {}
    for index, variant in enumerate(VARIANTS):
        env = make(kind, *variant)
        places = rng.uniform(14, 210, (COUNT, 2)).astype(np.float32)
        near = rng.uniform(88, 136, COUNT).astype(np.float32)
        places[: COUNT // 2, 1 - variant[1]] = near[: COUNT // 2]  # at the wall
        doors = rng.choice([centre for centre, _ in variant[3]], COUNT // 4)
        along = doors + rng.uniform(-20, 20, COUNT // 4)
        places[: COUNT // 4, variant[1]] = np.clip(along, 21, 203)  # at a door
        actions = rng.normal(0, 0.8, (COUNT, 2)).astype(np.float32)
        stored[f"places_{index}"], stored[f"actions_{index}"] = places, actions
        after = [step(env, *pair) for pair in zip(places, actions, strict=True)]
        stored[f"after_{index}"] = np.stack(after)
        frames = [draw(env, place, goal) for place, goal in
                  zip(places[:FRAMES], [None, places[9]], strict=True)]  # fmt: skip
        stored[f"frames_{index}"] = np.stack(frames)
    np.savez_compressed(OUT, **stored)
    print(OUT, OUT.stat().st_size)


if __name__ == "__main__":
    main()
