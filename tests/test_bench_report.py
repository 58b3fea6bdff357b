"""The report of a benchmark: from forged folders, every number against one computed by hand."""

import contextlib
import csv
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from jepa_wm.bench import report as report_command
from jepa_wm.control.episode import Episode, save_episode
from jepa_wm.control.rates import wilson_interval
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.bench_names import names_of
from jepa_wm.experiments.bench_pairs import comparisons, front
from jepa_wm.experiments.bench_records import read_results
from jepa_wm.experiments.bench_report import write_report
from jepa_wm.experiments.bench_summary import configurations, share_at_success
from jepa_wm.experiments.bench_tables import (
    NO_CEILING,
    distance_table,
    first_table,
    pairs_table,
    protocol_table,
    ranking_table,
    regret_table,
    rounding_table,
    success_table,
    work_table,
)
from jepa_wm.experiments.text_table import SCREEN, Table

from forged_bench import add_baselines, add_cell, make_cell, make_record  # isort: skip

CEM, ICEM = ({"model": "lewm.gguf", "planner": planner} for planner in ("cem", "icem"))
HOSTILE = "<script>alert(1)<img src=x onerror=f()>|$x$ `a` \x1b[31m.gguf"
ONE_LINE = "tiny.gguf: tensor enc.blk.0.w has shape [3], its configuration asks for [4]"


def compared(out):
    return comparisons(configurations(read_results(out)))


def only(out):
    (one,) = compared(out)
    return one


# --- numbers ------------------------------------------------------------------------------------


def test_seeds_are_pooled_and_presolved_episodes_are_in_no_rate(tmp_path):
    add_cell(tmp_path, make_cell(0, CEM | {"seed": "0"}), "1p01")
    add_cell(tmp_path, make_cell(1, CEM | {"seed": "1"}), "110p")
    (cem,) = only(tmp_path).found
    assert (cem.count, cem.successes, cem.presolved, cem.expected) == (6, 4, 2, 8)
    assert cem.rate == pytest.approx(4 / 6) and cem.interval == wilson_interval(4, 6)
    assert cem.is_complete and cem.distinct == 6
    assert cem.candidates == 100  # 500 in 5 solves
    assert cem.plan_seconds == pytest.approx(2 / 5) and sum(cem.seconds.values()) == 3.0
    assert sorted(cem.finals("block")) == [10, 10, 11, 12, 12, 13]
    (row,) = success_table(only(tmp_path)).rows
    assert row == ["cem *", "66.7 % [30.0, 90.3]", "6", "100", "400", "3.00", "2 presolved"]


def test_pairs_are_matched_by_seed_and_id(tmp_path):
    """By id alone, the two planners would differ in other episodes."""
    add_cell(tmp_path, make_cell(0, CEM | {"seed": "0"}), "1100")
    add_cell(tmp_path, make_cell(1, CEM | {"seed": "1"}), "0011")
    add_cell(tmp_path, make_cell(2, ICEM | {"seed": "0"}), "1p01")
    add_cell(tmp_path, make_cell(3, ICEM | {"seed": "1"}), "0001")
    (pair,) = only(tmp_path).pairs
    assert (pair.first, pair.second) == ("cem", "icem")
    counts = pair.paired
    assert (counts.both, counts.first_only, counts.second_only, counts.neither) == (2, 1, 1, 3)
    assert counts.p_value == pair.adjusted == 1.0
    (row,) = pairs_table(only(tmp_path)).rows
    assert row[:2] == ["icem", "cem"] and row[2].startswith("+0.0 [") and row[3:5] == ["1 : 1", "7"]


def test_pairs_say_who_is_better_and_are_adjusted_for_their_number(tmp_path):
    for number, (planner, outcomes) in enumerate(
        {"cem": "1" * 10, "icem": "0" * 10, "mppi": "0" * 6 + "1" * 4}.items()
    ):
        axes = {"model": "lewm.gguf", "planner": planner}
        add_cell(tmp_path, make_cell(number, axes, episodes=10), outcomes)
    one = only(tmp_path)
    p = 2 / 2**10, 2 / 2**6, 2 / 2**4  # ten, six and four of one kind
    assert [pair.paired.p_value for pair in one.pairs] == pytest.approx(p)
    assert [pair.adjusted for pair in one.pairs] == pytest.approx([3 * p[0], 2 * p[1], p[2]])
    first = first_table(one)
    assert first.title.endswith("against cem")
    assert [row[0] for row in first.rows] == ["icem", "mppi"]
    assert first.rows[0][1].startswith("-100.0 [-100.0, ") and first.rows[0][2] == "0 : 10"
    assert [row[-1] for row in first.rows] == ["0.004", "0.031"]  # of two pairs, not of three
    assert [row[:2] for row in pairs_table(one).rows][2] == ["mppi", "icem"]


