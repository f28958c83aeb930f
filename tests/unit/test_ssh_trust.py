"""Which host keys are taken, and which keys are offered: as ssh(1) does, against a server in this process."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from muster.deploy.core.connect.opener import Access
from muster.deploy.core.connect.transports.ssh import KeyFiles, PinnedClient, SshPipe, _explain
from muster.deploy.core.connect.transports.ssh_config import Route, resolve
from muster.deploy.core.errors import HostError
from muster.deploy.core.hosts.hostfile import Host

Written = Callable[[str, str], Route]


class Server(paramiko.ServerInterface):
    """Lets everybody in."""

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return True


def make_key(path: Path, *options: str) -> str:
    """A key pair; the line of its public key."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path), *options], check=True)
    return " ".join(path.with_name(f"{path.name}.pub").read_text().split()[:2])


@pytest.fixture
def host_key(tmp_path: Path) -> str:
    return make_key(tmp_path / "host")


@pytest.fixture
def server(tmp_path: Path, host_key: str) -> Iterator[int]:
    """The port of a server with this host key."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        transports: list[paramiko.Transport] = []

        def serve() -> None:
            while True:
                try:
                    caller, _ = listener.accept()
                except OSError:
                    return
                transport = paramiko.Transport(caller)
                transports.append(transport)
                transport.add_server_key(paramiko.PKey.from_path(tmp_path / "host"))
                # No key exchange of the client's but ends without an error that it reports itself.
                transport.start_server(event=threading.Event(), server=Server())

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        for transport in transports:
            transport.close()


@pytest.fixture
def route(tmp_path: Path, server: int) -> Written:
    """A route to the server, by these lines of known_hosts and of the configuration."""
    make_key(tmp_path / "mine")

    def write(known: str, options: str = "") -> Route:
        (tmp_path / "known").write_text(known.replace("HOST", f"[127.0.0.1]:{server}"))
        (tmp_path / "config").write_text(
            f"Host *\n  HostName 127.0.0.1\n  User ml\n  IdentityFile {tmp_path}/mine\n"
            f"  GlobalKnownHostsFile none\n  UserKnownHostsFile {tmp_path}/known\n{options}\n"
        )
        return resolve(Host("node1", port=server), tmp_path / "config")

    return write


def refusal(route: Route) -> HostError:
    with pytest.raises(HostError) as caught:
        SshPipe(route, "python3")
    return caught.value


def connect(route: Route) -> None:
    connection = PinnedClient(route)
    connection.open()
    connection.close()


def test_a_connection_that_this_side_has_closed_is_explained_too(route: Written, host_key: str) -> None:
    pipe = SshPipe(route(f"HOST {host_key}", ""), "python3")
    pipe.close()
    assert pipe.last_words().text == "the SSH connection broke"


# ---- host keys --------------------------------------------------------------------------------------------


def test_any_of_several_keys_that_are_pinned_is_taken(route: Written, host_key: str, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    connect(route(f"HOST {host_key}\nHOST {other}\n", ""))
    connect(route(f"HOST {other}\nHOST {host_key}\n", ""))


@pytest.mark.parametrize("listed", [False, True], ids=["in known_hosts", "in RevokedHostKeys"])
def test_a_revoked_key_is_refused_although_it_is_pinned(
    route: Written, host_key: str, tmp_path: Path, listed: bool
) -> None:
    route(
        f"HOST {host_key}\n" + ("" if listed else f"@revoked * {host_key}\n"),
        f"  RevokedHostKeys {tmp_path}/host.pub" if listed else "",
    )
    port = int((tmp_path / "known").read_text().partition("]:")[2].split()[0])
    pipe = Access(ssh_config=str(tmp_path / "config")).open(Host("node1", port=port))
    assert pipe.last_words().kind == "ssh.host-key-revoked"


# ---- keys to log in with ----------------------------------------------------------------------------------


def test_the_key_files_are_tried_in_turn_and_what_the_host_says_is_quoted(
    route: Written, host_key: str, tmp_path: Path
) -> None:
    class Choosy:
        """Accepts the second key."""

        def __init__(self) -> None:
            self.offered: list[str] = []

        def auth_publickey(self, user: str, key: paramiko.PKey) -> list[str]:
            self.offered.append(f"{key.get_name()} {key.get_base64()}")
            if len(self.offered) < 2:
                raise paramiko.AuthenticationException("Authentication failed.")
            return []

    other, transport = make_key(tmp_path / "other"), Choosy()
    written = route(f"HOST {host_key}\n", f"  IdentityFile {tmp_path}/other")
    KeyFiles(written).authenticate(transport)  # type: ignore[arg-type]  # what it needs of one
    assert transport.offered == [" ".join((tmp_path / "mine.pub").read_text().split()[:2]), other]
    alone = route(f"HOST {host_key}\n", f"  IdentityFile {tmp_path}/gone")
    with pytest.raises(paramiko.AuthenticationException) as caught:
        KeyFiles(alone).authenticate(Choosy())  # type: ignore[arg-type]
    refused = _explain(caught.value, alone)
    assert refused.kind == "ssh.login-refused"
    assert refused.text.endswith(f" with the keys {tmp_path}/mine (Authentication failed)")
    assert refused.remedy == f"correct IdentityFile: there is no {tmp_path}/gone"
