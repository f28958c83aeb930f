"""What runs inside a rank: MPI's view of it at its end, and whether it is there at all for the program.

The programs run alone, as a rank under torchrun does for MPI; `WORLD_SIZE` says that there are two.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from muster.deploy.core import agent
from muster.deploy.core.job.planning import rank_programs
from muster.deploy.features import preload

pytestmark = pytest.mark.slow  # several processes a test

# Open MPI as torch's own backend has it: nothing imports mpi4py, and what exit(3) calls finalizes.
PLAIN_MPI = """
import ctypes, os, sys
os.environ["OPAL_PREFIX"] = sys.prefix  # Open MPI from PyPI asks for it
mpi = ctypes.CDLL(sys.prefix + "/lib/libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder like the one on a host, with nothing else in it."""
    (tmp_path / "in_rank").mkdir()
    for name, text in rank_programs(Path(agent.__file__).parent).items():
        (tmp_path / "in_rank" / name).write_text(text)
    return tmp_path


def run(folder: Path, program: str, *, options: tuple[str, ...] = (), **env: str) -> tuple[int, bool, str]:
    """Exit status, whether the rank was found alone, and all that it printed."""
    (folder / "program.py").write_text(program)
    path = os.pathsep.join(filter(None, [str(folder / "in_rank"), env.pop("PYTHONPATH", "")]))
    world = {"RANK": "1", "WORLD_SIZE": "2", "MUSTER_AGENT": str(folder), "PYTHONPATH": path}
    clean = {name: text for name, text in os.environ.items() if not name.startswith(("OMPI_", "PMIX_"))}
    done = subprocess.run(
        [sys.executable, *options, str(folder / "program.py")],
        env={**clean, **world, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, (folder / "world-of-one-1").exists(), done.stdout


ALONE = {
    "mpi4py": "from mpi4py import MPI",
    "mpi4py, finalized by the program": "from mpi4py import MPI; MPI.Finalize()",
    "another MPI program": PLAIN_MPI,
}
NOT_ALONE = {
    "no MPI": "print('hello')",
    "mpi4py without MPI": "import mpi4py",
    "mpi4py that is not initialised": "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI",
}


@pytest.mark.parametrize("program", ALONE.values(), ids=ALONE.keys())
def test_a_rank_for_which_mpi_is_a_world_of_one_is_found(folder: Path, program: str) -> None:
    assert run(folder, program)[:2] == (0, True)


@pytest.mark.parametrize("program", NOT_ALONE.values(), ids=NOT_ALONE.keys())
def test_a_rank_that_does_not_use_mpi_is_not(folder: Path, program: str) -> None:
    assert run(folder, program)[:2] == (0, False)


@pytest.mark.soak
def test_a_start_of_torchs_groups_that_fails_brings_no_rank_together(folder: Path) -> None:
    program = (
        "from mpi4py import MPI\nimport torch.distributed as dist\n"
        "try: dist.init_process_group('mpi')\nexcept Exception: pass"
    )
    assert run(folder, program)[:2] == (0, True)


def test_a_world_of_one_in_a_job_of_one_rank_is_right(folder: Path) -> None:
    assert run(folder, "from mpi4py import MPI", WORLD_SIZE="1")[:2] == (0, False)


@pytest.mark.parametrize(
    "end",
    [pytest.param("", marks=pytest.mark.soak), "dist.destroy_process_group()"],
    ids=["kept", "destroyed"],
)
def test_ranks_that_torch_brought_together_may_have_mpi_beside_it(folder: Path, end: str) -> None:
    meet = (
        "import os, sys, torch.distributed as dist\n"
        "other = os.fork()\n"  # the second rank, which has no MPI: a process with MPI in it must not fork
        "if other: from mpi4py import MPI\n"
        "dist.init_process_group('gloo', init_method=f'file://{sys.argv[0]}.store', "
        "rank=int(other > 0), world_size=2)\n"
        f"{end}\nif not other: os._exit(0)\nos.waitpid(other, 0)"
    )
    assert run(folder, meet, GLOO_SOCKET_IFNAME="lo")[:2] == (0, False)


def test_a_status_that_the_kernel_would_cut_to_0_is_a_failure(folder: Path) -> None:
    """os.system gives 256 for a command that ended with 1."""
    statuses = {"256": 1, "512": 2, "1 << 16": 1, "-256": 255, "255": 255, "False": 0, "''": 1, "": 0}
    program = (
        "import os, sys\nif not os.fork(): sys.exit({})\nsys.stdout.write(str(os.wait()[1] >> 8) + ' ')\n"
    )
    text = "".join(program.format(status) for status in statuses)
    assert run(folder, text)[2].split() == [str(kept) for kept in statuses.values()]


FAILING = {"raise ValueError('boom')": 1, "sys.exit(3)": 3, "sys.exit('no')": 1, "print('well')": 0}
# In the place of MPI_Finalize, which would wait for the others.
AT_EXIT = """
ctypes.CDLL(None).on_exit(ctypes.CDLL(None).abort, None)
"""


@pytest.mark.parametrize(("deed", "status"), FAILING.items(), ids=FAILING.keys())
def test_a_failing_rank_of_another_mpi_awaits_no_other(folder: Path, deed: str, status: int) -> None:
    ended, _, said = run(folder, PLAIN_MPI + AT_EXIT + deed, options=("-m", "mpi4py"))
    assert ended == (status or -signal.SIGABRT), said
    assert ("ValueError: boom" in said) is ("boom" in deed)


def test_a_traceback_begins_in_the_program_under_mpi4py_too(folder: Path) -> None:
    program = "def half(number):\n    return number / 0\n\n"
    program += "try:\n    half(3)\nexcept ArithmeticError:\n    half(5)\n"
    said = run(folder, program, options=("-m", "mpi4py"))[2]
    shown = [line for line in said.splitlines() if line.lstrip().startswith("File ")]
    lines = [line.partition(", line ")[2] for line in shown]
    assert lines == ["5, in <module>", "2, in half", "7, in <module>", "2, in half"], said
    assert said.rstrip().endswith("ZeroDivisionError: division by zero")
    said = run(folder, "half(3", options=("-m", "mpi4py"))[2]
    assert said.count("File ") == 1
    assert "SyntaxError: '(' was never closed" in said


def test_the_users_own_sitecustomize_runs_and_the_path_is_the_users(folder: Path) -> None:
    own = folder / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("print('own one', __name__)")
    program = (
        "import os, sitecustomize, sys\n"
        "print(os.environ.get('PYTHONPATH'), sitecustomize.__file__, 'in_rank' in str(sys.path))"
    )
    assert run(folder, program, PYTHONPATH=str(own)) == (
        0,
        False,
        f"own one sitecustomize\n{own} {own}/sitecustomize.py False\n",
    )
    (own / "sitecustomize.py").unlink()
    assert "None" in run(folder, "import os; print(os.environ.get('PYTHONPATH'))")[2]


@pytest.mark.parametrize("libuv", ["0", "1"])
def test_a_rank_opens_torchruns_store_without_libuv_where_torch_has_none(folder: Path, libuv: str) -> None:
    package = folder / "own" / "torch" / "distributed"  # a torch that opens it as torch 2.6 does
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text(
        "def TCPStore(name, use_libuv=True): return f'{name} {use_libuv}'\nfrom . import rendezvous\n"
    )
    (package / "rendezvous.py").write_text(
        "from torch.distributed import TCPStore\ndef meet(**words): return TCPStore('node1', **words)\n"
    )
    program = "from torch.distributed.rendezvous import meet; print(meet(), meet(use_libuv=1))"
    status, _, output = run(
        folder, program, PYTHONPATH=str(folder / "own"), USE_LIBUV=libuv, TORCHELASTIC_USE_AGENT_STORE="True"
    )
    assert (status, output) == (0, f"node1 {libuv == '1'} node1 1\n")


# A module of an installed package, and why no rank can be forked after its import.
IMPORTS = {
    "": "",
    "import threading, time; threading.Thread(target=time.sleep, args=(300,), daemon=True).start()": (
        "the import of one has started a thread"
    ),
    "import threading; each = threading.Thread(target=print); each.start(); each.join()": "",
    "kept = open('/dev/zero')": "its imports have opened /dev/zero",
    "import sys, types; sys.modules['torch.cuda'] = types.SimpleNamespace(is_initialized=lambda: True)": (
        "its imports have initialised a GPU"
    ),
    "import subprocess; kept = subprocess.Popen(['true'])": "its imports have started a process",
    "import numpy": "",  # its OpenBLAS may start a thread for each core
}


@pytest.mark.parametrize(("text", "why"), IMPORTS.items())
def test_imports_are_kept_only_if_ranks_can_be_forked(folder: Path, text: str, why: str) -> None:
    for name, program in rank_programs(Path(preload.__file__).parent).items():
        (folder / "in_rank" / name).write_text(program)
    packages = folder / "site-packages"
    packages.mkdir()
    (packages / "one.py").write_text(text)
    (folder / "modules").write_text("{}")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join([str(folder / "in_rank"), str(packages)])
    env = {**os.environ, "PYTHONPATH": path, "MUSTER_PRELOAD_FD": str(theirs.fileno())}
    env["MUSTER_START"] = "muster_preload"
    with subprocess.Popen([sys.executable, "-c", ""], env=env, pass_fds=[theirs.fileno()]) as process, ours:
        theirs.close()
        ours.send(json.dumps({"modules": str(folder / "modules"), "names": ["one"]}).encode())
        found = json.loads(ours.recv(4096))
        process.kill()
    assert found["why"] == why
