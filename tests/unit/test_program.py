"""`muster` and `fab` as processes: help, versions, exit statuses, completion."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from muster.deploy.cli import dispatch as program
from muster.deploy.cli.completion import SHELLS
from muster.deploy.cli.dispatch import COMPLETE, Commands, main
from muster.deploy.cli.dispatch import run as run_here
from muster.deploy.features.practice import command as practice
from tests.launching import FAB, MUSTER, ROOT
from tests.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.slow  # several processes a test

BOTH = pytest.mark.parametrize("program", [MUSTER, FAB], ids=["muster", "fab"])


def run(program: Path, *words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([program, *words], cwd=cwd, capture_output=True, text=True, check=False)


def test_help_has_options(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("launch", "status", "stop", "run", "put", "image push", "setup", "cluster up"):
        assert run_here([*words.split(), "--help"]) == 0
        said = capsys.readouterr()
        assert [line for line in said.out.splitlines() if re.match(r"  (-\w, )?--", line)], words
        assert said.err == ""


@BOTH
def test_help_of_a_command_is_asked_for_in_each_way(program: Path) -> None:
    said = {
        run(program, *words).stdout for words in (["launch", "--help"], ["launch", "-h"], ["help", "launch"])
    }
    (text,) = said
    assert text.startswith(f"Usage: {program.name} launch [options] [SCRIPT] [ARGS ...]\n")


WRONG = [
    "launch --dryrun",
    "launch --np four",
    "launch no.py",
    "launch python train.py",
    "launch -- fabfile.py",
    "check --hosts no.txt",
    "--hosts hosts.txt check",
    "setup --hosts no.txt",
    "nothing",
]


@pytest.mark.parametrize("line", WRONG)
def test_what_the_user_wrote_wrong_ends_with_status_2(
    line: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(SystemExit) as end:
        main([*line.split()])
    assert end.value.code == 2
    assert capsys.readouterr().err.strip()


@pytest.mark.parametrize(
    ("code", "status"), [(0, 0), (3, 3), (255, 255), (256, 1), (-1, 129), (-9, 137), (1 << 61, 1)]
)
def test_no_failure_ends_like_a_success(code: int, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code may be of a record of a host, and of a status the kernel keeps eight bits."""
    monkeypatch.setattr(program, "run", lambda words, called: code)
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == status


def test_a_demo_needs_torch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(practice, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as end:
        main(["demo"])
    assert end.value.code == 3
    assert "pip install torch numpy" in capsys.readouterr().err


def test_a_demo_says_how_to_find_muster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("activate", "muster"):
        (programs / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/nowhere")
    said = "next:   source .venv/bin/activate, and muster is a command of this terminal\n"
    assert practice._how_to_find_muster(programs) == said
    monkeypatch.setenv("PATH", str(programs))
    assert practice._how_to_find_muster(programs) == ""


@pytest.mark.parametrize("words", [["--fail", "--hang"], ["--fail", "--np", "1"], ["--hang", "--np", "1"]])
def test_a_demo_that_cannot_be_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", *words])
    assert end.value.code == 2
    assert "--" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("variables", "done", "missing"),
    [
        ({}, ["build", "run", "up"], 0),
        ({"MUSTER_TARGET": "cpu-source"}, ["muster:cpu-source", "run", "up"], 0),
        ({"MUSTER_TARGET": "cuda-debian"}, ["muster:cuda-debian"], 1),
        ({"MUSTER_IMAGE": "registry.site:5000/node:7"}, ["registry.site:5000/node:7", "run", "up"], 0),
    ],
)
def test_a_practice_cluster_of_another_image_runs_it_and_builds_none(
    variables: dict[str, str],
    done: list[str],
    missing: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []
    for name in ("MUSTER_TARGET", "MUSTER_IMAGE"):
        monkeypatch.setenv(name, variables.get(name, ""))
    monkeypatch.chdir(tmp_path)

    def inspect(argv: list[str], env: None) -> int:
        asked.append(argv[-1])
        return missing

    monkeypatch.setattr(practice, "run_program", inspect)
    monkeypatch.setattr(practice, "_compose", lambda hosts_file, *words, env=None: asked.append(words[0]))
    assert run_here(["cluster", "up"]) == (2 if missing else 0)
    assert asked == done
    said = capsys.readouterr()
    assert ("no image" in said.err) is bool(missing)
    assert ("downloads 0.2 GB" in said.out + said.err) is (not variables)


def test_errors_break_between_words_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "40")
    for is_terminal, most in ((True, 40), (False, 1000)):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal)
        monkeypatch.setattr(sys, "stderr", stream)
        assert run_here(["launch", "--hosts", "no-such-file.txt", "train.py"]) == 2
        lines = stream.getvalue().splitlines()
        assert max(map(len, lines)) <= most and (len(lines) > 1) is is_terminal
        assert " ".join(stream.getvalue().split()).startswith("no-such-file.txt: no such hosts file;")


