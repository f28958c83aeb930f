"""examples/gpt.py: the same loss at any number of ranks, its options, and how it goes on after an end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException

from muster.train.checkpoint import files
from tests.load import hold
from tests.train.conftest import _prefix, environment
from tests.train.forked import run_script
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.train.conftest import Launch

GPT = str(Path(__file__).parents[2] / "examples" / "gpt.py")
SHAPE = ("--layers", "1", "--width", "16", "--heads", "2", "--context", "16")
TINY = (*SHAPE, "--batch-size", "7", "--accumulate", "2", "--log-every", "1", "--sample", "8")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    """Two files of text to train on, as options; 36 windows to evaluate on, which 2 and 3 ranks divide."""
    folder = tmp_path_factory.mktemp("text")
    for number in (1, 2):
        (folder / f"{number}.txt").write_text("".join(f"{line}, " for line in range(number, 2060, 2)))
    return "--data", str(folder)


def steps(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]


def losses(out: Path) -> list[float]:
    return [step["loss"] for step in steps(out)]


def held_out(printed: str) -> float:
    (written,) = re.findall(r"step 6: loss on held-out text (\S+)", printed)
    return float(written)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, text: tuple[str, ...]) -> list[float]:
    """The losses of one rank: of six steps, and on held-out text."""
    out = tmp_path_factory.mktemp("alone")
    (printed,) = run_script(Path(GPT), 1, *TINY, *text, "--steps", "6", out=out)
    return [*losses(out), held_out(printed)]


def test_gpt_has_the_same_loss_on_1_and_3(tmp_path: Path, text: tuple[str, ...], alone: list[float]) -> None:
    printed = run_script(Path(GPT), 3, *TINY, *text, "--steps", "6", out=tmp_path)
    assert [*losses(tmp_path), held_out(printed[0])] == pytest.approx(alone, abs=1e-4)


def test_every_0_steps_means_at_the_end(tmp_path: Path, text: tuple[str, ...]) -> None:
    never = ("--log-every", "0", "--eval-every", "0", "--save-every", "0")
    (printed,) = run_script(Path(GPT), 1, *TINY, *text, "--steps", "3", *never, out=tmp_path)
    assert re.findall(r"^step (\d.*?)[: ] ", printed, re.MULTILINE) == ["3"]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]


@pytest.mark.soak
@pytest.mark.parametrize("launcher", ["torchrun", "spawn"])
def test_the_gpt_has_the_same_loss_under_other_launchers(
    launch: Launch, text: tuple[str, ...], alone: list[float], launcher: str
) -> None:
    more = ("--spawn", "2") if launcher == "spawn" else ("--profile", "3:4")
    job = launch(launcher, 2, GPT, *TINY, *text, "--steps", "6", *more)
    assert job.status == 0, job.stdout + job.stderr
    assert [*losses(job.out), held_out(job.stdout)] == pytest.approx(alone, abs=1e-4)
    assert re.search(r"step 6/6  loss \d.\d{6}  .* tokens/s  MFU \d+\.\d%  \d+ MiB", job.stdout)
    if launcher != "spawn":
        for rank in range(2):
            trace = json.loads((job.out / "profile" / f"rank-{rank:04d}.json").read_text())
            seen = {event.get("name", "") for event in trace["traceEvents"]}
            assert {"ProfilerStep#2", "ProfilerStep#3"} <= seen  # torch counts from 0
            assert not {"ProfilerStep#1", "ProfilerStep#4"} & seen


class Started:
    """A training without an end, under a launcher."""

    def __init__(self, launcher: str, out: Path, *words: str) -> None:
        self.out = out
        self.process = subprocess.Popen(
            [*_prefix(launcher, 2), GPT, *TINY, *words, "--steps", "1000000", "--save-every", "1000000"],
            env=environment(MUSTER_OUT=str(out)),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def trains(self) -> bool:
        assert self.process.poll() is None, self.process.communicate()[1]
        return (self.out / "steps.jsonl").exists() and len(steps_begun(self.out)) > 2

    def rank(self, number: int) -> int:
        """The process id of a rank."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables = (folder / "environ").read_text(errors="replace").split("\0")
            except OSError:  # it is another user's, or has ended
                continue
            ranks = {f"RANK={number}", f"OMPI_COMM_WORLD_RANK={number}"}
            if f"MUSTER_OUT={self.out}" in variables and ranks & {*variables}:
                return int(folder.name)
        raise AssertionError(f"no process is rank {number}")


def steps_begun(out: Path) -> list[str]:
    return (out / "steps.jsonl").read_text().splitlines()


WHO: dict[str, Callable[[Started], int]] = {
    "launcher": lambda started: started.process.pid,
    "rank": lambda started: started.rank(1),
}


