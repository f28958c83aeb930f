"""Lets the cluster's own addresses through this host's firewall: `python3 - MODE [WANTED]`, WANTED as JSON.

MODE `look` says whether rules have to change, `apply` adds the rules, `again` adds the recorded rules (at
each start of the host), `remove` removes the recorded rules. It adds only rules that accept, and changes none
of the owner's rules.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

RECORD = Path("/var/lib/muster/firewall.json")
CHAIN = "muster"
ONLY_LOOK = {"counter", "log", "limit"}
Wanted = dict[str, Any]
"""kind; `rules`: [{addresses, protocol, ports}], ports as `22` or `20000-31999`; and `zones` of firewalld."""


class Chain(NamedTuple):
    """An nftables chain that refuses packets; handle and mark of its jump to our chain, if it has one."""

    family: str
    table: str
    name: str
    handle: int | None
    mark: str


def run(*argv: str, stdin: str = "") -> str:
    """Return what a command prints; if it fails, its own message ends this program."""
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(argv[:6])}: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def is_v6(address: str) -> bool:
    """Whether this is an IPv6 address."""
    return ":" in address


def digest(wanted: Wanted) -> str:
    """Return a digest that differs between sets of rules."""
    return hashlib.sha256(json.dumps(wanted["rules"], sort_keys=True).encode()).hexdigest()[:16]


def plain(wanted: Wanted) -> Wanted:
    """Return `wanted` without addresses that another network contains, and without repeated ports."""
    rules = [
        {**rule, "addresses": networks(rule["addresses"]), "ports": ranges(rule["ports"])}
        for rule in wanted["rules"]
    ]
    return {**wanted, "rules": rules}


def networks(addresses: list[str]) -> list[str]:
    """Return each address once, sorted; a network replaces the addresses that it contains."""
    given = [ipaddress.ip_network(address, strict=False) for address in addresses]
    kinds = ([net for net in given if net.version == version] for version in (4, 6))
    merged: list[Any] = [net for kind in kinds for net in ipaddress.collapse_addresses(kind)]  # type: ignore[type-var]
    return [str(net[0] if net.prefixlen == net.max_prefixlen else net) for net in merged]


def ranges(ports: list[str]) -> list[str]:
    """Merge ports into ranges that neither overlap nor adjoin: `22`, `20000-31999`."""
    merged: list[list[int]] = []
    for first, last in sorted((int(port.split("-")[0]), int(port.split("-")[-1])) for port in ports):
        if merged and first <= merged[-1][1] + 1:
            merged[-1][1] = max(merged[-1][1], last)
        else:
            merged.append([first, last])
    return [str(first) if first == last else f"{first}-{last}" for first, last in merged]


# -- nftables --


def nft_chains(ruleset: Wanted) -> list[Chain]:
    """Return the chains of `nft -j list ruleset` that refuse incoming packets or have a jump of ours."""
    entries = ruleset["nftables"]
    rules = [entry["rule"] for entry in entries if "rule" in entry]
    chains = [entry["chain"] for entry in entries if "chain" in entry]
    refusing = []
    for chain in (chain for chain in chains if (chain.get("hook"), chain.get("type")) == ("input", "filter")):
        place = (chain["family"], chain["table"], chain["name"])
        chain_rules = [rule for rule in rules if (rule["family"], rule["table"], rule["chain"]) == place]
        jumps = [rule for rule in chain_rules if {"jump": {"target": CHAIN}} in rule["expr"]]
        if chain["family"] not in {"ip", "ip6", "inet"}:
            continue
        if jumps or chain.get("policy") == "drop" or any(map(is_end, chain_rules)):
            handle, mark = (jumps[0]["handle"], jumps[0].get("comment", "")) if jumps else (None, "")
            refusing.append(Chain(*place, handle, mark))
    return refusing


def is_end(rule: Wanted) -> bool:
    """Whether a rule drops or rejects every packet."""
    kinds = {next(iter(statement)) for statement in rule["expr"]}
    return bool(kinds & {"drop", "reject"}) and not kinds - ONLY_LOOK - {"drop", "reject"}


def nft_script(wanted: Wanted, chains: list[Chain]) -> str:
    """Return the script for `nft -f`: a chain of ours in each table, and a jump to it as the first rule."""
    lines = []
    for family, table in dict.fromkeys((chain.family, chain.table) for chain in chains):
        place = f"{family} {table} {CHAIN}"
        lines += [f"add chain {place}", f"flush chain {place}"]
        lines += [f"add rule {place} {rule} accept" for rule in nft_rules(wanted, family)]
    for chain in chains:
        place = f"{chain.family} {chain.table} {chain.name}"
        if chain.handle is not None:
            lines.append(f"delete rule {place} handle {chain.handle}")
        lines.append(f'insert rule {place} jump {CHAIN} comment "{digest(wanted)}"')
    return "".join(f"{line}\n" for line in lines)


def nft_rules(wanted: Wanted, family: str) -> Iterator[str]:
    """Yield the conditions of the rules that accept, for the addresses that a table of this family sees."""
    for rule in wanted["rules"]:
        for kind, six in (("ip", False), ("ip6", True)):
            addresses = [address for address in rule["addresses"] if is_v6(address) == six]
            if addresses and family in {kind, "inet"}:
                where, ports = ", ".join(addresses), ", ".join(rule["ports"])
                yield f"{kind} saddr {{ {where} }} {rule['protocol']} dport {{ {ports} }}"


def nft_removal(chains: list[Chain]) -> str:
    """Return the script for `nft -f` that removes our chains and the jumps to them."""
    jumps = [chain for chain in chains if chain.handle is not None]
    lines = [
        f"delete rule {chain.family} {chain.table} {chain.name} handle {chain.handle}" for chain in jumps
    ]
    for family, table in dict.fromkeys((chain.family, chain.table) for chain in jumps):
        lines += [f"flush chain {family} {table} {CHAIN}", f"delete chain {family} {table} {CHAIN}"]
    return "".join(f"{line}\n" for line in lines)


# -- ufw, firewalld, iptables: one command for each rule --


def commands(wanted: Wanted, *, removal: bool = False) -> list[tuple[str, ...]]:
    """Return the commands that add the rules to a firewall of this kind, or remove them."""
    return {"ufw": ufw, "firewalld": firewalld, "iptables": iptables}[wanted["kind"]](wanted, removal)


def ufw(wanted: Wanted, removal: bool) -> list[tuple[str, ...]]:
    """Return the commands for ufw, which itself keeps the rules through restarts."""
    begin = ("ufw", "--force", "delete", "allow") if removal else ("ufw", "prepend", "allow")
    return [
        (*begin, "proto", rule["protocol"], "from", address, "to", "any", "port", ports, "comment", "Muster")
        for rule in wanted["rules"]
        for ports in [",".join(rule["ports"]).replace("-", ":")]
        for address in rule["addresses"]
    ]


def firewalld(wanted: Wanted, removal: bool) -> list[tuple[str, ...]]:
    """Set each rule twice, at runtime and permanently: a reload would drop the owner's runtime-only rules."""
    option = "--remove-rich-rule" if removal else "--add-rich-rule"
    rules = [
        f'{option}=rule family="{"ipv6" if is_v6(address) else "ipv4"}" source address="{address}" '
        f'port port="{port}" protocol="{rule["protocol"]}" accept'
        for rule in wanted["rules"]
        for address in rule["addresses"]
        for port in rule["ports"]
    ]
    return [
        ("firewall-cmd", "--quiet", *when, f"--zone={zone}", *rules)
        for zone in wanted["zones"]
        for when in ((), ("--permanent",))
    ]


