"""What a comma on bench's command line means."""

import pytest

from jepa_wm.errors import ConfigError
from jepa_wm.experiments.crossing import cross, key_of, split_values


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("cem", ["cem"]),
        ("cem,icem,mppi", ["cem", "icem", "mppi"]),
        ("[1,2],3", ["[1,2]", "3"]),
        ("{a:1,b:{c:2,d:3}},null", ["{a:1,b:{c:2,d:3}}", "null"]),
        ('"a,b.gguf",c', ['"a,b.gguf"', "c"]),
        ("'it,s',\"o'n,e\"", ["'it,s'", '"o\'n,e"']),
        (r"a\,b,c", [r"a\,b", "c"]),
        ("range(1,5)", ["range(1,5)"]),
        ("[1,2", ["[1,2"]),
        ("'a,b", ["'a,b"]),
        ("", [""]),
    ],
)
def test_commas_inside_quotes_and_brackets_stay(text, parts):
    assert split_values(text) == parts


def test_every_combination_once_and_only_what_varies_is_an_axis():
    found = cross(["planner=cem,mppi", "env=pusht", "seed=0,1", "+planner.sizes=[1,2]"])
    assert [one.overrides for one in found] == [
        (f"planner={planner}", "env=pusht", f"seed={seed}", "+planner.sizes=[1,2]")
        for planner in ("cem", "mppi")
        for seed in (0, 1)
    ]
    assert [dict(one.axes) for one in found] == [
        {"planner": planner, "seed": seed} for planner in ("cem", "mppi") for seed in ("0", "1")
    ]


def test_nothing_to_cross_is_one_combination():
    assert [(one.overrides, dict(one.axes)) for one in cross([])] == [((), {})]
    assert cross(["~hydra"])[0].overrides == ("~hydra",)


def test_prefixes_are_no_part_of_a_key():
    assert key_of("+a.b=1") == key_of("~a.b") == key_of("++a.b=2,3") == "a.b"
    assert dict(cross(["+x=1,2"])[0].axes) == {"x": "1"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=0", "seed=1"], "seed is set twice; write seed=one,other"),
        (["planner=cem,"], "planner=cem,: a value between commas is empty"),
        (["planner=cem,mppi,cem"], "a value is there twice"),
    ],
)
def test_what_cannot_be_meant_is_refused(words, message):
    with pytest.raises(ConfigError, match=message):
        cross(words)
