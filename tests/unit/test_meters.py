"""What an agent measures: rates from two readings of /proc, GPUs from a recorded nvidia-smi, and ranks."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.agent.processes import ProcessStat
from muster.deploy.core.hosts.host_sample import of_json
from muster.deploy.core.wire.clock import steady
from muster.deploy.features.samples.on_host import sampler as rank_meter
from muster.deploy.features.samples.on_host import sampler as sampler_here
from muster.deploy.features.samples.on_host.gpu_meter import FIELDS, GpuMeter, parse
from muster.deploy.features.samples.on_host.meter import HostMeter, Rates
from muster.deploy.features.samples.on_host.sampler import (
    MOST_BYTES,
    RankMeter,
    Sampler,
    TrainingMeter,
    last_step,
    launcher_of,
)
from tests.waiting import wait_until

NET = """Inter-| Receive
 face |bytes
    lo: 9 0 0 0 0 0 0 0 9 0
  eth0: {} 1 0 0 0 0 0 0 {} 2
 veth1: 5 0 0 0 0 0 0 0 5 0
"""
DISK = """   8 0 sda 10 0 {} 3 20 0 {} 4 0 5 6
   8 1 sda1 1 0 7 0 1 0 7 0 0 0 0
   7 0 loop0 1 0 9 0 1 0 9 0 0 0 0
