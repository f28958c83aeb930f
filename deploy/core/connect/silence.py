"""Judges which hosts are silent, and whether this machine is the cause. Pure: times in, verdicts out.

A host is silent if it owes an answer and has sent nothing for a time. One host alone is frozen or cut off. If
all hosts fall silent at about the same time, the cause is the network of this machine. The time in which this
process did not run does not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from .pipe import SilentError

SILENCE_SECONDS = 10.0
"""The limit for every command. The agents of a job wait a little longer for the driver, so that the driver's
verdict comes first (SILENCE_SECONDS of core/agent/supervisor.py)."""
GREETING_SECONDS = 30.0
"""The limit before an agent's greeting: a login and a Python have to start."""
TOGETHER_SECONDS = 4.0
"""Hosts whose silence began within this time fell silent together: two rounds of pings."""
STANDSTILL_SECONDS = 4.0
"""A loop that turns every 2 s and did not turn for so long was not running."""

SHARED = "this machine has lost its network, or what lies between it and them fails (VPN, switch, jump host)"
FROZEN = "is it overloaded or frozen? look at its console"
STUCK_SECONDS = 900.0
"""Longer than a disk needs to write all dirty pages of a machine (fsync(2))."""
STUCK_READING_SECONDS = 60.0
"""For a request that only reads files: it takes processor time with every byte."""


class Sign(NamedTuple):
    """A host's silence: the seconds since its last sign of life while it owes an answer, else 0."""

    silence: float
    greeted: bool = True
    remote: bool = True
    """Whether it is reached over a network."""

    @property
    def limit(self) -> float:
        """The silence after which it is lost."""
        return SILENCE_SECONDS if self.greeted else GREETING_SECONDS


def losses(signs: Mapping[str, Sign]) -> dict[str, SilentError]:
    """The hosts that are lost, each with the reason: the host itself, or the shared network."""
    late = [host for host, sign in signs.items() if sign.silence > sign.limit]
    if not late:
        return {}
    together = _together(signs)
    shared = {host: _all_silent(host, len(together), signs[host].limit) for host in together}
    return {host: _silent(host, signs[host]) for host in late} | shared


def _together(signs: Mapping[str, Sign]) -> list[str]:
    """The remote hosts that fell silent at about the same time, if all remote hosts are silent since."""
    remote = {host: sign for host, sign in signs.items() if sign.remote}
    if all(sign.silence <= sign.limit for sign in remote.values()):
        return []
    if any(sign.silence <= sign.limit - TOGETHER_SECONDS for sign in remote.values()):
        return []
    newest = min(sign.silence for sign in remote.values())
    together = [host for host, sign in remote.items() if sign.silence <= newest + TOGETHER_SECONDS]
    return together if len(together) > 1 else []


def _silent(host: str, sign: Sign) -> SilentError:
    text = f"silent for {sign.limit:.0f} s: frozen, or cut off from the network"
    remedy = FROZEN if sign.greeted else f"{FROZEN}; or does its login shell start another one?"
    return SilentError(text, remedy, host=host)


def _all_silent(host: str, count: int, seconds: float) -> SilentError:
    text = f"all {count} hosts have been silent for {seconds:.0f} s: {SHARED}"
    return SilentError(text, "see whether it reaches them: ssh HOST", host=host, together=True)


class Clocks(NamedTuple):
    """Two clocks, read at once: `steady` also runs while the machine is suspended, `awake` does not."""

    steady: float
    awake: float


class Standstill(NamedTuple):
    """A time in which this process did not run. `machine`: because the whole machine was suspended."""

    began: float
    ended: float
    machine: bool

    @property
    def seconds(self) -> float:
        """The duration."""
        return self.ended - self.began


def standstill(last: Clocks, clocks: Clocks) -> Standstill | None:
    """Judge the time between two turns of a loop."""
    gap, awake = clocks.steady - last.steady, clocks.awake - last.awake
    if gap < STANDSTILL_SECONDS:
        return None
    return Standstill(last.steady, clocks.steady, machine=gap - awake > gap / 2)
