"""The agent's parts, and the requests that each part answers. A part is loaded at its first request.

Most parts are never needed, and loading all of them would be most of the cost of one request.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple


class Part(NamedTuple):
    """A class that answers requests: `do_WORD(request, payload)` for each word."""

    module: str
    kind: str
    needs: tuple[str, ...]
    """The arguments of its constructor: `send`, the agent's folder `home`, or a folder in `home`."""
    requests: tuple[str, ...]


PARTS = (
    Part("agent.host.facts", "Facts", (), ("facts",)),
    Part("agent.host.meter", "Sampling", (), ("sample",)),
    Part("agent.host.health", "Health", (), ("health",)),
    Part(
        "agent.host.rendezvous",
        "RendezvousPort",
        (),
        ("open_port", "try_to_open_port", "probe_port", "free_port", "port_thief", "reach", "reach_hosts"),
    ),
    Part("common.store", "Store", ("store",), ("missing", "store")),
    Part(
        *("agent.job.supervisor", "Work", ("home", "send")),
        requests=(
            *("prepare", "start", "shell", "shell_end", "stdin", "ping", "watch"),
            *("signal", "stop", "outputs", "fetch", "container_start"),
        ),
    ),
    Part("common.runs", "Jobs", ("jobs",), ("jobs", "output", "record", "end_driver", "files", "read")),
    Part("agent.job.detach", "Detaching", ("home", "send"), ("detach",)),
    Part("agent.job.stacks", "Stacks", ("home",), ("stacks", "why")),
    Part("agent.job.consoles", "Consoles", ("home",), ("console_eval", "console_open", "console_say")),
    Part("agent.job.arrivals", "ArrivalMeter", ("home",), ("arrivals",)),
    Part("agent.process.commands", "Commands", ("send",), ("run",)),
    Part("agent.host.drafts", "Drafts", (), ("draft", "append", "verify", "settle")),
    Part("common.files", "Files", (), ("file", "entries", "part")),
    Part("agent.job.cleanup", "Cleaning", ("home",), ("clean",)),
    Part(
        *("agent.image.images", "Images", ("images", "send")),
        requests=(
            *("image", "image_serve", "image_take", "image_complete"),
            *("image_pull", "image_forget", "image_load"),
        ),
    ),
    Part(
        *("agent.data.data", "Data", ("data", "jobs", "send")),
        requests=(
            *("data_serve", "data_scan", "data_fetch", "data_begin", "data_take", "data_complete"),
            *("data_pull", "data_bundle", "data_forget", "data_publish", "data_list", "data_verify"),
            *("data_remove", "data_open", "data_part", "data_read"),
        ),
    ),
    Part(
        *("agent.container.look", "Containers", ("home",)),
        requests=("container",),
    ),
    Part(
        *("agent.envs.wheels", "Wheels", ("wheels", "send")),
        requests=("wheel_serve", "wheel_take", "wheel_complete", "wheel_pull"),
    ),
    Part(
        *("agent.envs.environments", "Environments", ("home", "send")),
        requests=("envs", "env_reach", "env_make", "env_remove", "env_facts"),
    ),
)
DOING = {
    **dict.fromkeys(("facts", "health"), "cannot examine the host"),
    **dict.fromkeys(("missing", "store"), "cannot keep the job's files"),
    "prepare": "cannot make the job's folder",
    "start": "cannot start the launcher",
    "shell": "cannot start mpirun's daemon",
    "container": "cannot use the image",
    "container_start": "cannot start the container",
    "detach": "cannot start the job's driver",
    "record": "cannot keep the job's record",
    **dict.fromkeys(("jobs", "output", "files", "read", "fetch"), "cannot read the job's run"),
    **dict.fromkeys(("stacks", "why", "arrivals"), "cannot read where the ranks are"),
    **dict.fromkeys(("console_eval", "console_open", "console_say"), "cannot ask the ranks"),
    **dict.fromkeys(("draft", "append", "verify", "settle"), "cannot write the file"),
    **dict.fromkeys(("file", "part"), "cannot read the file"),
    "clean": "cannot remove old jobs",
    **dict.fromkeys(("data_take", "data_begin", "data_publish"), "cannot keep the data set"),
    "data_remove": "cannot remove the data set",
    "envs": "cannot look at the environments of packages",
    "env_remove": "cannot remove environments of packages",
    **dict.fromkeys(("wheel_serve", "wheel_take", "wheel_complete"), "cannot take the packages"),
}
"""What a failed request could not do; it stands in front of the error's text."""
_BY_REQUEST = {request: part for part in PARTS for request in part.requests}


class Parts:
    """The parts that are loaded."""

    def __init__(self, home: str, send: Callable[..., None]) -> None:
        self._home, self._send = home, send
        self._loaded: dict[str, Any] = {}

    def of(self, request: str) -> Any:
        """The part that answers a request; KeyError if there is none."""
        part = _BY_REQUEST[request]
        if part.kind not in self._loaded:
            module = importlib.import_module(f"muster.deploy.{part.module}")
            self._loaded[part.kind] = getattr(module, part.kind)(*map(self._given, part.needs))
        return self._loaded[part.kind]

    def load_ahead(self, requests: list[str]) -> None:
        """Import the parts that answer these requests, in a thread, before the requests come."""
        modules = [_BY_REQUEST[request].module for request in requests]
        threading.Thread(target=_import, args=(modules,), daemon=True).start()

    def close(self) -> None:
        """Close the parts that have something to end or to remove; the job first."""
        for _, part in sorted(self._loaded.items(), key=lambda item: item[0] != "Work"):
            if hasattr(part, "close"):
                part.close()

    def _given(self, word: str) -> object:
        if word == "send":
            return self._send
        from pathlib import Path  # noqa: PLC0415  # not every part has files

        return Path(self._home) if word == "home" else Path(self._home, word)


def _import(modules: list[str]) -> None:
    with contextlib.suppress(Exception):  # the request that needs the module gets the reason
        for module in modules:
            importlib.import_module(f"muster.deploy.{module}")
