"""Tests what an image can do, in its build and by `fab image.check`; exits with 1 if a promise is broken.

`prove.py FLAVOR [--json]`. The expected versions come from the environment, as arguments of the build.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RECORD = Path("/usr/share/muster/image.json")
CPU = {"mpi": True, "gloo": True, "nccl": False, "cuda-aware": False}
PROMISES = {"cpu": CPU, "cpu-source": CPU, "cuda": {**CPU, "nccl": True, "cuda-aware": True}}
COMPONENTS = ("python", "openmpi", "pytorch", "mpi4py", "torchvision", "ucx", "triton")
OF_BASE = ("cuda", "nccl", "cudnn")
ARGUMENTS = {name: f"{name.upper()}_VERSION" for name in COMPONENTS}
ARGUMENTS |= {name: f"{name.upper()}_RELEASE" for name in OF_BASE}
"""The build argument of each version."""
STARTS = (
    50  # with CUDA and no GPU some versions of Open MPI crash in one start of twenty (open-mpi/ompi#13044)
)
HANGS_AFTER = 900  # seconds: on a busy machine an import of torch takes two minutes
COMPILERS = ("cc", "gcc", "g++", "clang", "nvcc", "make", "cmake", "ninja")
ALL_REDUCE = """
import sys, torch, torch.distributed as dist
dist.init_process_group(sys.argv[1])
one = torch.ones(1)
dist.all_reduce(one)
print(f"{dist.get_rank()} of {dist.get_world_size()}: {one.item():.0f}")
dist.destroy_process_group()
"""
ONE_LIBRARY = """
import torch.distributed, mpi4py.MPI
maps = open("/proc/self/maps").read().split()
print(" ".join(sorted({word for word in maps if "/libmpi.so" in word})))
"""
LIBRARIES = """
import ctypes, json, torch
found = {"cuda": torch.version.cuda or ""}
if torch.version.cuda:
    found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    cudnn = torch.backends.cudnn.version() or 0
    found["cudnn"] = f"{cudnn // 10000}.{cudnn // 100 % 100}.{cudnn % 100}"
try:
    version = ctypes.CDLL("libucp.so.0").ucp_get_version_string
    version.restype = ctypes.c_char_p
    found["ucx"] = version().decode()
except OSError:
    pass
print(json.dumps(found))
"""
# What torch only opens while a program runs, so that no import and no ldd would miss it.
OPENED = """
import ctypes, os, re, subprocess, sys
listed = subprocess.run(["ldconfig", "-p"], stdout=subprocess.PIPE, text=True).stdout
names = re.findall(r"^\\s*(\\S+) ", listed, re.M)
for wanted in sys.argv[1:]:
    name = next((name for name in names if name.startswith(wanted + ".so")), "")
    try:
        print(name if name and ctypes.CDLL(name) else "no " + wanted, end=" ")
    except OSError as error:
        print(error, end=" ")