"""
MEMORY = "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 400 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n"


def machine(root: Path, busy: int, idle: int, came: int = 0, read: int = 0) -> str:
    """The files of a machine that was so many ticks busy and idle."""
    files = {
        "proc/loadavg": "3.50 2.00 1.00 4/512 999\n",
        "proc/stat": f"cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 1 1 1\n",
        "proc/meminfo": MEMORY,
        "proc/net/dev": NET.format(came, 2 * came),
        "proc/diskstats": DISK.format(read, 2 * read),
        "sys/block/sda/size": "1",
        "sys/block/loop0/size": "1",
        "sys/class/thermal/thermal_zone0/temp": "45000\n",
        "sys/class/thermal/thermal_zone1/temp": "61500\n",
        "sys/class/hwmon/hwmon0/temp1_input": "not now\n",
    }
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return str(root)


def test_rates_come_from_two_readings(tmp_path: Path) -> None:
    meter = HostMeter(machine(tmp_path, busy=100, idle=100))
    first = meter.read(10.0)
    assert (first["cpu"], first["net_in"], first["disk_read"]) == (None, None, None)
    machine(tmp_path, busy=160, idle=120, came=3000, read=8)
    second = meter.read(12.0)
    assert second["cpu"] == 0.75
    assert (second["net_in"], second["net_out"]) == (1500.0, 3000.0)
    assert (second["disk_read"], second["disk_write"]) == (4 * 512.0, 8 * 512.0)
    assert (second["memory"], second["memory_total"], second["swap"]) == (600 << 10, 1000 << 10, 30 << 10)
    assert (second["load"], second["temperature"]) == (3.5, 61.5)


def test_a_host_without_any_of_these_files_is_measured_all_the_same(tmp_path: Path) -> None:
    meter = HostMeter(str(tmp_path))
    meter.read(1.0)
    sample = of_json({**meter.read(2.0), "at": 1, "host": "bare"})
    assert (sample.load, sample.memory, sample.temperature, sample.shm) == (None, None, None, None)


def test_the_sample_of_this_host_is_well_formed() -> None:
    meter = HostMeter()
    meter.read(1.0)
    sample = of_json({**meter.read(2.0), "at": 1, "host": "here"})
    assert sample.memory_total and sample.memory and sample.memory < sample.memory_total


def test_a_counter_that_begins_anew_gives_no_rate() -> None:
    rates = Rates()
    assert [rates.of("a", count, at) for count, at in ((5, 1.0), (9, 2.0), (1, 3.0), (2, 4.0))] == [
        *(None, 4.0, None, 1.0)
    ]


# -- GPUs --

H100 = "1, NVIDIA H100 80GB HBM3, 97, 71234, 81559, 612.48, 61, 1755, 0"
LINES = [
    "0, NVIDIA H100 80GB HBM3, 3, 4, 81559, 70.15, 31, 345, [N/A]",
    *(H100, "Unable to determine the device handle"),
]


def smi(tmp_path: Path, *lines: str, then: str) -> str:
    """A recorded nvidia-smi, which keeps what it was called with."""
    printed = "\n".join(f"echo '{line}'" for line in lines)
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho \"$*\" >> '{tmp_path}/calls'\n{printed}\n{then}\n")
    program.chmod(0o755)
    return str(program)


def test_one_nvidia_smi_prints_all_readings(tmp_path: Path) -> None:
    meter = GpuMeter(smi(tmp_path, *LINES, then="exec sleep 1000"))
    try:
        gpus = wait_until(lambda: [*read] if len(read := meter.read()) == 2 else None, "both GPUs")
        assert [gpu["index"] for gpu in gpus or []] == [0, 1]
        assert of_json({"at": 1, "host": "a", "gpus": gpus}).gpus[1].memory == 71234 << 20
        assert (tmp_path / "calls").read_text().splitlines() == [
            f"--query-gpu={FIELDS} --format=csv,noheader,nounits --loop=2"
        ]
    finally:
        meter.close()


def test_an_nvidia_smi_that_ends_is_not_started_again_at_once(tmp_path: Path) -> None:
    meter = GpuMeter(smi(tmp_path, then="exit 9"))
    meter.read()
    wait_until(lambda: meter._process is None, "its end")
    assert [meter.read() for _ in range(5)] == [[]] * 5
    assert len((tmp_path / "calls").read_text().splitlines()) == 1


def test_where_there_is_no_driver_nothing_is_started() -> None:
    assert GpuMeter("").read() == []


def test_what_a_gpu_does_not_measure_is_none() -> None:
    assert parse(H100)["power"] == 612.48
    assert parse(LINES[0])["ecc"] is None
    assert parse("0, T4, [N/A], 1, 2, nan, inf, [Unknown Error], -1")["power"] is None
    assert [parse(line) for line in ("", "No devices were found", "a,b", LINES[2])] == [{}] * 4


# -- ranks --


@pytest.fixture
def wrapper() -> Iterator[subprocess.Popen[bytes]]:
    """A wrapper whose program computes until it gets a signal."""
    program = f"{sys.executable} -c 'while True: pass'"
    process = subprocess.Popen(["sh", "-c", f"{program} & wait"], start_new_session=True)
    yield process
    os.killpg(process.pid, 9)
    process.wait()


def test_a_rank_has_the_figures_of_all_its_processes(wrapper: subprocess.Popen[bytes]) -> None:
    meter = RankMeter()
    read = wait_until(lambda: meter.read({3: wrapper.pid}, steady()), "its program")
    assert read[0].keys() == {"rank", "memory", "threads", "state"}  # nothing to compare with yet

    def busy() -> list[dict[str, Any]]:
        ranks = meter.read({3: wrapper.pid}, steady())
        return ranks if ranks and ranks[0]["cpu"] > 0 else []

    sample = of_json({"at": 1, "host": "a", "ranks": wait_until(busy, "processor time")})
    assert sample.ranks[0].rank == 3 and sample.ranks[0].memory and sample.ranks[0].threads
    assert sample.ranks[0].state != "T"
    os.killpg(wrapper.pid, signal.SIGSTOP)
    wait_until(lambda: meter.read({3: wrapper.pid}, steady())[0]["state"] == "T", "a stopped program")


def test_a_program_that_a_thread_of_a_rank_has_started_is_one_of_its_processes() -> None:
    """It may be all that works for the rank, which would seem idle without it."""
    run = "threading.Thread(target=subprocess.run, args=(['sleep', '100'],)).start()"
    words = [sys.executable, "-c", f"import subprocess, threading; {run}"]
    process = subprocess.Popen(words, start_new_session=True)
    try:
        wait_until(lambda: rank_meter.children_of(process.pid), "the program")
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_a_rank_that_has_ended_is_left_out() -> None:
    assert RankMeter().read({0: 1 << 22}, steady()) == []


def test_a_process_that_is_only_found_late_does_not_look_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = {"faults": 0, "ticks": 50_000, "threads": 1, "start": 100, "memory": 1}
    old = rank_meter.ProcessUse(ProcessStat("R", parent=1, **counts), read=9, written=9)
    meter = RankMeter()
    monkeypatch.setattr(rank_meter, "children_of", lambda wrapper: [8])
    monkeypatch.setattr(rank_meter, "read_use", lambda pid: old)
    meter._seen[0] = (100.0, {})
    assert meter.read({0: 7}, 102.0)[0]["cpu"] == 0.0


# -- training --


def test_the_newest_step_is_read_and_what_json_lacks_is_left_out(tmp_path: Path) -> None:
    training = TrainingMeter(str(tmp_path))
    assert training.read() is None
    (tmp_path / "steps.jsonl").write_text(
        '{"step": 1, "loss": 2.5}\n{"step": 2, "loss": NaN, "time": 7}\n{"st'
    )
    assert training.read() == {"step": 2, "time": 7}


def test_what_an_earlier_attempt_wrote_is_no_step_of_this_one(tmp_path: Path) -> None:
    steps = tmp_path / "steps.jsonl"
    steps.write_text('{"step": 7}\n{"step": 8}\n')
    training = TrainingMeter(str(tmp_path))
    assert training.read() is None
    steps.write_text('{"step": 7}\n')  # a training that resumes sets later steps aside
    assert training.read() is None
    steps.write_text('{"step": 7}\n{"step": 8}\n')
    assert training.read() == {"step": 8}


@pytest.mark.parametrize(
    "tail", [b"", b"{}\n", b"[1]\n", b'{"step": true}\n', b'{"step": 1}', b"[" * 9999 + b"\n"]
)
def test_a_line_without_a_step_is_no_figure(tail: bytes) -> None:
    assert last_step(tail) is None


# -- the sampler --


def test_an_error_costs_the_sample_and_nothing_else(tmp_path: Path) -> None:
    calls, done = [0], threading.Event()
    sent: list[dict[str, Any]] = []

    def wrappers() -> dict[int, int]:
        calls[0] += 1
        if calls[0] % 2:
            raise RuntimeError("dictionary changed size during iteration")
        return {}

    def send(frame: dict[str, Any]) -> None:
        sent.append(frame)
        if len(sent) == 2:
            done.set()

    values: Any = itertools.cycle([{"loss": float("nan")}, {"text": "x" * MOST_BYTES}, {"step": 7}])
    sampler = Sampler(wrappers, str(tmp_path), 0.01, send)
    sampler._training.read = lambda: next(values)  # type: ignore[method-assign]
    assert done.wait(60)
    sampler.close()
    assert {frame["event"] for frame in sent} == {"sample"}
    read = [of_json({**json.loads(frame["sample"]), "at": 1, "host": "a"}) for frame in sent]
    assert {sample.training and sample.training.step for sample in read} <= {7, None}


def test_the_gpus_of_a_rank_are_of_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = os.getpid()  # whose processes are read
    users = {0: {"1"}, 2: {"1", str(wrapper), "77"}, 3: {str(wrapper)}}
    monkeypatch.setattr(sampler_here, "gpu_users", lambda: users)
    monkeypatch.setattr(sampler_here, "GPU_USERS_SECONDS", 0.01)
    child = subprocess.Popen(["sleep", "1000"])
    sampler = Sampler(lambda: {5: wrapper}, str(tmp_path), 1000, lambda frame: None)
    try:
        monkeypatch.setattr(sampler._gpus, "read", lambda: [parse(H100), {**parse(H100), "index": 2}])
        wait_until(lambda: sampler._gpu_users, "the processes on the GPUs")
        sample = sampler.sample()
        assert of_json({**sample, "at": 1, "host": "a"}).ranks[0].gpus == (2, 3)
        sampler._newest = sample
        assert {rank: [gpu["index"] for gpu in gpus] for rank, gpus in sampler.gpus().items()} == {5: [2]}
        users.clear()  # as in a container
        assert sampler.sample()["ranks"][0]["gpus"] is None
    finally:
        sampler.close()
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("command", "launcher"),
    [
        ("/usr/bin/python3 /opt/bin/torchrun --nproc-per-node 2 train.py --epochs 3", "torchrun train.py"),
        ("python -u -m torch.distributed.run --nnodes=1 --standalone sub/train.py", "torchrun sub/train.py"),
        ("python3.12 -m torch.distributed.launch --nnodes 1 train.py", "torchrun train.py"),
        ("mpirun -n 2 python train.py", "mpirun train.py"),
        ("/usr/bin/python3 /opt/bin/accelerate launch train.py", "accelerate launch train.py"),
        ("python /opt/bin/deepspeed --num_gpus 2 train.py", "deepspeed train.py"),
        ("mpiexec -n 2 ./solver", "mpiexec"),
        # One job on several hosts, whose host each rank is.
        ("python /opt/bin/torchrun --nnodes 2 --node-rank 1 --rdzv_endpoint node1:29400 train.py", ""),
        ("mpirun --host node1,node2 python train.py", ""),
        ("python /opt/bin/accelerate config", ""),
        ("python train.py torchrun", ""),
        ("sh train.sh", ""),
        ("", ""),
    ],
)
def test_a_process_that_starts_ranks_of_its_own_is_known_by_its_command(command: str, launcher: str) -> None:
    assert launcher_of(command.split(" ")) == launcher


def test_a_sample_names_the_launcher_that_a_rank_has_become(tmp_path: Path) -> None:
    (tmp_path / "torchrun").write_text("#!/bin/sh\nread -r end\n")
    (tmp_path / "torchrun").chmod(0o755)
    meter, script = RankMeter(), "read -r go; exec ./torchrun train.py; :"
    wrapper = f"import subprocess; subprocess.run(['sh', '-c', {script!r}])"
    process = subprocess.Popen(
        [sys.executable, "-c", wrapper], cwd=tmp_path, stdin=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: meter.read({0: process.pid}, steady()), "the shell")
        assert [rank.get("launcher") for rank in meter.read({0: process.pid}, steady())] == [None]
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
        wait_until(lambda: launcher_of(command_below(process.pid)), "its launcher")
        assert [rank["launcher"] for rank in meter.read({0: process.pid}, steady())] == ["torchrun train.py"]
    finally:
        process.stdin.close() if process.stdin else None
        process.wait()


def command_below(wrapper: int) -> list[str]:
    (pid,) = Path(f"/proc/{wrapper}/task/{wrapper}/children").read_text().split()
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")
