"""The values of options, by their type: a mistake is refused in one sentence before anything is reached."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from muster.deploy.cli.commands import commands
from muster.deploy.core.errors import UsageError
from muster.deploy.core.plan.flags import Flag
from tests.command_lines import parse

FLAGS = {
    f"{name} {flag.name}": flag for name, command in commands().items() for flag in command.flags.values()
}
HUGE = "9" * 30


def flags(chosen: Callable[[Flag], object]) -> dict[str, Flag]:
    found = {option: flag for option, flag in FLAGS.items() if chosen(flag)}
    assert found
    return found


def test_a_number_is_whole_and_within_its_limits() -> None:
    for option, flag in flags(lambda flag: flag.kind is int).items():
        for value in ("word", "1.5", "", HUGE, str((flag.least or 0) - 1), str(flag.most + 1)):
            assert repr(value) in (said := flag.mistake(option, value)) or f" {value}: write" in said
        for number in (flag.least or 0, flag.most):
            assert flag.mistake(option, str(number)) == ""


def test_an_empty_text_is_a_mistake_unless_the_option_gives_it_a_meaning() -> None:
    for option, flag in flags(lambda flag: flag.kind in {str, tuple} and not flag.choices).items():
        for value in ("", " "):
            said = "" if flag.blank else f"{option} is empty; give it a value, or leave it out"
            assert flag.mistake(option, value) == said


def test_a_choice_is_one_of_those_that_the_help_names() -> None:
    for option, flag in flags(lambda flag: flag.choices).items():
        assert [flag.mistake(option, choice) for choice in flag.choices if flag.mistake(option, choice)] == []
        assert flag.mistake(option, "word") == f"{option} word: must be one of {', '.join(flag.choices)}"


def test_a_value_with_a_form_of_its_own_is_refused_with_an_example() -> None:
    """What a text means is tested beside its function; here, that each option has one that refuses."""
    for option, flag in flags(lambda flag: flag.parse).items():
        with pytest.raises(UsageError) as refused:
            flag.parsed(("-\n",) if flag.kind is tuple else "-\n")
        said = str(refused.value)
        assert option.split()[1] in said or "'-\\n'" in said


def test_an_empty_word_names_what_is_missing() -> None:
    for line, named in {
        "launch ''": "SCRIPT",
        "launch -m ''": "--module",
        "launch --slurm '' a.py": "--slurm",
        "status ''": "JOB",
        "env remove ''": "ENVIRONMENT",
        "init ''": "FOLDER",
    }.items():
        with pytest.raises(UsageError, match=f"^muster [a-z ]+: {named} is empty; give it a value"):
            parse(shlex.split(line))
