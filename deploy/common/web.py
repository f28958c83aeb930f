"""Opens http(s) addresses, and follows no redirect from a public server into a private network."""

from __future__ import annotations

import http.client
import ipaddress
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

MOST_REDIRECTS = 5


def open_url(request: urllib.request.Request, seconds: float) -> Any:
    """The answer to a request. No redirect is followed from https to http, or into a private network.

    Otherwise any server could make this machine query internal services, such as the metadata service of a
    cloud. If the first address is itself in a private network or on this machine, the others may be too.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Connections(),
        _Redirects(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.UnknownHandler(),  # refuses file:// and ftp://
    ):
        opener.add_handler(handler)
    return opener.open(request, timeout=seconds)


class _Redirects(urllib.request.HTTPRedirectHandler):
    max_redirections = MOST_REDIRECTS
    inf_msg = f"more than {MOST_REDIRECTS} redirects, or a circle of them: "

    def redirect_request(  # noqa: PLR0917  # the arguments of urllib
        self, req: urllib.request.Request, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise urllib.error.URLError(f"it redirects to {newurl}, which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Connections(urllib.request.AbstractHTTPHandler):
    """Checks the address of each connection: a name may have another address each time it is resolved."""

    def __init__(self) -> None:
        super().__init__()
        self._first_is_public: bool | None = None

    http_request = https_request = urllib.request.AbstractHTTPHandler.do_request_

    def http_open(self, req: urllib.request.Request) -> Any:
        """Connect; urllib calls this."""
        return self.do_open(self._judged(http.client.HTTPConnection, req), req)

    def https_open(self, req: urllib.request.Request) -> Any:
        """The same with TLS; a Python may lack that."""
        return self.do_open(self._judged(http.client.HTTPSConnection, req), req)

    def _judged(self, kind: Any, req: urllib.request.Request) -> Any:
        if req.has_proxy() or getattr(req, "_tunnel_host", None):  # the proxy decides on its connections
            self._first_is_public = self._first_is_public is not False
            return kind
        judge = self._judge

        class Judged(kind):  # type: ignore[misc]  # http.client's connection, with or without TLS
            def connect(self) -> None:
                super().connect()
                judge(self.host, self.sock.getpeername()[0])

        return Judged

    def _judge(self, host: str, address: str) -> None:
        """OSError for a redirect to an address that only this machine or its network may reach."""
        if self._first_is_public is None:
            self._first_is_public = is_public(address)
        if self._first_is_public and not is_public(address):
            raise OSError(f"it redirects to {host} ({address}), which is no public address")


def is_public(text: str) -> bool:
    """Whether an address is of a single host, and neither of this machine nor of a private network."""
    address = ipaddress.ip_address(text.partition("%")[0])
    address = getattr(address, "ipv4_mapped", None) or address
    return address.is_global and not address.is_multicast
