"""What a program writes beside its code is named, comes here, and stays for the next launch if it is kept."""

from __future__ import annotations

import pytest

from tests.launching import Project

PROGRAM = """
import os, sys
if os.environ["RANK"] == "0":
    print("resumed" if os.path.exists("checkpoints/last.pt") else "from scratch")
    os.makedirs("checkpoints", exist_ok=True)
    with open("checkpoints/last.pt", "w") as file:
        file.write("w" * 5000)
    sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("launcher", "status"), [("mpirun", 3), pytest.param("torchrun", 0, marks=pytest.mark.soak)]
)
def test_results_beside_the_code_are_named_and_fetched(project: Project, launcher: str, status: int) -> None:
    (project.path / "save.py").write_text(PROGRAM)
    done = project.launch("--launcher", launcher, "save.py", str(status))
    assert done.status == status, done.output
    get = f"muster get {done.job} fetches it; the next launch starts without it"
    assert f"written beside the code: checkpoints/last.pt, 4.9 KiB on localhost; {get}" in done.output
    fetched = project.muster("get", done.job)
    assert fetched.stdout == f"runs/{done.job}/files/checkpoints/last.pt\n", fetched.stderr
    assert (done.folder / "files" / "checkpoints" / "last.pt").stat().st_size == 5000
    cleaned = project.muster("clean", "--older-than", "0").stdout
    assert f"{done.job}: checkpoints/last.pt, 4.9 KiB\n" in cleaned
    assert "1 job removed, 0 kept" in project.muster("clean", "--older-than", "0", "--results").stdout


def test_a_kept_folder_lets_the_next_launch_resume(project: Project) -> None:
    (project.path / "save.py").write_text(PROGRAM)
    (project.path / "muster.toml").write_text('keep = ["checkpoints"]\n')
    for said in ("from scratch", "resumed"):
        done = project.launch("save.py", "0")
        assert f"[0 localhost] {said}" in done.output
        assert "kept: checkpoints in ~/.muster/kept/" in done.output
        assert "beside the code" not in done.output
        project.muster("clean", "--older-than", "0", "--results")
