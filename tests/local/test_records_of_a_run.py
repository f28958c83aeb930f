"""A real run that fails leaves its page, its events and its record."""

from __future__ import annotations

import json

from tests.launching import Project


def test_a_failed_run_leaves_its_page_and_events(project: Project) -> None:
    words = ["--script", "program.py", "--args=raise", "--env", "HF_TOKEN=s3cret"]
    done = project.launch(*words)
    assert done.status == 1
    page = (done.folder / "report.html").read_text()
    assert f"page: {(done.folder / 'report.html').relative_to(project.path)}" in done.output
    assert "rank 1 on localhost: exit status 1" in page
    assert "ValueError: boom" in page
    assert "s3cret" not in page
    events = [json.loads(line) for line in (done.folder / "events.jsonl").read_text().splitlines()]
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-1]) == ("attempt.started", "job.ended")
    assert "rank.failed" in kinds
    assert (events[-1]["rank"], events[-1]["exit_status"]) == (1, 1)
    launch = json.loads((done.folder / "launch.json").read_text())
    assert launch["env"] == {"HF_TOKEN": "***"}
    assert "program.py" in launch["code"]["files"]
