"""Whether trust is what it should be, seen from one host: run by `python3 -` on it, as root, with JSON.

Every host of the cluster lets us in, with strict checking; and the next one refuses a wrong key and a
password, and is refused by us when its host key is not known.
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


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command that needs no input."""
    return subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )


def ssh(user: str, *argv: str) -> tuple[int, str]:
    """Log in somewhere as the cluster's account; the status and the last line of what ssh says."""
    done = run("runuser", "-u", user, "--", "ssh", "-n", "-o", "ConnectTimeout=10", *argv, "true")
    return done.returncode, (done.stderr.strip().splitlines() or [""])[-1]


def check(name: str, problems: list[str]) -> dict[str, Any]:
    """The outcome of one check."""
    return {"id": f"ssh_trust.{name}", "ok": not problems, "detail": "; ".join(problems)}


def pairs(user: str, names: list[str]) -> list[str]:
    """The hosts that do not let us in."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        outcomes = list(pool.map(lambda name: ssh(user, name), names))
    return [f"{name}: {message}" for name, (status, message) in zip(names, outcomes) if status]  # 3.9


def refusal(user: str, expected: str, *argv: str) -> list[str]:
    """Nothing, if ssh was refused for this reason."""
    status, message = ssh(user, *argv)
    return [] if status == 255 and expected in message else [f"status {status}: {message or 'let in'}"]


def refuses_wrong_key(user: str, target: dict[str, Any]) -> list[str]:
    """Nothing, if a key that is not the cluster's is of no use."""
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


def server(user: str, expected: dict[str, str]) -> list[str]:
    """Settings of sshd that are not what the drop-in says, as an earlier file would cause."""
    done = run("/usr/sbin/sshd", "-T", "-C", f"user={user},host=localhost,addr=127.0.0.1")
    real = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    return [
        f"{key} is {real.get(key)}, not {value}" for key, value in expected.items() if real.get(key) != value
    ]


def main() -> None:
    """Print the outcomes as JSON."""
    asked = json.loads(sys.argv[1])
    user, target = asked["user"], asked["target"]
    checks = [check("server", server(user, asked["sshd"])), check("pairs", pairs(user, asked["names"]))]
    refused = "Host key verification failed"
    checks.append(check("unknown_host_key", refusal(user, refused, *UNKNOWN, target["name"])))
    checks.append(check("wrong_key", refuses_wrong_key(user, target)))
    checks.append(
        check("password", refusal(user, "Permission denied (publickey)", *PASSWORD, target["name"]))
    )
    print(json.dumps(checks))


if __name__ == "__main__":
    main()
