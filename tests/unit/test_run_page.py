"""The page of a run: what it says, what it must not say, and that nothing in a run's folder breaks it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from muster.deploy.cli.job_lookup import locate, require_logs
from muster.deploy.cli.page_after_job import end_with_page
from muster.deploy.cli.shared import RecordOptions
from muster.deploy.core.errors import UsageError
from muster.deploy.core.job.find import LocatedJob, printed
from muster.deploy.features.page.chart import MOST_POINTS, chart, thinned
from muster.deploy.features.page.command import Report
from muster.deploy.features.page.course import course
from muster.deploy.features.page.render import FOLDER, as_html, run_page
from muster.deploy.features.page.run_records import Records, read
from muster.deploy.features.page.timeline import MOST_TEXT
from muster.deploy.features.why.stragglers import Surroundings, lines, pace_line, stragglers
from tests.unit.paces import Run, pace
from tests.unit.records import job
from tests.unit.runs import BEGAN, JOB, write_run

GOLDEN = Path(__file__).parents[1] / "golden" / "run-page.html"
AT = BEGAN + 500
VOID = {"meta", "link", "br", "img", "input"}


class Outline(HTMLParser):
    """The elements of a page; fails on one that is not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def page_of(records: Records) -> str:
    return as_html(run_page(records, AT))


def test_the_page_is_that_of_the_golden_file(tmp_path: Path) -> None:
    """After a change: look at the page, then copy what this test has written over the golden file."""
    records = read(write_run(tmp_path, restarts=True, seconds=30, steps=300))
    page = page_of(dataclasses.replace(records, state={**records.state, "folder": f"/runs/{records.name}"}))
    (tmp_path / GOLDEN.name).write_text(page)
    assert page == GOLDEN.read_text(), tmp_path / GOLDEN.name


@pytest.mark.parametrize("kind", [{}, {"fails": True}, {"restarts": True}, {"ended": False}, {"hosts": 40}])
def test_a_page_fetches_nothing_and_is_accessible(tmp_path: Path, kind: dict[str, Any]) -> None:
    html = page_of(read(write_run(tmp_path, **kind)))
    outline = Outline(html)
    tags = [tag for tag, _ in outline.elements]
    assert "script" not in tags
    assert "default-src 'none'" in html
    for _, attributes in outline.elements:
        assert not {name for name in attributes if name.startswith("on")}
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:"))
    assert not re.search(r"url\(\s*['\"]?(?!#)", html)
    assert tags.count("h1") == 1
    assert html.index("<h1>") < html.index("<h2")
    for tag, attributes in outline.elements:
        if tag == "svg":
            assert attributes.get("aria-hidden") or attributes.get("aria-label")
        if tag == "th":
            assert attributes.get("scope")
    named = {value for _, attributes in outline.elements if (value := attributes.get("id"))}
    assert {a["aria-labelledby"] for _, a in outline.elements if "aria-labelledby" in a} <= named
    assert "prefers-color-scheme: dark" in html


def test_no_character_of_the_page_turns_its_text_around(tmp_path: Path) -> None:
    records = read(write_run(tmp_path, fails=True))
    tails = tuple(dataclasses.replace(tail, lines=("\u202eenod\u2066 a\u200bb",)) for tail in records.tails)
    html = page_of(dataclasses.replace(records, verdict="DONE \u202e", tails=tails))
    assert "\ufffdenod\ufffd a\ufffdb" in html
    assert not {"\u202e", "\u2066", "\u200b"} & {*html}


def test_what_hosts_say_is_text_and_no_secret_is_shown(tmp_path: Path) -> None:
    html = page_of(read(write_run(tmp_path, fails=True)))
    assert "&lt;script&gt;alert(1)" in html
    assert "<script" not in html
    assert "<img" not in html
    assert "\x1b" not in html
    assert "s3cret" not in html
    assert "--api-key=***" in html


def test_the_verdict_is_first_and_the_first_failure_is_marked(tmp_path: Path) -> None:
    page = run_page(read(write_run(tmp_path, fails=True)), AT)
    assert (page.state, page.tone, page.headline) == ("failed", "bad", "rank 3 on node2: exit status 1")
    assert page.timeline is not None
    (mark,) = page.timeline.marks
    (failed,) = [bar for bar in page.timeline.bars if bar.kind == "failed"]
    assert mark.text == "rank 3 on node2: exit status 1"
    assert mark.x == failed.end
    assert failed.quiet is not None, "it had printed nothing for a fifth of the attempt"
    assert [bar.kind for bar in page.timeline.bars].count("with") == 3
    assert page.outputs[0].failed


