"""The rendezvous: a port of the head that is reserved for one job, at an address that every host reaches."""

from __future__ import annotations

import collections
import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from ...common.frames import Frame
from .facts import interface_of

# Below Linux' default range of ephemeral ports (32768-60999), so that no outgoing connection takes the port.
PORTS = range(20000, 32000)
MOST_ANSWERED = 128  # callers that may take their time to close
OTHERS_SECONDS = 0.3  # for a host's other addresses, once each host is reached at one
STRIDE = 7919  # a prime that does not divide their number: every port has its turn


class Rendezvous:
    """A port of this host, reserved for one job, where others can prove that they reach this host.

    The reservation is an abstract Unix socket: host-wide (per network namespace), across users, gone with
    its process. Connecting hosts read a nonce: every machine with a container engine has its own 172.17.0.1.
    """

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce.encode()
        self._lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.port, self._listener = self._reserve()
        self._answered: collections.deque[socket.socket] = collections.deque()
        threading.Thread(target=self._serve, daemon=True).start()

    def _reserve(self) -> tuple[int, socket.socket]:
        first = int.from_bytes(os.urandom(4), "big")  # spreads, does not protect
        for number in range(len(PORTS)):
            port = PORTS[(first + number * STRIDE) % len(PORTS)]
            with contextlib.suppress(OSError):
                listener = listen_everywhere(port)
                try:
                    self._lock.bind(f"\0muster-port-{port}")
                except OSError:
                    listener.close()
                    raise
                return port, listener
        raise OSError(f"no free port between {PORTS.start} and {PORTS.stop - 1}")

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                with contextlib.suppress(OSError):
                    caller.settimeout(1)
                    caller.sendall(self.nonce)
                # The caller closes first, so that TIME_WAIT is on its side; nobody else waits for that.
                self._answered.append(caller)
                if len(self._answered) > MOST_ANSWERED:
                    self._answered.popleft().close()

    def close_listener(self) -> None:
        """Stop answering; the reservation holds as long as this process."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        while self._answered:
            self._answered.popleft().close()


class RendezvousPort:
    """An agent's part in finding the way to the head, and between all hosts."""

    def __init__(self) -> None:
        self._rendezvous: Rendezvous | None = None

    def do_open_port(self, request: Frame, payload: bytes) -> Frame:
        """Reserve a port here for the ranks to meet, and let others prove that they reach it."""
        self._rendezvous = Rendezvous(request["nonce"])
        return {"port": self._rendezvous.port}

    def do_try_to_open_port(self, request: Frame, payload: bytes) -> Frame:
        """The same for a check, to which having no port is an answer."""
        try:
            return self.do_open_port(request, payload)
        except OSError as error:
            return {"refused": error.strerror or str(error)}

    def do_free_port(self, request: Frame, payload: bytes) -> Frame:
        """Free the listening socket for rank 0; the port stays reserved."""
        if self._rendezvous:
            self._rendezvous.close_listener()
        return {}

    def do_reach(self, request: Frame, payload: bytes) -> Frame:
        """Which addresses of the head lead there from here."""
        return {"interfaces": reach_all(request["addresses"], request["port"], request["nonce"])}

    def do_reach_hosts(self, request: Frame, payload: bytes) -> Frame:
        """Which addresses of which hosts lead there from here, and why the others do not."""
        return {"reached": reach_hosts(request["targets"])}


def listen_everywhere(port: int) -> socket.socket:
    """A listening socket on every address of this host, both families where the kernel has IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    return socket.create_server(("", port), backlog=512)


def reach_all(addresses: list[str], port: int, nonce: str, seconds: float = 3.0) -> dict[str, str | None]:
    """Which of the addresses reach the head, and by which interface of this host."""
    head = {"host": "head", "addresses": addresses, "port": port, "nonce": nonce}
    found: dict[str, str | None] = reach_hosts([head], seconds)["head"]["interfaces"]
    return found


def reach_hosts(targets: list[Frame], seconds: float = 3.0) -> Frame:
    """For each host, which of its addresses are reached by which interface, and why the others are not."""
    found: Frame = {target["host"]: {"interfaces": {}, "refused": {}} for target in targets}
    deadline = time.monotonic() + seconds
    late = "timed out"
    with selectors.DefaultSelector() as selector:
        for target in targets:
            for address in target["addresses"]:
                seen = found[target["host"]]
                with _refused(seen, address):
                    caller = _call(address, target["port"])
                    selector.register(caller, selectors.EVENT_READ, (seen, address, target["nonce"].encode()))
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)
                _hear(key.fileobj, *key.data)
            if late and all(seen["interfaces"] for seen in found.values()):
                # Each is reached; other addresses that swallow packets would cost the whole time-out.
                deadline, late = min(deadline, time.monotonic() + OTHERS_SECONDS), ""
        for key in list(selector.get_map().values()):
            seen, address, _ = key.data
            if late:
                seen["refused"][address] = late
            key.fileobj.close()  # type: ignore[union-attr]  # a socket
    return found


def _call(address: str, port: int) -> socket.socket:
    """A connection that is being made."""
    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    caller = socket.socket(family, kind, protocol)
    caller.setblocking(False)
    code = caller.connect_ex(place)
    if code not in (0, errno.EINPROGRESS):
        caller.close()
        raise OSError(code, os.strerror(code))
    return caller


def _hear(caller: Any, seen: Frame, address: str, nonce: bytes) -> None:
    """Note who answers at an address: the host that was meant, another machine, or nobody."""
    with caller, _refused(seen, address):
        if caller.recv(len(nonce)) != nonce:
            raise OSError("another machine answers there")
        own = str(caller.getsockname()[0])
        seen["interfaces"][address] = _interface(own.replace("::ffff:", ""))


@contextlib.contextmanager
def _refused(seen: Frame, address: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        seen["refused"][address] = error.strerror or str(error)


@lru_cache(maxsize=64)
def _interface(own: str) -> str | None:
    return interface_of(own)
