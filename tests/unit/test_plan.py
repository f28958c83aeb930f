"""The plan: what a launch will do, compared word for word with the files in tests/golden."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster.deploy.core.agent.rsh import INTERFACE, OWN_INTERFACE, for_sh
from muster.deploy.core.connect.cluster import Cluster
from muster.deploy.core.connect.requests import OPEN_PORT, HostsReached, OpenPort, Reached, Request
from muster.deploy.core.errors import MusterError, UnfitError, UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.host_facts import Facts, RunningJob
from muster.deploy.core.hosts.rendezvous import on_network
from muster.deploy.core.plan import openmpi
from muster.deploy.core.plan.launch_plan import PlacedRank
from muster.deploy.core.plan.launcher import place_ranks
from muster.deploy.core.plan.spec import LaunchSpec, Program
from muster.deploy.features.check.command import ask_hosts
from muster.deploy.features.check.messages import HEALTH
from muster.deploy.features.check.network import rank_addresses
from tests.unit.plans import NODE, OWN_HOME, make_plan
from tests.unit.test_check import HEALTHY

GOLDEN = Path(__file__).parents[1] / "golden"
NASTY = Program(script="my script.py", args=("a b", "$HOME", "'; rm -rf ~", 'say "hi"', "two\nlines", ""))
PLANS = {
    "mpirun-5.0-2x2": lambda: make_plan("node[1-2] slots=2", facts={"node2": OWN_HOME}),
    "mpirun-4.1-2x2": lambda: make_plan(
        "node[1-2] slots=2", facts={name: {"mpi": "4.1.8"} for name in ("node1", "node2")}
    ),
    "mpirun-uneven-root": lambda: make_plan(
        "node1 slots=3\nnode2 slots=1", facts={name: {"uid": 0} for name in ("node1", "node2")}, np=4
    ),
    "torchrun-2x2": lambda: make_plan("node[1-2] slots=2", launcher="torchrun", facts={"node2": OWN_HOME}),
    "local-2": lambda: make_plan("localhost slots=2", columns=100),
    "nasty-words": lambda: make_plan(
        "node1 slots=2", program=NASTY, env=(("GREETING", "it's $HOME;\n"), ("HF_TOKEN", "hf_secret"))
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_plan_is_the_golden_file(name: str) -> None:
    path = GOLDEN / f"{name}.txt"
    text = str(PLANS[name]())
    if os.environ.get("ACCEPT_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text(), f"if the new plan is right: ACCEPT_GOLDEN=1 pytest {__file__}"


def test_planning_twice_gives_the_same_plan() -> None:
    assert PLANS["mpirun-5.0-2x2"]() == PLANS["mpirun-5.0-2x2"]()


def test_a_secret_is_in_the_environment_and_in_no_text() -> None:
    made = PLANS["nasty-words"]()
    assert made.hosts[0].env["HF_TOKEN"] == "hf_secret"  # noqa: S105  # not one
    assert "hf_secret" not in str(made)


def test_ranks_fill_the_slots_of_each_host_in_order() -> None:
    hosts = hostfile.parse("a slots=2\nb slots=1\nc slots=4")
    placement = place_ranks(hosts, LaunchSpec(job="j", program=Program(), np=4))
    assert placement.hosts == hosts
    assert placement.ranks == {
        "a": (PlacedRank(0, 0, "a"), PlacedRank(1, 1, "a")),
        "b": (PlacedRank(2, 0, "b"),),
        "c": (PlacedRank(3, 0, "c"),),
    }
    assert placement.counts == {"a": 2, "b": 1, "c": 1}


@pytest.mark.parametrize(
    ("np", "spares", "ready"), [(4, 2, [3, 4]), (4, 1, [3]), (3, 9, [3, 4, 5]), (10, 1, [])]
)
def test_hosts_beyond_those_with_ranks_are_spares(np: int, spares: int, ready: list[int]) -> None:
    hosts = hostfile.parse("node[1-5] slots=2")
    placement = place_ranks(hosts, LaunchSpec(job="j", program=Program(), np=np, spares=spares))
    assert [host.name for host in placement.spares] == [f"node{number}" for number in ready]
    assert placement.connected == placement.hosts + placement.spares


def test_the_plan_names_its_spare_hosts_and_gives_them_nothing_to_run() -> None:
    plan = make_plan("node[1-3] slots=2", np=4, spares=1)
    assert [host.host.name for host in plan.hosts] == ["node1", "node2"]
    assert "spare hosts: node3" in str(plan).splitlines()


def test_a_spare_host_that_does_not_fit_is_refused_before_it_is_needed() -> None:
    with pytest.raises(UnfitError, match="node3"):
        make_plan("node[1-3] slots=2", np=4, spares=1, facts={"node3": {"mpirun": None, "mpi": None}})


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_the_work_of_planning_grows_with_the_hosts_and_not_faster(launcher: str) -> None:
    def calls(hosts: int) -> int:
        counted = 0

        def count(*ignored: object) -> None:
            nonlocal counted
            counted += 1

        sys.setprofile(count)  # a number of calls does not depend on the machine
        try:
            make_plan(f"node[001-{hosts}] slots=8", launcher=launcher)
        finally:
            sys.setprofile(None)
        return counted

    assert calls(400) < 5 * calls(100)


def test_a_host_that_gets_no_rank_is_not_in_the_plan() -> None:
    assert [host.host.name for host in make_plan("a slots=2\nb slots=2", np=2).hosts] == ["a"]


def test_torchrun_starts_on_each_host_as_many_ranks_as_it_has_slots() -> None:
    made = make_plan("a slots=3\nb\nc slots=2", launcher="torchrun", np=5)
    commands = [host.command or () for host in made.hosts]
    assert [words[words.index("--nproc-per-node") + 1] for words in commands] == ["3", "1", "1"]
    assert [place.host for place in made.ranks] == ["a", "a", "a", "b", "c"]


@pytest.mark.parametrize(("text", "value"), [("a slots=2\nb slots=3", "0"), ("a slots=2\nb slots=2", None)])
def test_torchrun_takes_its_short_cut_only_on_equal_hosts(text: str, value: str | None) -> None:
    made = make_plan(text, launcher="torchrun")
    assert [host.env.get("TORCH_ELASTIC_WORKER_IDENTICAL") for host in made.hosts] == [value, value]


def test_slots_without_a_rank_stay_free_for_what_a_program_spawns() -> None:
    made = make_plan("a slots=2\nb slots=8\nc", np=3)
    assert [file.text for file in made.hosts[0].files if file.path.endswith("hostfile")] == [
        "a slots=2\nb slots=8\n"
    ]


def test_a_plan_says_where_the_number_of_slots_is_the_default() -> None:
    text = str(make_plan("a slots=1\nb"))
    assert "\na: rank 0\n" in text
    assert "\nb: rank 1 (one slot, because it has no slots= in the hosts file)\n" in text


def test_ranks_meet_without_libuv_where_torch_has_none() -> None:
    made = make_plan("a\nb", facts={"b": {"torch": "2.6.0+debian"}})
    assert [host.env.get("USE_LIBUV") for host in made.hosts] == [None, "0"]


def test_torchrun_opens_a_store_without_libuv_where_torch_has_none(tmp_path: Path) -> None:
    made = make_plan("a\nb", launcher="torchrun", facts={"b": {"torch": "2.6.0+debian"}})
    plain, adapted = (list(host.command or ()) for host in made.hosts)
    assert plain[1:3] == ["-m", "torch.distributed.run"]
    assert len(adapted) == len(plain)
    # A torch whose store does as Debian's, and whose launcher opens one as torchrun does.
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("")
    (package / "__init__.py").write_text(
        "class TCPStore:\n"
        "    def __init__(self, *args, use_libuv=True):\n"
        "        assert not use_libuv and len(args) < 9\n"
    )
    (package / "run.py").write_text(
        "import sys\n"
        "from torch.distributed import TCPStore\n"
        "if __name__ == '__main__':\n"
        "    TCPStore('node1', 20000)\n"
        "    TCPStore(*'12345678', True)\n"
        "    print(*sys.argv[1:])\n"
    )
    done = subprocess.run(
        [sys.executable, *adapted[1:]], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == adapted[3:], done.stderr


def test_words_of_the_user_win_over_the_defaults() -> None:
    made = make_plan("node1 slots=2", env=(("OMP_NUM_THREADS", "7"),))
    assert made.hosts[0].env["OMP_NUM_THREADS"] == "7"


def test_a_path_of_the_user_comes_behind_the_programs_that_the_job_needs() -> None:
    (host,) = make_plan("node1 slots=2", env=(("PATH", "/opt/own/bin:/bin"),)).hosts
    assert host.env["PATH"] == ":".join([*host.path, "/opt/own/bin:/bin"])
    (plain,) = make_plan("node1 slots=2").hosts
    assert "PATH" not in plain.env


def test_open_mpi_needs_an_ipv4_address_where_hosts_meet_over_ipv6() -> None:
    six: dict[str, Any] = {"addresses": ("fd00::1",), "interfaces": {"fd00::1": "eth0"}}
    both: dict[str, Any] = {
        "addresses": ("10.0.0.1", "fd00::1"),
        "interfaces": {"10.0.0.1": "eth0", "fd00::1": "eth0"},
    }
    with pytest.raises(UnfitError, match=r"node2: Open MPI .* IPv6 alone.*; add --launcher torchrun"):
        make_plan("node[1-2]", facts={"node1": both, "node2": six}, head="fd00::1")
    assert make_plan("node[1-2]", facts={"node1": both, "node2": both}, head="fd00::1")
    assert make_plan("node[1-2]", facts={"node1": six, "node2": six}, head="fd00::1", launcher="torchrun")


def test_without_mpi4py_a_program_is_started_plainly() -> None:
    made = make_plan("node1 slots=2", facts={"node1": {"mpi4py": None}})
    assert made.hosts[0].command is not None
    assert "mpi4py" not in made.hosts[0].command


TWO = "node[1-2] slots=2"
LONG = Program(script="a.py", args=(f"number-{0:014}",) * 20_000)


@pytest.mark.parametrize(
    ("text", "spec", "facts", "error", "complaint"),
    [
        (TWO, {"np": 5}, {}, UsageError, "--np 5: the hosts have 4 slots"),
        (TWO, {"np": -1}, {}, UsageError, "--np -1"),
        (TWO, {"program": LONG}, {}, UsageError, "20000 arguments of 429.7 KiB, and mpirun"),
        (TWO, {"backend": "nccl"}, {"node2": {"gpus": 1}}, UsageError, "node2 gets 2 ranks and has 1 GPU"),
        (TWO, {"launcher": "torchrun", "backend": "mpi"}, {}, UsageError, "use --launcher mpirun"),
        ("localhost\nnode2", {}, {}, UsageError, "localhost is a different machine on every host"),
        (TWO, {}, {"node2": {"mpirun": None, "mpi": None}}, UnfitError, "node2: no mpirun"),
        (TWO, {}, {"node1": {"mpi": None}}, UnfitError, "node1: /usr/bin/mpirun is not Open MPI's"),
        (TWO, {}, {"node1": {"mpi": "3.1.6"}}, UnfitError, "node1: Open MPI 3.1.6 is not supported"),
        (TWO, {}, {"node2": {"mpi": "4.1.8"}}, UnfitError, "node1: Open MPI 5.0.7; install one version"),
        (TWO, {"launcher": "torchrun"}, {"node2": {"torch": None}}, UnfitError, "node2: .* has no torch"),
    ],
)
def test_a_plan_that_cannot_be(
    text: str,
    spec: dict[str, Any],
    facts: dict[str, dict[str, object]],
    error: type[MusterError],
    complaint: str,
) -> None:
    with pytest.raises(error, match=complaint):
        make_plan(text, facts=facts, **spec)


def test_only_nccl_needs_a_gpu_for_each_rank() -> None:
    one = {"node1": {"gpus": 1}}
    assert make_plan("node1 slots=2", facts=one, backend="gloo").hosts
    assert make_plan("node1", facts=one, backend="nccl").hosts
    assert make_plan("node1 slots=2", facts={"node1": {"gpus": 2}}, backend="nccl").hosts


def test_every_unfit_host_is_named_at_once() -> None:
    with pytest.raises(UnfitError) as caught:
        make_plan(TWO, facts={"node1": {"mpi": None}, "node2": {"mpirun": None}})
    assert [host for host, _ in caught.value.reasons] == ["node1", "node2"]
    assert caught.value.exit_status == 3


# ---- the data network -------------------------------------------------------------------------------------

TWO_NETWORKS = dataclasses.replace(
    NODE,
    addresses=("192.168.0.5", "10.1.0.5", "fd00::5"),
    interfaces={"192.168.0.5": "eth0", "10.1.0.5": "eth1", "fd00::5": "eth1"},
)


@pytest.mark.parametrize(
    ("network", "addresses"),
    [
        ("10.1.0.0/16", ("10.1.0.5",)),
        ("eth1", ("10.1.0.5", "fd00::5")),
        ("fd00::/8", ("fd00::5",)),
        ("10.2.0.0/16", ()),
        ("eth", ()),
    ],
)
def test_a_network_is_a_cidr_or_an_interface(network: str, addresses: tuple[str, ...]) -> None:
    assert on_network(TWO_NETWORKS, network) == addresses


def test_other_jobs_on_the_hosts_are_named_with_their_users_and_gpus() -> None:
    def of_ada(seconds: float) -> RunningJob:
        return RunningJob("20261120-090000-0001", "ada", seconds, (0, 1, 2, 3))

    own, hostile = "20261120-120000-abcd", RunningJob("20261120-100000-0002", "eve\x1b[2J", 5.0, ())
    jobs = {
        "node1": (of_ada(7800.0), RunningJob(own, "me", 1.0, ())),
        "node2": (of_ada(7790.0),),
        "node3": (hostile,),
    }
    made = make_plan("node[1-3]", facts={name: {"jobs": found} for name, found in jobs.items()})
    assert made.notes == (
        "node[1-2] are busy: job 20261120-090000-0001 of ada, 2 h 10 min, GPUs 0-3",
        "node3 is busy: job 20261120-100000-0002 of eve␛[2J, 5 s",
    )


def test_no_interface_is_named_where_one_is_not_known() -> None:
    env = make_plan("node[1-2]", facts={"node2": {"interfaces": {"10.0.0.2": None}}}).hosts[0].env
    assert not {name for name in env if name.endswith("_if_include")}


@pytest.mark.parametrize(
    "words", ['/usr/bin/prted --prtemca prte_if_include "eth0" -x', "orted -mca oob_tcp_if_include eth0 -x"]
)
def test_a_daemon_uses_the_interface_of_its_own_host(words: str) -> None:
    assert INTERFACE.sub(OWN_INTERFACE, words).endswith('_if_include "$MUSTER_INTERFACE" -x')


WHEEL = "/opt/a-b/.venv"
ARGUMENTS = (
    '--prtemca ess "env" --prtemca ess_base_nspace "prterun-vm-1255@0" --prtemca ess_base_vpid 1 --prtemca '
    'prte_hnp_uri "prterun-vm-1255@0.0;tcp://192.0.2.2:38743:64,24;tcp6://[fd00::2]:53655:64,24" --prtemca '
    'prte_if_include "$MUSTER_INTERFACE" --prtemca plm_ssh_agent "muster-rsh" --tree-spawn'
)
ORTED = (
    'orted -mca ess "env" -mca orte_node_regex "vm,h[1:0-1]@0(3)" -mca oob_tcp_if_include '
    '"$MUSTER_INTERFACE" -mca pmix "^s1,s2,cray,isolated"'
)
FOR_SH = (
    f"PRTE_PREFIX={WHEEL};export PRTE_PREFIX;LD_LIBRARY_PATH={WHEEL}/lib:{WHEEL}/lib:$LD_LIBRARY_PATH;"
    f"export LD_LIBRARY_PATH;{WHEEL}/bin/prted --daemonize {ARGUMENTS}"
)
FOR_CSH = (
    f"setenv PRTE_PREFIX {WHEEL};if ( $?LD_LIBRARY_PATH == 1 ) set PRTE_have_llp;"
    f"if ( $?LD_LIBRARY_PATH == 0 ) setenv LD_LIBRARY_PATH {WHEEL}/lib;"
    f"if ( $?PRTE_have_llp == 1 ) setenv LD_LIBRARY_PATH {WHEEL}/lib:"
    f"$LD_LIBRARY_PATH;{WHEEL}/bin/prted {ARGUMENTS}"
)
OF_4_1 = (
    "OPAL_PREFIX=/opt/mpi ; export OPAL_PREFIX; PATH=/opt/mpi/bin:$PATH ; export PATH ; LD_LIBRARY_PATH="
    f"/opt/mpi/lib:${{LD_LIBRARY_PATH:-}} ; export LD_LIBRARY_PATH ;   /opt/mpi/bin/{ORTED}"
)


@pytest.mark.parametrize(
    "command",
    [
        FOR_SH,
        f" {ORTED}",
        OF_4_1,
        f"( test ! -r ./.profile || . ./.profile; {FOR_SH} )",
        f"( test ! -r ./.profile || . ./.profile;  {ORTED} )",
        for_sh(FOR_CSH, "/bin/tcsh"),
        for_sh(f" {ORTED}", "/bin/csh"),
        for_sh(f"set path = ( /opt/mpi/bin $path ) ; {ORTED}", "/bin/csh"),
    ],
)
def test_both_generations_start_their_daemon_in_the_language_of_any_login_shell(command: str) -> None:
    assert openmpi.starts_daemon(command)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "touch owned",
        "touch owned; prted",
        "prted; touch owned",
        "prted && touch owned",
        "prted | touch owned",
        "prted & touch owned",
        "prted\ntouch owned",
        "prted > owned",
        "prted $(touch owned)",
        "prted `touch owned`",
        'prted "$(touch owned)"',
        'prted "`touch owned`"',
        'prted "$HOME"',
        'prted "" touch\\',
        "prted 'x'",
        "owned/prted",
        "prted.sh",
        "LD_PRELOAD=/tmp/owned.so; prted",
        "PATH=$(touch owned); prted",
        "BASH_ENV=owned prted",
        "( test ! -r ./.profile || . ./owned; prted )",
        "exec /bin/tcsh -f -c 'touch owned'",
        "exec /bin/tcsh -c prted",
        "exec /bin/tcsh -f -c 'prted' touch owned",
        "exec /bin/tcsh -f -c prted touch owned",
        "exec /bin/tcsh -f -c 'prted",
        "exec /bin/sh -f -c prted",
        "exec /tmp/owned -f -c prted",
        "exec /bin/tcsh -f -c prted; touch owned",
        "exec '/bin/$(touch owned)/tcsh' -f -c prted",
        "prted " + "- " * 5000 + ";",  # and says so at once
        "prted " + " " * 5000 + ";",
    ],
)
def test_a_shell_command_that_does_anything_else_starts_no_daemon(command: str) -> None:
    assert not openmpi.starts_daemon(command)


@pytest.mark.parametrize(
    ("shell", "written"),
    [
        ("/bin/bash", "X='1  2'; export X; echo $X"),
        ("/usr/bin/tcsh", "setenv X '1  2'; if ($?X == 1) echo $X"),
    ],
)
def test_mpiruns_command_is_run_in_the_language_it_was_written_in(shell: str, written: str) -> None:
    if not Path(shell).exists():
        pytest.skip(f"no {shell} here")
    done = subprocess.run(["sh", "-c", for_sh(written, shell)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "2"], done.stderr


# -- launch and check decide alike where ranks meet and listen --


Interfaces = Mapping[str, str]
ETH = {"10.0.0.%d": "eth0", "10.1.0.%d": "eth1"}
DOCKER = {"172.17.0.1": "docker0", **ETH}
IPV6 = {"fd00::%d": "eth0", "10.0.0.%d": "eth0"}


class Case(NamedTuple):
    """A cluster of three hosts, or one, and what follows. `cut`: addresses that no other host reaches."""

    interfaces: Interfaces
    meet: str
    ranks: Mapping[str, list[str]]
    hosts: str = "node1\nnode2\nnode3"
    network: str = ""
    cut: tuple[str, ...] = ()


CASES = {
    "two networks": Case(ETH, "10.0.0.1", {"node2": ["10.0.0.2"], "node3": ["10.0.0.3"]}),
    "first network cut": Case(
        ETH, "10.1.0.1", {"node2": ["10.1.0.2"], "node3": ["10.1.0.3"]}, cut=("10.0.0.1",)
    ),
    "addr=": Case(ETH, "10.1.0.1", {"node2": ["10.1.0.2"]}, hosts="node1 addr=10.1.0.1\nnode2\nnode3"),
    "addr= elsewhere": Case(ETH, "10.0.0.1", {"node2": ["10.1.0.2"]}, hosts="node1\nnode2 addr=10.1.0.2"),
    "docker bridge": Case(DOCKER, "10.0.0.1", {"node2": ["10.0.0.2"]}, cut=("172.17.0.1",)),
    "IPv6 first": Case(IPV6, "fd00::1", {"node2": ["fd00::2"]}),
    "one host": Case(ETH, "127.0.0.1", {}, hosts="node1"),
    "no common address": Case(ETH, "", {}, cut=("10.0.0.1", "10.1.0.1")),
    "--network 10.1.0.0/16": Case(ETH, "10.1.0.1", {"node2": ["10.1.0.2"]}, network="10.1.0.0/16"),
    "--network eth1": Case(ETH, "10.1.0.1", {"node3": ["10.1.0.3"]}, network="eth1"),
}


class Channel:
    """A host that reaches every address of the others but those in `cut`."""

    clock_offset = 0.0

    def __init__(self, facts: Facts, cut: tuple[str, ...]) -> None:
        self.facts, self.cut = facts, cut

    def post(self, request: Request[Any], **words: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(self.answer(request, words))
        return future

    def ask(self, request: Request[Any], **words: Any) -> Any:
        return self.answer(request, words)

    def wait(self, future: Future[Any], seconds: float, since: float | None = None) -> Any:
        return future.result()

    def answer(self, request: Request[Any], words: Mapping[str, Any]) -> Any:
        if request is HEALTH:
            return HEALTHY
        if request is OPEN_PORT:
            return OpenPort(20123)
        tried = {target["host"]: target["addresses"] for target in words["targets"]}
        return HostsReached({host: self.reach(host, each) for host, each in tried.items()})

    def reach(self, host: str, addresses: list[str]) -> Reached:
        cut = self.cut if host != self.facts.hostname else ()
        shut = {address: "timed out" for address in addresses if address in cut}
        way = {address: self.way(address) for address in addresses if address not in shut}
        return Reached(way, shut)

    def way(self, address: str) -> str:
        """The own interface in the network of an address."""
        for own, interface in self.facts.interfaces.items():
            if own[:5] == address[:5]:
                return interface
        return "lo"

    def measure_clock(self, **which: Any) -> tuple[float, float]:
        return 0.0, 0.0

    def set_clock(self) -> None: ...


def cluster_of(case: Case) -> Cluster:
    hosts = hostfile.parse(case.hosts)
    cluster = Cluster(hosts, lambda host: None, network=case.network)  # type: ignore[arg-type,return-value]
    for number, host in enumerate(hosts, 1):
        own = {
            address % number if "%" in address else address: way for address, way in case.interfaces.items()
        }
        facts = dataclasses.replace(NODE, hostname=host.name, addresses=tuple(own), interfaces=own)
        cluster.facts[host.name] = facts
        cluster.channels[host.name] = Channel(facts, case.cut)  # type: ignore[assignment]
    return cluster


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_launch_and_check_decide_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = cluster_of(case)
    if not case.meet:
        with pytest.raises(UnfitError, match="node1 at none of 10"):
            cluster.survey()
    monkeypatch.setattr(Cluster, "connect", lambda cluster: {})
    seen = ask_hosts(cluster_of(case)).hosts
    listening = rank_addresses(
        "node1",
        {name: host.facts for name, host in seen.items()},
        {name: host.addresses for name, host in seen.items()},
        {name: host.reached for name, host in seen.items()},
    )
    if not case.meet:
        assert listening == {}
        return
    known = cluster.survey()
    assert known.rendezvous.address == case.meet
    addresses = {host.name: cluster.addresses(host) for host in hostfile.parse(case.hosts)}
    planned = known.rendezvous.rank_addresses("node1", addresses, cluster.facts)
    assert {name: list(planned.get(name, addresses[name])) for name in case.ranks} == case.ranks
    if not case.network:  # muster check has no such option
        assert listening["node1"] == (case.meet,)
        assert {name: list(listening.get(name, seen[name].addresses)) for name in case.ranks} == case.ranks
