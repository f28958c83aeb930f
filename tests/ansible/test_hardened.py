"""A hardened sshd, and jobs that run as an account that was there before, stay as they were.

Setup hardens an sshd only on request, and locks no account out without a word.
"""

from __future__ import annotations

import json
import sqlite3
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.ansible.bare_hosts import ADDRESSES, Hosts, run
from tests.ansible.programs import module
from tests.ansible.rendering import render, render_value
from tests.ansible.test_problems import SEEN

if TYPE_CHECKING:
    from pathlib import Path

HARDENED = {
    "permitrootlogin": "no",
    "macs": "hmac-sha2-512-etm@openssh.com",
    "kexalgorithms": "curve25519-sha256",
    "maxstartups": "10:30:60",
    "logingracetime": "20",
}
PREPARE = """
printf '{lines}' >/etc/ssh/sshd_config.d/50-hardened.conf
systemctl reload ssh
useradd --create-home --shell /bin/sh --groups audio --password '*' ml
install -d -m 700 -o ml -g ml ~ml/.ssh
install -m 600 -o ml -g ml /home/op/.ssh/authorized_keys ~ml/.ssh/authorized_keys
echo paper >~ml/notes
"""
PARTS = ("--tags", "ssh_trust")


@pytest.fixture(scope="module")
def hardened(operator: Path, clock: str, tmp_path_factory: pytest.TempPathFactory) -> Hosts:
    """A hardened host, and jobs that are to run as its account ml."""
    hosts = Hosts(tmp_path_factory.mktemp("hardened"), ["node5"])
    for name in ("operator", "operator.pub"):
        (hosts.folder / name).symlink_to(operator / name)
    hosts.variables |= {"muster_user": "ml"}
    hosts.start("node5", login="op")
    lines = "".join(f"{name} {value}\\n" for name, value in HARDENED.items())
    hosts.on("node5", "sh", "-c", PREPARE.format(lines=lines))
    return hosts


@pytest.fixture(scope="module")
def before(hardened: Hosts) -> set[str]:
    return hardened.traces("node5")


def settings(hosts: Hosts) -> dict[str, str]:
    """What sshd does for everyone."""
    said = hosts.on("node5", "sshd", "-T")
    return {
        name: value
        for name, _, value in (line.partition(" ") for line in said.splitlines())
        if name in HARDENED
    }


def own_key(hosts: Hosts, *command: str) -> str:
    """What ml gets with a key of its own, as before."""
    options = ("-F", "none", "-i", str(hosts.folder / "operator"), "-o", "BatchMode=yes")
    known = ("-o", f"UserKnownHostsFile={hosts.folder}/operator_known_hosts")
    return run("ssh", *options, *known, f"ml@{ADDRESSES['node5']}", *command).stdout


@pytest.mark.soak
def test_setup_loosens_nothing_of_a_hardened_sshd(hardened: Hosts, before: set[str]) -> None:
    assert settings(hardened) == HARDENED
    done = hardened.play("setup", *PARTS)
    assert done.status == 0, done.text
    assert settings(hardened) == HARDENED
    assert hardened.driver("node5", "id -un").stdout == "ml\n"
    done = hardened.play("setup", *PARTS)
    assert (done.status, done.changed) == (0, 0), done.text


@pytest.mark.soak
def test_an_account_that_was_there_before_keeps_shell_groups_and_keys(hardened: Hosts) -> None:
    assert own_key(hardened, "echo $0; id -nG").splitlines() == ["sh", "ml audio"]
    effective = hardened.on("node5", "sshd", "-T", "-C", "user=ml,host=x,addr=192.0.2.1").splitlines()
    assert "disableforwarding no" in effective
    done = hardened.play("verify", verify_roles=["ssh_trust"])
    assert done.status == 0, done.text


@pytest.mark.soak
def test_teardown_leaves_account_and_sshd_as_they_were(hardened: Hosts, before: set[str]) -> None:
    done = hardened.play("teardown", teardown_remove_data=True)
    assert done.status == 0, done.text
    after = hardened.traces("node5")
    assert (before - after, after - before) == (set(), set())
    assert own_key(hardened, "cat notes") == "paper\n"


@pytest.mark.soak
def test_an_sshd_that_does_not_let_the_jobs_account_in_stops_setup(hardened: Hosts) -> None:
    extra = "/etc/ssh/sshd_config.d/60-only.conf"
    hardened.on("node5", "sh", "-c", f"echo 'AllowUsers op' >{extra}")
    done = hardened.play("setup", *PARTS)
    hardened.on("node5", "rm", extra)
    assert done.status != 0
    assert "its sshd lets in only op (AllowUsers); add ml" in done.text


