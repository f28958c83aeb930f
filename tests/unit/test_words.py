"""Words without a flag, -f and commands after --, as Invoke's parser reads them."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace
from typing import cast

import pytest
from invoke import Exit
from invoke.program import Program

from muster.deploy.cli import namespace
from muster.deploy.cli.positional import read_words, spell_out
from tests.launching import FAB, ROOT

VALUED = {"--job", "--hosts", "--rank", "--command"}


@pytest.mark.parametrize(
    ("written", "spelled"),
    [
        ("status", "status"),
        ("logs J -f", "logs --job=J --follow"),
        ("logs --hosts h.txt J", "logs --hosts h.txt --job=J"),
        ("logs -f J --rank 3", "logs --follow --job=J --rank 3"),
        ("logs --help", "logs --help"),
        ("stop J K", "stop --job=J K"),  # Invoke complains of K
        ("check -f J", "check -f J"),
    ],
)
def test_words_become_flags(written: str, spelled: str) -> None:
    assert spell_out(written.split(), VALUED) == spelled.split()


def test_the_value_of_a_flag_stays_what_it_is() -> None:
    assert spell_out(["logs", "--hosts", "-f", "J"], VALUED) == ["logs", "--hosts", "-f", "--job=J"]


def test_only_run_takes_a_command_after_dashes() -> None:
    program = SimpleNamespace(core=SimpleNamespace(unparsed=["launch"], remainder="python x"), argv=[])
    with pytest.raises(Exit, match="fab launch takes nothing after --"):
        read_words(cast("Program", program), namespace)


@pytest.mark.parametrize("command", ["launch", "status", "stop", "run", "put", "image.push"])
def test_help_explains_every_option(command: str) -> None:
    done = subprocess.run([FAB, command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    options = [
        line for line in done.stdout.partition("Options:\n")[2].splitlines() if line.startswith("  --")
    ]
    assert len(options) > 1
    assert [line for line in options if len(line.split()) < 2] == []
