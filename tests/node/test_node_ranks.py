"""What an agent knows of its ranks: whether memory ran out, where they are."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from muster.deploy.core.agent import cgroups
from muster.deploy.core.agent import ranks as ranks_here
from muster.deploy.core.agent.ranks import Ranks, memory_limit
from muster.deploy.features.why.on_host import evidence
from muster.deploy.features.why.on_host.evidence import take_stacks

PY_SPY = shutil.which("py-spy", path=str(Path(sys.executable).parent)) or "py-spy"


def test_a_kill_by_the_kernel_explains_one_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counter, limit = tmp_path / "memory.oom_control", tmp_path / "memory.limit_in_bytes"
    counter.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    limit.write_text(f"{256 << 20}\n")
    monkeypatch.setattr(
        ranks_here, "group_files", lambda of, v2, v1, process="self": iter([str(tmp_path / v1)])
    )
    ranks = Ranks()
    killed = {"code": -signal.SIGKILL}
    assert ranks.ended(0, killed) == killed
    counter.write_text("oom_kill 5\n")
    assert ranks.ended(1, {"code": 1}) == {"code": 1}
    assert ranks.ended(2, killed) == {**killed, "out_of_memory": {"limit": 256 << 20}}
    assert ranks.ended(3, killed) == killed
    assert ranks.other_kills() == {"kills": 0, "limit": 256 << 20}


def test_kills_below_ranks_are_counted_afterwards(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For example a worker of a data loader; the group of a container goes with it."""
    group = tmp_path / "group"
    group.mkdir()
    monkeypatch.setattr(
        ranks_here,
        "group_files",
        lambda of, v2, v1, process="self": iter([f"{group}/{v2}", f"{tmp_path}/{v2}"]),
    )
    counter = group / "memory.events"
    counter.write_text("oom 0\noom_kill 4\n")
    (tmp_path / "memory.events").write_text("oom 9\noom_kill 9\n")
    (group / "memory.max").write_text("max\n")
    (tmp_path / "memory.max").write_text(f"{1536 << 20}\n")
    ranks = Ranks()
    counter.write_text("oom 2\noom_kill 6\n")
    assert ranks.ended(1, {"code": 1}) == {"code": 1}
    shutil.rmtree(group)
    assert ranks.other_kills() == {"kills": 2, "limit": 1536 << 20}


@pytest.mark.parametrize(("text", "limit"), [("max\n", None), ("9223372036854771712\n", None), ("7\n", 7)])
def test_no_limit_is_written_in_two_ways(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, limit: int | None
) -> None:
    (tmp_path / "memory.max").write_text(text)
    monkeypatch.setattr(
        ranks_here, "group_files", lambda of, v2, v1, process="self": iter([str(tmp_path / v2)])
    )
    assert memory_limit() == limit


def test_the_counter_of_this_machine_can_be_read() -> None:
    """An unreadable counter counts nothing, and then no kill would ever be explained."""
    places = [*cgroups.group_files("memory", "memory.events", "memory.oom_control"), "/proc/vmstat"]
    texts = [Path(place).read_text() for place in places if Path(place).is_file()]
    counts = [int(count) for text in texts for count in re.findall(r"^oom_kill (\d+)$", text, re.MULTILINE)]
    assert counts, f"no counter in {places}"
    assert ranks_here.OomKills().count() == counts[0]


def test_the_own_groups_counter_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(cgroups, "ROOT", f"{tmp_path}")
    own, *_ = cgroups.group_files("memory", "memory.events", "memory.oom_control")
    Path(own).parent.mkdir(parents=True)
    Path(own).write_text("low 0\noom_kill 123456789\n")
    assert ranks_here.OomKills().count() == 123456789


OLD = "cpu/x/cpu.cfs_"


@pytest.mark.parametrize(
    ("group", "files", "cores"),
    [
        ("0::/\n", {"cpu.max": "max 100000\n"}, 4),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),  # as docker run --cpus 1
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "350000 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "800000 100000\n"}, 4),
        ("4:cpu,cpuacct:/x\n", {f"{OLD}quota_us": "200000\n", f"{OLD}period_us": "100000\n"}, 2),
        ("4:cpu,cpuacct:/x\n", {f"{OLD}quota_us": "-1\n", f"{OLD}period_us": "100000\n"}, 4),
        ("", {}, 4),
    ],
)  # fmt: skip
def test_the_cores_of_a_host_are_those_that_its_quotas_allow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, group: str, files: dict[str, str], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    groups = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {"proc/self/cgroup": group, **groups}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert cgroups.usable_cores(str(tmp_path)) == cores


def test_a_stack_is_read_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "PY_SPY_SECONDS", 60.0)  # a busy machine may take more than a host should
    program = "import time\ndef nap():\n    print('here', flush=True)\n    time.sleep(60)\nnap()"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        taken = take_stacks(PY_SPY, {7: (process.pid, "S")}, "/code")
        process.kill()
    assert [frame[0] for frame in taken["7"]["frames"]] == ["nap", "<module>"]


def test_why_there_is_no_stack_is_said() -> None:
    assert "FileNotFoundError" in take_stacks("/no/py-spy", {0: (1, "S")}, "/code")["0"]["error"]
    assert take_stacks(PY_SPY, {0: (2**22 - 1, "S")}, "/code")["0"]["error"]


def test_a_python_that_starts_has_no_stack_yet(tmp_path: Path) -> None:
    tool = tmp_path / "py-spy"
    tool.write_text("#!/bin/sh\necho '[]'\n")
    tool.chmod(0o755)
    assert take_stacks(str(tool), {0: (1, "S")}, "/code") == {"0": {"error": "py-spy printed no stack"}}
