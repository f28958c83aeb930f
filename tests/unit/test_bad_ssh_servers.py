"""SSH servers and files that are not what they should be cost their own host alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.deploy.core.connect.transports import ssh
from muster.deploy.core.connect.transports.ssh import SshPipe, known_keys
from muster.deploy.core.connect.transports.ssh_config import Route, resolve
from muster.deploy.core.errors import HostError
from muster.deploy.core.hosts.hostfile import Host

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTWkmrHdDTOh9hcHwDh6xOdKmHxYkfsLwBXqFZE2nlF"


def route_of(tmp_path: Path, configuration: str) -> Route:
    (tmp_path / "config").write_text(configuration)
    return resolve(Host("node1"), tmp_path / "config")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("Error computing shared key."), "Error computing shared key"),
        (IndexError("index out of range"), "index out of range"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_whatever_an_ssh_server_makes_paramiko_raise_is_an_error_of_its_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str
) -> None:
    closed: list[bool] = []

    class Client:
        def __init__(self, route: Route) -> None: ...

        def open(self) -> None:
            raise error

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(ssh, "PinnedClient", Client)
    with pytest.raises(HostError) as caught:
        SshPipe(route_of(tmp_path, "Host node1\n"), "python3")
    assert (caught.value.kind, closed) == ("ssh.failed", [True])
    assert caught.value.text == f"cannot connect to node1 port 22: {reason}"


@pytest.mark.parametrize("names", ["|1|AAAA|x", "|1|x|x", "|1|", "|1|AAAA"])
def test_a_hashed_name_that_is_damaged_is_passed_over(tmp_path: Path, names: str) -> None:
    (tmp_path / "known").write_text(f"{names} {KEY}\nnode1 {KEY}\n")
    route = route_of(tmp_path, f"Host *\n  UserKnownHostsFile {tmp_path}/known\n")
    assert len(known_keys(route).trusted) == 1