def test_only_equal_episodes_are_paired(tmp_path):
    add_cell(tmp_path, make_cell(0, CEM), "1100")
    add_cell(tmp_path, make_cell(1, ICEM, episodes_hash="another list"), "1100")
    one = only(tmp_path)
    assert len(one.found) == 2 and not one.pairs


@pytest.mark.parametrize(
    "change", [{"goal_offset": 50}, {"env": "tworoom"}, {"hold": 2}, {"stop_on_success": False}]
)
def test_another_test_is_told_apart(tmp_path, change):
    add_cell(tmp_path, make_cell(0, CEM), "1100")
    add_cell(tmp_path, make_cell(1, ICEM, **change), "1100")
    first, second = compared(tmp_path)
    assert first.test != second.test and not first.pairs and not second.pairs
    assert [one.found[0].name for one in (first, second)] == ["cem", "icem"]
    assert first.front == {"cem"} and second.front == {"icem"}


def test_an_agent_may_replan_less_often_in_the_same_test(tmp_path):
    for number, often in enumerate("15"):
        cell = make_cell(number, CEM | {"replan_every": often}, replan_every=int(often))
        add_cell(tmp_path, cell, "1100")
    assert [one.name for one in only(tmp_path).found] == ["replan_every=1", "replan_every=5"]
    assert len(only(tmp_path).pairs) == 1


def test_two_cells_of_the_same_episodes_are_refused(tmp_path):
    add_cell(tmp_path, make_cell(0, CEM), "1100")
    add_cell(tmp_path, make_cell(1, CEM), "1100")
    with pytest.raises(ConfigError, match=r"cell 001-.* holds the same episodes as 000-"):
        compared(tmp_path)


def test_planner_seeds_that_share_episodes_are_pooled_and_told(tmp_path):
    for seed in "01":
        cell = make_cell(int(seed), CEM | {"planner_seed": seed})
        add_cell(tmp_path, cell, "1100")
    one = only(tmp_path)
    assert one.found[0].count == 8 and one.found[0].distinct == 4
    assert "n counts every run" in success_table(one).note


def test_regret_is_against_the_ceiling_of_the_same_planner(tmp_path):
    ends = [make_record(i, i < 3, final={"block": 5.0 + i * i}) for i in range(4)]
    best = [make_record(i, True, final={"block": 4.0}) for i in range(4)]
    add_cell(tmp_path, make_cell(0, CEM), ends)
    add_cell(tmp_path, make_cell(1, ICEM), "0000")
    add_cell(tmp_path, make_cell(2, {"model": "simulator", "planner": "cem"}), best)
    one = only(tmp_path)
    (regret,) = one.regrets
    assert (regret.name, regret.ceiling) == ("lewm.gguf cem", "simulator cem")
    assert regret.paired.difference == 0.25
    assert regret.distance == {"block": 3.5}  # the median of 1, 2, 5, 10
    (row,) = regret_table(one).rows
    assert row[2].startswith("+25.0 [") and row[-1] == "+3.5"
    assert "simulator cem" not in one.front and "lewm.gguf cem" in one.front


def test_without_a_ceiling_it_is_said(tmp_path):
    add_cell(tmp_path, make_cell(0, CEM), "11")
    table = regret_table(only(tmp_path))
    assert not table.rows and table.note == NO_CEILING


