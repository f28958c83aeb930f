"""mpirun of Open MPI 4.1 (ORTE) and 5.0 (PRRTE), with a table of the options that differ.

Only options that both versions honoured in tests are shared. mpirun does not refuse options of the other
generation, it ignores them: then every rank starts on the head, and mpirun reports success.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import HostError
from ..hosts.host_facts import Facts
from ..hosts.rendezvous import Rendezvous
from .launch_plan import Launcher, Layout

# 4.1 removes the domain from host names by default; 5.0 keeps it, but reports it only with the option. Above
# 64 hosts, daemons start each other, but in Muster only the head may start daemons. In 4.1 this needs a tree
# that is wider than any cluster: with the option for no tree, its daemons discard their standard error.
# Agents pass SIGUSR1 and SIGUSR2 on to the ranks. Daemons that forward signals too end the ranks instead, if
# a scheduler signals all processes; they inherit that they are ignored. 5.0 needs an option for mpirun and
# one for its daemons.
_GENERATIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "4.1": {
        "remote_shell": ("--mca", "plm", "rsh", "--mca", "plm_rsh_agent"),
        "full_names": ("--mca", "orte_keep_fqdn_hostnames", "1"),
        "from_the_head": ("--mca", "routed_radix", "4096"),
        "no_signals": ("--mca", "ess_base_forward_signals", "none"),
    },
    "5.0": {
        "remote_shell": ("--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent"),
        "full_names": ("--prtemca", "prte_keep_fqdn_hostnames", "1"),
        "from_the_head": ("--prtemca", "plm_ssh_no_tree_spawn", "1"),
        "no_signals": ("--prtemca", "ess_base_forward_signals", "none", "--forward-signals", "none"),
    },
}


# The interface of the daemons. It must be a single name: 5.0.11 crashes with a list (SIGSEGV in 23 of 60
# starts), and ignores a CIDR if the interface has an IPv6 address too. The name differs from host to host,
# and mpirun would send the name of its own host: so muster-rsh makes each host insert its own
# MUSTER_INTERFACE (core/agent/rsh.py).
_CONTROL_INTERFACE = {"4.1": "OMPI_MCA_oob_tcp_if_include", "5.0": "PRTE_MCA_prte_if_include"}
_DATA_INTERFACE = "OMPI_MCA_btl_tcp_if_include"


def interfaces(version: str, interface: str) -> dict[str, str]:
    """The environment that keeps daemons and ranks of one host on one interface; 5.0 refuses loopback."""
    data = {_DATA_INTERFACE: interface}
    if interface == "lo":
        return data
    return {**data, _CONTROL_INTERFACE[_generation(version)]: interface, "MUSTER_INTERFACE": interface}


def _generation(version: str) -> str:
    """`5.0` for `5.0.7`."""
    return version.rpartition(".")[0]


def hostfile(slots: Mapping[str, int]) -> str:
    """The hostfile for mpirun. It always states the slots, because the versions have different defaults."""
    return "".join(f"{name} slots={count}\n" for name, count in slots.items())


# The command that mpirun runs through its remote shell (setup_launch in 4.1's plm_rsh_module.c and 5.0's
# plm_ssh_module.c): it sets these variables in the language of the login shell, then starts the daemon. No
# shell expands any of the characters that _PLAIN allows, so the command starts only the daemon.
_PLAIN = r"[\w./:=+,@%^~-]+"
_NAME = "(?:PATH|(?:DY)?LD_LIBRARY_PATH|(?:PRTE|PMIX|OPAL)_PREFIX)"
_VALUE = rf"{_PLAIN}(?:\${_NAME}|\${{{_NAME}:-}})?"
_SETTING = "|".join((
    rf"{_NAME}={_VALUE}",
    rf"export +{_NAME}",
    r"(?:\( +)?test ! -r \./\.profile \|\| \. \./\.profile",
    rf"(?:if \( \$\?\w+ == [01] \) +)?(?:setenv +{_NAME} +{_VALUE}|set \w+_have_d?llp)",
    rf"set path = \( {_PLAIN} +\$path \)",
))  # fmt: skip
_WORD = rf'{_PLAIN}|"(?:[^"$`\\\n]*|\$MUSTER_INTERFACE)"'
_DAEMON = rf"(?:/(?:{_PLAIN}/)?)?(?:prted|orted)(?: +(?:{_WORD}))*"
_START = re.compile(rf" *(?:(?:{_SETTING}) *; *)*{_DAEMON}(?: +\))? *")


def starts_daemon(command: str) -> bool:
    """Whether a shell command, in the language of sh or csh, starts Open MPI's daemon and nothing else."""
    wrapped = re.fullmatch(r"exec /[\w./-]*/t?csh -f -c '([^']*)'", command)  # by core/agent/rsh.py
    return bool(_START.fullmatch(wrapped[1] if wrapped else command))


