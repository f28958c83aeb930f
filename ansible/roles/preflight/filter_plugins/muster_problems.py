"""The obstacles of a host: a line for everything that would get in setup's way, with what to do about it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

# As in the inventory plugin: any Ansible finds the package `muster` in the folder that holds ansible/.
MUSTER = sys.modules.setdefault("muster", ModuleType("muster"))
MUSTER.__path__ = [str(Path(__file__).resolve().parents[4])]

Facts = Mapping[str, Any]
LOOPBACK = re.compile(r"127\.|::1$")
NO_SHELL = re.compile(r".*/(nologin|false)$")


def problems(seen: Facts, asked: Facts) -> list[str]:
    """Return the obstacles. `seen`: preflight's facts about the host; `asked`: preflight_wanted."""
    of_stack = _of_node if asked["stack"] == "node" else _of_sshd
    parts = (part(seen, asked) for part in (_system, of_stack, _names, _others))
    return [problem for part in parts for problem in part]


def _system(seen: Facts, asked: Facts) -> Iterator[str]:
    system, release = seen["os"]["id"], seen["os"]["version"]
    if not {release, release.split(".")[0]} & {*asked["supported"].get(system, [])}:
        known = "; ".join(f"{name} {', '.join(versions)}" for name, versions in asked["supported"].items())
        yield f"{system} {release} is not supported; these are: {known}"
    if _version(seen["python"]) < _version(asked["python"]):
        yield f"Python {seen['python']} is too old; {asked['python']} or newer is needed"
    if not seen["systemd"]:
        yield "systemd is not running; services could not be managed"
    if seen["disk_free_mb"] < int(asked["disk_free_mb"]):
        yield f"/var has {seen['disk_free_mb']} MB free; {asked['disk_free_mb']} MB are needed"
    if asked["user"] == "root":
        yield "user=root in hosts.txt: jobs run as an ordinary user; leave it out for the account muster"
    if asked["unwanted"]:
        allowed = json.dumps({"packages_may_replace": asked["unwanted"]})
        yield (
            f"to install {', '.join(asked['packages'])}, {asked['package_manager']} would remove "
            f"{', '.join(asked['unwanted'])}; if that is well, allow it: -e '{allowed}'"
        )
    if problem := asked.get("download"):
        yield (
            f"{asked['package_manager']} cannot download what would be installed: {problem}; look at its "
            "sources of packages (/etc/apt/sources.list, sources.list.d) and at the network to them"
        )


def _of_node(seen: Facts, asked: Facts) -> Iterator[str]:
    if asked["port"] is not None:
        yield (
            "port= in hosts.txt is the driver's way in, and that of a node container is "
            f"{asked['node_port']}, its image's; the port of the host's own sshd belongs in ~/.ssh/config"
        )
    if asked["hardens"]:
        yield (
            "hardening_enabled is for the stacks bare and venv: with the stack node setup leaves the host's "
            "sshd as it is"
        )
    yield from _image(seen, asked)
    yield from _gpus(seen, asked)
    owner, uid = seen["node_home_owner"], str(asked["uid"] or 1000)
    if owner and owner != uid:
        yield (
            f"{asked['node_home']} belongs to the account with the number {owner}, and jobs have the number "
            f"{uid}; give it to them (chown), or set node_home or muster_uid"
        )


def _image(seen: Facts, asked: Facts) -> Iterator[str]:
    engine, image = seen["engine"], asked["image"]
    if engine["kind"] and not asked["engine_is_ours"] and not engine["answers"]:
        yield (
            f"its container engine ({engine['kind']} {engine['version']}) is not setup's, so it is used as "
            "it is, but it does not answer; start it (systemctl enable --now docker) or remove it, and run "
            "setup again"
        )
    elif not image["from"] and image["archive"]:
        yield f"node_image_archive: no file {image['archive']} on this machine"
    elif not image["from"]:
        yield (
            f"the image {image['name']} is neither on this host nor on this machine, and {image['problem']}; "
            f"build it here (muster image build --target {'cuda' if seen['gpu'] else 'cpu'}) and setup "
            "brings it along, or name one that hosts can pull in node_image, or a file of `docker save` in "
            "node_image_archive"
        )


def _gpus(seen: Facts, asked: Facts) -> Iterator[str]:
    engine, cards, wanted = seen["engine"], seen["nvidia_cards"], asked["nvidia"]
    alone = "or leave the GPUs alone (-e container_engine_nvidia=no)"
    if (cards or seen["gpu"]) and wanted not in ("no", False) and asked["image"]["flavor"].startswith("cpu"):
        yield (
            f"it has NVIDIA GPUs, and the image {asked['image']['name']} is for CPUs alone; take an image "
            "with CUDA (muster image build --target cuda, then node_image), or the stack on the host itself "
            f"(muster_stack), {alone}"
        )
    elif cards and not seen["gpu"] and wanted == "auto":
        yield (
            f"it has {cards} NVIDIA GPU(s), and no driver is loaded; install the driver "
            f"(docs/how-to/drivers.md) and restart the host, {alone}"
        )
    if not asked["gpus"] or seen["nvidia_ctk"]:
        return
    if asked["package_manager"] != "apt":
        yield (
            "it has no container toolkit of NVIDIA, which setup installs with apt alone; install "
            "nvidia-container-toolkit from NVIDIA's repository, or take the stack venv "
            f"(-e muster_stack=venv), {alone}"
        )
    elif not asked["engine_is_ours"] and not engine["cdi"]:
        yield (
            f"its container engine ({engine['kind']} {engine['version']}) is not setup's and would have to "
            "be restarted to find NVIDIA's toolkit; install nvidia-container-toolkit and restart the engine "
            f"when nothing runs in it, {alone}"
        )


