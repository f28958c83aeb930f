"""The compilers' cache: what a build stores over HTTP is a file at once; no other file can be reached."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from muster.deploy.errors import UsageError
from muster.deploy.image.cache import CompilerCache, gateway_in

ROOT = Path(__file__).parents[2]
NAME = "ab/cdef0123456789abcdef0123456789"


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[CompilerCache]:
    with CompilerCache(tmp_path / "cache", host="127.0.0.1") as serving:
        yield serving


def ask(cache: CompilerCache, method: str, name: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Send a request as ccache does: its remote storage is an address, below which it puts its names."""
    address = urlsplit(cache.address)
    connection = http.client.HTTPConnection(address.netloc, timeout=60)
    connection.request(method, f"{address.path}/{name}", body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_what_is_put_is_a_file_and_is_given_back(cache: CompilerCache) -> None:
    assert ask(cache, "GET", NAME)[0] == 404
    assert ask(cache, "PUT", NAME, b"object code")[0] == 201
    assert (cache.folder / NAME).read_bytes() == b"object code"
    assert ask(cache, "GET", NAME) == (200, b"object code")
    assert ask(cache, "HEAD", NAME) == (200, b"")
    assert ask(cache, "DELETE", NAME)[0] == 204
    assert not (cache.folder / NAME).exists()


def test_another_server_of_the_folder_has_what_the_first_one_kept(cache: CompilerCache) -> None:
    ask(cache, "PUT", NAME, b"object code")
    with CompilerCache(cache.folder, host="127.0.0.1") as later:
        assert ask(later, "GET", NAME) == (200, b"object code")


def test_a_file_that_is_cut_off_is_not_kept(cache: CompilerCache) -> None:
    address = urlsplit(cache.address)
    connection = http.client.HTTPConnection(address.netloc, timeout=60)
    connection.putrequest("PUT", f"{address.path}/{NAME}")
    connection.putheader("Content-Length", "1000")
    connection.endheaders(b"only this")
    assert connection.sock is not None
    connection.sock.shutdown(1)  # the builder was stopped
    assert connection.getresponse().status == 400
    assert not (cache.folder / NAME).exists()


def test_a_full_disk_costs_the_file_and_leaves_nothing(
    cache: CompilerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(draft: str, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert ask(cache, "PUT", NAME, b"object code")[0] == 507
    assert [path for path in cache.folder.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "", "/etc/passwd", "ab/.hidden", "ab/C%00"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_no_other_file_can_be_reached(cache: CompilerCache, method: str, name: str) -> None:
    (cache.folder.parent / "secret").write_text("untouched")
    assert ask(cache, method, name, b"x" if method == "PUT" else None)[0] in {403, 404}
    assert (cache.folder.parent / "secret").read_text() == "untouched"


def test_nobody_without_the_token_is_served(cache: CompilerCache) -> None:
    ask(cache, "PUT", NAME, b"object code")
    connection = http.client.HTTPConnection(urlsplit(cache.address).netloc, timeout=60)
    connection.request("GET", f"/{'0' * 32}/{NAME}")
    assert connection.getresponse().status == 404


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="MUSTER_CACHE: cannot make the folder"):
        CompilerCache(tmp_path / "file" / "cache", host="127.0.0.1")


@pytest.mark.parametrize(
    ("answer", "address"),
    [
        ('[{"Subnet":"172.17.0.0/16","Gateway":"172.17.0.1"}]', "172.17.0.1"),
        ('[{"Subnet":"10.5.0.0/24","Gateway":"10.5.0.254"}]', "10.5.0.254"),
        ('[{"Subnet":"172.17.0.0/16"}]', "172.17.0.1"),  # Docker 20.10, not restarted yet
        *(("", ""), ("null", ""), ("[]", ""), ("[{}]", ""), ('[{"Subnet":"x"}]', ""), ("[1]", "")),
    ],
)
def test_the_address_of_this_machine_for_builds_is_that_of_the_bridge(answer: str, address: str) -> None:
    assert gateway_in(answer) == address


def test_a_build_that_cannot_reach_the_cache_stops_and_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        heard = require_answer(f"http://127.0.0.1:{port}/token")
    refused = require_answer(f"http://127.0.0.1:{port}/token")
    assert (heard.returncode, heard.stderr) == (0, "")
    assert refused.returncode == 1
    assert f"MUSTER_CACHE is served at 127.0.0.1:{port}, and this build cannot reach it" in refused.stderr
    assert "token" not in refused.stderr


def require_answer(address: str) -> subprocess.CompletedProcess[str]:
    """Run the build's own check of the cache's address."""
    script = f". {ROOT}/docker/build/lib.sh && require_answer {address}"
    return subprocess.run(("bash", "-c", script), capture_output=True, text=True, timeout=60, check=False)
