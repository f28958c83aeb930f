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

from ..wire.frames import Frame
from .facts import interface_of

# Below Linux' default range of ephemeral ports (32768-60999), so that no outgoing connection takes the port.
PORTS = range(20000, 32000)
MOST_ANSWERED = 128  # callers whose connections stay open
OTHERS_SECONDS = 0.3  # for the other addresses, once every host is reached at one address
STRIDE = 7919  # a prime that does not divide the number of ports: every port has its turn


class ReservedPort:
    """A port of this host, reserved for one job, where others can prove that they reach this host.

    Hosts that connect read a nonce: every machine with a container engine has its own 172.17.0.1. The socket
    holds the port as long as this process lives. While it listens, no other can bind there. After that, only
    a socket with SO_REUSEADDR can: torch's socket has it, another ReservedPort does not.
    """

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce.encode()
        self.port, self._socket = _reserve()
        self._answered: collections.deque[socket.socket] = collections.deque()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                caller, _ = self._socket.accept()
                with contextlib.suppress(OSError):
                    caller.settimeout(1)
                    caller.sendall(self.nonce)
                # The caller closes first, so that TIME_WAIT is on its side; others do not wait for that.
                self._answered.append(caller)
                if len(self._answered) > MOST_ANSWERED:
                    self._answered.popleft().close()

    def stop_listening(self) -> None:
        """Stop answering, so that rank 0 can listen; the port stays bound."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        while self._answered:
            self._answered.popleft().close()

    def close(self) -> None:
        """Give the port up."""
        self.stop_listening()
        self._socket.close()


def _reserve() -> tuple[int, socket.socket]:
    """A port that no other process of this host has bound, and the socket that listens there."""
    first = int.from_bytes(os.urandom(4), "big")  # it spreads the jobs' ports; it is no secret
    for number in range(len(PORTS)):
        port = PORTS[(first + number * STRIDE) % len(PORTS)]
        with contextlib.suppress(OSError):
            return port, _bind_alone(port)
    raise OSError(f"no free port between {PORTS.start} and {PORTS.stop - 1}")


def _bind_alone(port: int) -> socket.socket:
    """A listening socket on every address, at a port where no other socket is bound, listening or not."""
    both = socket.has_dualstack_ipv6()
    listener = socket.socket(socket.AF_INET6 if both else socket.AF_INET)
    try:
        if both:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("", port))
        # Set after the bind: with it, the bind would succeed beside a socket that holds the port for
        # another job.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.listen(512)
    except OSError:
        listener.close()
        raise
    return listener


class RendezvousPort:
    """Tests how hosts reach the head, and each other."""

    def __init__(self) -> None:
        self._opened: dict[bool, ReservedPort] = {}
        """The port of the ranks (False), and the port for tests (True)."""

    def do_open_port(self, request: Frame, payload: bytes) -> Frame:
        """Reserve a port here for the ranks to meet, and let others prove that they reach it.

        `probe`: a port beside the job's own, only to test whether others reach this host.
        """
        probe = request["probe"]
        if earlier := self._opened.pop(probe, None):
            earlier.close()
        try:
            self._opened[probe] = ReservedPort(request["nonce"])
        except OSError as error:
            return {"refused": error.strerror or str(error)}
        return {"port": self._opened[probe].port}

    def do_free_port(self, request: Frame, payload: bytes) -> Frame:
        """Let rank 0 listen at the port, which stays reserved."""
        if port := self._opened.get(False):
            port.stop_listening()
        return {}

    def do_reach(self, request: Frame, payload: bytes) -> Frame:
        """The addresses of each host that this host reaches, and why it does not reach the others."""
        return {"reached": reach_hosts(request["targets"])}


def reach_hosts(targets: list[Frame], seconds: float = 3.0) -> Frame:
    """For each host, which of its addresses are reached by which interface, and why the others are not."""
    reached: Frame = {target["host"]: {"interfaces": {}, "refused": {}} for target in targets}
    deadline = time.monotonic() + seconds
    late = "timed out"
    with selectors.DefaultSelector() as selector:
        for target in targets:
            for address in target["addresses"]:
                seen = reached[target["host"]]
                with _refused(seen, address):
                    caller = _call(address, target["port"])
                    selector.register(caller, selectors.EVENT_READ, (seen, address, target["nonce"].encode()))
        while selector.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                selector.unregister(key.fileobj)
                _hear(key.fileobj, *key.data)
            if late and all(seen["interfaces"] for seen in reached.values()):
                # Every host is reached; addresses where packets are dropped would cost the whole time-out.
                deadline, late = min(deadline, time.monotonic() + OTHERS_SECONDS), ""
        for key in list(selector.get_map().values()):
            seen, address, _ = key.data
            if late:
                seen["refused"][address] = late
            key.fileobj.close()  # type: ignore[union-attr]  # a socket
    return reached


def _call(address: str, port: int) -> socket.socket:
    """Begin a connection; the socket does not block."""
    family, kind, protocol, _, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    caller = socket.socket(family, kind, protocol)
    caller.setblocking(False)
    code = caller.connect_ex(target)
    if code not in (0, errno.EINPROGRESS):
        caller.close()
        raise OSError(code, os.strerror(code))
    return caller


def _hear(caller: Any, seen: Frame, address: str, nonce: bytes) -> None:
    """Note what answers at an address: the wanted host, another machine, or nothing."""
    with caller, _refused(seen, address):
        if caller.recv(len(nonce)) != nonce:
            raise OSError("another machine answers there")
        local_address = str(caller.getsockname()[0])
        seen["interfaces"][address] = _interface(local_address.replace("::ffff:", ""))


@contextlib.contextmanager
def _refused(seen: Frame, address: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        seen["refused"][address] = error.strerror or str(error)


_interface = lru_cache(maxsize=64)(interface_of)
