"""Options of other launchers: accepted as another spelling, or answered with Muster's option.

A long option may have one dash, as those of mpirun, and `_` for `-`, as those of torchrun.
"""

from __future__ import annotations

from collections.abc import Mapping


def _answers(names: str, answer: str) -> Mapping[str, str]:
    return dict.fromkeys(names.split(), answer)


_MEETING = "Muster sets the rendezvous; --network chooses the network"
_PLACES = "ranks follow the order of the hosts file; slots= is the number of ranks on a host"
_SLURM = 'options of Slurm go into one argument: --slurm "-N 2 -t 60"'
_LOGS = "each rank has its log in runs/JOB/logs, and --runs chooses the folder runs"
_COUNTED = "--slots gpus, --slots cores or --slots auto counts what each host has"
HINTS: Mapping[str, str] = {
    **_answers("host", "some hosts of the hosts file: --include node1,node2"),
    **_answers("nnodes num-nodes num-machines nodes", f"{_PLACES}; --include takes only some of them"),
    **_answers("node-rank machine-rank map-by rank-by rankfile rf bynode byslot pernode", _PLACES),
    **_answers("oversubscribe nooversubscribe", "slots= of the hosts file, or --slots, may exceed the cores"),
    **_answers("master-addr master-port main-process-ip main-process-port local-addr", _MEETING),
    **_answers("rdzv-backend rdzv-endpoint rdzv-id rdzv-conf", _MEETING),
    **_answers(
        "mca gmca prtemca pmixmca tune am",
        "Muster chooses mpirun's options; a parameter of Open MPI: --env OMPI_MCA_name=value",
    ),
    **_answers(
        "bind-to bind-to-core bind-to-none cpus-per-proc cpus-per-rank use-hwthread-cpus numa-binding",
        "ranks are not bound to cores; the program may bind itself: os.sched_setaffinity",
    ),
    **_answers("allow-run-as-root", "leave it out: mpirun gets it where the login of the hosts is root"),
    **_answers("prefix", "leave it out: mpirun is the one beside the Python of each host, or on its PATH"),
    **_answers("wdir wd chdir", "ranks start in the copy of this folder: change the folder, then launch"),
    **_answers(
        "tag-output timestamp-output stream-buffering -l", "each line has its rank and host; leave it out"
    ),
    **_answers("output-filename log-dir redirects tee -r -t", _LOGS),
    **_answers("local-ranks-filter", "--rank 0,4-7 shows only these ranks"),
    **_answers("report-bindings display-map display-allocation display", "--dry-run shows the plan"),
    **_answers("verbose -v debug-devel", "--timings shows the start; runs/JOB/logs has every line"),
    **_answers(
        "timeout",
        "--stall-timeout SECONDS ends a job without progress; for its time: timeout 3600 muster ...",
    ),
    **_answers("monitor-interval", "leave it out: an agent reports the end of a rank at once"),
    **_answers("standalone", "a hosts file with the line: localhost slots=2"),
    **_answers("no-python", "leave it out: muster launch SCRIPT"),
    **_answers("use-env", "leave it out: programs find their rank in LOCAL_RANK"),
    **_answers("local-rank", "each rank has its own LOCAL_RANK in its environment"),
    **_answers("start-method role logs-specs", "Muster chooses torchrun's options; leave it out"),
    **_answers("genv genvall genvlist", "--env NAME=VALUE, or --env NAME for its value here"),
    **_answers("-u", "leave it out: the output of ranks is unbuffered"),
    **_answers("-O -W -X -B -E -I", "an option of Python is a variable here, such as --env PYTHONOPTIMIZE=1"),
    **_answers("-f", "--hosts FILE is the hosts file"),
    **_answers(
        "-p ssh-port", 'an SSH port: port= in the hosts file; a partition of Slurm: --slurm "-p NAME -N 2"'
    ),
    **_answers("-i ssh-identity-file", "a key: IdentityFile in ~/.ssh/config, or muster setup makes one"),
    **_answers("gloo use-gloo", "--backend gloo"),
    **_answers(
        "mpi use-mpi", "--launcher mpirun starts the ranks (the default), --backend mpi is for messages"
    ),
    **_answers(
        "max-np host-discovery-script reset-limit",
        "a job starts again on the hosts that are fit: --max-restarts 3 --min-hosts 2",
    ),
    **_answers("multi-gpu", _COUNTED),
    **_answers("per-host=gpu per-host=cpu per-host=auto np=gpu np=cpu np=auto", _COUNTED),
    **_answers("config-file", "the options of a launch are flags; hosts are in the hosts file"),
    **_answers("partition gres account qos constraint mem time nodelist", _SLURM),
    **_answers("cpus-per-task gpus-per-node gpus-per-task -A -C -c -w", _SLURM),
}
"""The hints of `launch` for options that it does not have: long ones by name, short ones with a dash."""
