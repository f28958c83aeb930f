"""Collects the facts of a host in one probe: `python3 -` runs it on the host, with the question as JSON.

It only reads. One probe instead of ten tasks keeps a run short where the hosts are set up already.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import grp
import hashlib
import itertools
import json
import os
import platform
import pwd
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

# A rule that refuses every packet that no earlier rule accepted: a chain's as nft prints it, and iptables'.
REFUSING = r".*(?:\n\t\t.*)*?\n\t\t(?:counter packets \d+ bytes \d+ )?(?:drop|reject)\b"
REFUSING_RULE = r'-A INPUT (?:-m comment --comment (?:"[^"]*"|\S+) )?-j (?:DROP|REJECT)\b'
CHRONY = ("/etc/chrony/muster.conf", "/etc/chrony-muster.conf")  # ansible/vars/systems
KEYS = "/etc/muster/ssh/authorized_keys"
UIDS, SOME_UIDS = (1000, 60000), 50  # of ordinary accounts, as useradd chooses them
SYS_RESOURCE, SYS_TIME = 24, 25  # capabilities(7)
# Bridges that connect containers or virtual machines inside a host: Docker, Podman, CNI, libvirt, LXC.
INNER = re.compile(r"docker\d+|br-[0-9a-f]{12}|podman\d+|cni\d+|virbr\d+|lxcbr\d+")


def ran(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command for at most 20 s; a missing one fails without a word."""
    try:
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return subprocess.CompletedProcess(argv, 127, "", "")


def said(*argv: str) -> str:
    """Return what a command printed."""
    return ran(*argv).stdout


def text(path: str) -> str:
    """Return a file's text; "" if there is no such file."""
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def release() -> dict[str, Any]:
    """Return the system's ID, its version, and those that it is like, by os-release(5)."""
    pairs = (line.partition("=") for line in text("/etc/os-release").splitlines())
    fields = {key: value.strip('"') for key, _, value in pairs}
    like = fields.get("ID_LIKE", "").split()
    return {"id": fields.get("ID", ""), "version": fields.get("VERSION_ID", ""), "like": like}


def operator() -> dict[str, str]:
    """Return the operator's address and our port, by our parents' environment, as sudo hides it."""
    process = os.getpid()
    while process > 1:
        match = re.search(r"(?:^|\0)SSH_CONNECTION=(\S+) \S+ \S+ (\d+)", text(f"/proc/{process}/environ"))
        if match:
            return {"client": match[1], "port": match[2]}
        parent = re.search(r"^PPid:\s*(\d+)", text(f"/proc/{process}/status"), re.MULTILINE)
        process = int(parent[1]) if parent else 0
    return {"client": "", "port": "22"}


def resolved(name: str) -> list[str]:
    """Return the addresses to which this host resolves a name."""
    try:
        return sorted({str(info[4][0]) for info in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)})
    except OSError:
        return []


def addresses() -> list[str]:
    """Return the host's addresses, without those of inner bridges, which no other host reaches."""
    try:
        links = json.loads(said("ip", "-json", "address"))
    except ValueError:
        links = []
    bridge_infos = [link["addr_info"] for link in links if INNER.fullmatch(link["ifname"])]
    inner = {info.get("local") for infos in bridge_infos for info in infos}
    return [address for address in said("hostname", "--all-ip-addresses").split() if address not in inner]


def sshd_files(dropin: str, ours: str, config: str) -> tuple[str, list[str], bool]:
    """Return sshd's configuration with lines of ours in the place of Muster's drop-in.

    And the files that sshd reads before that place, as the first value of a setting wins; and whether sshd
    reads drop-ins.
    """
    lines, before, reads = [], [config], False
    for line in text(config).splitlines():
        match = re.match(r"\s*include\s+(.*)", line, re.IGNORECASE)
        lines += [] if match else [line]
        for pattern in match.group(1).split() if match else ():
            full = str(Path(config).parent / pattern)
            is_here = fnmatch.fnmatch(dropin, full) and not reads
            for path in sorted({*map(str, Path("/").glob(full[1:])), *([dropin] if is_here else [])}):
                lines += [f"Include {path}"] if path != dropin else [ours] if is_here else []
                reads = reads or path == dropin
                before += [] if reads else [path]
    return "\n".join(lines), before, reads


