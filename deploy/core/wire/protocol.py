"""The protocol between driver and agent: each request, the class that answers it, and the text of its error.

The driver adds the type of each answer (core/connect/requests). Tests compare both sides with these tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Handler(NamedTuple):
    """A class of the agent that answers requests: `do_NAME(request, payload)` for each name."""

    module: str
    kind: str
    needs: str
    """The arguments of its constructor: `send`, the handler `transfers` or `job`, all `handlers`, the agent's
    folder `muster_root`, or a folder in it."""
    requests: Mapping[str, str]
    """The names of its requests, by the text in front of the error of a failed one."""
    words: str = ""
    """The words with which processes of this host call it (core/agent/local_socket.py)."""
    quick: str = ""
    """Its requests that use no disk: they are answered at once, without a thread, which would delay them."""

    @property
    def names(self) -> list[str]:
        return " ".join(self.requests.values()).split()


AT_START = (
    Handler("core.agent.main", "Agent", "", {"": "time load modules"}, quick="time"),
    Handler("core.agent.facts", "FactsHandler", "", {"cannot examine the host": "facts"}),
    Handler("core.agent.rendezvous_port", "RendezvousPort", "", {"": "open_port free_port port_thief reach"}),
    Handler("core.wire.files", "Files", "", {"cannot read the file": "file file_part", "": "entries"}),
    Handler("core.wire.store", "Store", "store", {"cannot keep the job's files": "missing store"}),
    Handler(
        *("core.agent.supervisor", "JobSupervisor", "muster_root send handlers"),
        {
            "cannot make the job's folder": "prepare",
            "cannot start the launcher": "start",
            "cannot start mpirun's daemon": "shell",
            "cannot read the job's run": "fetch",
            "": "shell_end ping signal stop",
        },
        quick="shell_end ping signal",
    ),
)
"""The handlers that travel at the agent's start."""
ON_DEMAND = (
    Handler("features.samples.on_host.meter", "SampleHandler", "", {"": "sample"}),
    Handler("features.samples.on_host.sampler", "Sampling", "job", {"": "watch"}),
    Handler("features.why.on_host.evidence", "EvidenceOfJob", "job", {}, "stacks why"),
    Handler(
        "features.detach.on_host",
        "Detaching",
        "muster_root send",
        {"cannot start the job's driver": "detach"},
    ),
    Handler(
        *("features.why.on_host.evidence", "RankEvidence", "muster_root"),
        {"cannot read where the ranks are": "stacks why"},
    ),
    Handler("features.adhoc.on_host.run_command", "CommandRunner", "send", {"": "run"}),
    Handler(
        *("core.wire.job_folders", "JobFolders", "jobs"),
        {
            "cannot read the job's run": "jobs output files read",
            "cannot keep the job's record": "record",
            "": "end_driver",
        },
    ),
    Handler("features.check.on_host", "HealthHandler", "", {"cannot examine the host": "health"}),
    Handler(
        "features.kernel.on_host", "KernelLog", "", {"cannot read the kernel's messages": "kernel_messages"}
    ),
    Handler("features.memory_kills.on_host", "OtherKills", "job", {"": "memory_kills"}),
    Handler("features.written_files.on_host", "Outputs", "job", {"": "outputs"}),
    Handler(
        "features.left_memory.on_host", "LeftMemory", "", {"cannot look at shared memory": "left_memory"}
    ),
    Handler(
        "features.leases.on_host.leases", "Leases", "", {"cannot lease": "lease", "": "lease_end leases"}
    ),
    Handler(
        "features.adhoc.on_host.receive",
        "Receiver",
        "",
        {"cannot write the file": "put_begin put_write put_check put_place"},
    ),
    Handler("features.eval.on_host", "Consoles", "muster_root", {"cannot ask the ranks": "console_eval"}),
    Handler(
        *("features.forward.on_host", "Streams", "muster_root send"),
        {"cannot connect": "stream_open", "": "stream_part stream_taken stream_close"},
        quick="stream_part stream_taken stream_close",
    ),
    Handler(
        *("features.why.on_host.arrivals", "ArrivalMeter", "muster_root"),
        {"cannot read where the ranks are": "arrivals"},
    ),
    Handler("features.adhoc.on_host.cleanup", "Cleaning", "muster_root", {"cannot remove old jobs": "clean"}),
    Handler("features.preload.on_host.preload", "Preload", "job", {"": "preload"}, "preload"),
    Handler(
        *("features.containers.on_host.container", "Container", "job"),
        {"cannot start the container": "container_start"},
        "container",
    ),
    Handler(
        "features.containers.on_host.look", "Containers", "muster_root", {"cannot use the image": "container"}
    ),
    Handler("features.image.on_host.images", "ImageLoader", "images send", {"": "image image_load"}),
    Handler(
        *("features.data.on_host.data", "Data", "data jobs send transfers"),
        {
            "cannot keep the data set": "data_begin data_publish",
            "cannot remove the data set": "data_remove",
            "": "data_scan data_bundle data_list data_verify data_open data_part data_read",
        },
    ),
    Handler(
        *("core.agent.transfer.transfers", "HostTransfers", "muster_root send"),
        {"cannot receive files": "blob_serve blob_take", "": "blob_complete blob_pull blob_forget"},
    ),
    Handler(
        *("features.packages.on_host.environments", "Environments", "muster_root send"),
        {
            "cannot look at the environments of packages": "envs",
            "cannot remove environments of packages": "env_remove",
            "cannot use the environment of packages": "env_hold",
            "": "env_reach env_make",
        },
    ),
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
