"""Tests SSH trust from one host: `python3 -` runs it there, as root, with JSON.

Every host of the cluster accepts the login of a host that has the cluster's key, under strict host key
checking. A host that shall have no key has none, and is refused. The next host refuses a wrong key and a
password, and ssh refuses that host when its host key is not known.
"""

from __future__ import annotations

import json
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
    """Return the settings of sshd that differ from the drop-in, because an earlier file set them."""
    done = run("/usr/sbin/sshd", "-T", "-C", f"user={user},host=localhost,addr=127.0.0.1")
    real = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    expected = {**expected, **for_all()}
    return [
        f"{key} is {real.get(key)}, not {value}" for key, value in expected.items() if real.get(key) != value
    ]


def main() -> None:
    """Print the outcomes as JSON."""
    asked = json.loads(sys.argv[1])
    user, target = asked["user"], asked["target"]
    names, key = asked["names"], asked["key"]
    reached = keyless(user, [target["name"]], key) if key else pairs(user, names)
    checks = [check("server", server(user, asked["sshd"])), check("pairs", reached)]
    refused = "Host key verification failed"
    checks.append(check("unknown_host_key", refusal(user, refused, *UNKNOWN, target["name"])))
    checks.append(check("wrong_key", refuses_wrong_key(user, target)))
    checks.append(
        check("password", refusal(user, "Permission denied (publickey)", *PASSWORD, target["name"]))
    )
    print(json.dumps(checks))


if __name__ == "__main__":
    main()