def sshd_without(dropin: str, config: str = "/etc/ssh/sshd_config") -> dict[str, Any]:
    """Return sshd's settings without Muster's drop-in, OpenSSH's defaults, and whether it reads drop-ins."""
    configuration, _, reads = sshd_files(dropin, "", config)
    return {"settings": sshd_says(configuration), "defaults": sshd_says(""), "reads_dropins": reads}


def sshd_for(dropin: str, user: str, address: str, config: str = "/etc/ssh/sshd_config") -> dict[str, Any]:
    """Return sshd's settings for a login with our drop-in, and the files that are read before it.

    Only `sshd -T -C` applies Match blocks.
    """
    keys = f"AuthorizedKeysFile {KEYS}\nPubkeyAuthentication yes\nAuthenticationMethods publickey"
    ours = f"Match User {user}\n{keys}\nMatch all"
    configuration, before, _ = sshd_files(dropin, ours, config)
    settings = sshd_says(configuration, "-C", f"user={user},host={address},addr={address}")
    return {"address": address, "settings": settings, "before": before}


def keys_are_refused(login: dict[str, Any]) -> list[str]:
    """Return the settings by which sshd would refuse the jobs' account, or its commands, and their files."""
    wanted = {
        "pubkeyauthentication": r"yes$",
        "authenticationmethods": r"(any|publickey)$",
        "authorizedkeysfile": rf"(.* )?{re.escape(KEYS)}( |$)",
        "forcecommand": r"none$",
    }
    refused, before = [], login["before"]
    settings = {name: login["settings"].get(name, "none") for name in wanted} if login["settings"] else {}
    for name, value in settings.items():
        if not re.match(wanted[name], value):
            places = [path for path in before if re.search(rf"^\s*{name}\b", text(path), re.I | re.M)]
            refused.append(f"{name} {value} ({', '.join(places or before[:1])})")
    return refused


def cannot_write(folder: str) -> str:
    """Return why no folder can be made in the place of a home; "" if one can."""
    parent = next(path for path in Path(folder).parents if path.is_dir())
    try:
        Path(tempfile.mkdtemp(prefix=".muster-", dir=parent)).rmdir()
    except OSError as error:
        return f"{parent}: {error.strerror}"
    return ""


def hardening(dropin: str) -> str:
    """Return the lines for all accounts that setup wrote on request (hardening.conf.j2); "" without them."""
    match = re.search(r"^# For all accounts \(hardening_enabled\).*?(?=\n+Match )", text(dropin), re.M | re.S)
    return match.group() if match else ""


def sshd_says(configuration: str, *options: str) -> dict[str, str]:
    """Return sshd's settings under a configuration, from `sshd -T`; values of a repeated name are joined."""
    done = ran("/usr/sbin/sshd", "-T", "-f", "/dev/stdin", *options, stdin=configuration + "\n")
    settings: dict[str, str] = {}
    for name, _, value in (line.partition(" ") for line in done.stdout.splitlines()):
        settings[name] = f"{settings[name]} {value}" if name in settings else value
    return settings


def sshd_refuses(name: str, groups: list[str], settings: dict[str, str]) -> list[str]:
    """Return the lists of sshd_config(5) by which sshd refuses an account, whatever address it comes from.

    A pattern with an address, USER@HOST, is taken to match: only the login itself shows whether it does.
    """
    refused: list[str] = []
    for setting in (
        name for name in ("allowusers", "denyusers", "allowgroups", "denygroups") if name in settings
    ):
        patterns, allows = settings[setting].split(), setting.startswith("allow")
        if setting == "allowusers":
            patterns = [pattern.partition("@")[0] for pattern in patterns]
        own = [name] if setting.endswith("users") else groups
        if allows != any(fnmatch.fnmatchcase(one, pattern) for pattern in patterns for one in own):
            refused.append(setting)
    return refused


