"""What a launch reports to others: `--notify` at a stall and at the end, `--metrics` while it runs."""

from __future__ import annotations

import dataclasses
import json
import shlex
import socket
import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from muster.deploy.cli.scrape import address_of, scraped
from muster.deploy.errors import UsageError
from muster.deploy.jobs import notify as notifying
from muster.deploy.jobs.history import JobHistory
from muster.deploy.jobs.notify import StallNotifier, notify, require_notify
from muster.deploy.launch.job_events import JobEvent
from muster.deploy.launch.result import Failure, LaunchResult, interruption
from muster.deploy.plan.program import Program
from tests.unit.plans import make_plan
from tests.waiting import wait_until

PLAN = make_plan(
    "node[1-2] slots=2",
    program=Program(script="train.py", args=("--token", "s3cret")),
    env=(("HF_TOKEN", "s3cret"),),
)
FAILURE = Failure("rank", "exit status 5", 5, host="node2", rank=3, at=2.0, tail=("s3cret",))
FAILED = LaunchResult(plan=PLAN, started=1.0, ended=2.0, failure=FAILURE, ends={}, last_line="s3cret")
DONE = dataclasses.replace(FAILED, failure=None)
STOPPED = dataclasses.replace(FAILED, failure=interruption(KeyboardInterrupt(2), 2.0))


class Hook(BaseHTTPRequestHandler):
    """A web hook that keeps what it gets."""

    got: ClassVar[list[bytes]] = []
    status: ClassVar[int] = 204

    def do_POST(self) -> None:  # http.server's name
        self.got.append(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # http.server's name
        pass


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(Hook, "got", [])
    server = HTTPServer(("127.0.0.1", 0), Hook)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/hush/path"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("result", "state", "status"), [(DONE, "done", 0), (FAILED, "failed", 5), (STOPPED, "stopped", 130)]
)
def test_a_web_hook_gets_the_end_of_a_job_and_nothing_secret(
    hook: str, result: LaunchResult, state: str, status: int
) -> None:
    assert notify(hook, result) == ""
    (content,) = Hook.got
    told = json.loads(content)
    assert (told["state"], told["exit_status"], told["ranks"]) == (state, status, 4)
    assert told["hosts"] == ["node1", "node2"]
    assert b"s3cret" not in content


def events_of_a_stall() -> list[JobEvent]:
    """An attempt that began at 10, stalled from 20 to 99 and was noted at 90."""
    started = JobEvent(
        at=10.0, type="attempt.started", job="j", attempt=1, hosts=("node1", "node2"), ranks=4, text="t"
    )
    why = "rank 3 on node2 never came to all_reduce #41 (slow.py:8)"
    stopped = JobEvent(at=90.0, type="steps.stopped", job="j", attempt=1, since=20.0, text=why)
    resumed = JobEvent(
        at=99.0, type="steps.resumed", job="j", attempt=1, since=20.0, text="steps again after 79 s"
    )
    return [started, stopped, dataclasses.replace(started, type="rank.printed"), resumed]


def test_a_web_hook_gets_a_stall_and_its_end_in_the_fields_of_the_end(hook: str) -> None:
    stalls = StallNotifier(dataclasses.replace(PLAN.spec, notify=hook))
    for event in events_of_a_stall():
        stalls.add(event)
    stalls.wait()
    assert len(Hook.got) == 2
    stopped, resumed = map(json.loads, Hook.got)
    notify(hook, DONE)
    ended = json.loads(Hook.got[2])
    assert [*stopped] == [*resumed] == [*ended]
    assert (stopped["event"], stopped["state"], stopped["hosts"]) == (
        "steps.stopped",
        "running",
        ["node1", "node2"],
    )
    assert stopped["text"] == (
        "no step for 1 min 10 s: rank 3 on node2 never came to all_reduce #41 (slow.py:8)"
    )
    assert (resumed["event"], resumed["text"]) == ("steps.resumed", "steps again after 79 s")
    assert ended["event"] == "job.ended"