def test_why_a_job_stood_still_is_on_its_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path, fails=True)
    assert "Why it stalled" not in page_of(read(folder))
    result = json.loads((folder / "result.json").read_text())
    why = {
        "headline": "rank 0 waits in <all_reduce>",
        "cause": "rank 1 has not come",
        "evidence": ["rank 0: a"],
    }
    (folder / "result.json").write_text(json.dumps({**result, "why": why}))
    assert "rank 0 waits in &lt;all_reduce&gt;\nrank 1 has not come\nrank 0: a\n" in page_of(read(folder))


def test_a_run_of_256_ranks_and_an_hour_of_samples_is_below_a_megabyte(tmp_path: Path) -> None:
    """A host has a sample every two minutes here, as more take long to write; a page has fewer points."""
    folder = write_run(
        tmp_path, hosts=256, slots=1, seconds=3600, sample_every=120, fails=True, lines=400, steps=300
    )
    html = page_of(read(folder))
    assert len(html.encode()) < 1 << 20
    assert html.count('class="spark"') >= 256
    assert "at most 18 points" in html


def test_a_curve_of_100_000_steps_has_few_points_and_every_peak() -> None:
    points = [(float(step), 9.0 if step == 77_777 else 1.0) for step in range(100_000)]
    drawn = thinned(points, MOST_POINTS)
    assert len(drawn) <= MOST_POINTS
    assert (77_777.0, 9.0) in drawn


def test_samples_beyond_the_bound_are_thinned_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("muster.deploy.features.page.run_records.MOST_SAMPLES", 100)
    records = read(write_run(tmp_path, hosts=3, seconds=2000))
    assert 25 <= len(records.samples) <= 100
    assert {sample["host"] for sample in records.samples} == {"node1", "node2", "node3"}
    assert any("samples one is shown" in note for note in records.notes)


def test_a_page_of_a_running_job_says_how_far_it_has_come(tmp_path: Path) -> None:
    records = read(write_run(tmp_path, ended=False))
    records = dataclasses.replace(records, state={**records.state, "state": "running"})
    page = run_page(records, BEGAN + 30)
    assert page.tone == "active"
    assert {row.outcome for row in page.attempts[0].ranks.values()} == {"running"}
    assert page.attempts[0].ended == BEGAN + 30


MALFORMED = (
    "",
    "{",
    "[]\n",
    '{"at": "x"}\n',
    '{"at": 1e999, "rank": {}, "attempt": 0}\n',
    "\0\xff\n",
    "[" * 9999,
)


@pytest.mark.parametrize(
    "name",
    [
        *("events.jsonl", "metrics.jsonl", "steps.jsonl", "samples.jsonl", "launch.json", "job.json"),
        *("result.json", "plan.txt", "verdict.txt", "pace.jsonl"),
    ],
)
def test_a_malformed_file_keeps_no_run_from_its_page(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path, fails=True)
    for text in MALFORMED:
        (folder / name).write_text(text)
        page_of(read(folder))


@pytest.mark.parametrize("wrong", [None, "x", [], {}, -1, 1e30, 1e308, -(10**400), [None]])
def test_no_value_of_a_wrong_type_keeps_a_run_from_its_page(tmp_path: Path, wrong: object) -> None:
    folder = write_run(tmp_path, hosts=1, seconds=20, fails=True)
    _write_pace(folder)
    for name in ("events.jsonl", "metrics.jsonl", "steps.jsonl", "pace.jsonl"):
        lines = [json.loads(line) for line in (folder / name).read_text().splitlines()]
        lines += [{**lines[-1], key: wrong} for key in lines[-1]]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("launch.json", "result.json", "job.json"):
        whole = json.loads((folder / name).read_text())
        for key in whole:
            (folder / name).write_text(json.dumps({**whole, key: wrong}))
            page_of(read(folder))
        for key in whole.get("first_failure", ()):
            first = {**whole["first_failure"], key: wrong}
            (folder / name).write_text(json.dumps({**whole, "first_failure": first}))
            page_of(read(folder))
        (folder / name).write_text(json.dumps(whole))


