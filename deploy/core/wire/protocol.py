"""The protocol between driver and agent: each request, the class that answers it, and the text of its error.

The driver adds the type of each answer (core/connect/requests.py). Tests compare both sides with this table.
"""

from __future__ import annotations

from importlib import import_module

from .handler import Handler

TERM_TO_RANKS = "term-to-ranks"
"""An argument of the agent, for hosts whose scheduler sends SIGTERM first: ranks may save until SIGKILL."""
AT_START = (
    Handler("core.agent.main", "Agent", "", {"": "time load"}, quick="time"),
    Handler("core.agent.facts", "FactsHandler", "", {"cannot examine the host": "facts"}),
    Handler("core.agent.rendezvous_port", "RendezvousPort", "", {"": "open_port free_port reach"}),
    Handler("core.wire.files", "Files", "", {"cannot read the file": "file_part"}),
    Handler("core.wire.store", "Store", "store", {"cannot keep the job's files": "missing store"}),
    Handler(
        *("core.agent.supervisor", "JobSupervisor", "muster_root send handlers"),
        {
            "cannot make the job's folder": "prepare",
            "cannot start the launcher": "start",
            "cannot start mpirun's daemon": "shell",
            "": "shell_end ping signal stop",
        },
        quick="shell_end ping signal",
    ),
)
"""The handlers that travel at the agent's start."""
ON_DEMAND: tuple[Handler, ...] = (
    Handler(
        *("core.wire.job_folders", "JobFolders", "jobs"),
        {
            "cannot read the job's run": "jobs output files read",
            "cannot keep the job's record": "record",
            "": "end_driver",
        },
    ),
    Handler(
        *("core.agent.transfers", "HostTransfers", "muster_root send"),
        {"cannot receive files": "blob_serve blob_take", "": "blob_complete blob_pull blob_forget"},
    ),
    *import_module("muster.deploy.features.all_handlers").HANDLERS,
)
"""The other handlers: each travels before the first request to it, with the modules that it imports."""
HANDLERS = {name: handler for handler in (*AT_START, *ON_DEMAND) for name in handler.names}
NEEDS = {"transfers": "blob_serve", "job": "prepare"}
"""Handlers that others need, each by a request to it."""
WORDS = {word: handler for handler in (*AT_START, *ON_DEMAND) for word in handler.words.split()}
QUICK = {name for handler in (*AT_START, *ON_DEMAND) for name in handler.quick.split()}
ERRORS = {
    name: text
    for handler in HANDLERS.values()
    for text, names in handler.requests.items()
    for name in names.split()
}
