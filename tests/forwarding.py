"""A program that listens at a port and a socket, and `muster forward` while it runs."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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
print("ready", flush=True)
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.01)
print("done", rank, flush=True)
"""


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
        except AssertionError as error:
            process.kill()
            raise AssertionError(f"{error}\n{process.stderr.read() if process.stderr else ''}") from error
        finally:
            process.kill()


def started(project: Project, tmp_path: Path, *arguments: str) -> str:
    """Launch the program in the background; returns the job's id."""
    (project.path / "train.py").write_text(PROGRAM)
    launched = project.muster(
        "launch", "--detach", "--env", f"GO={tmp_path / 'go'}", *arguments, "--script", "train.py"
    )
    found = re.search(r"job (\S+):", launched.stdout)
    assert found, launched
    return found[1]


def printed(project: Project, job: str, word: str) -> str:
    """The line of the job's output with a word."""

    def look() -> str:
        lines = project.muster("logs", job).stdout.splitlines()
        return next((line for line in lines if word in line), "")

    return wait_until(look, f"{word} in the output")
