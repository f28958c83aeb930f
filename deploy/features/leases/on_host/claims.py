"""Claims on this host's GPUs: files of all users that say who has which GPU, and who waits for some.

A claim is a file that its agent keeps locked (flock). The kernel releases the lock at any end of the agent: a
claim without a lock is over. A GPU is taken if a living claim has it. No two users need the same file, and
nobody can remove another's in a sticky folder. An agent claims GPUs first and then reads all claims: if two
claim the same GPU at once, at least one of them sees the other's claim, and withdraws its own.

The text of a claim is that of its user, a stranger. Its owner and the time of its arrival are the kernel's:
the owner of the file, and the last change of its inode (`st_ctime`). So no text changes after it was written:
an agent that has something else to say makes a new file.

`muster setup` makes the folder; without it, it is /tmp. Claims that jobs made in /tmp before setup count too.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import stat
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from ....core.agent.processes import peek
from ....core.wire.users import name_of

SETUP, WITHOUT_SETUP = "/var/lib/muster/leases", "/tmp"  # noqa: S108  # sticky, and root's
CLAIM = "muster-claim-"
DAY = 86400.0
MOST_BYTES, MOST_DEVICES, MOST_TIME = 4096, 256, 1e11
MOST_NAME, MOST_OF_USER, MOST_SHOWN, MOST_NAMED = 64, 1 << 14, 64, 8
MOST_LOCKS = 1 << 20  # bytes of /proc/locks
TRIES = 100
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""No link is followed, and a pipe in place of a file makes no process wait."""
MALFORMED = (ValueError, TypeError, LookupError, RecursionError)
_JOB, _DEVICE = re.compile(r"[A-Za-z0-9_.-]{1,64}"), re.compile(r"[A-Za-z0-9_-]{1,96}")


def folder() -> str:
    """The folder of setup, if it is root's and sticky; else /tmp."""
    with contextlib.suppress(OSError):
        status = os.lstat(SETUP)
        if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and status.st_uid == 0:
            return SETUP
    return WITHOUT_SETUP


# -- the text --


@dataclass(frozen=True)
class LeaseRequest:
    """A number of devices out of some, by their names."""

    number: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class Claim:
    """What the agent of a job has, or waits for."""

    job: str = ""
    since: float = 0.0
    """When it got its devices."""
    has: Mapping[str, int] = field(default_factory=dict)
    """The number of each of its devices, by name."""
    wants: LeaseRequest | None = None
    queued: float = 0.0
    """The time of its arrival on the last of its hosts; 0 if that is not known yet, or for a single host."""
    by: str = ""
    """The user on the launching machine, as the claim itself says."""

    uid: int = -1
    """The owner of its file. This and the next one are the kernel's."""
    arrived: float = 0.0

    @property
    def user(self) -> str:
        """`alice`; `alice (shared)` if the claim is of the account `shared`, which several people may use."""
        account = name_of(self.uid)
        return account if self.by in {"", account} else f"{self.by} ({account})"

    @property
    def order(self) -> tuple[float, str]:
        """Its place in the queue: a smaller one is served first."""
        return max(self.arrived, self.queued), self.job

    def text(self) -> bytes:
        """The content of its file. OSError if others would skip it."""
        wants = [self.wants.number, self.wants.devices] if self.wants else None
        known = {"job": self.job, "by": self.by, "since": self.since, "queued": self.queued}
        text = json.dumps({**known, "has": self.has, "wants": wants}).encode()
        try:
            parse(text)
        except MALFORMED as error:
            raise OSError(f"the claim of {self.job} is wrong: {error}") from None
        return text


