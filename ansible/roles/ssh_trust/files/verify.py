"""Tests SSH trust from one host: `python3 -` runs it there, as root, with JSON.

The account of jobs has no rights but those that setup gave it. Every host of the cluster accepts the login
of a host that has the cluster's key, under strict host key checking. A host that shall have no key has none,
and is refused. The next host refuses a wrong key and a password, and ssh refuses that host when its host key
is not known.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

AT_ONCE = 16
UNKNOWN = ("-o", "GlobalKnownHostsFile=/dev/null", "-o", "UserKnownHostsFile=/dev/null")
PASSWORD = ("-o", "PubkeyAuthentication=no", "-o", "PreferredAuthentications=password,keyboard-interactive")

DROPIN = Path("/etc/ssh/sshd_config.d/10-muster.conf")
AS_WRITTEN = {"PasswordAuthentication", "KbdInteractiveAuthentication", "MaxStartups", "LoginGraceTime"}


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command that needs no input."""
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


def ssh(user: str, *argv: str) -> tuple[int, str]:
    """Log in to a host as the cluster's account; return the status and the last line of ssh's stderr."""
    done = run("runuser", "-u", user, "--", "ssh", "-n", "-o", "ConnectTimeout=10", *argv, "true")
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def check(name: str, problems: list[str]) -> dict[str, Any]:
    """Return the outcome of one check."""
    return {"id": f"ssh_trust.{name}", "ok": not problems, "detail": "; ".join(problems)}


def pairs(user: str, names: list[str]) -> list[str]:
    """Return the hosts that refuse our login, each with ssh's message."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda name: ssh(user, name), names))
    return [f"{name}: {message}" for name, (status, message) in zip(names, outcomes) if status]  # 3.9


def keyless(user: str, names: list[str], key: str) -> list[str]:
    """Return what lets this host log in to others, or be taken for one that may."""
    present = [f"{path} is there" for path in (key, f"{key}.next") if Path(path).exists()]
    return present + [
        f"{name}: {problem}"
        for name in names
        for problem in refusal(user, "Permission denied (publickey)", name)
    ]


def refusal(user: str, expected: str, *argv: str) -> list[str]:
    """Return no problem if ssh was refused for the expected reason."""
    status, message = ssh(user, *argv)
    return [] if status == 255 and expected in message else [f"status {status}: {message or 'let in'}"]


def refuses_wrong_key(user: str, target: dict[str, Any]) -> list[str]:
    """Return no problem if the host refuses a key that is not the cluster's."""
    folder = Path(tempfile.mkdtemp(prefix="muster-verify-"))
    try:
        key = str(folder / "key")
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        run("chown", "-R", user, str(folder))
        options = ["-F", "none", "-i", key, "-p", str(target["port"])]
        for option in ("IdentitiesOnly=yes", "BatchMode=yes", "StrictHostKeyChecking=yes"):
            options += ["-o", option]
        options += ["-o", f"HostKeyAlias={target['name']}", f"{target['user']}@{target['address']}"]
        return refusal(user, "Permission denied (publickey)", *options)
    finally:
        shutil.rmtree(folder)


def for_all() -> dict[str, str]:
    """Return the settings of the drop-in for all accounts that `sshd -T` prints as they are written."""
    lines = DROPIN.read_text().partition("\nMatch ")[0].splitlines() if DROPIN.exists() else []
    pairs = (line.split(None, 1) for line in lines if line and not line.startswith("#"))
    return {name.lower(): value for name, value in pairs if name in AS_WRITTEN}


def server(user: str, expected: dict[str, str]) -> list[str]:
    """Return the settings of sshd that differ from what setup wrote: changed, or set in an earlier file."""
    done = run("/usr/sbin/sshd", "-T", "-C", f"user={user},host=localhost,addr=127.0.0.1")
    real = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    expected = {**expected, **for_all()}
    wrong = [
        f"{key} is {real.get(key)}, not {value}" for key, value in expected.items() if real.get(key) != value
    ]
    remedy = f"do: muster setup, and remove what a file before {DROPIN} sets"
    return [f"{', '.join(wrong)}; {remedy}"] if wrong else []


def account(user: str) -> list[str]:
    """Return how the account differs from that which setup made, each with its remedy."""
    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        return [f"there is no account {user}; do: muster setup"]
    groups = [group.gr_name for group in grp.getgrall() if user in group.gr_mem]
    problems = [f"it is in the group {name}; do: gpasswd --delete {user} {name}" for name in groups]
    home = Path(entry.pw_dir)
    if not entry.pw_uid or not entry.pw_gid:
        problems.append(f"its UID or GID is root's; do: usermod --uid UID --gid GID {user}")
    elif home.exists() and home.stat().st_uid != entry.pw_uid:
        problems.append(f"{home} belongs to another; do: chown {user}: {home}")
    if entry.pw_shell != "/bin/bash":
        problems.append(f"its shell is {entry.pw_shell}; do: muster setup")
    if run("passwd", "--status", user).stdout.split()[1:2] in (["P"], ["PS"], ["NP"]):
        problems.append(f"it has a password; do: usermod --password '*' {user}")
    if shutil.which("sudo"):
        allowed = run("sudo", "-n", "-l", "-U", user).stdout.partition(" may run the following ")[2]
        rights = ", ".join(line.strip() for line in allowed.splitlines()[1:])
        problems += [f"sudo lets it run {rights}; remove the rule (/etc/sudoers.d)"] if allowed else []
    return problems


def main() -> None:
    """Print the outcomes as JSON."""
    asked = json.loads(sys.argv[1])
    os.environ["LC_ALL"] = "C"
    user, target, key = asked["user"], asked["target"], asked["key"]
    settings = server(user, asked["sshd"])
    if asked["stale"]:
        settings.append(f"sshd has not read {DROPIN} since it changed; do: muster setup")
    checks = [check("account", account(user) if asked["made"] else []), check("server", settings)]
    if asked["logs_in"]:
        refused, denied = "Host key verification failed", "Permission denied (publickey)"
        checks += [
            check("pairs", keyless(user, [target["name"]], key) if key else pairs(user, asked["names"])),
            check("unknown_host_key", refusal(user, refused, *UNKNOWN, target["name"])),
            check("wrong_key", refuses_wrong_key(user, target)),
            check("password", refusal(user, denied, *PASSWORD, target["name"])),
        ]
    print(json.dumps(checks))


if __name__ == "__main__":
    main()
