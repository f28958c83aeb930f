"""Measure the link between every two ranks, in both directions: latency and bandwidth.

    muster bench links                          one rank on each host, and a report
    torchrun --nnodes 4 ... -m muster.deploy.features.bench.programs.links      without a report

Messages go through torch.distributed, as those of a training do. Ranks meet by the rounds of a tournament,
so no rank is in two measurements at a time, but the pairs of a round share the switches between them;
--in-turn measures one pair at a time.

A rank prints a JSON line for each link that begins at it, and rank 0 first one about the job. Latency is half
of a round trip of a small message, the median of many. Bandwidth is that of large messages one after the
other, until the last is acknowledged.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from muster.train.job.group import Job
from muster.train.job.hardware import wait_for_gpu
from muster.train.options import OUTPUT, RANKS, RankOptions, option

from .tool import report, run

Pair = tuple[int, int]


def rounds(players: int) -> list[list[Pair]]:
    """Return the rounds of a tournament of players 0 to `players` - 1, each a list of disjoint pairs.

    By the circle method: one player stays in its place, the others move around it by a place each round.
    An even number of players needs one round less than players; an odd number one for each, in which one
    player rests. The smaller number of a pair comes first.
    """
    circle: list[int | None] = [*range(players)]
    if players % 2:
        circle.append(None)  # a rank without a partner in a round
    made = []
    for _ in range(len(circle) - 1):
        half = len(circle) // 2
        opposite = zip(circle[:half], reversed(circle[half:]), strict=True)
        made.append([(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None])
        circle.insert(1, circle.pop())
    return made


def one_at_a_time(schedule: list[list[Pair]]) -> list[list[Pair]]:
    """Return the same meetings with one pair in each round."""
    return [[pair] for each in schedule for pair in each]


SMALL = 8  # bytes; one number
IN_FLIGHT = 2  # messages; the handshake of one hides behind the bytes of the other
MOST_MESSAGES = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class LinksConfig(RankOptions):
    """Measure the link between every two ranks, in both directions."""

    timeout: float = option(RANKS, 120.0, "seconds to wait for other ranks")
    large: int = option(OUTPUT, 8 << 20, "bytes of a message when bandwidth is measured")
    seconds: float = option(OUTPUT, 0.5, "how long to measure the bandwidth of each direction")
    trips: int = option(OUTPUT, 200, "round trips when latency is measured")
    in_turn: bool = option(OUTPUT, False, "one pair of ranks at a time")


def main() -> None:
    """Run the tool."""
    run("python -m muster.deploy.features.bench.programs.links", LinksConfig, show)


def show(group: Job, config: LinksConfig) -> int:
    """Meet every other rank; returns the exit status."""
    if group.rank == 0:
        report("links", ranks=group.world_size, backend=group.backend, device=group.device.type)
    schedule = rounds(group.world_size)
    for pairs in one_at_a_time(schedule) if config.in_turn else schedule:
        for first, second in pairs:
            if group.rank in {first, second}:
                _meet(group, config, first, second)
        if config.in_turn:
            group.barrier()
    group.barrier()  # a rank that left early would break the connections of the others
    return 0


def _meet(group: Job, config: LinksConfig, first: int, second: int) -> None:
    """Measure both directions between two ranks, of which this is one; each prints its direction."""
    for sender, receiver in ((first, second), (second, first)):
        if group.rank == sender:
            end = End(receiver, group.device)
            latency, bandwidth = end.ask(config.trips), end.send(config.large, config.seconds)
            report("link", to=receiver, latency_s=latency, bytes_per_s=bandwidth)
        else:
            end = End(sender, group.device)
            end.answer(config.trips)
            end.receive(config.large)


class End:
    """One end of the link to rank `peer`, for tensors on `device`."""

    def __init__(self, peer: int, device: torch.device) -> None:
        self._peer, self._device = peer, device
        self._note = torch.zeros(SMALL // 8, dtype=torch.int64, device=device)

    def ask(self, trips: int) -> float:
        """Send a small message and wait for its answer, many times; returns half of the median in seconds."""
        taken = []
        for number in range(trips + trips // 10 + 1):
            began = time.perf_counter()
            dist.send(self._note, self._peer)
            dist.recv(self._note, self._peer)
            wait_for_gpu(self._device)
            if number > trips // 10:  # the first ones warm up
                taken.append(time.perf_counter() - began)
        return statistics.median(taken) / 2

    def answer(self, trips: int) -> None:
        """The other end of `ask`."""
        for _ in range(trips + trips // 10 + 1):
            dist.recv(self._note, self._peer)
            dist.send(self._note, self._peer)
            wait_for_gpu(self._device)

    def send(self, size: int, seconds: float) -> float:
        """Send messages of `size` bytes for about `seconds`; returns bytes per second."""
        message = torch.zeros(size, dtype=torch.uint8, device=self._device)
        taken = self._timed(lambda: self._stream(message, 1))
        number = min(MOST_MESSAGES, max(2, round(seconds / taken)))
        self._note[0] = number
        dist.send(self._note, self._peer)
        taken = self._timed(lambda: self._stream(message, number))
        return number * size / taken

    def receive(self, size: int) -> None:
        """The other end of `send`."""
        room = [torch.empty(size, dtype=torch.uint8, device=self._device) for _ in range(IN_FLIGHT)]
        self._take(room, 1)
        dist.recv(self._note, self._peer)
        self._take(room, int(self._note[0]))

    def _stream(self, message: torch.Tensor, number: int) -> None:
        under_way: deque[Any] = deque()
        for _ in range(number):
            if len(under_way) == IN_FLIGHT:
                under_way.popleft().wait()
            under_way.append(dist.isend(message, self._peer))
        for request in under_way:
            request.wait()
        dist.recv(self._note, self._peer)

    def _take(self, room: list[torch.Tensor], number: int) -> None:
        under_way: deque[Any] = deque()
        for count in range(number):
            if len(under_way) == IN_FLIGHT:
                under_way.popleft().wait()
            under_way.append(dist.irecv(room[count % IN_FLIGHT], self._peer))
        for request in under_way:
            request.wait()
        wait_for_gpu(self._device)
        dist.send(self._note, self._peer)
        wait_for_gpu(self._device)

    def _timed(self, work: Callable[[], None]) -> float:
        began = time.perf_counter()
        work()
        wait_for_gpu(self._device)
        return time.perf_counter() - began


if __name__ == "__main__":
    main()
