"""Real jobs to which an editor attaches, and whose ports are reached: `muster debug --dap` and `forward`."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from tests.attaching import muster, printed, started
from tests.launching import Project
from tests.waiting import PATIENCE


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_an_editor_stops_at_a_line_of_the_project_and_the_job_ends_as_it_would_have(
    project: Project, tmp_path: Path, launcher: str
) -> None:
    job = started(project, tmp_path, "--launcher", launcher)
    printed(project, job, "] port ")
    with muster(project, "subProcess", "debug", job, "--rank", "1", "--dap", "--port", "0") as debug:
        assert debug.folders[0] == str(project.path)
        for _ in range(2):
            editor = debug.editor()
            top = editor.stopped()[0]
            assert top["source"]["path"] == str(project.path / "train.py")
            assert editor.variables(top) == {"batch": "2.0", "factor": "1.5"}
            assert editor.evaluate("batch * factor", top) == "3.0"
            with debug.connect() as second:
                second.sendall(b"Content-Length: 2\r\n\r\n{}")
                with contextlib.suppress(ConnectionResetError):
                    assert second.recv(1) == b""
            editor.stop_at(debug.folders[0])
            editor.resume()
            editor.ask("disconnect")
            editor.close()
        last = debug.editor()
        last.stopped()
        last.stop_at(debug.folders[0])
        last.resume()
        (tmp_path / "go").touch()
        assert last.rest()[-1] == "terminated"
        last.close()
        status, out, err = debug.end()
    assert (status, out.splitlines()[-1]) == (0, "rank 1 has ended")
    assert err.count("an editor is attached to rank 1") >= 3
    assert "refused: rank 1 on localhost: another debugger is attached to this rank" in err
    assert project.fab("attach", job).returncode == 0
    assert sorted(re.findall(r"done \d", project.fab("logs", job).stdout)) == ["done 0", "done 1"]


def test_ctrl_c_at_a_breakpoint_leaves_and_the_rank_continues(project: Project, tmp_path: Path) -> None:
    job = started(project, tmp_path)
    printed(project, job, "] port ")
    with muster(project, "subProcess", "debug", job, "--rank", "1", "--dap", "--port", "0") as debug:
        editor = debug.editor()
        editor.stopped()
        debug.process.send_signal(signal.SIGINT)
        status, _, err = debug.end()
        assert (status, err.splitlines()[-1]) == (130, "left; the job continues")
        editor.rest()
        editor.close()
    (tmp_path / "go").touch()
    assert project.fab("attach", job).returncode == 0


def test_a_port_and_a_socket_of_a_rank_s_host_are_reached_until_the_job_ends(
    project: Project, tmp_path: Path
) -> None:
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
    over = project.fab("forward", job, port)
    assert over.returncode == 1
    assert over.stderr.splitlines()[-1] == f"{job} does not run on localhost"


def test_a_port_without_a_program_is_a_line_and_no_end(project: Project, tmp_path: Path) -> None:
    job = started(project, tmp_path)
    printed(project, job, "] port ")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
        busy = project.fab("forward", job, str(free))
        assert (busy.returncode, "--port 0 takes a free one" in busy.stderr) == (2, True)
    with muster(project, "Ctrl-C", "forward", job, str(free), "--port", "0") as forward:
        with forward.connect() as client:
            assert client.recv(1) == b""
        forward.process.send_signal(signal.SIGINT)
        status, _, err = forward.end()
    assert status == 130
    assert f"a connection was refused: port {free} of localhost: Connection refused" in err
    (tmp_path / "go").touch()
    assert project.fab("attach", job).returncode == 0
