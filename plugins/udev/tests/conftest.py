"""A machine made of plain files: sysfs, /dev and udevd's records as the kernel and udevd lay them out."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest
from devhost_testing.kubelet import UnexpectedAdmissionError
from devhost_testing.node import Node
from devhost_testing.trees import Tree
from devhost_udev import Udev
from devhost_udev.options import Group, UdevOptions
from status_values import rows

from devhost.backend import AllocateRequest, Device, Edits
from devhost.discovery.runner import ServiceContext

XHCI = "pci0000:00/0000:00:14.0/usb1"


class Machine(Tree):
    """A tree with the hardware this backend is about, and the backend on it."""

    def backend(self, *groups: Group, wanted: tuple[str, ...] = ("*",), shared: tuple[str, ...] = ()) -> Udev:
        return Udev(UdevOptions(groups, shared), ServiceContext("udev", self.root, frozenset(wanted)))

    def ids(self, *groups: Group) -> dict[str, str]:
        """Device node or group → id, as a backend that just started sees them."""
        devices = self.backend(*groups).discover()
        return {str(d.attributes.get("group", d.attributes.get("devNode"))): d.id for d in devices}

    def misc(self, name: str, minor: int, node: str = "") -> str:
        return self.device(f"virtual/misc/{name}", "misc", node or name, f"10:{minor}")

    def usb(self, port: str, vendor: str, product: str, serial: str = "", *, number: int = 0) -> str:
        """A USB device below the controller's root hub, with its node; its path below /sys/devices."""
        self.pci("pci0000:00/0000:00:14.0", driver="xhci_hcd")
        self.device(XHCI, "usb", DEVTYPE="usb_device", DRIVER="usb")
        path = f"{XHCI}/1-{port}"
        files = {
            "idVendor": vendor,
            "idProduct": product,
            "devpath": port,
            "manufacturer": "Acme",
            "product": "Gadget",
        }
        if serial:
            files["serial"] = serial
        number = number or int(port.replace(".", "")) + 1
        self.device(
            path,
            "usb",
            f"bus/usb/001/{number:03}",
            f"189:{number - 1}",
            files,
            DEVTYPE="usb_device",
            DRIVER="usb",
        )
        return path

    def interface(self, device: str, number: int = 0, driver: str = "") -> str:
        """An interface of a USB device; its path below /sys/devices."""
        path = f"{device}/{device.rpartition('/')[2]}:1.{number}"
        bound = {"DRIVER": driver} if driver else {}
        self.device(path, "usb", files={"bInterfaceNumber": f"{number:02}"}, DEVTYPE="usb_interface", **bound)
        return path

    def usb_serial(
        self, name: str, port: str, serial: str = "", vendor: str = "1a86", product: str = "7523"
    ) -> str:
        """A USB serial adapter: its tty's path in sysfs."""
        device = self.usb(port, vendor, product, serial)
        interface = f"{device}/1-{port}:1.0"
        self.device(
            interface, "usb", files={"bInterfaceNumber": "00"}, DEVTYPE="usb_interface", DRIVER="ch341"
        )
        minor = name.removeprefix("ttyUSB")
        self.device(f"{interface}/{name}", "usb-serial", files={"port_number": "0"}, DRIVER="ch341-uart")
        return self.device(f"{interface}/{name}/tty/{name}", "tty", name, f"188:{minor}")

    def nvme(self, name: str, serial: str, wwid: str, minor: int, function: str = "0000:3b:00.0") -> str:
        """An NVMe disk with one namespace; the namespace's path below /sys/devices."""
        path = f"pci0000:3a/0000:3a:00.0/{function}"
        self.pci("pci0000:3a/0000:3a:00.0", driver="pcieport")
        self.pci(path, driver="nvme", numa_node=1, vendor="0x144d", device="0xa80a")
        controller = f"{path}/nvme/{name}"
        self.device(
            controller, "nvme", name, f"241:{minor}", {"serial": f"{serial}   ", "model": "SAMSUNG MZQL2"}
        )
        return self.disk(f"{controller}/{name}n1", f"259:{minor * 4}", {"wwid": wwid, "size": "3750748848"})

    def disk(self, path: str, number: str, files: Mapping[str, str] = {}) -> str:
        self.device(path, "block", path.rpartition("/")[2], number, files, DEVTYPE="disk")
        return path

    def partition(self, disk: str, count: int, number: str) -> str:
        name = disk.rpartition("/")[2]
        name += f"p{count}" if name[-1].isdigit() else str(count)
        path = f"{disk}/{name}"
        self.device(path, "block", name, number, {"partition": str(count)}, DEVTYPE="partition")
        return path

    def mounts(self, *lines: str) -> None:
        """``/proc/1/mountinfo``: each line is ``major:minor mountpoint source [type]``."""
        text = ""
        for line in lines:
            number, point, source, kind = (*line.split(), "ext4")[:4]
            text += f"21 1 {number} / {point} rw,relatime shared:1 - {kind} {source} rw\n"
        file = self.root / "proc/1/mountinfo"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


class Versioned(Udev):
    """The backend as this version has it; with ``ids`` set, as an earlier version named its devices."""

    ids: ClassVar[dict[str, str]] = {}

    def discover(self) -> list[Device]:
        return [self._named(device) for device in super().discover()]

    def _named(self, device: Device) -> Device:
        members = device.attributes.get("members", ())
        node = device.attributes.get("devNode") or (members[0] if isinstance(members, tuple) else "")
        prefix = f"{device.attributes['group']}-" if "group" in device.attributes else ""
        before = self.ids.get(str(node))
        return replace(device, id=prefix + before, former_ids=()) if before else device

    def allocate(self, request: AllocateRequest) -> Edits:
        known = {device.claims: device for device in super().discover()}
        devices = tuple(known[device.claims] for device in request.devices)
        return super().allocate(replace(request, devices=devices))


class NamingNode(Node):
    """A node whose devices have other ids when ``Versioned.ids`` says so."""

    def __init__(self, place: Path) -> None:
        super().__init__(place, Versioned)

    def reasons(self) -> dict[str, str]:
        """Token → reason, of what the status lists as Unhealthy."""
        return {token: row["reason"] for token, row in rows(self.host).items() if row["reason"]}

    async def refused(self, pod: str, resource: str) -> bool:
        try:
            await self.kubelet.admit(pod, "main", resource, 1)
        except UnexpectedAdmissionError:
            return True
        return False


@pytest.fixture
async def naming_node(tmp_path: Path) -> AsyncIterator[NamingNode]:
    Versioned.ids = {}
    async with NamingNode(tmp_path) as made:
        yield made
    Versioned.ids = {}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """An empty machine."""
    return Machine(tmp_path)


@pytest.fixture
def by_node() -> Callable[[list[Device]], dict[str, Device]]:
    """Arranges devices by their node."""
    return lambda devices: {str(device.attributes.get("devNode")): device for device in devices}
