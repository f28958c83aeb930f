"""What a user writes, as the command and the values of its flags."""

from __future__ import annotations

import shlex

import pytest

from muster.deploy.cli.command import Command
from muster.deploy.cli.commands import SUMMARIES, commands
from muster.deploy.cli.dispatch import run
from muster.deploy.core.errors import UsageError
from tests.command_lines import Call, parse

COMMANDS = commands()


def read(line: str) -> Call:
    return parse(shlex.split(line))


def meaning(line: str) -> Call:
    """A command and its flags, each as one word: launch --np=4 --detach."""
    name, *words = shlex.split(line)
    values: dict[str, object] = {}
    for flag, equals, value in (word.partition("=") for word in words):
        kind = COMMANDS[name].flags[flag].kind
        if kind is tuple:
            values[flag] = (*values.get(flag, ()), value)  # type: ignore[misc]  # a tuple by then
        else:
            values[flag] = True if not equals else int(value) if kind is int else value
    return Call(name, values)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("status", "status"),
        ("eval J x", "eval --job=J --expression=x"),
        ("eval x", "eval --expression=x"),
        ("logs J -f", "logs --job=J --follow"),
        ("logs --hosts h.txt J", "logs --hosts=h.txt --job=J"),
        ("logs -f J --rank 3", "logs --follow --job=J --rank=3"),
        ("put a b", "put --file=a --to=b"),
        ("run -- ls -l", "run '--command=ls -l'"),
        ("run --timeout 5 ls --help", "run --timeout=5 '--command=ls --help'"),
        ("run -- --hosts", "run '--command=--hosts'"),
        ("launch train.py", "launch --script=train.py"),
        ("launch train.py --epochs 3 --np 4", "launch --script=train.py '--args=--epochs 3 --np 4'"),
        ("launch train.py -- --help", "launch --script=train.py '--args=-- --help'"),
        ("launch train.py 'a b' ''", "launch --script=train.py \"--args='a b' ''\""),
        ("launch -m pack.age -m x", "launch --module=pack.age '--args=-m x'"),
        ("launch --module m --np 4", "launch --module=m --np=4"),
        ("launch --module m word --np 4", "launch --module=m '--args=word --np 4'"),
        ("launch --script s.py word", "launch --script=s.py '--args=word'"),
        ("launch -- --epochs 3", "launch '--args=--epochs 3'"),
        ("launch -- ", "launch"),
        ("launch slurm", "launch --script=slurm"),
        ("launch --wait --np 2 wait", "'launch' '--wait=without limit' --np=2 --script=wait"),
        ("launch --slurm -N2 slurm", "launch --slurm=-N2 --script=slurm"),
        ("launch -H h -n 4 -x A=1 -xB", "launch --hosts=h --np=4 --env=A=1 --env=B"),
        ("launch -np 4 --hostfile h --nproc_per_node=2", "launch --np=4 --hosts=h --slots=2"),
        ("launch --dry_run -n4", "launch --dry-run --np=4"),
        ("--dry launch", "launch --dry-run"),
        ("launch --dry", "launch --dry-run"),
        ("launch -- ''", "launch \"--args=''\""),
        ("check -H h", "check --hosts=h"),
        ("image build cpu", "image.build --target=cpu"),
        ("image.push --image i", "image.push --image=i"),
        ("setup -- --check -e 'a=b c'", "setup \"--ansible=--check -e 'a=b c'\""),
    ],
)
def test_words_become_flags(written: str, meant: str) -> None:
    assert read(written) == meaning(meant)


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("", "Usage: muster COMMAND [options]"),
        ("help", "all commands"),
        ("--list", "all commands"),
        ("help --all", "image build"),
        ("cluster --help", "Usage: muster cluster COMMAND"),
        ("help image", "Usage: muster image COMMAND"),
        ("logs --help", "Usage: muster logs [options] [JOB]"),
        ("--help logs", "Usage: muster logs [options] [JOB]"),
        ("help launch", "Usage: muster launch [options]"),
        ("help image build", "Usage: muster image build [options]"),
    ],
)
def test_help_is_asked_for(written: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(shlex.split(written)) == 0
    assert shown in capsys.readouterr().out


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("launch --dryrun", "muster launch: unknown option --dryrun; did you mean --dry-run?"),
        ("launch --epochs 3", "follow its name: muster launch SCRIPT --epochs"),
        ("launch --args A --args B", '--args is given twice; all in one: --args="A B"'),
        ("launch --np 2 --np 3", "--np is given twice"),
        ("launch --args A x.py B", "--args and 'B' exclude each other"),
        ("launch --np four", "--np needs a whole number, got 'four'"),
        ("launch -n", "-n needs a value"),
        ("launch --np 99999999999999999999", "--np 99999999999999999999: write 999999999 or less"),
        ("eval J x --timeout 61", "--timeout 61: write 60 or less"),
        ("launch --np ٣", "--np needs a whole number, got '٣'"),
        ("launch --script --np 4", "--script needs a value"),
        ("launch --script=--np", "--script needs a value, got the option --np"),
        ("launch --detach=yes", "--detach takes no value"),
        ("launch --nnodes 2", "unknown option --nnodes: ranks follow the order of the hosts file"),
        ("launch --rdzv_backend c10d", "Muster sets the rendezvous"),
        ("check launch", "muster check: unexpected argument 'launch'"),
        ("stop J K", "muster stop: unexpected argument 'K' after JOB"),
        ("check -- x", "muster check takes nothing after --"),
        ("check -f", "unknown option -f"),
        ("check --hlep", "unknown option --hlep; did you mean --help?"),
        ("put", "which file? muster put FILE [TO]"),
        ("bench links --backend tcp", "--backend tcp: must be one of auto, gloo"),
        ("setup --check", "follows --: muster setup -- --check"),
        ("lanuch", "no command lanuch; did you mean launch?"),
        ("train.py", "to run it on the hosts: muster launch train.py"),
        (
            "'launch train.py --epochs 3'",
            "is one word here; without quotes: muster launch train.py --epochs 3",
        ),
        ("env.remov", "did you mean env remove?"),
        (
            "forward J -L 16007:6006",
            "unknown option -L: the host's port, then the port here: forward JOB 6006 --port 16007",
        ),
        ("forward J -p 6006", "unknown option -p: the host's port stands alone: forward JOB 6006"),
        ("image", "a command is missing; it has image build, image check, image push"),
        ("image ls", "no command ls; it has image build, image check, image push"),
        ("hosts ls", "no command ls; it has hosts drain, hosts undrain"),
        ("data lst", "muster data has no command lst; did you mean list?"),
        ("data remvoe", "did you mean remove?"),
        ("--hlep", "muster has no option --hlep; did you mean --help?"),
        ("--hosts=h.txt check", "options follow the command: muster check --hosts=h.txt ..."),
    ],
)
def test_a_mistake_is_told_with_what_to_write(written: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        read(written)
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
    call = read(line)
    flag = COMMANDS[call.command].rest
    assert flag
    rest = flag.name
    assert shlex.split(call.values[rest]) == shlex.split(line)[2:]
    assert call.values.keys() <= {rest, "--script"}


def test_every_option_is_explained_with_a_name_for_its_value() -> None:
    for name, command in COMMANDS.items():
        for flag in command.flags.values():
            assert flag.help, (name, flag.name)
            assert flag.metavar or flag.kind is bool, (name, flag.name)
    assert "Options" not in COMMANDS["launch"].groups  # each of its many options has a title
    assert len(COMMANDS["launch"].groups["Most used"]) == 10


def test_the_list_of_commands_has_the_first_line_of_each_help() -> None:
    assert {name: command.text.partition("\n")[0] for name, command in COMMANDS.items()} == SUMMARIES


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("train.py --lr 0.1", None),
        ("-n 4 --hosts h train.py 'a b'", "--hosts h --np 4 train.py 'a b'"),
        ("--max-restarts 0 -x A=1 -x B --detach -m pack.age -v", "--env A=1 --env B --detach -m pack.age -v"),
        ("--slurm train.py", None),
        ("", None),
    ],
)
def test_a_command_is_written_without_its_defaults(written: str, shown: str | None) -> None:
    declared = COMMANDS["launch"]

    def command(line: str) -> Command:
        return declared.made(read(f"launch {line}").values)

    arguments = shlex.join(declared.arguments_of(command(written)))
    assert sorted(arguments.split()) == sorted((shown or written).split())
    assert command(arguments) == command(written)


def test_help_fits_80_columns(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name in COMMANDS:
        assert run([*name.split("."), "--help"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 79] == []
