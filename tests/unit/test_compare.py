"""A comparison of runs names each planted change, and nothing else."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.view.compare import results as text
from muster.deploy.view.compare.differences import differences, options_of, unrecorded
from muster.deploy.view.compare.results import outcome
from muster.deploy.view.page.records import Records, read
from muster.deploy.view.page.render import render
from tests.unit.runs import HOSTILE, write_run

FIRST, SECOND = "20261120-120000-aaaa", "20261120-130000-bbbb"
FACTS: dict[str, Any] = {"python": "3.13.5", "torch": "2.6.0", "mpi": "5.0.7", "cores": 8, "gpus": 0}
LAUNCH: dict[str, Any] = {
    "args": ["data", "--lr", "0.1", "--epochs=3", "--fast"],
    "env": {"LEVEL": "3", "HF_TOKEN": "***"},
    "hosts": [{"name": f"node{number}", "ranks": [number], **FACTS} for number in (1, 2)],
    "code": {"root": "/a", "files": {"train.py": "1" * 64, "model.py": "2" * 64}},
}
PLANTED: dict[str, Any] = {
    "args": ["data", "--lr", "0.2", "--epochs=3"],
    "env": {"LEVEL": "4", "HF_TOKEN": "***"},
    "backend": "gloo",
    "options": {"start-timeout": 60.0, "stall-timeout": 300.0, "network": ""},
    "hosts": [
        {"name": "node1", "ranks": [1], **FACTS, "torch": "2.7.0"},
        {"name": "node3", "ranks": [2], **FACTS, "torch": "2.7.0", "cores": 16},
    ],
    "code": {"root": "/b", "files": {"train.py": "3" * 64, "model.py": "2" * 64, "new.py": "4" * 64}},
}


def run(root: Path, job: str, launch: dict[str, Any], texts: dict[str, str]) -> Records:
    folder = write_run(root, job=job, hosts=2, slots=1, launch=launch)
    (folder / "code.json.gz").write_bytes(gzip.compress(json.dumps(texts).encode()))
    return read(folder)


@pytest.fixture
def pair(tmp_path: Path) -> list[Records]:
    before, after = {"1" * 64: "a = 1\nb = 2\n"}, {"3" * 64: f"a = 1\nb = 3  # {HOSTILE}\n"}
    return [run(tmp_path, FIRST, LAUNCH, before), run(tmp_path, SECOND, {**LAUNCH, **PLANTED}, after)]


def test_ten_planted_changes_are_named_and_nothing_else(pair: list[Records]) -> None:
    assert [(one.section, one.name, one.values) for one in differences(pair)] == [
        ("code", "new.py", ("no such file", "text A")),
        ("code", "train.py", ("text A", "text B")),
        ("arguments", "--lr", ("0.1", "0.2")),
        ("arguments", "--fast", ("given", "-")),
        ("environment", "LEVEL", ("3", "4")),
        ("launch", "backend", ("auto", "gloo")),
        ("versions", "torch", ("2.6.0", "2.7.0")),
        ("hosts", "names", ("node[1-2]", "node[1,3]")),
        ("hosts", "cores", ("8", "8; node3: 16")),
        ("options", "stall-timeout", ("0", "300")),
    ]


def test_another_commit_is_a_difference(tmp_path: Path) -> None:
    commits = [{"commit": "a" * 40, "clean": clean} for clean in (True, False)]
    runs = [run(tmp_path, job, {**LAUNCH, **commits[index]}, {}) for index, job in enumerate((FIRST, SECOND))]
    (change,) = differences(runs)
    assert (change.name, change.values) == ("commit", (f"{'a' * 40}, clean", f"{'a' * 40}, with changes"))


def test_equal_launches_at_other_times_and_in_other_folders_do_not_differ(tmp_path: Path) -> None:
    moved = {**LAUNCH, "code": {**LAUNCH["code"], "root": "/elsewhere"}}
    runs = [run(tmp_path, FIRST, LAUNCH, {}), run(tmp_path, SECOND, moved, {})]
    assert differences(runs) == []
    assert "Nothing differs" in text.as_text(runs, [], outcome(runs))


def test_changed_lines_are_shown_where_the_texts_were_kept(pair: list[Records]) -> None:
    (train,) = [one for one in differences(pair) if one.name == "train.py"]
    assert [line for line in train.diff if line[:1] in "+-" and line[:3] not in {"+++", "---"}] == [
        "-b = 2",
        f"+b = 3  # {HOSTILE}",
    ]


def test_throughput_has_its_spread_and_its_change(tmp_path: Path) -> None:
    runs = [run(tmp_path, job, LAUNCH, {}) for job in (FIRST, SECOND)]
    steps = [{"step": step, "samples_per_second": 500.0 + step % 10} for step in range(1, 200)]
    runs[1] = Records(**{**runs[1].__dict__, "steps": tuple(steps)})
    comparison = outcome(runs)
    first, second = (
        dict(zip(comparison.rates, row.rates, strict=True))["samples_per_second"] for row in comparison.rows
    )
    assert first is not None
    assert second is not None
    assert (first.middle, first.change) == (1008.0, None)
    assert second.low <= second.middle <= second.high
    assert second.change is not None
    assert second.change == pytest.approx(second.middle / 1008.0 - 1)
    assert f"{second.change * 100:+.1f} %" in text.as_text(runs, [], comparison)
    assert [line.name for line in comparison.charts[0].lines] == [FIRST, SECOND]


def test_the_file_that_a_figure_is_from_is_named(pair: list[Records]) -> None:
    comparison = outcome(pair)
    shown = text.as_text(pair, [], comparison)
    assert "Rates are from steps.jsonl.\nLast values are from metrics.jsonl.\n" in shown
    assert {chart.title for chart in comparison.charts} >= {"loss, metrics.jsonl", "loss, steps.jsonl"}


def test_jobs_with_figures_from_other_files_are_named(pair: list[Records]) -> None:
    pair[1] = replace(pair[1], metrics=(), steps=(), printed=({"step": 1, "loss": 0.5},))
    comparison = outcome(pair)
    assert comparison.sources == (
        "Rates are from steps.jsonl.",
        f"Last values are from metrics.jsonl ({FIRST}) and the output of rank 0 ({SECOND}).",
    )
    (charted,) = [chart.title for chart in comparison.charts if "rank 0" in chart.title]
    assert charted == "loss, the output of rank 0"


def test_the_page_and_the_text_show_what_hosts_say_as_text(pair: list[Records]) -> None:
    changes, comparison = differences(pair), outcome(pair)
    html = render(
        "compare.html", changes=changes, comparison=comparison, unrecorded=[], compared=text.COMPARED
    )
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "\x1b" not in html + text.as_text(pair, changes, comparison)
    json.dumps(text.as_json(pair, changes, comparison))


def test_a_run_of_an_older_version_is_said_to_have_no_record(tmp_path: Path) -> None:
    folder = write_run(tmp_path, job=SECOND)
    (folder / "launch.json").unlink()
    runs = [run(tmp_path, FIRST, LAUNCH, {}), read(folder)]
    assert unrecorded(runs) == [SECOND]
    assert f"note: {SECOND} has no record" in text.as_text(runs, differences(runs), outcome(runs))


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("--lr 0.1 --lr=0.2 -v", [("--lr", "0.1 0.2"), ("-v", "given")]),
        ("a --shift -1.5 b", [("words", "a b"), ("--shift", "-1.5")]),
        ("", []),
    ],
)
def test_arguments_are_compared_by_option(words: str, options: list[tuple[str, str]]) -> None:
    assert options_of(words.split()) == options
