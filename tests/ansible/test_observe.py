"""What preflight's one question finds on a host, of trees of files and stand-ins for programs."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

import pytest

from tests.ansible.programs import module
from tests.ansible.rendering import render_value

observe = module("preflight", "observe")


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands before all others on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.parametrize(
    ("folder", "parent", "is_right"),
    [
        ("0 1777", "0 0755", True),
        ("0 1777", "0 0750", False),
        ("0 0777", "0 0755", False),
        ("1000 1777", "0 0755", False),
        (None, "0 0755", False),
    ],
)
def test_leases_need_a_folder_of_root_that_every_user_can_reach(
    folder: str | None, parent: str, is_right: bool
) -> None:
    folders = {"/var/lib/muster": parent} | ({"/var/lib/muster/leases": folder} if folder else {})
    seen = {"folders": folders, "files": {}}
    assert render_value("leases", "leases_are_right", {"node1": {}}, muster_seen=seen) is is_right


def test_files_and_folders_are_described_by_owner_mode_and_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    (tmp_path / "file").chmod(0o640)
    tmp_path.chmod(0o1777)
    own = os.getuid()
    digest = hashlib.sha256(b"text").hexdigest()
    found = [observe.state(str(tmp_path / name)) for name in ("file", "", "none")]
    assert found == [f"{own} 0640 {digest}", f"{own} 1777", ""]


DOCKER = """
case "$*" in
  --version) echo "Docker version 28.2.2, build e6534b4" ;;
  "ps --quiet") exit {answers} ;;
  info*) echo '{folders}' ;;
  image*) [ "$5" = muster:cuda ] && echo '{{"muster.flavor": "cuda"}}' || exit 1 ;;