"""
# The second box is the first but for a corner.
KEEP_BOXES = """
import torch, torchvision
boxes = torch.tensor([[0, 0, 9, 9], [0, 0, 9, 8], [20, 20, 29, 29]], dtype=torch.float)
print(torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), iou_threshold=0.5).tolist())
"""
Result = tuple[bool, str]


def run(*argv: str) -> str:
    """Return a command's output from both streams, with its failure if it fails."""
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    try:
        done = subprocess.run(
            argv,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANGS_AFTER,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no end after {HANGS_AFTER} s"
    return done.stdout if done.returncode == 0 else f"status {done.returncode}: {done.stdout.strip()}"


def python(program: str) -> str:
    """Return the last line that a Python program prints."""
    return (run(sys.executable, "-c", program).strip().splitlines() or [""])[-1]


def found_versions() -> dict[str, str]:
    """Return the installed versions."""
    actual = {"python": ".".join(map(str, sys.version_info[:2]))}
    for component, name in (
        ("pytorch", "torch"),
        ("mpi4py", "mpi4py"),
        ("torchvision", "torchvision"),
        ("triton", "triton"),
    ):
        try:
            actual[component] = re.split(r"[+]", version(name))[0]
        except PackageNotFoundError:
            continue
    actual["openmpi"] = _search(r"Open MPI\) (\S+)", run("mpirun", "--version"))
    with contextlib.suppress(ValueError):
        actual |= json.loads(python(LIBRARIES))
    return {name: text for name, text in actual.items() if text}


def _search(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else ""


def versions(expected: Mapping[str, str], actual: Mapping[str, str]) -> Iterator[tuple[str, Result]]:
    """Compare each expected version with the installed one; CUDA by major and minor version."""
    for name, wanted in expected.items():
        have = actual.get(name, "missing")
        same = wanted.split(".")[:2] == have.split(".")[:2] if name == "cuda" else have == wanted
        yield f"{name} {wanted}", (same, have)


def capabilities(promised: Mapping[str, bool]) -> Iterator[tuple[str, Result]]:
    """Check that the image has what its flavour promises, and nothing that it must not have."""
    for backend in ("mpi", "gloo", "nccl"):
        answer = python(f"import torch.distributed as dist; print(dist.is_{backend}_available())")
        yield f"torch backend {backend}", (answer == str(promised[backend]), answer)
    aware = "mpi_built_with_cuda_support:value:true" in run("ompi_info", "--parsable", "--all")
    yield "Open MPI is CUDA-aware", (aware == promised["cuda-aware"], str(aware))
    # Not every folder can be read by the user of a container; the build runs this as root.
    lending = run("sh", "-c", "find / -xdev -type f -perm /6000 2>/dev/null || true").split()
    yield "setuid or setgid programs", (not lending, " ".join(lending) or "none")
    compilers = [name for name in COMPILERS if shutil.which(name)]
    yield "compilers", (bool(compilers) == promised["compilers"], " ".join(compilers) or "none")


def of_cuda(gpus: str) -> Iterator[tuple[str, Result]]:
    """Check what an image with CUDA can prove on a machine without a GPU. `gpus`: TORCH_CUDA_ARCH_LIST."""
    built = python("import torch; print(torch.backends.cuda.is_built())")
    yield "torch is built with CUDA", (built == "True", built)
    code = python("import torch; print(torch._C._cuda_getArchFlags())")
    yield f"code for {gpus}", (set(code.split()) == architectures(gpus), code)
    libraries = ("libcupti", "libnccl", "libcudnn", "libucp", "libnvrtc")
    opened = python(OPENED.replace("sys.argv[1:]", repr(libraries)))
    yield (
        "the loader finds " + ", ".join(libraries),
        (all(f"{name}.so" in opened for name in libraries), opened),
    )
    refused = run(sys.executable, "-c", "import torch; torch.ones(1, device='cuda')").strip().splitlines()
    if not Path("/dev/nvidiactl").exists():  # with a GPU it is a kernel that runs
        yield "a tensor for a GPU is refused in a sentence", ("NVIDIA driver" in refused[-1], refused[-1])
        yield f"mpirun starts 2 ranks {STARTS} times", starts()


def starts() -> Result:
    """Start two ranks that call MPI_Init, again and again; the first failure ends it."""
    launch = ("mpirun", "--map-by", ":OVERSUBSCRIBE", "-n", "2", sys.executable, "-c", "import mpi4py.MPI")
    for number in range(1, STARTS + 1):
        if (output := run(*launch)).startswith(("status", "no end")):
            return False, f"start {number}: {output}"
    return True, "without a failure"


def architectures(gpus: str) -> set[str]:
    """Return the names that nvcc has for compute capabilities: 8.0;9.0+PTX is sm_80, sm_90 and compute_90."""
    names = set()
    for capability in filter(None, gpus.split(";")):
        number = capability.replace("+PTX", "").replace(".", "")
        names |= {f"sm_{number}"} | ({f"compute_{number}"} if "+PTX" in capability else set())
    return names


def vision() -> Iterator[tuple[str, Result]]:
    """Check that torchvision has the operations that are compiled."""
    kept = python(KEEP_BOXES)
    yield "torchvision has its compiled operations", (kept == "[0, 2]", kept)


def linked() -> Iterator[tuple[str, Result]]:
    """Check that every shared object of torch finds its libraries; those of the driver are on the host."""
    import torch  # noqa: PLC0415  # slow, and only its folder is of interest

    missing = set()
    for file in Path(torch.__file__).parent.rglob("*.so*"):
        for line in run("ldd", str(file)).splitlines():
            if "not found" in line and not re.match(r"\s*lib(cuda|nvidia-ml)\.so", line):
                missing.add(f"{file.name}: {line.split()[0]}")
    yield (
        "every library of torch finds what it is linked to",
        (not missing, ", ".join(sorted(missing)) or "all"),
    )


def login() -> Iterator[tuple[str, Result]]:
    """Check that sshd takes the configuration that nodes start it with."""
    # As the user that it runs as: root's sshd would ask for a folder that the node does without.
    user = ("runuser", "--user", "muster", "--") if os.geteuid() == 0 else ()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        key = f"{folder}/key"
        run(*user, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key)
        output = run(*user, "/usr/sbin/sshd", "-t", "-f", "/etc/muster/sshd_config", "-h", key).strip()
    bad = output.startswith(("status", "no end"))  # the node's own key is missing here, and sshd says so
    yield "sshd starts with its configuration", (not bad, output if bad else "sshd -t accepts it")


def behaviour() -> Iterator[tuple[str, Result]]:
    """Run what can be run without a GPU and without a network."""
    library = python(ONE_LIBRARY)
    yield "torch and mpi4py share one libmpi", (library.count("libmpi.so") == 1, library)
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(ALL_REDUCE)
        file.flush()
        launchers: Mapping[str, Callable[[], str]] = {
            "mpirun, 2 ranks, all_reduce": lambda: run(
                "mpirun", "--map-by", ":OVERSUBSCRIBE", "-n", "2", sys.executable, file.name, "mpi"
            ),
            "torchrun, 2 ranks, all_reduce": lambda: run(
                sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", file.name, "gloo"
            ),
        }
        for name, launch in launchers.items():
            output = launch()
            ranks = sorted(re.findall(r"\d of 2: 2", output))
            yield name, (ranks == ["0 of 2: 2", "1 of 2: 2"], f"{len(ranks)} ranks" if ranks else output)
    compiled = python(
        "import torch; print(torch.compile(lambda x: x + 1, backend='aot_eager')(torch.ones(1)).item())"
    )
    yield "torch.compile(backend='aot_eager')", (compiled == "2.0", compiled)


def prove(
    flavor: str, expected: Mapping[str, str], found: Mapping[str, str], gpus: str = ""
) -> list[tuple[str, bool, str]]:
    """Run every check; return its name, whether it passed, and the details."""
    promised = {**PROMISES[flavor], "compilers": "triton" in expected}  # it calls a C compiler
    checks = [*versions(expected, found), *capabilities(promised), *linked(), *login(), *behaviour()]
    checks += vision() if "torchvision" in expected else ()
    checks += of_cuda(gpus) if promised["cuda-aware"] else ()
    return [(name, kept, detail) for name, (kept, detail) in checks]


def main(argv: list[str]) -> int:
    """In a build, check and record the requested versions; in an image, check the recorded ones."""
    found = found_versions()
    if RECORD.exists():
        record = json.loads(RECORD.read_text())
    else:
        expected = {name: os.environ.get(argument, "") for name, argument in ARGUMENTS.items()}
        named = {name: wanted for name, wanted in expected.items() if wanted}
        record = {"flavor": argv[0], "track": os.environ.get("TRACK", ""), "versions": named}
        recipe = {
            "gpus": os.environ.get("TORCH_CUDA_ARCH_LIST", ""),
            "profile": os.environ.get("PROFILE", ""),
        }
        record |= {name: value for name, value in recipe.items() if value}
        record["found"] = found  # also what nobody has asked for, such as cuDNN's
    proved = prove(record["flavor"], record["versions"], found, record.get("gpus", ""))
    if "--json" in argv:
        print(json.dumps({**record, "checks": proved}))
    else:
        for name, kept, detail in proved:
            print(f"{'kept  ' if kept else 'BROKEN'}  {name}: {detail}")
    broken = [name for name, kept, _ in proved if not kept]
    if not broken and "--record" in argv:
        RECORD.write_text(json.dumps(record) + "\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
