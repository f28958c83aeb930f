"""Where a redirect may lead: never from https to http, nor from the internet into a private network."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.client import HTTPMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from muster.deploy.common import web
from muster.deploy.common.web import is_public, open_url

Serve = Callable[[str], tuple[str, list[str]]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Makes a server on an address of this machine that answers `/file`, and redirects `/to/URL` to URL."""
    servers: list[ThreadingHTTPServer] = []

    def start(address: str) -> tuple[str, list[str]]:
        asked: list[str] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path)
                _, _, target = self.path.partition("/to/")
                self.send_response(302 if target else 200)
                self.send_header("Location", target or "none")
                self.send_header("Content-Length", "7")
                self.end_headers()
                self.wfile.write(b"content")

            def log_message(self, *words: object) -> None:
                """Say nothing."""

        server = ThreadingHTTPServer((address, 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://{address}:{server.server_port}", asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def get(url: str) -> bytes:
    with open_url(urllib.request.Request(url), 60) as answer:  # noqa: S310
        content: bytes = answer.read()
        return content


def test_a_server_of_the_internet_leads_no_request_into_a_private_network(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "is_public", lambda address: address == "127.0.0.1")
    (there, _), (private, asked) = serve("127.0.0.1"), serve("127.0.0.2")
    with pytest.raises(urllib.error.URLError, match=r"it redirects to 127\.0\.0\.2"):
        get(f"{there}/to/{private}/file")
    assert asked == []
    assert get(f"{there}/to/{there}/file") == b"content"


def test_an_address_of_a_private_network_may_redirect_within_it(serve: Serve) -> None:
    (first, _), (second, _) = serve("127.0.0.1"), serve("127.0.0.2")
    assert get(f"{first}/to/{second}/file") == b"content"


def test_redirects_end(serve: Serve) -> None:
    there, asked = serve("127.0.0.1")
    with pytest.raises(urllib.error.HTTPError, match=f"more than {web.MOST_REDIRECTS} redirects"):
        get(there + f"/to/{there}" * 9)
    assert len(asked) == web.MOST_REDIRECTS + 1


@pytest.mark.parametrize(("target", "follows"), [("http://b/file", False), ("https://b/file", True)])
def test_what_is_encrypted_stays_so(target: str, follows: bool) -> None:
    request = urllib.request.Request("https://a/file")
    redirect = web._Redirects().redirect_request  # it needs no server with a certificate
    if follows:
        assert redirect(request, None, 302, "Found", HTTPMessage(), target) is not None
    else:
        with pytest.raises(urllib.error.URLError, match="http://b/file, which is not encrypted"):
            redirect(request, None, 302, "Found", HTTPMessage(), target)


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/file"])
def test_other_schemes_are_not_opened(url: str) -> None:
    with pytest.raises(urllib.error.URLError, match="unknown url type"):
        open_url(urllib.request.Request(url), 60)  # noqa: S310


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),  # noqa: S104
        ("10.1.2.3", False),
        ("192.168.0.1", False),
        ("100.64.0.1", False),
        ("169.254.169.254", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
    ],
)
def test_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public
