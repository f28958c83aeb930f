"""`muster launch --requirements` on this machine: real ranks in an environment that uv makes."""

from __future__ import annotations

from pathlib import Path

from tests.launching import Project
from tests.packages import make_wheel, require


def test_ranks_find_the_packages_and_a_second_launch_makes_nothing(project: Project) -> None:
    make_wheel(project.path / "wheels", "greeting", "1.5")
    require(project.path, "greeting")
    (project.path / "uses.py").write_text("import greeting, sys; print(greeting.VERSION, sys.prefix)\n")
    words = ("--requirements", "requirements.txt", "--torch-backend", "none", "--script", "uses.py")
    dry = project.launch("--dry-run", *words)
    assert dry.status == 0, dry.output
    (planned,) = [line for line in dry.output.splitlines() if line.startswith("packages: ")]
    assert planned.endswith(": localhost gets them")
    key = planned.partition("environment ")[2][:20]
    first = project.launch(*words)
    assert first.status == 0, first.output
    for rank in (0, 1):
        version, prefix = (first.folder / "logs" / f"rank-000{rank}@localhost.out").read_text().split()
        assert (version, Path(prefix).name) == ("1.5", key)
    assert "localhost: 1 package, made in" in first.output
    assert (first.folder / "plan.txt").read_text().count(f"envs/{key}/bin/python") == 2
    second = project.launch(*words)
    assert second.status == 0, second.output
    assert "made in" not in second.output
    assert planned.replace("gets", "has") in (second.folder / "plan.txt").read_text()
