"""What may be asked of an agent, and the type of each answer.

A `Request` has the word that is sent and the type of the answer: `channel.ask(FACTS)` returns a `Facts`. An
answer is checked where it arrives, in `Channel`; what does not fit ends the connection to its host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

from ..common.data.manifest import CHUNK
from ..common.files import PART
from ..common.frames import Frame
from ..decode import NONSENSE, AtMost, Between, Like, from_json
from ..hosts.bounds import (
    MOST_HOSTS,
    Address,
    AddressOrName,
    Bytes,
    Count,
    DiffId,
    Digest,
    Interface,
    Name,
    Number,
    Path,
    Pid,
    Port,
    Seconds,
    Version,
    Words,
)
from ..hosts.environments import MOST_ENVIRONMENTS, EnvironmentsThere, Key
from ..hosts.facts import Facts
from ..hosts.gpus import MOST_GPUS, Gpu, GpuHost
from .evidence import EvidenceHere

Answer = TypeVar("Answer")

MOST_ENTRIES = 1 << 18  # files of a folder or a run, contents of a tree
MOST_METRICS = 1 << 26
MOST_SERVED = 4096  # layers of an image, wheels of an environment
_Pids = Annotated[tuple[Pid, ...], AtMost(1 << 16)]
_Log = Annotated[str, AtMost(512)]
_JobId = Annotated[str, Like(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{4}")]
"""It becomes a path on the driver."""


@dataclass(frozen=True)
class Nothing:
    """The request is done, and has no other answer."""


@dataclass(frozen=True)
class Time:
    """The host's time of day, and its steady clock that nobody sets (deploy/common/clock.py)."""

    time: Seconds
    steady: Seconds


@dataclass(frozen=True)
class HostSampled:
    """What a host measured of itself just now, as JSON that deploy/common/samples.py checks."""

    sample: Words


# -- before a launch --


@dataclass(frozen=True)
class OpenPort:
    """A port of the host where others may try to reach it."""

    port: Port


@dataclass(frozen=True)
class PortOrRefusal:
    """Such a port, or why the host has none."""

    port: Port | None = None
    refused: Words | None = None


@dataclass(frozen=True)
class PortThief:
    """The user who listens at the job's port after the job's end, if anybody does."""

    port: Port | None = None
    user: Name | None = None


@dataclass(frozen=True)
class HeadReached:
    """The host's own interface for each address of the head that it reaches."""

    interfaces: Annotated[Mapping[AddressOrName, Interface | None], AtMost(4096)]


@dataclass(frozen=True)
class Reached:
    """How a host reaches another: by address its own interface, or why the address is not reached."""

    interfaces: Annotated[Mapping[AddressOrName, Interface | None], AtMost(4096)] = field(
        default_factory=dict
    )
    refused: Annotated[Mapping[AddressOrName, Words], AtMost(4096)] = field(default_factory=dict)


@dataclass(frozen=True)
class HostsReached:
    """How a host reaches others."""

    reached: Annotated[Mapping[Name, Reached], AtMost(MOST_HOSTS)]


@dataclass(frozen=True)
class Folder:
    """A place where jobs write: bytes free there, and the error of a test write.

    `inodes`: files that can still be made, None where none are counted. `noexec`: no program starts there.
    """

    path: Path
    free: Bytes | None
    error: Words | None
    inodes: Annotated[int, Between(0, 1 << 64)] | None = None
    noexec: bool = False


@dataclass(frozen=True)
class JobProcesses:
    """Processes of one job on a host; `kept`: its agent lives, so the job is running and not left over."""

    job: Name
    pids: _Pids
    kept: bool


