"""The record of what was launched: everything that may make two runs differ, and nothing secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.deploy.core.job.attempt_record import hidden_values, launched
from muster.deploy.core.plan.spec import Program
from tests.unit.plans import NODE, make_plan


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("--hf-token abc --lr 1", "--hf-token *** --lr 1"),
        ("--api_key=abc", "--api_key=***"),
        ("--password 'a b' x", "--password *** x"),
        ("--tokenizer gpt2 --max-tokens 5 --key 3 --author me", None),
    ],
)
def test_values_of_options_that_take_a_secret_are_hidden(line: str, shown: str | None) -> None:
    assert hidden_values(line) == (shown or line)


def test_a_long_line_of_a_host_does_not_hold_the_page_up() -> None:
    line = "-a" * 200_000  # minutes, if each dash were tried
    assert hidden_values(f"{line} --api-key x") == f"{line} --api-key ***"


def test_the_record_has_arguments_environment_versions_and_code_but_no_secret() -> None:
    spec: dict[str, Any] = {
        "program": Program(script="train.py", args=("--lr", "0.1", "--token", "s3cret", "--api-key=s3cret")),
        "env": (("LEVEL", "3"), ("HF_TOKEN", "s3cret"), ("PLAIN", "s3cret")),
        "hidden": ("PLAIN", "--tell"),
    }
    spec["command"] = ("muster", "launch", "--env", "HF_TOKEN=s3cret", "--env", "PLAIN", "--env", "LEVEL=3")
    spec["command"] += ("--tell", "curl -d @- chat.example/s3cret", "train.py", "--token", "s3cret")
    plan = make_plan("node[1-2] slots=2", **spec)
    record = launched(plan, {"node1": NODE})
    assert record["command"] == (
        "muster launch --env HF_TOKEN --env PLAIN --env LEVEL=3 --tell '***' train.py --token '***'"
    )
    assert "commit" not in record
    assert "s3cret" not in json.dumps(record)
    assert record["args"] == ["--lr", "0.1", "--token", "***", "--api-key=***"]
    assert record["env"] == {"LEVEL": "3", "HF_TOKEN": "***", "PLAIN": "***"}
    assert record["hosts"][0]["torch"] == "2.6.0"
    assert record["hosts"][1] == {"name": "node2", "ranks": [2, 3]}
    assert record["code"]["files"] == {"train/__main__.py": "ab" * 32}
