"""One command, one file, on every host: muster run, put, get, shell and clean."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.cluster.striking import clean_at
from tests.launching import MUSTER, Project
from tests.terminals import shown_on
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster


@pytest.fixture(autouse=True)
def nothing_is_left(cluster: Cluster) -> Iterator[None]:
    yield
    clean_at(cluster, cluster.nodes)


def test_equal_outputs_are_one_and_the_highest_status_counts(project: Project) -> None:
    script = 'echo "$1"; case $(hostname) in node2) echo odd; exit 5;; node3) exit 4;; esac'
    done = project.muster("run", "--", "sh", "-c", script, "sh", "a  b $HOME 'q' --hosts")
    assert done.returncode == 5
    assert done.stdout.splitlines() == [
        "node1: a  b $HOME 'q' --hosts",
        "node2 (exit status 5):",
        "    a  b $HOME 'q' --hosts",
        "    odd",
        "node3 (exit status 4): a  b $HOME 'q' --hosts",
    ]
    assert project.muster("run", "--include", "node[2-3]", "--", "uname").stdout == "node[2-3]: Linux\n"


def test_a_line_for_a_shell_is_told_how_to_get_one(project: Project) -> None:
    done = project.muster("run", "--", "hostname; date")
    missing = "node[1-3] (exit status 127): hostname; date: No such file or directory\n"
    assert (done.returncode, done.stdout) == (127, missing)
    assert done.stderr == "this ran without a shell; with a shell: muster run -- sh -c 'hostname; date'\n"
    done = project.muster("run", "--", "echo;$0", "a b")
    assert done.stderr == "this ran without a shell; with a shell: muster run -- sh -c 'echo;$0' 'a b'\n"
    done = project.muster("run", "--", "no-such-program")
    assert (done.returncode, done.stderr) == (127, "")


def test_a_host_that_cannot_be_reached_keeps_no_other_from_its_work(project: Project) -> None:
    with (project.path / "hosts.txt").open("a") as file:
        file.write("nowhere.invalid\n")
    done = project.muster("run", "--", "uname")
    assert (done.returncode, done.stdout) == (3, "node[1-3]: Linux\n")
    assert done.stderr.startswith("nowhere.invalid: ")


@pytest.mark.soak
def test_a_command_that_takes_too_long_is_ended_with_all_it_started(project: Project) -> None:
    script = "[ $(hostname) != node2 ] || { setsid sleep 300 & sleep 300; }; echo done"
    # Within this time the others must be done, on the busiest machine.
    done = project.muster("run", "--timeout", "8", "--", "sh", "-c", script)
    assert done.returncode == 124
    assert done.stdout == "node[1,3]: done\nnode2 (timed out):\n"


def sleeps(cluster: Cluster, node: str) -> bool:
    return any("sleep" in one.args for one in cluster.processes(node))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_goes_on_without_who_asked_for_it(project: Project, cluster: Cluster, number: int) -> None:
    command = [str(MUSTER), "run", "--", "sh", "-c", "trap '' INT TERM; sleep 100; sleep 100"]
    with subprocess.Popen(
        command,
        cwd=project.path,
        env=project.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
    ) as process:
        for node in cluster.nodes:
            wait_until(partial(sleeps, cluster, node), f"the command on {node}")
        process.send_signal(number)
        said = process.communicate(timeout=100)[1]
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert said == "interrupted; the command is ended on every host\n"


@pytest.mark.soak
def test_files_go_to_every_host_and_come_back_as_they_were(project: Project, cluster: Cluster) -> None:
    source = project.path / "big file.bin"
    source.write_bytes(os.urandom(2_500_000))
    source.chmod(0o640)
    assert project.muster("put", source.name, "some where/").returncode == 0
    done = project.muster("get", f"some where/{source.name}", "back")
    assert done.stdout.splitlines() == [f"back/big file@{node}.bin" for node in cluster.nodes]
    for node in cluster.nodes:
        got = project.path / "back" / f"big file@{node}.bin"
        assert got.read_bytes() == source.read_bytes()
        assert got.stat().st_mode & 0o777 == 0o640


def test_what_one_host_cannot_take_goes_to_none(project: Project, cluster: Cluster) -> None:
    (project.path / "new").write_text("new")
    (project.path / "data").mkdir()
    (project.path / "data" / "file").write_text("new")
    project.muster("run", "--", "sh", "-c", "rm -rf place; mkdir place; echo old >place/file")
    cluster.exec("node3", ["chmod", "500", "/home/muster/place"])
    for words in (("new", "place/file"), ("data", "place/")):
        done = project.muster("put", *words)
        assert done.returncode == 3
        assert done.stderr.startswith("node3: cannot write the file: muster may not use /home/muster/place")
    left = project.muster("run", "--", "sh", "-c", "cat place/file; ls -A place")
    assert left.stdout == "node[1-3]:\n    old\n    file\n"
    cluster.exec("node3", ["chmod", "700", "/home/muster/place"])
    assert project.muster("get", "place/nothing").returncode == 3
    assert not list(project.path.glob("*nothing*"))
    (project.path / "data" / "out").symlink_to("/etc/passwd")
    outside = project.muster("put", "data", "place/")
    assert (outside.returncode, outside.stderr) == (2, "out links to /etc/passwd: outside of the folder\n")


def test_a_folder_goes_to_every_host_and_comes_back_as_it_was(project: Project, cluster: Cluster) -> None:
    source = project.path / "data"
    (source / "empty folder").mkdir(parents=True)
    (source / "deep" / "er").mkdir(parents=True)
    (source / "big.bin").write_bytes(os.urandom(2_500_000))
    (source / "empty").write_text("")
    for number in range(100):
        (source / "deep" / "er" / f"{number} $x").write_text(f"{number}")
    (source / "run me").write_text("#!/bin/sh\n")
    (source / "run me").chmod(0o750)
    (source / "deep" / "link").symlink_to("../big.bin")
    project.muster("run", "--", "rm", "-rf", "place")
    done = project.muster("put", "data", "place/")
    assert (done.returncode, done.stdout) == (0, "node[1-3]: data\n"), done.stderr
    got = project.muster("get", "place/data", "back")
    assert got.stdout.splitlines() == [f"back/data@{node}" for node in cluster.nodes], got.stderr
    for node in cluster.nodes:
        same = subprocess.run(
            ["diff", "-r", "--no-dereference", "data", f"back/data@{node}"], cwd=project.path, check=False
        )
        assert same.returncode == 0
        assert (project.path / "back" / f"data@{node}" / "run me").stat().st_mode & 0o777 == 0o750
    again = project.muster("put", "data", "place/")
    assert (again.returncode, again.stdout) == (0, "node[1-3]: data; nothing had to be sent\n")
    (source / "empty").write_text("not any more")
    again = project.muster("put", "data", "place/")
    assert again.returncode == 3
    assert (
        "node[1-3]: cannot write the file: /home/muster/place/data exists; remove it, or give" in again.stderr
    )
    again = project.muster("get", "place/data", "back")
    assert "node[1-3]: back/data@node[1-3] exists; remove it, or give another folder" in again.stderr


def test_a_shell_is_ssh_as_muster_reaches_the_host(project: Project) -> None:
    done = subprocess.run(
        [str(MUSTER), "shell", "node2"],
        cwd=project.path,
        env=project.env,
        input="hostname\n",
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.endswith("node2\n")
    shown = on_a_terminal([str(MUSTER), "shell", "node2"], project, b"tty; exit\n")
    assert "/dev/pts/" in shown and "PTY" not in shown, shown
    wrong = project.muster("shell", "node9")
    assert wrong.returncode == 2
    assert "node9 not in the hosts file, which has node1, node2, node3" in wrong.stderr


def on_a_terminal(command: list[str], project: Project, typed: bytes) -> str:
    """What a command shows on a terminal on which this is typed."""
    ours, theirs = pty.openpty()
    os.write(ours, typed)
    with subprocess.Popen(
        command, cwd=project.path, env=project.env, stdin=theirs, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        shown = shown_on(ours)
    os.close(ours)
    return shown


@pytest.mark.soak
def test_cleaning_takes_what_is_over_and_leaves_what_runs(project: Project, cluster: Cluster) -> None:
    (project.path / "wait.py").write_text("import sys, time; time.sleep(float(sys.argv[1]))")
    over = project.launch("--script", "wait.py", "--args=0").job
    running = project.detach("--script", "wait.py", "--args=300")
    done = project.muster("clean", "--older-than", "0", "--results", "--json")
    assert done.returncode == 0, done.stderr
    for found in json.loads(done.stdout).values():
        assert over in found["removed"]
        assert found["kept"] == [running]
        assert found["freed"] > 0
    assert json.loads(project.muster("status", running, "--json").stdout)[0]["state"] == "running"
    assert project.muster("stop", running).returncode == 0
    again = project.muster("clean").stdout
    assert again.startswith("node1: 0 jobs removed, 1 kept, ")


WRITING = """
import os, socket
os.makedirs("ckpt", exist_ok=True)
for name, text in (("last.pt", socket.gethostname()), ("same.txt", "x"), (os.environ["RANK"], "")):
    with open(f"ckpt/{name}", "w") as file:
        file.write(text)
"""


@pytest.mark.soak
def test_what_a_job_wrote_comes_from_every_host(project: Project) -> None:
    (project.path / "save.py").write_text(WRITING)
    job = project.detach("--np", "3", "--per-host", "1", "save.py")
    assert project.muster("logs", "-f", job).returncode == 0
    got = project.muster("get", job)
    assert got.returncode == 0, got.stderr
    files = project.path / "runs" / job / "files" / "ckpt"
    names = {f"last@node{number}.pt": f"node{number}" for number in (1, 2, 3)}
    assert {path.name: path.read_text() for path in files.iterdir()} == {
        **names,
        "same.txt": "x",
        **dict.fromkeys("012", ""),
    }
    attached = project.muster("attach", job)
    assert "written beside the code: ckpt/last.pt and 2 more, 6 B on node[1-3]; " in attached.stdout
    assert (files / "same.txt").exists()
    cleaned = project.muster("clean", "--older-than", "0")
    assert cleaned.stdout.count(f"    {job}: ckpt/last.pt and 2 more, 6 B\n") == 3
    removed = json.loads(project.muster("clean", "--older-than", "0", "--results", "--json").stdout)
    assert [job in found["removed"] for found in removed.values()] == [True] * 3
