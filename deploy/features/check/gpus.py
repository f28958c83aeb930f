"""Judges the GPUs of one host, from the PCI bus to nvidia-smi: problems with their remedies.

`muster check` uses this, and so does Ansible's role `gpu` (ansible/roles/gpu/filter_plugins/muster_gpus.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...core.hosts.finding import Finding, error, warning
from ...core.hosts.gpus import Card, Gpu, GpuReport
from ...core.text.text import count, ranges
from ..image.compatibility import number, oldest_driver

LOOK = "run nvidia-smi there; look at dmesg for Xid"
IDLE_MIB = 1024  # the driver itself keeps some hundred MiB


@dataclass(frozen=True)
class Needs:
    """What GPUs must support: a CUDA version, an image's architecture (None: not compared), containers."""

    cuda: str | None = None
    architecture: str | None = None
    containers: bool = False


def of_gpus(host: str, report: GpuReport, needs: Needs, expected: int = 0) -> tuple[Finding, ...]:
    """All problems of the GPUs. `expected`: the number of GPUs by the driver's count."""
    rules = _GpuRules(host, report, needs)
    return (*rules.driver(), *rules.missing(expected), *rules.each(), *rules.around())


class _GpuRules:
    """The rules, for one host."""

    def __init__(self, name: str, report: GpuReport, needs: Needs) -> None:
        self.name, self.needs = name, needs
        self.gpus, self.error, self.host = report.gpus, report.gpu_error, report.gpu_host
        # A GPU that is passed to a virtual machine is not available to this host.
        self.cards = [card for card in self.host.cards if card.driver != "vfio-pci"]

    def driver(self) -> Iterator[Finding]:
        """Findings about the driver as a whole."""
        host, cards = self.host, self.cards
        held = [card for card in cards if card.driver == "nouveau"]
        if held:
            text = f"nouveau drives {count(len(held), 'NVIDIA GPU')}: CUDA needs NVIDIA's own driver"
            remedy = "install NVIDIA's driver, which keeps nouveau out, and restart the host"
            yield warning("driver.nouveau", self.name, text, remedy)
        elif cards and host.module is None and not host.wsl and not self.gpus:
            text = f"{count(len(cards), 'NVIDIA GPU')} on the PCI bus, and no driver is loaded"
            remedy = "install the driver and restart the host; if it is installed: modprobe nvidia"
            yield warning("driver.missing", self.name, text, remedy)
        if host.libraries and host.module:
            text = (
                f"the kernel has driver {host.module} loaded, and the driver's libraries are {host.libraries}"
            )
            remedy = "restart the host: the driver was upgraded while it was in use"
            yield error("driver.restart-needed", self.name, text, remedy)
        wanted, version = self.needs.cuda, host.libraries or host.module
        if wanted and version and number(version) < number(oldest_driver(wanted)):
            text = f"driver {version} does not run CUDA {wanted}"
            remedy = f"install driver {oldest_driver(wanted)} or newer, or use a build for an older CUDA"
            yield error("driver.too-old", self.name, text, remedy)

    def missing(self, expected: int) -> Iterator[Finding]:
        """Findings for GPUs that do not answer."""
        host = self.host
        if host.container and host.module and not (host.devices or self.gpus):
            if self.cards:
                text = "the driver is loaded on the host, and none of its GPUs was given to this container"
                remedy = (
                    "install nvidia-container-toolkit there, and start it with --device nvidia.com/gpu=all"
                )
                yield error("gpu.not-given", self.name, text, remedy)
            return
        lost = list(self._lost())
        for card in lost:
            text = f"the GPU at {card.address} is on the PCI bus and does not answer: it fell off the bus"
            remedy = (
                "look at dmesg there for Xid 79; power the host off and on, and replace it if it comes back"
            )
            yield error("gpu.lost", self.name, text, remedy)
        if lost or host.libraries:
            return
        number_of_gpus = expected or len(self.cards)
        if self.error:
            text = f"{count(number_of_gpus, 'GPU')} that cannot be asked: {self.error}"
            yield error("gpu.failing", self.name, text, LOOK)
        elif len(self.gpus) < expected:
            text = f"{len(self.gpus)} of {count(expected, 'GPU')} answer"
            yield error("gpu.failing", self.name, text, LOOK)

    def _lost(self) -> Iterator[Card]:
        """GPUs on the PCI bus that nvidia-smi does not list, or that its error names."""
        if self.host.container or self.host.module is None:
            return  # a container may have only some of the GPUs
        listed, message = {gpu.bus for gpu in self.gpus}, (self.error or "").lower()
        for card in self.cards:
            if card.driver in {"nvidia", ""} and (
                card.address in message or (listed and card.address not in listed)
            ):
                yield card

    def each(self) -> Iterator[Finding]:
        """Findings for each GPU that answers."""
        for gpu in self.gpus:
            yield from self._memory(gpu)
            if gpu.mig:
                text = f"MIG divides GPU {gpu.index} into {gpu.instances} instances: a process sees only one"
                empty = f"MIG is on for GPU {gpu.index}, without an instance: no program can compute on it"
                remedy = f"nvidia-smi -i {gpu.index} -mig 0 when nothing runs on it, or make instances"
                if gpu.instances:
                    yield warning("gpu.mig", self.name, text, remedy)
                else:
                    yield error("gpu.mig", self.name, empty, remedy)
        slow = [gpu.index for gpu in self.gpus if gpu.persistence is False]
        if slow:
            text = (
                f"persistence mode is off for GPU {ranges(slow)}: each job waits until the driver is loaded"
            )
            remedy = "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1 after each start"
            yield warning("gpu.persistence-off", self.name, text, remedy)

    def _memory(self, gpu: Gpu) -> Iterator[Finding]:
        if gpu.ecc:
            text = f"GPU {gpu.index} has had {count(gpu.ecc, 'uncorrectable memory error')}"
            yield error("gpu.failing", self.name, text, "reset or replace it: nvidia-smi -q -d ECC")
        if gpu.remap == "failed":
            text = f"GPU {gpu.index} has no spare rows left for broken memory"
            yield error("gpu.failing", self.name, text, "replace it: nvidia-smi -q -d ROW_REMAPPER")
        elif gpu.remap == "pending":
            text = f"GPU {gpu.index} is to replace broken rows of its memory at its next reset"
            remedy = f"when nothing runs on it: nvidia-smi --gpu-reset -i {gpu.index}, or restart the host"
            yield warning("gpu.reset-needed", self.name, text, remedy)
        if gpu.pids or gpu.used > IDLE_MIB:
            unseen = "processes that are not visible there"
            whose = f"processes {', '.join(map(str, gpu.pids))}" if gpu.pids else unseen
            text = f"GPU {gpu.index}: {gpu.used} of {gpu.total} MiB in use by {whose}"
            yield warning("gpu.busy", self.name, text, "wait for them, or end them if they are left over")

    def around(self) -> Iterator[Finding]:
        """Findings about software and hardware that GPUs need besides their driver."""
        host = self.host
        if host.module and host.switches:
            yield from self._fabric()
        if host.module and host.rdma and host.peer_memory == "none":
            text = "RDMA cannot reach the GPUs' memory: there is neither nvidia-peermem nor dma-buf"
            remedy = (
                "modprobe nvidia-peermem, or take the driver's open kernel modules on Linux 5.12 or newer"
            )
            yield warning("gpu.without-rdma", self.name, text, remedy)
        if host.module and self.needs.containers and not host.container and not host.toolkit:
            text = "no container toolkit: a node container gets no GPU"
            yield warning("gpu.without-toolkit", self.name, text, "install nvidia-container-toolkit")
        if host.wsl and self.gpus:
            text = "WSL: GPUs and driver are those of Windows, which also decides what other hosts reach"
            remedy = (
                "use it alone, or with networkingMode=mirrored in .wslconfig and the ports open in Windows"
            )
            yield warning("gpu.wsl", self.name, text, remedy)
        wanted = self.needs.architecture
        if wanted and host.architecture and wanted != host.architecture:
            text = f"its processor is {host.architecture}, and the image is for {wanted}"
            remedy = f"build the image on a machine with {host.architecture}"
            yield error("image.architecture-differs", self.name, text, remedy)

    def _fabric(self) -> Iterator[Finding]:
        host = self.host
        if host.fabric_manager in {"stopped", "missing"}:
            state = "is not installed" if host.fabric_manager == "missing" else "does not run"
            text = f"it has NVSwitches, and Fabric Manager {state}: CUDA does not start"
            install = f"install nvidia-fabricmanager of the driver's version {host.module}, and then: "
            remedy = (
                f"{install * (host.fabric_manager == 'missing')}systemctl enable --now nvidia-fabricmanager"
            )
            yield error("fabric.down", self.name, text, remedy)
        version = host.fabric_manager_version
        if version and version != host.module:
            text = (
                f"Fabric Manager {version}, and the driver is {host.module}: they work only with each other"
            )
            yield error("fabric.version-differs", self.name, text, f"install Fabric Manager {host.module}")