def firewalls() -> list[str]:
    """Return the active firewalls that refuse packets which no rule allows."""
    asked = {
        "ufw": (("ufw", "status"), r"^Status: active"),
        "firewalld": (("firewall-cmd", "--state"), r"^running"),
        "nftables": (("nft", "list", "ruleset"), rf"hook input (?:.*policy drop|{REFUSING})"),
        "iptables": (("iptables", "-S", "INPUT"), rf"^(?:-P INPUT DROP|{REFUSING_RULE})"),
    }
    return [name for name, (argv, sign) in asked.items() if re.search(sign, said(*argv), re.MULTILINE)]


def clock_is_kept() -> bool:
    """Whether a chronyd runs here and has selected a source."""
    fields = said("chronyc", "-c", "tracking").strip().split(",") if shutil.which("chronyc") else []
    return len(fields) > 13 and fields[13] != "Not synchronised"


def clock_mode(*paths: str) -> str:
    """Return the mode of the configuration that setup wrote for chrony, in one of these; "" without one."""
    match = re.match(r"# Muster: (public|head|isolated)\b", "".join(map(text, paths)))
    return match.group(1) if match else ""


def host_keys() -> dict[str, str]:
    """Return the public host keys by type."""
    lines = (text(str(path)).split() for path in sorted(Path("/etc/ssh").glob("ssh_host_*_key.pub")))
    return {words[0]: words[1] for words in lines if len(words) > 1}


def hard_limits() -> dict[str, int]:
    """Return how far each limit can be raised here; -1 means without bound."""
    if may(SYS_RESOURCE):  # then only the kernel bounds them: nr_open for open files
        return {"memlock": -1, "nofile": int(text("/proc/sys/fs/nr_open") or 1 << 20)}
    limits = dict(re.findall(r"^Max (locked memory|open files)\s+\S+\s+(\d+)", text("/proc/1/limits"), re.M))
    return {"memlock": int(limits.get("locked memory", -1)), "nofile": int(limits.get("open files", -1))}


def may(capability: int) -> bool:
    """Whether init has this capability in its bounding set."""
    match = re.search(r"^CapBnd:\s*(\S+)", text("/proc/1/status"), re.MULTILINE)
    return bool(match and int(match.group(1), 16) >> capability & 1)


def installed(packages: list[str]) -> list[str]:
    """Return which of the packages are installed, by dpkg or rpm, whichever keeps this system's packages."""
    if Path("/var/lib/dpkg/status").exists():
        shown = "--showformat=${db:Status-Abbrev}${binary:Package}\n"
        lines = said("dpkg-query", "--show", shown, *packages).splitlines()
        return sorted({line[3:].partition(":")[0] for line in lines if line.startswith("ii ")})
    names = said("rpm", "--query", "--queryformat", "%{NAME}\n", *packages).splitlines()
    return sorted({*names} & {*packages})


def account(name: str) -> dict[str, Any]:
    """Describe the account that jobs run as (ours if `name` is empty), and whether setup made it."""
    try:
        entry = pwd.getpwnam(name or pwd.getpwuid(os.getuid()).pw_name)
    except KeyError:
        return {}
    return {
        "uid": entry.pw_uid,
        "gid": entry.pw_gid,
        "shell": entry.pw_shell,
        "shell_runs": os.access(entry.pw_shell or "/bin/sh", os.X_OK),
        "home": entry.pw_dir,
        "group": [group.gr_name for group in grp.getgrall() if group.gr_gid == entry.pw_gid],
        "member_of": [group.gr_name for group in grp.getgrall() if name in group.gr_mem],
        "data": holds_data(entry.pw_dir),
        "ours": entry.pw_gecos.split(",")[0] == "Muster jobs",
    }


