"""A detached launch as a batch job of Slurm: its folder, the script, and sbatch.

The folder of the run, `runs/JOB`, is made at once; login node and nodes must share it. Besides the files of
every run, it has `slurm.json` (Slurm's number of the job, and sbatch's command), and until the end of the job
a folder `batch` with everything for its driver: its code, the job, and the current contents of the user's
tree. So edits while the job waits change nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from ...core.connect.bootstrap import quoted
from ...core.errors import MusterError, UsageError
from ...core.job.attempt_record import HIDDEN, shown_command
from ...core.job.driver_on_host import own_code
from ...core.job.job_record import record_of
from ...core.plan.flags import Flag, Options, flags_of
from ...core.plan.source_tree import Edits, Tree
from ...core.plan.spec import LaunchSpec, is_secret
from ...core.wire.durable import write_atomically
from ...core.wire.os_errors import explain
from ...core.wire.store import Store
from .allocation import from_home
from .job_state import why_waits
from .mark import write_mark
from .programs import SECONDS, ask, error_of, run

BATCH, LOG = "batch", "driver.log"
# Options of the user come last and override these.
# B: the driver alone gets the signal, and passes it to the ranks.
# No --no-kill: with it Slurm 24.11 keeps the other nodes forever when the first one, the driver's, dies.
OWN_OPTIONS = ("--no-requeue", "--signal=B:USR1@60", "--export=ALL")
REQUEUE = "--requeue"
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from muster.deploy.features.all_features import start; start('slurm.batch_main', sys.argv[2])"
)


class Batch(NamedTuple):
    """A batch job for sbatch."""

    folder: Path
    options: tuple[str, ...]
    """The user's options of sbatch."""
    python: str

    @property
    def job_name(self) -> str:
        return f"muster-{self.folder.name}"

    @property
    def command(self) -> tuple[str, ...]:
        """The argv of sbatch."""
        name, log = f"--job-name={self.job_name}", f"--output={self.folder / LOG}"
        own = ("--parsable", *OWN_OPTIONS, name, log, "--open-mode=append", f"--chdir={self.folder.parent}")
        return ("sbatch", *own, *self.options, str(self.folder / BATCH / "script"))

    @property
    def script(self) -> str:
        """The script for the first node: the driver replaces the shell, so that it gets the signal."""
        driver = self.folder / BATCH / "driver"
        arguments = shlex.join(["-I", "-c", _START, str(driver), str(self.folder)])
        here, result = (shlex.quote(str(path)) for path in (driver, self.folder / "result.json"))
        over = f"{self.folder}: this job is over, so Slurm's next start of it does nothing; launch it again"
        unseen = '"not on $(hostname); give a --runs that login node and nodes share"'
        return (
            "#!/bin/sh\n"
            f"# The driver of Muster's job {self.folder.name}, on the first node of its allocation.\n"
            f"[ -d {here} ] || [ ! -e {result} ] || {{ echo {shlex.quote(over)} >&2; exit 3; }}\n"
            f"[ -d {here} ] || {{ echo {shlex.quote(f'{self.folder}:')} {unseen} >&2; exit 3; }}\n"
            f"exec {quoted(from_home(self.python))} {arguments}\n"
        )

    def __str__(self) -> str:
        return f"{shlex.join(self.command)}\n\n{self.script}"


def batch_of(spec: LaunchSpec, options: Sequence[str], runs: Path) -> Batch:
    """The batch job of a launch whose folder goes into `runs`."""
    return Batch((runs / spec.job).resolve(), tuple(options), spec.python or "python3")


def submit(spec: LaunchSpec, batch: Batch, environ: Mapping[str, str]) -> str:
    """Make the run's folder and submit the job; returns Slurm's number of it.

    `UsageError` quotes sbatch if it refuses the job, or names a limit above which the job would wait forever.
    Then, and after an interrupt, the folder is removed and Slurm's job cancelled.
    """
    try:
        (batch.folder / BATCH).mkdir(parents=True)
    except FileExistsError:
        raise UsageError(f"{batch.folder}: the folder exists") from None
    except OSError as error:
        raise MusterError(f"cannot make the run's folder: {explain(error)}") from None
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, batch.folder, ignore_errors=True)
        try:
            _prepare(spec, batch)
            number = _submit(batch, {**environ, **secrets(spec)}, undo)
            if why := why_waits(number):
                raise UsageError(f"--slurm {' '.join(batch.options)!r}: Slurm never gives hosts: {why}")
        except OSError as error:
            raise MusterError(f"cannot make the run's folder: {explain(error)}") from None
        undo.pop_all()
    return number