def test_the_front_is_of_complete_runs_nobody_beats(tmp_path):
    def run(number, planner, outcomes, seconds, failure=None):
        records = [
            make_record(i, letter == "1", seconds={"plan": seconds})
            for i, letter in enumerate(outcomes)
        ]
        cell = make_cell(number, {"model": "lewm.gguf", "planner": planner})
        add_cell(tmp_path, cell, records, failure)

    run(0, "slow_best", "1111", 9.0)
    run(1, "fast", "1100", 1.0)
    run(2, "as_good_slower", "1100", 2.0)
    run(3, "unfinished", "11", 0.1)
    run(4, "broken", "1111", 0.1, "it broke")
    add_baselines(tmp_path, 5, 4)
    one = only(tmp_path)
    assert one.front == {"slow_best", "fast"}
    assert front(one.found, lambda who: 1.0) == {"slow_best"}
    remarks = {row[0]: row[-1] for row in success_table(one).rows}
    assert remarks["unfinished"] == "2 of 4 episodes" and remarks["broken"] == "failed"
    assert remarks["slow_best *"] == ""


def test_what_is_spent_after_a_success_does_not_count():
    record = make_record(0, True, steps=50, success_step=21, decisions=10)
    assert share_at_success(record) == 0.5  # the solve of steps 21 to 25 is the fifth of ten
    assert share_at_success(replace(record, steps=21)) == 1.0
    assert share_at_success(make_record(0, False)) == 1.0


def test_tables_of_distances_work_and_precision(tmp_path):
    records = [make_record(i, True, mean_cost_fp32=[1.0 + i]) for i in range(3)]
    records.append(make_record(3, False, final={"block": math.nan, "angle": math.inf}))
    add_cell(tmp_path, make_cell(0, CEM), records)
    add_cell(tmp_path, make_cell(1, ICEM, dtype="float32"), "1111")
    one = only(tmp_path)
    table = distance_table(one)
    assert table.head == ["who", "block (px)", "angle (deg)"]
    assert table.rows[0] == ["cem", "11 (11.8)", "5 (5)"]  # of 10, 11, 12
    assert work_table(one).rows[1] == [
        "icem", "25.0", "5.0", "500", "0.500", "2.000", "0.250", "0.250", "1024",
    ]  # fmt: skip
    (row,) = rounding_table(one).rows  # float32 needs none; |1.1 - x| / x of 1, 2, 3, 1
    assert row[0] == "cem" and row[1].startswith("0.28 (0.58") and row[2] == "0 (0)"
    rows = [{"env": "pusht", "model": "a/b.gguf", "dtype": "bfloat16", "max_relative": 0.25,
             "spearman": {"median": 0.9995, "min": 0.99},
             "elite_overlap": {"mean": 0.975, "min": 0.9}}]  # fmt: skip
    assert ranking_table(rows).rows == [
        ["pusht", "b.gguf", "bfloat16", "0.9995", "0.9900", "97.5", "90.0", "0.25"]
    ]
    assert len(protocol_table(one).rows) == 1


# --- names and text -----------------------------------------------------------------------------


def test_names_say_what_differs_and_no_more():
    axes = [
        {"model": "runs/a/lewm.gguf", "planner": "cem", "planner.iterations": "2"},
        {"model": "runs/b/q8.gguf", "planner": "cem", "planner.iterations": "4"},
        {"policy": "random"},
    ]
    assert names_of(axes) == ["lewm.gguf iterations=2", "q8.gguf iterations=4", "random"]
    axes[1]["model"] = "runs/b/lewm.gguf"
    assert names_of(axes)[0] == "runs/a/lewm.gguf iterations=2"
    assert names_of([CEM]) == ["cem"] and names_of([CEM, CEM]) == ["cem", "cem (2)"]


def test_a_table_fits_the_screen_whatever_its_names():
    name = "/home/me/experiments/" + "long-" * 30 + "name.gguf cem"
    head = ["who", "points below the best of them, 95 %", "n", "remark"]
    text = Table("Title", head, [[name, "+1.0 [-1.0, +2.0]", "50", ONE_LINE]], "note " * 60).text()
    lines = text.splitlines()
    assert max(map(len, lines)) <= SCREEN
    column = "".join(line[: line.find("  ")] if "  " in line else line for line in lines[3:])
    assert "cem" in column and "+1.0 [-1.0, +2.0]" in text
    assert "\x1b" not in Table("t", ["a"], [[HOSTILE]]).text()


