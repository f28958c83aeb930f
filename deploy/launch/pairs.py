"""Which hosts do not reach each other where their ranks talk: asked when a job stands still."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.fanout import ask_every
from ..connect.requests.hosts import PROBE_PORT, REACH_HOSTS, Reached
from ..plan.launch_plan import LaunchPlan

ANSWER_SECONDS = 10.0
MOST_PEERS = 16  # that a host tries: those after it in the order of the ranks, as in a ring
INTERFACE = "GLOO_SOCKET_IFNAME"


def unreached_pairs(plan: LaunchPlan, cluster: Cluster, channels: Mapping[str, Channel]) -> list[str]:
    """A sentence for each host that does not reach another one at the addresses of its ranks.

    Hosts without an answer say nothing about the others.
    """
    places = {name: _rank_addresses(plan, cluster, name) for name in channels}
    nonces = {name: secrets.token_hex(8) for name in channels}
    opened = ask_every(channels, PROBE_PORT, ANSWER_SECONDS, lambda name: {"nonce": nonces[name]}).results
    names = [name for name in opened if places[name]]

    def words(name: str) -> dict[str, Any]:
        return {"targets": [target(other) for other in _peers(names, name)]}

    def target(name: str) -> dict[str, Any]:
        return {
            "host": name,
            "addresses": places[name],
            "port": opened[name].port,
            "nonce": nonces[name],
        }

    asked = ask_every({name: channels[name] for name in names}, REACH_HOSTS, ANSWER_SECONDS, words)
    return [
        f"{source} does not reach {host} at {_reason(reached)}"
        for source, answer in asked.results.items()
        for host, reached in answer.reached.items()
        if host in names and reached.refused and not reached.interfaces
    ]


def _rank_addresses(plan: LaunchPlan, cluster: Cluster, name: str) -> list[str]:
    """The addresses of a host on the interface that its ranks use; if on none, all of them."""
    host = next(host for host in plan.hosts if host.host.name == name)
    known, facts = cluster.addresses(host.host), cluster.facts[name]
    chosen = [place for place in known if facts.interfaces.get(place) == host.env.get(INTERFACE)]
    return chosen or known


def _peers(names: Sequence[str], name: str) -> list[str]:
    start = names.index(name) + 1
    return [*names[start:], *names[: start - 1]][:MOST_PEERS]


def _reason(reached: Reached) -> str:
    return ", ".join(f"{address} ({why})" for address, why in reached.refused.items())
