"""SIGTERM or SIGUSR1, before a scheduler takes a host away: the training saves, and ends with status 75.

    with Preemption(job) as preemption:
        for batch in loader:
            ...
            if preemption.asked():            # on every rank at the same step, whichever got the signal
                checkpoints.save(step, state)
                preemption.leave(f"saved step {step}")

Between a signal and the next step nothing happens: Python runs a handler between two instructions of its own,
and a rank that waits in a collective executes none. If the step never ends, launchers send SIGKILL next.

SIGUSR1 is for Open MPI: mpirun passes it on and goes on waiting, while after a SIGTERM of its own it kills
the ranks within tenths of a second.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from types import FrameType, TracebackType
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from .group import Job
from .sums import Purpose, message, read

PREEMPTED = 75
"""The exit status: EX_TEMPFAIL of sysexits.h, "try again later". A restart continues."""

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class _Answer:
    """A message that is under way between the ranks, to the memory of this host.

    `accelerator` is the module of a GPU or NPU, such as torch.cuda, and None for a CPU. There everything runs
    on a stream of its own, and the host waits for an event of the step before: to read a number from a device
    it would wait for all that it has been asked to do since.
    """

    def __init__(
        self,
        group: Job,
        purpose: Purpose,
        values: Sequence[float],
        *,
        step: int,
        accelerator: Any,
        stream: Any,
    ) -> None:
        self._group, self._purpose, self._step = group, purpose, step
        with accelerator.stream(stream) if accelerator else nullcontext():
            sent = message(purpose, group.rank, group.device, values, step)
            self._work = dist.all_reduce(sent, group=group.sums, async_op=True)
            self._there = None
            if accelerator:
                self._work.wait()  # the stream waits, not the host
                sent = sent.to("cpu", non_blocking=True)
                self._there = stream.record_event()
        self._sent = sent

    def read(self) -> list[float]:
        """Return the sums of the values; waits until every rank has sent its message."""
        if self._there is not None:
            self._there.synchronize()
        else:
            self._work.wait()
        return read(self._sent, self._purpose, self._group.hosts, self._step)


class Preemption:
    """Handles SIGNALS in the block; outside the main thread it does nothing."""

    def __init__(self, group: Job) -> None:
        self.group = group
        self.pid = os.getpid()
        self._signalled = False
        self._before: dict[signal.Signals, Any] = {}
        self._answer: _Answer | None = None
        self._with_batch = 0
        self._to_end = False
        device = group.device
        self._accelerator = None if device.type == "cpu" else torch.get_device_module(device)
        self._stream = self._accelerator.Stream(device) if self._accelerator else None

    def __enter__(self) -> Preemption:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.settle()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self.pid:  # a forked child, such as a worker of a DataLoader: it just ends
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._signalled = True

    def asked(self) -> bool:
        """Return whether a rank has got a signal, the same on every rank; call it once after each step.

        The answer is one call late, so that the ranks communicate it while they compute: the host does not
        wait for the step that a GPU still computes, but for the one before.
        """
        self.group.first_step_done()
        if self.group.world_size == 1:
            return self._signalled
        before, self._answer = self._answer, self._send(Purpose.ASK)
        return before is not None and before.read()[0] > 0

    def begin_step(self, step: int, *, has_batch: bool = True) -> None:
        """Tell the others that this rank begins a step, whether it has a batch for it, and got a signal."""
        if self.group.world_size > 1:
            self.settle()  # of a step that the program left
            self._answer = self._send(Purpose.STEP, float(has_batch), step=step)
            if self._accelerator is None:  # so that no rank computes where another has left the loop
                self.settle()

    def settle(self) -> int:
        """Read the message of this step, if it was not; returns how many ranks have a batch for it.

        No collective may be under way when the group is destroyed.
        """
        if self._answer is not None:
            answer, self._answer = self._answer, None
            signals, self._with_batch = (int(number) for number in answer.read()[:2])
            self._to_end = self._to_end or signals > 0
        return self._with_batch

    def ended_by_signal(self) -> bool:
        """Return whether a rank had got a signal when this step began; call it at the end of each."""
        self.group.first_step_done()
        self.settle()
        return self._to_end or (self.group.world_size == 1 and self._signalled)

    def _send(self, purpose: Purpose, *values: float, step: int = 0) -> _Answer:
        numbers = (float(self._signalled), *values)
        return _Answer(
            *(self.group, purpose, numbers), step=step, accelerator=self._accelerator, stream=self._stream
        )

    def leave(self, what_was_saved: str) -> NoReturn:
        """End every rank with status 75, after a line of rank 0 on stderr. Every rank must call it.

        No rank ends before all have called it: at the end of the first, launchers kill the others, and one
        of them may still be saving.
        """
        self.group.barrier()
        if self.group.rank == 0:
            sys.stderr.write(
                f"asked to end: {what_was_saved}; status {PREEMPTED}, a restart goes on from there\n"
            )
        raise SystemExit(PREEMPTED)