def test_fab_ends_so_too() -> None:
    for line in ("launch --dryrun", "--hosts hosts.txt check"):
        done = run(FAB, *line.split())
        assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (2, "", False), done


def test_the_version_is_ours_and_that_of_what_we_stand_on() -> None:
    lines = run(MUSTER, "--version").stdout.splitlines()
    assert lines[0] == f"Muster {version('muster-cluster')}"
    assert [line.split()[0] for line in lines[1:]] == ["Fabric", "Invoke", "Paramiko"]


@pytest.mark.parametrize("words", ["--version", "help", "launch --help", "init", "status"])
def test_no_command_loads_a_library_before_it_is_needed(words: str, tmp_path: Path) -> None:
    slow = {"docker", "fabric", "invoke", "paramiko", "requests", "rich", "textual", "urllib3"}
    script = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print({slow} & {{*sys.modules}}, file=sys.stderr))\n"
        f"sys.argv = ['muster', *{words.split()}]\n"
        "from muster.deploy.cli.entry import main; main()"
    )
    done = run(Path(sys.executable), "-c", script, cwd=tmp_path)
    assert done.stderr.strip() == "set()"


def test_an_example_is_copied_with_what_it_imports(tmp_path: Path) -> None:
    done = run(MUSTER, "init", "--example", "gpt_sharded", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for name in ("gpt_sharded.py", "gpt.py"):
        assert (tmp_path / name).read_text() == (ROOT / "examples" / name).read_text()
    assert not (tmp_path / "minimal.py").exists()


def test_an_example_that_does_not_exist_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    done = run(MUSTER, "init", "--example", "gtp", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("--example gtp: must be one of async_all_reduce, fails, gpt, ")
    assert not list(tmp_path.iterdir())


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{MUSTER} launch --help | true"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("", {"launch", "logs", "image"}),
        ("lau", {"launch"}),
        ("image ", {"build", "check", "push"}),
        ("launch --st", {"--start-timeout", "--stall-timeout"}),
        ("launch --launcher ", {"mpirun", "torchrun"}),
        ("launch --launcher m", {"mpirun"}),
        ("attach ", {"20261120-234529-b2d8"}),
    ],
)
def test_a_shell_is_offered_what_may_follow(
    line: str, offered: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "20261120-234529-b2d8").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert offered <= {*candidates(line)}


@pytest.mark.parametrize("line", ["launch ", "launch tr", "launch --script ", "launch -H "])
def test_files_are_left_to_the_shell(line: str) -> None:
    assert candidates(line) in ([], [line.rsplit(" ", maxsplit=1)[-1]])


def candidates(line: str) -> list[str]:
    """The candidates of a shell at the end of a line."""
    before, _, last = line.rpartition(" ")
    complete = ShellComplete(Commands(), {}, "muster", COMPLETE)
    return [item.value for item in complete.get_completions(shlex.split(before), last)]


@pytest.mark.parametrize("shell", SHELLS)
def test_there_is_a_completion_script(shell: str) -> None:
    done = run(MUSTER, "completion", shell)
    assert done.returncode == 0
    assert COMPLETE in done.stdout
    if shutil.which(shell):
        read = subprocess.run([shell, "-n"], input=done.stdout, capture_output=True, text=True, check=False)
        assert read.stderr == ""


