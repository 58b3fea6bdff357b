"""Counted arithmetic is the arithmetic that is done."""

import dataclasses

import gymnasium
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from jepa_wm.bench import split_words
from jepa_wm.control.interfaces import Context
from jepa_wm.experiments.bench_costs import price_all
from jepa_wm.experiments.cost_model import Costs, Stage, measure_costs
from jepa_wm.experiments.setup import load_agent
from jepa_wm.experiments.work import Speed, Work, count, probe
from jepa_wm.models import load_world_model
from jepa_wm.models.packed import linear

CPU = torch.device("cpu")


def test_products_are_counted_as_pytorch_counts_them():
    layers = nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 8, bias=False))
    x = torch.randn(5, 7, 24)

    def run():
        layers(x)
        torch.baddbmm(torch.zeros(2, 4, 5), torch.randn(2, 4, 6), torch.randn(2, 6, 5))

    for mode in (torch.no_grad, torch.enable_grad):
        with mode(), FlopCounterMode(display=False) as theirs:
            run()
        with mode():
            assert count(run).flops == theirs.get_total_flops()


def test_attention_is_two_products():
    q, k = torch.randn(2, 3, 11, 8), torch.randn(2, 3, 13, 8)
    done = count(lambda: F.scaled_dot_product_attention(q, k, k))
    assert done.flops == 2 * (2 * 2 * 3 * 11 * 13 * 8)


def test_fused_products_count_like_plain_ones():
    x, weight = torch.randn(5, 24), torch.randn(48, 24)
    fused = count(lambda: linear(x, weight, None, "gelu_erf"))
    assert fused.flops == count(lambda: F.linear(x, weight)).flops == 2 * 5 * 24 * 48
    assert fused.bytes == 4 * (5 * 24 + 48 * 24 + 5 * 48)


def test_an_expanded_operand_is_read_once():
    weight = torch.randn(24, 6)
    wide = torch.randn(1, 5, 24).expand(100, 5, 24)
    narrow = count(lambda: torch.bmm(wide, weight.expand(100, 24, 6)))
    assert narrow.bytes == 4 * (5 * 24 + 24 * 6 + 100 * 5 * 6)


def test_a_rollout_grows_with_its_candidates_and_the_fast_one_does_less(tiny):
    world = load_world_model(tiny("lewm"), CPU)
    start = Context(torch.randn(1, 1, 32), torch.zeros(1, 0, world.action_dim))

    def of(roll, samples):
        return count(lambda: roll(start, torch.randn(1, samples, 5, world.action_dim))).flops

    one, two, four = (of(world.rollout, samples) for samples in (1, 2, 4))
    assert four - two == 2 * (two - one) > 0
    assert of(world.rollout_reference, 4) > 1.3 * four


def test_the_floor_is_arithmetic_over_speed():
    assert Speed(flops=2e9, bytes=1e9).floor(Work(flops=1e9, bytes=7)) == 0.5
    assert (Work(3, 4) + Work(1, 1) - Work(2, 2)).times(2) == Work(4, 6)
    speed = probe(CPU, torch.float32)
    assert 1e8 < speed.flops < 1e16 and 1e7 < speed.bytes < 1e14


def test_a_decision_is_counted_and_timed():
    env = gymnasium.make("jepa_wm.envs.pusht:jepa_wm/PushT-v0", render_mode="rgb_array")
    env.reset(seed=0)
    agent = load_agent("lewm.gguf", env.action_space, CPU, planner="random_shooting")
    agent.planner = dataclasses.replace(agent.planner, num_samples=8)
    costs = measure_costs(agent, (env.render(), None), Speed(flops=1e9, bytes=1e9))
    by_name = {stage.name: stage for stage in costs.stages}
    assert costs.evaluations == 8 + 1 and costs.horizon == 5
    whole = by_name["decision"]
    assert whole.work == by_name["encode"].work + by_name["rollout"].work
    assert whole.seconds == pytest.approx(
        sum(by_name[name].seconds for name in ("encode", "rollout", "update"))
    )
    assert whole.floor == whole.work.flops / 1e9 and whole.uncached == whole.work.bytes / 1e9
    told = costs.record()["stages"][3]
    assert told["flops"] > 0 and told["uncached_seconds"] == whole.uncached
    assert "measured / floor" in costs.table() and "uncached ms" in costs.table()


@pytest.mark.parametrize(("seconds", "below"), [(0.5, True), (1.0, False), (1.5, False)])
def test_a_stage_below_its_floor_is_told(seconds, below):
    speed = Speed(flops=1e9, bytes=1e9)
    stages = [
        Stage.of(name, Work(1e9, 4e9), speed, time) for name, time in (("a", 2), ("b", seconds))
    ]
    costs = Costs(tuple(stages), evaluations=1, horizon=1, speed=speed)
    notes = costs.notes()
    assert ([note.partition(":")[0] for note in notes] == ["b"]) == below
    assert costs.record()["notes"] == notes
    assert ("note: b: measured below the floor" in costs.table()) == below


def test_combinations_are_held_against_one_measurement_of_the_machine(capsys):
    words = ["model=lewm.gguf", "planner=random_shooting", "dtype=float32", "episodes=1",
             "objective=goal_l2_effort"]  # fmt: skip
    own, rest = split_words([*words, "cost=true"])
    found = price_all([*rest, "planner.num_samples=4,8"], own)
    again = price_all([*rest, "planner.num_samples=4"], own)
    one, other, third = (record["matmul_flops_per_second"] for record in [*found, *again])
    assert one == other != third
    assert capsys.readouterr().out.count("one decision, cpu, float32, 1 thread(s)") == 3
