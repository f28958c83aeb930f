"""What a user writes, as Invoke's parser reads it."""

from __future__ import annotations

import shlex

import pytest
from invoke.parser import Parser

from muster.deploy.cli.commands import FAMILIES, collection
from muster.deploy.cli.program import commands
from muster.deploy.cli.words import spelled_out
from muster.deploy.errors import UsageError

NAMESPACE = collection()
COMMANDS = commands(NAMESPACE)


def spelled(line: str) -> list[str]:
    return spelled_out(shlex.split(line), COMMANDS, "muster")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("status", "status"),
        ("logs J -f", "logs --job=J --follow"),
        ("logs --hosts h.txt J", "logs --hosts=h.txt --job=J"),
        ("logs -f J --rank 3", "logs --follow --job=J --rank=3"),
        ("logs --help", "logs --help"),
        ("put a b", "put --file=a --to=b"),
        ("run -- ls -l", "run '--command= ls -l'"),
        ("run --timeout 5 ls --help", "run --timeout=5 '--command= ls --help'"),
        ("run -- --hosts", "run '--command= --hosts'"),
        ("launch train.py", "launch --script=train.py"),
        ("launch train.py --epochs 3 --np 4", "launch --script=train.py '--args= --epochs 3 --np 4'"),
        ("launch train.py -- --help", "launch --script=train.py '--args= -- --help'"),
        ("launch train.py 'a b' ''", "launch --script=train.py \"--args= 'a b' ''\""),
        ("launch -m pack.age -m x", "launch --module=pack.age '--args= -m x'"),
        ("launch --module m --np 4", "launch --module=m --np=4"),
        ("launch --module m word --np 4", "launch --module=m '--args= word --np 4'"),
        ("launch --script s.py word", "launch --script=s.py '--args= word'"),
        ("launch -- --epochs 3", "launch '--args= --epochs 3'"),
        ("launch -- ", "launch"),
        ("launch -H h -n 4 -x A=1 -xB", "launch --hosts=h --np=4 --env=A=1 --env=B"),
        ("launch -np 4 --hostfile h --nproc_per_node=2", "launch --np=4 --hosts=h --per-host=2"),
        ("launch --dry_run -n4", "launch --dry-run --np=4"),
        ("--dry launch", "--dry launch"),
        ("check -H h", "check --hosts=h"),
        ("image build cpu", "image.build --target=cpu"),
        ("image.push --image i", "image.push --image=i"),
        ("setup -- --check -e 'a=b c'", "setup \"--ansible= --check -e 'a=b c'\""),
        ("help", "--help"),
        ("help launch", "launch --help"),
        ("help image build", "image.build --help"),
        ("--version", "--version"),
    ],
)
def test_words_become_flags(written: str, meant: str) -> None:
    assert spelled(written) == shlex.split(meant)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("launch --dryrun", "muster launch: unknown option --dryrun; did you mean --dry-run?"),
        ("launch --epochs 3", "follows its name: muster launch SCRIPT --epochs"),
        ("launch --args A --args B", '--args is given twice; all in one: --args="A B"'),
        ("launch --np 2 --np 3", "--np is given twice"),
        ("launch --args A x.py B", "--args is given, and 'B' too"),
        ("launch --np four", "--np needs a whole number, got 'four'"),
        ("launch -n", "-n needs a value"),
        ("launch --np 99999999999999999999", "--np 99999999999999999999: write 999999999 or less"),
        ("eval J x --timeout 61", "--timeout 61: write 60 or less"),
        ("launch --np ٣", "--np needs a whole number, got '٣'"),
        ("launch --script --np 4", "--script needs a value"),
        ("launch --script=--np", "--script needs a value, got the option --np"),
        ("launch --detach=yes", "--detach takes no value"),
        ("launch --nnodes 2", "unknown option --nnodes: ranks follow the order of the hosts file"),
        ("launch --rdzv_backend c10d", "ranks meet by themselves"),
        ("check launch", "muster check: no place for 'launch'"),
        ("stop J K", "muster stop: no place for 'K' after JOB"),
        ("check -- x", "muster check takes nothing after --"),
        ("check -f", "unknown option -f"),
        ("setup --check", "follows --: muster setup -- --check"),
        ("lanuch", "no command lanuch; did you mean launch?"),
        ("train.py", "to run it on the hosts: muster launch train.py"),
        ("image", "which of image build, image check, image sbom, image push?"),
        ("--hosts=h.txt check", "options follow the command: muster check --hosts=h.txt ..."),
    ],
)
def test_a_mistake_is_told_with_what_to_write(written: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        spelled(written)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "line",
    [
        "launch t.py --hosts",
        "launch t.py --detach --np 3",
        "run -- --timeout",
        "launch -- --rank",
        "setup -- --hosts",
    ],
)
def test_the_program_may_have_options_of_our_names(line: str) -> None:
    parser = Parser(contexts=NAMESPACE.to_contexts(ignore_unknown_help=True))
    (task,) = parser.parse_argv(spelled(line))
    rest = COMMANDS[task.name or ""].rest
    words = shlex.split(line)
    assert shlex.split(task.args[rest].value) == words[2:]
    ours = {name: one for name, one in task.args.items() if name not in {rest, "script"}}
    assert [name for name, one in ours.items() if one.got_value] == []


def test_help_shows_every_command_once() -> None:
    shown = [name for names in FAMILIES.values() for name in names]
    assert sorted(shown) == sorted(NAMESPACE.task_names) == sorted(COMMANDS)