def _submit(batch: Batch, environ: Mapping[str, str], undo: contextlib.ExitStack) -> str:
    """Run sbatch, and record Slurm's number. `undo` gets the end of the job that Slurm may have."""
    try:
        number = _sbatch(batch, environ)
    except UsageError:  # sbatch has refused it
        raise
    except BaseException:
        undo.callback(_cancel, "--me", f"--name={batch.job_name}")
        raise
    undo.callback(_cancel, number)
    write_mark(batch.folder, number, batch.command, requeue=REQUEUE in batch.options, python=batch.python)
    return number


def _cancel(*job: str) -> None:
    with contextlib.suppress(MusterError):
        ask("scancel", *job)


def secrets(spec: LaunchSpec) -> dict[str, str]:
    """The values that no file may have. Slurm passes them on with the environment of sbatch."""
    values = {name: value for name, value in spec.env if is_secret(name, spec.hidden)}
    return values | {_variable(flag): getattr(part, flag.field) for part, flag in _secret_options(spec)}


def without_secrets(spec: LaunchSpec) -> LaunchSpec:
    """The job without its secrets, for a file."""
    env = tuple((name, "" if is_secret(name, spec.hidden) else value) for name, value in spec.env)
    command = tuple(shlex.split(shown_command(spec.command, spec.hidden)))
    return _with_options(dataclasses.replace(spec, env=env, command=command), lambda flag: HIDDEN)


def with_secrets(spec: LaunchSpec, environ: Mapping[str, str]) -> LaunchSpec:
    """The job with its secrets; `MusterError` if Slurm did not pass on a value."""
    if lacking := [name for name in secrets(spec) if name not in environ]:
        options = {_variable(flag): flag.name for _, flag in _secret_options(spec)}
        option = options.get(lacking[0], f"--env {lacking[0]}")
        raise MusterError(f"{option}: Slurm did not pass it on; leave --export out of --slurm")
    env = tuple((name, environ[name] if is_secret(name, spec.hidden) else value) for name, value in spec.env)
    return _with_options(dataclasses.replace(spec, env=env), lambda flag: environ[_variable(flag)])


def _secret_options(spec: LaunchSpec) -> Iterator[tuple[Options, Flag]]:
    """The options that are secret and have a value."""
    for part in spec.features.values():
        for flag in flags_of(part):
            if flag.secret and getattr(part, flag.field):
                yield part, flag


def _variable(flag: Flag) -> str:
    """The variable of a batch job that has the value of a secret option: MUSTER_ and its name."""
    return f"MUSTER_{flag.field.upper()}"


def _with_options(spec: LaunchSpec, value: Callable[[Flag], str]) -> LaunchSpec:
    """The request with other values of its secret options."""
    changed = (dataclasses.replace(part, **{flag.field: value(flag)}) for part, flag in _secret_options(spec))
    return spec.having(*changed)


def _prepare(spec: LaunchSpec, batch: Batch) -> None:
    folder = batch.folder / BATCH
    batch.folder.chmod(0o700)
    store, code = Store(folder / "store"), own_code()
    for tree in (spec.library, code):
        _store(tree, store)
    spec = dataclasses.replace(spec, tree=_store(spec.tree, store))
    store.check_out([list(row) for row in code.listing()], folder / "driver")
    texts = {"job.json": json.dumps(without_secrets(spec).as_json()), "script": batch.script}
    for name, text in texts.items():
        write_atomically(folder / name, text.encode(), 0o600)
    record = record_of(spec, batch.folder, detached=True)
    write_atomically(batch.folder / "job.json", json.dumps(record, indent=2).encode(), 0o600)


def _store(tree: Tree, store: Store) -> Tree:
    """Store the contents of a tree; returns it without files that vanished, and with those that changed."""
    edits = Edits()
    store.add(tree.archive([file.digest for file in tree.files if file.link is None], edits))
    return tree.after(edits)


def _sbatch(batch: Batch, environ: Mapping[str, str]) -> str:
    done = run(batch.command, environ, 4 * SECONDS)
    if done.returncode:
        why = error_of(done.stderr.splitlines()) or f"sbatch ended with status {done.returncode}"
        raise UsageError(f"--slurm {' '.join(batch.options)!r}: {why}")
    number = done.stdout.strip().rpartition("\n")[2].partition(";")[0]  # a wrapper may print before it
    if not number.isdecimal():
        raise MusterError(f"sbatch: it printed no number of a job, but {done.stdout[-200:]!r}")
    return number
