"""The files that a job has left in its output folder on every host."""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..connect.cluster import Cluster
from ..connect.requests.launch import OUTPUTS, Outputs
from ..errors import MusterError

OUTPUTS_SECONDS = 5.0


def outputs(cluster: Cluster) -> Mapping[str, Outputs]:
    """The outputs of each host that has any and answers in time. The verdict does not wait long for them."""
    began = time.monotonic()
    asked = {name: channel.post(OUTPUTS) for name, channel in cluster.channels.items()}
    by_host = {}
    for name, future in asked.items():
        try:
            left = cluster.channels[name].wait(future, OUTPUTS_SECONDS, since=began)
        except MusterError:
            continue
        if left.files:
            by_host[name] = left
    return by_host