# --- whole reports ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two tests; hostile names; a failed cell, an unfinished one, presolved episodes, films."""
    out = tmp_path_factory.mktemp("bench") / "out"
    hostile = {"model": HOSTILE, "planner": "cem"}
    filmed = add_cell(out, make_cell(0, CEM | {"seed": "0"}), "1p01")
    add_cell(out, make_cell(1, CEM | {"seed": "1"}), "11", failure=ONE_LINE)
    add_cell(out, make_cell(2, hostile | {"seed": "0"}), "1001")
    add_cell(out, make_cell(3, hostile | {"seed": "1"}), [])
    add_baselines(out, 4, 4)
    add_cell(out, make_cell(7, CEM | {"seed": "0"}, env="tworoom"), "01")
    for index, success in ((0, True), (2, False), (3, True)):
        frames = np.zeros((6, 32, 32, 3), np.uint8) + np.arange(6, dtype=np.uint8).reshape(
            6, 1, 1, 1
        )
        errors = {"block_err": np.linspace(50, 10, 6), "angle_err": np.ones(6)}
        episode = Episode(
            id=index, seed=index, success=success, presolved=False, goal=frames[0], frames=frames,
            actions=np.zeros((5, 2), np.float32), rewards=np.zeros(5), metrics=errors,
        )  # fmt: skip
        save_episode(episode, filmed / "episodes")
    return out


@pytest.fixture(scope="module")
def report(folder):
    """Its summary, its pages, what was printed."""
    with contextlib.redirect_stdout(io.StringIO()) as screen:
        found = write_report(folder)
    pages = [(folder / f"report.{kind}").read_text() for kind in ("html", "md")]
    return found, *pages, screen.getvalue()


def test_the_summary_is_plain_json_without_nan(folder, report):
    told = report[0]
    json.dumps(told, allow_nan=False)
    assert json.loads((folder / "bench.json").read_text()) == told
    assert told["folder"] == str(folder) and len(told["cells"]) == 8
    by_name = {(one["test"][:5], one["name"]): one for one in told["configurations"]}
    cem = by_name["pusht", "lewm.gguf"]
    assert (cem["n"], cem["successes"], cem["expected"], cem["front"]) == (5, 4, 8, False)
    assert cem["rate"] == 0.8 and cem["evaluations"] == 500 and cem["seconds"]["plan"] == 2
    assert [round(cem[end], 6) for end in ("low", "high")] == [
        float(f"{end:.6g}") for end in wilson_interval(4, 5)
    ]
    assert by_name["pusht", "random"]["evaluations_per_solve"] is None
    (pair,) = told["paired"]
    assert (pair["n"], pair["only_first"], pair["only_second"], pair["p"]) == (3, 0, 0, 1)
    assert list(told["failures"].values()) == [ONE_LINE]


