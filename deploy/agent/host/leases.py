"""Leases of this host's GPUs: the answers to requests of a launch, and the list for others."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from typing import NamedTuple

from ...common.frames import Frame
from ..processes import descendants
from . import claims
from .claims import Claim, OwnClaim, Want
from .devices import Device, Devices, chosen, foreign, look

VISIBLE = "CUDA_VISIBLE_DEVICES"
FRESH_SECONDS = 1.0  # nvidia-smi is not asked again at once
UNSEEN = "a process that is not seen from here"


class Wanted(NamedTuple):
    """A number of devices out of some."""

    devices: Sequence[Device]
    number: int


class Found(NamedTuple):
    """The devices that a job can have, and why it cannot have others."""

    devices: list[Device]
    taken: list[Frame]


class Leases:
    """The leases of one job on this host. They end with this process, or before at `lease_end`."""

    def __init__(self) -> None:
        self._own, self._claim = OwnClaim(), Claim()
        self._locks: dict[str, int] = {}
        self._devices, self._looked = Devices(), float("-inf")
        self._using = threading.Lock()  # a request that waited for a disk may come to an end late

    def close(self) -> None:
        """Give everything back."""
        self._release([*self._locks])
        self._own.close()
        self._claim = Claim()

    def do_lease(self, request: Frame, payload: bytes) -> Frame:
        """Queue for devices; with `take` lock them too, if as many as wanted are free.

        `gpus`: their number, or `chosen` ones as in CUDA_VISIBLE_DEVICES.
        `queued`: the time at which the job began to wait. `user`: who launched it.
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
        devices, problem = Devices(), ""
        try:
            devices = look()
        except OSError as error:
            problem = str(error)
        with claims.turn():
            living = claims.living_claims()
            holders = {name: claim for claim in living for name in claim.has}
            gpus = [_state(device, holders) for device in devices.listed]
        waiting = [
            {"user": claim.user, "job": claim.job, "since": claim.order[0], "number": claim.wants[0].number}
            for claim in living
            if claim.wants
        ]
        return {"kind": devices.kind, "gpus": gpus, "waiting": waiting, "problem": problem}

    def _lease(self, request: Frame) -> Frame:
        gpus, take = self._gpus(request), request["take"]
        order = (float(request["queued"]), str(request["job"]))
        number = request["gpus"] if request["chosen"] is None else len(gpus)
        want = Wanted(gpus, number)
        before = {*self._locks}
        with claims.turn():
            living = claims.living_claims()
            found = self._find(want, living, order)
            ready = len(found.devices) >= want.number
            names = {device.name for device in found.devices}
            kept = (names if ready else before) if take else set()
            self._release([name for name in self._locks if name not in kept])
            self._note(None if ready and take else want, order, str(request["user"]))
        return {
            "kind": self._devices.kind,
            "ready": ready,
            "all": len(gpus),
            "mig": any(device.mig for device in self._devices.listed),
            "got": [_described(device, None) for device in found.devices],
            "taken": found.taken,
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

    def _find(self, want: Wanted, living: list[Claim], order: tuple[float, str]) -> Found:
        """Lock all devices that are free, and choose from those that are left by who waits before."""
        holders = {name: claim for claim in living for name in claim.has}
        own_before = {*self._locks}
        own = {*descendants()} if any(device.pids for device in want.devices) else set()
        free: list[Device] = []
        taken: list[Frame] = []
        for device in want.devices if want.number else ():
            user, process = foreign(device, own)
            if device.name in self._locks:
                free.append(device)
            elif (descriptor := claims.lock(device.name)) is None:
                taken.append(_described(device, holders.get(device.name), user, process or UNSEEN))
            elif process:
                os.close(descriptor)
                taken.append(_described(device, None, user, process))
            else:
                self._locks[device.name] = descriptor
                free.append(device)
        ahead = [claim for claim in living if claim.wants and claim.order < order]
        left = {*claims.unreserved([device.name for device in free], ahead)}
        left |= own_before
        if len(left) < want.number:
            taken += [
                _described(device, None, ahead[0].user, f"job {ahead[0].job}, which waits for it")
                for device in free
                if device.name not in left
            ]
        return Found([device for device in free if device.name in left][: want.number], taken)

    def _note(self, want: Wanted | None, order: tuple[float, str], user: str) -> None:
        """Write what this process has, and what it waits for."""
        wants = [Want(want.number, [device.name for device in want.devices])] if want and want.number else []
        if not wants and not self._locks:
            self._own.close()
            return
        since = self._claim.since if self._claim.has and self._locks else time.time()
        gpus = sorted(device.number for device in self._devices.listed if device.name in self._locks)
        self._claim = Claim(order[1], since, sorted(self._locks), wants, order, gpus=gpus, launched_by=user)
        self._own.write(self._claim)

    def _release(self, names: list[str]) -> None:
        for name in names:
            os.close(self._locks.pop(name))


def _state(device: Device, holders: dict[str, Claim]) -> Frame:
    """A device, and who has it or uses it without a lease."""
    user, process = foreign(device, set())
    if device.name not in holders and not process:
        descriptor = claims.lock(device.name)
        if descriptor is None:
            process = UNSEEN
        else:
            os.close(descriptor)
    return _described(device, holders.get(device.name), user, process)


def _described(device: Device, claim: Claim | None, user: str = "", process: str = "") -> Frame:
    frame: Frame = {"index": device.number, "name": device.name, "user": user, "process": process}
    return {**frame, "job": "", "since": 0.0} | (
        {"user": claim.user, "process": "", "job": claim.job, "since": claim.since} if claim else {}
    )