@dataclass(frozen=True)
class Health:
    """One host, as its agent measured it. Sizes in bytes; a limit of -1 is none."""

    user: Name
    own_addresses: Annotated[tuple[Address, ...], AtMost(1024)]
    """What its own name resolves to."""
    folders: Annotated[tuple[Folder, Folder], AtMost(2)]
    """Muster's own folder, and the folder for temporary files."""
    shm_free: Bytes | None
    nofile: Number
    memlock: Number
    rdma: bool
    gpus: Annotated[tuple[Gpu, ...], AtMost(MOST_GPUS)]
    gpu_error: Words | None
    driver: Name | None
    driver_cuda: Version | None
    torch_cuda: Version | None
    nccl: Version | None
    jobs: Annotated[tuple[JobProcesses, ...], AtMost(1 << 14)]
    gpu_host: GpuHost = field(default_factory=GpuHost)
    """What its GPUs depend on."""
    image: Annotated[Mapping[Name, Name], AtMost(256)] = field(default_factory=dict)
    """What the node image records of itself: flavor, track, the version of each part; empty without one."""


# -- a launch --


@dataclass(frozen=True)
class Missing:
    """The contents that a host does not have."""

    missing: Annotated[tuple[Digest, ...], AtMost(MOST_ENTRIES)]


@dataclass(frozen=True)
class Stopped:
    """The processes that could not be ended."""

    left: _Pids


@dataclass(frozen=True)
class Outputs:
    """The files that a job has left on a host, and their bytes; `more`: there are more than were counted."""

    files: Count
    bytes: Bytes
    more: bool


@dataclass(frozen=True)
class Payload:
    """Bytes of a file; none at its end."""

    payload: bytes = b""


class Frames(NamedTuple):
    """A line of a Python stack."""

    function: Words
    file: Path
    line: Number | None


@dataclass(frozen=True)
class Stack:
    """Where a rank is, innermost first, or why that cannot be told."""

    frames: Annotated[tuple[Frames, ...], AtMost(1 << 12)] = ()
    error: Words = ""


@dataclass(frozen=True)
class StacksHere:
    """The stack of each rank of a host."""

    stacks: Annotated[Mapping[Annotated[str, Like(r"\d{1,7}")], Stack], AtMost(1 << 12)]


# -- jobs --


@dataclass(frozen=True)
class Driver:
    """The process that drives a job."""

    host: Name
    pid: Pid


@dataclass(frozen=True)
class JobState:
    """A job as its folder tells of it; `ended` and `exit_status` are None as long as there is no result."""

    job: _JobId
    state: Literal["running", "done", "failed", "lost"]
    launcher: Name
    hosts: Annotated[tuple[Name, ...], AtMost(MOST_HOSTS)]
    ranks: Count
    attempt: Count
    detached: bool
    started: Seconds
    ended: Seconds | None
    exit_status: Number | None
    why: Words
    last_line: Words
    folder: Path
    driver: Driver
    driver_folder: Path

    @property
    def running(self) -> bool:
        """Whether the job goes on."""
        return self.state == "running"


@dataclass(frozen=True)
class Jobs:
    """The jobs of a place."""

    jobs: Annotated[tuple[JobState, ...], AtMost(1 << 14)]


@dataclass(frozen=True)
class Printed:
    """What ranks printed, each text with the name of its log, and whether there is more."""

    output: Annotated[tuple[tuple[_Log, Annotated[str, AtMost(1 << 20)]], ...], AtMost(1 << 18)]
    more: bool


@dataclass(frozen=True)
class Told:
    """Whether the driver of a job could be told."""

    told: bool


@dataclass(frozen=True)
class RunFiles:
    """The files of a run with their sizes, in bytes."""

    files: Annotated[tuple[tuple[Path, Bytes], ...], AtMost(MOST_ENTRIES)]


# -- files --


@dataclass(frozen=True)
class Draft:
    """Where a host takes in a file or folder."""

    draft: Path


class Entry(NamedTuple):
    """Something in a folder of a host (deploy/common/files.py)."""

    path: Path
    kind: Literal["folder", "file", "link"]
    mode: Count
    length: Bytes
    digest: Annotated[str, Like("([0-9a-f]{64})?")]
    link: Path


@dataclass(frozen=True)
class FileFacts:
    """A file, or a folder with what is in it."""

    mode: Count
    length: Bytes = 0
    digest: Annotated[str, Like("([0-9a-f]{64})?")] = ""
    entries: Annotated[tuple[Entry, ...], AtMost(MOST_ENTRIES)] | None = None
    more: bool = False
    """There are more entries, for `FILE_ENTRIES` to bring."""


