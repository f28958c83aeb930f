"""Leases of this host's GPUs: the answers to requests of a launch, and the list for others."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ....core.agent.gpus import Machine, amd_gpus, ascend_npus, device_files, processes, query, split
from ....core.agent.processes import descendants, peek
from ....core.agent.running_jobs import GPUS
from ....core.wire.frames import Frame
from ....core.wire.users import name_of
from . import claims
from .claims import MOST_NAME, MOST_SHOWN, Claim, LeaseRequest, OwnClaim

FIELDS = "index,uuid,mig.mode.current"
SMI_SECONDS = 10.0
SERVER = "nvidia-cuda-mps"  # it serves the processes of others, and uses every GPU


class Device(NamedTuple):
    """A GPU or NPU. `name`: that of its lock; `user`, `why`: of a process that uses it without a lease."""

    number: int
    name: str
    mig: bool = False
    parts: tuple[str, ...] = ()
    """The UUIDs of its MIG instances."""
    pids: tuple[int, ...] = ()


class Devices(NamedTuple):
    """The devices of a host, all of one kind: nvidia, amd, ascend; `none` without any."""

    kind: str = "none"
    listed: Sequence[Device] = ()


def look() -> Devices:
    """The devices; OSError if nvidia-smi does not list the GPUs that the driver has."""
    machine = Machine(seconds=SMI_SECONDS)
    if machine.names(GPUS) or device_files(machine):
        return Devices("nvidia", _nvidia(machine))
    if found := amd_gpus(machine):
        return Devices("amd", [Device(index, f"amd-{number}") for index, number in enumerate(found)])
    found = ascend_npus(machine)
    return Devices(
        "ascend" if found else "none", [Device(int(number), f"ascend-{number}") for number in found]
    )


def _nvidia(machine: Machine) -> list[Device]:
    smi = machine.program("nvidia-smi")
    if smi is None:
        raise OSError("there is no nvidia-smi, which names the GPUs")
    answer = machine.run(smi, *query("gpu", FIELDS))
    rows = [values for line in answer.text.splitlines() if (values := split(line, FIELDS))]
    if not rows:
        raise OSError(f"nvidia-smi: {answer.error or answer.text.strip()[-300:] or 'it found no GPU'}")
    parts = _mig_parts(machine.run(smi, "-L").text) if any(row[2] == "Enabled" for row in rows) else {}
    running = processes(machine, smi, "gpu_uuid")
    return [
        Device(int(index), uuid, mig == "Enabled", parts.get(uuid, ()), tuple(running.get(uuid, ())))
        for index, uuid, mig in rows
        if re.fullmatch(r"[\w-]{1,80}", uuid)
    ]


def _mig_parts(text: str) -> dict[str, tuple[str, ...]]:
    """The UUIDs of MIG instances by that of their GPU, in the answer of `nvidia-smi -L`."""
    parts: dict[str, tuple[str, ...]] = {}
    gpu = ""
    for kind, uuid in re.findall(r"\(UUID: (GPU|MIG)-([\w/-]+)\)", text):
        if kind == "GPU":
            gpu = f"GPU-{uuid}"
        else:
            parts[gpu] = (*parts.get(gpu, ()), f"MIG-{uuid}")
    return parts


def foreign(device: Device, own: set[int]) -> tuple[str, str]:
    """The user and the name of a process that uses a device, other than the `own` ones; empty without one."""
    for pid in device.pids:
        name = peek(f"/proc/{pid}/comm", 64).strip()
        if pid in own or name == SERVER:
            continue
        try:
            user = name_of(os.stat(f"/proc/{pid}").st_uid)
        except OSError:
            user = ""  # it is in another container, or has just ended
        return user, f"process {pid} {name}".strip()
    return "", ""


def chosen(value: str, devices: Sequence[Device]) -> list[Device]:
    """The devices that a CUDA_VISIBLE_DEVICES names: numbers, UUIDs or their beginnings, MIG instances.

    As for CUDA, the first unknown one ends the list.
    """
    found: list[Device] = []
    for word in filter(None, map(str.strip, value.split(","))):
        device = next((each for each in devices if _is_named(word, each)), None)
        if device is None:
            break
        if device not in found:
            found.append(device)
    return found


def _is_named(word: str, device: Device) -> bool:
    if word.isdigit():
        return int(word) == device.number
    return device.name.startswith(word) or word in device.parts or word.startswith(f"MIG-{device.name}/")


VISIBLE = "CUDA_VISIBLE_DEVICES"
FRESH_SECONDS = 1.0  # nvidia-smi is not asked again at once
KEEP_SECONDS = 30.0


class LeaseOffer(NamedTuple):
    """The devices that a job can have, and why it cannot have others."""

    devices: list[Device]
    taken: list[Frame]


class Leases:
    """The leases of one job on this host. They end with this process, or before at `lease_end`."""

    def __init__(self) -> None:
        self._own = OwnClaim()
        self._devices, self._looked = Devices(), float("-inf")
        self._using = threading.Lock()  # a request that waited for a disk may come to an end late
        self._keeper: threading.Thread | None = None

    def close(self) -> None:
        """Give everything back."""
        self._own.close()

    def do_lease(self, request: Frame, payload: bytes) -> Frame:
        """Queue for devices; with `take` lease them too, if as many as wanted are free.

        `gpus`: their number, or `chosen` ones as in CUDA_VISIBLE_DEVICES. `user`: who launched the job.
        `queued`: when it arrived on the last of its hosts; 0 if that is not known yet.
        """
        with self._using:
            return self._lease(request)

    def do_lease_end(self, request: Frame, payload: bytes) -> Frame:
        """Give all devices back, and leave the queue."""
        with self._using:
            self.close()
        return {}

    def do_leases(self, request: Frame, payload: bytes) -> Frame:
        """The GPUs of this host and who uses them, and who waits."""
        devices, living, problems = Devices(), list[Claim](), list[str]()
        try:
            devices = look()
        except OSError as error:
            problems.append(f"its GPUs are not known: {error}")
        try:
            living = claims.living_claims()
        except OSError as error:
            problems.append(str(error))
        holders = _holders(living)
        waiting = [
            {"user": claim.user, "job": claim.job, "since": claim.order[0], "number": claim.wants.number}
            for claim in living
            if claim.wants
        ]
        return {
            "kind": devices.kind,
            "gpus": [
                _described(device, holders.get(device.name), *foreign(device, set()))
                for device in devices.listed
            ],
            "waiting": waiting[:MOST_SHOWN],
            "problem": "; ".join(problems),
        }

    def _lease(self, request: Frame) -> Frame:
        gpus, take = self._gpus(request), request["take"]
        number = request["gpus"] if request["chosen"] is None else len(gpus)
        want = LeaseRequest(number, tuple(device.name for device in gpus)) if number else None
        waits = Claim(request["job"], wants=want, queued=request["queued"], by=request["user"][:MOST_NAME])
        others = claims.living_claims(self._own.paths)
        found = self._find(gpus, number, others, self._order(waits))
        if take and len(found.devices) >= number:
            found = self._take(waits, found)
        ready = len(found.devices) >= number
        if not (ready and take):
            self._wait(waits, keeps=take)
        own = self._own.claim
        return {
            "kind": self._devices.kind,
            "ready": ready,
            "all": len(gpus),
            "mig": any(device.mig for device in self._devices.listed),
            "got": [_described(device, None) for device in found.devices],
            "taken": found.taken,
            "arrived": own.order[0] if own.wants else 0.0,
            "beside": claims.users_beside(others),
        }

    def _gpus(self, request: Frame) -> Sequence[Device]:
        """The GPUs that the job may use: those that its user chose, or that this login may use."""
        if not request["gpus"] and request["chosen"] is None:
            return []
        if time.monotonic() - self._looked > FRESH_SECONDS:
            self._devices, self._looked = look(), time.monotonic()
        listed = self._devices.listed
        if request["chosen"] is not None:
            return chosen(request["chosen"], listed)
        visible = os.environ.get(VISIBLE) if self._devices.kind == "nvidia" else None
        return listed if visible is None else chosen(visible, listed)

    def _order(self, waits: Claim) -> tuple[float, str]:
        """The place of this job in the queue; at its end, if it does not wait yet."""
        own = self._own.claim
        arrived = own.arrived if own.wants == waits.wants and own.queued == waits.queued else time.time()
        return max(arrived, waits.queued), waits.job

    def _find(
        self, devices: Sequence[Device], number: int, others: list[Claim], order: tuple[float, str]
    ) -> LeaseOffer:
        """Choose from the devices that this job has, that are free, and that are left by who waits before."""
        holders, has = _holders(others), self._own.claim.has
        own = {*descendants()} if any(device.pids for device in devices) else set()
        free: list[Device] = []
        taken: list[Frame] = []
        for device in devices if number else ():
            user, process = foreign(device, own)
            if device.name in has or not (process or device.name in holders):
                free.append(device)
            else:
                taken.append(_described(device, holders.get(device.name), user, process))
        ahead = [claim for claim in others if claim.wants and claim.order < order]
        left = {*claims.unreserved([device.name for device in free], ahead), *has}
        if len(left) < number:
            taken += [
                _described(device, None, ahead[0].user, f"job {ahead[0].job}, which waits for it")
                for device in free
                if device.name not in left
            ]
        usable = [device for device in free if device.name in left]
        first = sorted(usable, key=lambda device: device.name not in has)[:number]
        return LeaseOffer([device for device in usable if device in first], taken)

    def _take(self, waits: Claim, found: LeaseOffer) -> LeaseOffer:
        """Claim the devices; returns those that no other agent has claimed meanwhile, or all of them."""
        had = self._own.claim
        has = {device.name: device.number for device in found.devices}
        claim = Claim(waits.job, had.since if had.has else time.time(), has, by=waits.by)
        if has == had.has and not had.wants:
            self._own.keep()
            return found
        self._own.publish(claim)
        holders = _holders(claims.living_claims(self._own.paths))
        rivals = [device for device in found.devices if device.name in holders.keys() - had.has.keys()]
        if rivals:  # this job tries again, at its place in the queue
            self._own.withdraw()
            taken = [_described(device, holders[device.name]) for device in rivals]
            return LeaseOffer([each for each in found.devices if each not in rivals], [*found.taken, *taken])
        self._own.confirm()
        self._start_keeper()
        return found

    def _wait(self, waits: Claim, *, keeps: bool) -> None:
        """Queue; with the devices that this job has, if it keeps them."""
        had = self._own.claim
        has, since = (had.has, had.since) if keeps else ({}, 0.0)
        if has or waits.wants:
            self._own.write(Claim(waits.job, since, has, waits.wants, waits.queued, waits.by))
        else:
            self._own.close()

    def _start_keeper(self) -> None:
        if self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, daemon=True)
            self._keeper.start()

    def _keep(self) -> None:
        """Look now and then whether the file of the claim is still there, as long as there is a claim."""
        while True:
            time.sleep(KEEP_SECONDS)
            with self._using:
                if not self._own.paths:
                    self._keeper = None
                    return
                with contextlib.suppress(OSError):  # a full disk, say: it is tried again
                    self._own.keep()


def _holders(living: list[Claim]) -> Mapping[str, Claim]:
    """The claim that has each device; the oldest, if several say so."""
    newest_first = sorted(living, key=lambda claim: claim.arrived, reverse=True)
    return {name: claim for claim in newest_first for name in claim.has}


def _described(device: Device, claim: Claim | None, user: str = "", process: str = "") -> Frame:
    frame: Frame = {"index": device.number, "name": device.name, "user": user, "process": process}
    return {**frame, "job": "", "since": 0.0} | (
        {"user": claim.user, "process": "", "job": claim.job, "since": claim.since} if claim else {}
    )
