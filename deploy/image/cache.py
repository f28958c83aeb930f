"""The compilers' cache of a build, in a folder of this machine.

A build cannot mount a folder of the host, and an engine may empty its own cache mounts at any time. ccache
reads and writes its files over HTTP as well (ccache's manual, "HTTP storage backend"), so a server here keeps
each file once a compiler has ended. An interrupted build resumes from them, also with another engine.
"""

from __future__ import annotations

import ipaddress
import json
import re
import secrets
import subprocess
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from ..common.durable import write_atomically
from ..errors import UsageError

_BRIDGE = ("docker", "network", "inspect", "bridge", "--format", "{{json .IPAM.Config}}")
_DESKTOP = "host.docker.internal"
"""The name of this machine in builds of an engine in a virtual machine (Docker Desktop's manual)."""
_NAME = re.compile(r"[a-z0-9]+(/[a-z0-9]+){0,3}")
_LARGEST = 4 << 30


class CompilerCache:
    """Serves a folder to ccache while a `with` block runs. `address`: for CCACHE_REMOTE_STORAGE, a secret."""

    def __init__(self, folder: Path, host: str | None = None) -> None:
        """Listen at `host`; None: at the address where containers of this engine reach this machine.

        `UsageError` if the folder cannot be made.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"MUSTER_CACHE: cannot make the folder {folder}: {error.strerror}") from None
        self.folder = folder
        self._token = secrets.token_hex(16)
        self._server, name = _listen(host or _gateway())
        self._server.cache = self  # type: ignore[attr-defined]
        self.address = f"http://{name}:{self._server.server_address[1]}/{self._token}"

    def __enter__(self) -> CompilerCache:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the server; the files stay."""
        self._server.shutdown()
        self._server.server_close()

    def file(self, path: str) -> Path | None:
        """The file of a request's path; None without the token, or for a name unlike those of ccache."""
        _, token, *name = path.split("/", 2)
        if not secrets.compare_digest(token, self._token) or not name or not _NAME.fullmatch(name[0]):
            return None
        return self.folder / name[0]


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # ccache keeps its connection

    def do_GET(self) -> None:
        self._answer_with(self._stored(), with_body=True)

    def do_HEAD(self) -> None:
        self._answer_with(self._stored(), with_body=False)

    def do_PUT(self) -> None:
        file, length = self._file(), int(self.headers.get("Content-Length", -1))
        if file is None or not 0 <= length <= _LARGEST:
            self.close_connection = True
            return self._answer(HTTPStatus.FORBIDDEN)
        content = self.rfile.read(length)
        if len(content) != length:  # the build was stopped in the middle
            return self._answer(HTTPStatus.BAD_REQUEST)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(file, content, durable=False)  # ccache verifies the checksum in each file
        except OSError:  # a full disk: the build continues, and the next one compiles this file again
            return self._answer(HTTPStatus.INSUFFICIENT_STORAGE)
        return self._answer(HTTPStatus.CREATED)

    def do_DELETE(self) -> None:
        if file := self._stored():
            file.unlink(missing_ok=True)
        self._answer(HTTPStatus.NO_CONTENT if file else HTTPStatus.NOT_FOUND)

    def _file(self) -> Path | None:
        cache: CompilerCache = self.server.cache  # type: ignore[attr-defined]
        return cache.file(self.path)

    def _stored(self) -> Path | None:
        file = self._file()
        return file if file is not None and file.is_file() else None

    def _answer_with(self, file: Path | None, with_body: bool) -> None:
        if file is None:
            return self._answer(HTTPStatus.NOT_FOUND)
        return self._answer(HTTPStatus.OK, file.read_bytes(), with_body)

    def _answer(self, status: HTTPStatus, content: bytes = b"", with_body: bool = True) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Print nothing between the lines of the build."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: an interrupted build leaves connections in the middle of a request."""


def _listen(host: str) -> tuple[ThreadingHTTPServer, str]:
    """A server, and the name that a build has for this machine."""
    try:
        return _Server((host, 0), _Request), host
    except OSError:  # the bridge is in a virtual machine
        return _Server(("127.0.0.1", 0), _Request), _DESKTOP


def _gateway() -> str:
    inspected = subprocess.run(_BRIDGE, capture_output=True, text=True, check=False)
    return gateway_in(inspected.stdout) or _DESKTOP


def gateway_in(answer: str) -> str:
    """The address of this machine on the bridge, by `docker network inspect`; empty without one.

    Docker 20.10 names only the subnet until its engine is restarted; the address is the first one in it.
    """
    try:
        first = json.loads(answer)[0]
        return str(first.get("Gateway") or next(ipaddress.ip_network(first["Subnet"]).hosts()))
    except (ValueError, TypeError, LookupError, AttributeError):
        return ""