@dataclass(frozen=True)
class Entries:
    """Further entries of a folder."""

    entries: Annotated[tuple[Entry, ...], AtMost(MOST_ENTRIES)]
    more: bool


@dataclass(frozen=True)
class Cleaned:
    """The jobs whose folders were removed, those that were kept, and the bytes that are free again."""

    removed: Annotated[tuple[Name, ...], AtMost(MOST_ENTRIES)]
    kept: Annotated[tuple[Name, ...], AtMost(MOST_ENTRIES)]
    freed: Bytes


# -- images --


@dataclass(frozen=True)
class ImageThere:
    """The image that a host has under a name, if any, and how many layers of the wanted image it has."""

    id: Name
    created: Name
    layers: Annotated[tuple[DiffId, ...], AtMost(1024)]
    common: Count


@dataclass(frozen=True)
class FilesServed:
    """Where a host gives large files to others, and how many bytes of each it has."""

    port: Port
    have: Annotated[Mapping[Digest, Bytes], AtMost(MOST_SERVED)]


# -- data sets --

_Chunks = Annotated[str, AtMost(1 << 20), Like("[0-9a-f]*")]
"""A set of numbers of chunks, a bit each (deploy/common/data/manifest.py)."""
_Place = Annotated[str, Like("[0-9a-f]{32}")]
"""The same for hosts that share a folder of data sets."""


@dataclass(frozen=True)
class DataServed:
    """Where a host gives bundles to others, and how many bytes of which it has."""

    port: Port
    place: _Place
    have: Annotated[Mapping[Digest, Bytes], AtMost(1024)]


@dataclass(frozen=True)
class DataBundle:
    """Chunks, or a manifest, as a file that a host can give."""

    digest: Digest
    bytes: Bytes


@dataclass(frozen=True)
class DataBegun:
    """The chunks that a host lacks, and those that it can give."""

    lacking: _Chunks
    have: _Chunks


@dataclass(frozen=True)
class DataSet:
    """A data set of a host; shard `shard` of `of`."""

    name: Name
    files: Count = 0
    bytes: Bytes = 0
    digest: Annotated[str, Like("([0-9a-f]{64})?")] = ""
    shard: Count = 0
    of: Count = 1
    error: Words = ""


@dataclass(frozen=True)
class DataSets:
    """The data sets of a host."""

    place: _Place
    sets: Annotated[tuple[DataSet, ...], AtMost(4096)]


@dataclass(frozen=True)
class DataVerified:
    """What is damaged in a data set, a line each."""

    digest: Digest
    damaged: Annotated[tuple[Words, ...], AtMost(64)]


@dataclass(frozen=True)
class DataRemoved:
    """The bytes of a data set that is removed."""

    freed: Bytes


# -- environments of packages --


@dataclass(frozen=True)
class IndexRefusal:
    """Why a host does not reach an index; empty if it does."""

    refusal: Words


@dataclass(frozen=True)
class EnvironmentsRemoved:
    """The environments that were removed, those that are in use, and the bytes that are free again."""

    removed: Annotated[tuple[Key, ...], AtMost(MOST_ENVIRONMENTS)]
    kept: Annotated[tuple[Key, ...], AtMost(MOST_ENVIRONMENTS)]
    freed: Bytes


@dataclass(frozen=True)
class Described:
    """What hosts of a job should have alike, each thing with its value there."""

    facts: Annotated[Mapping[Name, Annotated[str, AtMost(4096)]], AtMost(1 << 14)]


@dataclass(frozen=True)
class Request(Generic[Answer]):
    """The word of a request, and the type of its answer. `room`: the most bytes that may follow it."""

    word: str
    answer: type[Answer]
    room: int = 0

    def read(self, frame: Frame, payload: bytes = b"") -> Answer:
        """The answer in a frame; ValueError for what is no answer to this."""
        try:
            value: Any = {**frame, "payload": payload} if self.room else frame
            answer: Answer = from_json(self.answer, value)
        except NONSENSE as error:
            raise ValueError(f"its answer to {self.word}: {error}") from None
        return answer


