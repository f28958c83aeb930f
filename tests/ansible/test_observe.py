"""What preflight's one question finds on a host, of trees of files and stand-ins for programs."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import UnixStreamServer
from typing import ClassVar
from urllib.parse import unquote

import pytest

from tests.ansible.programs import module

observe = module("preflight", "observe")
registry = module("preflight", "registry")


def program(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands before all others on PATH."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_leases_need_a_folder_of_root_that_every_user_can_reach(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)  # but its parent is this user's alone
    found = [observe.shared(str(folder)) for folder in ("/tmp", "/usr", "/none", tmp_path)]
    assert found == [True, False, False, False]


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


def test_an_engine_without_its_command_is_still_an_engine(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_what_takes_the_place_of_a_lock_meanwhile_is_not_opened_through_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_sshd_is_asked_what_it_would_do_with_a_login_of_the_jobs_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("muster:cpu", ("docker.io", "library/muster", "cpu")),
        ("team/muster", ("docker.io", "team/muster", "latest")),
        ("localhost:5000/muster:1", ("localhost:5000", "muster", "1")),
        ("registry.example/a/muster@sha256:ab", ("registry.example", "a/muster", "sha256:ab")),
        ("registry.example:443/muster:1@sha256:ab", ("registry.example:443", "muster", "sha256:ab")),
    ],
)
def test_the_name_of_an_image_is_read_as_an_engine_reads_it(
    image: str, expected: tuple[str, str, str]
) -> None:
    assert registry.parse(image) == expected


class EngineThatSays(BaseHTTPRequestHandler):
    """An engine of Docker, as far as it answers for registries."""

    server_version = "Docker/28.2.2 (linux)"
    status, message = 200, ""
    asked: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        login = json.loads(base64.urlsafe_b64decode(self.headers["X-Registry-Auth"]))
        self.asked.append((unquote(self.path), login.get("password", "")))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(json.dumps({"message": self.message}).encode())

    def address_string(self) -> str:
        return "a socket"  # whose peer has no address


@pytest.mark.parametrize(
    ("status", "message", "expected"),
    [
        (200, "", ""),
        (404, "manifest unknown: manifest unknown", "has no such image"),
        (401, "unauthorized", "asks for a login (`docker login images.test:5000`, as root there)"),
        (500, 'Head "https://a/": no basic auth credentials', "asks for a login"),
        (500, 'Get "https://a/v2/": x509: unknown authority', "cannot be asked: x509: unknown authority"),
        (503, "", "answers with status 503"),
    ],
)
def test_the_engine_is_asked_for_an_image_with_the_login_that_root_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, message: str, expected: str
) -> None:
    monkeypatch.setattr(registry, "ENGINE", str(tmp_path / "socket"))
    monkeypatch.setattr(registry, "LOGINS", tmp_path / "config.json")
    kept = {"images.test:5000": {"auth": base64.b64encode(b"someone:secret").decode()}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": kept}))
    monkeypatch.setattr(EngineThatSays, "asked", [])
    monkeypatch.setattr(EngineThatSays, "status", status)
    monkeypatch.setattr(EngineThatSays, "message", message)
    with UnixStreamServer(str(tmp_path / "socket"), EngineThatSays) as engine:
        threading.Thread(target=engine.serve_forever, args=(0.01,), daemon=True).start()
        found = registry.problem("images.test:5000/team/node:1")
        engine.shutdown()
    assert (expected in found) if expected else not found
    assert EngineThatSays.asked == [("/distribution/images.test:5000/team/node:1/json", "secret")]


def test_an_engine_that_is_not_dockers_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "ENGINE", str(tmp_path / "socket"))
    monkeypatch.setattr(EngineThatSays, "server_version", "Libpod/5.4.2 (linux)")
    monkeypatch.setattr(EngineThatSays, "status", 404)
    with UnixStreamServer(str(tmp_path / "socket"), EngineThatSays) as engine:
        threading.Thread(target=engine.serve_forever, args=(0.01,), daemon=True).start()
        assert registry.asked_by_the_engine("images.test:5000/team/node:1") is None
        engine.shutdown()


def test_a_login_may_be_kept_by_a_helper(
    monkeypatch: pytest.MonkeyPatch, programs: Path, tmp_path: Path
) -> None:
    program(
        programs,
        "docker-credential-vault",
        """read -r name; printf '{"Username": "%s", "Secret": "s"}' "$name\"""",
    )
    monkeypatch.setattr(registry, "LOGINS", tmp_path / "config.json")
    for settings in ({"credsStore": "vault"}, {"credHelpers": {"images.test": "vault"}}):
        (tmp_path / "config.json").write_text(json.dumps(settings))
        assert registry.login("images.test") == "images.test:s"
    (tmp_path / "config.json").write_text('{"auths": {"images.test": {"identitytoken": "t"}}}')
    assert registry.login("images.test") == "<token>:t"
    for nonsense in (
        "[]",
        '{"auths": {"images.test": {"auth": "%"}}}',
        '{"auths": []}',
        '{"credsStore": "absent"}',
        '{"auths": {"images.test": 1}}',
    ):
        (tmp_path / "config.json").write_text(nonsense)
        assert not registry.login("images.test")