AUDIT = ("ssh_audit", "--json", "--skip-rate-test", "--timeout=60", ADDRESSES["node5"])
FREE: dict[str, Any] = {"muster_user": "muster", "hardening_enabled": True}


@pytest.mark.soak
def test_setup_leaves_passwords_and_limits_as_they_are_and_hardens_only_on_request(hardened: Hosts) -> None:
    hardened.on("node5", "sh", "-c", "rm /etc/ssh/sshd_config.d/50-hardened.conf; systemctl reload ssh")
    hardened.on("node5", "sh", "-c", "useradd -m -s /bin/bash anna && echo anna:secret | chpasswd")
    hardened.variables["muster_user"] = "muster"
    stock = every_setting(hardened)
    done = hardened.play("setup", *PARTS)
    assert done.status == 0, done.text
    new = {"persourcepenaltyexemptlist"}
    assert {name for name, value in every_setting(hardened).items() if stock.get(name) != value} <= new
    assert with_password(hardened, "anna") == "in\n"

    before = hardened.on("node5", "cat", DROPIN)
    done = hardened.play("setup", *PARTS, **FREE)
    assert done.status == 2
    assert "node5: hardening would lock out anna: a login within the last 90 days" in done.text
    assert "Nothing was changed on any host." in done.text
    assert hardened.on("node5", "cat", DROPIN) == before

    done = hardened.play("setup", *PARTS, **FREE, hardening_may_lock_out=["anna"])
    assert done.status == 0, done.text
    told = " ".join(done.text.partition("[ssh_trust :")[0].split())
    assert "PasswordAuthentication no (was yes)" in told
    assert "MaxStartups 64:30:256 (was 10:30:100)" in told
    assert "MACs without umac-64-etm@openssh.com" in told
    assert with_password(hardened, "anna") == ""
    report = json.loads(run(sys.executable, "-m", *AUDIT, timeout=540).stdout)
    found = [item for kind in ("kex", "key", "mac", "enc") for item in report[kind]]
    assert len(found) > 10
    assert [item["algorithm"] for item in found if item.get("notes", {}).get("fail")] == []
    done = hardened.play("verify", verify_roles=["ssh_trust"])
    assert done.status == 0, done.text

    after = hardened.on("node5", "cat", DROPIN)
    done = hardened.play("setup", *PARTS)
    assert (done.status, done.changed) == (0, 0), done.text
    assert "sshd of node5 stays hardened; to take that back: -e hardening_enabled=false" in done.text
    assert hardened.on("node5", "cat", DROPIN) == after
    done = hardened.play("setup", *PARTS, hardening_enabled=False)
    assert done.status == 0, done.text
    assert hardened.on("node5", "cat", DROPIN) == before
    assert with_password(hardened, "anna") == "in\n"


DROPIN = "/etc/ssh/sshd_config.d/10-muster.conf"


def every_setting(hosts: Hosts) -> dict[str, str]:
    lines = (line.partition(" ") for line in hosts.on("node5", "sshd", "-T").splitlines())
    return {name: value for name, _, value in lines}


def with_password(hosts: Hosts, user: str) -> str:
    """What a login with the password `secret` prints; ssh asks a program for it."""
    answer = hosts.folder / "answer"
    answer.write_text("#!/bin/sh\necho secret\n")
    answer.chmod(0o755)
    options = ("-F", "none", "-o", "PubkeyAuthentication=no", "-o", "NumberOfPasswordPrompts=1")
    known = ("-o", f"UserKnownHostsFile={hosts.folder}/operator_known_hosts")
    asks = {"SSH_ASKPASS": str(answer), "SSH_ASKPASS_REQUIRE": "force"}
    target = f"{user}@{ADDRESSES['node5']}"
    return run("ssh", *options, *known, target, "echo in", env=hosts.env | asks).stdout


DEFAULTS = {
    "maxstartups": "10:30:100",
    "kexalgorithms": "curve25519-sha256,ecdh-sha2-nistp256",
    "macs": "hmac-sha2-256,hmac-sha1",
    "hostkeyalgorithms": "ssh-ed25519,ecdsa-sha2-nistp256",
}


