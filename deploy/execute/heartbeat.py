"""Driver and keepers let each other know that they are there."""

from __future__ import annotations

import time

from ..connect.cluster import Cluster
from ..result import Failure
from .state import State

HEARTBEAT_SECONDS = 2.0
# A host that says nothing for so long is frozen or cut off; its own patience is a little longer, so that the
# driver's verdict comes first (deploy/agent/main.py).
SILENCE_SECONDS = 10.0


class Heartbeat:
    """Pings every keeper, and notices a host that says nothing. `pulse`: each also says how its ranks are."""

    def __init__(self, state: State, cluster: Cluster, *, pulse: bool) -> None:
        self.silent: set[str] = set()
        self._state, self._cluster, self._pulse = state, cluster, pulse

    def beat(self) -> None:
        """One round; the next one follows by itself."""
        for name, channel in self._cluster.channels.items():
            # It was last heard up to a beat before it was asked again.
            if channel.silent_for() > SILENCE_SECONDS - HEARTBEAT_SECONDS and name not in self.silent:
                self.silent.add(name)
                reason = f"silent for {SILENCE_SECONDS:.0f} s: frozen, or cut off from the network"
                self._state.fail(Failure("host", reason, 3, host=name, at=time.time()))
            channel.post("ping", pulse=self._pulse)
        self._state.deadlines.after(HEARTBEAT_SECONDS, self.beat)