def test_a_start_that_is_no_time_makes_job_json_no_record(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    record = json.loads((folder / "job.json").read_text())
    (folder / "job.json").write_text(json.dumps({**record, "started": -(10**400)}))
    assert "job.json is not the record of a job" in read(folder).notes


@pytest.mark.parametrize("name", ["plan.txt", "verdict.txt", "result.json", "events.jsonl"])
def test_a_file_that_cannot_be_read_is_noted_and_a_missing_one_is_not(tmp_path: Path, name: str) -> None:
    folder = write_run(tmp_path)
    (folder / name).unlink(missing_ok=True)
    assert not any(note.startswith(name) for note in read(folder).notes)
    (folder / name).mkdir()
    assert any(note.startswith(f"{name} cannot be read: ") for note in read(folder).notes)


def test_a_cut_file_of_samples_is_shown_as_far_as_it_goes(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    lines = (folder / "samples.jsonl").read_text().splitlines(keepends=True)
    (folder / "samples.jsonl").write_text("".join(lines[:9]) + lines[9][:40])
    records = read(folder)
    assert len(records.samples) == 9
    assert "samples.jsonl: 1 line is no JSON object" in records.notes


def _write_pace(folder: Path) -> None:
    """The pace of a recorded run of four ranks, of which rank 2 is late; its verdict names that rank too."""
    found = pace(Run(4, slower=lambda rank, step, part: 0.05 * (rank == 2), per_host=2).arriving())
    assert found
    late = stragglers(found, Surroundings({}, {}))
    (folder / "pace.jsonl").write_text(pace_line(BEGAN, 0, found, late) * 3)
    with (folder / "verdict.txt").open("a") as file:
        file.writelines(f"        slow: {line}\n" for line in lines(late, BEGAN, ended=True))


def test_the_page_of_a_recorded_run_names_the_late_rank(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    _write_pace(folder)
    assert "rank 2 on node2 was late: the others waited " in page_of(read(folder))
    (folder / "result.json").unlink()
    assert "rank 2 on node2 is late: the others wait " in page_of(read(folder)), "of a job that runs"


def test_ranks_that_were_planned_and_never_started_are_in_the_time_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path, ended=False)
    (folder / "events.jsonl").write_text((folder / "events.jsonl").read_text().split("\n", 1)[0] + "\n")
    (attempt,) = course(read(folder), AT)
    assert [row.outcome for row in attempt.ranks.values()] == ["never started"] * 4


# -- the end of a job --


def test_a_page_that_cannot_be_made_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path)
    end_with_page(folder)
    assert (folder / "report.html").stat().st_mode & 0o777 == 0o600
    assert capsys.readouterr().err == ""

    errors: list[BaseException] = [OSError(28, "full"), KeyboardInterrupt(), ZeroDivisionError("0")]

    def broken(*ignored: object) -> None:
        raise errors.pop()

    monkeypatch.setattr("muster.deploy.features.page.render.write_report", broken)
    while errors:
        end_with_page(folder)
        assert "note: no page of 20261120-120000-abcd: " in capsys.readouterr().err


def test_a_program_that_only_prints_its_loss_has_a_curve_of_it(tmp_path: Path) -> None:
    folder = write_run(tmp_path, restarts=True, lines=7)
    for name in ("metrics.jsonl", "steps.jsonl"):
        (folder / name).unlink()
    records = read(folder)
    assert records.printed[-1] == {"step": 6, "loss": pytest.approx(1 / 7, abs=1e-4)}
    curves = run_page(records, AT).curves
    assert curves
    assert (curves.sources, [chart.title for chart in curves.charts]) == (
        ("the output of rank 0, over step",),
        ["loss"],
    )


@pytest.mark.parametrize(
    ("lines", "axis"),
    [
        ("epoch 1 loss 0.5\nepoch 2 loss 0.4\n", "epoch"),
        ("start\nloss 9\nloss 8\n", "line"),
        ("epoch 1/2 step 1/2 loss 3\nepoch 1/2 step 2/2 loss 2\nepoch 2/2 step 1/2 loss 1\n", "epoch"),
        (
            "".join(f"\rEpoch 0: {n}%|█ | {n}/100 [00:01<00:09, 3it/s, train_loss={n}]" for n in range(9))
            + "\n",
            "step",
        ),
        ("\x1b[36mstep: 1 \x1b[32mloss: 7.4\x1b[0m\n\x1b[36mstep: 2 \x1b[32mloss: 7.3\x1b[0m\n", "step"),
    ],
)
def test_curves_of_printed_losses_are_over_what_the_lines_name(tmp_path: Path, lines: str, axis: str) -> None:
    folder = write_run(tmp_path)
    for name in ("metrics.jsonl", "steps.jsonl"):
        (folder / name).unlink()
    (folder / "logs" / "rank-0000@node1.out").write_text(lines)
    curves = run_page(read(folder), AT).curves
    assert curves
    assert curves.sources == (f"the output of rank 0, over {axis}",)


def test_a_metric_of_several_files_is_drawn_once(tmp_path: Path) -> None:
    page = run_page(read(write_run(tmp_path)), AT)
    assert page.curves
    names = [chart.title for chart in page.curves.charts]
    assert len(names) == len({*names})
    assert {"loss", "accuracy", "lr"} <= {*names}
    assert page.curves.sources == ("steps.jsonl, over step", "metrics.jsonl, over epoch")
    assert page_of(read(tmp_path / JOB)).count('class="of">over epoch') == 1
    of_steps = "".join(f'{{"step": {step}, "accuracy": 0.{step}}}\n' for step in range(1, 4))
    (tmp_path / JOB / "metrics.jsonl").write_text(of_steps)
    page = run_page(read(tmp_path / JOB), AT)
    assert page.curves
    assert page.curves.sources == ("steps.jsonl and metrics.jsonl, over step",)
    assert 'class="of">over step' not in page_of(read(tmp_path / JOB))


def test_the_end_is_one_fact_so_that_no_short_fact_stands_alone(tmp_path: Path) -> None:
    facts = dict(run_page(read(write_run(tmp_path, restarts=True)), AT).facts)
    assert facts["took"].endswith(", 2 attempts, exit status 0")
    assert len({*facts} - {"command", "program", "commit", "folder"}) == 4  # two columns on a telephone


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("collective timed out: " + " ".join(["rendezvous"] * 20), "rendezvous …"),
        ("no rank has printed anything or used its processor for 20 s; rank 1 (node1) is elsewhere", "here"),
    ],
)
def test_a_mark_ends_with_a_whole_word(reason: str, end: str, tmp_path: Path) -> None:
    folder = write_run(tmp_path, fails=True)
    result = json.loads((folder / "result.json").read_text())
    result["first_failure"]["reason"] = reason
    (folder / "result.json").write_text(json.dumps(result))
    timeline = run_page(read(folder), AT).timeline
    assert timeline
    assert timeline.marks[0].text.endswith(end)
    assert len(timeline.marks[0].text) <= MOST_TEXT + 2