@pytest.mark.parametrize(
    ("own", "present", "absent"),
    [
        (
            {},
            ["MaxStartups 64:30:256", "KexAlgorithms -ecdh-sha2-*", "MACs -hmac-sha1*", "PermitRootLogin"],
            [],
        ),
        ({"macs": "hmac-sha2-512,hmac-sha1"}, ["MACs hmac-sha2-512\n"], ["MACs -"]),
        ({"macs": "hmac-sha1"}, [], ["MACs"]),
        ({"permitrootlogin": "forced-commands-only"}, [], ["PermitRootLogin"]),
        ({"logingracetime": "0"}, ["LoginGraceTime 30"], []),
        ({"maxstartups": "4:50:8"}, [], ["MaxStartups"]),
    ],
    ids=["OpenSSH's own", "one is broken", "all are broken", "root", "no grace time", "startups"],
)
def test_hardening_is_never_looser(own: dict[str, str], present: list[str], absent: list[str]) -> None:
    settings = DEFAULTS | {"permitrootlogin": "yes", "logingracetime": "120"} | own
    seen = {
        "sshd": "10.0",
        "operator": {"client": "192.0.2.9", "login": "root"},
        "account": {},
        "sshd_without": {"settings": settings, "defaults": DEFAULTS},
    }
    inventory: dict[str, dict[str, Any]] = {"node1": {"addresses": ["10.0.0.1"]}}
    text = render("hardening", "hardening.conf.j2", inventory, muster_seen=seen)
    assert [line for line in present if line not in text] == []
    assert [line for line in absent if line in text] == []


@pytest.mark.parametrize(
    ("asked", "stays"),
    [({}, True), ({"hardening_enabled": True}, True), ({"hardening_enabled": False}, False)],
)
def test_a_hardened_sshd_stays_hardened(tmp_path: Path, asked: dict[str, bool], stays: bool) -> None:
    host: dict[str, dict[str, Any]] = {"node1": {"addresses": ["10.0.0.1"]}}
    seen = SEEN | {"sshd": "10.0", "operator": {"client": "192.0.2.9"}, "hardening": ""}
    lines = render_value("hardening", "hardening_lines", host, muster_seen=seen, hardening_enabled=True)
    (tmp_path / "dropin").write_text(
        render("ssh_trust", "sshd.conf.j2", host, muster_seen=seen, hardening_lines=lines)
    )
    seen["hardening"] = observe.hardening(str(tmp_path / "dropin"))
    assert seen["hardening"] == lines.strip()
    later = render_value("hardening", "hardening_lines", host, muster_seen=seen, **asked)
    text = render("ssh_trust", "sshd.conf.j2", host, muster_seen=seen, hardening_lines=later)
    assert (text == (tmp_path / "dropin").read_text()) is stays
    assert ("PasswordAuthentication no" in text) is stays
    (tmp_path / "dropin").write_text(render("ssh_trust", "sshd.conf.j2", host, hardening_lines=""))
    assert observe.hardening(str(tmp_path / "dropin")) == ""


def test_what_hardening_turns_off_is_told_by_its_name() -> None:
    lines = (
        "# a comment\nPasswordAuthentication no\nPermitRootLogin prohibit-password\nMaxStartups 64:30:256\n"
        "MACs -hmac-sha1*,umac-64*\nKexAlgorithms curve25519-sha256\nLoginGraceTime 30\n"
    )
    base = {
        "passwordauthentication": "yes",
        "permitrootlogin": "without-password",
        "maxstartups": "10:30:100",
        "macs": "umac-64@openssh.com,hmac-sha2-256,hmac-sha1",
        "kexalgorithms": "curve25519-sha256,ecdh-sha2-nistp256",
        "logingracetime": "30",
    }
    given = {"hardening_lines": lines, "hardening_base": base}
    assert render_value("hardening", "hardening_news", {"node1": {}}, **given) == [
        "PasswordAuthentication no (was yes)",
        "MaxStartups 64:30:256 (was 10:30:100)",
        "MACs without umac-64@openssh.com, hmac-sha1",
        "KexAlgorithms without ecdh-sha2-nistp256",
    ]


