"""How a host is reached: OpenSSH's own reading of its configuration, and the keys that are known."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import paramiko
import pytest
from paramiko.ssh_exception import NoValidConnectionsError

from muster.deploy.core.connect.opener import Access
from muster.deploy.core.connect.transports import openssh, ssh
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.connect.transports.ssh import (
    PACKET_BYTES,
    PinnedClient,
    SshPipe,
    UnknownHostKey,
    _explain,
    _Outgoing,
    known_keys,
)
from muster.deploy.core.connect.transports.ssh_config import Route, proxy_of_jump, resolve
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
        "IdentityFile ~/.ssh/of-%h",
        "IdentityFile ${HOME}/x",
        *(
            f"IdentitiesOnly yes\n  IdentityFile key-{kind}"
            for kind in ("encrypted", "certified", "of-an-agent")
        ),
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
    for name, secret in (("plain", ""), ("encrypted", "secret"), ("certified", ""), ("of-an-agent", "")):
        make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", secret, "-f", str(tmp_path / f"key-{name}")]
        subprocess.run(make, check=True)
    (tmp_path / "key-certified-cert.pub").touch()
    (tmp_path / "key-of-an-agent").unlink()
    options = options.replace(" known-", f" {tmp_path}/known-").replace(" key-", f" {tmp_path}/key-")
    plain = f"Host *\n  IdentityFile {tmp_path}/key-plain\n"
    (tmp_path / "config").write_text(f"Host node1\n  {options}\n{plain}")
    access = Access(ssh_config=str(tmp_path / "config"))
    ways: list[object] = [access.open(Host("node1")), access.open(Host("node2"))]
    assert ways == ["ssh", "paramiko"]


@pytest.mark.parametrize(
    ("jump", "words"),
    [
        ("ml@gate:2222", "ssh://ml@gate:2222"),
        ("ssh://gate:22", "ssh://gate:22"),
        ("first,ml@second", "-J first -W '[%h]:%p' ssh://ml@second"),
    ],
)
def test_a_jump_host_may_have_a_user_a_port_and_others_before_it(jump: str, words: str) -> None:
    assert proxy_of_jump(jump, ("-F", "c")).endswith(words)


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

        def sendall(self, content: bytes) -> None:
            while content:
                content = content[self.send(content) :]

    channel, content = Paramikos(), os.urandom(1 << 19)
    _Outgoing(cast("paramiko.Channel", channel)).write(content)
    assert channel.got == content
    assert channel.handed <= len(content) * max(1, PACKET_BYTES // window + 1)


def test_a_channel_that_takes_nothing_any_more_is_a_broken_connection() -> None:
    class Closed:
        def send(self, content: bytes) -> int:
            return 0

    with pytest.raises(BrokenPipeError):
        _Outgoing(cast("paramiko.Channel", Closed())).write(b"x")


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
    assert bool(known_keys(route).trusted) is known


def test_hashed_names_and_aliases_are_known(tmp_path: Path) -> None:
    (tmp_path / "known").write_text(f"the-node {KEY}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(tmp_path / "known")], check=True, capture_output=True)
    assert "the-node" not in (tmp_path / "known").read_text()
    configuration = f"Host *\n  HostKeyAlias the-node\n  UserKnownHostsFile {tmp_path}/known\n"
    route = route_of(tmp_path, configuration, Host("10.0.0.1"))
    assert known_keys(route).trusted


def test_a_login_loads_neither_fabric_nor_invoke_and_hides_them_from_nobody(tmp_path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    (tmp_path / "config").write_text(f"IdentityFile {tmp_path}/key\nIdentitiesOnly yes\n")
    program = (
        "import sys; from muster.deploy.core.connect.opener import Access\n"
        "from muster.deploy.core.errors import HostError\n"
        "from muster.deploy.core.hosts.hostfile import Host\n"
        "try: Access(sys.argv[1]).open(Host('127.0.0.2', port=1))\n"
        "except HostError as error: print(error.kind)\n"
        "print({'fabric', 'invoke'} & sys.modules.keys()); import fabric; print(fabric.Connection.__name__)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "config")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["ssh.port-refused", "set()", "Connection"]


def test_an_unknown_key_is_never_taken(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host *\n  UserKnownHostsFile none\n")
    client = PinnedClient(resolve(Host("node1"), tmp_path / "config"))
    with pytest.raises(UnknownHostKey, match="SHA256:"):
        client._policy.missing_host_key(client, "node1", paramiko.RSAKey.generate(2048))  # type: ignore[attr-defined]  # not in the stubs


def no_connection(number: int) -> NoValidConnectionsError:
    return NoValidConnectionsError({("10.0.0.1", 22): OSError(number, os.strerror(number))})


CHANGED = paramiko.BadHostKeyException("n", paramiko.RSAKey.generate(1024), paramiko.RSAKey.generate(1024))


@pytest.mark.parametrize(
    ("error", "kind", "remedy"),
    [
        (
            CHANGED,
            "ssh.host-key-changed",
            "ssh-keygen -R 10.0.0.1, then confirm the new key with: ssh -F CON",
        ),
        (
            UnknownHostKey("ssh-ed25519 SHA256:x", {}),
            "ssh.host-key-unknown",
            "confirm it once with: ssh -F CON node1",
        ),
        (
            paramiko.AuthenticationException("Authentication failed."),
            "ssh.login-refused",
            "add the public key",
        ),
        (socket.gaierror(-2, "Name or service not known"), "ssh.name-unknown", "correct the hosts file"),
        (TimeoutError("timed out"), "ssh.unreachable", "is the host up"),
        (no_connection(errno.ECONNREFUSED), "ssh.port-refused", "does sshd run there?"),
        (no_connection(errno.EHOSTUNREACH), "ssh.unreachable", "is the host up"),
        (EOFError(), "ssh.closed", "MaxStartups"),
        (paramiko.ChannelException(2, "Connect failed"), "ssh.no-session", "MaxSessions"),
        (paramiko.SSHException("Error reading SSH protocol banner"), "ssh.silent", "look at its console"),
        (paramiko.SSHException("Incompatible ssh peer"), "ssh.failed", "try: ssh -F CON node1"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value,
)
def test_each_failure_has_an_id_and_remedy(tmp_path: Path, error: Exception, kind: str, remedy: str) -> None:
    explained = _explain(error, route_of(tmp_path, "Host node1\n  HostName 10.0.0.1\n", Host("node1")))
    assert explained.kind == kind
    assert remedy.replace("CON", f"{tmp_path}/config") in explained.remedy
    assert str(explained) == f"{explained.text}; {explained.remedy}"


def test_advice_names_the_login_of_the_hosts_file_and_the_file_that_keeps_keys(tmp_path: Path) -> None:
    known = f"Host *\n  UserKnownHostsFile {tmp_path}/known\n"
    remedy = _explain(CHANGED, route_of(tmp_path, known, Host("node1", user="ml", port=2222))).remedy
    assert f"ssh-keygen -R '[node1]:2222' -f {tmp_path}/known, then confirm" in remedy
    assert f"with: ssh -F {tmp_path}/config -l ml -p 2222 node1 (" in remedy
    own = _explain(CHANGED, resolve(Host("node1", user="ml"), None)).remedy
    assert "ssh-keygen -R node1, then confirm the new key with: ssh -l ml node1 (" in own


@pytest.mark.parametrize("option", ["StrictHostKeyChecking yes", "BatchMode yes"])
def test_where_ssh_asks_nobody_the_advice_asks(tmp_path: Path, option: str) -> None:
    """The configuration that setup writes has both options."""
    for error in (UnknownHostKey("ssh-ed25519 SHA256:x", {}), CHANGED):
        strict = route_of(tmp_path, f"Host *\n  {option}\n", Host("node1"))
        asking = f"with: ssh -o BatchMode=no -o StrictHostKeyChecking=ask -F {tmp_path}/config node1"
        assert asking in _explain(error, strict).remedy
        lax = route_of(tmp_path, "Host *\n  StrictHostKeyChecking ask\n", Host("node1"))
        assert f"with: ssh -F {tmp_path}/config node1" in _explain(error, lax).remedy


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ("UserKnownHostsFile /dev/null", "UserKnownHostsFile keeps no key; name a file there that does"),
        ("UserKnownHostsFile none", "UserKnownHostsFile keeps no key; name a file there that does"),
    ],
)
def test_where_a_confirmation_is_lost_it_is_not_advised(tmp_path: Path, options: str, remedy: str) -> None:
    error = UnknownHostKey("ssh-ed25519 SHA256:x", {})
    explained = _explain(error, route_of(tmp_path, f"Host *\n  {options}\n", Host("node1")))
    assert (explained.kind, explained.remedy[: len(remedy)]) == ("ssh.host-key-unknown", remedy)


def test_an_unreadable_known_hosts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "known").write_text(f"node1 {KEY}\n")
    configuration = f"Host *\n  UserKnownHostsFile {tmp_path}/known\n  GlobalKnownHostsFile none\n"
    route = route_of(tmp_path, configuration, Host("node1"))

    def refuse(path: Path, errors: str = "") -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refuse)  # root may read everything
    client = PinnedClient(route)
    with pytest.raises(UnknownHostKey) as caught:
        client._policy.missing_host_key(client, "node1", paramiko.RSAKey.generate(2048))  # type: ignore[attr-defined]  # not in the stubs
    explained = _explain(caught.value, route)
    assert explained.text.endswith(f" cannot be checked: {tmp_path}/known: Permission denied")
    assert explained.remedy == "let your user read that file"


def test_a_host_that_has_the_name_of_this_machine_is_known_to_be_it(tmp_path: Path) -> None:
    own = socket.gethostname()
    refused = _explain(no_connection(errno.ECONNREFUSED), route_of(tmp_path, "", Host(own)))
    assert refused.remedy.endswith(
        f"{own} is this machine: as localhost, alone in its hosts file, it needs no SSH"
    )
    other = _explain(no_connection(errno.ECONNREFUSED), route_of(tmp_path, "", Host("node1")))
    assert "this machine" not in other.remedy


@pytest.mark.parametrize("banner", [b"", b"Not allowed at this time\r\n", b"Exceeded MaxStartups\r\n"])
def test_a_server_that_closes_early_is_not_called_silent(tmp_path: Path, banner: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            caller, _ = listener.accept()
            with caller:
                caller.sendall(banner)
                caller.shutdown(socket.SHUT_WR)
                caller.recv(1 << 10)

        threading.Thread(target=serve, daemon=True).start()
        port = listener.getsockname()[1]
        with pytest.raises(HostError) as caught:
            SshPipe(route_of(tmp_path, "", Host("127.0.0.1", port=port)), "python3")
    assert caught.value.kind == "ssh.closed"
    assert caught.value.text == f"127.0.0.1 port {port} closed the connection before it spoke SSH"
    assert "(MaxStartups)" in caught.value.remedy
    assert "(PerSourcePenalties)" in caught.value.remedy


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
