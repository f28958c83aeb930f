"""Real jobs whose ports and sockets are reached: `muster forward`."""

from __future__ import annotations

import signal
import socket
import urllib.request
from pathlib import Path

from tests.forwarding import muster, printed, started
from tests.launching import Project
from tests.waiting import PATIENCE


def test_a_port_and_a_socket_of_a_host_are_reached(project: Project, tmp_path: Path) -> None:
    job = started(project, tmp_path)
    port = printed(project, job, "] port ").split()[-1]
    with muster(project, "Ctrl-C", "forward", job, port, "--port", "0") as forward:
        for path in ("/a", "/b"):
            with urllib.request.urlopen(f"http://127.0.0.1:{forward.port}{path}", timeout=PATIENCE) as page:
                assert page.read() == path.encode() * 100_000
        assert f"is port {port} of localhost" in forward.began
    with muster(project, "Ctrl-C", "forward", job, "page.sock", "--rank", "1") as forward:
        with urllib.request.urlopen(f"http://127.0.0.1:{forward.port}/c", timeout=PATIENCE) as page:
            assert page.read() == b"/c" * 100_000
        (tmp_path / "go").touch()
        status, out, _ = forward.end()
        assert (status, out) == (0, f"{job} has ended on localhost\n")
    over = project.muster("forward", job, port)
    assert over.returncode == 1
    assert over.stderr.splitlines()[-1] == f"{job} does not run on localhost"


def test_a_port_without_a_program_is_a_line_and_no_end(project: Project, tmp_path: Path) -> None:
    job = started(project, tmp_path)
    printed(project, job, "] port ")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen: no other program gets the port meanwhile
        port = taken.getsockname()[1]
        busy = project.muster("forward", job, str(port))
        assert (busy.returncode, "--port 0 takes a free one" in busy.stderr) == (2, True)
        with muster(project, "Ctrl-C", "forward", job, str(port), "--port", "0") as forward:
            with forward.connect() as client:
                assert client.recv(1) == b""
            forward.process.send_signal(signal.SIGINT)
            status, _, err = forward.end()
    assert status == 130
    assert f"a connection was refused: port {port} of localhost: Connection refused" in err
    (tmp_path / "go").touch()
    assert project.muster("attach", job).returncode == 0
