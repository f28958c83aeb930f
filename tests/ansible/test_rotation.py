"""A new key takes the old one's place, and nobody is kept out for a moment."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.ansible.bare_hosts import ADDRESSES, run

if TYPE_CHECKING:
    from tests.ansible.bare_hosts import Hosts

pytestmark = [pytest.mark.soak, pytest.mark.usefixtures("set_up")]

# On a host, as the jobs' account: to every host in turn, until told to stop; how often, and what went wrong.
VISITS = """
count=0
while [ ! -e /tmp/stop ]; do
  for name in {names}; do ssh -n "$name" true || echo "failed: $name"; count=$((count + 1)); done
done
echo "$count logins"
"""


@contextmanager
def logins(hosts: Hosts) -> Iterator[list[str]]:
    """While it lasts, driver and first host log in to every host again and again; then, what they said."""
    said: list[str] = []
    over = threading.Event()

    def drive() -> None:
        count = 0
        while not over.is_set():
            for name in hosts.names:
                done = hosts.driver(name, "true", "-o", "ControlPath=none")
                said.extend([f"driver: {name}: {done.stderr}"] if done.returncode else [])
                count += 1
        said.append(f"{count} logins")

    def visit(name: str) -> None:
        script = VISITS.format(names=" ".join(hosts.names))
        command = ("docker", "exec", "--user", "muster", hosts.container(name), "sh", "-c", script)
        done = run(*command, timeout=300)
        said.extend(f"{name}: {line}" for line in (done.stdout + done.stderr).splitlines())

    threads = [threading.Thread(target=drive)]
    threads += [threading.Thread(target=visit, args=(hosts.names[0],))]
    for thread in threads:
        thread.start()
    try:
        yield said
    finally:
        over.set()
        hosts.on(hosts.names[0], "touch", "/tmp/stop")
        for thread in threads:
            thread.join()
        hosts.on(hosts.names[0], "rm", "/tmp/stop")


def everyone_is_in(hosts: Hosts) -> bool:
    """Whether the driver reaches every host, and so does the first host."""
    others = " && ".join(f"ssh -n {name} true" for name in hosts.names)
    with ThreadPoolExecutor() as pool:
        commands = zip(hosts.names, [others, *["true"] * (len(hosts.names) - 1)], strict=True)
        visits = list(pool.map(lambda command: hosts.driver(*command), commands))
    return [done.stderr for done in visits if done.returncode] == []


def test_a_new_key_takes_the_old_ones_place_and_no_login_fails(hosts: Hosts) -> None:
    old = (hosts.muster / "id_ed25519").read_text()
    with logins(hosts) as said:
        done = hosts.play("rotate-keys")
    assert done.status == 0, done.text
    counts = [int(line.split()[-2]) for line in said if line.endswith(" logins")]
    assert [line for line in said if not line.endswith(" logins")] == []
    assert len(counts) == 2
    assert min(counts) > 10
    assert (hosts.muster / "id_ed25519").read_text() != old
    assert list(hosts.muster.glob("*next*")) == []
    (hosts.folder / "old").write_text(old)
    (hosts.folder / "old").chmod(0o600)
    known = f"UserKnownHostsFile={hosts.muster}/known_hosts"
    done_old = run(
        *("ssh", "-F", "none", "-o", known, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"),
        *("-i", str(hosts.folder / "old"), f"muster@{ADDRESSES['node1']}", "true"),
    )
    assert "Permission denied (publickey)" in done_old.stderr


@pytest.mark.parametrize(
    "marker", ["[ssh_trust : Hand out the next key]", "[ssh_trust : Let only the new key in]"]
)
def test_a_rotation_that_is_interrupted_keeps_everyone_in(hosts: Hosts, marker: str) -> None:
    hosts.play_until(marker, "rotate-keys")
    assert everyone_is_in(hosts)
    assert hosts.play("setup", "--tags", "ssh_trust").status == 0
    assert everyone_is_in(hosts)


def test_a_rotation_that_was_interrupted_is_reported_and_goes_on(hosts: Hosts) -> None:
    hosts.play_until("[ssh_trust : Let only the new key in]", "rotate-keys")
    assert hosts.play("verify", verify_roles=["ssh_trust"]).status != 0
    assert {check["id"] for check in hosts.checks() if not check["ok"]} == {"ssh_trust.finished"}
    done = hosts.play("rotate-keys")
    assert done.status == 0, done.text
    assert everyone_is_in(hosts)
    assert hosts.play("verify").status == 0


def test_a_preview_of_a_rotation_says_what_it_would_do_and_changes_nothing(hosts: Hosts) -> None:
    done = hosts.play("rotate-keys", "--check", "--diff")
    assert (done.status, done.changed) == (0, 0), done.text
    assert "a new key would be made" in done.text


def test_a_rotation_of_some_hosts_is_refused(hosts: Hosts) -> None:
    done = hosts.play("rotate-keys", "--limit", "node1")
    assert done.status != 0
    assert "a key is rotated on all hosts at once" in done.text
