"""The screen of `muster top`, made of simulated records."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.deploy.core.hosts.host_sample import GpuSample, HostSample, RankSample, TrainingSample
from muster.deploy.core.text.columns import cells
from muster.deploy.features.top.command import as_json
from muster.deploy.features.top.head import NO_SAMPLES, NO_STEPS, Moment, job_lines
from muster.deploy.features.top.notes import Judge, Note
from muster.deploy.features.top.screen_lines import (
    View,
    bar,
    fit,
    short_percent,
    short_rate,
    short_size,
    spark,
)
from muster.deploy.features.top.top_history import PrintedText, TopHistory
from muster.deploy.features.top.top_screen import Frame, everything, frame
from tests.unit.records import START, history, host_sample, job

GOLDEN = Path(__file__).parents[1] / "golden"
NOW = 101.0


def troubled() -> TopHistory:
    """A job with a host that died, one without memory, a rank behind and one that is stopped."""
    seen = history(4, gpus=2)
    for turn in range(10, 16):
        for number in (0, 1, 3):
            seen.take(host_sample(number, turn, gpus=2), NOW)
    stopped = dataclasses.replace(host_sample(3, 16, gpus=2), ranks=(RankSample(6, 0.0, 1 << 30, 3, "T"),))
    seen.take(stopped, NOW)
    seen.take(PrintedText(1, "node0", "epoch 1 step 102 loss 2.5\n"), NOW)
    seen.take(full(1, 16, gpus=2), NOW)
    return seen


def full(number: int, turn: int, **options: int) -> HostSample:
    return dataclasses.replace(host_sample(number, turn, **options), memory=250 << 30)


def training(hosts: int = 4, ranks_each: int = 2, steps: int = 120) -> TopHistory:
    """A job that has trained for some minutes: its loss falls, and its ranks print."""
    seen = history(hosts, turns=20, ranks_each=ranks_each, gpus=2)
    for step in range(120, 120 + steps):
        sample = host_sample(0, step - 100, ranks_each=ranks_each, gpus=2)
        at = TrainingSample(step, 2.25 * 0.985 ** (step - 119), 0.21 + step % 9 / 50)
        seen.take(dataclasses.replace(sample, at=START + 38 + step / 1e4, training=at), 100.0 + step / 1e4)
        for rank in range(hosts * ranks_each):
            seen.take(PrintedText(rank, f"node{rank // ranks_each}", f"step {step} of 500 loss 2.25\n"), NOW)
    return seen


def screen(seen: TopHistory, width: int, rows: int, view: View | None = None, now: float = NOW) -> Frame:
    return frame(seen, view or View(), Moment(now, START + 20), width, rows)


def lines_of(seen: TopHistory, width: int = 80, rows: int = 24, view: View | None = None) -> list[str]:
    return [str(line) for line in screen(seen, width, rows, view).lines]


def plain(seen: TopHistory, now: float = NOW, clock: float = START + 20) -> str:
    return everything(seen, Moment(now, clock))


def keys(seen: TopHistory, view: View) -> list[str]:
    return [*screen(seen, 80, 5000, view).keys]


def healthy() -> TopHistory:
    return history(3)


SIZES = [(80, 24), (120, 40), (200, 60)]
JOBS: dict[str, Callable[[], TopHistory]] = {
    "troubled": troubled,
    "training": training,
    "recorded": lambda: training(20),
    "many": lambda: training(120, 8, steps=2),
    "small": healthy,
    "over": lambda: ended(troubled()),
}


@functools.cache
def made(name: str) -> TopHistory:
    return JOBS[name]()


def ended(seen: TopHistory) -> TopHistory:
    why = "rank 6 on node3: exit status 1, and much more was said about it, up to the very end of a long line"
    seen.take(job(4, 8, "failed", ended=START + 30, exit_status=1, why=why), NOW)
    return seen


@pytest.mark.parametrize(("width", "rows"), SIZES)
def test_the_screen_at_each_size_is_as_recorded(width: int, rows: int) -> None:
    """MUSTER_GOLDEN=1 writes the files again: look at them."""
    _golden(f"top-{width}x{rows}", "\n".join(lines_of(made("recorded"), width, rows)) + "\n")


def _golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("MUSTER_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


@pytest.mark.parametrize(
    ("name", "seen"),
    [("top-healthy", history(3)), ("top-gpus", history(2, gpus=8)), ("top-troubled", troubled())],
)
def test_the_plain_text_is_as_recorded(name: str, seen: TopHistory) -> None:
    _golden(name, plain(seen))


@pytest.mark.parametrize("view", [View(), View(ranks=True), View(chosen="node1"), View(chosen="rank 3")])
@pytest.mark.parametrize("name", sorted({*JOBS} - {"recorded"}))
def test_a_screen_has_its_rows_and_no_line_is_wider_or_cut_within_a_word(name: str, view: View) -> None:
    whole = {word.rstrip(" ,:;'") for word in str(lines_of(made(name), 400, 4000, view)).split()}
    for width, rows in ((40, 10), *SIZES):
        shown = lines_of(made(name), width, rows, view)
        assert len(shown) == rows
        for line in shown:
            assert cells(line) <= width
            if line.endswith("…"):
                cut = line.split()[-1].rstrip("…")
                assert cut in whole or len(line.split()) == 1, line
    if name in {"training", "many"} and not view.chosen and not view.ranks:
        assert all(shown), "a large screen is full"


def test_a_small_screen_has_alarms_the_job_every_troubled_host_a_line_for_the_ranks_and_the_last_line() -> (
    None
):
    seen = training(40, 8, steps=30)
    seen.take(full(17, 20, ranks_each=8), NOW)
    shown = lines_of(seen)
    assert shown[0] == "! node17: memory nearly full"
    assert shown[1].startswith("20261122-101500-beef  running")
    assert shown[2].split("%")[1].startswith("  about ") and shown[2].endswith(
        "step 149, loss 1.43, 3.23 steps/s"
    )
    assert shown[3].startswith("host ") and shown[4].startswith("node17 ")
    assert any(line.startswith("+ ") and line.endswith("more hosts, all well") for line in shown)
    assert any(line.startswith("320 ranks: 320 run; step 149; ") for line in shown)
    assert "step 149 of 500 loss 2.25" in shown[-2]


def test_every_figure_has_a_unit() -> None:
    assert "40 GiB  90% 1.0 MB/s 2.0 kB/s" in "\n".join(lines_of(history(3, gpus=2)))
    assert "network   in 1.0 MB/s, out 2.0 kB/s" in lines_of(history(3), view=View(chosen="node0"))


def test_300_hosts_are_scrolled_to_the_cursor_and_each_has_its_line() -> None:
    seen = history(300, turns=2, ranks_each=2)
    assert len(keys(seen, View())) == 300
    assert len(keys(seen, View(ranks=True))) == 600
    shown = lines_of(seen, view=View(cursor="node150"))
    assert any(line.startswith("node150 ") for line in shown)
    at = next(
        index for index, line in enumerate(shown) if line.startswith("+ 149 more hosts, all well (hosts")
    )
    assert shown[at - 1].startswith("node150 ")
    assert "hosts 286 to 300 of 300" in "\n".join(lines_of(seen, view=View(cursor="node299")))


def test_node2_comes_before_node10() -> None:
    assert keys(history(12), View())[:4] == ["node0", "node1", "node2", "node3"]


def test_trouble_comes_first() -> None:
    assert keys(made("troubled"), View())[:2] == ["node1", "node2"]
    assert keys(made("troubled"), View(ranks=True))[0] == "rank 6"


def test_the_time_that_is_left_follows_from_the_steps_that_rank_0_prints() -> None:
    seen = history(1)
    assert "left" not in plain(seen, 100.0, START)
    seen.take(PrintedText(0, "node0", "step 200/500 loss 2.5\n"), 100.0)
    assert "40%  about 1 min 30 s left, step 109" in plain(seen, 100.0, START)  # the pace since the start
    seen.take(PrintedText(0, "node0", "step 250/500 loss 2.5\n"), 110.0)
    assert "about 45 s left" in plain(seen, 115.0, START)  # the pace since the screen opened
    seen.take(job(1, 2, "done", ended=START), 115.0)
    assert "left" not in plain(seen, 115.0, START)


def test_printed_steps_give_a_throughput_as_steps_jsonl_does() -> None:
    seen = TopHistory()
    seen.take(job(1, 2), 100.0)
    seen.take(PrintedText(1, "node0", "step 3 loss 9.0\n"), 100.0)  # rank 0 takes the place of this one
    for second in range(18):
        seen.take(PrintedText(0, "node0", f"step {3 * second} loss {2 - second / 10:.2f}\n"), 100.0 + second)
    assert lines_of(seen)[1] == "step 51, loss 0.3, 3 steps/s"


def test_ranks_that_still_save_after_a_stop_are_named() -> None:
    seen = TopHistory()
    seen.take(dataclasses.replace(job(1, 2), saving=(0, 1)), 100.0)
    assert "\nranks 0-1 still handle SIGTERM\n" in plain(seen)


def test_a_job_that_prints_no_step_gets_a_hint() -> None:
    seen = TopHistory()
    seen.take(job(2, 4), 100.0)
    seen.take(dataclasses.replace(host_sample(0, 9), training=None), 100.0)
    assert lines_of(seen)[1] == NO_STEPS


def test_equal_lines_of_ranks_are_one_line_of_the_log() -> None:
    seen = TopHistory()
    for step in range(3):
        for rank in range(4):
            seen.take(PrintedText(rank, "node0", f"step {step}\n"), NOW)
    assert seen.log == {f"step {step}": {0, 1, 2, 3} for step in range(3)}
    seen.take(PrintedText(0, "node0", "step 0\n"), NOW)
    assert [*seen.log.items()][-1] == ("step 0", {0})


def test_the_logs_from_before_the_start_become_one_in_the_order_of_their_lines() -> None:
    seen = TopHistory()
    for rank, first, last in ((0, 5, 9), (1, 2, 11), (2, 7, 8)):
        text = "".join(f"step {step}\n" for step in range(first, last + 1))
        seen.take(PrintedText(rank, "node0", text, old=True), NOW)
    assert [*seen.log] == [f"step {step}" for step in range(5, 12)]
    assert (seen.log["step 8"], seen.log["step 11"]) == ({0, 1, 2}, {1})


def test_the_log_has_the_traceback_of_a_rank_and_the_end_of_the_job_is_the_first_line() -> None:
    shown = lines_of(ended(troubled()), 200, 60)
    assert shown[0].startswith("! failed: rank 6 on node3: exit status 1")
    assert shown[0].endswith("of a long line")


def test_a_driver_that_is_lost_and_a_problem_of_the_source_are_alarms() -> None:
    seen = history(2)
    seen.take(job(2, 4, "lost", why="its driver is gone"), NOW)
    assert lines_of(seen)[0] == "! lost: its driver is gone"
    seen.problem = "node1: no answer within 30 s"
    assert "! node1: no answer within 30 s" in lines_of(seen)[:2]


def test_equal_alarms_are_one_and_only_some_are_shown() -> None:
    seen = history(40)
    for number in range(9, 30):
        seen.take(full(number, 10), NOW)
    for number in range(4):
        gpu = GpuSample(number, ecc=1)
        seen.take(dataclasses.replace(host_sample(number, 10), gpus=(gpu,)), NOW)
    shown = lines_of(seen)
    assert shown[0] == "! node[9-29]: memory nearly full"
    assert shown[2] == "! 3 more lines of alarms"


def test_a_host_in_full_has_its_gpus_and_its_ranks() -> None:
    text = "\n".join(lines_of(history(2, gpus=2), view=View(chosen="node1")))
    assert "GPU 1" in text and "70 GiB of 80 GiB, 612 W, 61 °C" in text
    assert "    2 node1 " in text and "    3 node1 " in text and "    1 node0" not in text


def test_a_rank_in_full_has_its_log() -> None:
    shown = lines_of(history(2), view=View(chosen="rank 3"))
    assert "rank 3 on node1" in shown
    assert "\n".join(shown).count("runs, ") == 1
    assert [line for line in shown if line][-2] == "rank 3 has had 109 batches"


def test_what_a_host_says_cannot_drive_the_terminal() -> None:
    seen = history(1)
    seen.take(PrintedText(0, "node0", "\x1b[2J\x9b31mred\n"), NOW)
    seen.take(HostSample(START + 30, "no\x1bde", gpus=(GpuSample(0, "\x1b]0;x\x07"),)), NOW)
    text = plain(seen) + str(screen(seen, 200, 60)) + str(lines_of(seen, view=View(chosen="no\x1bde")))
    assert not {"\x1b", "\x9b", "\x07"} & {*"".join(lines_of(seen, 200, 60)), *plain(seen)}
    assert "\x1b" not in text.replace("\\x1b", "")


# -- judgement --


def noted(seen: TopHistory, host: str, now: float = NOW) -> str:
    note = Judge(seen, now).host(seen.hosts[host])
    return note.text if note else ""


def test_a_host_that_dies_is_called_silent_within_12_seconds() -> None:
    seen, died = history(2), START + 2.0 * 9
    for after in range(1, 13):  # each second the screen looks; node1 goes on
        if after % 2 == 0:
            seen.take(dataclasses.replace(host_sample(1, 9), at=died + after), 100.0 + after)
        if noted(seen, "node0", 100.0 + after):
            break
    assert noted(seen, "node0", 100.0 + after).startswith("silent for") and after < 12
    assert noted(seen, "node1", 100.0 + after) == ""


def test_hosts_that_all_die_with_their_driver_are_called_silent_too() -> None:
    seen = history(2)
    assert [noted(seen, name, 105.0) for name in seen.hosts] == ["", ""]
    assert [noted(seen, name, 111.0) for name in seen.hosts] == ["silent for 11 s"] * 2


def test_hosts_that_are_sampled_seldom_are_not_called_silent() -> None:
    seen = TopHistory()
    for turn in range(3):
        seen.take(HostSample(START + 8.0 * turn, "node0", cpu=0.5), 8.0 * turn)
    assert noted(seen, "node0", 34.0) == ""


def test_hosts_of_a_job_that_is_over_are_not_called_silent() -> None:
    seen = history(2)
    seen.take(dataclasses.replace(host_sample(0, 10), ranks=()), NOW)
    assert Judge(seen, NOW).rank(seen.ranks[0]) == Note("ended", bad=False)
    seen.take(job(2, 4, "done", ended=START + 30, exit_status=0), NOW)
    assert noted(seen, "node0", 500.0) == ""
    assert Judge(seen, NOW).rank(seen.ranks[0]) is None


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
    seen = history(2)
    odd = dataclasses.replace(host_sample(0, 10), **figures)  # type: ignore[arg-type]
    seen.take(odd, NOW)
    assert noted(seen, "node0") == word


def test_a_host_whose_gpus_do_nothing_is_odd_among_others_that_work() -> None:
    seen = history(4, gpus=2)
    seen.take(dataclasses.replace(host_sample(2, 10), gpus=(GpuSample(0, utilisation=0.01),)), NOW)
    assert noted(seen, "node2") == "GPUs idle, unlike others"


def test_a_restart_forgets_the_ranks_of_the_attempt_before_it() -> None:
    seen = history(3)
    seen.take(job(2, 2, attempt=1), NOW)
    seen.take(dataclasses.replace(host_sample(0, 11, ranks_each=1), attempt=1), NOW)
    seen.take(dataclasses.replace(host_sample(2, 11), attempt=0), NOW)  # on its way since before
    assert [*seen.ranks] == [0]
    assert [*seen.hosts] == ["node0", "node1"]


def test_json_has_the_newest_of_everything() -> None:
    figures = json.loads(json.dumps(as_json(troubled(), job(4, 8), NOW)))
    assert [host["note"] for host in figures["hosts"]][::3] == [None, None]
    assert figures["hosts"][1]["note"] == "memory nearly full"
    assert figures["hosts"][2]["bad"] and figures["hosts"][2]["note"].startswith("silent")
    assert figures["hosts"][0]["sample"]["at"] == START + 30
    assert figures["ranks"][1]["step"] == 102 and figures["ranks"][1]["loss"] == 2.5
    assert figures["training"]["step"] == 115


# -- marks --


def test_marks_show_shares_and_sizes() -> None:
    assert [bar(share, 4) for share in (0.0, 0.5, 1.0, 7.0, None)] == ["    ", "██  ", "████", "████", "    "]
    assert spark([0.0, 0.5, None, 1.0], 6, 1.0) == "  ▁▅ █"
    assert [short_size(number) for number in (None, 0, 999, 1024, 1 << 30, 1023 << 30)] == [
        *("", "0 B", "999 B", "1.0 KiB", "1.0 GiB", "1.0 TiB")
    ]
    assert [short_rate(number) for number in (None, 0, 999.4, 3100, 12e6, 1e15)] == [
        *("", "0 B/s", "999 B/s", "3.1 kB/s", "12 MB/s", "1000 TB/s")
    ]
    assert [short_percent(share) for share in (None, 0.0, 1.0)] == ["", "0%", "100%"]


def test_a_text_is_cut_after_a_word() -> None:
    assert fit("step 12, loss 0.3456", 20) == "step 12, loss 0.3456"
    assert [fit("step 12, loss 0.3456", width) for width in (19, 14, 13, 5)] == [
        *("step 12, loss…", "step 12, loss…", "step 12…", "step…")
    ]
    assert [cells(fit("速度 3.5 速度", width)) for width in (13, 12, 5)] == [13, 9, 5]


def test_a_job_without_samples_says_why_once_it_should_have_some() -> None:
    seen = TopHistory()
    seen.take(job(2, 4), 100.0)
    assert NO_SAMPLES not in plain(seen, clock=START - 59)
    assert str(job_lines(seen, Moment(100.0, START), 120)[1]) == NO_SAMPLES
    seen.take(job(2, 4, "waiting"), 100.0)
    assert NO_SAMPLES not in plain(seen) and "queue of Slurm" in plain(seen)
    seen.take(job(2, 4, "done", ended=START - 59), 100.0)
    assert NO_SAMPLES in plain(seen, clock=START - 59)
    seen.take(host_sample(0, 0), 100.0)
    assert NO_SAMPLES not in plain(seen)
