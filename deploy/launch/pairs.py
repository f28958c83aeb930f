"""Which hosts do not reach each other where their ranks talk: asked when a job stands still."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from ..connect.channel import Channel
from ..connect.cluster import Cluster
from ..connect.fanout import ask_every
from ..connect.requests.hosts import OPEN_PORT, REACH, Reached
from ..hosts.rendezvous import Rendezvous, peers
from ..plan.launch_plan import LaunchPlan

ANSWER_SECONDS = 10.0
MOST_PEERS = 16


def unreached_pairs(plan: LaunchPlan, cluster: Cluster, channels: Mapping[str, Channel]) -> list[str]:
    """A sentence for each host that does not reach another one at the addresses of its ranks.

    Hosts without an answer say nothing about the others.
    """
    addresses = _rank_addresses(plan, cluster)
    nonces = {name: secrets.token_hex(8) for name in channels}
    ports = {
        name: answer.port
        for name, answer in ask_every(
            channels, OPEN_PORT, ANSWER_SECONDS, lambda name: {"nonce": nonces[name], "probe": True}
        ).results.items()
        if answer.port and addresses[name]
    }
    names = [*ports]

    def words(name: str) -> dict[str, Any]:
        tried = (names[number] for number in peers(names.index(name), len(names), MOST_PEERS))
        return {"targets": [target(other) for other in tried if other != name]}

    def target(name: str) -> dict[str, Any]:
        return {"host": name, "addresses": addresses[name], "port": ports[name], "nonce": nonces[name]}

    asked = ask_every({name: channels[name] for name in names}, REACH, ANSWER_SECONDS, words)
    return [
        f"{source} does not reach {host} at {_reason(reached)}"
        for source, answer in asked.results.items()
        for host, reached in answer.reached.items()
        if host in names and reached.refused and not reached.interfaces
    ]


def _rank_addresses(plan: LaunchPlan, cluster: Cluster) -> dict[str, list[str]]:
    """The addresses of each host where its ranks listen; all of them where the interface is not known.

    The environment of the ranks has the interface, which the user may have chosen.
    """
    head = plan.hosts[0]
    interfaces = {host.host.name: host.env.get("GLOO_SOCKET_IFNAME") for host in plan.hosts}
    rendezvous = Rendezvous(head.env["MASTER_ADDR"], int(head.env["MASTER_PORT"]), interfaces)
    addresses = {host.host.name: cluster.addresses(host.host) for host in plan.hosts}
    listening = rendezvous.rank_addresses(head.host.name, addresses, cluster.facts)
    return {name: list(listening.get(name, own)) for name, own in addresses.items()}


def _reason(reached: Reached) -> str:
    return ", ".join(f"{address} ({why})" for address, why in reached.refused.items())
