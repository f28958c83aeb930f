"""Real jobs to which an editor attaches, and whose ports are reached: `muster debug --dap` and `forward`."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.dap import Editor
from tests.launching import MUSTER, Project
from tests.waiting import PATIENCE, read_until, wait_until

PROGRAM = """
import http.server, os, socketserver, threading, time
rank = int(os.environ["RANK"])
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = self.path.encode() * 100_000
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    def log_message(self, *args): pass
    def address_string(self): return ""
class Local(socketserver.ThreadingUnixStreamServer):
    pass
if rank == 1:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    local = Local(os.path.join(os.environ["TMPDIR"], "page.sock"), Page)
    threading.Thread(target=local.serve_forever, daemon=True).start()
    print("port", server.server_port, flush=True)
def work(batch):
    factor = rank + 0.5
    time.sleep(0.01)
    return batch * factor
print("ready", flush=True)
while not os.path.exists(os.environ["GO"]):
    work(2.0)
print("done", rank, flush=True)
"""
LINE = PROGRAM.splitlines().index("    return batch * factor") + 1


@dataclass
class Command:
    """`muster` with some arguments, in the background."""

    process: subprocess.Popen[str]
    began: str

    @property
    def port(self) -> int:
        found = re.search(r"127\.0\.0\.1:(\d+)", self.began)
        assert found, self.began
        return int(found[1])

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)

    def editor(self, local: str, remote: str) -> Editor:
        """An editor that is attached; where the last one has not left yet, it tries again."""

        def attached() -> Editor | None:
            editor = Editor(self.connect())
            with contextlib.suppress(AssertionError, ConnectionError):
                editor.attach(local, remote, LINE)
                return editor
            return None

        return wait_until(attached, "a rank without an editor")

    def end(self) -> tuple[int, str, str]:
        """Its exit status and output, once it has ended."""
        out, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, err


@contextlib.contextmanager
def muster(project: Project, last: str, *arguments: str) -> Iterator[Command]:
    """Start `muster`, and wait until its output has `last`."""
    with subprocess.Popen(
        [MUSTER, *arguments],
        cwd=project.path,
        env=project.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Command(process, "".join(read_until(process, last, 1)))
        finally:
            process.kill()


def started(project: Project, tmp_path: Path, *arguments: str) -> str:
    """Launch the program in the background; returns the job's id."""
    (project.path / "train.py").write_text(PROGRAM)
    launched = project.fab(
        "launch", "--detach", "--env", f"GO={tmp_path / 'go'}", *arguments, "--script", "train.py"
    )
    found = re.search(r"job (\S+):", launched.stdout)
    assert found, launched
    return found[1]


def printed(project: Project, job: str, word: str) -> str:
    """The line of the job's output with a word."""

    def look() -> str:
        lines = project.fab("logs", job).stdout.splitlines()
        return next((line for line in lines if word in line), "")

    return wait_until(look, f"{word} in the output")


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_an_editor_stops_at_a_line_of_the_project_and_the_job_ends_as_it_would_have(
    project: Project, tmp_path: Path, launcher: str
) -> None:
    job = started(project, tmp_path, "--launcher", launcher)
    printed(project, job, "] port ")
    with muster(project, "subProcess", "debug", job, "--rank", "1", "--dap", "--port", "0") as debug:
        entry = json.loads(debug.began[debug.began.index("{") :] + "}")
        assert entry["connect"] == {"host": "127.0.0.1", "port": debug.port}
        (mapping,) = entry["pathMappings"]
        assert mapping["localRoot"] == str(project.path)
        for _ in range(2):
            editor = debug.editor(mapping["localRoot"], mapping["remoteRoot"])
            top = editor.stopped()[0]
            assert top["source"]["path"] == str(project.path / "train.py")
            assert editor.variables(top) == {"batch": "2.0", "factor": "1.5"}
            assert editor.evaluate("batch * factor", top) == "3.0"
            with debug.connect() as second:
                second.sendall(b"Content-Length: 2\r\n\r\n{}")
                with contextlib.suppress(ConnectionResetError):
                    assert second.recv(1) == b""
            editor.stop_at(mapping["localRoot"])
            editor.resume()
            editor.ask("disconnect")
            editor.close()
        last = debug.editor(mapping["localRoot"], mapping["remoteRoot"])
        last.stopped()
        last.stop_at(mapping["localRoot"])
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
        mapping = json.loads(debug.began[debug.began.index("{") :] + "}")["pathMappings"][0]
        editor = debug.editor(mapping["localRoot"], mapping["remoteRoot"])
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
    over: Any = project.fab("forward", job, port)
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