def test_csv_reads_back(folder, report):
    with (folder / "bench.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["cell"][:4] for row in rows] == [f"00{i}-" for i in range(8)] + ["pool"] * 2
    first, *_, pooled, _ = rows
    assert (first["n"], first["successes"], first["presolved"], first["seed"]) == (
        "3",
        "2",
        "1",
        "0",
    )
    assert float(first["rate"]) == pytest.approx(2 / 3, abs=1e-6)
    assert float(first["seconds plan"]) == 2 and float(first["final block median"]) == 12
    assert first["protocol"] == "hash0" and pooled["protocol"] == ""
    assert rows[1]["failure"] == ONE_LINE and rows[3]["rate"] == "" and rows[3]["model"] == HOSTILE
    assert (pooled["n"], pooled["expected"]) == ("5", "8")


class Tags(HTMLParser):
    """Every tag with its attributes, and the text between."""

    def __init__(self, page):
        super().__init__()
        self.found, self.text, self.open = [], "", []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_html_needs_nothing_else_and_runs_nothing(report):
    page = Tags(report[1])
    assert page.open == []
    names = {tag for tag, _ in page.found}
    assert names <= {
        "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "pre", "table", "tr",
        "th", "td", "br", "p", "div", "figure", "figcaption", "img", "video", "details", "summary",
    }  # fmt: skip
    allowed = {"lang", "charset", "class", "alt", "src", "controls", "muted", "loop"}
    assert {name for _, attrs in page.found for name in attrs} <= allowed
    sources = [attrs["src"] for _, attrs in page.found if "src" in attrs]
    assert {one.partition(",")[0] for one in sources} == {
        "data:image/png;base64", "data:video/mp4;base64",
    }  # fmt: skip
    assert "http" not in page.text and "url(" not in page.text and "\x1b" not in page.text
    assert HOSTILE.replace("\x1b", " ") in page.text
    assert ONE_LINE in page.text and "6 of 8 episodes" in page.text


def test_markdown_links_what_is_there_and_escapes(folder, report):
    page = report[2]
    places = re.findall(r"\]\(<?([^)>]+)>?\)", page)
    assert len(places) > 10 and all((folder / place).is_file() for place in places)
    assert "<script" not in page.replace("\\<script", "") and "\x1b" not in page
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert any("\\|" in row for row in rows)
    assert page.count("## tworoom: ") == page.count("## pusht: ") == 1


def test_each_test_has_figures_of_its_own(folder, report):
    names = {path.name for path in (folder / "figures").iterdir()}
    first = {"success-1", "budget-1", "price-1", "pairs-1", "final-1", "seconds-1"}
    second = {"success-2", "budget-2", "price-2", "final-2", "seconds-2"}  # one planner: no pair
    assert names == {f"{name}.{kind}" for name in first | second for kind in ("png", "svg")}


def test_the_first_success_and_failure_of_a_configuration_are_shown(report):
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", report[1])
    films = [caption for caption in captions if re.search(r"episode \d", caption)]
    assert films == [f"lewm.gguf, seed 0, episode {end}" for end in ("0: success", "2: failure")]


def test_the_screen_is_for_people(report):
    *lines, folder, page = report[3].splitlines()
    assert max(map(len, lines)) <= SCREEN and "\x1b" not in report[3]
    assert any(line.startswith("failed    001-") for line in lines)
    assert folder.startswith("results   ") and page.endswith("report.html")
    assert lines[1].startswith("pusht: goal 25 steps ahead, success_pose at any step within 50 [")


def test_one_cell_alone_is_a_report_and_the_command_makes_it_again(tmp_path):
    add_cell(tmp_path, make_cell(0, CEM), "1")
    told = write_report(tmp_path)
    assert told["paired"] == [] and told["configurations"][0]["rate"] == 1
    assert not (tmp_path / "figures" / "pairs.png").exists()
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.suffix in (".csv", ".md", ".png")}
    done = subprocess.run(
        [sys.executable, "-m", "jepa_wm.bench", f"report={tmp_path}"],
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0 and done.stderr == ""
    assert json.loads(done.stdout.splitlines()[-1]) == told
    assert {path: path.read_bytes() for path in before} == before


def test_nothing_run_yet_is_a_report(tmp_path):
    add_cell(tmp_path, make_cell(0, CEM), [], failure="it broke")
    add_cell(tmp_path, make_cell(1, ICEM), "pp")
    told = write_report(tmp_path)
    assert [one["rate"] for one in told["configurations"]] == [None, None]
    assert "it broke" in (tmp_path / "report.html").read_text()


# --- refusals -----------------------------------------------------------------------------------


def test_a_folder_that_holds_no_benchmark_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError) as caught:
            report_command(folder)
        assert str(caught.value) == f"{folder} holds no benchmark: cells/*/cell.json is missing"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("cell.json", "{", "cell.json is no cell of a benchmark"),
        ("cell.json", '{"id": 3}', "cell.json is no cell of a benchmark"),
        ("episodes.jsonl", "{}\n", "episodes.jsonl line 1 is no episode"),
        ("../../precision.json", "[{}]", "precision.json holds no rows of precision"),
        ("../../precision.json", "{", "precision.json holds no rows of precision"),
    ],
)
def test_what_is_broken_is_refused_by_name(tmp_path, name, text, message):
    path = add_cell(tmp_path, make_cell(0, CEM), "1")
    (path / name).write_text(text)
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        write_report(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("cell.json", "axes", ["cem"]),
        ("episodes.jsonl", "steps", "25"),
        ("episodes.jsonl", "final", 3),
    ],
)
def test_fields_of_another_kind_are_refused(tmp_path, part, field, value):
    path = add_cell(tmp_path, make_cell(0, CEM), "1") / part
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: value}) + "\n")
    with pytest.raises(ConfigError, match=f"{part}.*{field}=.* must be of kind"):
        write_report(tmp_path)
