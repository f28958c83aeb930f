"""Leases on the real card: a race for the one GPU, the queue, deaths of its holder, a foreign process.

Each job queues (`--wait`) while the one before it holds the GPU, so that no start is waited for twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests import fake_gpus

from .records import Proof, Recorder

T = TypeVar("T")
PATIENCE, PAUSE = 30.0, 0.05
# Without torch, whose import would take longer than everything else.
HOLDS = """
import ctypes, os, pathlib, sys, time
devices = -1
if sys.argv[1] == "cuda":
    cuda, count = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    context, memory = ctypes.c_void_p(), ctypes.c_size_t()
    for status in (cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count)),
                   cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
                   cuda.cuMemAlloc_v2(ctypes.byref(memory), 1 << 28)):
        assert status == 0, status
    devices = count.value
seen = os.environ.get("CUDA_VISIBLE_DEVICES", "-")
print(f"holds {seen} devices {devices} process {os.getpid()}", flush=True)
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.05)
"""


@dataclass
class Holder:
    """A launch whose rank holds its GPU until it is released."""

    process: subprocess.Popen[bytes]
    output: Path
    release: Path

    @property
    def text(self) -> str:
        """What it has printed."""
        return self.output.read_text(errors="replace")

    def word_after(self, word: str) -> str:
        """The word after another in its output; empty without it."""
        words = self.text.split()
        return words[words.index(word) + 1].rstrip(":,;") if word in words[:-1] else ""

    @property
    def rank(self) -> int:
        """The process of its rank, once it holds the GPU; else 0."""
        return int(self.word_after("process") or 0) if "holds" in self.text else 0

    def holds(self) -> bool:
        """Whether its rank runs."""
        return self.rank > 0

    def ended(self) -> bool:
        """Whether the launch is over."""
        return self.process.poll() is not None


class Machine:
    """Starts commands where the GPU is: the real one, or a fake one."""

    def __init__(self, proof: Proof, folder: Path) -> None:
        self._proof, self._folder = proof, folder
        self._started = 0
        self._project = folder / "project"
        self._project.mkdir()
        (self._project / "holds.py").write_text(HOLDS)
        self.fake = folder / "fake"
        if not proof.on_gpu:
            fake_gpus.install(self.fake, 1, folder.name)

    def start(self, *argv: str, output: Path) -> subprocess.Popen[bytes]:
        """Start a command with its output in a file."""
        plain = [sys.executable, "-m", "muster", *argv]
        command = plain if self._proof.on_gpu else fake_gpus.entered(1, plain)
        environment = {**os.environ} if self._proof.on_gpu else fake_gpus.environment(self.fake)
        with output.open("wb") as file:
            return subprocess.Popen(
                command,
                cwd=self._project,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def launch(self, *options: str) -> Holder:
        """Start a launch of one rank on one GPU."""
        self._started += 1
        output, release = (self._folder / f"{kind}-{self._started}" for kind in ("output", "release"))
        words = ("launch", "--gpus", "1", *options, "holds.py", self._proof.device, str(release))
        return Holder(self.start(*words, output=output), output, release)

    def free(self) -> dict[str, Any]:
        """GPU 0 as `muster free` describes it."""
        output = self._folder / "free"
        self.start("free", "--json", output=output).wait(PATIENCE)
        text = output.read_text()
        device: dict[str, Any] = json.loads(text[text.index("{") :])["localhost"]["gpus"][0]
        return device

    def foreign(self) -> subprocess.Popen[bytes]:
        """A process that uses the GPU without a lease."""
        words = [sys.executable, "holds.py", self._proof.device, str(self._folder / "release-foreign")]
        process = subprocess.Popen(words, cwd=self._project, stdout=subprocess.PIPE)
        if process.stdout:
            process.stdout.readline()
        if not self._proof.on_gpu:
            fake_gpus.use(self.fake, [(0, process.pid)])
        return process


def run(recorder: Recorder, proof: Proof) -> None:
    """Race for the GPU, kill its holders, and have a process use it without a lease."""
    with tempfile.TemporaryDirectory(prefix="muster-leases-") as folder:  # outside of a git repository
        machine = Machine(proof, Path(folder))
        first = machine.free()
        recorder.check("muster free says that the GPU is free", not first["job"] and not first["process"])
        holder = _race(recorder, machine)
        for what, victim in (("rank", _rank), ("agent", _agent), ("driver", _driver)):
            holder = _kill(recorder, machine, holder, what, victim)
        holder.release.touch()
        recorder.check("the last job ends with 0", holder.process.wait(PATIENCE) == 0)
        _foreign(recorder, machine)


def _race(recorder: Recorder, machine: Machine) -> Holder:
    """Two launches at once: one gets the GPU, the message of the other names its holder."""
    racing = [machine.launch(), machine.launch()]
    _await(lambda: any(each.ended() for each in racing) and any(each.holds() for each in racing))
    winner, loser = sorted(racing, key=Holder.ended)
    recorder.check("of two launches one gets the GPU", winner.holds() and not winner.ended())
    recorder.check(
        "its rank sees one GPU", winner.word_after("devices") in {"1", "-1"}, winner.word_after("devices")
    )
    job, said = winner.word_after("job"), loser.text
    recorder.check("the other is refused with status 3", loser.process.wait() == 3, loser.process.returncode)
    recorder.check("it names the holder's job and user", f"job {job} of " in said, note=said.strip()[-200:])
    seen = machine.free()
    recorder.check("muster free names the same job", seen["job"] == job and bool(seen["user"]), seen["job"])
    return winner


def _kill(
    recorder: Recorder, machine: Machine, holder: Holder, what: str, victim: Callable[[Holder], int]
) -> Holder:
    """Let the next job wait, kill a process of the holder, and see that the next one gets the GPU."""
    following = machine.launch("--wait")
    _await(lambda: "waits for" in following.text)
    recorder.check(f"a job with --wait waits ({what})", not following.holds())
    began = time.monotonic()
    os.kill(victim(holder), signal.SIGKILL)
    _await(following.holds)
    seconds = time.monotonic() - began
    recorder.check(f"after kill -9 of the {what} the next job runs", following.holds(), seconds, unit="s")
    _await(holder.ended)
    return following


def _rank(holder: Holder) -> int:
    return holder.rank


def _agent(holder: Holder) -> int:
    """The agent above the rank."""
    pid = holder.rank
    while pid > 1:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if b"muster agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise RuntimeError(f"no agent above process {holder.rank}")


def _driver(holder: Holder) -> int:
    return holder.process.pid


def _foreign(recorder: Recorder, machine: Machine) -> None:
    """A CUDA process without a lease: its GPU is taken, and named."""
    with machine.foreign() as process:
        try:
            seen = machine.free()
            named = f"process {process.pid} " in f"{seen['process']} "
            recorder.check("muster free names a process without a lease", named, seen["process"])
            refused = machine.launch()
            _await(refused.ended)
            holds = refused.process.returncode == 3 and seen["process"] in refused.text
            recorder.check("its GPU is not leased to a launch", holds, refused.process.returncode)
        finally:
            process.kill()
    if not machine.fake.exists():
        recorder.check("after its end the GPU is free", bool(_await(lambda: not machine.free()["process"])))


def _await(look: Callable[[], T]) -> T:
    """Look until the result is true; the last result at the time limit."""
    end = time.monotonic() + PATIENCE
    while not (seen := look()) and time.monotonic() < end:
        time.sleep(PAUSE)
    return seen
