"""What `muster launch --slurm` decides before Slurm is asked for hosts."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from muster.deploy.cli.dispatch import main
from muster.deploy.cli.inventory import with_source
from muster.deploy.cli.launch_options import LaunchOptions
from muster.deploy.cli.shared import THIS_ALLOCATION
from tests.slurm import put_programs

MISTAKES = {
    "none.py": "script none.py: no such file",
    "--max-log 5X a.py": "--max-log 5X: write a number of bytes",
    "--backend x a.py": "muster launch: --backend x: must be one of",
    "--env 1=2 a.py": "--env 1=2: write NAME=value",
    "--network 10.0.0.0/99 a.py": "--network 10.0.0.0/99",
    "--slots many a.py": "--slots many: write gpus",
    "--np 2 --rank 2 a.py": "--rank 2: the job has the ranks 0 to 1",
}


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that salloc writes, which then refuses."""
    marker = tmp_path / "asked"
    put_programs(tmp_path / "bin", salloc=f"touch {marker}; echo 'salloc: error: full' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "a.py").touch()
    monkeypatch.chdir(tmp_path / "project")
    return marker


@pytest.mark.parametrize(("words", "said"), MISTAKES.items())
def test_a_mistake_is_reported_before_slurm_is_asked_for_hosts(
    asked: Path, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["launch", "--slurm", "-N 2", *shlex.split(words)])
    assert (end.value.code, asked.exists()) == (2, False)
    assert capsys.readouterr().err.startswith(said)


def test_slurm_is_asked_where_nothing_is_wrong(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["launch", "--slurm", "-N 2", "a.py"])
    assert (end.value.code, asked.exists()) == (2, True)
    assert capsys.readouterr().err == "--slurm '-N 2': full\n"


@pytest.mark.parametrize(
    ("job", "options", "hosts_file", "slurm"),
    [
        ("5", LaunchOptions(), False, THIS_ALLOCATION),
        ("5", LaunchOptions(include="n1"), False, THIS_ALLOCATION),
        ("5", LaunchOptions(slurm="none"), False, ""),
        ("5", LaunchOptions(slurm="-N 2"), False, "-N 2"),
        ("5", LaunchOptions(hosts="other.txt"), False, ""),
        ("5", LaunchOptions(), True, ""),
        ("", LaunchOptions(), False, ""),
    ],
)
def test_a_launch_without_hosts_uses_the_allocation_around_it(
    asked: Path,
    monkeypatch: pytest.MonkeyPatch,
    job: str,
    options: LaunchOptions,
    hosts_file: bool,
    slurm: str,
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", job)
    if hosts_file:
        Path("hosts.txt").write_text("n1\n")
    assert with_source(options).slurm == slurm


@pytest.mark.parametrize("command", ["launch a.py", "check", "bench links"])
def test_the_hosts_are_those_of_the_allocation(
    asked: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    put_programs(asked.parent / "bin", scontrol="echo 'scontrol: error: asked for the hosts' >&2; exit 1")
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    with pytest.raises(SystemExit):
        main(command.split())
    out, err = capsys.readouterr()
    assert err.startswith("note: the hosts are those of Slurm's allocation 5; --slurm=none goes without it\n")
    assert "scontrol: asked for the hosts" in out + err
