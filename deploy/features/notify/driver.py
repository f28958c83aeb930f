"""Notifies a command of stalls and of the end of a job (`--notify`).

A message has no arguments, no environment and no output of the program.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from ...core.job.events import Event, JobEvent
from ...core.job.feature import Feature
from ...core.job.result import LaunchResult
from ...core.plan.spec import LaunchSpec
from ...core.text.text import duration
from .options import NotifyOptions

COMMAND_SECONDS = 30.0
STALLS = frozenset({"steps.stopped", "steps.resumed"})


def message(result: Mapping[str, Any]) -> dict[str, Any]:
    """The message about a job, from the content of result.json, without its output."""
    failure = result["first_failure"]
    return {
        "event": "job.ended",
        "job": result["job"],
        **{name: result[name] for name in ("state", "exit_status", "launcher", "hosts")},
        "ranks": len(result["ranks"]),
        **{name: result[name] for name in ("attempt", "started", "ended")},
        "failure": failure and {name: failure[name] for name in ("kind", "host", "rank", "reason")},
        "text": failure["reason"] if failure else "",
    }


class Notify(Feature):
    """Notifies of a stall and of its end while the job runs, and of the end of the job."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec, self._command = spec, spec.of(NotifyOptions).notify
        self._started: JobEvent | None = None
        self._last: threading.Thread | None = None
        self._problems = list[str]()
        """Why messages could not be sent, each reason once."""

    def over(self, result: LaunchResult) -> LaunchResult:
        """Wait for a message that is being sent, so that it comes before that about the end."""
        if self._last:
            self._last.join(COMMAND_SECONDS)
        return dataclasses.replace(result, notes=(*result.notes, *self._problems))

    def closed(self, result: LaunchResult) -> str:
        """Send the message about the end; returns why that failed."""
        return send(self._command, message(result.as_json())) if self._command else ""

    def on_event(self, event: Event) -> None:
        """Send a message if the event is of a stall. The driver does not wait for it."""
        if not isinstance(event, JobEvent):
            return
        if event.type == "attempt.started":
            self._started = event
        elif event.type in STALLS and self._command:
            arguments = (self._message(event), self._last)
            self._last = threading.Thread(target=self._send, args=arguments, daemon=True)
            self._last.start()

    def _message(self, event: JobEvent) -> dict[str, Any]:
        """The same fields as at the end."""
        started, text = self._started, event.text
        if event.type == "steps.stopped" and event.since is not None:
            text = f"no step for {duration(event.at - event.since)}: {text}"
        return {
            "event": event.type,
            "job": event.job,
            "state": "running",
            "exit_status": None,
            "launcher": self._spec.launcher,
            "hosts": started and started.hosts,
            "ranks": started and started.ranks,
            "attempt": event.attempt,
            "started": started and started.at,
            "ended": None,
            "failure": None,
            "text": text,
        }

    def _send(self, content: Mapping[str, Any], earlier: threading.Thread | None) -> None:
        if earlier:
            earlier.join()  # messages arrive in the order of their events
        why = send(self._command, content)
        if why and why not in self._problems:
            self._problems.append(why)


def send(command: str, values: Mapping[str, Any]) -> str:
    """Send a message; returns why that failed, without the command's arguments, or an empty text."""
    words = shlex.split(command)
    content = (json.dumps(values) + "\n").encode()
    try:
        done = subprocess.run(
            words, input=content, stdout=subprocess.DEVNULL, timeout=COMMAND_SECONDS, check=False
        )
    except KeyboardInterrupt:
        return "--notify: interrupted"
    except OSError as error:
        return f"--notify {words[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"--notify {words[0]}: it had not ended after {COMMAND_SECONDS:.0f} s"
    return f"--notify {words[0]}: it ended with status {done.returncode}" if done.returncode else ""