def test_colours_of_a_program_are_not_on_its_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path, fails=True)
    result = json.loads((folder / "result.json").read_text())
    result["first_failure"]["tail"] = ["\x1b[1;35mValueError\x1b[0m: \x1b[35mboom\x1b[0m"]
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "logs" / "rank-0000@node1.out").write_text("\x1b[32mloss\x1b[0m 1\n")
    page = run_page(read(folder), AT)
    assert page.tail == ("ValueError: boom",)
    assert ("loss 1",) in [lines for output in page.outputs for _, lines in output.streams]


STYLE = (FOLDER / "style.css").read_text()


def _luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_every_colour_of_the_time_line_has_a_contrast_of_3_and_of_text_4_5(theme: int) -> None:
    block = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)[theme]
    colours = {name: _luminance(colour) for name, colour in re.findall(r"--([\w-]+): (#\w+)", block)}
    for background in ("card", "stripe"):
        for name in ("good", "bad", "with", "active", "wait", "soft", "ink"):
            dark, light = sorted((colours[background], colours[name]))
            least = 4.5 if name in {"soft", "ink", "bad"} else 3.0
            assert (light + 0.05) / (dark + 0.05) >= least, (name, background)


def test_what_explains_a_failure_is_wrapped_at_any_width() -> None:
    assert re.search(r"pre\.tail\b[^{}]*\{[^{}]*white-space: pre-wrap; overflow-wrap: anywhere", STYLE)
    assert re.search(r"@media \(max-width: 640px\) \{ pre \{ white-space: pre-wrap", STYLE)


