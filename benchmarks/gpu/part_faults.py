"""Faults on a GPU: which command says what about a rank that hangs there, and what is left of one that ends.

Each fault is a launch of fault_program.py on this machine, without a hosts file. Launches that only read run
at the same time; those after which the memory of the GPU must be as before run alone.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from .. import recording
from .launches import POLL_SECONDS, Card, Faults, Launch
from .records import Proof, Recorder

IN_KERNEL_SECONDS = 1.0
LONG_SECONDS = 13.0
"""muster why calls a wait of more than 10 s a hang (deploy/features/why/hang.py), and an agent looks every
10 s which process uses which GPU (deploy/features/samples/on_host/sampler.py)."""
PAIRS = 15
STALL_SECONDS = 13
HOLDER = """
import sys, torch
kept = torch.empty(1 << 31, dtype=torch.uint8, device=sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""
LEFT_SECONDS, LEFT_MIB = 10.0, 64
"""When the memory of the GPU must be as before, and how much of it the driver may keep."""


def run(recorder: Recorder, proof: Proof) -> None:
    """Run all faults, and the cost of the recorder."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored in the background
    with tempfile.TemporaryDirectory(prefix="muster-faults-") as folder:
        faults = Faults(proof, recorder, Path(folder))
        with ThreadPoolExecutor(max(1, min(len(TOGETHER), (os.cpu_count() or 1) * 2 // 3))) as pool:
            for done in [pool.submit(guarded, fault, faults) for fault in TOGETHER]:
                done.result()
        for fault in ALONE:
            guarded(fault, faults)
    recorder_cost(recorder, proof)


def guarded(fault: Callable[[Faults], None], faults: Faults) -> None:
    """Run a fault; one that does not go as expected costs only its own record."""
    with faults.recorder.step((fault.__doc__ or "").strip().rstrip(".")):
        fault(faults)


# -- ranks that hang --


def first(text: str) -> str:
    """The first line of a text."""
    return text.strip().partition("\n")[0]


def named_by(faults: Faults, launch: Launch, fault: str, command: str, line: str) -> str:
    """Check that a command names the line of a rank; returns what it prints."""
    text = launch.ask(command)
    faults.recorder.check(
        f"{fault}: {command} names the line", f"{line} (train.py:" in text, note=first(text)
    )
    return text


def evaluated(launch: Launch, expression: str) -> str:
    """What `muster eval` prints."""
    return launch.ask("eval", expression, "--timeout", str(min(60, round(5 * launch.patience))))


def answers(faults: Faults, launch: Launch, fault: str) -> None:
    """Check `eval` on a rank whose main thread lets others run."""
    answer = evaluated(launch, "rank + 41")
    faults.recorder.check(f"{fault}: eval answers", answer.startswith("rank 0: 41"), note=first(answer))


def in_item(faults: Faults) -> None:
    """A rank in loss.item()."""
    fault = "in item()"
    with faults.launch("item") as launch:
        launch.pid()
        named_by(faults, launch, fault, "stacks", "hang_in_item")
        answers(faults, launch, fault)
        tensor = evaluated(launch, "loss")
        expected = "waits for the GPU" if faults.proof.on_gpu else "tensor([1.])"
        faults.recorder.check(f"{fault}: eval of a tensor there", expected in tensor, note=first(tensor))
        named_by(faults, launch, fault, "why", "hang_in_item")


def in_synchronize(faults: Faults) -> None:
    """A rank in torch.cuda.synchronize()."""
    fault = "in synchronize()"
    with faults.launch("synchronize") as launch:
        launch.pid()
        time.sleep(LONG_SECONDS)
        why = named_by(faults, launch, fault, "why", "hang_in_synchronize")
        named_by(faults, launch, fault, "stacks", "hang_in_synchronize")
        if faults.proof.on_gpu:
            faults.recorder.check(f"{fault}: why says that it waits for its GPU", "waits for its GPU" in why)
            if "while its GPU is busy" not in why:  # nvidia-smi may be slow
                time.sleep(LONG_SECONDS)
                why = launch.ask("why")
            told = "while its GPU is busy" in why
            faults.recorder.check(f"{fault}: why says that its GPU is busy", told, note=first(why))
        answers(faults, launch, fault)


def with_lock(faults: Faults) -> None:
    """A rank in a CUDA call that keeps the interpreter's lock."""
    fault = "in a call with the interpreter's lock"
    with faults.launch("alone") as launch:
        launch.pid()
        for command in ("stacks", "why"):
            named_by(faults, launch, fault, command, "hang_alone")
        answer = evaluated(launch, "rank")
        told = "lets no other thread of Python run" in answer
        faults.recorder.check(f"{fault}: eval says that it cannot", told, note=first(answer))


def idle(faults: Faults) -> None:
    """A rank that waits for a kernel with an idle processor."""
    fault = "idle, in a kernel"
    with faults.launch("idle", "--stall-timeout", str(STALL_SECONDS)) as launch:
        launch.pid()
        time.sleep(1.5 * STALL_SECONDS)
        if faults.proof.on_gpu:
            runs = launch.process.poll() is None
            faults.recorder.check(f"{fault}: --stall-timeout does not end it", runs, note=launch.ask("why"))
        else:
            stalled = "no rank has printed anything" in launch.wait() and launch.status == 3
            faults.recorder.check(f"{fault}: without a kernel --stall-timeout ends it", stalled)


def missed(faults: Faults, backend: str) -> None:
    """Rank 0 waits in a collective for rank 1, which hangs in a kernel."""
    fault = f"{backend}, rank 1 in a kernel"
    with faults.launch(backend, ranks=2) as launch:
        for rank in (0, 1):
            launch.pid(rank)
        time.sleep(LONG_SECONDS)
        verdict = json.loads(launch.ask("why", "--json"))
        named = (verdict["culprits"], verdict["waiting"]) == ([1], [0])
        faults.recorder.check(f"{fault}: why blames it", verdict["hang"] and named, note=verdict["summary"])
        in_kernel = "hang_in_synchronize" in verdict["cause"]
        faults.recorder.check(f"{fault}: why names its line", in_kernel, note=verdict["cause"])


def missed_gloo(faults: Faults) -> None:
    """A missed collective of Gloo."""
    missed(faults, "gloo")


def missed_nccl(faults: Faults) -> None:
    """A missed collective of NCCL."""
    missed(faults, "nccl")


# -- ranks that fail --


def hinted(faults: Faults, fault: str, expected: str, *options: str, ranks: int = 1) -> None:
    """Check that the verdict of a failed launch has a note."""
    with faults.launch(fault, *options, ranks=ranks) as launch:
        output = launch.wait()
    notes = [line.strip() for line in output.splitlines() if line.strip().startswith("note: ")]
    found = [note for note in notes if expected in note]
    failed = launch.status not in {0, 2, 3}
    note = "; ".join(found or notes)
    faults.recorder.check(f"{fault}: a note names the cause", failed and bool(found), note=note)


def assertion(faults: Faults) -> None:
    """An index out of range in a kernel."""
    hinted(faults, "assertion", "CUDA_LAUNCH_BLOCKING=1")


def located(faults: Faults) -> None:
    """The same, where the program waits for each kernel."""
    name = "assertion, CUDA_LAUNCH_BLOCKING=1: the traceback has its line"
    if not faults.proof.on_gpu:
        faults.recorder.skip(name, "no GPU")
        return
    with faults.launch("assertion", "--env", "CUDA_LAUNCH_BLOCKING=1") as launch:
        output = launch.wait()
    has_line = "chosen = values[" in output and "has it name the line" not in output
    faults.recorder.check(name, has_line)


def access(faults: Faults) -> None:
    """An illegal access of a kernel."""
    hinted(faults, "access", "CUDA_LAUNCH_BLOCKING=1")


def duplicate(faults: Faults) -> None:
    """Two ranks of NCCL on one GPU."""
    hinted(faults, "duplicate", "two ranks use one GPU", ranks=2)


def hidden(faults: Faults) -> None:
    """A rank whose GPU is hidden."""
    if faults.proof.on_gpu:
        hinted(faults, "hidden", "CUDA_VISIBLE_DEVICES", "--env", "CUDA_VISIBLE_DEVICES=")
    else:
        faults.recorder.skip("hidden: a note names the cause", "no GPU")


# -- what is left --


def left(faults: Faults, launch: Launch, fault: str, before: int) -> None:
    """Check that a job that has ended leaves nothing on the GPU."""
    card, began = Card(faults.proof), time.monotonic()
    while time.monotonic() - began < LEFT_SECONDS:
        users, more = card.users(launch.place), card.memory() - before
        if not users and more <= LEFT_MIB:
            break
        time.sleep(POLL_SECONDS)
    seconds = time.monotonic() - began
    note = f"{len(users)} processes, {more} MiB more than before"
    clean = not users and more <= LEFT_MIB
    faults.recorder.check(f"{fault}: nothing is left on the GPU", clean, seconds, unit="s", note=note)


def killed(faults: Faults) -> None:
    """A rank that is killed in a kernel."""
    fault, before = "killed in a kernel", Card(faults.proof).memory()
    with faults.launch("item") as launch:
        pid = launch.pid()
        time.sleep(IN_KERNEL_SECONDS)
        used, began = Card(faults.proof).memory(), time.monotonic()
        os.kill(pid, signal.SIGKILL)
        output = launch.wait()
        seconds = time.monotonic() - began
        if faults.proof.on_gpu:
            faults.recorder.figure(f"{fault}: memory of the rank", used - before, "MiB")
        ended = launch.status == 137 and "SIGKILL" in output
        faults.recorder.check(f"{fault}: the job ends with its signal", ended, seconds, unit="s")
        left(faults, launch, fault, before)


def interrupted(faults: Faults) -> None:
    """A launch that gets Ctrl-C while its rank is in a kernel."""
    fault, before = "Ctrl-C in a kernel", Card(faults.proof).memory()
    with faults.launch("synchronize") as launch:
        launch.pid()
        time.sleep(IN_KERNEL_SECONDS)
        began = time.monotonic()
        launch.process.send_signal(signal.SIGINT)
        output = launch.wait()
        seconds = time.monotonic() - began
        ended = launch.status == 130 and "STOPPED" in output
        faults.recorder.check(f"{fault}: the launch ends with 130", ended, seconds, unit="s")
        left(faults, launch, fault, before)


def full_memory(faults: Faults) -> None:
    """A rank without memory on its GPU, which another rank and another program have."""
    before = Card(faults.proof).memory()
    with holder(faults.proof) as pid, faults.launch("memory", "--env", f"HOLDER={pid}", ranks=2) as launch:
        lines = [line.strip() for line in launch.wait().splitlines()]
    note = next((line for line in lines if " is full: rank 1 asked for" in line), "")
    parts = ("GPU 0 of localhost", "is free", "it has", "rank 0 has", f"(process {pid}) has")
    named = all(part in note for part in parts)
    faults.recorder.check("memory: the verdict names who has it", named, note=note)
    left(faults, launch, "memory", before)


@contextmanager
def holder(proof: Proof) -> Iterator[int]:
    """Another program with memory on the GPU; yields its process."""
    argv = [sys.executable, "-c", HOLDER, proof.device]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout:
            process.stdout.readline()
        yield process.pid
        process.communicate()


TOGETHER = (
    idle, in_item, in_synchronize, with_lock, missed_gloo, missed_nccl,
    assertion, located, access, duplicate, hidden,
)  # fmt: skip
ALONE = (killed, interrupted, full_memory)


# -- the recorder --


def recorder_cost(recorder: Recorder, proof: Proof) -> None:
    """The cost of the recorder per step, in pairs of blocks by turns."""
    for backend, ranks, calls in (("gloo", 2, 1), *((("nccl", 1, 20),) if proof.on_gpu else ())):
        words = [backend, proof.device, *map(str, (512, 256, calls, 20))]
        blocks = recording.measure(words, ranks, 3 if proof.short else PAIRS)
        name = f"a step of DDP and {calls} all_reduce, {backend}, {ranks} ranks"
        plain = statistics.median(block.step for block, _ in blocks)
        ratios = [with_it.step / without.step for without, with_it in blocks]
        spread = "quartiles {:.3f} to {:.3f} of {} pairs".format(
            *statistics.quantiles(ratios, n=4)[::2], len(ratios)
        )
        recorder.figure(f"{name}: without the recorder", 1e3 * plain, "ms")
        recorder.figure(f"{name}: with it, times", statistics.median(ratios), note=spread)
