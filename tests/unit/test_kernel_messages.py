"""The kernel's messages that join a verdict: which ones, how they are read, and what the user sees."""

from __future__ import annotations

import contextlib
import json
import os
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from muster.deploy.cli.command import Exit
from muster.deploy.core.job.result import Failure, LaunchResult
from muster.deploy.core.job.run_folder import RunFolder
from muster.deploy.core.job.verdict import verdict
from muster.deploy.features.why import command as why
from muster.deploy.features.why.hang_verdict import HangVerdict
from muster.deploy.features.why.kernel import (
    KERNEL_MESSAGES,
    KernelFinding,
    KernelLine,
    KernelMessages,
    with_lines,
)
from muster.deploy.features.why.on_host import kernel_log
from muster.deploy.features.why.on_host.kernel_log import KernelLog, kind_of, read_kmsg
from tests.unit.attempts import attempt_of
from tests.unit.plans import make_plan

PLAN = make_plan("node[1-3] slots=2")
FAILED = LaunchResult(PLAN, 1.0, 2.0, Failure("rank", "exit status 1", 1, "node2", 2), {})
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
LOST = "the GPU has fallen off the bus; power the host off and on"


@pytest.mark.parametrize(
    ("text", "kind", "meaning"),
    [
        (XID, "xid", "the GPU has fallen off the bus; power the host off and on"),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=7, name=python", "xid", "often an error of the program"),
        ("NVRM: Xid (PCI:0000:3b:00): 999, no such number", "xid", "an error of the GPU or its driver"),
        ("amdgpu 0000:c1:00.0: amdgpu: ring sdma0 timeout, signaled seq=1", "amdgpu", "an error of the GPU"),
        ("mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 5", "memory", "memory or processor"),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", "memory", "memory or processor"),
        ("pcieport 0000:00:1c.0: AER: Uncorrected (Fatal) error received", "pcie", "an error on PCIe"),
        ("mlx5_core 0000:5e:00.0 ens1f0: Link down", "link", "a network link went down"),
        ("ixgbe 0000:01:00.0 eno1: NIC Link is Down", "link", "a network link went down"),
        ("Out of memory: Killed process 812 (python) total-vm:1kB", "oom", "the out-of-memory killer"),
        ("Memory cgroup out of memory: Killed process 812 (python)", "oom", "the out-of-memory killer"),
        ("blk_update_request: I/O error, dev sdb, sector 2048", "disk", "a disk failed"),
        ("EXT4-fs error (device sda1): ext4_find_entry:1455", "filesystem", "a damaged file system"),
        ("nfs: server filer not responding, still trying", "server", "a file server did not answer"),
        ("INFO: task python:812 blocked for more than 120 seconds.", "hung", "waits for a disk"),
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 23s!", "lockup", "a processor made no progress"),
        ("CPU4: Core temperature above threshold, cpu clock throttled", "heat", "too hot"),
        ("python[812]: segfault at 0 ip 00007f sp 00007f error 4 in libx.so", "crash", "native code"),
    ],
)
def test_a_message_has_a_kind_and_a_meaning(text: str, kind: str, meaning: str) -> None:
    found = kind_of(text)
    assert found
    assert found.name == kind
    assert meaning in found.meaning_in(text)


@pytest.mark.parametrize(
    "text",
    [
        "br-7fb4: port 1(veth60ec7e9) entered disabled state",
        "ixgbe 0000:01:00.0 eno1: NIC Link is Up 10 Gbps",
        "audit: type=1400 apparmor=ALLOWED",
        "nfs: server filer OK",
        "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
    ],
)
def test_what_happens_on_every_host_is_no_message(text: str) -> None:
    assert kind_of(text) is None


@pytest.mark.parametrize("name", ["Link Down", "a: Link Down", "BTRFS error", "AER: Fatal", "EDAC a: 1 UE"])
def test_the_name_of_a_process_is_no_message(name: str) -> None:
    lines = {
        f"Out of memory: Killed process 812 ({name}) total-vm:1kB": "oom",
        f"INFO: task {name}:812 blocked for more than 120 seconds.": "hung",
        f"{name}[812]: segfault at 0 ip 00007f sp 00007f error 4 in libx.so": "crash",
        f"traps: {name}[812] general protection fault": "crash",
        f"{name} invoked oom-killer: gfp_mask=0xcc0, order=0": None,
        f"{name}: page allocation failure: order:0": None,
        f"[    812]  1000   812    1    1   45056        0             0 {name}": None,
        f"oom_reaper: reaped process 812 ({name}), now anon-rss:0kB": None,
        f"CPU: 3 PID: 812 Comm: {name} Not tainted 6.1.0": None,
        f"{name} (812): drop_caches: 3": None,
    }
    found = {line: kind_of(line) for line in lines}
    assert {line: kind and kind.name for line, kind in found.items()} == lines


def record(ago: float, text: str, number: int = 1) -> bytes:
    """As the kernel writes it, with a line of properties."""
    at = int((time.monotonic() - ago) * 1e6)
    return f"4,{number},{at},-;{text}\n SUBSYSTEM=pci\n".encode()


def test_only_messages_since_the_beginning_of_the_job_count() -> None:
    ours, kernels = os.pipe2(os.O_DIRECT | os.O_NONBLOCK)  # a packet for each read, as of /dev/kmsg
    for each in (record(500.0, "before"), record(20.0, XID), record(1.0, "with; a semicolon")):
        os.write(kernels, each)
    (first, text), (_, other) = read_kmsg(ours, 30.0)
    assert (round(first), text, other) == (20, XID, "with; a semicolon")
    os.close(ours)
    os.close(kernels)


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journalctl in place of the host's, and no /dev/kmsg."""
    monkeypatch.setattr(kernel_log, "KMSG", str(tmp_path / "none"))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    path = tmp_path / "journalctl"
    path.write_text("#!/bin/sh\ncat <<END\n\nEND\n")
    path.chmod(0o755)
    return path