def _of_sshd(seen: Facts, asked: Facts) -> Iterator[str]:
    user, sshd, refuses = asked["user"], seen["sshd_without"]["settings"], seen["sshd_refuses"]
    jobs = f"{user}, the account that jobs run as"
    if problem := asked["known"].get(asked["name"], {}).get("uid_problem"):
        yield problem
    if not sshd:
        yield (
            "its sshd does not print its settings, so a change could loosen them; look at the output there "
            "of: sshd -T"
        )
    elif not seen["sshd_without"]["reads_dropins"]:
        yield (
            "its /etc/ssh/sshd_config does not read drop-ins; make this its first line: "
            "Include /etc/ssh/sshd_config.d/*.conf"
        )
    if "allowgroups" in refuses:
        yield (
            f"its sshd lets in only the groups {sshd['allowgroups']} (AllowGroups); put {jobs}, into one of "
            "them"
        )
    if "denygroups" in refuses:
        yield (
            f"its sshd does not let the groups {sshd['denygroups']} in (DenyGroups); take {jobs}, out of them"
        )
    if "allowusers" in refuses:
        yield f"its sshd lets in only {sshd['allowusers']} (AllowUsers); add {jobs}"
    if "denyusers" in refuses:
        yield (
            f"its sshd does not let {user} in (DenyUsers {sshd['denyusers']}), the account that jobs run as; "
            "take it off that list"
        )
    for address, settings in seen.get("keys_refused", {}).items():
        yield (
            f"its sshd would refuse the logins of {jobs}, from {address}: {'; '.join(settings)}; change "
            "that, or leave the account out of that Match block"
        )
    if problem := seen.get("home_problem"):
        yield (
            f"no home can be made for the account {user} in {problem}; make it writable, or give jobs an "
            "account that is there (user= in hosts.txt)"
        )
    shell = seen["account"].get("shell", "")
    other = f"give it another (chsh -s /bin/bash {user}), or jobs another account (user= in hosts.txt)"
    if NO_SHELL.match(shell):
        yield f"the account {user} has the shell {shell}, which ends each login; {other}"
    elif not seen["account"].get("shell_runs", True):
        yield (
            f"the account {user} has the shell {shell}, which is not there or cannot be run, so sshd refuses "
            f"its logins; {other}"
        )


def _names(seen: Facts, asked: Facts) -> Iterator[str]:
    if problem := asked["clocks"].get(asked["name"]):
        yield problem
    if not seen["host_keys"]:
        yield "no host key in /etc/ssh; make them with: ssh-keygen -A"
    unknown = [
        name
        for name, addresses in seen["names"].items()
        if not addresses and name not in asked["lost"] and name not in asked["given"]
    ]
    if len(unknown) == 1:
        yield (
            f"the name {unknown[0]} is not known here; add it to DNS or /etc/hosts, or give {unknown[0]} an "
            "addr= in hosts.txt"
        )
    elif unknown:
        from muster.deploy.core.text.fold import fold_names

        yield (
            f"the names {fold_names(unknown)} are not known here; add them to DNS or /etc/hosts, or give "
            "them an addr= in hosts.txt"
        )
    for name, addresses in seen["names"].items():
        if name not in asked["given"] and name != "localhost" and any(map(LOOPBACK.match, addresses)):
            yield (
                f"the name {name} is {', '.join(addresses)} here, which no other host can reach; give it its "
                "address in /etc/hosts, or an addr= in hosts.txt"
            )


def _others(seen: Facts, asked: Facts) -> Iterator[str]:
    known, own = asked["known"], asked["name"]
    for address, name in sorted(known.get(own, {}).get("disputed", {}).items()):
        yield (
            f"its address {address} is also that of {name}, which other hosts reach there; one of the two "
            "has it wrongly: see ip address on both"
        )
    for name, other in known.items():
        if name == own:
            continue
        if other["hostname"] == seen["hostname"]:
            yield (
                f"its host name {seen['hostname']} is also that of {name}; give it its own with: "
                f"hostnamectl set-hostname {own}"
            )
        for kind, key in seen["host_keys"].items():
            if other["host_keys"].get(kind) == key:
                yield (
                    f"its host key ({kind}) is also that of {name}, as on disks copied from one image; on "
                    "one of them: rm /etc/ssh/ssh_host_*; ssh-keygen -A"
                )


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


class FilterModule:
    """Ansible finds the filters through this class name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return each filter by its name."""
        return {"muster_problems": problems}