def iptables(wanted: Wanted, removal: bool) -> list[tuple[str, ...]]:
    """Return the commands for iptables: a chain of ours, and a jump to it as the first rule."""
    argvs: list[tuple[str, ...]] = []
    has_six = any(is_v6(address) for rule in wanted["rules"] for address in rule["addresses"])
    chain, multiport = CHAIN.upper(), ("-m", "multiport", "--dports")
    jump = ("INPUT", "-j", chain)
    for program, six in (("iptables", False), *([("ip6tables", True)] if has_six else [])):
        if removal:
            argvs += [(program, "-D", *jump), (program, "-F", chain), (program, "-X", chain)]
            continue
        argvs += [(program, "-N", chain)]
        argvs += [
            (program, "-A", chain, "-s", address, "-p", rule["protocol"], *multiport, ports, "-j", "ACCEPT")
            for rule in wanted["rules"]
            for ports in [",".join(rule["ports"]).replace("-", ":")]
            for address in rule["addresses"]
            if is_v6(address) == six
        ]
        argvs += [(program, "-I", *jump)]
    return argvs


# -- the modes --


def recorded() -> Wanted | None:
    """Return what an earlier run applied; None without a record."""
    try:
        return dict(json.loads(RECORD.read_text()))
    except (OSError, ValueError):
        return None


def is_there(wanted: Wanted) -> bool:
    """Whether the firewall has these rules now."""
    before = recorded()
    if before is None or digest(before) != digest(wanted) or before["kind"] != wanted["kind"]:
        return False
    if wanted["kind"] == "nftables":
        return all(chain.mark == digest(wanted) for chain in nft_chains(ruleset()))
    if wanted["kind"] == "iptables":
        return f"-j {CHAIN.upper()}" in run("iptables", "-S", "INPUT")
    if wanted["kind"] == "ufw":
        return "Muster" in run("ufw", "status")
    return True  # firewalld keeps permanent rules itself


def ruleset() -> Wanted:
    """Return the whole ruleset of nftables."""
    return dict(json.loads(run("nft", "-j", "list", "ruleset")))


def bring(wanted: Wanted) -> None:
    """Add the rules that let the cluster in, and record them."""
    before = recorded()
    if before and (before["kind"], wanted["kind"]) != ("nftables", "nftables"):
        remove(before)  # nftables replaces its rules in one step
    RECORD.parent.mkdir(mode=0o755, exist_ok=True)
    RECORD.write_text(json.dumps(wanted, indent=4) + "\n")  # first, so that an interrupted run can be undone
    if wanted["kind"] == "nftables":
        run("nft", "-f", "-", stdin=nft_script(wanted, nft_chains(ruleset())))
    else:
        for argv in commands(wanted):
            run(*argv)


def remove(before: Wanted) -> None:
    """Remove the recorded rules; skip those that are gone already."""
    if before["kind"] == "nftables":
        run("nft", "-f", "-", stdin=nft_removal(nft_chains(ruleset())))
    else:
        for argv in commands(before, removal=True):
            subprocess.run(
                argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120, check=False
            )
    RECORD.unlink(missing_ok=True)


def main() -> None:
    """Run the mode; print `changed` if rules changed or would change."""
    mode = sys.argv[1]
    before = recorded()
    if mode == "remove":
        if before:
            remove(before)
            sys.stdout.write("changed\n")
        return
    wanted = before if mode == "again" else plain(json.loads(sys.argv[2]))
    if wanted and not is_there(wanted):
        if mode != "look":
            bring(wanted)
        sys.stdout.write("changed\n")


if __name__ == "__main__":
    main()
