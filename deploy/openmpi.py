"""mpirun of Open MPI 4.1 (ORTE) and 5.0 (PRRTE): one table of what differs between them.

Only options that both versions were seen to honour are common. Options of the other generation are not
refused but ignored: with a wrong one, every rank starts on the head and mpirun reports success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# 4.1 cuts the domain off host names unless told not to; 5.0 keeps it, but says so only when asked.
_GENERATIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "4.1": {
        "remote_shell": ("--mca", "plm", "rsh", "--mca", "plm_rsh_agent"),
        "full_names": ("--mca", "orte_keep_fqdn_hostnames", "1"),
    },
    "5.0": {
        "remote_shell": ("--prtemca", "plm", "ssh", "--prtemca", "plm_ssh_agent"),
        "full_names": ("--prtemca", "prte_keep_fqdn_hostnames", "1"),
    },
}


# Where daemons talk to each other. One name: 5.0.11 dies of a list (SIGSEGV in 23 of 60 starts), and ignores
# a CIDR when the interface has an IPv6 address too. Each host its own: mpirun would send its own name along,
# so muster-rsh has the other host put in what MUSTER_INTERFACE is there (deploy/node/rsh.py).
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


def hostfile(ranks: Mapping[str, int]) -> str:
    """The hostfile for mpirun: slots always stated, because without them the versions disagree."""
    return "".join(f"{name} slots={count}\n" for name, count in ranks.items())


def command(
    *,
    version: str,
    ranks: int,
    hostfile: str,
    remote_shell: str,
    as_root: bool,
    rank: Sequence[str],
) -> tuple[str, ...]:
    """The argv of mpirun for a version such as `5.0.7`, to be run on the head.

    `--bind-to none`: both bind two ranks to one core each by default, and torch's threads with them.
    `remote_shell` and `rank` are found on PATH, which differs from host to host.
    """
    options = _GENERATIONS[_generation(version)]
    return (
        "mpirun",
        *(("--allow-run-as-root",) if as_root else ()),
        *("--np", str(ranks)),
        *("--hostfile", hostfile),
        *("--map-by", "slot"),
        *("--bind-to", "none"),
        *options["full_names"],
        *options["remote_shell"],
        remote_shell,
        *rank,
    )
