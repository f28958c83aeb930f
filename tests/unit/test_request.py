"""From the words of a command line to values."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from muster.deploy.cli import option_values as request
from muster.deploy.cli import rank_program as launch_program
from muster.deploy.cli.dispatch import main, run
from muster.deploy.cli.launch import HINTS, spec_of
from muster.deploy.cli.launch_options import LaunchOptions
from muster.deploy.core.errors import UsageError
from muster.deploy.core.hosts import hostfile
from muster.deploy.core.plan import spec
from muster.deploy.core.plan.source_tree import scan
from muster.deploy.core.plan.spec import Program
from muster.deploy.core.wire.variables import OF_RANKS, is_foreign
from muster.deploy.features.why.options import WhyOptions
from tests.command_lines import parse
from tests.unit.test_job_states import RECORD, make_run
from tests.unit.test_parser import COMMANDS, meaning


@pytest.fixture
def project(tmp_path: Path) -> Path:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    (tmp_path / "train").mkdir()
    for name in ("train/__main__.py", "their.py", "secret.py"):
        (tmp_path / name).write_text("")
    (tmp_path / ".gitignore").write_text("secret.py\n")
    return tmp_path


def program(place: Path, script: str = "", module: str = "", args: str = "") -> Program:
    return launch_program.program_of(scan(place), place, script=script, module=module, args=args)


def test_without_words_the_training_program_runs(project: Path) -> None:
    assert program(project) == Program(module="muster.train")


def test_a_script_and_its_arguments_as_a_shell_would_split_them(project: Path) -> None:
    assert program(project, script="their.py", args="--name 'a b' \"$HOME\" x\\;y") == Program(
        script="their.py", args=("--name", "a b", "$HOME", "x;y")
    )


def test_a_script_is_named_from_where_the_user_stands(project: Path) -> None:
    assert program(project / "train", script="../their.py").script == "../their.py"
    assert program(project / "train", script=str(project / "their.py")).script == "../their.py"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ({"script": "missing.py"}, "script missing.py: no such file"),
        ({"script": "."}, "script .: a folder without __main__.py; name a file in it: launch ./FILE.py"),
        ({"script": "/etc/hostname"}, "outside .*, the tree that a launch sends"),
        ({"script": "secret.py"}, "ignored by git"),
        ({"script": "their.py", "module": "train"}, "exclude each other"),
        ({"args": "'open"}, "--args .*No closing quotation"),
        ({"args": "their.py --epochs 3"}, "argument of muster.train; to run it: launch their.py --epochs 3"),
        ({"script": "their.py", "args": "--out '$MUSTER_OUT/x'"}, r'os.environ\["MUSTER_OUT"\]'),
        ({"script": "python3", "args": "their.py"}, "Muster starts Python itself"),
    ],
)
def test_a_program_that_cannot_be(project: Path, words: dict[str, str], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        program(project, **words)


def test_the_environment_is_given_or_taken_from_here() -> None:
    own = {"HF_TOKEN": "hf_x"}
    assert request.environment(["A=1", "B=x=y z", "C=", "HF_TOKEN"], own) == (
        ("A", "1"),
        ("B", "x=y z"),
        ("C", ""),
        ("HF_TOKEN", "hf_x"),
    )


@pytest.mark.parametrize("setting", ["UNSET", "1A=2", "A B=1", "=1", "A;B=1", "LD$=1", "-x=1", "a\n=1"])
def test_an_environment_that_cannot_be(setting: str) -> None:
    with pytest.raises(UsageError, match="--env"):
        request.environment([setting], {})


def test_a_job_is_recorded_unless_the_user_declines() -> None:
    assert spec_of(LaunchOptions(), columns=None).of(WhyOptions).record
    assert not spec_of(LaunchOptions(no_record=True), columns=None).of(WhyOptions).record


@pytest.mark.parametrize(("text", "meant"), [("10.1.2.3/16", "10.1.0.0/16"), ("eth1", "eth1"), ("", "")])
def test_a_network_is_read(text: str, meant: str) -> None:
    assert spec.network(text) == meant


@pytest.mark.parametrize("text", ["10.1.0.0/33", "eth0,eth1", "a b", "10.1/x", "; reboot"])
def test_what_is_no_network_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--network"):
        spec.network(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("700", 700), ("2K", 2048), ("500M", 500 << 20), ("8g", 8 << 30), ("1T", 1 << 40)],
)
def test_a_size_has_a_letter_for_its_unit(text: str, size: int) -> None:
    assert spec.size("--max-log", text) == size


@pytest.mark.parametrize("text", ["", "G", "-1", "1.5G", "8GB", "8 G", "1e9"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"--max-log .*: write a number of bytes such as 500M or 8G"):
        spec.size("--max-log", text)


@pytest.mark.parametrize("known", OF_RANKS)
def test_a_variable_that_tells_a_rank_who_it_is_is_refused(known: str) -> None:
    name = known.replace("*", "SIZE")
    for given in (f"{name}=1", name):
        with pytest.raises(UsageError, match=f"^--env {name}: Muster and its launcher set {name} in every"):
            request.environment([given], {name: "1"})
    assert is_foreign(name)


@pytest.mark.parametrize(
    "name", ["OMPI_MCA_btl", "PRTE_MCA_x", "PMIX_MCA_x", "OMP_NUM_THREADS", "TMPDIR", "RANKS", "MUSTER"]
)
def test_a_setting_of_a_launcher_is_the_user_s(name: str) -> None:
    assert request.environment([f"{name}=1"], {}) == ((name, "1"),)


# -- options that could not be honoured are refused in one sentence, and never ignored --


SLOTS = (
    "--slots needs hosts, and Slurm has not given any yet: "
    '--slurm "... --ntasks-per-node 2" sets the number of ranks of each'
)
NO_HOSTS_FILE = "--hosts mine.txt: Slurm gives the hosts, so no hosts file is read; leave it out"
REFUSED = {
    "launch --detach": {
        "--rank 0 a.py": "--rank ends with this command, and a detached job (--detach) "
        "continues; muster logs JOB --rank shows one rank of it"
    },
    "launch --dry-run": {
        "--rank 0,7 a.py": "--rank 7: the job has the ranks 0 to 2",
        "--min-hosts 1 a.py": "--min-hosts is for restarts; add --max-restarts N",
        "--preload a.py": "--preload is for restarts; add --max-restarts N",
        "--preload --max-restarts 1 --no-record a.py": (
            "--preload does not work with --no-record; leave one out"
        ),
        "--preload --max-restarts 1 --image muster:cpu a.py": (
            "--preload does not work with --image; leave one out"
        ),
        "--spares 1 a.py": "--spares is for restarts; add --max-restarts N",
        "--torch-backend cpu a.py": "--torch-backend needs --requirements FILE",
        "--module=-c": "--module -c: a module name does not begin with a dash",
        "--np 2 --rank 2 a.py": "--rank 2: the job has the ranks 0 to 1",
        "--start-timeout=-1 a.py": "muster launch: --start-timeout -1: write 1 or more",
        "--stall-timeout=-1 a.py": "muster launch: --stall-timeout -1: write 0 or more",
        "--max-restarts=-1 a.py": "muster launch: --max-restarts -1: write 0 or more",
    },
    "launch --slurm '-N 2' --detach": {"--slots 2 a.py": SLOTS},
    "launch --slurm '-N 2'": {
        "--hosts mine.txt a.py": NO_HOSTS_FILE,
        "--detach --hosts mine.txt a.py": NO_HOSTS_FILE,
    },
    "check": {"--runs mine": "--runs mine is for the jobs of --bench; leave it out, or add --bench"},
    "check --slurm '-N 2'": {"--hosts mine.txt": NO_HOSTS_FILE},
    "bench links --slurm '-N 2'": {"--hosts mine.txt": NO_HOSTS_FILE},
    "run": {
        "--timeout=-5 true": "muster run: --timeout -5: write 1 or more",
        "''": "what to run? muster run COMMAND ...",
        '--command "echo don\'t"': '--command "echo don\'t": No closing quotation; quote it as in a shell',
    },
    "shell --hosts mine.txt": {
        "node[1-2]": "node[1-2] names 2 hosts, and a shell needs one host: muster shell node1"
    },
    "clean": {"--older-than=-1": "muster clean: --older-than -1: write 0 or more"},
    f"logs {RECORD['job']}": {
        "--rank 4": "--rank 4: the job has the ranks 0 to 3",
        "--rank=-2": "muster logs: --rank -2: write 0 or more",
    },
    "bench collectives": {
        "-b 2M -e 1M": "--minbytes 2M is above --maxbytes 1M",
        "-b 0": "--minbytes 0: write a number of bytes such as 500M or 8G",
    },
    "image build cpu": {
        "--source .": "--source: the target cpu compiles nothing; it takes the distribution's packages"
    },
    "data push": {
        "https://u:secret@h/x": "data push URL was removed: use `muster run -- curl -O URL`, or push a folder"
    },
    "env remove": {"word": "word: not an environment name; muster env list has the names"},
    "put": {"no.txt": "no.txt: no such file or folder here"},
}


@pytest.mark.parametrize(
    ("line", "sentence"),
    [(f"{line} {words}", sentence) for line, cases in REFUSED.items() for words, sentence in cases.items()],
)
def test_it_is_refused_in_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    line: str,
    sentence: str,
) -> None:
    (tmp_path / "a.py").touch()
    (tmp_path / "hosts.txt").write_text("localhost slots=3\n")
    (tmp_path / "mine.txt").write_text("node[1-3]\n")
    make_run(tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))  # whatever is not refused harms nobody
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(SystemExit) as end:
        main([*shlex.split(line)])
    assert (end.value.code, capsys.readouterr().err) == (2, f"{sentence}\n")


@pytest.mark.parametrize("change", [{"attempt": 1}, {"ranks": 0}], ids=str)
def test_a_rank_of_logs_that_may_have_been_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    make_run(tmp_path / "runs", **change)
    monkeypatch.chdir(tmp_path)
    run(["logs", RECORD["job"], "--rank", "9"])


# -- options of other launchers, as people type them: each has its meaning here, or an answer in one line --


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
