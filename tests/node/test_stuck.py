"""A process that cannot be ended is named with its rank, its state, and the disk or device it waits for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.agent import stuck
from muster.deploy.core.agent.stuck import described
from muster.deploy.core.connect.requests import STOP
from muster.deploy.core.hosts.stuck_processes import StuckProcess, not_ended
from tests.waiting import wait_until

WRITE, FUTEX = {"x86_64": (1, 202), "aarch64": (64, 98)}.get(os.uname().machine, (1, 202))
TABLE = "24 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n32 24 7:0 / /mnt/x rw - nfs4 files:/x rw\n"
STAT = "{pid} (pt main (1)) {state} 1 0 0 0 -1 0 0 0 0 0 1 1 0 0 20 0 2 0 9 0 0"


def process(root: Path, pid: int, threads: dict[int, tuple[str, str]], files: dict[int, str]) -> None:
    """A process of another machine. `threads`: the state and the line of `syscall` of each."""
    folder = root / "proc" / str(pid)
    for thread, (state, call) in threads.items():
        inside = folder / "task" / str(thread)
        inside.mkdir(parents=True)
        (inside / "stat").write_text(STAT.format(pid=thread, state=state))
        (inside / "syscall").write_text(call)
        (inside / "wchan").write_text("rq_qos_wait" if state == "D" else "0")
    (folder / "comm").write_text("python3\n")
    (folder / "mountinfo").write_text(TABLE)
    (folder / "fd").mkdir()
    for number, path in files.items():
        (folder / "fd" / str(number)).symlink_to(path)
    (folder / "cwd").symlink_to("/home/ml")


def one(root: Path, ranks: dict[int, int] | None = None) -> StuckProcess:
    (frame,) = described([71], ranks or {}, str(root))
    return STOP.read({"over": True, "left": [frame]}).left[0]


def test_the_file_in_whose_call_a_thread_waits_is_named_with_its_disk(tmp_path: Path) -> None:
    waits = {71: ("S", f"{FUTEX} 0x0 0x0"), 72: ("D", f"{WRITE} 0x5 0x7f00 0x10 0x0 0x0 0x0 0x7ffd 0x7f1")}
    process(tmp_path, 71, waits, {5: "/mnt/x/step-9.pt", 6: "/data/a"})
    found = one(tmp_path, {71: 3})
    assert str(found) == (
        "rank 3, process 71 (python3), state D in rq_qos_wait, "
        "waits for /mnt/x/step-9.pt on /mnt/x (nfs4 files:/x)"
    )


def test_a_device_is_named_as_such(tmp_path: Path) -> None:
    process(tmp_path, 71, {71: ("D", f"{WRITE} 0x5 0x7f00")}, {5: "/dev/nvidia0"})
    assert one(tmp_path).waits_for == "/dev/nvidia0"


@pytest.mark.parametrize("call", [f"{FUTEX} 0x5 0x7f00", "running", "", "-1 0x7ffd 0x7f1"])
def test_without_a_file_in_the_call_the_disks_of_its_open_files_are_named(tmp_path: Path, call: str) -> None:
    files = {0: "/dev/null", 1: "pipe:[9]", 5: "/mnt/x/a", 6: "/mnt/x/b"}
    process(tmp_path, 71, {71: ("D", call)}, files)
    assert one(tmp_path).waits_for == "one of its disks: / (ext4 /dev/sda1), /mnt/x (nfs4 files:/x)"


def test_a_process_that_has_ended_meanwhile_is_still_a_number(tmp_path: Path) -> None:
    assert str(one(tmp_path)) == "process 71"


def test_few_processes_are_named(tmp_path: Path) -> None:
    assert not_ended([StuckProcess(1), StuckProcess(2), StuckProcess(3)]) == (
        "cannot be ended: process 1; process 2; and 1 more"
    )


def test_a_real_process_that_waits_for_a_file(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    program = f"import os; os.read(os.open({str(fifo)!r}, os.O_RDWR), 1)"
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        found: list[dict[str, Any]] = []

        def waits() -> bool:
            found[:] = described([child.pid], {child.pid: 4})
            return str(fifo) in str(found[0]["waits_for"])

        try:
            wait_until(waits, "the child reads the file")
        finally:
            child.kill()
    assert (found[0]["rank"], found[0]["pid"], found[0]["state"]) == (4, child.pid, "S")
    assert found[0]["waits_for"].startswith(f"{fifo} on ")


def test_nothing_is_read_that_needs_the_memory_of_the_process() -> None:
    source = Path(stuck.__file__).read_text().partition('"""\n\n')[2]
    assert not any(name in source for name in ("cmdline", "environ", "/maps", "}/mem"))


def test_a_process_that_only_lacks_a_processor_waits_for_no_disk(tmp_path: Path) -> None:
    process(tmp_path, 71, {71: ("R", "running")}, {5: "/mnt/x/a"})
    found = one(tmp_path)
    assert (str(found), found.ends_soon) == ("process 71 (python3), state R", True)
