"""The OpenSSH client as the way to a host: which words it gets, and what is made of what it says."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL, OPEN_SUCCEEDED

from muster.deploy.core.connect.bootstrap import GREETING
from muster.deploy.core.connect.opener import Access, access_with
from muster.deploy.core.connect.pipe import Pipe
from muster.deploy.core.connect.transports import process
from muster.deploy.core.connect.transports.openssh import OpenSshPipe, command
from muster.deploy.core.connect.transports.ssh import NotLoggedInError, PinnedClient, SshPipe
from muster.deploy.core.connect.transports.ssh_config import Route, resolve
from muster.deploy.core.errors import UsageError
from muster.deploy.core.hosts.hostfile import Host
from tests.waiting import PATIENCE, wait_until

Fake = Callable[[str], OpenSshPipe]
GREETS = f"echo {GREETING.decode().strip()}; "


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """A pipe whose ssh is this shell script."""

    def opened(script: str) -> OpenSshPipe:
        (tmp_path / "ssh").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "ssh").chmod(0o700)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        return OpenSshPipe(Host("node2"), "python3")

    return opened


CHANGED = """@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
Offending ED25519 key in /home/ml/.ssh/known_hosts:3
Host key verification failed."""
UNKNOWN = """No ED25519 host key is known for [10.0.0.9]:22 and you have requested strict checking.
Host key verification failed."""
REVOKED = """@       WARNING: REVOKED HOST KEY DETECTED!               @
Host key verification failed."""
PROXY = """nc: connect to gate port 22: refused
kex_exchange_identification: Connection closed by remote host
Connection closed by UNKNOWN port 65535"""


@pytest.mark.parametrize(
    ("kind", "said", "text"),
    [
        (
            "ssh.host-key-changed",
            CHANGED,
            "HOST KEY CHANGED: Offending ED25519 key in /home/ml/.ssh/known_hosts:3",
        ),
        ("ssh.host-key-unknown", UNKNOWN, UNKNOWN.splitlines()[0]),
        ("ssh.host-key-revoked", REVOKED, "HOST KEY REVOKED: Host key verification failed."),
        ("ssh.proxy-ended", PROXY, "nc: connect to gate port 22: refused"),
        ("ssh.login-refused", "ml@10.0.0.9: Permission denied (publickey).", ""),
        ("ssh.login-refused", "Received disconnect from 10.0.0.9: 2: Too many authentication failures", ""),
        ("ssh.name-unknown", "ssh: Could not resolve hostname node2: Name or service not known", ""),
        ("ssh.port-refused", "ssh: connect to host 10.0.0.9 port 22: Connection refused", ""),
        ("ssh.unreachable", "ssh: connect to host 10.0.0.9 port 22: Connection timed out", ""),
        ("ssh.unreachable", "ssh: connect to host 10.0.0.9 port 22: No route to host", ""),
        ("ssh.silent", "Connection timed out during banner exchange", ""),
        ("ssh.closed", "Connection closed by 10.0.0.9 port 22", ""),
        ("ssh.no-session", "channel 0: open failed: administratively prohibited: open failed", ""),
        ("ssh.failed", "/home/ml/.ssh/config line 3: Bad configuration option: prot", ""),
    ],
)
def test_what_ssh_says_is_quoted_with_its_kind(ssh: Fake, kind: str, said: str, text: str) -> None:
    refused = ssh(f"cat >&2 <<'END'\n{said}\nEND\nexit 255").last_words()
    assert (refused.kind, refused.text) == (kind, text or said)
    assert refused.remedy
    assert ("with: ssh -o BatchMode=no -o StrictHostKeyChecking=ask node2" in refused.remedy) == (
        kind in {"ssh.host-key-changed", "ssh.host-key-unknown"}  # else the configuration may forbid to ask
    )


@pytest.mark.parametrize(
    ("setting", "said", "remedy"),
    [
        (
            "identityfile /no/such/key",
            "ml@node2: Permission denied (publickey).",
            "correct IdentityFile: there is no /no/such/key",
        ),
        ("userknownhostsfile /dev/null", UNKNOWN, "UserKnownHostsFile keeps no key; name a file there that"),
        ("userknownhostsfile none", UNKNOWN, "UserKnownHostsFile keeps no key; name a file there that does"),
        (
            "userknownhostsfile /known",
            CHANGED,
            "if you know why: ssh-keygen -R '[10.0.0.9]:2222' -f /known, then confirm the new key with: ssh ",
        ),
        ("hostkeyalias the-node", CHANGED, "ssh-keygen -R the-node, then confirm the new key with: ssh "),
    ],
)
def test_the_remedy_is_that_of_the_configuration(ssh: Fake, setting: str, said: str, remedy: str) -> None:
    configured = f"user ml\nhostname 10.0.0.9\nport 2222\n{setting}"
    answers = f"if [ \"$1\" = -G ]; then printf '{configured}\n'; exit; fi\n"
    assert remedy in ssh(f"{answers}cat >&2 <<'END'\n{said}\nEND\nexit 255").last_words().remedy


def test_the_login_in_a_remedy_is_that_of_the_hosts_file(ssh: Fake, tmp_path: Path) -> None:
    ssh("echo 'mysterious' >&2; exit 255")
    pipe = OpenSshPipe(Host("node2", user="ml", port=2222), "python3", ssh_config=tmp_path / "config")
    assert pipe.last_words().remedy == f"try: ssh -F {tmp_path}/config -l ml -p 2222 node2"


def test_a_host_that_has_the_name_of_this_machine_is_known_to_be_it(ssh: Fake) -> None:
    ssh("echo 'Connection refused' >&2; exit 255")
    own = socket.gethostname()
    known = f"{own} is this machine: as localhost, alone in its hosts file, it needs no SSH"
    assert OpenSshPipe(Host(own), "python3").last_words().remedy.endswith(known)
    assert "this machine" not in OpenSshPipe(Host("node1"), "python3").last_words().remedy


@pytest.mark.parametrize(
    ("script", "kind", "text"),
    [
        ("exit 255", "agent.killed", "its agent was killed there (SIGKILL)"),  # the end of a signal
        ("exit 137", "agent.killed", "its agent was killed there (SIGKILL)"),  # the login shell's word for it
        (
            "echo 'Timeout, server 10.0.0.9 not responding.' >&2; exit 255",
            "host.lost",
            "the SSH connection broke",
        ),
        ("echo 'OSError: boom' >&2; exit 1", "python.failed", "the agent ended with status 1: OSError: boom"),
    ],
)
def test_the_end_of_an_agent_is_no_refusal(ssh: Fake, script: str, kind: str, text: str) -> None:
    lost = ssh(GREETS + script).last_words()
    assert lost.kind == kind
    assert text in lost.text


def test_a_host_without_python_is_told_so(ssh: Fake) -> None:
    lost = ssh("echo 'bash: line 1: python3: command not found' >&2; exit 127").last_words()
    assert (lost.kind, lost.text) == ("python.missing", "no python3 there")


def test_the_master_of_shared_connections_may_live_on(ssh: Fake, tmp_path: Path) -> None:
    """It has the pipe of the errors open (ControlPersist of older OpenSSH)."""
    pid = tmp_path / "master"
    said = ssh(f"sleep 600 >/dev/null & echo $! >{pid}; echo gone >&2; exit 255").last_words()
    os.kill(int(pid.read_text()), 9)  # ProcessLookupError if it was waited for
    assert said.text == "gone"


def test_a_host_gets_nothing_of_the_user(ssh: Fake) -> None:
    argv = command(Host("node2"), "python3")
    assert {"-a", "-x", "ClearAllForwardings=yes", "PermitLocalCommand=no", "BatchMode=yes"} < set(argv)


def test_the_client_is_the_users_choice(ssh: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh(f'echo "$@" >{tmp_path}/words; {GREETS}')
    monkeypatch.setenv("MUSTER_SSH", "openssh")
    assert isinstance(access_with(Path("/some/ssh_config"), "").open(Host("node2")), OpenSshPipe)
    assert "-F /some/ssh_config" in (tmp_path / "words").read_text()
    monkeypatch.setenv("MUSTER_SSH", "dropbear")
    with pytest.raises(UsageError, match="MUSTER_SSH is paramiko or openssh, got 'dropbear'"):
        access_with(None, "")


def test_a_stuck_host_does_not_hold_up_the_end(ssh: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that is frozen: Ctrl-C comes while a thread sends it the code."""
    monkeypatch.setattr(process, "IMPATIENT_SECONDS", 0.1)
    pipe = ssh(f"{GREETS}exec sleep 600")
    began, over = threading.Event(), threading.Event()

    def send() -> None:
        began.set()
        with contextlib.suppress(OSError, ValueError):
            pipe.writer.write(b"x" * (1 << 22))
        over.set()

    threading.Thread(target=send, daemon=True).start()
    assert began.wait(PATIENCE)
    wait_until(lambda: waiting_bytes(pipe.pid) >= process.PIPE_SIZE, "a full pipe")
    pipe.close(patient=False)
    assert over.wait(PATIENCE)