def uids(name: str, user: dict[str, object], defaults: str = "/etc/default/useradd") -> dict[str, Any]:
    """Return the home of an account and its owner, and where the account is missing, UIDs for a new one.

    `free`: the first UIDs that no account and no group has; `taken`: who has the others. A directory
    service may answer for a UID that it does not list.
    """
    match = re.search(r"^HOME=(\S+)", text(defaults), re.MULTILINE)
    home = str(user.get("home") or f"{match.group(1) if match else '/home'}/{name}")
    found: dict[str, Any] = {
        "home": home,
        "home_owner": state(home).partition(" ")[0],
        "free": [],
        "taken": {},
    }
    if not user:
        names = {entry.gr_gid: entry.gr_name for entry in grp.getgrall()}
        names.update({entry.pw_uid: entry.pw_name for entry in pwd.getpwall()})
        candidates = (uid for uid in range(*UIDS) if uid not in names and is_free(uid))
        found["free"] = list(itertools.islice(candidates, SOME_UIDS))
        found["taken"] = {uid: name for uid, name in names.items() if uid >= UIDS[0]}
    return found


def is_free(uid: int) -> bool:
    """Whether neither an account nor a group has this ID."""
    for lookup in (pwd.getpwuid, grp.getgrgid):
        with contextlib.suppress(KeyError):
            lookup(uid)
            return False
    return True


def holds_data(home: str, skeleton: str = "/etc/skel") -> bool:
    """Whether a home folder holds more than a new home folder does; one that cannot be read may."""
    new: set[str] = set()
    try:
        names = {path.name for path in Path(home).iterdir()}
    except FileNotFoundError:
        return False
    except OSError:
        return True
    with contextlib.suppress(OSError):  # not every host has it
        new = {path.name for path in Path(skeleton).iterdir()}
    with contextlib.suppress(OSError):  # a login of Ubuntu makes this file
        if {path.name for path in Path(home, ".cache").iterdir()} == {"motd.legal-displayed"}:
            new |= {".cache"}
    return bool(names - new - {".ansible", ".bash_history", ".muster-venv", ".ssh"})


def environment(home: str) -> dict[str, object]:
    """Return the digest of a home's environment of the stack `venv`, if it is complete, and free space."""
    folder = Path(home, ".muster-venv")
    mark, digest = folder / "current" / "muster.json", ""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if mark.is_file() and mark.stat().st_size < 1 << 16:  # the account may have written the file
            digest = str(json.loads(mark.read_text())["digest"])
    place = next(path for path in (folder, *folder.parents) if path.is_dir())
    free = shutil.disk_usage(place).free >> 20
    return {"digest": digest, "exists": folder.is_dir(), "disk_free_mb": free}


def engine(image: str) -> dict[str, object]:
    """Describe the container engine behind the command `docker`, which podman provides too.

    `cdi`: whether the engine supports the Container Device Interface. `image`: the labels of the node
    image, or None if the engine has no image of this name.
    """
    command = shutil.which("docker", path=f"{os.environ.get('PATH', os.defpath)}:/snap/bin")
    if not command:
        kind = "docker" if shutil.which("dockerd") else ""
        return {"command": "", "kind": kind, "answers": False, "version": "", "cdi": False, "image": None}
    version = said(command, "--version")
    is_podman = "podman" in version.lower()
    answers = not ran(command, "ps", "--quiet").returncode
    folders = said(command, "info", "--format", "{{json .CDISpecDirs}}") if answers and not is_podman else ""
    inspect = (command, "image", "inspect", "--format", "{{json .Config.Labels}}", image)
    found = ran(*inspect) if answers and image else None
    return {
        "command": command,
        "kind": "podman" if is_podman else "docker",
        "answers": answers,
        "version": (re.findall(r"\d+\.\d+(?:\.\d+)?", version) or [""])[0],
        "cdi": is_podman or folders.strip().startswith('["'),
        "image": json.loads(found.stdout) or {} if found and not found.returncode else None,
    }


