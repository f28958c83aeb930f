"""`muster free`: which GPUs of the hosts are free, and who has the others."""

from __future__ import annotations

import contextlib
import sys
import time
from dataclasses import asdict, dataclass

from ...cli.inventory import hosts_or_this_machine
from ...cli.shared import JSON, HostOptions, write_json
from ...core.connect.cluster import Cluster
from ...core.connect.fanout import ask_every
from ...core.errors import UnfitError
from ...core.plan.flags import flag
from ...core.text.columns import cut, width_of
from ...core.text.terminal import harmless
from . import drained
from .free import drained_line, free_table
from .messages import LEASES

ASK_SECONDS = 40.0


@dataclass(frozen=True)
class Free(HostOptions):
    """Show which GPUs are free, and who has the others.

    It names the job, and the time since when. A launch leases its GPUs (--gpus). "In use" is a GPU that a
    process uses without a lease; "drained" names who drained it, and why.
    """

    json: bool = flag(False, JSON)

    def run(self) -> None:
        """Ask every host, and print the table.

        A host that cannot be asked is an error with status 3, unless it is drained.
        """
        inventory = hosts_or_this_machine(self)
        cluster = Cluster(inventory.hosts, inventory.open_pipe, facts=False)
        with contextlib.closing(cluster):
            errors = cluster.connect()
            asked = ask_every(cluster.channels, LEASES, ASK_SECONDS)
        errors, leases, now = {**errors, **asked.errors}, asked.results, time.time()
        entries = drained.load(self.hosts_file)
        away = [entry for entry in entries if entry.host in errors]
        if self.json:
            write_json(
                {
                    name: {
                        **asdict(found),
                        "drained": [asdict(entry) for entry in entries if entry.host == name],
                    }
                    for name, found in leases.items()
                }
            )
        else:
            width = width_of(sys.stdout)
            lines = free_table(inventory.hosts, leases, now, entries)
            for line in map(harmless, [*lines, *(drained_line(entry, now) for entry in away)]):
                sys.stdout.write(f"{cut(line, width) if width else line}\n")
        known = {entry.host for entry in away}
        if missing := {host: error for host, error in errors.items() if host not in known}:
            raise UnfitError(missing.items())