def test_without_the_right_to_read_kmsg_the_journal_is_read(journal: Path) -> None:
    at = int((time.time() - 3.0) * 1e6)
    entries = [
        f'{{"__REALTIME_TIMESTAMP": "{at}", "MESSAGE": "{XID}"}}',
        f'{{"__REALTIME_TIMESTAMP": "{at}", "MESSAGE": [1, 2]}}',  # not UTF-8
        "not JSON",
    ]
    journal.write_text("#!/bin/sh\ncat <<'END'\n" + "\n".join(entries) + "\nEND\n")
    answer = KERNEL_MESSAGES.read(KernelLog().do_kernel_messages({"seconds": 10}, b""))
    assert [(round(each.ago), each.kind, each.text) for each in answer.messages] == [(3, "xid", XID)]
    assert answer.messages[0].meaning.startswith(LOST)
    assert answer.unread == ""


def test_a_log_without_access_is_not_empty(journal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "getegid", lambda: 1000)
    monkeypatch.setattr(os, "getgroups", lambda: [1000])
    assert KernelLog().do_kernel_messages({"seconds": 10}, b"") == {
        "messages": [],
        "unread": "needs root, the group adm or systemd-journal, or kernel.dmesg_restrict=0",
    }
    journal.unlink()
    monkeypatch.setenv("PATH", str(journal.parent))
    assert KernelLog().do_kernel_messages({"seconds": 10}, b"")["unread"]


def test_a_host_that_cannot_be_read_is_named_and_a_stopped_job_asks_none() -> None:
    class Channel:
        ended = False

        def __init__(self, answer: dict[str, Any]) -> None:
            self.answer = answer

        def post(self, request: Any, **words: object) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_result(request.read(self.answer))
            return future

        def wait(self, future: Future[Any], seconds: float, since: float) -> Any:
            return future.result()

    xid = {"ago": 1.0, "kind": "xid", "meaning": LOST, "text": XID}
    channels = {
        "node1": Channel({"messages": [], "unread": "needs root"}),
        "node2": Channel({"messages": [xid], "unread": ""}),
        "node3": Channel({}),
    }
    cluster: Any = SimpleNamespace(channels=channels, silent={"node3": "frozen"})
    attempt = attempt_of(PLAN, cluster)
    read = KernelMessages().ended(attempt, FAILED)
    (found,) = read.findings
    assert isinstance(found, KernelFinding)
    assert [(line.host, line.kind) for line in found.messages] == [("node2", "xid")]
    assert found.unread == {"node1": "needs root", "node3": "it does not answer"}
    stopped = replace(FAILED, failure=Failure("interrupted", "SIGINT (2)", 130))
    assert KernelMessages().ended(attempt, stopped).findings == (KernelFinding(),)


def test_the_verdict_has_a_line_for_each_kind_and_host(tmp_path: Path) -> None:
    lines = (
        KernelLine("node2", 1000.0, "xid", LOST, XID),
        KernelLine("node2", 1001.0, "xid", LOST, XID),
        KernelLine("node1", 999.0, "link", "went down\x1b[2J", "mlx5_core 0000:5e:00.0: Link down\x1b[2J"),
    )
    folder = RunFolder(tmp_path, PLAN.spec.job)
    text = verdict(with_lines(FAILED, lines), folder)
    shown = [line.strip() for line in text.splitlines() if line.strip().startswith("kernel:")]
    clock = time.strftime("%H:%M:%S", time.localtime(1000.0))
    assert shown[0].startswith(f"kernel: node2, {clock}: the GPU has fallen off the bus; power")
    assert shown[0].endswith("GPU has fallen off the bus. (and 1 more)")
    assert "node1" in shown[1]
    assert "\x1b" not in text
    many = tuple(KernelLine(f"node{number}", 1.0, "xid", LOST, XID) for number in range(9))
    assert "        kernel: 5 kinds more in result.json" in verdict(with_lines(FAILED, many), folder)


def test_a_hang_has_its_messages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`muster why`, with a gathered hang and a message of a kernel in place of hosts."""
    state = SimpleNamespace(job="j", hosts_by_rank={}, recorded={}, started=5.0)
    hang = HangVerdict("absent", "ranks 0-1 wait", "rank 2 has not come", hang=True)
    asked: list[float] = []

    def messages(channels: Any, since: float) -> Any:
        asked.append(since)
        return [KernelLine("node2", 1000.0, "xid", LOST, XID)], {"node1": "needs root"}

    monkeypatch.setattr(why, "running", lambda options: contextlib.nullcontext((state, {}, {})))
    monkeypatch.setattr(why, "gather", lambda *_: (["a rank"], {}))
    monkeypatch.setattr(why, "with_missing", lambda ranks, *_: ranks)
    monkeypatch.setattr(why, "explain", lambda ranks, **_: hang)
    monkeypatch.setattr(why, "kernel_messages", messages)
    with pytest.raises(Exit):
        why.Why().run()
    assert "rank 2 has not come\n    kernel: node2, " in capsys.readouterr().out
    with pytest.raises(Exit):
        why.Why(json=True).run()
    printed = json.loads(capsys.readouterr().out)
    assert [(line["host"], line["kind"]) for line in printed["kernel"]] == [("node2", "xid")]
    assert printed["kernel_unread"] == [{"host": "node1", "why": "needs root"}]
    assert asked == [5.0, 5.0]
