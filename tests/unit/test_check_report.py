"""What `muster check` shows: a table, what to do, and JSON."""

from __future__ import annotations

import json

import pytest

from muster.deploy.core.errors import HostError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.text.fold import fold_names
from muster.deploy.features.check.command import Checkup
from muster.deploy.features.check.judge import judge
from tests.unit.test_check import THREE, examine

TEXT = """\
host   slots  cores  GPUs  Open MPI  torch  Python  clock     disk    /dev/shm
node1  2      8      0     5.0.7     2.6.0  3.13.5  +0.00 ms  50 GiB  8 GiB     fit, 1 warning
node2  2      8      0     5.0.7     none   3.13.5  +0.00 ms  50 GiB  8 GiB     1 error, 1 warning
node3  2      -      -     -         -      -       -         -       -         1 error

ERROR   node2: /usr/bin/python3 has no torch  [torch.missing]
        do: install it, or name another interpreter with --python

ERROR   node3: no answer␛[2J  [ssh.unreachable]
        do: is it up?

WARNING node[1-2]: 256 open files allowed; 6 ranks may need 1024  [nofile.low]
        do: raise nofile in /etc/security/limits.d or for sshd (ulimit -n)

1 of 3 hosts are fit, 2 warnings
"""


def examined() -> Checkup:
    hosts = hostfile.parse(THREE)
    examination = examine(
        THREE,
        facts={"node2": {"torch": None}},
        health={"*": {"nofile": 256}},
        errors={"node3": HostError("ssh.unreachable", "no answer\x1b[2J", "is it up?")},
    )
    return Checkup("mpirun", judge(hosts, examination, "mpirun"), hosts, examination)


def test_the_table_has_a_line_a_host_and_each_cause_with_its_remedy_once() -> None:
    assert examined().as_text() == TEXT


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    narrow = examined().as_text(80).splitlines()
    table, wide = narrow[: narrow.index("")], TEXT.splitlines()
    assert max(map(len, table)) <= 80 < max(map(len, wide[: wide.index("")]))
    assert table[0].split()[:4] == ["host", "slots", "cores", "GPUs"]
    assert narrow[narrow.index("") :] == wide[wide.index("") :]


def test_json_has_every_finding_of_every_host() -> None:
    said = json.loads(json.dumps(examined().as_json()))
    assert (said["fit"], said["launcher"]) == (False, "mpirun")
    assert [(host["name"], host["fit"]) for host in said["hosts"]] == [
        ("node1", True),
        ("node2", False),
        ("node3", False),
    ]
    assert [(one["host"], one["id"]) for one in said["findings"]] == [
        ("node1", "nofile.low"),
        ("node2", "torch.missing"),
        ("node2", "nofile.low"),
        ("node3", "ssh.unreachable"),
    ]
    assert said["hosts"][0]["facts"]["mpi"] == "5.0.7"
    assert said["hosts"][0]["clock"] == {"ahead_s": 0.0, "uncertainty_s": 0.0001}
    assert said["hosts"][2]["facts"] is None


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["node1"], "node1"),
        (["node1", "node2", "node3", "node5"], "node[1-3,5]"),
        (["node08", "node09", "node10", "node11"], "node[08-11]"),
        (["node1", "node01", "node02"], "node1,node[01-02]"),
        (["node001", "node01", "node1"], "node001,node01,node1"),
        (["node099", "node100", "node09", "node10", "node9"], "node[099-100],node[09-10],node9"),
        (["node0", "node1", "node01", "node12"], "node[0-1],node[01,12]"),
        (["node", "node1"], "node,node1"),
        (["gpu-a", "node2", "gpu-b", "node3"], "gpu-a,node[2-3],gpu-b"),
        (["rack1-n1", "rack1-n2", "rack2-n1"], "rack1-n[1-2],rack2-n1"),
        (["n1.example", "n2.example"], "n[1-2].example"),
        (["10.0.0.7", "10.0.0.8"], "10.0.0.[7-8]"),
        ([""], ""),
        ([], ""),
    ],
)
def test_names_fold_into_ranges_that_the_hosts_file_reads(names: list[str], folded: str) -> None:
    assert fold_names(names) == folded
    if names and names[0]:
        assert {
            host.name
            for host in hostfile.parse(folded.replace(",n", "\nn").replace(",g", "\ng").replace(",r", "\nr"))
        } == set(names)