def waiting_bytes(pid: int) -> int:
    """How many bytes of a process's standard input nobody has read yet."""
    with Path(f"/proc/{pid}/fd/0").open("rb", buffering=0) as file:
        return int(struct.unpack("i", fcntl.ioctl(file, termios.FIONREAD, b"\0" * 4))[0])


# -- which host keys are taken, and which keys are offered, by a server in this process --


Written = Callable[[str, str], Route]


class Server(paramiko.ServerInterface):
    """Lets everybody in."""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        threading.Timer(0.1, greet, (channel,)).start()
        return True


def greet(channel: paramiko.Channel) -> None:
    with contextlib.suppress(OSError):  # it is closed
        channel.sendall(GREETING)


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
        (tmp_path / "port").write_text(str(server))
        (tmp_path / "known").write_text(known.replace("HOST", f"[127.0.0.1]:{server}"))
        (tmp_path / "config").write_text(
            f"Host *\n  HostName 127.0.0.1\n  User ml\n  IdentityFile {tmp_path}/mine\n"
            f"  GlobalKnownHostsFile none\n  UserKnownHostsFile {tmp_path}/known\n{options}\n"
        )
        return resolve(Host("node1", port=server), tmp_path / "config")

    return write


def opened(folder: Path) -> Pipe:
    """What a command gets for the host of `route`, by paramiko or OpenSSH."""
    port = int((folder / "port").read_text())
    return Access(ssh_config=str(folder / "config")).open(Host("node1", port=port))


