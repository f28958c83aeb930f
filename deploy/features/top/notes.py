"""The worst problem of a host or a rank, in one or two words. Pure."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from ...core.hosts.host_sample import HOT_CPU, HOT_GPU, HostSample
from ...core.text.text import duration
from .top_history import HostTrack, RankTrack, TopHistory

# A host that sends every 2 seconds is missed after 8; with 1 second between two looks, within 10.
SILENT_SECONDS, SILENT_GAPS = 8.0, 2.5
QUIET_SECONDS = 60.0  # a rank that prints nothing while others do
BEHIND_STEPS = 2
NEARLY_FULL, OVERLOAD = 0.95, 2.0
BUSY_GPU = 0.3


class Note(NamedTuple):
    """A remark. `bad`: the user must act; otherwise it is only unusual."""

    text: str
    bad: bool


class Judge:
    """Judges each host and rank in relation to the others, at a time of the reader's clock."""

    def __init__(self, history: TopHistory, now: float) -> None:
        self._history, self._now = history, now
        shares = [share for track in history.hosts.values() if (share := gpu_share(track.last)) is not None]
        self._usual_gpu = median(shares) if len(shares) > 2 else 0.0
        self._steps = max((rank.step for rank in history.ranks.values() if rank.step is not None), default=0)
        printed = [rank.printed for rank in history.ranks.values() if rank.printed is not None]
        self._printed = max(printed, default=0.0)
        self._late = history.late()

    def job(self) -> Note | None:
        """The worst problem of the whole job: it makes no progress."""
        text = self._history.stall(self._now)
        return Note(text, bad=True) if text else None

    def host(self, track: HostTrack) -> Note | None:
        """The worst problem of a host."""
        if track.last is None:
            return Note("no sample yet", bad=False)
        silence = self._history.silence(track.name, self._now)
        if silence is not None and silence > _patience(track) and not self._history.is_over:
            return Note(f"silent for {silence:.0f} s", bad=True)
        return self._figures(track.last)

    def rank(self, track: RankTrack) -> Note | None:
        """The worst problem of a rank."""
        last = track.last
        if not track.running:
            return None if self._history.is_over else Note("ended", bad=False)
        if last and last.state == "T":
            return Note("stopped", bad=True)
        if last and last.state == "D" and _stays(track, "D"):
            return Note("stuck in the kernel", bad=True)
        return self._progress(track)

    def _progress(self, track: RankTrack) -> Note | None:
        """Whether a rank that runs is behind the others, or keeps them waiting."""
        if track.step is not None and self._steps - track.step >= BEHIND_STEPS:
            return Note(f"{self._steps - track.step} steps behind", bad=False)
        if late := self._late.get(track.rank):
            return Note(f"others wait {duration(late)} a step", bad=False)
        if track.printed is not None and self._printed - track.printed > QUIET_SECONDS:
            return Note(f"silent for {self._now - track.printed:.0f} s", bad=False)
        return None

    def _figures(self, last: HostSample) -> Note | None:
        broken = [gpu.index for gpu in last.gpus if gpu.ecc]
        hot = [gpu.index for gpu in last.gpus if (gpu.temperature or 0.0) >= HOT_GPU]
        share = gpu_share(last)
        notes = (
            (bool(broken), f"GPU {_span(broken)}: memory errors", True),
            (_part(last.memory, last.memory_total) > NEARLY_FULL, "memory nearly full", True),
            (_part(last.shm, last.shm_total) > NEARLY_FULL, "/dev/shm nearly full", True),  # noqa: S108  # a text
            (bool(hot), f"GPU {_span(hot)}: hot", False),
            ((last.temperature or 0.0) >= HOT_CPU, f"hot: {last.temperature or 0:.0f} C", False),
            (share is not None and share < BUSY_GPU * self._usual_gpu, "GPUs idle, unlike others", False),
            ((last.load or 0.0) > OVERLOAD * (last.cpus or 1e9), "overloaded", False),
        )
        return next((Note(text, bad=bad) for applies, text, bad in notes if applies), None)


def gpu_share(sample: HostSample | None) -> float | None:
    """The share of the time in which the GPUs of a host computed, on average; None without any."""
    shares = [gpu.utilisation for gpu in sample.gpus if gpu.utilisation is not None] if sample else []
    return sum(shares) / len(shares) if shares else None


def _patience(track: HostTrack) -> float:
    """The usual silence, in seconds: hosts where samples are expensive send fewer."""
    if len(track.samples) < 2:
        return SILENT_SECONDS
    return max(SILENT_SECONDS, SILENT_GAPS * (track.samples[-1].at - track.samples[-2].at))


def _stays(track: RankTrack, state: str) -> bool:
    """Whether the last samples all had a state: a short wait for a disk is usual."""
    return len(track.samples) >= 3 and all(entry.state == state for entry in [*track.samples][-3:])


def _part(used: int | None, whole: int | None) -> float:
    return used / whole if used is not None and whole else 0.0


def _span(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