esac
"""


@pytest.mark.parametrize(
    ("answers", "folders", "expected"),
    [
        (
            0,
            '["/etc/cdi","/var/run/cdi"]',
            {"answers": True, "cdi": True, "image": {"muster.flavor": "cuda"}},
        ),
        (0, "null", {"answers": True, "cdi": False, "image": {"muster.flavor": "cuda"}}),
        (1, "null", {"answers": False, "cdi": False, "image": None}),
    ],
    ids=["with CDI", "without", "stopped"],
)
def test_an_engine_is_known_by_what_it_answers(
    programs: Path, answers: int, folders: str, expected: dict[str, object]
) -> None:
    program(programs, "docker", DOCKER.format(answers=answers, folders=folders))
    found = observe.engine("muster:cuda")
    common = {"command": f"{programs}/docker", "kind": "docker", "version": "28.2.2"}
    assert found == common | expected


def test_podman_under_the_name_of_docker_is_podman(programs: Path) -> None:
    program(programs, "docker", '[ "$1" != --version ] || echo "podman version 5.4.2"')
    found = observe.engine("")
    assert (found["kind"], found["version"], found["cdi"], found["answers"]) == (
        "podman",
        "5.4.2",
        True,
        True,
    )


def test_an_engine_without_its_command_is_found(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(programs))
    assert observe.engine("")["kind"] == ""
    program(programs, "dockerd", "exit 0")
    assert observe.engine("")["kind"] == "docker"


CHAIN = """table inet site {{
\tchain in {{
\t\ttype filter hook input priority filter; policy accept;
\t\t{}
\t}}
}}
"""


REJECT = "-A INPUT -j REJECT"


@pytest.mark.parametrize(
    ("name", "output", "expected"),
    [
        ("ufw", "Status: active", ["ufw"]),
        ("ufw", "Status: inactive", []),
        ("firewall-cmd", "running", ["firewalld"]),
        ("firewall-cmd", "not running", []),
        ("nft", "  type filter hook input priority filter; policy drop;", ["nftables"]),
        ("nft", "  type filter hook forward priority filter; policy drop;", []),
        (
            "nft",
            CHAIN.format("tcp dport { 80, 81 } accept\n\t\tcounter packets 3 bytes 9 reject"),
            ["nftables"],
        ),
        ("nft", CHAIN.format("tcp dport 80 accept\n\t\tdrop"), ["nftables"]),
        ("nft", CHAIN.format("tcp dport 80 drop") + CHAIN.format("drop").replace("input", "forward"), []),
        ("nft", CHAIN.format("reject with icmp type host-prohibited\n\t\ttcp dport 80 accept"), ["nftables"]),
        ("iptables", "-P INPUT DROP", ["iptables"]),
        ("iptables", f"-P INPUT ACCEPT\n{REJECT} --reject-with icmp-host-prohibited", ["iptables"]),
        ("iptables", '-P INPUT ACCEPT\n-A INPUT -m comment --comment "the rest" -j DROP', ["iptables"]),
        ("iptables", f"-P INPUT ACCEPT\n{REJECT}\n-A INPUT -p tcp -j ACCEPT", ["iptables"]),
        ("iptables", "-P INPUT ACCEPT\n-A INPUT -p tcp -m tcp --dport 80 -j DROP", []),
    ],
)
def test_a_firewall_that_turns_away_is_seen(
    programs: Path, monkeypatch: pytest.MonkeyPatch, name: str, output: str, expected: list[str]
) -> None:
    monkeypatch.setenv("PATH", str(programs))  # none but this one
    program(programs, name, f"echo '{output}'")
    assert observe.firewalls() == expected


def pci(root: Path, place: str, vendor: str, kind: str) -> None:
    folder = root / "sys/bus/pci/devices" / place
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(f"{vendor}\n")
    (folder / "class").write_text(f"{kind}\n")


def test_a_gpu_is_known_by_its_vendor_though_no_driver_is_loaded(tmp_path: Path) -> None:
    pci(tmp_path, "0000:07:00.0", "0x10de", "0x030200")  # an accelerator without a screen
    pci(tmp_path, "0000:08:00.0", "0x10de", "0x030000")
    pci(tmp_path, "0000:08:00.1", "0x10de", "0x040300")  # its sound
    pci(tmp_path, "0000:00:02.0", "0x8086", "0x030000")  # another vendor's
    assert observe.nvidia_cards(str(tmp_path)) == 2
    assert observe.nvidia_cards(str(tmp_path / "none")) == 0


def test_a_home_with_data_is_one_also_where_the_skeleton_or_the_home_cannot_be_read(tmp_path: Path) -> None:
    home, skeleton, loop = tmp_path / "home", tmp_path / "skel", tmp_path / "loop"
    for folder in (home, skeleton):
        folder.mkdir()
        (folder / ".profile").touch()
    (home / ".ssh").mkdir()
    loop.symlink_to("loop")
    assert not observe.holds_data(str(home), str(skeleton))
    assert not observe.holds_data(str(tmp_path / "none"), str(skeleton))
    assert observe.holds_data(str(loop), str(skeleton))
    (home / ".cache").mkdir()
    (home / ".cache" / "motd.legal-displayed").touch()  # of a login on Ubuntu
    assert not observe.holds_data(str(home), str(skeleton))
    (home / ".cache" / "models").mkdir()
    assert observe.holds_data(str(home), str(skeleton))
    (home / ".cache" / "models").rmdir()
    (home / "weights").touch()
    for readable in (skeleton, tmp_path / "none", loop):
        assert observe.holds_data(str(home), str(readable))


def test_a_job_is_running_while_its_keeper_holds_its_lock(tmp_path: Path) -> None:
    jobs = tmp_path / ".muster/jobs"
    for job in ("ended", "running", "detached"):
        (jobs / job / "run").mkdir(parents=True)
        (jobs / job / "lock.node1").touch()
    (jobs / "detached/run/lock.driver").touch()
    held = {"running/lock.node1": fcntl.LOCK_SH, "detached/run/lock.driver": fcntl.LOCK_EX}
    descriptors = [os.open(jobs / path, os.O_RDWR) for path in held]
    for descriptor, kind in zip(descriptors, held.values(), strict=True):
        fcntl.flock(descriptor, kind)
    assert observe.running_jobs([str(tmp_path), "/nowhere"]) == ["detached", "running"]
    for descriptor in descriptors:
        os.close(descriptor)
    assert observe.running_jobs([str(tmp_path)]) == []


@pytest.mark.parametrize("made", ["folder", "FIFO", "link to a lock", "link to itself"])
def test_what_an_account_puts_in_the_place_of_a_lock_is_no_lock(tmp_path: Path, made: str) -> None:
    jobs = tmp_path / ".muster/jobs"
    (jobs / "job/run").mkdir(parents=True)
    (jobs / "held").mkdir()
    held = os.open(jobs / "held/lock.node1", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    targets = {"link to a lock": "../held/lock.node1", "link to itself": "lock.node1"}
    place = jobs / "job/lock.node1"
    if made == "folder":
        place.mkdir()
    elif made == "FIFO":
        os.mkfifo(place)
    else:
        place.symlink_to(targets[made])
    (jobs / "job/run/lock.driver").symlink_to("../lock.node1")
    assert observe.running_jobs([str(tmp_path)]) == ["held"]
    os.close(held)


def test_no_link_in_the_place_of_a_lock_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, other = tmp_path / "lock.node1", tmp_path / "other"
    other.touch()
    held = os.open(other, os.O_RDWR)
    fcntl.flock(held, fcntl.LOCK_EX)
    lock.symlink_to(other)
    monkeypatch.setattr(observe.Path, "lstat", lambda _: other.stat())  # as it was before the exchange
    assert not observe.is_locked(lock, fcntl.LOCK_EX)
    os.close(held)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("Include {folder}/conf.d/*.conf\nX11Forwarding yes\n", (True, ["20-site.conf"])),
        ("include conf.d/*.conf\n", (True, ["20-site.conf"])),
        ("X11Forwarding yes\n", (False, [])),
    ],
)
def test_sshd_is_asked_what_it_would_do_without_our_drop_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, expected: tuple[bool, list[str]]
) -> None:
    (tmp_path / "conf.d").mkdir()
    for name in ("10-muster.conf", "20-site.conf"):
        (tmp_path / "conf.d" / name).touch()
    main = tmp_path / "sshd_config"
    main.write_text(config.format(folder=tmp_path))
    asked: list[str] = []

    def say(configuration: str) -> dict[str, str]:
        asked.append(configuration)
        return {}

    monkeypatch.setattr(observe, "sshd_says", say)
    found = observe.sshd_without(f"{tmp_path}/conf.d/10-muster.conf", str(main))
    includes = [Path(line.split()[1]).name for line in asked[0].splitlines() if line.startswith("Include")]
    assert (found["reads_dropins"], includes) == expected


def test_sshd_is_asked_about_the_jobs_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d/05-site.conf").write_text("Match User muster\n  PubkeyAuthentication no\n")
    (tmp_path / "conf.d/20-site.conf").write_text("PubkeyAuthentication no\n")
    main = tmp_path / "sshd_config"
    main.write_text(f"Include {tmp_path}/conf.d/*.conf\nX11Forwarding yes\n")
    asked: list[tuple[str, ...]] = []
    settings = {
        "pubkeyauthentication": "no",
        "authenticationmethods": "publickey",
        "authorizedkeysfile": "/etc/muster/ssh/authorized_keys .ssh/authorized_keys",
        "forcecommand": "/bin/false",
    }

    def say(*words: str) -> dict[str, str]:
        asked.append(words)
        return settings

    monkeypatch.setattr(observe, "sshd_says", say)
    login = observe.sshd_for(f"{tmp_path}/conf.d/10-muster.conf", "muster", "192.0.2.1", str(main))
    ((configuration, *options),) = asked
    assert options == ["-C", "user=muster,host=192.0.2.1,addr=192.0.2.1"]
    lines = configuration.replace(str(tmp_path), "").splitlines()
    ours = lines.index("Match User muster")
    assert lines[:ours] == ["Include /conf.d/05-site.conf"]
    assert lines[-3:] == ["Match all", "Include /conf.d/20-site.conf", "X11Forwarding yes"]
    assert observe.keys_are_refused(login) == [
        f"pubkeyauthentication no ({tmp_path}/conf.d/05-site.conf)",
        f"forcecommand /bin/false ({main})",
    ]
    settings |= {"pubkeyauthentication": "yes", "forcecommand": "none"}
    assert observe.keys_are_refused(login) == []
    assert observe.keys_are_refused(login | {"settings": {}}) == []


def test_a_home_that_cannot_be_made_is_noticed_and_the_attempt_leaves_nothing(tmp_path: Path) -> None:
    assert observe.cannot_write(str(tmp_path / "none" / "muster")) == ""
    assert list(tmp_path.iterdir()) == []
    assert observe.cannot_write("/proc/1/muster").startswith("/proc/1: ")


# -- what is read of a login whose shell prints something --


@pytest.mark.parametrize("before", ["", "Welcome 10.88.0.1 op\r\n", "no end of line\nmuster-login\n"])
def test_only_the_marked_line_of_a_login_counts(before: str) -> None:
    said = f"{before}\r\nmuster-login op 10.88.0.1 5000 10.88.0.2 22\r\n"
    found = render_value("preflight", "preflight_operator", {"node1": {}}, preflight_login={"stdout": said})
    assert found["operator"] == {
        "login": "op",
        "client": "10.88.0.1",
        "client_port": "5000",
        "address": "10.88.0.2",
        "port": "22",
    }
