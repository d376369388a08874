"""The backend: what the driver ``neuron`` reports in sysfs.

The driver (aws-neuron-driver 2.24, ``neuron_cdev.c`` and ``neuron_sysfs_metrics.c``) gives a device no
parent, so neither a PCI address nor a NUMA node is known. Its number is the position in the instance, which
the hardware reports, except on Inf1, where it is the order of the PCI bus.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from devhost.backend import (
    HEALTHY,
    AllocateRequest,
    AllocationError,
    Attribute,
    AttributeValue,
    Backend,
    Cause,
    Context,
    Device,
    DeviceNode,
    Edits,
    Event,
    Health,
    MissingDriver,
    OptionError,
    claim,
    option,
    unhealthy,
)
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import PciFilter, Sysfs

ATTRIBUTES = {
    "kind": Attribute(str, "a whole device, or one of its cores", "device", words=("device", "core")),
    "device": Attribute(int, "number of the device in the instance", 0),
    "core": Attribute(int, "number of the core in its device; devices have none", 0),
    "cores": Attribute(int, "how many cores the device has", 2),
    "devNode": Attribute(str, "path of the device node", "/dev/neuron0", begins="/dev/"),
    "model": Attribute(str, "name of the chip", "Trainium1"),
    "instanceType": Attribute(str, "family of EC2 instances", "Trn1"),
}
"""The attributes of devices and cores."""

VISIBLE = "NEURON_RT_VISIBLE_CORES"
"""The variable from which Neuron's runtime learns its cores."""

_CLASS = "/sys/class/neuron_device"
_DEVICE = re.compile(r"neuron(\d{1,4})")
_CORE = re.compile(r"neuron_core(\d{1,3})")
_PCI_IDS = {"7064", "7065", "7066", "7067", "7164", "7264", "7364"}
"""Inferentia, Trainium, Inferentia2 and Trainium2 (``neuron_pci_dev_ids``); the vendor is Amazon."""

_FILES = {
    "model": "info/architecture/device_name",
    "instanceType": "info/architecture/instance_type",
}
"""The files of a device with its attributes."""

_RESET_FAILED = "2"
"""``NEURON_DEVICE_STATE_INVALID``. A device that is being reset is usable: opening it waits."""

_LAST = "stats/power"
"""What the driver makes last of a device, after the uevent. Until then, cores are missing, and its files
``reset`` and ``connected_devices`` crash the kernel if they are read (``ncdev_init_device_node``)."""

_MADE = 2.0
"""The age in seconds at which devices are complete with earlier drivers, which have no such directory."""

_SAME_DEVICE, _CONNECTED, _CONSECUTIVE = 4, 2, 1
"""Links: the runtime wants consecutive numbers, and connected devices communicate without the host."""


@frozen
class NeuronOptions:
    """The keys under ``backends.neuron``."""

    core_size: int = option(
        1, "How many physical cores make one core, as `NEURON_LOGICAL_NC_CONFIG` of the containers."
    )

    def __post_init__(self) -> None:
        if self.core_size not in (1, 2):
            message = f"must be 1 or 2, not {self.core_size}"
            raise OptionError(message, key="coreSize", hint="1 physical core for each logical one, or 2")


