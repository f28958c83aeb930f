"""Which host keys are taken, and which keys are offered: as ssh(1) does, against a server in this process."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from muster.deploy.core.connect.opener import Access
from muster.deploy.core.connect.transports import ssh_config
from muster.deploy.core.connect.transports.login import Login
from muster.deploy.core.connect.transports.ssh import PinnedClient, SshPipe, _explain
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


class Refusing:
    """A transport that refuses every key, and notes what it was offered."""

    def __init__(self) -> None:
        self.offered: list[bytes] = []

    def is_active(self) -> bool:
        return True

    def auth_publickey(self, user: str, key: paramiko.PKey) -> list[str]:
        self.offered.append(key.asbytes())
        raise paramiko.AuthenticationException("Authentication failed.")


def offered(route: Route) -> list[bytes]:
    transport = Refusing()
    with pytest.raises(paramiko.SSHException):
        Login(route).authenticate(transport)  # type: ignore[arg-type]  # what it needs of one
    return transport.offered


def content(path: Path) -> bytes:
    return paramiko.pkey.PublicBlob.from_file(str(path)).key_blob


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    """The socket of an agent that has two keys: `held`, and `unasked`."""
    place = tmp_path / "agent"
    with subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(place)], stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout and running.stdout.readline()  # it listens
        for name in ("held", "unasked"):
            make_key(tmp_path / name)
            environment = {**os.environ, "SSH_AUTH_SOCK": str(place)}
            subprocess.run(["ssh-add", "-q", str(tmp_path / name)], env=environment, check=True)
        yield place
        running.terminate()


def test_identity_agent_is_the_agent_that_is_asked(
    route: Written, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, both = (
        content(tmp_path / "mine.pub"),
        [content(tmp_path / f"{name}.pub") for name in ("held", "unasked")],
    )
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "nowhere"))
    assert offered(route("", f"  IdentityAgent {agent}")) == [mine, *both]
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    assert offered(route("", "")) == [mine, *both]
    assert offered(route("", "  IdentityAgent none")) == [mine]
    monkeypatch.setenv("OTHER", str(agent))
    assert offered(route("", "  IdentityAgent $OTHER")) == [mine, *both]


@pytest.mark.parametrize("left", ["the public key", "the encrypted key", "both"])
def test_the_key_of_an_agent_that_the_configuration_names_is_offered_first(
    route: Written, agent: Path, tmp_path: Path, left: str
) -> None:
    """A server takes six keys (MaxAuthTries), and an agent may hold more."""
    change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(tmp_path / "unasked")]
    subprocess.run(change, check=True, capture_output=True)
    held, unasked = (content(tmp_path / f"{name}.pub") for name in ("held", "unasked"))
    if left == "the encrypted key":
        (tmp_path / "unasked.pub").unlink()
    elif left == "the public key":
        (tmp_path / "unasked").unlink()
    (tmp_path / "config").write_text(f"Host *\n  IdentityAgent {agent}\n  IdentityFile {tmp_path}/unasked\n")
    assert offered(resolve(Host("node1"), tmp_path / "config")) == [unasked, held]


def test_keys_that_ssh_tries_by_itself_come_after_those_of_the_agent(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".ssh").mkdir()
    make_key(tmp_path / ".ssh" / "id_ed25519")
    monkeypatch.setattr(ssh_config, "ssh_home", lambda: str(tmp_path))
    (tmp_path / "config").write_text(f"Host *\n  IdentityAgent {agent}\n")
    wanted = ("held.pub", "unasked.pub", ".ssh/id_ed25519.pub")
    keys = offered(resolve(Host("node1"), tmp_path / "config"))
    assert keys == [content(tmp_path / name) for name in wanted]


@pytest.mark.parametrize(("most", "said"), [(2, "after 2 keys: too many authentication failures"), (3, "")])
def test_a_server_that_takes_no_more_keys_is_told_from_one_that_refuses_all(
    route: Written, agent: Path, tmp_path: Path, most: int, said: str
) -> None:
    class Patient(Refusing):
        """Ends the connection after so many keys."""

        def is_active(self) -> bool:
            return len(self.offered) < most

    with pytest.raises(paramiko.AuthenticationException) as caught:
        Login(route("", f"  IdentityAgent {agent}")).authenticate(Patient())  # type: ignore[arg-type]
    refused = _explain(caught.value, route("", ""))
    assert refused.kind == "ssh.login-refused"
    assert refused.text.endswith(said or "(Authentication failed)")
    assert ("IdentitiesOnly yes" in refused.remedy) is bool(said)


def test_with_identities_only_an_agent_gives_the_keys_of_the_identity_files(
    route: Written, agent: Path, tmp_path: Path
) -> None:
    (tmp_path / "held").unlink()
    options = f"  IdentityAgent {agent}\n  IdentitiesOnly yes\n  IdentityFile {tmp_path}/held"
    assert offered(route("", options)) == [content(tmp_path / "mine.pub"), content(tmp_path / "held.pub")]


def test_a_key_that_cannot_be_used_is_named(route: Written, host_key: str, tmp_path: Path) -> None:
    change = ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", str(tmp_path / "mine")]
    subprocess.run(change, check=True, capture_output=True)
    refused = refusal(route(f"HOST {host_key}\n", "  IdentityAgent none"))
    assert (refused.kind, "encrypted" in refused.text) == ("ssh.login-refused", True)
    assert refused.remedy == (
        f'a key with a passphrase needs an agent: eval "$(ssh-agent)" && ssh-add {tmp_path}/mine'
    )
    both = refusal(
        route(f"HOST {host_key}\n", f"  IdentityAgent {tmp_path}/s\n  IdentityFile {tmp_path}/gone")
    )
    assert both.remedy == (
        f"correct IdentityFile: there is no {tmp_path}/gone; "
        f"a key with a passphrase needs an agent: ssh-add {tmp_path}/mine"
    )
