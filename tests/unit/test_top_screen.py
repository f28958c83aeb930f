"""The screen of `muster top`, made of simulated records."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from muster.deploy.hosts.samples import GpuSample, HostSample, RankSample
from muster.deploy.view.top.history import PrintedText, TopHistory, Unreached
from muster.deploy.view.top.judge import Judge
from muster.deploy.view.top.lines import SORTS, ScreenLine, View, bar, short_percent, short_size, spark
from muster.deploy.view.top.screen import NO_SAMPLES, as_json, body, everything, head
from tests.unit.records import START, history, host_sample, job

GOLDEN = Path(__file__).parents[1] / "golden"
NOW = 101.0


def troubled() -> TopHistory:
    """A job with a host that died, one that cannot be asked, a rank behind and one that is stopped."""
    known = history(4, gpus=2)
    for turn in range(10, 16):
        for number in (0, 1, 3):
            known.take(host_sample(number, turn, gpus=2), NOW)
    stopped = dataclasses.replace(host_sample(3, 16, gpus=2), ranks=(RankSample(6, 0.0, 1 << 30, 3, "T"),))
    known.take(stopped, NOW)
    known.take(PrintedText(1, "node0", "epoch 1 step 102 loss 2.5\n"), NOW)
    known.take(Unreached("node1", "Connection refused"), NOW)
    return known


def shown(lines: list[ScreenLine]) -> list[str]:
    return [str(line) for line in lines]


def keys(known: TopHistory, view: View) -> list[str]:
    return [line.key for line in body(known, view, NOW)[1:]]


@pytest.mark.parametrize(
    ("name", "known"),
    [("top-healthy", history(3)), ("top-gpus", history(2, gpus=8)), ("top-troubled", troubled())],
)
def test_the_whole_screen_is_as_recorded(name: str, known: TopHistory) -> None:
    """MUSTER_GOLDEN=1 writes the files anew."""
    text = everything(known, NOW, START + 20)
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("MUSTER_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize("view", [View(), View(ranks=True)])
def test_a_line_fits_into_80_columns(view: View) -> None:
    for line in [*head(history(3, gpus=8), NOW, START), *body(history(3, gpus=8), view, NOW)]:
        assert len(str(line)) <= 80


def test_256_hosts_and_2048_ranks_have_a_line_each() -> None:
    known = history(256, turns=2, ranks_each=8)
    assert len(keys(known, View())) == 256
    assert len(keys(known, View(ranks=True))) == 2048


def test_node2_comes_before_node10() -> None:
    assert keys(history(12), View())[:4] == ["node0", "node1", "node2", "node3"]


@pytest.mark.parametrize("sort", SORTS)
def test_every_order_shows_every_host_and_rank(sort: str) -> None:
    known = troubled()
    assert sorted(keys(known, View(sort=sort))) == ["node0", "node1", "node2", "node3"]
    assert len(keys(known, View(sort=sort, ranks=True))) == 8


def test_trouble_comes_first() -> None:
    assert keys(troubled(), View())[:2] == ["node1", "node2"]
    assert keys(troubled(), View(ranks=True))[0] == "rank 6"


def test_the_time_that_is_left_follows_from_the_steps_that_rank_0_prints() -> None:
    known = history(1)
    for heard, step in ((100.0, 200), (110.0, 250)):
        assert "left" not in everything(known, heard, START)
        known.take(PrintedText(0, "node0", f"step {step}/500 loss 2.5\n"), heard)
    assert "about 45 s left" in everything(known, 115.0, START)
    known.take(job(1, 2, "done", ended=START), 115.0)
    assert "left" not in everything(known, 115.0, START)


def test_a_filter_looks_at_names_notes_and_last_lines() -> None:
    known = troubled()
    assert keys(known, View(wanted="NODE3")) == ["node3"]
    assert keys(known, View(wanted="silent")) == ["node2"]
    assert keys(known, View(wanted="step 102", ranks=True)) == ["rank 1"]


def test_a_host_in_full_has_its_gpus_and_its_ranks() -> None:
    text = "\n".join(shown(body(history(2, gpus=2), View(chosen="node1"), NOW)))
    assert "GPU 1" in text and "70 GiB of 80 GiB, 612 W, 61 C" in text
    assert [line.key for line in body(history(2), View(chosen="node1"), NOW)][-2:] == ["rank 2", "rank 3"]


def test_a_rank_in_full_has_its_log() -> None:
    lines = shown(body(history(2), View(chosen="rank 3"), NOW))
    assert lines[0] == "rank 3 on node1"
    assert lines[-1] == "rank 3 has had 109 batches"


def test_what_a_host_says_cannot_drive_the_terminal() -> None:
    known = history(1)
    known.take(PrintedText(0, "node0", "\x1b[2J\x9b31mred\n"), NOW)
    known.take(HostSample(START + 30, "no\x1bde", gpus=(GpuSample(0, "\x1b]0;x\x07"),)), NOW)
    text = everything(known, NOW, START) + str(body(known, View(chosen="no\x1bde"), NOW))
    assert not {"\x1b", "\x9b", "\x07"} & {*text}


# -- judgement --


def noted(known: TopHistory, host: str, now: float = NOW) -> str:
    note = Judge(known, now).host(known.hosts[host])
    return note.text if note else ""


def test_a_host_that_dies_is_called_silent_within_12_seconds() -> None:
    known, died = history(2), START + 2.0 * 9
    for after in range(1, 13):  # each second the screen looks; node1 goes on
        if after % 2 == 0:
            known.take(dataclasses.replace(host_sample(1, 9), at=died + after), 100.0 + after)
        if noted(known, "node0", 100.0 + after):
            break
    assert noted(known, "node0", 100.0 + after).startswith("silent for") and after < 12
    assert noted(known, "node1", 100.0 + after) == ""


def test_hosts_that_all_die_with_their_driver_are_called_silent_too() -> None:
    known = history(2)
    assert [noted(known, name, 105.0) for name in known.hosts] == ["", ""]
    assert [noted(known, name, 111.0) for name in known.hosts] == ["silent for 11 s"] * 2


def test_hosts_that_are_sampled_seldom_are_not_called_silent() -> None:
    known = TopHistory()
    for turn in range(3):
        known.take(HostSample(START + 20.0 * turn, "node0", cpu=0.5), 20.0 * turn)
    assert noted(known, "node0", 58.0) == ""


def test_hosts_of_a_job_that_is_over_are_not_called_silent() -> None:
    known = history(2)
    known.take(job(2, 4, "done", ended=START + 30, exit_status=0), NOW)
    assert noted(known, "node0", 500.0) == ""


@pytest.mark.parametrize(
    ("figures", "word"),
    [
        ({"memory": 250 << 30}, "memory nearly full"),
        ({"shm": 1 << 30}, "/dev/shm nearly full"),
        ({"load": 200.0}, "overloaded"),
        ({"temperature": 99.0}, "hot: 99 C"),
        ({"gpus": (GpuSample(3, ecc=2),)}, "GPU 3: memory errors"),
        ({"gpus": (GpuSample(3, temperature=91.0),)}, "GPU 3: hot"),
        ({}, ""),
    ],
)
def test_a_host_that_is_odd_says_so(figures: dict[str, object], word: str) -> None:
    known = history(2)
    odd = dataclasses.replace(host_sample(0, 10), **figures)  # type: ignore[arg-type]
    known.take(odd, NOW)
    assert noted(known, "node0") == word


def test_a_host_whose_gpus_do_nothing_is_odd_among_others_that_work() -> None:
    known = history(4, gpus=2)
    known.take(dataclasses.replace(host_sample(2, 10), gpus=(GpuSample(0, utilisation=0.01),)), NOW)
    assert noted(known, "node2") == "GPUs idle, unlike others"


def test_a_restart_forgets_the_ranks_of_the_attempt_before_it() -> None:
    known = history(3)
    known.take(job(2, 2, attempt=1), NOW)
    known.take(dataclasses.replace(host_sample(0, 11, ranks_each=1), attempt=1), NOW)
    known.take(dataclasses.replace(host_sample(2, 11), attempt=0), NOW)  # on its way since before
    assert [*known.ranks] == [0]
    assert [*known.hosts] == ["node0", "node1"]


def test_json_has_the_newest_of_everything() -> None:
    figures = json.loads(json.dumps(as_json(troubled(), NOW)))
    assert [host["note"] for host in figures["hosts"]][::3] == [None, None]
    assert figures["hosts"][1]["note"] == "Connection refused"
    assert figures["hosts"][2]["bad"] and figures["hosts"][2]["note"].startswith("silent")
    assert figures["hosts"][0]["sample"]["at"] == START + 30
    assert figures["ranks"][1]["step"] == 102 and figures["ranks"][1]["loss"] == 2.5
    assert figures["training"]["step"] == 115


# -- marks --


def test_marks_show_shares_and_sizes() -> None:
    assert [bar(share, 4) for share in (0.0, 0.5, 1.0, 7.0, None)] == ["    ", "██  ", "████", "████", "    "]
    assert spark([0.0, 0.5, None, 1.0], 6, 1.0) == "  ▁▅ █"
    assert [short_size(number) for number in (None, 0, 999, 1024, 1 << 30, 1023 << 30)] == [
        *("", "0", "999", "1.0K", "1.0G", "1.0T")
    ]
    assert [short_percent(share) for share in (None, 0.0, 1.0)] == ["    ", "  0%", "100%"]


def test_a_job_without_samples_says_why_once_it_should_have_some() -> None:
    known = TopHistory()
    known.take(job(2, 4), 100.0)
    assert NO_SAMPLES not in str(head(known, 100.0, START - 59))
    assert str(head(known, 100.0, START)[1]) == NO_SAMPLES
    known.take(job(2, 4, "done", ended=START - 59), 100.0)
    assert NO_SAMPLES in everything(known, 100.0, START - 59)
    known.take(host_sample(0, 0), 100.0)
    assert NO_SAMPLES not in everything(known, 100.0, START)
