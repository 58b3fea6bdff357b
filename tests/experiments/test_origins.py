"""A model in an environment it was not trained in is told so; at home it is not."""

import re

import pytest
from bundle.tiny import TINY_LEWM, random_tensors

from jepa_wm import plan
from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.experiments.origins import strangeness
from jepa_wm.launch import build, compose


def told(bundle, *words):
    options, _ = compose("plan", words)
    return strangeness(bundle, options["env"]["id"], build(options["env"], "env").action_space)


@pytest.mark.parametrize(
    ("model", "words", "said"),
    [
        ("lewm.gguf", ["env=pusht"], None),
        ("lewm.gguf", ["env=tworoom"], "trained in pusht, this is jepa_wm/TwoRoom-v0"),
        ("lewm.gguf", ["env=pusht", "env.action=absolute"], r"actions of \[-1. -1.\] to .* 512"),
        ("lewm-tworoom.gguf", ["env=tworoom"], None),
        ("lewm-tworoom.gguf", ["env=tworoom", "env.action=discrete"], None),
        ("lewm-tworoom.gguf", ["env=wall"], "trained in tworoom"),
        ("vjepa2-ac.gguf", ["env=push"], None),
        ("vjepa2-ac.gguf", ["env=recorded"], "trained in jepa_wm/Reach-v0"),
    ],
)
def test_bundled_models_know_their_home(model, words, said):
    found = told(Bundle.open(find_bundle(model)), *words)
    assert found is None if said is None else re.search(said, found or ""), found


def test_a_bundle_that_tells_nothing_is_a_stranger_nowhere(tmp_path):
    bundle = Bundle.open(write_bundle(tmp_path / "a.gguf", TINY_LEWM, random_tensors(TINY_LEWM, 0)))
    assert told(bundle, "env=maze") is None


def test_a_run_says_so(tmp_path, capsys):
    words = ["env=tworoom", "episodes=1", "budget=5", "video=none", "baselines=false",
             "planner=random_shooting", "planner.num_samples=4", "threads=1",
             f"out={tmp_path / 'a'}"]  # fmt: skip
    options, chosen = compose("plan", words)
    plan.main(options | {"preset": chosen, "overrides": words})
    assert "note      the model was trained in pusht" in capsys.readouterr().out