TIME = Request("time", Time)
LOAD = Request("load", Nothing)
MODULES = Request("modules", Nothing)
FACTS = Request("facts", Facts)
HEALTH = Request("health", Health)
OPEN_PORT = Request("open_port", OpenPort)
TRY_TO_OPEN_PORT = Request("try_to_open_port", PortOrRefusal)
FREE_PORT = Request("free_port", Nothing)
PORT_THIEF = Request("port_thief", PortThief)
REACH = Request("reach", HeadReached)
REACH_HOSTS = Request("reach_hosts", HostsReached)
MISSING = Request("missing", Missing)
STORE = Request("store", Nothing)
PREPARE = Request("prepare", Nothing)
START = Request("start", Nothing)
SHELL = Request("shell", Nothing)
SHELL_END = Request("shell_end", Nothing)
STDIN = Request("stdin", Nothing)
PING = Request("ping", Nothing)
WATCH = Request("watch", Nothing)
SAMPLE = Request("sample", HostSampled)
STOP = Request("stop", Stopped)
OUTPUTS = Request("outputs", Outputs)
FETCH = Request("fetch", Payload, MOST_METRICS)
STACKS = Request("stacks", StacksHere)
WHY = Request("why", EvidenceHere)
JOBS = Request("jobs", Jobs)
OUTPUT = Request("output", Printed)
RECORD = Request("record", Nothing)
END_DRIVER = Request("end_driver", Told)
FILES = Request("files", RunFiles)
READ = Request("read", Payload, PART)
DETACH = Request("detach", Nothing)
RUN = Request("run", Nothing)
CLEAN = Request("clean", Cleaned)
DRAFT = Request("draft", Draft)
APPEND = Request("append", Nothing)
VERIFY = Request("verify", Nothing)
SETTLE = Request("settle", Nothing)
FILE = Request("file", FileFacts)
FILE_ENTRIES = Request("entries", Entries)
FILE_PART = Request("part", Payload, PART)
IMAGE = Request("image", ImageThere)
IMAGE_SERVE = Request("image_serve", FilesServed)
IMAGE_TAKE = Request("image_take", Nothing)
IMAGE_COMPLETE = Request("image_complete", Nothing)
IMAGE_PULL = Request("image_pull", Nothing)
IMAGE_FORGET = Request("image_forget", Nothing)
IMAGE_LOAD = Request("image_load", Nothing)
DATA_SERVE = Request("data_serve", DataServed)
DATA_SCAN = Request("data_scan", DataBundle)
DATA_FETCH = Request("data_fetch", DataBundle)
DATA_BEGIN = Request("data_begin", DataBegun)
DATA_TAKE = Request("data_take", Nothing)
DATA_COMPLETE = Request("data_complete", Nothing)
DATA_PULL = Request("data_pull", Nothing)
DATA_BUNDLE = Request("data_bundle", DataBundle)
DATA_FORGET = Request("data_forget", Nothing)
DATA_PUBLISH = Request("data_publish", Nothing)
DATA_LIST = Request("data_list", DataSets)
DATA_VERIFY = Request("data_verify", DataVerified)
DATA_REMOVE = Request("data_remove", DataRemoved)
DATA_OPEN = Request("data_open", DataBundle)
DATA_PART = Request("data_part", Payload, CHUNK)
DATA_READ = Request("data_read", Payload, CHUNK)
WHEEL_SERVE = Request("wheel_serve", FilesServed)
WHEEL_TAKE = Request("wheel_take", Nothing)
WHEEL_COMPLETE = Request("wheel_complete", Nothing)
WHEEL_PULL = Request("wheel_pull", Nothing)
ENVIRONMENTS = Request("envs", EnvironmentsThere)
ENVIRONMENT_REACH = Request("env_reach", IndexRefusal)
ENVIRONMENT_MAKE = Request("env_make", Nothing)
ENVIRONMENT_REMOVE = Request("env_remove", EnvironmentsRemoved)
ENVIRONMENT_FACTS = Request("env_facts", Described)
