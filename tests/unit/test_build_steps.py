"""What a build of docker buildx says becomes steps that are done, a log, and the reason of a failure."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.image.follow import Steps, follow, is_followed

BASE, COPY, RUN = "sha256:1", "sha256:2", "sha256:3"


def vertex(digest: str, name: str, **said: Any) -> dict[str, Any]:
    return {"digest": digest, "name": name, **said}


def output(digest: str, text: str) -> dict[str, Any]:
    return {"vertex": digest, "stream": 1, "data": base64.b64encode(text.encode()).decode()}


FROM = "[node 1/3] FROM docker.io/library/debian:trixie-slim"
KNOWN: dict[str, Any] = {
    "vertexes": [
        vertex("sha256:0", "[internal] load build definition from Dockerfile", started="1", completed="2"),
        vertex(BASE, FROM),
        vertex(COPY, "[node 2/3] COPY a /"),
        vertex(RUN, "[cpu node 3/3] RUN make"),
    ]
}
CACHED = {"vertexes": [vertex(BASE, FROM, started="2", completed="2", cached=True)]}
RUNS = {"vertexes": [vertex(RUN, "[cpu node 3/3] RUN make", started="3")]}
SAYS = {"logs": [output(RUN, "cc a.c\n"), output(RUN, "a.c:1: error\n")]}
BROKEN = {
    "vertexes": [
        vertex(RUN, "[cpu node 3/3] RUN make", started="3", completed="4", error="did not complete: 2")
    ]
}


def steps_of(*said: dict[str, Any]) -> tuple[Steps, str]:
    steps = Steps()
    return steps, "".join(steps.take(json.dumps(one) + "\n") for one in said)


def test_only_steps_of_the_dockerfile_count_and_all_are_known_at_once() -> None:
    steps, _ = steps_of(KNOWN)
    assert (steps.done, steps.total) == (0, 3)
    steps, _ = steps_of(KNOWN, CACHED, RUNS)
    assert (steps.done, steps.total, steps.doing) == (1, 3, "[cpu node 3/3] RUN make")


def test_the_log_has_each_step_and_its_output_in_order() -> None:
    _, text = steps_of(KNOWN, CACHED, RUNS, SAYS, BROKEN)
    assert text.splitlines() == [
        "[internal] load build definition from Dockerfile: done",
        f"{FROM}: there already",
        "[cpu node 3/3] RUN make",
        "cc a.c",
        "a.c:1: error",
        "[cpu node 3/3] RUN make: did not complete: 2",
    ]


def test_a_status_may_stand_on_many_lines() -> None:
    """As buildx 0.13 writes it."""
    steps, text = Steps(), ""
    for said in (KNOWN, CACHED, RUNS, SAYS):
        text += "".join(map(steps.take, f"{json.dumps(said, indent=2)}\n".splitlines(keepends=True)))
    text += steps.take("ERROR: no room\n")
    assert (steps.done, steps.total, steps.doing) == (1, 3, "[cpu node 3/3] RUN make")
    assert text.splitlines()[-3:] == ["cc a.c", "a.c:1: error", "ERROR: no room"]


def test_a_failure_quotes_the_step_that_failed_with_the_end_of_its_output() -> None:
    steps, _ = steps_of(KNOWN, RUNS, SAYS, BROKEN)
    assert steps.failure.splitlines() == [
        "[cpu node 3/3] RUN make",
        "cc a.c",
        "a.c:1: error",
        "did not complete: 2",
    ]


def test_steps_that_a_failure_has_stopped_are_not_its_reason() -> None:
    stopped = {"vertexes": [vertex(COPY, "[node 2/3] COPY a /", error="context canceled")]}
    steps, _ = steps_of(KNOWN, stopped, RUNS, BROKEN)
    assert steps.failure.startswith("[cpu node 3/3] RUN make")


@pytest.mark.parametrize(
    "other", ["[1, 2]", "null", '{"vertexes": 3}', '{"logs": [{}]}', "ERROR: no builder"]
)
def test_a_line_that_is_no_status_is_kept_as_it_is(other: str) -> None:
    steps = Steps()
    assert steps.take(f"{other}\n") == f"{other}\n"
    assert steps.failure == other


@pytest.mark.parametrize(
    ("version", "followed"),
    [
        ("github.com/docker/buildx 0.13.1+ds1 0.13.1+ds1-3", True),
        ("github.com/docker/buildx v0.12.1 30feaa1", False),
        ("github.com/docker/buildx v1.0.0 30feaa1", True),
        ("", False),
    ],
)
def test_versions_of_buildx_before_0_13_are_not_followed(version: str, followed: bool) -> None:
    assert is_followed(version) is followed


@pytest.mark.parametrize("status", [0, 1])
def test_a_build_is_followed_to_its_end(status: int, tmp_path: Path) -> None:
    program, log = tmp_path / "docker", tmp_path / "builds" / "cpu.log"
    said = "\n".join(json.dumps(one) for one in (KNOWN, CACHED, RUNS, SAYS, *([BROKEN] if status else [])))
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit {status}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    told: list[tuple[int, int, str]] = []
    why = follow([str(program)], log, lambda *now: told.append(now))
    assert told[-1] == (1, 3, "[cpu node 3/3] RUN make")
    assert "a.c:1: error" in log.read_text()
    assert bool(why) == bool(status) and ("a.c:1: error" in why) == bool(status)


def test_a_build_that_fails_without_a_word_has_its_status(tmp_path: Path) -> None:
    assert follow(["false"], tmp_path / "log", lambda *now: None) == "exit status 1"
