"""Removed commands and flags: one sentence names the replacement."""

from __future__ import annotations

import pytest

from muster.deploy.cli.commands import MODULES, commands
from muster.deploy.cli.dispatch import run
from muster.deploy.cli.removed import OTHER_NAMES, REMOVED
from muster.deploy.core.plan.flags import REMOVED_VALUES


def test_a_removed_command_or_flag_names_its_replacement(capfd: pytest.CaptureFixture[str]) -> None:
    for what, instead in REMOVED.items():
        command, _, flag = what.partition(" --")
        argv = [*command.split(), *([f"--{flag}", "1"] if flag else [])]
        assert run(argv) == 2, what
        assert (
            capfd.readouterr().err.replace("\n", " ").split()
            == f"muster {what} was removed: {instead}".split()
        )


def test_the_name_of_another_program_names_ours(capfd: pytest.CaptureFixture[str]) -> None:
    for name, text in OTHER_NAMES.items():
        assert name not in commands(), name
        assert text.split()[0].rstrip("`") in {*MODULES, "--version"}, name
        assert run([name, "x"]) == 2, name
        assert f"has no command {name}: `muster {text}" in " ".join(capfd.readouterr().err.split())


def test_the_names_that_people_try_first_are_answered() -> None:
    """None of them gets a command that is only spelled alike, such as run for srun."""
    tried = """
        ls list ps jobs queue squeue history kill cancel rm delete remove abort scancel tail log output watch
        monitor dashboard htop nvidia-smi gpus ssh login exec cp scp rsync push pull fetch download upload
        sync submit sbatch start train srun torchrun mpirun python accelerate deepspeed restart resume nodes
        sinfo doctor info show describe trace prune cleanup tensorboard version config create
    """
    assert {*tried.split()} <= {*OTHER_NAMES}


def test_nothing_that_is_there_is_listed_as_removed() -> None:
    for what in REMOVED:
        command, _, flag = what.partition(" --")
        declared = commands().get(command.replace(" ", "."))
        assert declared is None if not flag else declared and f"--{flag}" not in declared.flags, what


def test_a_removed_value_of_a_flag_names_its_replacement(capfd: pytest.CaptureFixture[str]) -> None:
    for what, instead in REMOVED_VALUES.items():
        flag, value = what.split()
        having = [name for name, declared in commands().items() if flag in declared.flags]
        assert having, what
        for name in having:
            words = name.replace(".", " ")
            if value in commands()[name].flags[flag].choices:
                raise AssertionError(f"{words} {what} is still there")
            assert run([*words.split(), flag, value]) == 2, name
            assert f" {what} was removed: {instead}" in " ".join(capfd.readouterr().err.split()), name
