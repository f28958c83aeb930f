"""`muster hosts add` and `hosts scan`: which hosts are meant, which are new, and what the file gets."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli import host_list
from muster.deploy.cli.command import Exit, execute
from muster.deploy.errors import HostError, UsageError
from muster.deploy.hosts import hostfile
from muster.deploy.hosts.hostfile import Host
from muster.deploy.hosts.hostfile_edit import HEADER, appended, lines_of, without_local
from muster.deploy.hosts.slots import NO_GPU
from muster.deploy.roster import report, scan
from muster.deploy.roster.additions import ScannedHost, additions
from muster.deploy.roster.candidates import Candidate, of_inventory, of_patterns
from muster.deploy.roster.sources import aliases
from tests.unit.plans import NODE

ALIASES = ("gpu-a", "gpu-b", "login")
SILENT = HostError("ssh.port-refused", "cannot connect", "does sshd run there?")


def seen(name: str, key: str = "", **changes: Any) -> ScannedHost:
    facts = dataclasses.replace(NODE, hostname=name, **changes)
    return ScannedHost(f"{name}.lan", key or f"SHA256:{name}", facts)


def candidates(*names: str) -> list[Candidate]:
    return [Candidate(Host(name)) for name in names]


# ---- which hosts are meant --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["node[08-10]", "x"], ["node08", "node09", "node10", "x"]),
        (["gpu-*"], ["gpu-a", "gpu-b"]),
        (["*"], ["gpu-a", "gpu-b", "login"]),
        (["gpu-b", "gpu-?"], ["gpu-b", "gpu-a"]),
        ([], []),
    ],
)
def test_names_ranges_and_patterns_of_aliases(words: list[str], names: list[str]) -> None:
    assert [candidate.host.name for candidate in of_patterns(words, ALIASES)] == names


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        ("cpu-*", r"cpu-\*: no Host of the SSH configuration matches"),
        ("ml@node1", "write 'node1 user=ml', got 'ml@node1'"),
        ("node[1-", r"a range is written node\[01-16\]"),
    ],
)
def test_a_name_that_cannot_be(word: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        of_patterns([word], ALIASES)


def test_aliases_of_an_ssh_configuration_and_of_what_it_includes(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        'Include conf.d/*\nHost gpu-a "gpu-b" # a comment\n  HostName 10.0.0.1\nHost *.lan !x gpu-?\n'
        "host=login\nMatch user ml\nHost gpu-a\nHost 'broken\n"
    )
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "cluster").write_text(f"Host node1 node2\nInclude {tmp_path}/config\n")
    assert aliases(tmp_path / "config", tmp_path) == ("node1", "node2", "gpu-a", "gpu-b", "login")
    assert aliases(tmp_path / "none", tmp_path) == ()


INVENTORY = {
    "_meta": {
        "hostvars": {
            "web1": {"ansible_host": "10.0.0.5", "ansible_user": "ml", "ansible_port": 2222},
            "gpu-a": {"ansible_host": "10.0.0.6", "ansible_ssh_private_key_file": "k"},
            "box": {"ansible_connection": "docker"},
            "db1": {"ansible_ssh_host": "{{ net }}.7"},
        }
    },
    "all": {"children": ["ungrouped", "gpus", "site"]},
    "ungrouped": {"hosts": ["box"]},
    "site": {"children": ["gpus", "web"]},
    "web": {"hosts": ["web1", "db1", "plain"]},
    "gpus": {"hosts": ["gpu-a"]},
}


def test_an_inventory_gives_each_host_as_ansible_would_reach_it() -> None:
    taken, refused = of_inventory(INVENTORY, (), ALIASES, "hosts.ini")
    assert [(candidate.host, candidate.origin) for candidate in taken] == [
        (Host("gpu-a"), ""),  # SSH configuration has it
        (Host("10.0.0.5", user="ml", port=2222), "web1 of hosts.ini"),
        (Host("plain"), ""),
    ]
    assert taken[0].note == "ansible_ssh_private_key_file: write IdentityFile into ~/.ssh/config"
    assert refused == {
        "box": "ansible_connection=docker: Muster reaches hosts by SSH",
        "db1": "ansible_ssh_host={{ net }}.7: write the value itself, Ansible fills it in only when it runs",
    }


@pytest.mark.parametrize(
    ("words", "names"), [(["web"], ["10.0.0.5", "plain"]), (["pl*", "site"], ["plain", "gpu-a", "10.0.0.5"])]
)
def test_names_choose_groups_and_hosts_of_an_inventory(words: list[str], names: list[str]) -> None:
    taken, _ = of_inventory(INVENTORY, words, ALIASES, "hosts.ini")
    assert [candidate.host.name for candidate in taken] == names


def test_an_unknown_name_of_an_inventory_is_told_its_groups() -> None:
    with pytest.raises(
        UsageError, match=r"wbe: no host and no group of hosts\.ini, which has the groups all, gpus"
    ):
        of_inventory(INVENTORY, ["wbe"], ALIASES, "hosts.ini")


# ---- which hosts are new ----------------------------------------------------------------------------------


def test_slots_are_gpus_else_cores_and_the_comment_says_which() -> None:
    known = {"a": seen("a", gpus=8, cores=64), "b": seen("b", gpus=0, cores=1)}
    made = additions(candidates("a", "b"), (), known, "auto")
    assert made.entries == [(Host("a", slots=8), "8 GPUs"), (Host("b"), "1 core")]


def test_a_host_of_the_file_is_not_added_again_in_any_spelling() -> None:
    known = {"Node1": seen("x"), "node2": seen("y")}
    made = additions(candidates("Node1", "node2"), hostfile.parse("node1"), known, "auto")
    assert (made.present, [host.name for host, _ in made.entries]) == (["Node1"], ["node2"])


def test_an_address_that_two_hosts_of_an_inventory_have_is_added_once() -> None:
    twins = [Candidate(Host("10.0.0.5"), f"{name} of hosts.ini") for name in ("a", "b")]
    made = additions(twins, (), {}, 4, ask=False)
    assert made.entries == [(Host("10.0.0.5", slots=4), "a of hosts.ini")]
    assert made.refused == {
        "b of hosts.ini": "10.0.0.5 is the address of another host too; give each its own Host in "
        "~/.ssh/config"
    }


def test_a_machine_is_not_added_under_a_second_name() -> None:
    known = {"old": seen("m", "SHA256:k"), "alias": seen("m", "SHA256:k"), "b": seen("b"), "c": seen("b")}
    known["c"] = known["b"]
    made = additions(candidates("alias", "b", "c"), hostfile.parse("old"), known, "auto")
    assert made.refused == {
        "alias": "the same machine as old (host key SHA256:k)",
        "c": "the same machine as b (host key SHA256:b)",
    }


def test_machines_that_were_cloned_with_their_key_are_two_and_are_told_so() -> None:
    known = {"a": seen("a", "SHA256:k"), "b": seen("b", "SHA256:k")}
    made = additions(candidates("a", "b"), (), known, "auto")
    assert [host.name for host, _ in made.entries] == ["a", "b"]
    assert made.notes == {"b": "has the host key of a, another machine: give each host its own key"}


def test_hosts_that_do_not_answer_are_named_with_the_reason_and_the_others_are_added() -> None:
    known = {"a": ScannedHost(error=SILENT), "b": seen("b", gpus=0)}
    made = additions(candidates("a", "b"), (), known, "gpus")
    assert made.refused == {"a": SILENT.reason, "b": NO_GPU.reason}
    assert additions(candidates("b"), (), known, 3).entries == [(Host("b", slots=3), "8 cores")]


def test_without_asking_a_number_of_slots_is_enough() -> None:
    assert additions(candidates("a"), (), {}, 4, ask=False).entries == [(Host("a", slots=4), "")]


# ---- what the file gets -----------------------------------------------------------------------------------


def test_neighbours_share_a_line_and_the_order_of_ranks_stays() -> None:
    eight = [Host(f"node{number:02}", slots=8) for number in range(1, 5)]
    assert lines_of([(host, "") for host in eight]) == ["node[01-04] slots=8"]
    assert lines_of([(host, "") for host in reversed(eight[:2])]) == ["node02 slots=8", "node01 slots=8"]
    mixed = [*eight[:2], Host("gpu", slots=2, user="ml", port=22), *eight[2:]]
    assert lines_of([(host, "") for host in mixed]) == [
        "node[01-02] slots=8",
        "gpu slots=2 user=ml port=22",
        "node[03-04] slots=8",
    ]


@pytest.mark.parametrize(
    "before",
    [
        b"# mine\nnode1 slots=4  # \xe4 latin\n\n/* node9 */\n",
        b"\xef\xbb\xbfnode1 slots = 4",
        b"node1\r\n// end\r\n",
        b"node1 slots=1 max_slots=8",
    ],
)
def test_what_is_in_the_file_stays_byte_for_byte(before: bytes) -> None:
    after = appended(before, ["node[2-3] slots=8      # 8 GPUs"])
    assert after.startswith(before)
    text = after.decode("utf-8-sig", "surrogateescape")
    assert [host.name for host in hostfile.parse(text)] == ["node1", "node2", "node3"]
    assert after.count(b"\r\n") in (0, after.count(b"\n"))


def test_a_new_file_says_what_it_is() -> None:
    assert appended(b"", ["a slots=1"]) == f"{HEADER}a slots=1\n".encode()


def test_localhost_becomes_a_comment_because_it_can_only_stand_alone() -> None:
    before = b"# localhost is here\n  localhost slots=2 # two\nnode1\n"
    assert without_local(before, "f") == b"# localhost is here\n#   localhost slots=2 # two\nnode1\n"
    with pytest.raises(UsageError, match="f: localhost must be the only host; remove its line first"):
        without_local(b"localhost /* a\n b */\n", "f")


# ---- the commands -----------------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    known = {"a": seen("a", gpus=8), "b": ScannedHost(error=SILENT), "c": seen("c")}
    monkeypatch.setattr(scan, "scan", lambda hosts, *words: {host.name: known[host.name] for host in hosts})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def add(*names: str, **options: Any) -> int:
    """The exit status of `muster hosts add`."""
    try:
        execute(host_list.HostsAdd(name=names, **options))
    except Exit as ended:
        return ended.code
    return 0


def test_hosts_are_added_and_a_second_time_changes_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "hosts.txt").write_text("# mine\n")
    (project / "hosts.txt").chmod(0o640)
    assert add("a", "c") == 0
    text = (project / "hosts.txt").read_text()
    assert text.startswith("# mine\na slots=8 ")
    assert [(host.name, host.slots) for host in hostfile.parse(text)] == [("a", 8), ("c", 8)]
    assert add("a", "c") == 0
    assert (project / "hosts.txt").read_text() == text
    assert "already listed: a,c\n" in capsys.readouterr().out
    assert [path.name for path in project.iterdir() if "hosts" in path.name] == ["hosts.txt"]
    assert (project / "hosts.txt").stat().st_mode & 0o777 == 0o640


def test_a_host_that_is_not_added_makes_the_status_3(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert add("a", "b") == 3
    assert [host.name for host in hostfile.load(project / "hosts.txt")] == ["a"]
    assert "not added:\n    b: cannot connect; does sshd run there?\n" in capsys.readouterr().out


def test_a_dry_run_writes_nothing(project: Path) -> None:
    assert add("a", dry_run=True) == 0
    assert not (project / "hosts.txt").exists()


def test_a_file_with_a_mistake_is_left_alone(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "hosts.txt").write_text("a slots=8x\n")
    assert add("c") == 2
    assert (project / "hosts.txt").read_text() == "a slots=8x\n"


@pytest.mark.parametrize(
    "options", [{"offline": True}, {"slots": "8x"}, {"from_inventory": "none.ini"}], ids=str
)
def test_what_cannot_be_asked_for(project: Path, options: dict[str, Any]) -> None:
    assert add("a", **options) == 2


@pytest.mark.parametrize("names", [[], ["localhost"]], ids=["no name", "localhost"])
def test_hosts_that_cannot_be_added(project: Path, names: list[str]) -> None:
    assert add(*names) == 2


def test_a_file_behind_a_link_is_changed_there(project: Path) -> None:
    (project / "real.txt").write_text("c\n")
    (project / "hosts.txt").symlink_to("real.txt")
    assert add("a") == 0
    assert (project / "hosts.txt").is_symlink()
    assert [host.name for host in hostfile.load(project / "real.txt")] == ["c", "a"]


def test_a_scan_shows_what_answers_and_which_names_are_one_machine() -> None:
    hosts = [Host("a"), Host("b"), Host("c")]
    known = {
        "a": seen("a", gpus=8, memory=64 << 30),
        "b": ScannedHost("10.0.0.9", error=SILENT),
        "c": seen("a"),
    }
    known["c"] = dataclasses.replace(known["c"], key=known["a"].key)
    assert report.as_table(hosts, known, ["a"], "hosts.txt") == (
        "host  address   reachable  cores  GPUs  memory  Python  note\n"
        "a     a.lan     yes        8      8     64 GiB  3.13.5  in hosts.txt\n"
        "b     10.0.0.9  no         -      -     -       -       cannot connect\n"
        "c     a.lan     yes        8      0     -       3.13.5  the same machine as a\n"
        "\n"
        "b: do: does sshd run there?\n"
        "\n"
        "2 of 3 hosts answer\n"
    )
    first, second, third = report.as_json(hosts, known, ["a"])
    assert (first["slots"], first["listed"], first["facts"]["memory"]) == (8, True, 64 << 30)
    assert (second["reachable"], second["error"]["id"], second["facts"]) == (False, "ssh.port-refused", None)
    assert third["same_as"] == "a"