def test_a_receiver_that_is_gone_is_named_once_and_delays_nothing(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    held = shlex.join(["sh", "-c", f"until [ -e {shlex.quote(str(gate))} ]; do sleep 0.05; done; exit 7"])
    stalls = StallNotifier(dataclasses.replace(PLAN.spec, notify=held))
    for event in events_of_a_stall():
        stalls.add(event)
    assert stalls.problems == []  # the command is still held
    gate.touch()
    wait_until(lambda: stalls.problems, "the reason")
    assert stalls.problems == ["--notify sh: it ended with status 7"]


def test_a_launch_without_notify_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifying, "send", lambda target, values: pytest.fail("sent"))
    stalls = StallNotifier(PLAN.spec)
    for event in events_of_a_stall():
        stalls.add(event)
    assert stalls.problems == []


def test_a_web_hook_that_refuses_or_is_gone_is_named_without_its_path(
    hook: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hook, "status", 500)
    assert notify(hook, DONE) == "--notify http://127.0.0.1: it answered with status 500"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert "refused" in (why := notify(f"http://127.0.0.1:{port}/hush", DONE))
    assert "hush" not in why


def test_what_answers_a_web_hook_without_http_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            client, _ = server.accept()
            with client:
                client.sendall(b"SSH-2.0-OpenSSH_10.0\r\n")
                while client.recv(1 << 16):  # else its end would come before all of the request is sent
                    continue

        greeter = threading.Thread(target=greet)
        greeter.start()
        why = notify(f"http://127.0.0.1:{server.getsockname()[1]}/hush", DONE)
        greeter.join()
    assert why == "--notify http://127.0.0.1: BadStatusLine"


def test_a_command_gets_it_on_its_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "told of it"
    assert notify(shlex.join(["tee", str(target)]), FAILED) == ""
    assert json.loads(target.read_text())["failure"]["rank"] == 3
    assert notify("false", DONE) == "--notify false: it ended with status 1"
    assert "No such file" in notify("/no/such/program", DONE)
    monkeypatch.setattr(notifying, "COMMAND_SECONDS", 0.1)
    assert "had not ended after" in notify("sleep 60", DONE)
    assert notify("", DONE) == ""


TARGETS = (
    *("ftp://host/x", "https:///x", "http://[::1", "http://host:99999/x", "https://host/a b"),
    *("'open", " ", "''", "no-such-program --now", "http:/host/x"),
)


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_that_cannot_be_told_is_refused_before_the_launch(target: str) -> None:
    with pytest.raises(UsageError, match="--notify"):
        require_notify(target)
    require_notify("https://chat.example.org/hook")
    require_notify("tee --append now")
    require_notify("no-such-program --now", local=False)


# -- --metrics --


@pytest.mark.parametrize(
    ("text", "address"),
    [("9400", ("127.0.0.1", 9400)), ("0.0.0.0:80", ("0.0.0.0", 80)), ("[::1]:9400", ("::1", 9400))],  # noqa: S104
)
def test_the_address_of_a_scrape(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["x", "99999", "host:80", "-1"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--metrics"):
        address_of(text)


def test_a_scrape_has_the_ranks_the_events_and_at_the_end_the_exit_status(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def asked() -> str:
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=accept)
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            return str(answer.read().decode())

    with scraped(str(port)) as scrape:
        assert scrape is not None
        history = JobHistory("j", (scrape.count,))
        history.began(PLAN)
        for number in (0, 1):
            history.add(JobEvent(at=1.0, type="rank.started", job="j", attempt=0, host="node1", rank=number))
        scrape.output(0, "node1", "out", "12345")
        scrape.output(1, "node9", "out", "█\udc80")
        history.add(JobEvent(at=2.0, type="rank.ended", job="j", attempt=0, host="node1", rank=1, code=-9))
        text = asked()
        assert 'muster_ranks{state="planned"} 4.0' in text
        assert 'muster_ranks{state="started"} 2.0' in text
        assert 'muster_ranks{state="failed"} 1.0' in text
        assert 'muster_output_bytes_total{host="node9"} 6.0' in text
        assert 'muster_events_total{type="rank.started"} 2.0' in text
        assert 'muster_output_bytes_total{host="node1"} 5.0' in text
        assert "muster_job_exit_status" not in text
        history.verdict(FAILED)
        assert "muster_job_exit_status 5.0" in asked()
        with pytest.raises(UsageError, match="--metrics"), scraped(str(port)):
            pass
