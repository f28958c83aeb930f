"""Kernel locks on this host's GPUs, and claims: who has which, and who waits for some.

A lock (flock) is on a file for each device. The kernel releases it at any end of the process that holds it. A
claim is a file with a lock of its own: whoever holds that lives. Its owner is the user, by the kernel; its
text is that user's. The folder is one in which all users may add files and none may remove another's:
`muster setup` makes it, and without that it is /tmp. Locks that jobs took in /tmp before setup count too.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...common.frames import Frame
from ...common.users import name_of

SETUP, WITHOUT_SETUP = "/var/lib/muster/leases", "/tmp"  # noqa: S108  # sticky, and root's
LOCK, CLAIM, TURN = "muster-lease-", "muster-claim-", "muster-lease-turn"
TURN_SECONDS, PAUSE_SECONDS = 10.0, 0.01
MOST_NAME = 64
MOST_CLAIM, MOST_CLAIMS, MOST_SHOWN, TRIES = 1 << 16, 1 << 12, 64, 100
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""No link is followed, and a pipe in place of a file makes no process wait."""


def folder() -> str:
    """The folder of setup, if it is root's and sticky; else /tmp."""
    with contextlib.suppress(OSError):
        status = os.lstat(SETUP)
        if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and status.st_uid == 0:
            return SETUP
    return WITHOUT_SETUP


def lock(name: str) -> int | None:
    """The descriptor of a lock that is held until it is closed; None if another process has the lock."""
    place = folder()
    path = os.path.join(place, LOCK + name)
    for _ in range(TRIES):
        descriptor = _open(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        if _is_at(descriptor, path):
            if place == WITHOUT_SETUP or not _is_locked(os.path.join(WITHOUT_SETUP, LOCK + name)):
                return descriptor
            os.close(descriptor)
            return None
        os.close(descriptor)  # the file was removed meanwhile
    raise OSError(f"{path} is removed again and again")


def _is_locked(path: str) -> bool:
    """Whether a process holds a lock on this file, if there is one."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, READ)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _open(path: str) -> int:
    """Open a file that everybody may lock, and make it if it is missing; OSError for anything else."""
    try:
        # Without O_CREAT: the kernel refuses it for another user's file in a sticky folder.
        descriptor = os.open(path, READ)
    except FileNotFoundError:
        try:
            descriptor = os.open(path, READ | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            return _open(path)
        os.fchmod(descriptor, 0o644)
    except OSError as error:
        raise OSError(f"{path}: {error.strerror}; remove it, or ask its owner to") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        os.close(descriptor)
        owner = name_of(status.st_uid)
        raise OSError(f"{path} is no ordinary file; remove it, or ask its owner {owner} to")
    return descriptor


def _is_at(descriptor: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    return False


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Let one process of this host at a time look for free devices and lock them."""
    end = time.monotonic() + TURN_SECONDS
    while (descriptor := lock(TURN.removeprefix(LOCK))) is None:
        if time.monotonic() > end:
            raise OSError(f"a process has held {folder()}/{TURN} for {TURN_SECONDS:.0f} s; end it")
        time.sleep(PAUSE_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Want:
    """A number of devices out of some, by the names of their locks."""

    number: int
    devices: list[str]


@dataclass(frozen=True)
class Claim:
    """What the agent of a job has, or waits for; `order`: a smaller one is served first."""

    job: str = ""
    since: float = 0.0
    has: list[str] = field(default_factory=list)
    wants: list[Want] = field(default_factory=list)
    order: tuple[float, str] = (0.0, "")
    account: str = ""
    """The owner of its file."""
    gpus: list[int] = field(default_factory=list)
    """The numbers of its GPUs, for people."""
    launched_by: str = ""
    """The user on the launching machine, as the claim itself says."""

    @property
    def user(self) -> str:
        """`alice`; `alice (shared)` if the claim is of the account `shared`, which several people may use."""
        is_known = self.launched_by in {"", self.account}
        return self.account if is_known else f"{self.launched_by[:MOST_NAME]} ({self.account})"

    @staticmethod
    def parse(text: bytes, account: str) -> Claim:
        """A claim from the file of an account; ValueError, TypeError or LookupError if it is none."""
        value = json.loads(text)
        wants = [Want(int(number), [*map(str, devices)]) for number, devices in value["wants"]]
        job, since, queued = str(value["job"]), float(value["since"]), float(value["queued"])
        gpus = [int(number) for number in value["gpus"]]
        by = str(value.get("by", ""))  # agents of older versions write none
        return Claim(job, since, [*map(str, value["has"])], wants, (queued, job), account, gpus, by)

    def text(self) -> bytes:
        """The content of its file."""
        wants = [(want.number, want.devices) for want in self.wants]
        known = {"job": self.job, "since": self.since, "queued": self.order[0], "by": self.launched_by}
        return json.dumps({**known, "has": self.has, "gpus": self.gpus, "wants": wants}).encode()


class OwnClaim:
    """The claim of this process, from its first text to `close`."""

    def __init__(self) -> None:
        self._descriptor = -1
        self.path = ""

    def write(self, claim: Claim) -> None:
        if self._descriptor < 0:
            self._make()
        text = claim.text()
        os.pwrite(self._descriptor, text, 0)
        os.ftruncate(self._descriptor, len(text))

    def _make(self) -> None:
        for _ in range(TRIES):
            self.path = os.path.join(folder(), CLAIM + secrets.token_hex(8))
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            os.fchmod(descriptor, 0o644)
            with contextlib.suppress(BlockingIOError):  # another agent looks whether it lives
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_at(descriptor, self.path):  # else one of this user took it for a dead one
                    self._descriptor = descriptor
                    return
            os.close(descriptor)
        raise OSError(f"{self.path} is removed again and again")

    def close(self) -> None:
        """Remove the claim."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self.path)
            os.close(self._descriptor)
            self._descriptor = -1


def living_claims() -> list[Claim]:
    """The claims of all processes that live, the first in the queue first. Removes this user's dead ones."""
    claims = []
    with os.scandir(folder()) as entries:
        paths = [entry.path for entry in entries if entry.name.startswith(CLAIM)]
    for path in paths[:MOST_CLAIMS]:
        with contextlib.suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
            if claim := _living(path):
                claims.append(claim)
    return sorted(claims, key=lambda claim: claim.order)


def _living(path: str) -> Claim | None:
    descriptor = os.open(path, READ)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Claim.parse(os.read(descriptor, MOST_CLAIM), name_of(status.st_uid))
        if status.st_uid == os.getuid():
            os.unlink(path)
    finally:
        os.close(descriptor)
    return None


def leased_gpus() -> list[Frame]:
    """The jobs that lease GPUs here, for the samples of this host."""
    shown = [claim for claim in living_claims() if claim.gpus][:MOST_SHOWN]
    return [{"job": claim.job, "user": claim.user, "gpus": claim.gpus} for claim in shown]


def unreserved(free: list[str], before: list[Claim]) -> list[str]:
    """The free devices that are left after everybody who waits before has taken some."""
    left = [*free]
    for want in (want for claim in before for want in claim.wants):
        taken = [device for device in left if device in want.devices][: want.number]
        left = [device for device in left if device not in taken]
    return left
