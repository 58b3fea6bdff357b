"""What a run refuses in one line: the option, what was found, what would be right."""

import pytest

from jepa_wm import energy, plan, rollout
from jepa_wm.bench import split_words
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.bench import run_bench
from jepa_wm.experiments.origins import tell_strange
from jepa_wm.launch import compose

DOT = ["model=simulator", "planner.iterations=1"]
WHOLE = "a whole number$"


def refused(leaf, words, text):
    """Run a command, which must end in an error of one line."""
    name = leaf.__name__.rpartition(".")[2]
    with pytest.raises(ConfigError, match=text) as caught:
        leaf.main(compose(name, words)[0])
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("env=wall env.wall_x=x", f"^env: wall_x='x' must be 14 to 50 px, {WHOLE}"),
        ("env=wall env.wall_x=32.5", f"^env: wall_x=32.5 must be 14 to 50 px, {WHOLE}"),
        ("env=wall env.reference_nan=1", "^env: reference_nan=1 must be true or false$"),
        ("env=tworoom env.rooms.speed=.nan", r"speed='.nan' must be 1.75 to 10.5$"),
        ("env=tworoom env.rooms.speed=nan", r"speed=nan must be 1.75 to 10.5$"),
        ("env=tworoom env.rooms.thickness=x", f"thickness='x' must be 7 to 41, {WHOLE}"),
        ("env=tworoom env.rooms.doors=[[x,14]]", r"door \['x', 14\] must be a centre, 0 to 223"),
        ("env=tworoom env.rooms.doors=x", "doors='x' must be 1 to 3$"),
        ("env=pusht env.draw_contacts=x", "^env: draw_contacts='x' must be true or false$"),
        ("env=pusht env.block_scale=x", "^env: block_scale='x' must be a positive number"),
        ("env=pusht env.block_scale=1000", "^env: block_scale=1000: .* choose a smaller one, 30"),
    ],
)
def test_settings_of_an_environment(word, text):
    refused(plan, [*word.split(), *DOT], text)


@pytest.mark.parametrize("env", ["pusht", "tworoom", "wall", "maze", "reach"])
@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("render_size=x", f"^env: render_size='x' must be .*, {WHOLE}"),
        ("render_size=true", f"^env: render_size=True must be .*, {WHOLE}"),
        ("terminate=x", "^env: terminate='x' must be true or false$"),
    ],
)
def test_what_every_environment_has(env, word, text):
    refused(plan, [f"env={env}", f"env.{word}", *DOT], text)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["task.measures=[]"], r"^task.measures=\[\] must be a list of at least one \{key"),
        (["task.measures=3"], "^task.measures=3 must be a list"),
        (["task.measures=[{key: a, name: b}]"], "^task.measures: .*'name': 'b'.* must be {key"),
        (
            ["task.measures=[{key: a, label: b, unit: c, scale: x}]"],
            "^task.measures: .*numbers scale",
        ),
        (["task.measures=[{key: a, label: 3, unit: c}]"], "^task.measures: .*'label': 3.* must be"),
        (["task.play=null"], "^task.play=null names nothing to build; it must be a mapping"),
    ],
)
def test_settings_of_a_task(words, text):
    refused(plan, ["env=wall", *DOT, *words], text)


@pytest.mark.parametrize("env", ["pusht", "tworoom", "wall", "maze"])
def test_a_planner_of_an_arm_elsewhere(env):
    words = [f"env={env}", "model=simulator", "planner=jepa_wms_droid"]
    refused(plan, words, "^init_std has 7 numbers, the solver action 10; give one number for all")


@pytest.mark.parametrize("leaf", [rollout, energy])
def test_a_folder_that_cannot_be_made_is_told_before_the_work(leaf, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(leaf, "load_brain", lambda *_: pytest.fail("the work had begun"))
    words = ["model=simulator", f"out={tmp_path / 'file' / 'below'}"]
    refused(leaf, words, "below: no folder can be made there .*file is a file.; choose another")


def test_a_rollout_tells_that_its_model_is_from_elsewhere(capsys, tmp_path):
    words = ["env=tworoom", "model=lewm.gguf", "rollouts=2", "bank=8", "horizon=2"]
    rollout.main(compose("rollout", [*words, f"out={tmp_path / 'out'}"])[0])
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note ")]
    assert len(told) == 1 and "trained in" in told[0], told


def test_a_benchmark_tells_it_once_a_model(capsys, tmp_path):
    words = ["env=tworoom", "model=lewm.gguf,lewm-tworoom.gguf", "baselines=false", "episodes=1",
             "planner=random_shooting", "planner.num_samples=4", "budget=5",
             "goal_offset=5"]  # fmt: skip
    own = [f"out={tmp_path / 'out'}", "workers=1", "video=false", "precision=false"]
    run_bench(words, split_words(own)[0])
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note ")]
    assert len(told) == 1 and told[0].startswith("note      lewm.gguf: the model was trained in")


def test_models_at_home_have_no_note(capsys):
    tell_strange({"name": "a.gguf", "strange": None}, {"name": None})
    assert capsys.readouterr().out == ""
