"""The reference of JSON output has the fields that the commands print, and no others."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.launching import Project

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text()
NAMED = {"image", "interfaces", "refused"}
"""Objects whose fields are named by addresses, hosts or parts."""


def described(section: str) -> set[str]:
    """The fields that a section of the page lists."""
    text = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)`", text, re.MULTILINE))


def printed(value: Any, path: str = "") -> set[str]:
    """Every field of a JSON value by its path, as the page writes paths; hosts in `reached` are NAME."""
    found = {path.removeprefix(".")} if path else set()
    if isinstance(value, dict) and path.rpartition(".")[2] not in NAMED:
        for name, inner in value.items():
            found |= printed(inner, f"{path}.NAME" if path.endswith(".reached") else f"{path}.{name}")
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        found |= set().union(*(printed(inner, f"{path}[]") for inner in value))
    return found


def unlisted(found: set[str], listed: set[str]) -> set[str]:
    """What was printed and is not listed; an object or a list is listed by its fields, too."""
    return {
        path
        for path in found - listed
        if not any(name.startswith((f"{path}.", f"{path}[]")) for name in listed)
    }


def test_the_fields_of_a_check(project: Project) -> None:
    done = project.muster("check", "--json", "--hosts", "hosts.txt")
    found, listed = printed(json.loads(done.stdout)), described("check")
    assert not unlisted(found, listed)
    # A host without GPUs, findings and other jobs leaves these empty.
    empty = (
        "findings[].",
        "hosts[].health.gpus[].",
        "hosts[].health.gpu_host.cards[].",
        "hosts[].health.jobs[].",
        "hosts[].facts.jobs[].",
    )
    assert {path for path in listed - found if not path.startswith(empty)} == set()


@pytest.mark.parametrize("deed", ["", "raise"])
def test_the_fields_of_a_result_and_of_a_status(project: Project, deed: str) -> None:
    done = project.launch("--script", "program.py", f"--args={deed}")
    found, listed = printed(done.result), described("result.json")
    assert not unlisted(found, listed)
    assert {
        path
        for path in listed - found
        if not path.startswith(
            (
                "first_failure.",
                "why.",
                "late[",
                "left[",
                "left_out[",
                "ended_early[",
                "kernel[",
                "kernel_unread[",
                "written[",
                "killed[",
                "memory_kills[",
            )
        )
    } == set()
    assert bool(deed) == ("first_failure.reason" in found)
    status = project.muster("status", "--json")
    found, listed = printed(json.loads(status.stdout)), described("status")
    assert not unlisted(found, listed)
    in_trouble = ("[].stall.", "[].late[].", "[].left_out[].")
    assert {path for path in listed - found if not path.startswith(in_trouble)} == set()
