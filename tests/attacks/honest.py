"""What an honest agent says: an example of every answer and of every report, as it comes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from tests.unit.plans import NODE
from tests.unit.test_check import HEALTHY, IDLE

DIGEST, DIFF_ID = "ab" * 32, "sha256:" + "cd" * 32
JOB = {
    "job": "20261121-120000-abcd",
    "state": "done",
    "launcher": "mpirun",
    "hosts": ["node1"],
    "ranks": 1,
    "placed": [1],
    "attempt": 0,
    "detached": False,
    "started": 1000.0,
    "ended": 1001.0,
    "exit_status": 0,
    "why": "",
    "last_line": "",
    "folder": "/home/ml/.muster/jobs/x/run",
    "driver": {"host": "laptop", "pid": 7},
    "driver_folder": "/runs/x",
}
ENVIRONMENT = {
    "executable": "/home/ml/.muster/envs/x/bin/python3",
    "python": "3.13.5",
    "torch": "2.13.0",
    "mpi4py": "4.1.1",
    "mpirun": "/home/ml/.muster/envs/x/bin/mpirun",
    "mpi": "5.0.11",
    "source": "requirements.txt",
    "packages": 12,
    "bytes": 7,
    "used": 1000.0,
}
DEVICE = {"index": 0, "name": "GPU-1234", "user": "bob", "job": "x", "since": 1000.0, "process": ""}
ANSWERS: dict[str, dict[str, Any]] = {
    "time": {"time": 1000.0, "steady": 500.0},
    "facts": json.loads(json.dumps(dataclasses.asdict(NODE))),
    "health": json.loads(json.dumps(dataclasses.asdict(HEALTHY) | {"gpus": [dataclasses.asdict(IDLE)]})),
    "lease": {
        **{"kind": "nvidia", "ready": False, "all": 8, "mig": False, "got": [DEVICE], "taken": [DEVICE]},
        **{"arrived": 1.0, "beside": ["bob"]},
    },
    "leases": {
        "kind": "nvidia",
        "gpus": [DEVICE],
        "slots": [DEVICE],
        "waiting": [{"user": "bob", "job": "x", "since": 1000.0, "number": 2}],
        "problem": "",
    },
    "kernel_messages": {
        "messages": [{"ago": 3.5, "kind": "xid", "meaning": "a GPU is lost", "text": "NVRM: Xid: 79, pid=7"}],
        "unread": "",
    },
    "open_port": {"port": 20123},
    "preload": {
        "state": "ready",
        "why": "",
        "memory": 280 << 20,
        "modules": 900,
        "released": 2,
        "cold": {"not ready": 1},
    },
    "reach": {"reached": {"node1": {"interfaces": {"10.0.0.1": None}, "refused": {"fe80::1": "no route"}}}},
    "missing": {"missing": [DIGEST]},
    "stop": {
        "over": True,
        "left": [{"pid": 7, "name": "python3", "state": "D"}],
        "saving": [0],
        "behind": [{"rank": 0, "pid": 7, "name": "sh"}],
        "ended": [{"rank": 0, "pid": 7, "name": "sh", "program": False, "seconds": 30.0}],
    },
    "why": {
        "ranks": {
            "0": {
                "now": 1000.0,
                "groups": [{"group": "0", "kind": "call", "ranks": "0-1", "count": 7}],
                "entries": [
                    {"state": "i", "group": "0", "kind": "call", "seq": 7, "at": 1.0, "op": "barrier"}
                ],
                "process": {"pid": 7, "state": "S"},
                "frames": [["main", "train.py", 3, True]],
            }
        }
    },
    "console_eval": {
        "recorded": True,
        "ranks": {"0": {"at": "main (train.py:3)", "value": "7"}, "1": {"error": "NameError: no"}},
    },
    "stream_open": {"refused": "no"},
    "arrivals": {
        "ranks": {
            "0": {
                "sites": [["all_reduce", "train.py:88", 4000, True]],
                "tracks": [
                    {"group": "0", "kind": "call", "count": 7, "seqs": [7], "at": [1000.0], "sites": [0]}
                ],
                "pressure": {"busy": 0.5, "queued": 0.1, "throttled": None},
            }
        },
        "cost": 0.01,
    },
    "jobs": {"jobs": [JOB]},
    "output": {"output": [["rank-0000@node1.out", "line\n"]], "more": True, "at": 7},
    "end_driver": {"told": True},
    "outputs": {
        "beside": {"files": 3, "bytes": 7, "more": False, "largest": "a/b.pt"},
        "out": {"files": 0, "bytes": 0, "more": False},
        "folder": "ef" * 16,
    },
    "memory_kills": {"kills": 2, "limit": 1 << 30},
    "left_memory": {"files": 2, "bytes": 7, "largest": "sem.a"},
    "files": {"files": [["logs/order", 7]]},
    "put_begin": {"draft": "/home/ml/.x.abc"},
    "file": {
        "mode": 0o755,
        "entries": [["a", "file", 0o644, 7, DIGEST, ""], ["b", "link", 0o755, 0, "", "a"]],
    },
    "entries": {"entries": [["a", "file", 0o644, 7, DIGEST, ""]], "more": False},
    "clean": {"removed": ["x"], "kept": [], "freed": 7},
    "image": {"id": DIFF_ID, "created": "2026", "layers": [DIFF_ID], "common": 1},
    "blob_serve": {"port": 20125, "addresses": ["fe80::1"], "place": "ef" * 16, "have": {DIGEST: 7}},
    **{f"data_{word}": {"digest": DIGEST, "bytes": 7} for word in ("scan", "bundle", "open")},
    "data_begin": {"lacking": "07", "have": "00"},
    "data_list": {
        "place": "ef" * 16,
        "sets": [{"name": "digits", "files": 3, "bytes": 7, "digest": DIGEST, "error": ""}],
    },
    "data_verify": {"digest": DIGEST, "damaged": ["'a': missing"]},
    "data_remove": {"freed": 7},
    "signal": {},
    "envs": {
        "home": "ef" * 16,
        "machine": "x86_64",
        "glibc": "2.41",
        "driver": "580.95.05",
        "environments": {"ab" * 10: ENVIRONMENT},
    },
    "container": {
        "engine": "docker",
        "program": "/usr/bin/docker",
        "rootless": False,
        "remapped": False,
        "raises_limits": True,
        "id": DIGEST,
        "digests": [DIGEST],
        "inside": {
            "executable": "/opt/conda/bin/python3",
            "python": "3.12.3",
            "torch": "2.13.0",
            "mpi4py": None,
            "mpirun": "/usr/local/mpi/bin/mpirun",
            "mpi": "4.1.7",
            "mpi_error": None,
            "passwd": "root:x:0:0:root:/root:/bin/bash\n",
        },
        "user": "ml",
        "gid": 1000,
        "groups": [27],
        "open_files": 1024,
        "gpus": "cdi",
        "devices": ["/dev/infiniband"],
        "home": "ef" * 16,
    },
    "env_reach": {"refusal": "no route to the index"},
    "env_remove": {"removed": ["ab" * 10], "kept": [], "freed": 7},
}
_END = {"code": 1, "time": 1000.0}
REPORTS: dict[str, dict[str, Any]] = {
    "rank-start": {"rank": 0, "local_rank": 0, "world_size": 1},
    "output": {"rank": 0, "stream": "out", "text": "line\n"},
    "log-ended": {"rank": 0, "why": "no space left on the disk of /home/ml/.muster"},
    "rank-end": {
        "rank": 0,
        **_END,
        "tail": ["line\n"],
        "out_of_memory": {"limit": 7},
        "terminated": True,
        "found": {"gpu_users": '[{"pid": 7, "user": "ada", "program": "python3", "rank": 1}]'},
    },
    "program-over": {
        **{"rank": 0, "time": 1000.0, "error": ["ValueError: boom"], "alive": ["thread 'w'"]},
        **{"ends_in": 60.0, "ended": False},
    },
    "launcher": {"stream": "err", "text": "line\n"},
    "command-end": _END,
    "shell": {"number": 7, "host": "node2", "command": "prted"},
    "shell-end": {"number": 7, **_END},
    "daemon-end": {"name": "prted", **_END},
    "stop-asked": {"by": "ada", "grace": 5.0},
    "detached": {"error": "no", "unfit": [["node2", "no torch"]], "exit_status": 3},
    "stream-part": {"stream": 7},
    "stream-taken": {"stream": 7},
    "stream-closed": {"stream": 7},
    "ran": {"code": 0, "cut": 0, "timed_out": False},
    "file-have": {"digest": DIGEST, "have": 7},
    "file-got": {"digest": DIGEST, "error": "no", "wrong": True},
    "file-stuck": {"digest": DIGEST, "have": 7, "text": "no"},
    "image-loaded": {"id": DIFF_ID, "created": "2026", "layers": [DIFF_ID]},
    "env-made": {"seconds": 7.0, "environment": ENVIRONMENT, "error": ""},
    "data-read": {"done": 7, "total": 9},
    "sample": {"sample": '{"cpu": 0.5}'},
}
