"""Programs that start processes of their own, which fail."""

from __future__ import annotations

from tests.launching import Project

FAILS = """
import multiprocessing
def work():
    raise ValueError("boom")
if __name__ == "__main__":
    process = multiprocessing.Process(target=work)
    process.start()
    process.join()
"""


def test_a_process_that_fails_unnoticed_by_its_rank_is_noted(project: Project) -> None:
    (project.path / "program.py").write_text(FAILS)
    done = project.launch("--script", "program.py")
    assert done.status == 0, done.output
    note = "ended with status 0, although a process failed: ValueError: boom"
    assert f"note: ranks 0-1 {note}" in done.output