def without_ipv4(rendezvous: Rendezvous, facts: Mapping[str, Facts]) -> dict[str, HostError]:
    """The hosts of a job of several hosts that meet over IPv6 alone.

    mpirun of Debian's 5.0.7 ends with SIGSEGV there, whatever its options; the wheels of 5.0.11 and 4.1.8
    fail too. One IPv4 address on the interface of the rendezvous is enough.
    """
    if len(facts) < 2 or ":" not in rendezvous.address:
        return {}
    errors = {}
    for name, own in facts.items():
        interface = rendezvous.interfaces.get(name)
        places = {own.interfaces.get(address) for address in own.addresses if ":" not in address}
        if not places or (interface and interface not in places):
            where = f"{interface} has" if interface else "it has"
            text = f"Open MPI {own.mpi} cannot start over IPv6 alone, and {where} no IPv4 address"
            errors[name] = HostError("mpi.no-ipv4", text, "add --launcher torchrun, or an IPv4 address")
    return errors


OPEN_MPI_FAMILIES = ("4.1", "5.0")
"""The versions that this module can start."""


class Mpirun(Launcher):
    """mpirun on the head starts the ranks of all hosts."""

    uses_mpi = True

    def title(self, head: Facts) -> str:
        return f"mpirun (Open MPI {head.mpi})"

    def unfit(self, facts: Facts) -> HostError | None:
        """The error of a host without an Open MPI of a known generation."""
        if facts.mpirun is None:
            text = f"no mpirun beside {facts.executable} nor on PATH"
            return HostError("mpi.missing", text, "install Open MPI 4.1 or 5.0 there")
        if facts.mpi_error:
            text = f"{facts.mpirun} --version fails: {facts.mpi_error}"
            return HostError("mpi.failing", text, "run it there")
        if facts.mpi is None:
            text = f"{facts.mpirun} is not Open MPI's"
            return HostError("mpi.foreign", text, "put Open MPI 4.1 or 5.0 first on PATH")
        if not facts.mpi.startswith(tuple(f"{family}." for family in OPEN_MPI_FAMILIES)):
            return HostError(
                "mpi.unsupported", f"Open MPI {facts.mpi} is not supported", "install 4.1 or 5.0"
            )
        return None

    def differences(self, facts: Mapping[str, Facts]) -> list[tuple[str, str]]:
        """Daemons of different versions are incompatible: every host must have the same version."""
        versions = {host: host_facts.mpi for host, host_facts in facts.items()}
        if len({*versions.values()}) < 2:
            return []
        return [
            (host, f"Open MPI {version}; install one version on all hosts")
            for host, version in versions.items()
        ]

    def command(self, host: str, layout: Layout) -> tuple[str, ...] | None:
        """The argv of mpirun for the head; None for other hosts.

        `--bind-to none`: by default both versions bind each of two ranks to a single core, with torch's
        threads. muster-rsh and muster-rank are looked up on PATH, which differs from host to host.
        """
        if host != layout.head:
            return None
        facts = layout.facts[host]
        options = _GENERATIONS[_generation(facts.mpi or "")]
        return (
            "mpirun",
            *(("--allow-run-as-root",) if facts.uid == 0 else ()),
            *("--np", str(sum(layout.ranks.values()))),
            *("--hostfile", layout.hostfile),
            *("--map-by", "slot"),
            *("--bind-to", "none"),
            *options["full_names"],
            *options["from_the_head"],
            *options["no_signals"],
            *options["remote_shell"],
            "muster-rsh",
            *layout.rank_command(mpi=self.uses_mpi),
        )

    def environment(self, host: str, layout: Layout) -> dict[str, str]:
        """The interface of daemons and ranks. On a host without a free core, waiting ranks yield."""
        env: dict[str, str] = {}
        facts = layout.facts[host]
        interface = layout.rendezvous.interfaces.get(host)
        # On one host ranks share memory, but processes that they spawn are reached by TCP. Without an
        # interface 5.0 may choose several, and refuse a connection from an address that it does not expect.
        if interface and (len(layout.ranks) == 1 or layout.has_interfaces):
            env |= interfaces(facts.mpi or "", interface)
        if layout.ranks[host] >= facts.cores:
            # MPI waits in a busy loop, which on a full host takes the core of another rank.
            env["OMPI_MCA_mpi_yield_when_idle"] = "1"
        return env
