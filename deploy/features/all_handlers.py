"""What features add to the agent: each request, the class that answers it, and the text of its error.

It travels to each host at the agent's start, and each class before the first request to it.
"""

from __future__ import annotations

from ..core.wire.handler import Handler

HANDLERS = (
    Handler("features.samples.on_host.sampler", "Sampling", "job", {"": "watch"}),
    Handler("features.why.on_host.evidence", "EvidenceOfJob", "job", {}, "why"),
    Handler(
        "features.detach.on_host",
        "Detaching",
        "muster_root send",
        {"cannot start the job's driver": "detach"},
    ),
    Handler(
        *("features.why.on_host.evidence", "RankEvidence", "muster_root"),
        {"cannot read where the ranks are": "why"},
    ),
    Handler("features.adhoc.on_host.run_command", "CommandRunner", "send", {"": "run"}),
    Handler("features.check.on_host", "HealthHandler", "", {"cannot examine the host": "health"}),
    Handler(
        *("features.why.on_host.kernel_log", "KernelLog", ""),
        {"cannot read the kernel's messages": "kernel_messages"},
    ),
    Handler("features.why.on_host.kernel_log", "OtherKills", "job", {"": "memory_kills"}),
    Handler("features.written_files.on_host", "Outputs", "job", {"": "outputs"}),
    Handler(
        *("features.clean.on_host.left_memory", "LeftMemory", ""),
        {"cannot look at shared memory": "left_memory"},
    ),
    Handler(
        "features.leases.on_host.leases", "Leases", "", {"cannot lease": "lease", "": "lease_end leases"}
    ),
    Handler("features.adhoc.wire", "Listings", "", {"cannot read the file": "file", "": "entries"}),
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
    Handler("features.clean.on_host.cleanup", "Cleaning", "muster_root", {"cannot remove old jobs": "clean"}),
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
            "": "data_scan data_bundle data_list data_verify",
        },
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
