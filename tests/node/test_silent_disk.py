"""An agent whose disk does not answer says so, and still answers."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.core.agent import disks, main
from muster.deploy.core.agent.main import Agent
from muster.deploy.core.wire.frames import read_frame, write_frame

TABLE = r"""
24 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 24 0:40 / /home rw,relatime shared:20 - nfs4 files:/home rw,vers=4.2
31 30 0:41 / /home/ml/scratch rw - tmpfs tmpfs rw
32 24 8:17 / /mnt/big\040disk rw - xfs /dev/sdb1 rw
broken
"""
DISKS = {
    "/home/ml/.muster": "/home (nfs4 files:/home)",
    "/home": "/home (nfs4 files:/home)",
    "/homes/ml": "/ (ext4 /dev/sda1)",
    "/home/ml/scratch/x": "/home/ml/scratch (tmpfs tmpfs)",
    "/mnt/big disk/x": "/mnt/big disk (xfs /dev/sdb1)",
}


@pytest.mark.parametrize(("path", "disk"), DISKS.items())
def test_a_disk_is_named_by_mount_point_type_and_device(tmp_path: Path, path: str, disk: str) -> None:
    (tmp_path / "mountinfo").write_text(TABLE)
    assert disks.disk_of(path, str(tmp_path / "mountinfo")) == disk


def test_where_no_table_can_be_read_the_path_stands_for_its_disk() -> None:
    assert disks.disk_of("/home/ml", "/nonexistent") == "/home/ml"


def test_a_disk_that_answers_is_silent_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disks, "PROBE_SECONDS", 0.2)
    probe, fifo = disks.Probe(str(tmp_path)), tmp_path / f".probe-{os.getpid()}"
    assert probe.silent_disk() == ""
    assert list(tmp_path.iterdir()) == []
    os.mkfifo(fifo)  # whoever opens it for writing waits, as for a disk that does not answer
    assert probe.silent_disk() == disks.disk_of(str(tmp_path))
    assert probe.silent_disk() == disks.disk_of(str(tmp_path))
    descriptor = os.open(fifo, os.O_RDONLY)
    monkeypatch.setattr(disks, "PROBE_SECONDS", 50.0)
    assert probe.silent_disk() == ""
    os.close(descriptor)


@pytest.mark.parametrize("folder", ["/nonexistent", "/proc"])
def test_an_error_of_a_disk_is_an_answer(folder: str) -> None:
    assert disks.Probe(folder).silent_disk() == ""


class Conversation:
    """An agent in a thread, in which one request waits for a disk until the test ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, disk: str) -> None:
        monkeypatch.setattr(main, "SUSPICIOUS_SECONDS", 0.05)
        monkeypatch.setattr(Agent, "_silent_disk", lambda agent: disk)
        monkeypatch.setattr(Agent, "answer", self._answer)
        self.disk, self.threads = threading.Event(), set[int]()
        inbox, self._to = os.pipe()
        self._from, outbox = os.pipe()
        self.writer, self.reader = os.fdopen(self._to, "wb"), os.fdopen(self._from, "rb")
        agent = Agent(os.fdopen(inbox, "rb"), os.fdopen(outbox, "wb"))
        monkeypatch.setattr(agent, "_close", lambda: None)
        self.thread = threading.Thread(target=agent.serve, daemon=True)
        self.thread.start()

    def _answer(self, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
        self.threads.add(threading.get_ident())
        if request["do"] == "missing":
            self.disk.wait()
        return {"reply": request["id"]}

    def ask(self, word: str, number: int) -> dict[str, Any]:
        write_frame(self.writer, {"do": word, "id": number})
        received = read_frame(self.reader)
        assert received
        return received[0]

    def end(self) -> None:
        self.writer.close()
        self.thread.join(50)
        assert not self.thread.is_alive()


def test_a_request_for_a_disk_is_answered_and_so_are_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation(monkeypatch, "the disk /home (nfs4 files:/home) does not answer")
    answer = talk.ask("missing", 1)
    assert answer["error"] == "cannot keep the job's files: the disk /home (nfs4 files:/home) does not answer"
    assert talk.ask("ping", 2) == {"reply": 2}
    assert talk.ask("stop", 3) == {"reply": 3}
    before = set(threading.enumerate())
    talk.disk.set()  # what waited answers nothing. Its thread lives: what it started would be killed with it
    assert talk.ask("stop", 4) == {"reply": 4}
    assert before <= set(threading.enumerate())
    talk.end()


def test_a_request_that_takes_long_on_a_good_disk_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation(monkeypatch, "")
    threading.Timer(0.3, talk.disk.set).start()
    assert talk.ask("missing", 1) == {"reply": 1}
    assert talk.ask("stop", 2) == {"reply": 2}
    assert len(talk.threads) == 1
    talk.end()


def test_a_long_request_keeps_no_agent_whose_driver_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    talk = Conversation(monkeypatch, "")
    write_frame(talk.writer, {"do": "missing", "id": 1})
    talk.end()
    talk.disk.set()
