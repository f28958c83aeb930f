"""The metrics of a job on their way from its head."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.core.agent.supervisor import SILENCE_SECONDS
from muster.deploy.core.connect.requests import FILE_PART, MOST_PART, PING, Payload, Request
from muster.deploy.core.errors import MusterError
from muster.deploy.core.job import fetch_output
from muster.deploy.core.job.fetch_output import ALL_SECONDS, LEAST_PART, MOST_BYTES
from muster.deploy.core.text.printed import figures_of, seconds_left
from muster.deploy.core.wire.files import Files
from muster.deploy.features.metrics import driver
from muster.deploy.features.metrics.driver import Metrics
from tests.unit.attempts import drop
from tests.unit.test_feature import DONE

FOLDER = "/home/ml/.muster/jobs/j"


class Head:
    """A head that gives the files that it has, as an agent does, and fails for others.

    Its clock goes on while it gives a part: by `delay`, and by the time that a link of `speed` bytes/s takes.
    """

    def __init__(self, host: str, *, delay: float = 0.0, speed: float = math.inf, **files: bytes) -> None:
        self.host = host
        self.files = {f"{FOLDER}/out/{name}.jsonl": content for name, content in files.items()}
        self.asked: list[str] = []
        self.confirmed: dict[str, dict[str, int]] = {}
        self.pings: list[float] = []
        self.now = 1000.0
        self._delay, self._speed = delay, speed

    def post(self, request: Request[Any]) -> None:
        assert request is PING
        self.pings.append(self.now)

    def ask(self, request: Request[Any], *, path: str, start: int, most: int, seconds: float) -> Payload:
        assert request is FILE_PART
        assert self.pings, "the agent hears no driver"
        self.asked.append(path)
        part = self.files.get(path, b"")[start : start + most]
        takes = self._delay + len(part) / self._speed
        self.now += min(takes, seconds)
        if path not in self.files or takes > seconds:
            raise MusterError("no answer", host=self.host)
        return Payload(part)

    @property
    def silences(self) -> list[float]:
        """The times for which the agent has heard no ping."""
        return [later - earlier for earlier, later in itertools.pairwise([*self.pings, self.now])]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Head], None]:
    """Have the driver read the clock of a head."""

    def follow(head: Head) -> None:
        for module in (driver, fetch_output):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: head.now))

    return follow


def fetched(
    *heads: Any, job: str = "", allocation: str = "", problem: str = ""
) -> tuple[dict[str, str], list[str]]:
    """The files that are kept after an attempt on each of these heads, and the notes."""
    found = Metrics(shared_home=bool(allocation))
    plan = SimpleNamespace(hosts=[SimpleNamespace(folder=job or FOLDER)])
    texts = dict[str, str]()
    folder: Any = SimpleNamespace(kept=lambda name: None, keep=texts.__setitem__, problem=problem)
    folder.record_on = lambda head, name, sizes: head.confirmed.update({name: sizes})
    for head in heads:
        attempt: Any = SimpleNamespace(head=head, plan=plan, folder=folder, emit=drop)
        found.begins(attempt)
        found.fetch(attempt)
    return texts, [*found.over(DONE).notes]


def test_a_file_that_could_not_be_fetched_is_named_with_its_place() -> None:
    texts, notes = fetched(Head("node1", metrics=b'{"epoch": 1}\n'))
    assert texts == {"metrics.jsonl": '{"epoch": 1}\n'}
    assert notes == [
        f"steps.jsonl could not be fetched; if the program wrote it, it is in {FOLDER}/out on node1"
    ]


def test_files_of_which_nothing_came_are_named_with_their_place() -> None:
    texts, notes = fetched(Head("node1"))
    assert texts == {}
    assert notes == [
        f"metrics.jsonl and steps.jsonl could not be fetched; if the program wrote them, they are in "
        f"{FOLDER}/out on node1"
    ]


def test_a_file_that_lacks_the_part_of_an_earlier_head_says_where_that_is() -> None:
    _, notes = fetched(Head("node1", steps=b""), Head("node2", metrics=b'{"epoch": 2}\n', steps=b""))
    assert notes == [
        f"metrics.jsonl is incomplete: the rest is in {FOLDER}/out on node1; muster get j fetches it"
    ]


def test_a_file_is_cut_at_a_line_and_named_where_it_is_larger_than_the_limit() -> None:
    line = b'{"step": 1, "loss": 0.5}\n'
    head = Head("node1", metrics=line, steps=line * (MOST_BYTES // len(line) + 1))
    texts, notes = fetched(head)
    assert texts["steps.jsonl"].encode() == line * (MOST_BYTES // len(line))
    assert notes == [
        f"steps.jsonl is incomplete: the rest is in {FOLDER}/out on node1; muster get j fetches it"
    ]
    assert head.confirmed == {"../fetched.metrics.node1.json": {"out/metrics.jsonl": len(line)}}


@pytest.mark.parametrize("problem", ["", "the disk is full"])
def test_a_host_hears_which_files_are_kept_here(problem: str) -> None:
    head = Head("node1", metrics=b"{}\n", steps=b"")
    fetched(head, problem=problem)
    sizes = {"out/metrics.jsonl": 3, "out/steps.jsonl": 0}
    assert head.confirmed == ({} if problem else {"../fetched.metrics.node1.json": sizes})


def test_what_the_same_head_gives_later_is_missing_no_more() -> None:
    assert fetched(Head("node1"), Head("node1", metrics=b"", steps=b""))[1] == []


@pytest.mark.parametrize("line", ["[" * 100_000, '{"epoch": [' + "{}," * (1 << 20) + "0]}", "9" * 10_000])
def test_a_line_that_a_host_made_to_cost_memory_or_the_stack_is_passed_over(line: str) -> None:
    texts, _ = fetched(
        Head("node1", metrics=b'{"epoch": 1}\n'), Head("node1", metrics=line.encode() + b'\n{"epoch": 2}')
    )
    assert texts["metrics.jsonl"] == '{"epoch": 1}\n' + line + '\n{"epoch": 2}'


def test_an_agent_gives_any_part_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b"0123456789")
    asked, files = {"path": str(tmp_path / "metrics.jsonl"), "start": 4, "most": 3}, Files()
    assert files.do_file_part(asked, b"") == {"payload": b"456"}
    assert files.do_file_part({**asked, "start": 10}, b"") == {"payload": b""}
    assert files.do_file_part({**asked, "path": str(tmp_path / "steps.jsonl")}, b"") == {}


@pytest.mark.parametrize("size", [0, 1, LEAST_PART, 3 * LEAST_PART + 7, 2 * MOST_PART + 7])
def test_a_file_comes_whole_in_parts(clock: Callable[[Head], None], size: int) -> None:
    content = " ".join(map(str, range(size // 4 + 1)))[:size]
    head = Head("node1", metrics=content.encode(), steps=b"")
    clock(head)
    assert fetched(head)[0].get("metrics.jsonl", "") == content


@pytest.mark.parametrize(
    ("delay", "speed"), [(0.5, 1e9), (0.2, 125e3), (0.2, 12e3), (9.9, 1e9), (math.inf, 1.0)]
)
def test_a_head_never_misses_its_driver(clock: Callable[[Head], None], delay: float, speed: float) -> None:
    head = Head("node1", delay=delay, speed=speed, metrics=b"x" * (1 << 26), steps=b"x" * (1 << 26))
    clock(head)
    fetched(head)
    assert len(head.pings) > 1
    assert max(head.silences) < SILENCE_SECONDS


@pytest.mark.parametrize(
    ("delay", "speed", "size", "seconds"),
    [
        (0.3, 125e6, 1 << 26, 10.0),  # a long round trip
        (0.1, 125e3, 30 << 20, 300.0),  # 1 Mbit/s
        (0.1, 8e3, 2 << 20, 300.0),  # 64 kbit/s
    ],
)
def test_a_slow_link_brings_the_metrics_in_time(
    clock: Callable[[Head], None], delay: float, speed: float, size: int, seconds: float
) -> None:
    head = Head("node1", delay=delay, speed=speed, metrics=b"x" * size, steps=b"")
    clock(head)
    texts, notes = fetched(head)
    assert (len(texts["metrics.jsonl"]), notes) == (size, [])
    assert head.now - 1000 < seconds


def test_no_host_holds_the_end_of_a_job_for_ever(clock: Callable[[Head], None]) -> None:
    head = Head("node1", delay=9.0, metrics=b"x" * (1 << 26), steps=b"x")
    clock(head)
    _, notes = fetched(head)
    assert head.now - 1000 == ALL_SECONDS
    assert set(head.asked) == {f"{FOLDER}/out/metrics.jsonl"}
    assert [why.partition(" could")[0] for why in notes] == ["metrics.jsonl and steps.jsonl"]


@pytest.mark.parametrize(
    ("allocation", "is_shared", "kept", "notes"),
    [("17", True, '{"epoch": 1}\n', 0), ("17", False, None, 1), ("", True, None, 1)],
    ids=["a home that is shared", "another home", "no host of Slurm"],
)
def test_a_host_that_slurm_took_back_has_left_its_files_on_the_shared_home(
    tmp_path: Path, allocation: str, is_shared: bool, kept: str | None, notes: int
) -> None:
    if is_shared:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "metrics.jsonl").write_text('{"epoch": 1}\n')
    texts, said = fetched(Head("node1"), job=str(tmp_path), allocation=allocation)
    assert (texts.get("metrics.jsonl"), len(said)) == (kept, notes)


# -- the figures in lines that programs print: of status, of top and of the page of a run --


# What well-known trainers print, each with its step, loss, share of the work and epoch.
TRAINERS = {
    "nanoGPT": ("iter 120: loss 3.2145, time 125.32ms, mfu 12.31%", (120, 3.2145, None, None)),
    "nanoGPT's evaluation": ("step 250: train loss 2.1045, val loss 2.2157", (250, 2.1045, None, None)),
    "nanochat": (
        "step 00120/21400 (0.56%) | loss: 5.123456 | lrm: 1.00 | dt: 123.45ms | tok/sec: 12,345 | epoch: 1",
        (120, 5.123456, 120 / 21400, 1),
    ),
    "torchtitan": (
        "[titan] 2026-11-27 18:00:10,123 - root - INFO - \x1b[31mstep: 10  \x1b[32mloss:  7.4321  "
        "\x1b[38;2;180;60;0mgrad_norm:  1.2345  \x1b[33mmemory:  1.50GiB(2%)  \x1b[34mtps: 1,010\x1b[39m",
        (10, 7.4321, None, None),
    ),
    "HF Trainer": (
        "{'loss': 2.1345, 'grad_norm': 1.2, 'learning_rate': 4.9e-05, 'epoch': 0.12}",
        (None, 2.1345, None, 0.12),
    ),
    "HF Trainer 5": ("{'loss': '2.1345', 'grad_norm': '1.2', 'epoch': '0.12'}", (None, 2.1345, None, 0.12)),
    "HF Trainer's evaluation": (
        "{'eval_loss': 2.3, 'eval_steps_per_second': 20.1, 'epoch': 1.0}",
        (None, None, None, 1),
    ),
    "HF Trainer's bar": (" 12%|█▏        | 120/1000 [00:45<05:32,  2.65it/s]", (120, None, 0.12, None)),
    "Lightning": (
        "Epoch 3:  45%|████▌     | 45/100 [00:12<00:15,  3.6it/s, v_num=1, train_loss=0.345]",
        (45, 0.345, None, 3.45),
    ),
    "Lightning with Rich": (
        "Epoch 3/4  ━━━━━━━╸━━━ 45/100 0:00:12 • 0:00:15 3.60it/s v_num: 1.000 train_loss_step: 0.345",
        (45, 0.345, (2 + 0.45) / 4, 3.45),
    ),
    "Megatron": (
        " [2026-11-27 18:00:00] iteration      120/  500000 | consumed samples:        30720 | elapsed time "
        "per iteration (ms): 1234.5 | global batch size:   256 | lm loss: 7.123456E+00 | loss scale: 1.0 |",
        (120, 7.123456, 120 / 500000, None),
    ),
    "DeepSpeed": ("steps: 10 loss: 2.3456 iter time (s): 0.123 samples/sec: 65.0", (10, 2.3456, None, None)),
    "DeepSpeed's optimizer": (
        "[2026-11-27 18:00:00,123] [INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=0, lr=[1e-05]",
        (10, None, None, None),
    ),
    "accelerate": (
        "Steps:  12%|█▏        | 120/1000 [00:45<05:32,  2.65it/s, lr=1e-5, step_loss=0.123]",
        (120, 0.123, 0.12, None),
    ),
    "fairseq": (
        "2026-11-27 18:00:00 | INFO | train_inner | epoch 001:    100 / 1000 loss=12.345, ppl=5200.1, "
        "wps=12345, lr=1e-05",
        (100, 12.345, None, 1.1),
    ),
    "fairseq's updates": (
        "2026-11-27 18:00:00 | INFO | train_inner | epoch 002:    100 / 1000 loss=12.345, num_updates=1100",
        (1100, 12.345, None, 2),
    ),
    "detectron": (
        "[11/27 18:00:00 d2.utils.events]:  eta: 0:12:34  iter: 119  total_loss: 1.234  loss_cls: 0.4  "
        "loss_box_reg: 0.3  time: 0.25  max_mem: 2000M",
        (119, 1.234, None, None),
    ),
    "mmengine": ("Epoch(train) [3][ 120/1000]  lr: 1e-2  loss: 0.35", (120, 0.35, None, 3.12)),
    "tqdm's postfix": (
        "train:  45%|████▌     | 450/1000 [01:23<01:42,  5.4it/s, loss=0.345]",
        (450, 0.345, 0.45, None),
    ),
    "a bar of something else": (
        "Loading checkpoint shards:  50%|█████     | 2/4 [00:01<00:01,  1.2it/s]",
        (None, None, None, None),
    ),
    "JSON": ('{"eval/loss": 0.5, "train/loss": 0.35, "trainer/global_step": 120}', (120, 0.35, None, None)),
    "dense JSON": ('{"loss":0.35,"step":1250,"max_steps":5000}', (1250, 0.35, None, None)),
    "key=value": ("ts=2026-11-27T18:00:00Z level=info step=120 loss=0.35", (120, 0.35, None, None)),
    "loguru": (
        "\x1b[32m2026-11-27 18:00:00.123\x1b[0m | \x1b[1mINFO    \x1b[0m | \x1b[36m__main__\x1b[0m:\x1b[36m"
        "step\x1b[0m:\x1b[36m42\x1b[0m - \x1b[1mstep 120/1000 - loss: 0.3500\x1b[0m",
        (120, 0.35, 0.12, None),
    ),
    "logging": ("INFO:root:step 120 loss 0.35", (120, 0.35, None, None)),
    "Keras": ("Epoch 3/10 - loss: 0.2 - val_loss: 0.3", (None, 0.2, 0.3, 3)),
    "an example of PyTorch": (
        "Train Epoch: 3 [12800/60000 (21%)]\tLoss: 0.234567",
        (None, 0.234567, None, 3),
    ),
    "LitGPT": (
        "Epoch 1 | iter 5 step 2 | loss train: 2.300, val: n/a | iter time: 12.34 ms",
        (5, 2.3, None, 1),
    ),
    "muster.train": ("step 120 loss 0.35", (120, 0.35, None, None)),
    "a step of an epoch": ("epoch 3/10  step 50/100", (50, None, 0.25, 3.5)),
    "a step of all": ("epoch 3/10  step 5000", (5000, None, None, 3)),
    "in words": ("steps: 3 of 12", (3, None, 0.25, None)),
    "an exponent": ("Iteration: 7, loss=1e-3", (7, 1e-3, None, None)),
    "thousands": ("step 1,250/10,000 loss 1,234.5", (1250, 1234.5, 0.125, None)),
    "no digit before the point": ("loss .35", (None, 0.35, None, None)),
    "an infinite loss": ("step 4 loss 1e999", (4, None, None, None)),  # JSON has no infinity
    "no total": ("step 9/0", (9, None, None, None)),
    "more than all": ("step 30/20", (30, None, 1.0, None)),
    "seconds": ("step 0.5 s, 12 ms/step: 80", (None, None, None, None)),
    "options": ("max_steps: 1000, gradient accumulation steps: 4", (None, None, None, None)),
    "other words": ("stepping stone, no loss of data", (None, None, None, None)),
}


@pytest.mark.parametrize(("line", "figures"), TRAINERS.values(), ids=TRAINERS)
def test_a_line_has_step_loss_share_and_epoch(line: str, figures: tuple[float | None, ...]) -> None:
    wanted = [None if figure is None else pytest.approx(figure) for figure in figures]
    assert [*figures_of(line)] == wanted


def test_the_time_that_is_left_follows_from_the_pace_so_far() -> None:
    assert seconds_left(0.25, 60.0) == pytest.approx(180.0)
    assert seconds_left(0.75, 60.0, before=0.25) == pytest.approx(30.0)
    assert seconds_left(1.0, 60.0) == 0.0
    assert [seconds_left(*known) for known in ((None, 60.0), (0.001, 60.0), (0.5, 0.0))] == [None] * 3
    assert seconds_left(0.5, 60.0, before=0.5) is None
