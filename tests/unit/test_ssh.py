"""How a host is reached: OpenSSH's own reading of its configuration, and the keys that are known."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import paramiko
import pytest

from muster.deploy.core.connect.opener import Access
from muster.deploy.core.connect.pipe import CountingWriter
from muster.deploy.core.connect.transports import openssh, ssh
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.connect.transports.ssh import (
    PACKET_BYTES,
    NotLoggedInError,
    SshPipe,
    known_keys,
    send,
)
from muster.deploy.core.connect.transports.ssh_config import Route, resolve
from muster.deploy.core.errors import HostError, UsageError
from muster.deploy.core.hosts.hostfile import Host
from tests.waiting import wait_until

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTWkmrHdDTOh9hcHwDh6xOdKmHxYkfsLwBXqFZE2nlF"


def route_of(tmp_path: Path, configuration: str, host: Host) -> Route:
    (tmp_path / "config").write_text(configuration)
    return resolve(host, tmp_path / "config")


def test_what_ssh_would_do_is_done(tmp_path: Path) -> None:
    (tmp_path / "included").write_text("Host node1\n  Port 2201\n")
    route = route_of(
        tmp_path,
        f"Include {tmp_path}/included\nHost node*\n  HostName 127.0.0.1\n  User ml\n  ConnectTimeout 3\n"
        "  HostKeyAlias the-node\n  IdentitiesOnly yes\n",
        Host("node1"),
    )
    assert (route.hostname, route.port, route.user) == ("127.0.0.1", 2201, "ml")
    assert (route.connect_seconds, route.host_key_alias) == (3, "the-node")


@pytest.mark.parametrize(
    "options",
    [
        "ProxyJump gate",
        "ProxyCommand nc %h %p",
        "KnownHostsCommand /bin/false",
        "RevokedHostKeys /dev/null",
        "CertificateFile ~/x",
        "IdentityAgent /run/agent",
        *(f"UserKnownHostsFile known-{word}" for word in ("rules", "revoked", "pattern", "not")),
    ],
)
def test_ssh_itself_logs_in_if_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str) -> None:
    monkeypatch.setattr(openssh, "OpenSshPipe", lambda host, python, ssh_config: "ssh")
    monkeypatch.setattr(ssh, "SshPipe", lambda route, python: "paramiko")
    lines = {"rules": "@cert-authority *", "revoked": "@revoked other", "pattern": "node?", "not": "!n"}
    for word, names in lines.items():
        (tmp_path / f"known-{word}").write_text(f"plain {KEY}\n{names} {KEY}\n")
    (tmp_path / "key-plain").touch()
    options = options.replace(" known-", f" {tmp_path}/known-")
    plain = f"Host *\n  IdentityFile {tmp_path}/key-plain\n"
    (tmp_path / "config").write_text(f"Host node1\n  {options}\n{plain}")
    access = Access(ssh_config=str(tmp_path / "config"))
    ways: list[object] = [access.open(Host("node1")), access.open(Host("node2"))]
    assert ways == ["ssh", "paramiko"]


@pytest.mark.parametrize("window", [PACKET_BYTES, 1000])
def test_what_is_sent_is_copied_a_packet_at_a_time(window: int) -> None:
    class Paramikos:
        """A channel that takes as much as its window has room for."""

        def __init__(self) -> None:
            self.got, self.handed = bytearray(), 0

        def send(self, content: bytes) -> int:
            self.handed += len(content)
            self.got += content[:window]
            return min(len(content), window)

    channel, content = Paramikos(), os.urandom(1 << 19)
    writer = CountingWriter(partial(send, cast("paramiko.Channel", channel)), PACKET_BYTES)
    writer.write(content)
    assert channel.got == content
    assert writer.written == len(content)
    assert channel.handed <= len(content) * max(1, PACKET_BYTES // window + 1)


def test_a_channel_that_takes_nothing_any_more_is_a_broken_connection() -> None:
    class Closed:
        def send(self, content: bytes) -> int:
            return 0

    with pytest.raises(BrokenPipeError):
        send(cast("paramiko.Channel", Closed()), memoryview(b"x"))


def test_the_hosts_file_wins_over_the_configuration(tmp_path: Path) -> None:
    route = route_of(tmp_path, "Host *\n  User x\n  Port 22\n", Host("n", user="ml", port=2222))
    assert (route.user, route.port) == ("ml", 2222)


def test_a_broken_configuration_is_explained_in_sshs_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Bad configuration option: prot"):
        route_of(tmp_path, "Host n\n  Prot 22\n", Host("n"))


@pytest.mark.parametrize(
    ("line", "known"),
    [
        (f"[10.0.0.1]:2222 {KEY}", True),
        (f"other,[10.0.0.1]:2222 {KEY} a comment", True),
        (f"10.0.0.1 {KEY}", False),
        (f"[10.0.0.1]:22 {KEY}", False),
        (f"  [10.0.0.1]:2222\t{KEY}", True),
        ("[10.0.0.1]:2222 ssh-ed25519 broken", False),
        ("[10.0.0.1]:2222", False),
        ("", False),
    ],
)
def test_a_host_is_known_by_address_and_port(tmp_path: Path, line: str, known: bool) -> None:
    (tmp_path / "known").write_text(f"# comment\nbroken line\n{line}\n")
    configuration = f"Host *\n  UserKnownHostsFile {tmp_path}/known\n"
    route = route_of(tmp_path, configuration, Host("10.0.0.1", port=2222))
    assert bool([*known_keys(route)]) is known


@pytest.mark.parametrize("names", ["|1|AAAA|x", "|1|x|x", "|1|", "|1|AAAA"])
def test_a_hashed_name_that_is_damaged_is_passed_over(tmp_path: Path, names: str) -> None:
    (tmp_path / "known").write_text(f"{names} {KEY}\nnode1 {KEY}\n")
    route = route_of(tmp_path, f"Host *\n  UserKnownHostsFile {tmp_path}/known\n", Host("node1"))
    assert len([*known_keys(route)]) == 1


def test_hashed_names_and_aliases_are_known(tmp_path: Path) -> None:
    (tmp_path / "known").write_text(f"the-node {KEY}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(tmp_path / "known")], check=True, capture_output=True)
    assert "the-node" not in (tmp_path / "known").read_text()
    configuration = f"Host *\n  HostKeyAlias the-node\n  UserKnownHostsFile {tmp_path}/known\n"
    route = route_of(tmp_path, configuration, Host("10.0.0.1"))
    assert [*known_keys(route)]


def test_a_login_loads_neither_fabric_nor_invoke_and_hides_them_from_nobody(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    (tmp_path / "config").write_text(f"IdentityFile {tmp_path}/key\nIdentitiesOnly yes\n")
    program = (
        "import sys; from muster.deploy.core.connect.opener import Access\n"
        "from muster.deploy.core.hosts.hostfile import Host\n"
        "print(Access(sys.argv[1]).open(Host('127.0.0.2', port=1)).last_words().kind)\n"
        "print({'fabric', 'invoke'} & sys.modules.keys()); import fabric; print(fabric.Connection.__name__)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "config")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["ssh.port-refused", "set()", "Connection"]


OVER_SSH = "127.0.0.2"
"""Another address of this machine: a host there is reached over SSH."""


@contextlib.contextmanager
def server(greets: bytes | None) -> Iterator[int]:
    """A port whose server sends this and hangs up; without a text it sends nothing, and stays."""
    with socket.create_server((OVER_SSH, 0)) as listener, contextlib.ExitStack() as callers:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    caller = callers.enter_context(listener.accept()[0])
                    if greets is not None:
                        caller.sendall(greets)
                        caller.shutdown(socket.SHUT_WR)

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def with_a_key(tmp_path: Path) -> Access:
    """An access with which paramiko logs in."""
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")]
    subprocess.run(make, check=True)
    known = f"UserKnownHostsFile {tmp_path}/known\nGlobalKnownHostsFile none\n"
    (tmp_path / "config").write_text(f"IdentityFile {tmp_path}/key\nConnectTimeout 1\n{known}")
    return Access(ssh_config=str(tmp_path / "config"))


@pytest.mark.parametrize("banner", [b"", b"Not allowed at this time\r\n", b"Exceeded MaxStartups\r\n"])
def test_where_paramiko_cannot_log_in_ssh_says_why(tmp_path: Path, banner: bytes) -> None:
    with server(banner) as port:
        refused = with_a_key(tmp_path).open(Host(OVER_SSH, port=port)).last_words()
    assert refused.kind == "ssh.closed"
    assert "(MaxStartups)" in refused.remedy
    assert "(PerSourcePenalties)" in refused.remedy


def test_a_host_that_takes_too_long_is_not_asked_again(tmp_path: Path) -> None:
    with server(None) as port, pytest.raises(HostError) as caught:
        with_a_key(tmp_path).open(Host(OVER_SSH, port=port))
    assert caught.value.kind == "ssh.silent"
    assert f"{OVER_SSH} port {port} accepts connections but does not speak SSH within 1 s" in str(
        caught.value
    )


@pytest.mark.parametrize("error", [ValueError("no curve"), IndexError("out of range"), AssertionError()])
def test_whatever_a_server_makes_paramiko_raise_is_a_login_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    closed: list[bool] = []

    class Client:
        def __init__(self, route: Route) -> None: ...

        def open(self) -> None:
            raise error

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(ssh, "PinnedClient", Client)
    with pytest.raises(NotLoggedInError):
        SshPipe(route_of(tmp_path, "Host node1\n", Host("node1")), "python3")
    assert closed == [True]


def test_what_hosts_may_send_ahead_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    windows: list[int] = []

    class Transport:
        def set_keepalive(self, seconds: int) -> None:
            pass

        def open_session(self, window: int, timeout: float) -> Transport:
            windows.append(window)
            return self

        def exec_command(self, command: str) -> None:
            pass

    class Client:
        def __init__(self, route: Route) -> None: ...

        def open(self) -> Transport:
            return Transport()

    monkeypatch.setattr(ssh, "PinnedClient", Client)
    SshPipe(route_of(tmp_path, "Host node1\n", Host("node1")), "python3")
    assert 256 * windows[0] <= 1 << 27


def test_an_agent_here_has_no_more_of_the_shell_than_a_login_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {"PATH", "HOME", "LC_TIME", "https_proxy", "CUDA_VISIBLE_DEVICES"}
    left_out = {"WANDB_API_KEY", "NCCL_DEBUG", "PYTHONPATH", "RANK", "MUSTER_PROGRESS"}
    for name in wanted | left_out:
        monkeypatch.setenv(name, os.environ.get(name, "0"))
    pipe = Access().open(Host("localhost"))
    assert isinstance(pipe, LocalPipe)
    with contextlib.closing(pipe):
        environ = Path(f"/proc/{pipe.pid}/environ")  # empty until the program is loaded
        words = wait_until(environ.read_text, "the environment of the agent")
    names = {word.partition("=")[0] for word in words.split("\0")}
    assert wanted <= names
    assert not left_out & names
