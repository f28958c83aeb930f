"""Faults of docs/faults.md whose tests check messages and what remains, without measuring time."""

from __future__ import annotations

# Each: what breaks, what Muster says or does, and the file of the test.
UNTIMED = (
    (
        "a host's disk fills under a rank",
        "the rank goes on and its lines reach the driver; `note: node3: no space left on the disk of …; the "
        "logs of rank 4 end early there`",
        "tests/node/test_rank.py, tests/cluster/test_disks_of_hosts.py",
    ),
    ("a rank removes its job's folder", "the rank's own exit status", "tests/node/test_rank.py"),
    (
        "the driver's machine is suspended, or the driver stopped (Ctrl-Z)",
        "below 10 s nothing; else `this machine was suspended for 300 s …`, "
        "`this driver stood still for 20 s …`",
        "tests/unit/test_suspension.py, tests/local/test_local_launch.py",
    ),
    (
        "a host's clock is set while a job runs",
        "failures keep their order: steady clocks tell it",
        "tests/node/test_rank.py, tests/node/test_agent.py",
    ),
    (
        "packets between two hosts are dropped on the ranks' interface alone",
        "`muster check`: `pair.unreachable`",
        "tests/unit/test_check.py, tests/unit/test_examine.py",
    ),
    (
        "packets between two hosts are dropped while a job runs, with `--stall-timeout`",
        "the verdict names the pair and no rank: `no rank has printed anything …; node2 does not reach node3 "
        "at 10.0.0.3 (timed out)`",
        "tests/unit/test_pairs.py, tests/cluster/test_stacks_of_ranks.py",
    ),
    (
        "an agent is stopped (SIGSTOP)",
        "after 10 s the verdict names its host as silent; its processes stay until SIGCONT, and "
        "`muster check` says so: `processes.agent-stopped`",
        "tests/unit/test_check.py, tests/node/test_health.py",
    ),
    (
        "a host's home is mounted noexec, its disk has no inodes, TMPDIR is over 85 bytes, or fewer than 128 "
        "files may be open",
        "an error of `muster check`; a launch is refused with the same cause",
        "tests/unit/test_check.py, tests/node/test_agent.py, tests/cluster/test_disks_of_hosts.py",
    ),
    ("a umask of 777", "nothing: jobs run with 077", "tests/node/test_agent.py"),
    (
        "the disk of the driver's machine is full",
        "before a job: `cannot begin the run's folder: no space left …`; later the job goes on, and the "
        "verdict notes that logs here end early",
        "tests/unit/test_attempts.py",
    ),
    (
        "what a launch prints cannot be written (`| head`, a full disk)",
        "the job goes on; the verdict goes to standard error",
        "tests/unit/test_screen.py",
    ),
    (
        "the head is lost and the job starts again on another",
        "`metrics.jsonl` has the epochs of earlier attempts, or the verdict names the host that they "
        "went with",
        "tests/unit/test_attempts.py",
    ),
    ("several hosts are lost at once", "`note: also lost: node1: …` for each", "tests/unit/test_execute.py"),
    (
        "start-up files of a login shell read standard input",
        "`start-up files of that login's shell (~/.bashrc) read what was meant for the agent`",
        "tests/unit/test_bootstrap.py",
    ),
    ("sshd allows no session", "`accepts the login, but no session`", "tests/unit/test_ssh.py"),
    (
        "`muster run --timeout` and a process that is stuck in the kernel",
        "`not over in time; 1 of its processes are stuck in the kernel`",
        "tests/node/test_agent.py",
    ),
    (
        "a host freezes during `muster image push`",
        "the others get the image",
        "tests/unit/test_push_frozen.py",
    ),
)