class Neuron(Backend):
    """Whole devices, and the cores of each."""

    name = "neuron"
    Options = NeuronOptions
    subsystems = ("neuron_device", "pci")
    claim_kinds = ("neuron-core",)
    attributes = ATTRIBUTES
    variables = (VISIBLE,)

    def __init__(self, options: NeuronOptions, context: Context) -> None:
        super().__init__(options, context)
        self._sysfs = Sysfs(context.root)
        self._functions = PciFilter(self._sysfs, lambda one: one.vendor == "1d0f" and one.device in _PCI_IDS)
        # replaced, never modified: links() reads it on another thread
        self._connected: Mapping[int, frozenset[int]] = {}
        self._waits = False

    def discover(self) -> list[Device]:
        """Every device that the driver has made completely, and every core."""
        every = {
            int(found[1]): f"{_CLASS}/{found[0]}"
            for found in map(_DEVICE.fullmatch, self._sysfs.listed(_CLASS))
            if found
        }
        paths = {number: path for number, path in every.items() if self._is_complete(number, path)}
        self._waits = len(paths) < len(every)
        self._connected = {
            number: frozenset(map(int, re.findall(r"\d+", self._sysfs.text(f"{path}/connected_devices"))))
            for number, path in paths.items()
        }
        return [device for number, path in paths.items() for device in self._devices(number, path)]

    async def watch(self) -> AsyncIterator[Event]:
        """Looks again while a device is not complete: no uevent follows."""
        while True:
            await asyncio.sleep(_MADE / 2)
            if self._waits:
                yield Event()

    def missing_drivers(self) -> Iterator[MissingDriver]:
        """The chips that no driver is bound to."""
        for one in self._functions.scan():
            if self._sysfs.lacks_driver(one.path):
                reason = "no driver is bound to it (install aws-neuronx-dkms, then run modprobe neuron)"
                yield MissingDriver(f"{one.address} ({one.vendor}:{one.device})", reason)

    def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:
        """The memory errors of each device; the driver asks the hardware for every number."""
        faults = {number: self._fault(number) for number in {_number(device) for device in devices}}
        return {device.id: faults[_number(device)] for device in devices}

    def allocate(self, request: AllocateRequest) -> Edits:
        """The nodes, and for cores their numbers in the container, which counts those of its devices."""
        cores = {_number(device): _integer(device, "cores") for device in request.devices}
        if gone := cores.keys() - self._connected.keys():
            raise AllocationError(f"neuron{min(gone)} is gone")
        first: dict[int, int] = {}
        for number in sorted(cores):
            first[number] = sum(cores[other] for other in first)
        visible = sorted(
            first[_number(device)] + _integer(device, "core")
            for device in request.devices
            if device.attributes["kind"] == "core"
        )
        nodes = tuple(DeviceNode(f"/dev/neuron{number}") for number in sorted(cores))
        return Edits(nodes, env={VISIBLE: ",".join(map(str, visible))} if visible else {}, lasting=True)

    def links(self, a: Device, b: Device) -> int:
        """How closely two devices, or the devices of two cores, are connected."""
        first, second = sorted((_number(a), _number(b)))
        if first == second:
            return _SAME_DEVICE
        connected = _CONNECTED if second in self._connected.get(first, ()) else 0
        return connected + (_CONSECUTIVE if second - first == 1 else 0)

    def _is_complete(self, number: int, path: str) -> bool:
        if self._sysfs.exists(f"{path}/{_LAST}"):
            return True
        try:
            made = os.stat(f"{self._sysfs.prefix}/dev/neuron{number}").st_mtime  # noqa: PTH116 - as in Sysfs
        except OSError:
            return False
        return time.time() - made >= _MADE

    def _devices(self, number: int, path: str) -> Iterator[Device]:
        """A device and its cores; either it is offered or they are."""
        node = f"/dev/neuron{number}"
        cores = sum(1 for name in self._sysfs.names(path) if _CORE.fullmatch(name)) // self.options.core_size
        facts: dict[str, AttributeValue] = {"device": number, "cores": cores, "devNode": node}
        facts |= {name: text for name, file in _FILES.items() if (text := self._sysfs.text(f"{path}/{file}"))}
        whole = frozenset({claim.node(node)})
        health = self._health(path, node)
        yield Device(f"neuron{number}", facts | {"kind": "device"}, whole, health=health)
        for core in range(cores):
            name = f"neuron{number}-core{core}"
            own = frozenset({claim.other("neuron-core", name)})
            yield Device(name, facts | {"kind": "core", "core": core}, own, whole, health=health)

    def _health(self, path: str, node: str) -> Health:
        if not self._sysfs.exists(node):
            return unhealthy(f"{node} is missing", Cause.MISSING)
        failed = self._sysfs.text(f"{path}/reset") == _RESET_FAILED
        return unhealthy("its last reset failed (reboot the node)") if failed else HEALTHY

    def _fault(self, number: int) -> Health:
        path = f"{_CLASS}/neuron{number}/stats/hardware"
        for name in self._sysfs.names(path):
            if name.endswith("_uncorrected") and (count := self._sysfs.integer(f"{path}/{name}")):
                return unhealthy(f"{name} is {count}", Cause.ECC)
        return HEALTHY


def _number(device: Device) -> int:
    return _integer(device, "device")


def _integer(device: Device, name: str) -> int:
    value = device.attributes[name]
    assert isinstance(value, int)
    return value
