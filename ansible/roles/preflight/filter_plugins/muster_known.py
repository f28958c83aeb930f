"""What is known of each host, as far as it can be true: it becomes lines in files of all other hosts."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Host = Mapping[str, Any]
Hosts = Mapping[str, Host]

LABEL = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?")
DOMAIN = re.compile(r"[a-z0-9][a-z0-9_.-]*[a-z0-9]")
KINDS = re.compile(r"ssh-(ed25519|rsa)|ecdsa-sha2-nistp(256|384|521)")
KEY = re.compile(r"[A-Za-z0-9+/]{64,4000}={0,2}")
NODE_KEY = re.compile(r"ssh-ed25519 [A-Za-z0-9+/]{68}")
NOBODY_ELSE = ("", "0")  # no home yet, or root's


def known(
    names: Iterable[str], hostvars: Hosts, earlier: Hosts, stack: str, uid: str | int
) -> dict[str, dict[str, Any]]:
    """Return the known hosts: those that answered, and those that an earlier run recorded.

    `uid`: muster_uid, the UID of new accounts.
    """
    found = said(names, hostvars, earlier, stack)
    hosts = own_addresses(found["hosts"], found["given"], found["resolved"].values())
    return own_identity(account_uids(hosts, found["accounts"], uid))


def said(names: Iterable[str], hostvars: Hosts, earlier: Hosts, stack: str) -> dict[str, dict[str, Any]]:
    """Return what hosts say of themselves, which the other functions judge.

    `hosts`: of those that answered, or that an earlier run recorded. `given`: their addresses, or names, in
    the hosts file. `resolved`: the addresses of all names, by the host that resolved them. `accounts`: the
    account that jobs run as on each host; none with the stack `node`, which has its own.
    """
    found: dict[str, dict[str, Any]] = {"hosts": {}, "given": {}, "resolved": {}, "accounts": {}}
    for name in names:
        host = hostvars[name]
        found["given"][name] = host.get("muster_addr", name)
        account = {}
        if _answered(host):
            seen = host["muster_seen"]
            found["hosts"][name] = _described(host, seen)
            found["resolved"][name] = seen.get("names", {})
            account = {"uid": seen.get("account", {}).get("uid"), "uids": seen.get("uids", {})}
        elif name in earlier:
            found["hosts"][name] = dict(earlier[name])
            account = {"uid": earlier[name]["uid"], "uids": {}} if "uid" in earlier[name] else {}
        if account and stack != "node":
            found["accounts"][name] = {"user": host["muster_user"], **account}
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


def own_addresses(
    known: Hosts, given: Mapping[str, str], resolved: Iterable[Mapping[str, list[str]]]
) -> dict[str, dict[str, Any]]:
    """Return the known hosts, each with the addresses that are its own, and with those that are `disputed`.

    `given` has the addr= or the name of each host in the hosts file, which is the operator's word. `resolved`
    has the addresses of the hosts' names, as each host looks them up. An address that two hosts report is
    neither's: such as that of a container engine's bridge, but also that of a host which another one claims.
    Where it is known that a host is reached at it, it is disputed, with the name of the other host.
    """
    claims: dict[str, list[str]] = {}
    for name, host in known.items():
        for address in {*host["addresses"], given[name]}:
            claims.setdefault(address, []).append(name)
    reached = {address for names in resolved for addresses in names.values() for address in addresses}
    reached |= set(given.values())
    judged = {}
    for name, host in known.items():
        own, disputed = [], {}
        for address in host["addresses"]:
            other = next((other for other in claims[address] if other != name), "")
            if address == given[name] or (not other and is_of_a_host(address)):
                own.append(address)
            elif other and address in reached and is_of_a_host(address):
                disputed[address] = other
        judged[name] = dict(host) | {"addresses": own, "disputed": disputed}
    return judged


def is_of_a_host(text: str) -> bool:
    """Whether a text is an address that one host alone can have, as `ip` prints it."""
    from ipaddress import ip_address

    try:
        address = ip_address(text)
    except ValueError:
        return False
    if "%" in text or text != str(address) or getattr(address, "ipv4_mapped", None):
        return False
    if address.version == 4 and (address.is_reserved or int(address) < 1 << 24):  # 240.0.0.0/4, 0.0.0.0/8
        return False
    return not (address.is_unspecified or address.is_loopback or address.is_multicast)


def own_identity(known: Hosts) -> dict[str, dict[str, Any]]:
    """Return the known hosts, each without a name or key that cannot be its own.

    A host name with a domain has to begin with the host's name in the hosts file. Keys are of the kinds that
    known_hosts may have, without marker, pattern or second line.
    """
    checked = {}
    for name, host in known.items():
        hostname, node_key = str(host["hostname"]), str(host["node_host_key"])
        checked[name] = dict(host) | {
            "hostname": hostname if _is_own(hostname.lower(), name.lower()) else name,
            "host_keys": {
                kind: key
                for kind, key in host["host_keys"].items()
                if KINDS.fullmatch(str(kind)) and KEY.fullmatch(str(key))
            },
            "node_host_key": node_key if NODE_KEY.fullmatch(node_key) else "",
        }
    return checked


def _is_own(hostname: str, name: str) -> bool:
    is_of_name = hostname.partition(".")[0] == name.partition(".")[0]
    return bool(LABEL.fullmatch(hostname) or (is_of_name and DOMAIN.fullmatch(hostname)))


def account_uids(known: Hosts, accounts: Hosts, wanted: str | int) -> dict[str, dict[str, Any]]:
    """Return the known hosts, each with the `uid` that its account has or gets, and with a `uid_problem`.

    `accounts`: of each host the name (`user`) and `uid` of the account, None if there is none, and the
    `uids` that preflight asked for, {} for a host that this run omits. `wanted`: muster_uid, the UID of
    new accounts.
    """
    given = {name: dict(host) | {"uid": None, "uid_problem": ""} for name, host in known.items()}
    used: set[int] = set()
    for user in sorted({str(account["user"]) for account in accounts.values()}):
        ours = {name: account for name, account in accounts.items() if account["user"] == user}
        has = {name: int(account["uid"]) for name, account in ours.items() if account["uid"] is not None}
        new = {name: account["uids"] for name, account in ours.items() if name not in has}
        uid = int(wanted) if wanted else _uid(set(has.values()), list(filter(None, new.values())), used)
        used |= {*has.values()} | ({uid} if uid else set())
        for name, account in ours.items():
            given[name]["uid"] = has.get(name, uid)
            problem = _of_new(user, uid, account["uids"]) if name in new else _of_old(user, account)
            given[name]["uid_problem"] = problem
    return given


def _uid(has: set[int], new: list[Mapping[str, Any]], used: set[int]) -> int | None:
    """Return the UID of new accounts: one that the account, or its home, has already, or a free one."""
    has |= {int(uids["home_owner"]) for uids in new if uids["home_owner"] not in NOBODY_ELSE}
    taken = {int(uid) for uids in new for uid in uids["taken"]} | used
    free = set.intersection(*(set(uids["free"]) for uids in new)) if new else set()
    return min(has - taken, default=None) or min(has or free - used, default=None)


def _of_old(user: str, account: Mapping[str, Any]) -> str:
    """Return why an account that exists cannot use its home; "" if it can."""
    home, owner = account["uids"].get("home"), account["uids"].get("home_owner", "")
    if owner in (*NOBODY_ELSE, str(account["uid"])):
        return ""
    return (
        f"{home} belongs to UID {owner}, and the account {user} has UID {account['uid']} here: "
        "hosts that share a home need one UID for the account; on this host: "
        f"usermod --uid {owner} {user}"
    )


def _of_new(user: str, uid: int | None, uids: Mapping[str, Any]) -> str:
    """Return why a new account could not have this UID, or not use its home; "" if it can."""
    if not uids:
        return ""
    if uid is None:
        return f"no UID for the account {user} is free on all hosts; name one: -e muster_uid=UID"
    if holder := uids["taken"].get(str(uid)):
        return (
            f"the account {user} would get UID {uid} as on the other hosts, which is that of "
            f"{holder} here; give {holder} another one, or, if no home is shared, name one that is free on "
            "all hosts: -e muster_uid=UID"
        )
    if (owner := uids["home_owner"]) in (*NOBODY_ELSE, str(uid)):
        return ""
    return (
        f"{uids['home']} belongs to UID {owner}, and the account {user} would get UID "
        f"{uid}; move it away, or choose its owner's UID: -e muster_uid={owner}"
    )


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_known": known}