@pytest.mark.parametrize(
    ("launcher", "who", "number", "status"),
    [
        pytest.param("mpirun", "launcher", signal.SIGUSR1, 75, id="mpirun itself", marks=pytest.mark.soak),
        pytest.param("mpirun", "rank", signal.SIGTERM, 75, id="mpirun, rank 1", marks=pytest.mark.soak),
        pytest.param("torchrun", "launcher", signal.SIGTERM, 1, id="torchrun itself", marks=pytest.mark.soak),
        pytest.param("torchrun", "rank", signal.SIGTERM, 1, id="torchrun, rank 1", marks=pytest.mark.soak),
    ],
)
def test_a_signal_saves_and_a_restart_goes_on_from_there(
    text: tuple[str, ...], tmp_path: Path, launcher: str, who: str, number: signal.Signals, status: int
) -> None:
    """The status of torchrun is always 1: each rank's own is in its report.

    One rank goes on, as after the loss of a host: the checkpoint is good for any number of them.
    """
    started = Started(launcher, tmp_path, *text)
    wait_until(started.trains, lambda: "the first steps")
    os.kill(WHO[who](started), number)
    _, stderr = started.process.communicate()
    assert started.process.returncode == status, stderr
    (saved,) = (tmp_path / "checkpoints").iterdir()
    done = int(saved.name.removeprefix("step-"))
    assert f"asked to end: saved step {done}; status 75, a restart goes on from there" in stderr
    assert [step["step"] for step in steps(tmp_path)] == list(range(1, done + 1))

    more = (*TINY, *text, "--steps", str(done + 2))
    (printed,) = run_script(Path(GPT), 1, *more, out=tmp_path, MUSTER_RESTART="1")
    assert f"resumed from {saved}" in printed
    assert [step["step"] for step in steps(tmp_path)] == list(range(1, done + 3))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("option", "within"),
    [("--dtype bf16", 0.05), ("--dtype fp16", 0.05), ("--recompute", 1e-5), ("--workers 1", 1e-5)],
)
def test_options_that_save_time_or_memory_leave_the_loss_as_it_is(
    tmp_path: Path, text: tuple[str, ...], alone: list[float], option: str, within: float
) -> None:
    run_script(Path(GPT), 1, *TINY, *text, "--steps", "6", *option.split(), out=tmp_path)
    assert losses(tmp_path) == pytest.approx(alone[:-1], abs=within)


@pytest.mark.soak
def test_the_gpt_learns_the_standard_library_on_two_ranks_within_minutes(launch: Launch) -> None:
    """A loss of 3.1 is that of a program which knows how often each byte comes."""
    job = launch("torchrun", 2, GPT, "--steps", "60", "--eval-every", "60")
    (at_the_end,) = re.findall(r"step 60: loss on held-out text (\S+)", job.stdout)
    assert float(at_the_end) < 2.8
    learned = steps(job.out)
    hold("60 steps of the GPT", learned[-1]["time"] - learned[0]["time"], 90)


@pytest.mark.parametrize(
    ("ranks", "size", "needs"),
    [
        pytest.param(1, 64, "--batch-size 64 on 1 ranks", id="no batch"),
        pytest.param(4, 8, "--batch-size 8 on 4 ranks", id="nothing to evaluate for each rank"),
    ],
)
def test_too_little_text_is_a_clear_error(tmp_path: Path, ranks: int, size: int, needs: str) -> None:
    (tmp_path / "some.txt").write_text("x" * (44 * 16 + 1))
    words = ("--data", str(tmp_path), "--batch-size", str(size), "--steps", "1", "--peak", "1e9")
    assert _refused(tmp_path / "out", *words, ranks=ranks) == (
        f"{tmp_path}: 44 windows of text (--context) are too few for {needs}; see --data"
    )


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path, text: tuple[str, ...]) -> None:
    same = {"layers": 9, "width": 16, "heads": 2, "context": 16, "batch_size": 32, "seed": 0}
    files.save(tmp_path / "checkpoints", 3, {"same": same})
    said = _refused(tmp_path, *text, "--resume", "--peak", "1e9")
    assert said == "the checkpoint is of a training with layers 9, not 1; continue with the same"


def _refused(out: Path, *words: str, ranks: int = 1) -> str:
    """Run the example, which ends with a mistake of the user's; returns what the first rank to end says."""
    with pytest.raises((ProcessExitedException, ProcessRaisedException)) as refusal:
        run_script(Path(GPT), ranks, *SHAPE, *words, out=out)
    if isinstance(refusal.value, ProcessRaisedException):  # a single rank: it goes to the caller
        last = str(refusal.value).strip().splitlines()[-1]
        return last.removeprefix("muster.train.job.failure.TrainError: ")
    first = out / "errors" / f"rank-{refusal.value.error_index:04d}.json"
    said: str = json.loads(first.read_text())["message"]["message"]
    return said.removeprefix("error: ")


def test_the_gpt_example_is_at_most_400_lines_long() -> None:
    assert len(Path(GPT).read_text().splitlines()) <= 400