def nvidia_devices(root: str = "/") -> list[str]:
    """Return the device files of the GPUs, which a container gets by name if its engine has no CDI."""
    paths = [*Path(root, "dev").glob("nvidia*"), *Path(root, "dev/nvidia-caps").glob("*")]
    return sorted("/" + str(path.relative_to(root)) for path in paths if path.is_char_device())


def nvidia_cards(root: str = "/") -> int:
    """Count NVIDIA's GPUs on the PCI bus, with or without a driver: vendor 10de, a display class."""
    places = Path(root, "sys/bus/pci/devices").glob("*")
    pairs = ((text(f"{place}/vendor").strip(), text(f"{place}/class").strip()) for place in places)
    return sum(vendor == "0x10de" and kind.startswith("0x03") for vendor, kind in pairs)


def running_jobs(homes: list[str]) -> list[str]:
    """Return the jobs that run here: their agent or detached driver holds a lock in the job's folder."""
    folders = [folder for home in homes for folder in Path(home, ".muster/jobs").glob("*")]
    locks = [(folder, lock, fcntl.LOCK_EX) for folder in folders for lock in folder.glob("lock.*")]
    locks += [(folder, folder / "run/lock.driver", fcntl.LOCK_SH) for folder in folders]
    return sorted({folder.name for folder, lock, kind in locks if is_locked(lock, kind)})


def is_locked(lock: Path, kind: int) -> bool:
    """Whether this is a lock that another process holds.

    Its folder is the account's, which may have made anything there: a FIFO, a folder, a link to a device.
    """
    try:
        if not stat.S_ISREG(lock.lstat().st_mode):  # opening some devices does something already
            return False
        descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # another may have taken its place
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def state(path: str) -> str:
    """Return the owner and mode of a file or folder, and a file's digest; "" if it is missing."""
    try:
        status = Path(path).stat()
        content = Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else b""
    except OSError:
        return ""
    digest = f" {hashlib.sha256(content).hexdigest()}" if stat.S_ISREG(status.st_mode) else ""
    return f"{status.st_uid} {stat.S_IMODE(status.st_mode):04o}{digest}"


def pinned_host_keys() -> str:
    """Return the digest of Muster's block in the known_hosts file; "" without such a block."""
    block = re.search(
        r"^# BEGIN .* Muster cluster\n(.*?)^# END ", text("/etc/ssh/ssh_known_hosts"), re.M | re.S
    )
    return hashlib.sha256(block.group(1).strip().encode()).hexdigest() if block else ""


def new_packages() -> dict[str, dict[str, Any]]:
    """Return what the role `packages` recorded, by the role that asked for the packages."""
    return {path.stem: json.loads(path.read_text()) for path in Path("/var/lib/muster").glob("*.json")}


def units(asked: dict[str, dict[str, Any]]) -> dict[str, dict[str, bool]]:
    """Return the state of each unit, from one `systemctl show`, which answers in the order of the units."""
    wanted = "ActiveState,UnitFileState,ActiveEnterTimestampMonotonic"
    answers = said("systemctl", "show", f"--property={wanted}", *asked).split("\n\n")
    return {name: unit(answer, **watched) for (name, watched), answer in zip(asked.items(), answers)}  # 3.9


def unit(answer: str, files: list[str], stamp: str) -> dict[str, bool]:
    """Whether a unit runs, and whether its files have changed since it started (or wrote `stamp`)."""
    properties = dict(line.split("=", 1) for line in answer.splitlines() if "=" in line)
    entered = int(properties.get("ActiveEnterTimestampMonotonic") or 0) / 1e6
    started = time.time() - time.monotonic() + entered
    times = [path.stat().st_mtime for path in map(Path, files) if path.exists()]
    read = max([started, *(path.stat().st_mtime for path in [Path(stamp)] if stamp and path.exists())])
    return {
        "active": properties.get("ActiveState") == "active",
        "enabled": properties.get("UnitFileState") == "enabled",
        "stale": any(changed > read for changed in times),
    }


