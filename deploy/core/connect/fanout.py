"""Does the same on many hosts at once, and collects results and errors, each by the name of its host."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from ..errors import MusterError, UnfitError
from ..waits import waiting
from ..wire.os_errors import explain
from .channel import Channel
from .requests import Answer, Request

AT_ONCE = 64
CLEAN_SECONDS = 5.0
Result = TypeVar("Result")


@dataclass(frozen=True)
class HostOutcomes(Generic[Result]):
    """The outcome of an action on every host: a result or an error for each, in the order of the hosts."""

    results: dict[str, Result]
    errors: dict[str, MusterError]

    def require_all(self) -> dict[str, Result]:
        """The results; `UnfitError` that names every host with an error, if there is one."""
        if self.errors:
            raise UnfitError(self.errors.items())
        return self.results


def on_every(
    hosts: Iterable[str],
    act: Callable[[str], Result],
    *,
    at_once: int = AT_ONCE,
    interrupted: Callable[[], object] | None = None,
) -> HostOutcomes[Result]:
    """Call `act` for every host, at most `at_once` at a time. An error of one host does not stop the others.

    `interrupted`: called at a Ctrl-C, to end the waiting for hosts; threads then have a moment to clean up.
    Without it they are left: a host that does not answer must not delay the end of this process.
    """
    names = list(hosts)
    results: dict[str, Result] = {}
    errors: dict[str, MusterError] = {}

    def attempt(host: str) -> None:
        try:
            results[host] = act(host)
        except MusterError as error:
            errors[host] = error
        except OSError as error:  # of this machine
            errors[host] = MusterError(f"on this machine, not there: {explain(error)}", host=host)
        noted.over_for(host)

    left, done = deque(names), SimpleQueue[BaseException | None]()
    with waiting(hosts=names) as noted:
        threads = [in_thread(partial(_work, left, attempt, done)) for _ in range(min(len(names), at_once))]
        try:
            for _ in names:
                if error := done.get():
                    raise error
        except BaseException:
            left.clear()
            if interrupted:
                interrupted()
                wait(threads, CLEAN_SECONDS)
            raise
    return HostOutcomes(
        {name: results[name] for name in names if name in results},
        {name: errors[name] for name in names if name in errors},
    )


def _work(left: deque[str], attempt: Callable[[str], None], done: SimpleQueue[BaseException | None]) -> None:
    """Do one host after the other until none is left."""
    while True:
        try:
            host = left.popleft()
        except IndexError:
            return
        try:
            attempt(host)
            done.put(None)
        except BaseException as error:  # noqa: BLE001  # for the thread that waits
            done.put(error)


def in_thread(act: Callable[[], Result]) -> Future[Result]:
    """The result of a call in a new thread, which does not delay the end of this process."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(act())
        except BaseException as error:  # noqa: BLE001  # for the thread that waits
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def ask_every(
    channels: Mapping[str, Channel],
    request: Request[Answer],
    seconds: float,
    arguments: Callable[[str], Mapping[str, Any]] = lambda host: {},
) -> HostOutcomes[Answer]:
    """Ask every host, with its `arguments`, before waiting for the first answer; all have the same time."""
    began = time.monotonic()
    answers = {host: channel.post(request, **arguments(host)) for host, channel in channels.items()}
    results, errors = dict[str, Answer](), dict[str, MusterError]()
    with waiting(hosts=answers) as noted:
        for host, answer in answers.items():
            answer.add_done_callback(partial(lambda host, _: noted.over_for(host), host))
        for host, future in answers.items():
            try:
                results[host] = channels[host].wait(future, seconds, began)
            except MusterError as error:
                errors[host] = error
            noted.over_for(host)
    return HostOutcomes(results, errors)


def one_of_each(channels: Mapping[str, Channel], folders: Mapping[str, str]) -> dict[str, Channel]:
    """One host of those that share a folder, such as a home. `folders`: the mark of each host's folder."""
    first = {mark: host for host, mark in reversed([*folders.items()])}
    return {host: channels[host] for host, mark in folders.items() if first[mark] == host}
