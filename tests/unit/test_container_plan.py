"""Plans of launches into containers: who starts the ranks, and the engine's command on each host."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from muster.deploy.cli.commands import load
from muster.deploy.cli.dispatch import run
from muster.deploy.cli.launch_options import LaunchOptions
from muster.deploy.core.errors import UnfitError
from muster.deploy.core.plan.launch_plan import HostPlan, LaunchPlan
from muster.deploy.features.containers.driver import (
    ContainerPlan,
    HostImage,
    ImageContents,
    plan_container,
    require_same,
)
from muster.deploy.features.containers.options import EngineName, Mount
from tests.unit.plans import NODE, make_plan

REF, ID = "nvcr.io/nvidia/pytorch:25.01-py3", "ab" * 32
USERS = "root:x:0:0:root:/root:/bin/bash\nubuntu:x:1001:1001::/home/ubuntu:/bin/bash\n"
INSIDE = ImageContents(
    executable="/usr/bin/python",
    python="3.12.3",
    torch="2.6.0a0",
    mpi4py=None,
    mpirun="/usr/local/mpi/bin/mpirun",
    mpi="4.1.7",
    mpi_error=None,
    passwd=USERS,
)
DOCKER = HostImage(
    engine="docker",
    program="/usr/bin/docker",
    rootless=False,
    remapped=False,
    raises_limits=True,
    id=ID,
    digests=(),
    inside=INSIDE,
    user="ml",
    gid=1000,
    groups=(27,),
    open_files=4096,
    gpus="",
    devices=(),
    home="ef" * 16,
)
JOB = "/home/ml/.muster/jobs/20261120-120000-abcd"


def planned(there: HostImage = DOCKER, *, facts: dict[str, Any] | None = None, **spec: Any) -> LaunchPlan:
    known = {"node1": facts or {}}
    return make_plan("node1 slots=2", facts=known, containers={"node1": there}, image=REF, **spec)


def on_node1(there: HostImage = DOCKER, **more: Any) -> tuple[HostPlan, ContainerPlan]:
    plan = planned(there, **more)
    return plan.hosts[0], container_in(plan, there, **(more.get("facts") or {}))


def container_in(
    plan: LaunchPlan, there: HostImage = DOCKER, host: str = "node1", **facts: Any
) -> ContainerPlan:
    return plan_container(plan.spec, host, dataclasses.replace(NODE, **facts), there)


def argv(**changes: Any) -> tuple[str, ...]:
    facts, spec = changes.pop("facts", {}), changes.pop("spec", {})
    return on_node1(dataclasses.replace(DOCKER, **changes), facts=facts, **spec)[1].argv


def has(words: tuple[str, ...], *wanted: str) -> bool:
    return any(words[at : at + len(wanted)] == wanted for at in range(len(words)))


def text(host: HostPlan, name: str) -> str:
    return next(file.text for file in host.files if file.path == f"{JOB}/bin/{name}")


def without_mpi(**changes: Any) -> HostImage:
    inside = dataclasses.replace(INSIDE, mpirun=None, mpi=None, mpi4py="4.1.1", **changes)
    return dataclasses.replace(DOCKER, inside=inside)


# -- who starts the ranks --


def test_mpirun_of_the_image_starts_the_ranks_inside() -> None:
    host, container = on_node1()
    assert container.launcher_inside
    assert host.path == (f"{JOB}/bin", "/usr/local/mpi/bin")
    assert text(host, "muster-rank") == f'#!/bin/sh\nexec /usr/bin/python -IS {JOB}/bin/rank.py "$@"\n'
    assert host.command and "plm_rsh_agent" in host.command  # the options of the image's Open MPI 4.1


def test_without_mpirun_in_the_image_the_hosts_own_starts_each_rank_in_it() -> None:
    host, container = on_node1(without_mpi())
    assert not container.launcher_inside
    enter = f"/usr/bin/python3 -IS {JOB}/bin/enter.py"
    assert (
        text(host, "muster-rank") == f'#!/bin/sh\nexec {enter} /usr/bin/python -IS {JOB}/bin/rank.py "$@"\n'
    )
    assert text(host, "muster-rsh") == f'#!/bin/sh\nexec /usr/bin/python3 -IS {JOB}/bin/rsh.py "$@"\n'
    assert [file.path for file in host.files].count(f"{JOB}/bin/muster-rank") == 1
    assert host.command and "plm_ssh_agent" in host.command  # the options of the host's Open MPI 5.0
    assert "mpi4py" not in host.command  # the image's mpi4py has no library there


def test_torchrun_is_the_images_and_runs_inside() -> None:
    host, container = on_node1(without_mpi(), launcher="torchrun")
    assert container.launcher_inside
    assert host.command and host.command[:3] == ("/usr/bin/python", "-m", "torch.distributed.run")


@pytest.mark.parametrize(
    ("launcher", "there", "facts", "why"),
    [
        ("torchrun", without_mpi(torch=None), {}, f"{REF} has no torch, and so no torchrun"),
        ("mpirun", without_mpi(), {"mpirun": None}, f"neither {REF} nor the host has mpirun; --launcher"),
    ],
)
def test_an_unfit_image_is_named(launcher: str, there: HostImage, facts: dict[str, Any], why: str) -> None:
    with pytest.raises(UnfitError) as caught:
        planned(there, facts=facts, launcher=launcher)
    assert str(caught.value).startswith(f"node1: {why}")


# -- the engine's command --


def test_a_container_has_the_hosts_network_processes_and_memory_and_runs_no_entry_point() -> None:
    words = argv()
    assert words[:4] == ("/usr/bin/docker", "run", "--rm", "--no-healthcheck")
    for pair in (
        ("--network", "host"),
        ("--pid", "host"),
        ("--ipc", "host"),
        ("--entrypoint", "/usr/bin/python"),
    ):
        assert has(words, *pair)
    assert words[-3:] == (ID, "-IS", f"{JOB}/bin/keeper.py")  # the image by its id


def test_files_belong_to_the_user_and_folders_are_where_they_are_outside() -> None:
    words = argv()
    assert has(words, "--user", "1000:1000") and has(words, "--group-add", "27")
    assert has(words, "--ulimit", "memlock=-1:-1") and has(words, "--ulimit", "nofile=4096:4096")
    for path, more in ((JOB, ""), ("/home/ml/.muster/home", ""), ("/home/ml/.muster/data", ",readonly")):
        assert has(words, "--mount", f"type=bind,source={path},target={path}{more}")
    assert has(words, "--mount", "type=bind,source=$MUSTER_AGENT,target=$MUSTER_AGENT")


def test_kept_folders_are_where_they_are_outside() -> None:
    folder = "/home/ml/.muster/kept/digits-1a2b3c4d"
    words = argv(spec={"keep": ("ckpt",), "project": "digits-1a2b3c4d"})
    assert has(words, "--mount", f"type=bind,source={folder},target={folder}")


def test_values_of_the_environment_are_on_no_command_line() -> None:
    plan = planned(env=(("HF_TOKEN", "hf_123"),), hidden=("HF_TOKEN",))
    container = container_in(plan)
    assert "hf_123" not in " ".join(container.argv)
    assert "hf_123" not in str(plan)
    assert dict(container.environment) == {"HOME": "/home/ml/.muster/home", "USER": "ml", "LOGNAME": "ml"}


def test_a_user_whom_the_image_does_not_know_is_added_to_its_users() -> None:
    host, container = on_node1()
    entry = "ml:x:1000:1000::/home/ml/.muster/home:/bin/sh\n"
    assert text(host, "passwd") == USERS + entry
    assert has(container.argv, "--mount", f"type=bind,source={JOB}/bin/passwd,target=/etc/passwd,readonly")
    assert "ubuntu" not in str(planned())  # the plan does not print it


def test_a_number_that_the_image_knows_keeps_its_name() -> None:
    host, container = on_node1(facts={"uid": 1001})
    assert not [file for file in host.files if file.path.endswith("passwd")]
    assert "/etc/passwd" not in " ".join(container.argv)


@pytest.mark.parametrize(
    ("changes", "expected", "absent"),
    [
        ({"rootless": True}, ("--user", "0:0"), "--group-add"),
        ({"remapped": True}, ("--userns", "host"), "keep-id"),
        ({"engine": "podman", "rootless": True}, ("--userns", "keep-id"), "--group-add"),
        ({"raises_limits": False}, ("--user", "1000:1000"), "--ulimit"),
    ],
)
def test_the_user_is_the_user(changes: dict[str, Any], expected: tuple[str, ...], absent: str) -> None:
    words = argv(**changes)
    assert has(words, *expected)
    assert absent not in words


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"gpus": "toolkit"}, ("--gpus", "all")),
        ({"gpus": "cdi"}, ("--device", "nvidia.com/gpu=all")),
        ({"gpus": "cdi", "engine": "podman"}, ("--device", "nvidia.com/gpu=all")),
    ],
)
def test_gpus_are_passed_by_what_the_host_has(changes: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert has(argv(facts={"gpus": 8}, **changes), *expected)
    assert not has(argv(facts={"gpus": 0}, **changes), *expected)


@pytest.mark.parametrize(
    ("engine", "what"), [("docker", "container toolkit"), ("podman", "CDI specification")]
)
def test_gpus_that_cannot_be_passed_are_an_error_unless_the_ranks_want_none(engine: Any, what: str) -> None:
    with pytest.raises(UnfitError, match=f"node1: it has GPUs, but no .*{what}"):
        argv(facts={"gpus": 8}, engine=engine)
    assert "--gpus" not in argv(
        facts={"gpus": 8}, engine=engine, spec={"env": (("CUDA_VISIBLE_DEVICES", ""),)}
    )


def test_devices_for_rdma_and_the_users_own_folders_are_passed() -> None:
    mounts = (Mount("/scratch"), Mount("/nfs/a,b", "/data", read_only=True))
    words = argv(devices=("/dev/infiniband",), spec={"mount": mounts})
    assert has(words, "--device", "/dev/infiniband")
    assert has(words, "--mount", "type=bind,source=/scratch,target=/scratch")
    assert has(words, "--mount", 'type=bind,"source=/nfs/a,b",target=/data,readonly')


def test_apptainer_starts_a_file_with_the_environment_of_the_image_alone() -> None:
    there = dataclasses.replace(DOCKER, engine="apptainer", program="/usr/bin/apptainer")
    plan = make_plan("node1", containers={"node1": there}, image="/nfs/torch.sif")
    container = container_in(plan, there)
    assert container.argv[:3] == ("/usr/bin/apptainer", "exec", "--cleanenv")
    assert container.argv[-4:] == ("/nfs/torch.sif", "/usr/bin/python", "-IS", f"{JOB}/bin/keeper.py")
    assert container.remove == ()


def test_every_host_and_attempt_has_a_container_of_its_own_name() -> None:
    there = {"node1": DOCKER, "node2": DOCKER}
    plan = make_plan("node1\nnode2", containers=there, image=REF, attempt=1)
    names = [container_in(plan, host=host).remove[-1] for host in there]
    assert names == [f"muster-20261120-120000-abcd-1-{host}" for host in there]


def test_a_dry_run_shows_the_engines_command_of_each_host() -> None:
    shown = str(planned())
    assert (
        f"  container of {REF} (docker, abababababab)\n    /usr/bin/docker run --rm --no-healthcheck --name"
        in shown
    )
    assert f"  run in {JOB}/code of the container\n    mpirun" in shown


# -- the same image everywhere --


def test_another_image_on_another_host_is_an_error_that_names_both() -> None:
    other = dataclasses.replace(DOCKER, id="cd" * 32)
    with pytest.raises(UnfitError) as caught:
        require_same(REF, {"node1": DOCKER, "node2": other})
    assert f"node2: {REF} is cdcdcdcdcdcd here, but abababababab on node1" in str(caught.value)
    assert caught.value.exit_status == 3


@pytest.mark.parametrize(
    ("engine", "bring"),
    [
        ("docker", f"bring it from here: muster image.push --image {REF}"),
        ("podman", "muster put image.tar; muster run -- podman load -i image.tar"),
        ("apptainer", "copy one file to all hosts: muster put"),
    ],
)
def test_what_brings_the_same_image_depends_on_the_engine(engine: EngineName, bring: str) -> None:
    other = dataclasses.replace(DOCKER, engine=engine, id="cd" * 32)
    with pytest.raises(UnfitError) as caught:
        require_same(REF, {"node1": DOCKER, "node2": other})
    assert str(caught.value).endswith(bring)


def test_one_digest_of_a_registry_is_one_image_however_an_engine_names_it() -> None:
    mine = dataclasses.replace(DOCKER, digests=("ee" * 32,))
    require_same(REF, {"node1": mine, "node2": dataclasses.replace(mine, id="cd" * 32)})


def test_an_image_with_too_old_a_python_is_refused() -> None:
    old = dataclasses.replace(DOCKER, inside=dataclasses.replace(INSIDE, python="3.8.10"))
    with pytest.raises(UnfitError, match=r"Python 3\.8\.10; ranks need 3\.9 or newer"):
        require_same(REF, {"node1": old})


# -- options --


def test_mounts_are_read_as_docker_reads_volumes() -> None:
    made = load("launch").made({"--mount": ("/a", "/a:/b", "/a:ro", "/a:/b:ro")})
    assert isinstance(made, LaunchOptions)
    assert made.mount == (
        Mount("/a"),
        Mount("/a", "/b"),
        Mount("/a", read_only=True),
        Mount("/a", "/b", read_only=True),
    )


@pytest.mark.parametrize(
    ("image", "engine", "mounts", "requirements", "why"),
    [
        ("", "docker", [], "", "--engine is for containers"),
        ("", "", ["/a"], "", "--mount is for containers"),
        ("a:1", "lxc", [], "", "--engine lxc: must be one of docker, podman, apptainer"),
        ("a:1", "", ["a:/b"], "", "--mount a:/b: write"),
        ("a:1", "", ["/a:b"], "", "--mount /a:b: write"),
        ("a:1", "", ["/a:/b:/c"], "", "--mount /a:/b:/c: write"),
        ("a:1", "", [], "requirements.txt", "the image has the packages"),
        ("a b", "", [], "", "--image 'a b'"),
        ("--privileged", "", [], "", "--image '--privileged'"),
        ("a:1", "apptainer", [], "", "apptainer starts a file"),
        ("/a.sif", "docker", [], "", "apptainer starts a file"),
    ],
)
def test_what_cannot_be_is_refused_before_any_host_is_asked(
    image: str,
    engine: str,
    mounts: list[str],
    requirements: str,
    why: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = {"image": [image], "engine": [engine], "mount": mounts, "requirements": [requirements]}
    words = [f"--{name}={value}" for name, values in flags.items() for value in values if value]
    assert run(["launch", *words]) == 2
    assert why in capsys.readouterr().err
