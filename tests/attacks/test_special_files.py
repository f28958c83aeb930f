"""A FIFO, a device or a folder in the place of a file that a command reads makes no command wait."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.deploy.cli.dispatch import main
from muster.deploy.cli.project import project_of
from muster.deploy.core.connect.opener import config_beside, pythons_beside
from muster.deploy.core.connect.requests import OUTPUT
from muster.deploy.core.errors import MusterError, UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.job.job_record import caller_of_stop
from muster.deploy.core.plan.walk import IgnoreFiles
from muster.deploy.core.wire.job_folders import describe
from muster.deploy.features.adhoc.wire import Listings
from muster.deploy.features.leases import drained
from muster.deploy.features.packages.requirements import require_no_builds
from muster.deploy.features.page import run_records as records
from muster.deploy.features.setup import record as setup_record
from muster.deploy.features.slurm.mark import mark_of
from tests.unit.test_job_states import RECORD, make_run, only

READERS: dict[str, Callable[[Path], object]] = {
    "hosts.txt": hostfile.load,
    "drained.json": lambda path: drained.load(path.with_name("hosts.txt")),
    ".muster/ssh_config": lambda path: config_beside(path.parents[1] / "hosts.txt"),
    ".muster/pythons": lambda path: pythons_beside(path.parents[1] / "hosts.txt"),
    ".muster/hosts.json": lambda path: setup_record.load(path.parent),
    "muster.toml": lambda path: project_of(path.parent),
    "pyproject.toml": lambda path: project_of(path.parent),
    "requirements.txt": require_no_builds,
    "job.json": lambda path: describe(path.parent),
    "slurm.json": lambda path: mark_of(path.parent),
    "stop.json": lambda path: caller_of_stop(path.parent),
    "model.pt": lambda path: Listings().do_file({"path": str(path)}, b""),
    ".musterignore": lambda path: IgnoreFiles(path.parent, path.name, follow_links=True).has("x"),
}


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, device, Path.mkdir])
def test_a_file_that_is_none_is_refused_or_not_there(tmp_path: Path, make: Callable[[Path], None]) -> None:
    refused = {}
    for number, (name, read) in enumerate(READERS.items()):
        path = tmp_path / str(number) / name
        path.parent.mkdir(mode=0o700, parents=True)
        make(path)
        try:
            read(path)
        except (UsageError, OSError) as error:
            refused[path] = str(error)
    assert [said for path, said in refused.items() if str(path) not in said] == []
    silent = {name for number, name in enumerate(READERS) if tmp_path / str(number) / name not in refused}
    assert (
        not silent & {".musterignore", "muster.toml", "requirements.txt", "hosts.txt"} or make is Path.mkdir
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "name", ["result.json", "verdict.txt", "driver.log", "logs/order", "logs/rank-0000@a.out"]
)
def test_the_page_and_the_output_of_a_run_wait_for_no_fifo(tmp_path: Path, name: str) -> None:
    run = make_run(tmp_path)
    os.mkfifo(run / name)
    if name.startswith("logs/rank"):
        (run / "logs" / "order").write_text(f"1 {Path(name).name}\n")
    records.read(run)
    located = only(tmp_path)
    if name.startswith("logs"):
        with pytest.raises(MusterError, match="not a regular file"):
            located.records.ask(OUTPUT, job=RECORD["job"], rank=None)


@pytest.mark.timeout(60)
def test_init_follows_no_link_and_awaits_no_fifo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "bashrc"
    secret.write_text("mine\n")
    for name in ("link", "fifo"):
        project = tmp_path / name
        project.mkdir()
        if name == "link":
            (project / ".gitignore").symlink_to(secret)
        else:
            os.mkfifo(project / ".gitignore")
        with pytest.raises(SystemExit) as end:
            main(["init", str(project)])
        assert end.value.code == 2
    said = capsys.readouterr().err
    assert "link/.gitignore: a symbolic link, which git does not read" in said
    assert "fifo/.gitignore: cannot be changed" in said
    assert secret.read_text() == "mine\n"
