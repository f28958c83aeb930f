"""Faults of docs/faults.md whose tests check messages and leftovers, without measuring time."""

from __future__ import annotations

# Each: what breaks, what Muster says or does, and the file of the test.
UNTIMED = (
    (
        "a host's disk fills under a rank",
        "the rank continues and its lines reach the driver; `note: node3: no space left on the disk of …;"
        " the logs of rank 4 end early there`",
        "tests/node/test_rank.py, tests/cluster/test_disks_of_hosts.py",
    ),
    ("a rank removes its job's folder", "the rank's own exit status", "tests/node/test_rank.py"),
    (
        "the driver's machine is suspended, or the driver stopped (Ctrl-Z)",
        "below 10 s nothing; otherwise `this machine was suspended for 300 s …`, `this driver did not run"
        " for 20 s …`",
        "tests/unit/test_suspension.py, tests/local/test_local_launch.py",
    ),
    (
        "a host's clock is set while a job runs",
        "failures keep their order, by monotonic clocks",
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
        "after 10 s the verdict names its host as silent; its processes stay until SIGCONT, and `muster "
        "check` reports `processes.agent-stopped`",
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
        "before a job: `cannot begin the run's folder: no space left …`; later the job continues, and the"
        " verdict notes that logs here end early",
        "tests/unit/test_attempts.py",
    ),
    (
        "standard output of a launch cannot be written (`| head`, a full disk)",
        "the job continues; the verdict goes to standard error",
        "tests/unit/test_screen.py",
    ),
    (
        "the head is lost and the job starts again on another",
        "`metrics.jsonl` has the epochs of earlier attempts, or the verdict names the host with which "
        "they were lost",
        "tests/unit/test_attempts.py",
    ),
    ("several hosts are lost at once", "`note: also lost: node1: …` for each", "tests/unit/test_execute.py"),
    (
        "start-up files of a login shell read standard input",
        "`start-up files of that login's shell (~/.bashrc) read the input of the agent`",
        "tests/unit/test_bootstrap.py",
    ),
    ("sshd allows no session", "`accepts the login, but no session`", "tests/unit/test_ssh.py"),
    (
        "`muster run --timeout` and a process that is stuck in the kernel",
        "`timed out; cannot be ended: process 71 (df), state D, waits for …`",
        "tests/node/test_agent.py",
    ),
    (
        "a host freezes during `muster image push`",
        "the others get the image",
        "tests/unit/test_push_frozen.py",
    ),
    (
        "a stored content of a host is empty or damaged",
        "the content is sent again, and the job runs as written; a second mismatch names host, file and disk",
        "tests/local/test_damaged_store.py, tests/local/test_power_cuts.py",
    ),
    (
        "a host answers for a rank of another host (`why`, `eval`, `stacks`, `logs`, `top`)",
        "`protocol error` of that host alone; the other hosts are shown",
        "tests/attacks/test_liars.py",
    ),
    (
        "an exception while a non-daemon thread runs",
        "the exception at once, with the thread that keeps the rank alive; the rank is ended after 60 s",
        "tests/node/test_program_over.py",
    ),
    (
        "Python is replaced on a host while a job runs",
        "the end of every rank is reported correctly (0, status, exception, signal)",
        "tests/node/test_rank.py, tests/node/test_replaced_python.py",
    ),
    (
        "a host's home does not answer (`fsfreeze -f`, a lost file server)",
        "the job continues with all lines here, and a note names the disk; launch, check and stacks name it",
        "tests/node/test_silent_disk.py",
    ),
    (
        "a rank ends with 0 before the others",
        "`rank 1 on localhost ended with status 0 after 2.1 s, while others still ran`",
        "tests/unit/test_early_ends.py, tests/local/test_local_launch.py",
    ),
    (
        "one rank prints without end under `--max-log`",
        "its own log is cut, and ends with its last lines; logs of other ranks are complete",
        "tests/unit/test_log_limit.py",
    ),
    (
        "this machine loses its network, and with it all hosts",
        "`all 3 hosts have been silent for 10 s: this machine has lost its network …`; no host is named "
        "or excluded",
        "tests/unit/test_silence.py, tests/cluster/test_driver_network.py",
    ),
    (
        "this machine loses its network during `muster attach`",
        "`connecting again for up to 60 s`; no line is lost or repeated",
        "tests/unit/test_reconnect.py",
    ),
    (
        "the driver of a detached job was stopped",
        "`Muster's driver on node1: Muster's driver did not run for 21 s …`",
        "tests/unit/test_suspension.py",
    ),
    (
        "a second signal to the driver",
        "`ending within 5 s, at once after one more signal; hosts end the rest`",
        "tests/unit/test_interrupts.py",
    ),
    (
        "standard output of a launch is closed, or its terminal goes away under nohup",
        "status and records of the job do not change",
        "tests/unit/test_closed_streams.py",
    ),
    (
        "runs/JOB is removed, read-only or out of inodes at the end of a job",
        "DONE with the status of the ranks; verdict and standard error name the files that could not be "
        "written",
        "tests/unit/test_attempts.py",
    ),
    (
        'an option has an empty value (`--include "$UNSET"`), or `--env` sets RANK',
        "status 2 and a message that names the option or variable; no host is contacted",
        "tests/unit/test_option_values.py, tests/unit/test_request.py",
    ),
    (
        "sshd refuses the jobs' account",
        "`muster setup` undoes its sshd settings there, and quotes sshd's reason",
        "tests/ansible/test_setup.py",
    ),
    (
        "a host claims the address of another one in setup",
        "setup stops and names both",
        "tests/ansible/test_templates.py",
    ),
    (
        "a rank sends a hostile pickle, another type, or announces 2^50 bytes",
        "no other rank executes it; every rank ends with status 2 and names the rank and its host",
        "tests/train/test_exchanged_values.py",
    ),
    (
        "a file of a sharded checkpoint is damaged or missing",
        "host, step and file are named; the copy of another host is used, else the step before",
        "tests/train/test_gpt_sharded.py, tests/train/test_sharded_hosts.py",
    ),
    (
        "a file of a sharded checkpoint contains code",
        "every rank refuses it and names the rank that found it; weights are unchanged",
        "tests/train/test_gpt_sharded.py",
    ),
    (
        "a stranger connects to the port of a push, or records its traffic",
        "a TLS alert; no content, checksum, name or key",
        "tests/node/test_transfer_security.py",
    ),
    (
        "a host sends wrong chunks, or reports right chunks as wrong",
        "only this host is excluded, and named",
        "tests/attacks/test_data_liars.py",
    ),
    (
        "a host answers `busy` without progress, or sends a byte now and then",
        "it is excluded, or another source is used",
        "tests/attacks/test_boundary.py, tests/node/test_blobs.py, tests/unit/test_transfers.py",
    ),
    (
        "an agent is killed (SIGKILL), and its `muster-*` folder in the temporary folder stays",
        "the next launch of the user removes it",
        "tests/node/test_private_folders.py",
    ),
    (
        "sshd accepts no more keys of an SSH agent (MaxAuthTries), or closes before its banner",
        "`too many authentication failures`, and how to name the key; MaxStartups and PerSourcePenalties",
        "tests/unit/test_ssh.py, tests/cluster/test_keys_of_an_agent.py",
    ),
    (
        "power fails while the store or a record is written (each sync and rename)",
        "old content, new content or none, never other bytes",
        "tests/unit/test_crash_points.py, tests/local/test_power_cuts.py",
    ),
    (
        "a process of the job cannot be ended (SIGKILL does not reach it: a frozen disk, a device)",
        "`cannot be ended: rank 3, process 71 (python3), state D in rq_qos_wait, waits for /mnt/x/a.pt on "
        "/mnt/x (ext4 /dev/loop0)`; its host is not used by the next attempt",
        "tests/node/test_stuck.py, tests/unit/test_restart.py",
    ),
    (
        "a program fails in the same line at each start, with `--max-restarts`",
        "no third start; the first traceback, and "
        "`no restart: it failed twice in the same way before its first step`",
        "tests/unit/test_restart.py, tests/unit/test_repeated.py, tests/local/test_local_launch.py",
    ),
    (
        "ranks fail twice in a row on one host alone",
        "the third start is without that host; before the first step, the job ends and names it if too few "
        "hosts are left",
        "tests/unit/test_restart.py",
    ),
    (
        "a spare host of `--spares` is lost while the job runs",
        "the job continues, and a line names the host",
        "tests/unit/test_kept.py",
    ),
    (
        "a lost host answers again while the job runs without it",
        "it takes part in the next attempt",
        "tests/unit/test_return.py, tests/cluster/test_healing.py",
    ),
    (
        "a lost host is back at once, and too few hosts are left",
        "it is asked again for 15 s before the job ends",
        "tests/unit/test_restart.py",
    ),
    (
        "the first host of a detached job is down",
        "`status`, `logs`, `why`, `stop`: `node1: the driver of JOB is there, and it does not answer`",
        "tests/unit/test_running_job.py",
    ),
    (
        "a rank that handles SIGTERM saves while the job ends: after Ctrl-C, `muster stop`, the failure of "
        "another rank, the end of the driver",
        "it has `--grace` seconds (30); the live line shows `ranks 0-1 still handle SIGTERM, 4 s; Ctrl-C "
        "ends the job now`, the verdict `killed 30.0 s after SIGTERM: ranks 0-1 on node1`",
        "tests/node/test_ending.py, tests/node/test_rank.py, tests/local/test_grace.py",
    ),
    (
        "a rank ends with 0 and leaves a process behind, such as an upload",
        "it has `--grace` seconds; the live line shows `every rank is done; waiting for sh of rank 0 on "
        "node1`, the verdict `left behind: sh of rank 0 on node1 (process 71), ended after 30.0 s`",
        "tests/node/test_ending.py, tests/local/test_grace.py",
    ),
    (
        "SIGUSR1 or SIGUSR2 comes before the program has a handler for it",
        "the wrapper of the rank holds it until the program has one",
        "tests/node/test_rank.py",
    ),
)
