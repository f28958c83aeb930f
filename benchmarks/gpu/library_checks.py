"""What muster.train promises about a GPU: the host does not wait for it, and no memory is used twice.

Each check keeps the compute stream busy with a kernel that only waits, and looks whether it still runs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from muster.train import Job, TrainError
from muster.train.checkpoint.random_numbers import random_state, set_random_state
from muster.train.data.on_device import OnDevice
from muster.train.job.preemption import _Answer
from muster.train.job.sums import Purpose
from muster.train.reporting.steps import peak_memory

CYCLES = 400_000_000  # of the kernel: some tenths of a second
SIZE = 1 << 20


def run(job: Job) -> dict[str, str]:
    """Run every check; returns what is wrong, by name."""
    checks: tuple[Callable[[Job], None], ...] = (
        prefetches_while_the_gpu_computes, keeps_prefetched_batches_apart, means_without_waiting,
        asks_for_a_signal_without_waiting, continues_the_random_numbers, finds_a_loss_that_is_not_finite,
        measures_the_peak_of_memory,
    )  # fmt: skip
    return {check.__name__.replace("_", " "): what_is_wrong(check, job) for check in checks}


def what_is_wrong(check: Callable[[Job], None], job: Job) -> str:
    try:
        check(job)
        torch.cuda.synchronize(job.device)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome
        return f"{type(error).__name__}: {error}"
    return ""


def busy() -> torch.cuda.Event:
    """Keep the current stream busy; returns the event of its end."""
    torch.cuda._sleep(CYCLES)
    done = torch.cuda.Event()
    done.record()
    return done


def prefetches_while_the_gpu_computes(job: Job) -> None:
    place, batch = OnDevice(job.device), torch.arange(float(SIZE)).pin_memory()
    place(batch)
    torch.cuda.synchronize()
    computing = busy()
    moved = place(batch)
    assert place._stream is not None
    place._stream.synchronize()
    assert not computing.query(), "the copy waited for the kernel before it"
    assert torch.equal(moved.cpu(), batch)


def keeps_prefetched_batches_apart(job: Job) -> None:
    """A batch that the program has dropped may still be read by a kernel."""
    place, sums = OnDevice(job.device), []
    for number in range(20):
        moved = place({"numbers": torch.full((SIZE,), float(number)).pin_memory()})
        torch.cuda._sleep(CYCLES // 40)
        sums.append(moved["numbers"].mean())
        del moved
    assert torch.stack(sums).tolist() == list(range(20)), sums


def means_without_waiting(job: Job) -> None:
    weight = torch.ones(SIZE, device=job.device, requires_grad=True)
    job.global_mean(weight * 2)
    torch.cuda.synchronize()
    computing = busy()
    mean = job.global_mean(weight * 2)
    assert not computing.query(), "global_mean waited for the device"
    assert mean.item() == 2.0


def asks_for_a_signal_without_waiting(job: Job) -> None:
    stream = torch.cuda.Stream(job.device)

    def answer(signalled: float) -> float:
        asked = _Answer(job, Purpose.ASK, (signalled,), step=0, accelerator=torch.cuda, stream=stream)
        return asked.read()[0]

    answer(0.0)
    torch.cuda.synchronize()
    computing = busy()
    asked = answer(1.0)
    assert not computing.query(), "the answer waited for the device"
    assert asked


def continues_the_random_numbers(job: Job) -> None:
    state = random_state(job.device)
    first = torch.rand(8, device=job.device), torch.rand(8)
    set_random_state(state, job.device)
    second = torch.rand(8, device=job.device), torch.rand(8)
    assert all(map(torch.equal, first, second)), (first, second)


def finds_a_loss_that_is_not_finite(job: Job) -> None:
    job.check_finite(1, [torch.ones(3, device=job.device), torch.ones(3)])
    job.losses.note(torch.full((), torch.inf, device=job.device))
    try:
        job.check_finite(2)
    except TrainError as error:
        assert "inf or nan on rank 0" in str(error), error
    else:
        raise AssertionError("the loss is taken for a finite one")


def measures_the_peak_of_memory(job: Job) -> None:
    torch.cuda.reset_peak_memory_stats(job.device)
    before = torch.cuda.memory_allocated(job.device)
    block = torch.empty(64 << 20, dtype=torch.uint8, device=job.device)
    del block
    assert peak_memory(job.device) - before == 64 << 20, (peak_memory(job.device), before)