def test_a_connection_that_this_side_has_closed_is_explained_too(route: Written, host_key: str) -> None:
    pipe = SshPipe(route(f"HOST {host_key}", ""), "python3")
    pipe.close()
    assert pipe.last_words().text == "the SSH connection broke"


@pytest.mark.parametrize("known", ["HOST {0}", "HOST {0}\nHOST {1}", "HOST {1}\nHOST {0}"])
def test_one_pinned_key_of_many_is_taken(route: Written, host_key: str, tmp_path: Path, known: str) -> None:
    route(known.format(host_key, make_key(tmp_path / "other")), "")
    with contextlib.closing(opened(tmp_path)) as pipe:
        assert pipe.reader.readline() == GREETING


def test_an_unpinned_key_is_refused_by_both_clients(route: Written, host_key: str, tmp_path: Path) -> None:
    other = make_key(tmp_path / "other")
    for known, kind in ((f"HOST {other}", "changed"), (f"HOST0 {host_key}", "unknown")):
        with pytest.raises(NotLoggedInError):
            SshPipe(route(known, ""), "python3")
        assert opened(tmp_path).last_words().kind == f"ssh.host-key-{kind}"


@pytest.mark.parametrize("listed", [False, True], ids=["in known_hosts", "in RevokedHostKeys"])
def test_a_revoked_key_is_refused(route: Written, host_key: str, tmp_path: Path, listed: bool) -> None:
    route(
        f"HOST {host_key}\n" + ("" if listed else f"@revoked * {host_key}\n"),
        f"  RevokedHostKeys {tmp_path}/host.pub" if listed else "",
    )
    assert opened(tmp_path).last_words().kind == "ssh.host-key-revoked"


def test_the_key_files_are_tried_in_turn(route: Written, host_key: str, tmp_path: Path) -> None:
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
    client = PinnedClient(route(f"HOST {host_key}\n", f"  IdentityFile {tmp_path}/other"))
    client.authenticate(transport)  # type: ignore[arg-type]  # what it needs of one
    assert transport.offered == [" ".join((tmp_path / "mine.pub").read_text().split()[:2]), other]
    alone = PinnedClient(route(f"HOST {host_key}\n", ""))
    with pytest.raises(paramiko.AuthenticationException):
        alone.authenticate(Choosy())  # type: ignore[arg-type]
