"""Where the ranks meet: a port of the head that is theirs alone, at an address that every host reaches."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time

from deploy.node.facts import interface_of
from deploy.node.wire import Frame

# Below Linux' default range of ephemeral ports (32768-60999), so that no outgoing connection takes the port.
PORTS = range(20000, 32000)


class Meeting:
    """A port of this host, reserved for one job, where others can prove that they reach this host.

    The reservation is an abstract Unix socket: host-wide (per network namespace), across users, gone with
    its process. Connecting hosts read a nonce, because 172.17.0.1 is somebody on every machine.
    """

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce.encode()
        self._lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.port, self._listener = self._reserve()
        threading.Thread(target=self._serve, daemon=True).start()

    def _reserve(self) -> tuple[int, socket.socket]:
        for port in random.sample(PORTS, len(PORTS)):  # spreads, does not protect
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
                with caller, contextlib.suppress(OSError):
                    caller.settimeout(1)
                    caller.sendall(self.nonce)
                    caller.recv(1)  # the caller closes first, so that TIME_WAIT is on its side

    def close_listener(self) -> None:
        """Stop answering; the reservation holds as long as this process."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def listen_everywhere(port: int) -> socket.socket:
    """A listening socket on every address of this host, both families where the kernel has IPv6."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
    return socket.create_server(("", port), backlog=512)


def reach(address: str, port: int, nonce: str, seconds: float) -> str | None:
    """The own address on the way to a Meeting, None if it is not reached there."""
    with contextlib.suppress(OSError):
        return call_on(address, port, nonce, seconds)
    return None


def call_on(address: str, port: int, nonce: str, seconds: float) -> str:
    """The own address on the way to a Meeting; OSError says why it is not reached there."""
    with socket.create_connection((address, port), timeout=seconds) as connection:
        if connection.recv(len(nonce)) != nonce.encode():
            raise OSError("another machine answers there")
        return str(connection.getsockname()[0])


def reach_all(addresses: list[str], port: int, nonce: str, seconds: float = 3.0) -> dict[str, str | None]:
    """Which of the addresses lead to the Meeting, and by which interface of this host."""
    found: dict[str, str | None] = {}

    def try_one(address: str) -> None:
        own = reach(address, port, nonce, seconds)
        if own is not None:
            found[address] = interface_of(own.replace("::ffff:", ""))

    threads = [threading.Thread(target=try_one, args=(address,), daemon=True) for address in addresses]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        if found:  # addresses that swallow packets would cost the whole time-out
            deadline = min(deadline, time.monotonic() + 0.3)
        time.sleep(0.005)
    return dict(found)


def reach_hosts(targets: list[Frame], seconds: float = 3.0) -> Frame:
    """For each host with a Meeting, which of its addresses are reached by which interface, and why not."""
    found: Frame = {target["host"]: {"interfaces": {}, "refused": {}} for target in targets}

    def try_one(target: Frame, address: str) -> None:
        seen = found[target["host"]]
        try:
            own = call_on(address, target["port"], target["nonce"], seconds)
            seen["interfaces"][address] = interface_of(own.replace("::ffff:", ""))
        except OSError as error:
            seen["refused"][address] = error.strerror or str(error)

    threads = [
        threading.Thread(target=try_one, args=(target, address), daemon=True)
        for target in targets
        for address in target["addresses"]
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds + 0.5
    while any(thread.is_alive() for thread in threads) and time.monotonic() < deadline:
        if all(seen["interfaces"] for seen in found.values()):
            deadline = min(deadline, time.monotonic() + 0.3)
        time.sleep(0.005)
    return {host: {name: dict(seen[name]) for name in seen} for host, seen in found.items()}
