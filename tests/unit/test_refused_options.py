"""Options that could not be honoured are refused in one sentence, and never ignored."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli.dispatch import main, run
from tests.unit.test_job_states import RECORD, make_run

SLOTS = (
    "--slots needs hosts, and Slurm has not given any yet: "
    '--slurm "... --ntasks-per-node 2" sets the number of ranks of each'
)
NO_HOSTS_FILE = "--hosts mine.txt: Slurm gives the hosts, so no hosts file is read; leave it out"
REFUSED = {
    "launch --detach": {
        "--rank 0 a.py": "--rank ends with this command, and a detached job (--detach) "
        "continues; muster logs JOB --rank shows one rank of it"
    },
    "launch --dry-run": {
        "--rank 0,7 a.py": "--rank 7: the job has the ranks 0 to 2",
        "--min-hosts 1 a.py": "--min-hosts is for restarts; add --max-restarts N",
        "--preload a.py": "--preload is for restarts; add --max-restarts N",
        "--preload --max-restarts 1 --no-record a.py": (
            "--preload does not work with --no-record; leave one out"
        ),
        "--preload --max-restarts 1 --image muster:cpu a.py": (
            "--preload does not work with --image; leave one out"
        ),
        "--spares 1 a.py": "--spares is for restarts; add --max-restarts N",
        "--torch-backend cpu a.py": "--torch-backend needs --requirements FILE",
        "--module=-c": "--module -c: a module name does not begin with a dash",
        "--np 2 --rank 2 a.py": "--rank 2: the job has the ranks 0 to 1",
        "--start-timeout=-1 a.py": "muster launch: --start-timeout -1: write 1 or more",
        "--stall-timeout=-1 a.py": "muster launch: --stall-timeout -1: write 0 or more",
        "--max-restarts=-1 a.py": "muster launch: --max-restarts -1: write 0 or more",
    },
    "launch --slurm '-N 2' --detach": {"--slots 2 a.py": SLOTS},
    "launch --slurm '-N 2'": {
        "--hosts mine.txt a.py": NO_HOSTS_FILE,
        "--detach --hosts mine.txt a.py": NO_HOSTS_FILE,
    },
    "check": {"--runs mine": "--runs mine is for the jobs of --bench; leave it out, or add --bench"},
    "check --slurm '-N 2'": {"--hosts mine.txt": NO_HOSTS_FILE},
    "bench links --slurm '-N 2'": {"--hosts mine.txt": NO_HOSTS_FILE},
    "run": {
        "--timeout=-5 true": "muster run: --timeout -5: write 1 or more",
        "''": "what to run? muster run COMMAND ...",
        '--command "echo don\'t"': '--command "echo don\'t": No closing quotation; quote it as in a shell',
    },
    "shell --hosts mine.txt": {
        "node[1-2]": "node[1-2] names 2 hosts, and a shell needs one host: muster shell node1"
    },
    "clean": {"--older-than=-1": "muster clean: --older-than -1: write 0 or more"},
    f"logs {RECORD['job']}": {
        "--rank 4": "--rank 4: the job has the ranks 0 to 3",
        "--rank=-2": "muster logs: --rank -2: write 0 or more",
    },
    "bench collectives": {
        "-b 2M -e 1M": "--minbytes 2M is above --maxbytes 1M",
        "-b 0": "--minbytes 0: write a number of bytes such as 500M or 8G",
    },
    "image build cpu": {
        "--source .": "--source: the target cpu compiles nothing; it takes the distribution's packages"
    },
    "data push": {
        "https://u:secret@h/x": "data push URL was removed: use `muster run -- curl -O URL`, or push a folder"
    },
    "env remove": {"word": "word: not an environment name; muster env list has the names"},
    "put": {"no.txt": "no.txt: no such file or folder here"},
}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [(f"{line} {words}", sentence) for line, cases in REFUSED.items() for words, sentence in cases.items()],
)
def test_it_is_refused_in_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    sentence: str,
) -> None:
    (tmp_path / "a.py").touch()
    (tmp_path / "hosts.txt").write_text("localhost slots=3\n")
    (tmp_path / "mine.txt").write_text("node[1-3]\n")
    make_run(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # whatever is not refused harms nobody
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(SystemExit) as end:
        main([*shlex.split(line)])
    assert (end.value.code, capsys.readouterr().err) == (2, f"{sentence}\n")


@pytest.mark.parametrize("change", [{"attempt": 1}, {"ranks": 0}], ids=str)
def test_a_rank_of_logs_that_may_have_been_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    make_run(tmp_path / "runs", **change)
    monkeypatch.chdir(tmp_path)
    run(["logs", RECORD["job"], "--rank", "9"])
