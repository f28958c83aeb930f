"""`muster setup` of an installed wheel, on a bare host."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ansible.bare_hosts import Hosts
from tests.wheel import build_wheel, install


@pytest.fixture
def bare_host(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """A host without setup, of a cluster of its own."""
    # A short name: ssh's sockets lie there, and their paths have at most 107 bytes (unix(7)).
    hosts = Hosts(tmp_path_factory.mktemp("host"), ["node4"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.start("node4")
    return hosts


@pytest.mark.soak
def test_setup_of_the_wheel_says_what_it_would_do_only(bare_host: Hosts, tmp_path: Path) -> None:
    (tmp_path / "installed").mkdir()
    installed = install(build_wheel(tmp_path / "built"), tmp_path / "installed")
    bare_host.command("setup")  # writes hosts.txt and the variables beside it
    before = bare_host.traces("node4")
    own = {name: value for name, value in bare_host.env.items() if name.startswith("ANSIBLE_")}
    done = installed.muster("setup", "--", "--check", "--diff", cwd=bare_host.folder, timeout=600, env=own)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ansible-playbook {installed.package}/ansible/setup.yml --inventory hosts.txt" in done.stdout
    assert "failed=0" in done.stdout
    assert "changed=0" not in done.stdout.rpartition("node4 ")[2]
    assert "+    MaxSessions 64" in done.stdout
    assert not bare_host.muster.exists()
    assert bare_host.traces("node4") == before
