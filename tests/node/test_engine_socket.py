"""The answers of a container engine, over a Unix socket of the test."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest

from muster.deploy.features.image.on_host.images import images, load


def engine(answer: bytes, reads: int) -> threading.Thread:
    """Listens on the socket `engine`; reads some bytes of one request, answers and closes."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("engine")
    listener.listen()

    def serve() -> None:
        with listener, listener.accept()[0] as caller:
            caller.settimeout(60)
            seen = 0
            while seen < reads:
                part = caller.recv(reads - seen)
                assert part, "the request ended early"
                seen += len(part)
            caller.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return thread


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket has at most 107 bytes
    monkeypatch.setenv("DOCKER_HOST", "unix://engine")


def test_an_engine_that_refuses_an_image_before_it_has_all_of_it_says_why() -> None:
    body = json.dumps({"message": "no space left on device"}).encode()
    refusal = b"HTTP/1.1 500 No\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
    serving = engine(refusal, 1 << 16)
    with pytest.raises(OSError, match="the container engine at engine: no space left on device"):
        load(bytes(1 << 20) for _ in range(64))
    serving.join(60)


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n["]
)
def test_what_is_no_answer_of_an_engine_is_an_error_with_its_place(answer: bytes) -> None:
    serving = engine(answer, 40)
    with pytest.raises(OSError, match="the container engine at engine: "):
        images()
    serving.join(60)