def test_an_account_that_may_be_locked_out_is_no_obstacle() -> None:
    def found(*names: str) -> list[str]:
        asked: dict[str, object] = {"hardening_asked": {"stdout": json.dumps(names)}}
        host: dict[str, dict[str, Any]] = {"node1": {}}
        lost: list[str] = render_value(
            "hardening", "hardening_found", host, hardening_may_lock_out=["anna"], **asked
        )
        return lost

    (problem,) = found("anna", "ben")
    assert problem.startswith("hardening would lock out ben: ")
    assert problem.endswith("""-e '{"hardening_may_lock_out": ["ben"]}'""")
    assert found("anna") == []


logins, observe = module("hardening", "logins"), module("preflight", "observe")


def test_recent_logins_are_found_in_every_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, lib = tmp_path / "var/log", tmp_path / "var/lib"
    for folder in (log, lib / "wtmpdb", lib / "lastlog"):
        folder.mkdir(parents=True)
    now = int(time.time())

    def entry(kind: int, name: bytes, host: bytes, seconds: int) -> bytes:
        record = struct.pack(
            "<h2xi32s4s32s256shhiii16s20x", kind, 9, b"pts/0", b"", name, host, 0, 0, 0, seconds, 0, b""
        )
        assert len(record) == 384
        return record

    (log / "wtmp").write_bytes(
        entry(7, b"old", b"10.0.0.9", now - 91 * 86400)
        + entry(7, b"console", b"", now)
        + entry(8, b"gone", b"10.0.0.9", now)
        + entry(7, b"wtmp", b"10.0.0.9", now)
        + b"torn"
    )
    (log / "wtmp.1").write_bytes(entry(7, b"rotated", b"10.0.0.9", now - 40 * 86400))
    with sqlite3.connect(lib / "wtmpdb/wtmp.db") as database:
        database.execute("CREATE TABLE wtmp (ID, Type, User, Login, Logout, TTY, RemoteHost, Service)")
        database.execute("INSERT INTO wtmp VALUES (1, 3, 'wtmpdb', ?, 0, 'ssh', 'a', 'sshd')", (now * 10**6,))
    with sqlite3.connect(lib / "lastlog/lastlog2.db") as database:
        database.execute("CREATE TABLE Lastlog2 (Name, Time, TTY, RemoteHost, Service)")
        database.execute("INSERT INTO Lastlog2 VALUES ('lastlog2', ?, 'ssh', 'a', 'sshd')", (now,))
    monkeypatch.setattr(logins, "of_journal", lambda days: iter([("journal", now)]))
    assert logins.recent(90, tmp_path) == {"wtmp", "rotated", "wtmpdb", "lastlog2", "journal"}


@pytest.mark.parametrize(
    ("content", "settings", "has"),
    [
        ("ssh-ed25519 AAAA anna\n", {"authorizedkeysfile": ".ssh/authorized_keys"}, True),
        ("ssh-ed25519 AAAA anna\n", {"authorizedkeysfile": "%h/.ssh/%u none"}, False),
        ("ssh-ed25519 AAAA anna\n", {"pubkeyauthentication": "no"}, False),
        ("\n# no key\n", {}, False),
        (None, {}, False),
        (None, {"authorizedkeyscommand": "/usr/bin/keys"}, True),
        (None, {"authorizedkeyscommand": "none", "trustedusercakeys": "/etc/ssh/ca"}, True),
    ],
)
def test_a_key_is_looked_for_where_sshd_looks(
    tmp_path: Path, content: str | None, settings: dict[str, str], has: bool
) -> None:
    (tmp_path / ".ssh").mkdir()
    if content is not None:
        (tmp_path / ".ssh" / "authorized_keys").write_text(content)
    entry = logins.pwd.struct_passwd(("anna", "x", 1001, 1001, "", str(tmp_path), "/bin/sh"))
    assert logins.has_key(entry, settings) is has


@pytest.mark.parametrize(
    ("allowed", "names"), [([], ["anna"]), (["ben", "carl"], ["anna", "op"]), (["*"], ["anna"])]
)
def test_a_login_without_a_key(monkeypatch: pytest.MonkeyPatch, allowed: list[str], names: list[str]) -> None:
    entries = {name: name for name in ("anna", "ben", "op")}
    monkeypatch.setattr(logins, "recent", lambda days: {"anna", "ben", "op", "removed", "muster"})
    monkeypatch.setattr(logins.pwd, "getpwnam", entries.__getitem__)
    monkeypatch.setattr(logins, "settings_of", lambda name: {})
    monkeypatch.setattr(logins, "has_key", lambda entry, settings: entry != "anna")
    assert logins.locked_out({"days": 90, "allowed": allowed, "besides": ["muster"]}) == names
