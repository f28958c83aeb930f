"""Notifies a command or a URL of stalls and of the end of a job (`--notify`).

A message has no arguments, no environment and no output of the program.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ..errors import UsageError
from ..launch.job_events import JobEvent
from ..launch.result import LaunchResult
from ..plan.spec import LaunchSpec
from ..why.stall import stall_text

URL_SECONDS, COMMAND_SECONDS = 10.0, 30.0
SCHEMES = ("http", "https")
STALLS = frozenset({"steps.stopped", "steps.resumed"})


def require_notify(target: str, *, local: bool = True) -> None:
    """`UsageError` for a target of `--notify` that is neither a command nor an http(s) URL.

    `local`: whether the driver runs on this machine, so that the program of the command must exist here.
    """
    if "://" in target.split(" ", maxsplit=1)[0]:
        try:
            url = urlsplit(target)
            _ = url.port  # ValueError for an invalid one
        except ValueError as error:
            raise UsageError(f"--notify: not a URL: {error}") from None
        if re.search(r"[^!-~]", target):
            raise UsageError("--notify: a URL has no blanks or letters beyond ASCII; write them as %20")
        if url.scheme not in SCHEMES or not url.hostname:
            raise UsageError(
                f"--notify: {url.scheme}:// is not a web address; write https://HOST/PATH, or a command"
            )
        return
    try:
        command_line = shlex.split(target)
    except ValueError as error:
        raise UsageError(f"--notify: {error}; quote the command as in a shell") from None
    if target and not (command_line and command_line[0].strip()):
        raise UsageError("--notify: write a command or a URL")
    if target and local and not shutil.which(command_line[0]):
        raise UsageError(
            f"--notify: no program {command_line[0]} here; write a command or a URL: https://HOST/PATH"
        )


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


class StallNotifier:
    """A listener of the events of a job: notifies of a stall and of its end, while the job runs."""

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self._started: JobEvent | None = None
        self._last: threading.Thread | None = None
        self.problems = list[str]()
        """Why messages could not be sent, each reason once."""

    def wait(self) -> None:
        """Wait for a message that is being sent, so that it comes before that about the end."""
        if self._last:
            self._last.join(URL_SECONDS)

    def add(self, event: JobEvent) -> None:
        """Send a message if the event is of a stall. The driver does not wait for it."""
        if event.type == "attempt.started":
            self._started = event
        elif event.type in STALLS and self._spec.notify:
            arguments = (self._message(event), self._last)
            self._last = threading.Thread(target=self._send, args=arguments, daemon=True)
            self._last.start()

    def _message(self, event: JobEvent) -> dict[str, Any]:
        """The same fields as at the end."""
        started, text = self._started, event.text
        if event.type == "steps.stopped" and event.since is not None:
            text = stall_text(event.at - event.since, text)
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
        why = send(self._spec.notify, content)
        if why and why not in self.problems:
            self.problems.append(why)


def notify(target: str, result: LaunchResult) -> str:
    """Send the message about the end; returns why that failed, or an empty text."""
    return send(target, message(result.as_json())) if target else ""


def send(target: str, values: Mapping[str, Any]) -> str:
    """Send a message; returns why that failed, with only the host of a URL, or an empty text."""
    content = (json.dumps(values) + "\n").encode()
    try:
        return _post(target, content) if "://" in target.split(" ", maxsplit=1)[0] else _run(target, content)
    except KeyboardInterrupt:
        return "--notify: interrupted"


def _post(url: str, content: bytes) -> str:
    # 14 ms, only with --notify URL
    import http.client  # noqa: PLC0415
    import urllib.error  # noqa: PLC0415
    import urllib.request  # noqa: PLC0415

    from ..common.web import open_url  # noqa: PLC0415

    where = f"--notify {urlsplit(url).scheme}://{urlsplit(url).hostname}"
    request = urllib.request.Request(  # noqa: S310  # http or https: require_notify
        url, data=content, headers={"Content-Type": "application/json"}, method="POST"
    )
    try:
        with open_url(request, URL_SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        return f"{where}: it answered with status {error.code}"
    except urllib.error.URLError as error:
        return f"{where}: {error.reason}"
    # http.client: an invalid address (ValueError), or an answer that is not HTTP.
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{where}: {type(error).__name__}"


def _run(command: str, content: bytes) -> str:
    command_line = shlex.split(command)
    try:
        done = subprocess.run(
            command_line, input=content, stdout=subprocess.DEVNULL, timeout=COMMAND_SECONDS, check=False
        )
    except OSError as error:
        return f"--notify {command_line[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"--notify {command_line[0]}: it had not ended after {COMMAND_SECONDS:.0f} s"
    return f"--notify {command_line[0]}: it ended with status {done.returncode}" if done.returncode else ""