def test_the_lines_of_the_failure_are_shown_once(tmp_path: Path) -> None:
    page = page_of(read(write_run(tmp_path, fails=True)))
    assert page.count("ValueError") == 1


def test_a_rank_has_one_excerpt_of_its_streams(tmp_path: Path) -> None:
    folder = write_run(tmp_path, fails=True)
    (folder / "logs" / "rank-0001@node1.err").write_text("a warning\n")
    outputs = run_page(read(folder), AT).outputs
    assert [output.rank for output in outputs] == [3, 0, 1, 2]
    assert [name for name, _ in outputs[2].streams] == ["stderr", "stdout"]


def test_the_legend_has_the_states_that_occur(tmp_path: Path) -> None:
    legend = re.search(r'<p class="legend".*?</p>', page_of(read(write_run(tmp_path))))
    assert legend and re.findall(r'key (\w+)"', legend[0]) == ["waiting", "printed", "done"]


def test_a_rank_that_restarts_on_another_host_keeps_its_row(tmp_path: Path) -> None:
    folder = write_run(tmp_path, restarts=True)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for event in events:
        if event["attempt"] == 1 and event["rank"] == 3:
            event["host"] = "node3"
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    (folder / "launch.restart-1.json").unlink()
    page = run_page(read(folder), AT)
    assert page.timeline
    assert [text for _, text, _ in page.timeline.labels] == [
        "node1 · 0",
        "node1 · 1",
        "node2 · 2",
        "node3 · 3",
    ]
    assert len(page.timeline.bars) == 8


def test_an_option_without_a_value_is_not_on_the_page(tmp_path: Path) -> None:
    page = page_of(read(write_run(tmp_path)))
    assert "--start-timeout" in page
    assert "--network" not in page


def test_the_page_has_the_command_and_the_commit(tmp_path: Path) -> None:
    records = read(write_run(tmp_path))
    assert dict(run_page(records, AT).facts)["commit"] == f"{'3f2a' * 10}, with changes"
    shown = re.sub("<[^>]*>", "", page_of(records))
    assert "muster launch --launcher torchrun train.py --lr 0.1 --token ***" in shown
    (launch,) = records.launches
    older = {name: value for name, value in launch.items() if name not in {"command", "commit", "clean"}}
    facts = dict(run_page(dataclasses.replace(records, launches=(older,)), AT).facts)
    assert facts["program"] == "train.py --lr 0.1 --token ***"
    assert not {"command", "commit"} & facts.keys()


# -- a run that was moved or copied --


def test_a_copied_run_is_named_by_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_run(tmp_path, fails=True)
    (folder / "logs" / "order").write_text("12 rank-0000@node1.out\n")
    copied = folder.rename(tmp_path / "of a colleague")
    monkeypatch.chdir(tmp_path)
    Report(job="of a colleague").run()
    assert capsys.readouterr().out == f"{copied}/report.html\n"
    with locate(str(copied), RecordOptions()) as located:
        assert located.state.job == copied.name
        assert "step 0 loss" in next(printed(located, rank=None, follow=False)).text


def test_of_a_job_that_has_ended_no_driver_is_said_to_run() -> None:
    elsewhere = Mock(host="node1")
    for state, message in (("done", "write its path instead of the id"), ("running", "runs in a terminal")):
        with pytest.raises(UsageError, match=message):
            require_logs(LocatedJob(job(1, 2, state), elsewhere))


@pytest.mark.parametrize(
    ("steps", "labels"),
    [
        ([1, 2, 3], ["1", "2", "3"]),
        ([4], ["2", "3", "4", "5", "6"]),
        ([0, 9], ["0", "5"]),
        ([0.0, 0.25, 0.5], ["0", "0.2", "0.4"]),
        ([0, 100], ["0", "25", "50", "75", "100"]),
    ],
)
def test_the_axis_of_steps_has_whole_numbers(steps: Sequence[float], labels: Sequence[str]) -> None:
    made = chart("loss", "step", [(step, 1.0 / (step + 1)) for step in steps])
    assert made and [label for _, label in made.x_ticks] == labels
