"""Candidates per rollout: what is printed is what is kept to."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.chunks import GIB, Chunk, fit_chunk, settle_memory
from jepa_wm.control.mpc import MPC
from jepa_wm.control.objectives import GoalDistance
from jepa_wm.launch import build, preset_node
from jepa_wm.models import load_world_model

CPU = torch.device("cpu")


class Heavy:
    """A model one candidate of which takes 100 MiB a frame and step."""

    def candidate_bytes(self, horizon, frames):
        return 100 * 2**20 * (horizon + frames)


@pytest.mark.parametrize(("memory", "size"), [(2.0, 4), (0.1, 1), (1000, 400)])
def test_as_many_as_fit_at_most_all_and_at_least_one(memory, size):
    chunk = fit_chunk(Heavy(), 400, 2, 3, memory)
    assert chunk == Chunk(size, 500 * 2**20, int(memory * GIB))
    assert (
        str(chunk) == f"{size} candidates per rollout: about 500 MiB each, budget {memory:.3g} GiB"
    )


def test_a_model_that_does_not_say_takes_all():
    assert fit_chunk(object(), 300, 5, 3, 2.0) == Chunk(300)
    assert str(Chunk(None)) == "all candidates per rollout"


@pytest.mark.parametrize("memory", [0, -1, None, "2 GB", True, float("nan")])
def test_a_budget_that_is_none_is_refused(memory):
    with pytest.raises(ValueError, match=r"memory=.* must be auto or a number of GiB > 0"):
        settle_memory(memory, CPU)


def test_a_budget_nobody_gave_is_two_gib_on_a_cpu():
    assert settle_memory("auto", CPU) == 2.0
    assert settle_memory(3, CPU) == 3.0


@pytest.mark.gpu
def test_a_budget_nobody_gave_is_half_of_what_a_gpu_has_free():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    free = torch.cuda.mem_get_info()[0] / GIB
    assert settle_memory("auto", torch.device("cuda")) == pytest.approx(free / 2, rel=0.2)


class Largest(TorchDispatchMode):
    """The most numbers any tensor made meanwhile holds."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, torch.Tensor) and one.untyped_storage().size():
                size = one.untyped_storage().nbytes() // one.element_size()
                self.numbers = max(self.numbers, size)
        return found


def test_a_solve_never_holds_samples_times_pixels(arm):
    """Images are far larger than latents here; the largest tensor is a chunk of candidates."""
    world = load_world_model(arm(), CPU)
    node = preset_node("planner", "cem_ac") | {"num_samples": 64, "iterations": 1}
    chunk = fit_chunk(world, 64, 2, 1, 4 * world.candidate_bytes(2, 1) / GIB)
    assert chunk.size == 4
    agent = MPC(
        world_model=world, planner=build(node, "planner"), device=CPU, replan_every=1,
        objective=lambda z: GoalDistance(z, norm="l1", reduce="mean", steps="last"),
        codec=ActionCodec(block=1, mean=[0] * 7, std=[1] * 7, low=[-1] * 7, high=[1] * 7),
        history=1, chunk=chunk.size, encode_rows=1,
    )  # fmt: skip
    frames = np.zeros((1, 160, 160, 3), np.uint8)
    agent.reset(frames, [0])
    with Largest() as largest:
        agent.act(frames, np.full((1, 7), 0.3, np.float32))
    per_chunk = chunk.size * chunk.each // 4  # float32 numbers
    assert largest.numbers <= max(per_chunk, 4 * frames.size)
    assert largest.numbers < 64 * frames.size / 4


def test_the_chunk_changes_no_plan(arm):
    world = load_world_model(arm(), CPU)
    plans = []
    for chunk in (1, 7, None):
        node = preset_node("planner", "cem_ac") | {"num_samples": 20, "iterations": 2}
        agent = MPC(
            world_model=world, planner=build(node, "planner"), device=CPU, replan_every=1,
            objective=lambda z: GoalDistance(z, norm="l1", reduce="mean", steps="last"),
            codec=ActionCodec(block=1, mean=[0] * 7, std=[1] * 7, low=[-1] * 7, high=[1] * 7),
            history=1, chunk=chunk, encode_rows=1,
        )  # fmt: skip
        frames = np.arange(40 * 40 * 3, dtype=np.uint8).reshape(1, 40, 40, 3)
        agent.reset(255 - frames, [0])
        plans.append(agent.act(frames, np.full((1, 7), 0.3, np.float32)))
    assert np.abs(plans[0] - plans[2]).max() < 1e-5
    assert np.abs(plans[1] - plans[2]).max() < 1e-5
