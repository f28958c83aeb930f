"""Names the accounts that logged in over SSH lately and would be locked out: `python3 -` runs it on a host.

An account is locked out if sshd accepts no key of it, or if it is not among the accounts that may log in. It
reads every record of logins that a host may keep: wtmp, lastlog, their successors in SQLite, sshd's journal.
"""

from __future__ import annotations

import contextlib
import json
import pwd
import re
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

# utmp(5) and lastlog(8) on Linux; USER_PROCESS is a login.
UTMP = struct.Struct("<h2xi32s4s32s256shhiii16s20x")
LASTLOG = struct.Struct("<i32s256s")
USER_PROCESS = 7
# Login in microseconds since the epoch, and in seconds.
WTMPDB = (
    "SELECT User, Login / 1000000 FROM wtmp WHERE Type = 3 AND RemoteHost IS NOT NULL AND RemoteHost != ''"
)
LASTLOG2 = "SELECT Name, Time FROM Lastlog2"
ACCEPTED = re.compile(r"Accepted \S+ for (\S+) from ")


def text(raw: bytes) -> str:
    """Return the text of a field that ends with zeros."""
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def of_wtmp(path: Path) -> Iterator[tuple[str, float]]:
    """Yield name and time of each login from another host."""
    content = path.read_bytes()
    for offset in range(0, len(content) - UTMP.size + 1, UTMP.size):
        kind, _, _, _, name, host, _, _, _, seconds, _, _ = UTMP.unpack_from(content, offset)
        if kind == USER_PROCESS and text(host):
            yield text(name), seconds


def of_lastlog(path: Path) -> Iterator[tuple[str, float]]:
    """Yield name and time of each account's last login from another host."""
    with path.open("rb") as file:
        for entry in pwd.getpwall():
            file.seek(entry.pw_uid * LASTLOG.size)
            record = file.read(LASTLOG.size)
            if len(record) == LASTLOG.size:
                seconds, _, host = LASTLOG.unpack(record)
                if text(host):
                    yield entry.pw_name, seconds


def of_database(path: Path, question: str) -> Iterator[tuple[str, float]]:
    """Yield name and time of each login in a database of SQLite."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        yield from database.execute(question)


def of_journal(days: int) -> Iterator[tuple[str, float]]:
    """Yield the name of each account that sshd's journal has let in, which is recent."""
    asked = ["journalctl", "--quiet", "--output", "cat", "--since", f"-{days}d"]
    tags = [word for tag in ("sshd", "sshd-session", "sshd-auth") for word in ("--identifier", tag)]
    done = subprocess.run(
        asked + tags, capture_output=True, text=True, errors="replace", timeout=120, check=False
    )
    for name in set(ACCEPTED.findall(done.stdout)):
        yield name, time.time()


def recent(days: int, root: Path = Path("/")) -> set[str]:
    """Return the accounts with a login over SSH within so many days; a host need not keep every record."""
    sources = [
        of_wtmp(path) for path in root.glob("var/log/wtmp*") if path.suffix not in (".gz", ".xz", ".db")
    ]
    sources.append(of_lastlog(root / "var/log/lastlog"))
    sources += [of_database(root / path, WTMPDB) for path in ("var/lib/wtmpdb/wtmp.db", "var/log/wtmp.db")]
    sources.append(of_database(root / "var/lib/lastlog/lastlog2.db", LASTLOG2))
    sources.append(of_journal(days))
    oldest, names = time.time() - days * 86400, set()
    for source in sources:
        with contextlib.suppress(OSError, sqlite3.Error, subprocess.TimeoutExpired):
            names |= {name for name, seconds in source if seconds and seconds >= oldest}
    return names


def settings_of(name: str) -> dict[str, str]:
    """Return the settings of sshd for an account."""
    asked = ("/usr/sbin/sshd", "-T", "-C", f"user={name},host=localhost,addr=127.0.0.1")
    done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
    return {key: value for key, _, value in (line.partition(" ") for line in done.stdout.splitlines())}


def has_key(entry: pwd.struct_passwd, settings: dict[str, str]) -> bool:
    """Whether sshd accepts a key of this account; keys of a command or of an authority count, unseen."""
    if settings.get("pubkeyauthentication", "yes") == "no":
        return False
    if any(settings.get(key, "none") != "none" for key in ("authorizedkeyscommand", "trustedusercakeys")):
        return True
    fields = {"%h": entry.pw_dir, "%u": entry.pw_name, "%U": str(entry.pw_uid), "%%": "%"}
    for pattern in settings.get("authorizedkeysfile", ".ssh/authorized_keys").split():
        path = Path(entry.pw_dir, re.sub("%[huU%]", lambda match: fields[match[0]], pattern))
        with contextlib.suppress(OSError):
            lines = path.read_text(errors="replace").splitlines()
            if any(line.strip() and not line.lstrip().startswith("#") for line in lines):
                return True
    return False


def locked_out(asked: dict[str, Any]) -> list[str]:
    """Return the accounts that hardening would lock out, of those that exist."""
    names = []
    for name in sorted(recent(int(asked["days"])) - set(asked["besides"])):
        with contextlib.suppress(KeyError):  # an account that was removed
            entry = pwd.getpwnam(name)
            patterns = [user.partition("@")[0] for user in asked["allowed"]]
            may = not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
            if not may or not has_key(entry, settings_of(name)):
                names.append(name)
    return names


if __name__ == "__main__":
    print(json.dumps(locked_out(json.loads(sys.argv[1]))))
