"""A host whose agent lies costs its own connection: it is named, and nothing else fails."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shlex
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from muster.deploy.cli import hosts_record
from muster.deploy.cli.dispatch import main
from muster.deploy.cli.hosts_record import HostsRecord
from muster.deploy.core.connect.cluster import Cluster, expect_ranks
from muster.deploy.core.connect.opener import Access
from muster.deploy.core.connect.pipe import Pipe
from muster.deploy.core.connect.transports.process import LocalPipe
from muster.deploy.core.errors import UnfitError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.hosts.hostfile import Host
from muster.deploy.core.job import find as jobs
from muster.deploy.core.job.find import LocalRuns
from muster.deploy.features.adhoc import command as fanout
from muster.deploy.features.adhoc import put_get as transfer
from muster.deploy.features.check.command import ask_hosts
from muster.deploy.features.why.gather import gather_pace
from tests.attacks.liar import LIES
from tests.launching import MUSTER, make_project
from tests.load import hold
from tests.unit.test_job_states import RECORD, make_run
from tests.unit.test_job_states import hold as hold_job

LIAR = Path(__file__).with_name("liar.py")
COMMANDS = {
    "check": ("health", ["check"]),
    "check by facts": ("facts", ["check"]),
    "check by network": ("reach", ["check"]),
    "launch by facts": ("facts", ["launch", "--script=program.py", "--launcher=torchrun"]),
    "launch by prepare": ("prepare", ["launch", "--script=program.py", "--launcher=torchrun"]),
    "launch by start": ("start", ["launch", "--script=program.py", "--launcher=torchrun"]),
    "launch by ping": ("ping", ["launch", "--script=program.py", "--launcher=torchrun", "--args=wait"]),
    "launch detached": ("detach", ["launch", "--script=program.py", "--launcher=torchrun", "--detach"]),
    "run": ("run", ["run", "--command=true"]),
    "put": ("put_begin", ["put", "--file=program.py"]),
    "get": ("file", ["get", "--file=/etc/hostname"]),
    "get by parts": ("file_part", ["get", "--file=/etc/hostname"]),
    "clean": ("clean", ["clean"]),
    "status": ("jobs", ["status"]),
    "logs": ("jobs", ["logs", "--job=x"]),
    "attach": ("jobs", ["attach", "--job=x"]),
    "stop": ("jobs", ["stop", "--job=x"]),
    "stacks": ("jobs", ["stacks", "--job=x"]),
}
# Lies of these kinds end the connection; the others are honest answers to some request, or errors.
PLAIN = sorted({*LIES} - {"empty", "escape", "code-of-256", "infinity", "silence", "end", "flood-of-reports"})


def liar(folder: Path, lie: str) -> str:
    """A program to give as --python."""
    program = folder / "python"
    words = ["env", f"LIE={lie}", sys.executable, str(LIAR)]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o700)
    return str(program)


def liars(folder: Path, word: str, *lies: str) -> dict[str, str]:
    """The Python of a host for each lie."""
    for lie in lies:
        (folder / lie).mkdir(parents=True)
    return {lie: liar(folder / lie, f"{word}:{lie}") for lie in lies}


def cluster(folder: Path, word: str, *lies: str, facts: bool = True) -> Cluster:
    """Two honest hosts that are this machine, and one for each lie, of its name."""
    return cluster_with(liars(folder, word, *lies), facts=facts)


def cluster_with(pythons: dict[str, str], *, facts: bool = True) -> Cluster:
    hosts = hostfile.parse("\n".join(("node1", *pythons, "node3")))
    return Cluster(hosts, lambda host: LocalPipe(pythons.get(host.name)), facts=facts)


# ---- among honest hosts -----------------------------------------------------------------------------------


def test_a_check_names_each_liar_alone(tmp_path: Path) -> None:
    hosts = cluster(tmp_path, "health", *PLAIN)
    try:
        one = ask_hosts(hosts)
    finally:
        hosts.close()
    kinds = {name: error.kind for name, error in one.errors.items()}
    assert kinds == dict.fromkeys(PLAIN, "host.protocol-error")
    assert list(one.hosts) == ["node1", "node3"]


def test_a_command_runs_on_the_others(tmp_path: Path) -> None:
    lies = ("unknown-report", "code-of-256", "garbage", "end")
    with cluster(tmp_path, "run", *lies, facts=False) as hosts:
        ran = fanout.run_on_hosts(hosts, ["true"], None)
    assert {host: one.status for host, one in ran.items()} == {
        "node1": 0,
        **dict.fromkeys(lies, 3),
        "node3": 0,
    }


def test_a_transfer_names_each_host_that_spoils_it(tmp_path: Path) -> None:
    lies = ("empty", "nested", "huge-payload")
    (tmp_path / "file").write_text("content")
    with cluster(tmp_path, "file", *lies, facts=False) as hosts, pytest.raises(UnfitError) as caught:
        transfer.get(hosts, str(tmp_path / "file"), tmp_path / "here").require_all()
    assert {host for host, _ in caught.value.reasons} == {*lies}


def test_a_transfer_gives_up_a_busy_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PUT_BEGIN", "FILE"):
        monkeypatch.setattr(transfer, name, dataclasses.replace(getattr(transfer, name), stuck_after=8.0))
    monkeypatch.setattr(transfer, "PROGRESS_SECONDS", 5.0)
    source = tmp_path / "source"
    source.write_text("content")

    def reasons(word: str) -> list[tuple[str, str]]:
        """Who fails in a transfer in which one host is busy at this request, and why."""
        folder = tmp_path / word
        with cluster_with(pythons[word], facts=False) as hosts, pytest.raises(UnfitError) as caught:
            if word in {"put_begin", "put_write"}:
                transfer.put(hosts, source, f"{folder}/there/")
            else:
                transfer.get(hosts, str(source), folder / "here").require_all()
        return [*caught.value.reasons]

    words = ("put_begin", "put_write", "file", "file_part")
    # Before the threads: no program starts whose file is still open in a child that another thread forks.
    pythons = {word: liars(tmp_path / word, word, "busy") for word in words}
    with ThreadPoolExecutor() as pool:  # each waits for as long
        for ((host, why),) in pool.map(reasons, words):
            assert host == "busy"
            assert re.search("has been busy for 8 s and did nothing|no answer within 5 s", why)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_is_fetched_goes_through_no_link_that_was_there_before(tmp_path: Path, kind: str) -> None:
    source, here, secret = tmp_path / "source", tmp_path / "here", tmp_path / "secret"
    if kind == "folder":
        source.mkdir(mode=0o700)
        (source / "file").write_text("evil")
        source.chmod(0o500)
    else:
        source.write_text("evil")
    here.mkdir(mode=0o777)
    secret.write_text("secret")
    for number in (os.getpid(), ""):
        (here / f".source@localhost.{number}").symlink_to(secret)
    (here / "source@localhost").symlink_to(secret) if kind == "file" else None
    with Cluster(hostfile.parse("localhost"), lambda host: LocalPipe(None), facts=False) as hosts:
        (got,) = transfer.get(hosts, str(source), here).results.values()
    assert secret.read_text() == "secret"
    assert not got.is_symlink()
    assert stat.S_IMODE(got.stat().st_mode) == (
        0o500 if kind == "folder" else stat.S_IMODE(source.stat().st_mode)
    )
    assert [path for path in here.iterdir() if path.name.startswith(".muster-get")] == []


@pytest.mark.parametrize(("word", "job"), [("why", RECORD["job"]), ("jobs", "another")])
def test_a_host_that_lies_about_a_job_costs_its_own_part_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], word: str, job: str
) -> None:
    python = liar(tmp_path, f"{word}:garbage")

    def open_pipe(host: Host) -> Pipe:
        return LocalPipe(python if host.name == "node2" else None)

    make_run(tmp_path / "runs", hosts=["node1", "node2", "node3"], placed=[2, 1, 1])
    (tmp_path / "hosts.txt").write_text("node[1-3]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Access, "open", lambda _, host: open_pipe(host))
    with pytest.raises(SystemExit) as end:
        main(["why", job])
    verdict, said = capsys.readouterr()
    unrecorded, *named = said.splitlines()
    assert end.value.code == UnfitError.exit_status
    assert bool(verdict) is (word == "why"), "of a job that is known here, something is known anyway"
    assert unrecorded.startswith(f"{job}: no record here of how its hosts are reached")
    assert [line.partition(":")[0] for line in named] == ["node2"]


def test_without_an_id_a_host_that_may_have_a_newer_job_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    python = liar(tmp_path, "jobs:garbage")
    driver = hold_job(make_run(tmp_path / "runs", hosts=["node1", "node3"], placed=[2, 2]))
    monkeypatch.setenv("HOME", str(tmp_path))  # else the hosts have the jobs of this machine
    (tmp_path / "hosts.txt").write_text("node[1-3]\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Access, "open", lambda _, host: LocalPipe(python if host.name == "node2" else None))
    with contextlib.suppress(SystemExit):
        main(["why", "--hosts", "hosts.txt"])
    os.close(driver)
    silent, named, *_ = capsys.readouterr().err.splitlines()
    assert (silent.partition(":")[0], named) == ("node2", f"job {RECORD['job']}")


# ---- about ranks of other hosts ---------------------------------------------------------------------------


@pytest.fixture
def job_of_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Path]]:
    """A recorded job with two ranks on each of three hosts, and how node2 is made to lie about it.

    It returns the file with what node2 was asked.
    """
    driver = hold_job(
        make_run(tmp_path / "runs", hosts=["node1", "node2", "node3"], ranks=6, placed=[2, 2, 2])
    )
    hosts = hostfile.parse("node[1-3] slots=2")
    hosts_record.write(tmp_path / "runs" / RECORD["job"], HostsRecord(hosts, Access()))
    console = tmp_path / ".muster" / "jobs" / RECORD["job"] / "bin" / "in_rank" / "muster_console.py"
    console.parent.mkdir(parents=True)
    console.touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ASKED", str(tmp_path / "asked"))
    monkeypatch.chdir(tmp_path)

    def lying(lie: str) -> Path:
        python = liar(tmp_path, lie)
        monkeypatch.setattr(
            Access, "open", lambda _, host: LocalPipe(python if host.name == "node2" else None)
        )
        return tmp_path / "asked"

    yield lying
    os.close(driver)


def run_muster(*words: str) -> int:
    try:
        main([*words])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


CLAIMS = {
    "why": ("why:all-evidence", ["why"]),
    "eval": ("console_eval:all-values", ["eval", "JOB", "step"]),
    "stacks": ("why:all-evidence", ["stacks"]),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_a_host_that_answers_for_ranks_of_others_costs_its_own_answers_alone_and_is_named(
    job_of_three: Callable[[str], Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    lie, words = CLAIMS[name]
    job_of_three(lie)
    status = run_muster(*(RECORD["job"] if word == "JOB" else word for word in words))
    said = "".join(capsys.readouterr())
    assert status == UnfitError.exit_status
    assert re.search(r"node2: protocol error: its answer to \w+: rank 0, which the plan does", said)
    assert "lie" not in said
    assert not re.search(r"node[13]:", said), "no honest host is blamed"


def test_a_host_that_tells_of_ranks_of_others_is_cut_off(job_of_three: Callable[[str], Path]) -> None:
    job_of_three("arrivals:all-arrivals")
    state = jobs.jobs_at([LocalRuns(Path("runs"))])[0].state
    with Cluster(hostfile.parse("node[1-3]"), lambda host: Access().open(host), facts=False) as hosts:
        expect_ranks(hosts.channels, state.hosts_by_rank)
        gather_pace(RECORD["job"], hosts.channels)
        lost = {host: channel.lost.reason for host, channel in hosts.channels.items() if channel.lost}
    assert list(lost) == ["node2"]
    assert "its answer to arrivals: rank 0, which the plan does not have there" in lost["node2"]


def test_an_expression_for_one_rank_never_reaches_another_host(job_of_three: Callable[[str], Path]) -> None:
    asked = job_of_three("console_eval:all-values")
    assert run_muster("eval", RECORD["job"], "secret", "--rank", "4") == 1
    assert "console" not in asked.read_text()


# ---- as commands ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """How a command ended: seconds from its start, the most memory that it held in MiB."""

    status: int
    output: str
    seconds: float
    memory: float


# In a process of its own: the kernel counts what a process had before its exec, which is the memory of the
# tests where they start it (ru_maxrss in getrusage(2)).
MEASURED = """
import pathlib, resource, subprocess, sys
ended = subprocess.run(sys.argv[2:])
most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
pathlib.Path(sys.argv[1]).write_text(f"{ended.returncode} {most}")
"""


def command(folder: Path, words: list[str], lie: str) -> Ended:
    """Run a command on a host that lies."""
    project = make_project(folder / "project")
    (project.path / "liars.txt").write_text("localhost slots=1\n")
    argv = [str(MUSTER), *words, "--hosts=liars.txt", f"--python={liar(folder, lie)}"]
    said, measured = folder / "output", folder / "measured"
    began = time.monotonic()
    with said.open("wb") as output:
        subprocess.run(
            [sys.executable, "-c", MEASURED, measured, *argv],
            cwd=project.path,
            env=project.env,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=True,
        )
    status, kibibytes = map(int, measured.read_text().split())
    return Ended(status, said.read_text(errors="replace"), time.monotonic() - began, kibibytes / 1024)


def require_named(ended: Ended) -> None:
    """What every command owes its user, whatever a host does."""
    assert "localhost" in ended.output
    assert "Traceback" not in ended.output
    assert "\x1b" not in ended.output


# These read the same answer in the same way as another command.
REPEATED = {"check by facts", "check by network", "launch by prepare", "launch by ping", "logs", "attach"}
REPEATED |= {"stop", "stacks", "get", "put", "run", "clean"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if name in REPEATED else ()) for name in COMMANDS]
)
def test_a_command_names_the_liar_and_shows_no_traceback(tmp_path: Path, name: str) -> None:
    word, words = COMMANDS[name]
    ended = command(tmp_path, words, f"{word}:unknown-report")
    require_named(ended)
    assert ended.status != 0 or name == "status", "a list of jobs says beside it which hosts gave none"


def told(name: str) -> list[str]:
    """The lies that a command hears: every third one, so that six commands hear each, and silence.

    One function reads the messages of a host for all of them (deploy/core/connect/channel.py).
    """
    others = sorted({*LIES} - {"empty", "escape", "end", "silence"})
    return [*others[[*COMMANDS].index(name) % 3 :: 3], "silence"]


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_lie_fills_the_driver_or_keeps_it_waiting(tmp_path: Path, name: str) -> None:
    word, words = COMMANDS[name]
    for number, lie in enumerate(told(name)):
        folder = tmp_path / str(number)
        folder.mkdir()
        ended = command(folder, words, f"{word}:{lie}")
        require_named(ended)
        assert ended.memory < 300
        # From the lie it is at most 15 s; the command itself starts and ends a host's agent.
        hold(f"{name}: {lie}", ended.seconds, 15 + 5)