def parse(text: bytes) -> Claim:
    """The claim in a stranger's text; one of MALFORMED for anything else."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES} bytes")
    value = json.loads(text)
    wants = None
    if value["wants"] is not None:
        number, names = value["wants"]
        if not isinstance(names, list):
            raise TypeError("no list of devices")
        wants = LeaseRequest(_whole(number), tuple(map(_device, names)))
    by = value["by"]
    return Claim(
        _text(value["job"], _JOB),
        _time(value["since"]),
        {_device(name): _whole(number) for name, number in dict(value["has"]).items()},
        wants,
        _time(value["queued"]),
        by if isinstance(by, str) and len(by) <= MOST_NAME and by.isprintable() else "",
    )


def _text(value: object, pattern: re.Pattern[str]) -> str:
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise ValueError("not a text of this form")
    return value


def _device(value: object) -> str:
    return _text(value, _DEVICE)


def _whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MOST_DEVICES:
        raise ValueError("not a number of devices")
    return value


def _time(value: object) -> float:
    if not isinstance(value, (int, float)) or not 0 <= value <= MOST_TIME:
        raise ValueError("not a time")
    return float(value)


# -- the file of this process --


class OwnClaim:
    """The claim of this process. A new one is published before the old one is removed."""

    def __init__(self) -> None:
        self.claim = Claim()
        self._files: list[tuple[int, str]] = []
        """Its descriptor and path; while a new claim is published, those of the old one before."""
        self._before = self.claim

    @property
    def paths(self) -> set[str]:
        """Where its files are."""
        return {path for _, path in self._files}

    def publish(self, claim: Claim) -> None:
        """Let others read this claim; `confirm` or `withdraw` follows."""
        descriptor, path = _make(claim.text())
        self._files.append((descriptor, path))
        self._before = self.claim
        self.claim = replace(claim, uid=os.getuid(), arrived=os.fstat(descriptor).st_ctime)

    def confirm(self) -> None:
        """Remove the claim before it."""
        while len(self._files) > 1:
            _remove(*self._files.pop(0))

    def withdraw(self) -> None:
        """Return to the claim before it."""
        _remove(*self._files.pop())
        self.claim = self._before

    def write(self, claim: Claim) -> None:
        """Replace the claim, unless it says the same already."""
        if not self._files or replace(self.claim, uid=-1, arrived=0.0) != claim:
            self.publish(claim)
            self.confirm()
        else:
            self.keep()

    def keep(self) -> None:
        """Make its file again if it is gone; keep programs away that remove old files of /tmp."""
        if not self._files:
            return
        descriptor, path = self._files[-1]
        status = os.fstat(descriptor)
        if not _is_at(descriptor, path):
            self.publish(replace(self.claim, uid=-1, arrived=0.0))
            self.confirm()
        elif not self.claim.wants and time.time() - status.st_ctime > DAY:
            os.utime(descriptor)

    def close(self) -> None:
        """Remove the claim."""
        while self._files:
            _remove(*self._files.pop())
        self.claim = Claim()


def _make(text: bytes) -> tuple[int, str]:
    """A new file with this text and a lock of this process: its descriptor and path."""
    for _ in range(TRIES):
        path = os.path.join(folder(), CLAIM + secrets.token_hex(8))
        # Until it has its lock and its text, no other user can open it.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                if os.write(descriptor, text) < len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
                os.fchmod(descriptor, 0o644)
                return descriptor, path
        except BlockingIOError:
            pass  # another agent of this user looks whether it lives, and takes it for a dead one
        except OSError:
            _remove(descriptor, path)
            raise
        os.close(descriptor)
    raise OSError(f"{path} is removed again and again")


def _remove(descriptor: int, path: str) -> None:
    with contextlib.suppress(OSError):
        if _is_at(descriptor, path):
            os.unlink(path)
    os.close(descriptor)


def _is_at(descriptor: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


# -- the files of all --


def living_claims(without: Collection[str] = ()) -> list[Claim]:
    """The claims of all agents that live, the first in the queue first. Removes this user's dead ones.

    `without`: the paths of those to leave out.
    """
    found: dict[str, Claim] = {}
    for _ in range(3):  # a claim may be replaced between a look at the folder and one at its file
        vanished = False
        for path in {*_paths(folder()), *_paths(WITHOUT_SETUP)}.difference(without):
            try:
                claim = _living(path)
            except FileNotFoundError:
                vanished = True
            except (OSError, *MALFORMED):
                continue  # of another user, and wrong
            else:
                found |= {path: claim} if claim else {}
        if not vanished:
            break
    return sorted(found.values(), key=lambda claim: claim.order)


def _paths(place: str) -> list[str]:
    """The files that may be claims. `OSError` if another user has too many: one left out may hold a GPU."""
    paths, counts = list[str](), Counter[int]()
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(CLAIM):
                with contextlib.suppress(OSError):
                    counts[entry.stat(follow_symlinks=False).st_uid] += 1
                    paths.append(entry.path)
    for owner, number in counts.items():
        if number > MOST_OF_USER and owner != os.getuid():
            raise OSError(f"{name_of(owner)} has {number} files {place}/{CLAIM}*; have them removed")
    return paths


def _living(path: str) -> Claim | None:
    descriptor = os.open(path, READ)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        if _is_locked(descriptor) and not _is_of_strangers(status):
            text = os.read(descriptor, MOST_BYTES + 1)
            return replace(parse(text), uid=status.st_uid, arrived=status.st_ctime)
        if status.st_uid == os.getuid():
            os.unlink(path)
    finally:
        os.close(descriptor)
    return None


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _is_of_strangers(status: os.stat_result) -> bool:
    """Whether only other users hold the lock of a file: anybody who can read it can lock it."""
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    owners = set[int]()
    for line in peek("/proc/locks", MOST_LOCKS).split("\n"):  # without processes of other containers
        words = line.split()
        if words[1:2] == ["FLOCK"] and words[5:6] == [file]:
            try:
                owners.add(os.stat(f"/proc/{words[4]}").st_uid)
            except OSError:  # the process is hidden here
                return False
    return bool(owners) and status.st_uid not in owners


# -- what others see --


def users_beside(claims: Collection[Claim]) -> list[str]:
    """The other users whose claims are in a folder that setup has not made."""
    if folder() != WITHOUT_SETUP:
        return []
    return [name_of(uid) for uid in sorted({claim.uid for claim in claims} - {os.getuid()})][:MOST_NAMED]


def unreserved(free: list[str], before: list[Claim]) -> list[str]:
    """The free devices that are left after everybody who waits before has taken some."""
    left = [*free]
    for want in (claim.wants for claim in before if claim.wants):
        taken = [device for device in left if device in want.devices][: want.number]
        left = [device for device in left if device not in taken]
    return left
