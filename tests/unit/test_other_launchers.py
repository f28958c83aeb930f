"""Options of other launchers, as people type them: each has its meaning here, or an answer in one line."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from muster.deploy.cli.launch import HINTS
from muster.deploy.core.errors import UsageError
from muster.deploy.core.hosts import hostfile
from tests.command_lines import parse
from tests.unit.test_parser import COMMANDS, meaning

MPIRUN = """
    -np -n -N -npernode --npernode -ppn -pernode -host --host -hostfile --hostfile -machinefile -x
    -mca --mca -gmca -bind-to --bind-to -map-by --map-by -rank-by -rf --rankfile -oversubscribe
    --oversubscribe --allow-run-as-root -allow-run-as-root -wdir --wdir -tag-output --tag-output
    --timestamp-output --output-filename --prefix --report-bindings --display-map -v --verbose
    --timeout --tune -l -f -genv
"""
TORCHRUN = """
    --nnodes --nproc-per-node --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --standalone --max-restarts
    --monitor-interval --start-method --role -m --module --no-python --log-dir -r --redirects -t --tee
    --local-ranks-filter --node-rank --master-addr --master-port --local-addr --logs-specs --numa-binding
    --use-env
"""
OTHERS = """
    --start-timeout --network-interface --ssh-port -p -i --ssh-identity-file --min-np --max-np --gloo --mpi
    --host-discovery-script --reset-limit --num-gpus --num-nodes --include --exclude --num-processes
    --num-machines --machine-rank --main-process-ip --main-process-port --multi-gpu --config-file
    --ntasks --ntasks-per-node --partition --gres --account --cpus-per-task -A -c -w
"""


def is_understood_or_answered(written: str) -> bool:
    try:
        values = parse(["launch", written, "2", "train.py"]).values
    except UsageError as error:
        told = str(error)
        answer = told.partition(": unknown option ")[2].partition(": ")[2]
        return len(told.splitlines()) == 1 and answer in HINTS.values()
    given = [value for flag, value in values.items() if flag not in {"--script", "--args"}]
    return given in ([2], ["2"], [("2",)])


def test_an_option_of_another_launcher_is_understood_or_answered() -> None:
    options = [*MPIRUN.split(), *TORCHRUN.split(), *OTHERS.split()]
    options += [name.replace("-", "_").replace("_", "-", 2 if name[1] == "-" else 1) for name in options]
    assert [option for option in options if not is_understood_or_answered(option)] == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("launch -np 4 train.py", "launch --np=4 --script=train.py"),
        ("launch -npernode 2 -hostfile h t.py", "launch --slots=2 --hosts=h --script=t.py"),
        ("launch -max_restarts 1 t.py", "launch --max-restarts=1 --script=t.py"),
        ("launch -n4 -N2 -xA=1 -mpack.age", "launch --np=4 --slots=2 --env=A=1 --module=pack.age"),
        ("logs -follow J", "logs --follow --job=J"),
    ],
)
def test_one_dash_is_as_good_as_two(written: str, meant: str) -> None:
    assert parse(written.split()) == meaning(meant)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("launch -mca btl self t.py", "--env OMPI_MCA_name=value"),
        ("launch -bind-to none t.py", "ranks are not bound to cores"),
        ("launch --allow_run_as_root t.py", "leave it out"),
    ],
)
def test_the_answer_says_what_to_type(written: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(shlex.split(written))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("node1:2", "write a file with one line for each host: 'node1 slots=2'; --include node1 takes"),
        ("a:4,b:4", "'a slots=4'; --include a,b takes some of its hosts"),
        ("a,b", "'a slots=1'; --include a,b takes some of its hosts"),
        ("hosts.text", "`muster init` writes an example"),
        ("C:\\hosts", "`muster init` writes an example"),
    ],
)
def test_hosts_in_place_of_a_hosts_file_are_answered_with_what_to_type(
    named: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        hostfile.load(Path(named))
    assert str(refused.value).startswith(f"{named}: no such hosts file; ")
    assert said in str(refused.value)


def test_no_answer_hides_an_option_that_there_is() -> None:
    launch = COMMANDS["launch"]
    assert [name for name in HINTS if launch.flag(f"--{name}") or launch.flag(name)] == []
    assert [
        also for command in COMMANDS.values() for also in command.spellings if also in command.flags
    ] == []
