"""`muster launch` on this machine alone: real mpirun and torchrun, real failures."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from muster.deploy.cli import dispatch
from muster.deploy.core.agent.supervisor import SILENCE_SECONDS
from tests.launching import FAB, MUSTER, Project, processes_of, wait_until_clean
from tests.terminals import shown_on
from tests.waiting import PATIENCE, read_until

both = pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
mostly_mpirun = pytest.mark.parametrize(
    "launcher", ["mpirun", pytest.param("torchrun", marks=pytest.mark.soak)]
)
NASTY = ["a b", "$HOME", "it's", 'say "hi"', "x;y", "`id`", "*", "a\\tb", "two\nlines", "", "--flag=$(id)"]


def quoted(words: list[str]) -> str:
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in words)


@both
def test_every_rank_runs_where_planned_with_words_unchanged(project: Project, launcher: str) -> None:
    greeting = 'it\'s $HOME; "x"\n`id` * \\'
    words = (f"--args={quoted(NASTY)}", "--env", f"GREETING={greeting}")
    done = project.launch("--launcher", launcher, "--script", "program.py", *words)
    assert done.status == 0, done.output
    for rank in (0, 1):
        said, env = done.said(rank), done.said(rank)["env"]
        assert (said["argv"], env["GREETING"]) == (NASTY, greeting)
        assert (env["RANK"], env["LOCAL_RANK"], env["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert f"[{rank} localhost] {{" in done.output
    result = done.result
    assert (result["exit_status"], result["first_failure"], result["launcher"]) == (0, None, launcher)
    assert [(rank["rank"], rank["host"], rank["code"]) for rank in result["ranks"]] == [
        (0, "localhost", 0),
        (1, "localhost", 0),
    ]
    assert "DONE    2 ranks on 1 host" in done.output
    assert (
        (done.folder / "plan.txt")
        .read_text()
        .startswith(f"job {done.job}: 2 ranks on 1 host with {launcher}")
    )
    assert (done.folder.stat().st_mode & 0o777) == 0o700


def test_a_program_that_fails_at_once_in_the_same_line_is_started_twice(project: Project) -> None:
    (project.path / "broken.py").write_text("import os\nimport missing\n")
    ended = project.launch("--script", "broken.py", "--max-restarts", "3")
    assert ended.status == 1
    assert ended.result["attempt"] == 1, "the third start would end the same way"
    assert "no restart: it failed twice in the same way before its first step" in ended.output
    assert "before that: attempt 0: rank" in ended.output
    assert 'broken.py", line 2' in ended.output.partition("FAILED")[2]


@mostly_mpirun
@pytest.mark.parametrize(
    ("deed", "status", "explanation"),
    [
        pytest.param(
            *("raise", 1, ["FAILED  rank 1 on localhost: exit status 1", "ValueError: boom"]),
            marks=pytest.mark.soak,  # test_readme_commands.py has one
        ),
        ("exit", 3, ["FAILED  rank 1 on localhost: exit status 3"]),
        ("kill", 137, ["FAILED  rank 1 on localhost: SIGKILL (9)"]),
    ],
)
def test_the_first_failing_rank_ends_the_job(
    project: Project, launcher: str, deed: str, status: int, explanation: list[str]
) -> None:
    done = project.launch("--launcher", launcher, "--script", "program.py", f"--args={deed}")
    assert done.status == status, done.output
    for text in explanation:
        assert text in done.output
    failure = done.result["first_failure"]
    assert (failure["kind"], failure["rank"], failure["host"]) == ("rank", 1, "localhost")
    assert not processes_of(done.job)


def test_an_exception_ends_a_job_whose_other_ranks_wait_in_mpi(project: Project) -> None:
    """Plain Python would wait in MPI_Finalize forever."""
    (project.path / "mpi.py").write_text(
        "from mpi4py import MPI\n"
        "if MPI.COMM_WORLD.rank == 1: raise ValueError('boom')\n"
        "MPI.COMM_WORLD.barrier()\n"
    )
    done = project.launch("--script", "mpi.py")
    assert done.status == 1, done.output
    assert "rank 1 on localhost" in done.output
    assert "ValueError: boom" in done.output
    assert not processes_of(done.job)


@mostly_mpirun
def test_ranks_read_an_empty_input(project: Project, launcher: str) -> None:
    (project.path / "reader.py").write_text("import sys\nprint('read', len(sys.stdin.buffer.read()))\n")
    done = subprocess.run(
        [str(MUSTER), "launch", "--launcher", launcher, "--script", "reader.py"],
        cwd=project.path,
        env=project.env,
        input="100\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.count("] read 0\n")) == (0, 2), done
    assert done.stderr.count("note: ranks do not read standard input") == 1


# MPI as torch's own backend has it: nothing imports mpi4py, and exit(3) finalizes.
PLAIN_MPI = """
import ctypes, os, sys
os.environ["OPAL_PREFIX"] = sys.prefix
mpi = ctypes.CDLL(sys.prefix + "/lib/libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
ctypes.CDLL(None).on_exit(mpi.MPI_Finalize, None)
if os.environ["RANK"] == "1": raise ValueError("boom")
mpi.MPI_Barrier(ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")))
"""


def test_an_exception_ends_a_job_whose_others_wait_in_another_mpi(project: Project) -> None:
    (project.path / "mpi.py").write_text(PLAIN_MPI)
    done = project.launch("--script", "mpi.py")
    assert done.status == 1, done.output
    assert "FAILED  rank 1 on localhost: exit status 1" in done.output
    assert "ValueError: boom" in done.output
    assert not processes_of(done.job)


def test_ranks_that_are_alone_to_mpi_under_torchrun_have_failed(project: Project) -> None:
    (project.path / "mpi.py").write_text("from mpi4py import MPI\nprint(MPI.COMM_WORLD.size)\n")
    done = project.launch("--launcher", "torchrun", "--script", "mpi.py")
    assert done.status == 1, done.output
    assert re.search(r"FAILED  rank [01] on localhost: to MPI it was the only rank of a world", done.output)
    assert done.result["first_failure"]["kind"] == "world"


@pytest.mark.timed
@mostly_mpirun
@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak), (signal.SIGKILL, -9)],
)
def test_a_stop_leaves_nothing(project: Project, launcher: str, number: signal.Signals, status: int) -> None:
    with project.start("--launcher", launcher, "--script", "program.py", "--args=wait") as process:
        assert process.stdout is not None
        job = read_until(process, "waiting", 2)[0].split()[1].rstrip(":")
        assert len(processes_of(job)) >= 5  # the launcher, two wrappers, two programs
        process.send_signal(number)
        process.wait(PATIENCE)
        # An agent that only missed its driver would take that long.
        wait_until_clean(job, 5.0, excludes=SILENCE_SECONDS)
        rest = process.stdout.read()
    assert process.returncode == status
    if number is signal.SIGINT:
        assert "STOPPED by SIGINT (2); the job was ended on every host" in rest


def test_two_launches_at_once_do_not_meet(project: Project) -> None:
    with project.start("--script", "program.py") as one, project.start("--script", "program.py") as two:
        outputs = [process.communicate(timeout=540)[0] for process in (one, two)]
    assert [one.returncode, two.returncode] == [0, 0]
    ports = {output.partition(" port ")[2].split()[0] for output in outputs}
    jobs = {output.split()[1] for output in outputs}
    assert (len(ports), len(jobs)) == (2, 2)


def test_a_dry_run_prints_the_plan_and_touches_nothing(project: Project) -> None:
    for words in (["--dry-run"], []):
        before = sorted(path for path in project.path.rglob("*") if ".git" not in path.parts)
        command = [str(FAB), *([] if words else ["--dry"]), "launch", "--script", "program.py", *words]
        done = subprocess.run(
            command, cwd=project.path, env=project.env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "run in " in done.stdout
        assert "muster-rank -m mpi4py program.py" in done.stdout
        assert sorted(path for path in project.path.rglob("*") if ".git" not in path.parts) == before
        assert not list(Path(project.env["HOME"]).iterdir())


def test_the_job_runs_in_a_copy_without_ignored_files_where_the_user_stood(project: Project) -> None:
    (project.path / "sub").mkdir()
    (project.path / "sub" / "list.py").write_text(
        "import os; print(os.getcwd()); print(sorted(os.listdir('..')))"
    )
    done = subprocess.run(
        [str(MUSTER), "launch", "--hosts", "../hosts.txt", "--script", "list.py", "--np", "1"],
        cwd=project.path / "sub",
        env=project.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/.muster/jobs/" in done.stdout
    assert "/code/sub" in done.stdout
    assert "'program.py'" in done.stdout
    assert "ignored.py" not in done.stdout


MISTAKES = {
    "--hosts missing.txt": (2, "missing.txt: no such hosts file"),
    "--hosts .": (2, "is a directory, not a hosts file"),
    "--hosts empty.txt": (2, "empty.txt:1:1: no hosts"),
    "--hosts bad.txt": (2, "bad.txt:1:11: slots must be a positive integer, got '8x'"),
    "--np 3": (2, "--np 3: the hosts have 2 slots"),
    "--launcher pbs": (2, "--launcher pbs: must be one of mpirun, torchrun"),
    "--launcher srun": (2, "--launcher srun was removed: use mpirun or torchrun"),
    "--backend tcp": (2, "--backend tcp: must be one of auto, gloo, nccl, mpi, hccl"),
    "--include node9": (2, "node9 not in the hosts file"),
    "--env 'A B=1'": (2, "--env A B=1: write NAME=value"),
    "--max-restarts 1 --min-hosts 2": (2, "--min-hosts 2: the job has 1 host"),
    "--script missing.py": (2, "script missing.py: no such file"),
    "--script /etc/hostname": (2, "outside"),
    "--script ignored.py": (2, "ignored by git"),
    "--python /no/such/python": (3, "--python /no/such/python: No such file or directory"),
}


def test_what_cannot_be_is_explained(here: Project, capsys: pytest.CaptureFixture[str]) -> None:
    (here.path / "empty.txt").write_text("")
    (here.path / "bad.txt").write_text("localhost slots=8x\n")
    for words, (status, complaint) in MISTAKES.items():
        script = () if "--script" in words else ("--script", "program.py")
        assert dispatch.run(["launch", *shlex.split(words), *script], "muster") == status, words
        said = "".join(capsys.readouterr())
        assert complaint in said and "Traceback" not in said, words
    assert not (here.path / "runs").exists()


def test_hosts_before_the_task_is_explained(project: Project) -> None:
    command = [str(FAB), "--hosts", "hosts.txt", "launch"]
    done = subprocess.run(
        command, cwd=project.path, env=project.env, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.strip()) == (
        2,
        "--hosts comes after the command: fab launch --hosts hosts.txt",
    )


def test_a_python_without_torch_is_named_before_anything_starts(project: Project) -> None:
    done = project.launch("--launcher", "torchrun", "--script", "program.py", "--python", bare_python())
    assert done.status == 3, done.output
    assert "localhost:" in done.output
    assert "has no torch; install it, or name another interpreter with --python" in done.output


# As muster.train draws its bar; it waits until the bar has been seen.
DRAWS = """
import os, pathlib, time
if os.environ["RANK"] == "0":
    print("columns", os.environ["MUSTER_TERMINAL"], flush=True)
    print("epoch 1/5 [##..]", end="\\r", flush=True)
    while not pathlib.Path.home().joinpath("seen").exists():
        time.sleep(0.02)
    print(" " * 16 + "\\rwas seen", flush=True)
"""


def test_on_a_terminal_a_progress_bar_stays_in_place_until_a_line_follows(project: Project) -> None:
    (project.path / "draws.py").write_text(DRAWS)
    process, screen = on_a_terminal([str(MUSTER), "launch", "--script", "draws.py"], project)
    shown = ""
    while not (bar := re.search(r"\n\[0 localhost\] epoch 1/5 \[##\.\.\]", shown)):
        chunk = os.read(screen, 1 << 16)  # EIO, where it ends without a bar
        shown += chunk.decode()
    assert "columns 80" in shown  # a fifth of the terminal's 100 is for rank and host
    Path(project.env["HOME"], "seen").touch()
    shown += shown_on(screen)
    assert process.wait(PATIENCE) == 0
    os.close(screen)
    assert re.match(r"\r\x1b\[K.*was seen", shown[bar.end() :], re.DOTALL), shown


def test_the_title_of_a_plan_fits_its_terminal(project: Project) -> None:
    (project.path / "train.py").touch()
    command = [str(MUSTER), "launch", "--dry-run", "--script", "train.py"]
    process, screen = on_a_terminal(command, project)
    shown = shown_on(screen).splitlines()
    assert process.wait(PATIENCE) == 0
    os.close(screen)
    title = next(number for number, line in enumerate(shown) if "job 20" in line)
    assert "rendezvous at" in "".join(shown[title : title + 3])
    assert max(map(len, shown[title : title + 2])) <= 100


def on_a_terminal(command: list[str], project: Project) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command whose output is a terminal of 100 columns; return it, and what reads the terminal."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    process = subprocess.Popen(
        command, cwd=project.path, env=project.env, stdin=subprocess.DEVNULL, stdout=theirs
    )
    os.close(theirs)
    return process, ours


def bare_python() -> str:
    """The interpreter below this virtual environment, which has no packages of ours."""
    return os.path.realpath(MUSTER.parent / "python")


LIVES_ON = """
import os, threading, time
def save():
    while not os.path.exists(os.environ["MUSTER_OUT"] + "/go"):
        time.sleep(0.02)
    print("saved", flush=True)
if os.environ["RANK"] == "1":
    threading.Thread(target=save, name="writer").start()
    raise ValueError("boom")
time.sleep(300)
"""


@mostly_mpirun
def test_an_exception_is_said_while_a_thread_lives(project: Project, launcher: str) -> None:
    (project.path / "lives.py").write_text(LIVES_ON)
    with project.start("--launcher", launcher, "--script", "lives.py") as process:
        said = "rank 1 (localhost): ValueError: boom; its process is kept alive by thread 'writer'"
        job = read_until(process, said, 1)[0].split()[1].rstrip(":")
        Path(project.env["HOME"], ".muster/jobs", job, "out/go").touch()
        rest = process.communicate(timeout=PATIENCE)[0]
    assert "[1 localhost] saved" in rest
    assert "FAILED  rank 1 on localhost: exit status 1" in rest
    assert process.returncode == 1


def test_a_terminal_that_goes_away_costs_a_job_under_nohup_nothing(project: Project) -> None:
    (project.path / "steps.py").write_text(
        'import time\nfor step in range(8):\n    print("step", step, flush=True)\n    time.sleep(0.1)\n'
    )
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [str(MUSTER), "launch", "--script", "steps.py"],
        cwd=project.path,
        env=project.env,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),  # noqa: PLW1509
    ) as process:
        os.close(terminal)
        said = b""
        while b"step 1" not in said:
            said += os.read(controller, 4096)
        os.close(controller)
        assert process.wait(PATIENCE) == 0
    (verdict,) = project.path.glob("runs/*/verdict.txt")
    assert verdict.read_text().startswith("\nDONE ")


UNEVEN = """
import os, time
from mpi4py import MPI
ranks = MPI.COMM_WORLD
for _ in range(2 if ranks.rank == 1 else 200):
    ranks.allreduce(1)
    time.sleep(0.05)
os._exit(0)
"""


def test_a_rank_that_ends_well_too_early_is_named_under_mpi(project: Project) -> None:
    (project.path / "uneven.py").write_text(UNEVEN)
    done = project.launch("--script", "uneven.py")
    assert done.status != 0
    assert "why: rank 1 on localhost ended with status 0 after" in done.output, done.output
    assert "logs/launcher@*.log" in done.output
    assert [end["rank"] for end in done.result["ended_early"]] == [1]
