"""What is known of each host of hosts.txt: from this run, or from an earlier one if --limit leaves it out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Host = Mapping[str, Any]


def known(
    names: Iterable[str], hostvars: Mapping[str, Host], earlier: Mapping[str, Host], stack: str
) -> dict[str, dict[str, Any]]:
    """Return what hosts say of themselves, which other filters judge.

    `hosts`: of those that answered, or that an earlier run recorded. `given`: their addresses, or names, in
    the hosts file. `resolved`: the addresses of all names, by the host that resolved them. `accounts`: the
    account that jobs run as on each host; none with the stack `node`, which has its own.
    """
    found: dict[str, dict[str, Any]] = {"hosts": {}, "given": {}, "resolved": {}, "accounts": {}}
    for name in names:
        host = hostvars[name]
        found["given"][name] = host.get("muster_addr", name)
        uid, uids = None, {}
        if _answered(host):
            seen = host["muster_seen"]
            found["hosts"][name] = _described(host, seen)
            found["resolved"][name] = seen.get("names", {})
            uid, uids = seen.get("account", {}).get("uid"), seen.get("uids", {})
        elif name in earlier:
            found["hosts"][name] = dict(earlier[name])
            uid = earlier[name].get("uid")
        else:
            continue
        if stack != "node" and (_answered(host) or "uid" in earlier[name]):
            found["accounts"][name] = {"user": host["muster_user"], "uid": uid, "uids": uids}
    return found


def _answered(host: Host) -> bool:
    probe = host.get("preflight_probe", {})
    return "stdout" in probe and not probe.get("rc", 0)


def _described(host: Host, seen: Host) -> dict[str, Any]:
    addresses = [host["muster_addr"]] if "muster_addr" in host else []
    return {
        "addresses": list(dict.fromkeys([*addresses, *seen["addresses"]])),
        "hostname": seen["hostname"],
        "user": host["muster_user"],
        "ssh_port": host.get("muster_port"),
        "clock_mode": str(seen.get("clock_mode", "")),
        "port": int(seen["operator"]["port"]),
        "host_keys": seen["host_keys"],
        "node_host_key": seen["node_host_key"],
    }


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_known": known}
