"""Cards of the class `mycard`."""

import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from devhost.backend import (
    AllocateRequest,
    AllocationError,
    Attribute,
    Backend,
    Device,
    DeviceNode,
    Edits,
    Event,
    Health,
    MissingDriver,
    Mount,
    NotYet,
    Offered,
    Usage,
    claim,
    hookimpl,
    unhealthy,
)
from devhost.backend.netlink import ROUTE, Groups, NetlinkWatcher
from devhost.backend.process import ProcessError, run
from devhost.backend.sysfs import Sysfs, is_live, pcie_path

CLASS = "/sys/class/mycard"
CHECK = "import sys; sys.exit('the firmware is missing' if 'bad' in sys.argv[1:] else 0)"


class Links:
    """The netlink group that the backend watches: network links."""

    name = "link changes"
    protocol = ROUTE

    def groups(self) -> Groups | None:
        return Groups(1)

    def events(self, datagram: bytes) -> Iterable[Event]:
        return [Event("net", "change")]

    def lost(self) -> None:
        return


class MyCard(Backend):
    name = "mycard"
    subsystems = ("mycard",)
    attributes = {"model": Attribute(str, "model of the card", "X100")}

    def discover(self) -> Iterable[Device]:
        sysfs = Sysfs(self.context.root)
        for name in sysfs.listed(CLASS):
            path = sysfs.device(f"{CLASS}/{name}")
            card, numa = sysfs.pci(path), sysfs.numa_node(path)
            if card is not None:
                yield Device(
                    id=card.address,
                    attributes={"model": sysfs.text(f"{path}/model") or "unknown"},
                    claims=frozenset({claim.pci(card.address), claim.node(f"/dev/{name}")}),
                    numa_nodes=() if numa is None else (numa,),
                    pcie_path=pcie_path(path),
                )

    def allocate(self, request: AllocateRequest) -> Edits:
        nodes = [DeviceNode(self._node(device)) for device in request.devices]
        library = Mount("/usr/lib/mycard", "/usr/lib/mycard", required=False)
        ids = ",".join(device.id for device in request.devices)
        return Edits(tuple(nodes), (library,), {request.variable("MYCARD"): ids})

    async def watch(self) -> AsyncIterator[Event]:  # changes without a uevent
        if is_live(self.context.root):
            async for event in NetlinkWatcher([Links()], self.context.log).events():
                yield event

    def probe(self, devices: Sequence[Device]) -> Mapping[str, Health]:  # too slow for discover()
        verdicts = {}
        for device in devices:
            command = [sys.executable, "-I", "-c", CHECK, str(device.attributes["model"])]
            try:
                failure = run(command, deadline=5.0, name="the check").failure
            except ProcessError as error:
                failure = str(error)
            if failure:
                verdicts[device.id] = unhealthy(failure)
        return verdicts

    def usage(self, devices: Sequence[Device]) -> Mapping[str, Usage]:  # for metrics
        sysfs = Sysfs(self.context.root)
        used = {
            device.id: sysfs.integer(f"{CLASS}{self._node(device)[4:]}/memory_used") for device in devices
        }
        return {name: Usage(memory_used=number) for name, number in used.items()}

    def prepare(self, request: AllocateRequest) -> None:  # before each container start
        for device in request.devices:
            self._node(device)

    def provision(self) -> None:  # apply the options to the hardware
        if self.context.held() is None:
            raise NotYet("it is not yet known which containers use cards")

    def links(self, a: Device, b: Device) -> int:  # larger is closer
        return 2 if a.attributes.get("model") == b.attributes.get("model") else 0

    def notice(self, event: Event) -> None:  # before the discover() that the event causes
        self.context.log.debug("event of %s", event.subsystem)

    def device_info(self, device: Device, request: AllocateRequest) -> Mapping[str, object] | None:
        return {"type": "pci", "version": "1.1.0", "pci": {"pci-address": device.id}}

    def labels(self, devices: Sequence[Device], offered: Offered) -> Mapping[str, str | int]:
        return {"example.com/mycard.count": len(devices)}

    def missing_drivers(self) -> Iterable[MissingDriver]:
        sysfs = Sysfs(self.context.root)
        for name in sysfs.names("/sys/bus/pci/devices"):
            card = sysfs.pci(sysfs.device(f"/sys/bus/pci/devices/{name}"))
            if card is not None and card.vendor == "1bad" and not card.driver:
                yield MissingDriver(name, "no driver is bound to it (run modprobe mycard)")

    modules = ("mycard",)

    def release(self) -> None:  # for `devhost release`: the driver must not be in use afterwards
        self.context.log.debug("nothing stays open: discover() and probe() close what they open")

    def close(self) -> None:  # before another object takes over
        self.context.log.debug("closed")

    def _node(self, device: Device) -> str:
        for name in Sysfs(self.context.root).names(CLASS):
            if claim.node(f"/dev/{name}") in device.claims:
                return f"/dev/{name}"
        raise AllocationError(f"{device.id} is gone")


@hookimpl
def devhost_backends() -> list[type[Backend]]:
    return [MyCard]