def test_bash_completes_with_the_script() -> None:
    script = run(MUSTER, "completion", "bash").stdout
    ask = 'COMP_WORDS=(muster lau); COMP_CWORD=1; _muster_completion muster; echo "${COMPREPLY[*]}"'
    done = subprocess.run(
        ["bash", "-c", f'PATH="{MUSTER.parent}:$PATH"\n{script}\n{ask}'],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "launch"


def test_a_fabfile_may_have_tasks_of_its_own(tmp_path: Path) -> None:
    own = (
        "from invoke import task\n"
        "from muster.deploy.cli.fab import commands\n"
        "@task\n"
        "def mine(context):\n"
        "    print('mine')\n"
        "namespace = commands()\n"
        "namespace.add_task(mine)\n"
    )
    (tmp_path / "fabfile.py").write_text(own)
    assert run(FAB, "mine", cwd=tmp_path).stdout == "mine\n"
    assert "launch" in run(FAB, "--list", cwd=tmp_path).stdout
    assert run(FAB, "help", "launch", cwd=tmp_path).returncode == 0


def test_options_of_fab_itself_stand_before_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fabric", "--search-root", str(ROOT), "launch", "--epoch", "3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "fab launch: unknown option --epoch")


def test_a_command_loads_no_other_command() -> None:
    loaded = "[name for name in sys.modules if name.startswith('muster.deploy.features.image')]"
    script = f"import sys, muster.deploy.cli.commands as c; c.commands('launch'); print({loaded})"
    done = run(Path(sys.executable), "-c", script)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_launch_loads_nothing_that_only_a_job_that_stands_still_needs(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text("localhost slots=1\n")
    (tmp_path / "train.py").touch()
    script = (  # a plan is made, so that what a launch imports on its way is there too; then what a job needs
        "import sys\n"
        "from muster.deploy.cli.dispatch import run\n"
        "assert run(['launch', '--dry-run', 'train.py']) == 0\n"
        "import muster.deploy.core.job.job\n"
        "from muster.deploy.features.why import diagnosis, pace_watch, stall_watch\n"
        "of = 'muster.deploy.features.'\n"
        "late = (f'{of}why.hang_verdict', f'{of}why.waiting_ranks', f'{of}page', f'{of}top')\n"
        "sys.stderr.write(repr([name for name in sys.modules if name.startswith(late)]))\n"
    )
    done = run(Path(sys.executable), "-c", script, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "[]"), done.stdout


def test_fab_too_keeps_what_python_has_compiled(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "deploy", tmp_path / "muster" / "deploy", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / "fabfile.py", tmp_path)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [str(FAB), "launch", "--help"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("Usage: fab launch"), done.stderr
    kept = (tmp_path / "muster" / "deploy" / "cli" / "__pycache__").glob("launch.*.pyc")
    assert len(list(kept)) == 1


def test_a_ctrl_c_while_muster_still_begins_is_one() -> None:
    script = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\n"  # whoever runs the tests may have it ignored
        "class Interrupts:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.endswith('cli.dispatch'): os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from muster.deploy.cli.entry import main; main()"
    )
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_program_that_a_command_runs(tmp_path: Path, number: signal.Signals) -> None:
    """As docker, which ignores a signal, and whose plugin gets it from the process group alone."""
    docker, ready = tmp_path / "docker", tmp_path / "ready"
    plugin = f"echo $$ >{ready}.new; mv {ready}.new {ready}; exec sleep 1000"
    docker.write_text(f"#!/bin/sh\ntrap : INT TERM HUP\nsh -c '{plugin}'\n")
    docker.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [str(MUSTER), "cluster", "down"]
    with subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE) as process:
        wait_until(ready.exists, "the plugin starts")
        process.send_signal(number)
        process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number
    wait_until(lambda: not Path("/proc", ready.read_text().strip()).exists(), "the plugin ends")