def sshd_facts(asked: dict[str, Any], groups: list[str], client: str) -> dict[str, Any]:
    """Return what sshd would do with logins of the account from the head, and from `client` if known."""
    dropin, user = asked["sshd_dropin"], asked["user"]
    sshd = sshd_without(dropin)
    origins = dict.fromkeys([*([client] if client else []), *resolved(asked["head"])])
    logins = [sshd_for(dropin, user, address) for address in origins]
    refused = {login["address"]: keys_are_refused(login) for login in logins}
    every = [sshd["settings"], *(login["settings"] for login in logins)]
    return {
        "sshd_without": sshd,
        "hardening": hardening(dropin),
        "sshd_refuses": sorted({name for one in every for name in sshd_refuses(user, groups, one)}),
        "keys_refused": {address: settings for address, settings in refused.items() if settings},
    }


def main() -> None:
    """Print the facts as JSON."""
    asked = json.loads(sys.argv[1])
    user = account(asked["user"])
    groups = [*user["group"], *user["member_of"]] if user else [asked["user"]]
    who = operator()
    home = uids(asked["user"], user)
    records = new_packages()
    recorded = [name for record in records.values() for name in record.get("installed", [])]
    print(
        json.dumps(
            {
                "os": release(),
                "python": platform.python_version(),
                "architecture": platform.machine(),
                "hostname": socket.gethostname(),
                "operator": who,
                "account": user,
                "uids": home,
                "venv": environment(str(user.get("home", "/home/new"))),
                "engine": engine(asked["image"]),
                "jobs": running_jobs([*asked["homes"], *([str(user["home"])] if user else [])]),
                "addresses": addresses(),
                "names": {name: resolved(name) for name in asked["names"]},
                "disk_free_mb": shutil.disk_usage("/var").free >> 20,
                "systemd": Path("/run/systemd/system").is_dir(),
                "selinux": text("/sys/fs/selinux/enforce").strip() == "1",
                "container": Path("/run/systemd/container").exists(),
                "may_set_clock": may(SYS_TIME),
                "firewalls": firewalls(),
                "local_ports": text("/proc/sys/net/ipv4/ip_local_port_range").split(),
                "clock_is_kept": clock_is_kept(),
                "clock_mode": clock_mode(*CHRONY),
                "hard_limits": hard_limits(),
                **sshd_facts(asked, groups, who["client"]),
                "home_problem": "" if user else cannot_write(home["home"]),
                "host_keys": host_keys(),
                "pinned_host_keys": pinned_host_keys(),
                "node_host_key": " ".join(text("/etc/muster/ssh/ssh_host_ed25519_key.pub").split()[:2]),
                "sshd": (re.findall(r"OpenSSH_(\d+\.\d+)", ran("ssh", "-V").stderr) or ["0"])[0],
                "gpu": Path("/proc/driver/nvidia/gpus").is_dir(),
                "nvidia_cards": nvidia_cards(),
                "nvidia_devices": nvidia_devices(),
                "nvidia_ctk": shutil.which("nvidia-ctk") or "",
                "infiniband": Path("/dev/infiniband").is_dir(),
                "packages": installed([*asked["packages"], *recorded]),
                "node_home_owner": state(asked["node_home"]).partition(" ")[0],
                "groups": sorted({entry.gr_name for entry in grp.getgrall()} & {*asked["groups"]}),
                "files": {path: state(path) for path in asked["files"]},
                "folders": {path: state(path) for path in asked["folders"] if Path(path).is_dir()},
                "units": units(asked["units"]),
                "new_packages": records,
            }
        )
    )


if __name__ == "__main__":
    main()
