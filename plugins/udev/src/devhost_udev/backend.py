"""The backend class: combines scan and groups, and answers the core from the last scan."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from devhost.backend import (
    AllocateRequest,
    AllocationError,
    Backend,
    Context,
    Device,
    DeviceNode,
    Edits,
    Event,
    templates,
)
from devhost.backend.sysfs import prefix_of

from .allocation import NO_USB_DEVICE, also_at, is_usb_device, to_kubevirt
from .attributes import ATTRIBUTES
from .facts import Record
from .options import KUBEVIRT, UdevOptions, Use
from .scan import Scan
from .watch import node_events

if TYPE_CHECKING:
    from .groups import Assembled, Groups


class Udev(Backend):
    """Device nodes of any kind, and configured groups of them."""

    name = "udev"
    Options = UdevOptions
    ResourceOptions = Use
    attributes = ATTRIBUTES
    subsystems = ("*",)

    def __init__(self, options: UdevOptions, context: Context) -> None:
        super().__init__(options, context)
        self._prefix = prefix_of(context.root)
        self._scan = Scan(context.root, options.shared_serials)
        self._wanted_by_groups = frozenset().union(*(group.wanted for group in options.groups))
        self._groups: Groups | None = None
        if options.groups:
            from .groups import Groups  # 0.2 MB, only where there are groups

            self._groups = Groups(options.groups, context.root, self._scan)
        self._list: list[Device] = []
        self._list_of: tuple[int, object] | None = None
        self._duplicates: Mapping[str, tuple[str, ...]] = {}
        # Replaced whole, never changed: allocate() reads them on another thread.
        self._records: Mapping[str, Record] = {}
        self._assembled: Mapping[str, Assembled] = {}

    def notice(self, event: Event) -> None:
        """Records an event; see :meth:`devhost_udev.scan.Scan.notice` for the meaning of each kind."""
        self._scan.notice(event)

    def discover(self) -> list[Device]:
        """All device nodes in sysfs and ``/dev``, and all groups."""
        self._scan.update(self._wanted_by_groups.union(self.context.wanted))
        assembled = self._assembled if self._groups is None else self._groups.update()
        edition = self._scan.edition
        if self._list_of is None or self._list_of[0] != edition or self._list_of[1] is not assembled:
            records = self._scan.records.values()
            self._list = [record.seen for record in records]
            self._list += [group.device for group in assembled.values()]
            self._records = {record.device.id: record for record in records}
            self._assembled = assembled
            self._list_of = (edition, assembled)
            self._report_duplicates()
        return self._list.copy()

    def _report_duplicates(self) -> None:
        """Logs once which devices are withheld because they have the same id."""
        duplicates = {name: tuple(sorted(nodes)) for name, nodes in self._scan.duplicates().items()}
        for name, nodes in duplicates.items():
            if self._duplicates.get(name) != nodes:
                self.context.log.warning("devices withheld: %s is common to %s", name, ", ".join(nodes))
        self._duplicates = duplicates

    def allocate(self, request: AllocateRequest) -> Edits:
        """The nodes of these devices, readable and writable, and what their groups add.

        If several groups set a variable to different values, these are joined with commas in the order of
        ``{index}``: the number of the device, in natural order of the first nodes. Raises ``AllocationError``
        if a required node or mount is missing, a group has none of a member's nodes, or KubeVirt cannot be
        given a node.
        """
        devices = request.devices
        ranked = enumerate(templates.ranked(devices))
        parts = {device.id: self._edits(device, index) for index, device in ranked}
        for path in (path for part in parts.values() for path in self._missing(part)):
            raise AllocationError(f"{path} is missing on the node")
        merged = Edits.merge(parts[device.id] for device in devices)
        env = templates.joined(part.env for part in parts.values())
        if request.options.kubevirt:
            env |= to_kubevirt(self._prefix, [*self._usb_nodes(templates.ranked(devices))], request)
        lasting = merged.lasting and not request.options.kubevirt  # which changes owners
        return Edits(merged.nodes, merged.mounts, env, lasting=lasting)

    def _edits(self, device: Device, index: int) -> Edits:
        assembled = self._assembled.get(device.id)
        if assembled is not None:
            if assembled.flaw:
                raise AllocationError(assembled.flaw)
            return assembled.edits(index)
        # the number of the node may have changed since the list was sent; the id still names the device
        record = self._records.get(device.id)
        if record is not None:
            paths = (record.node, *also_at(record.device.attributes))
            return Edits(
                nodes=tuple(DeviceNode(record.node, path if n else "") for n, path in enumerate(paths)),
                lasting=True,
            )
        node = device.attributes.get("devNode")
        if "group" in device.attributes or not isinstance(node, str):
            raise AllocationError(f"{device.id} no longer exists")
        return Edits(nodes=(DeviceNode(node),))

    def _usb_nodes(self, devices: Sequence[Device]) -> Iterator[str]:
        """The nodes of the whole USB devices among these, those of a group in the order of its members.

        KubeVirt's plugin has the order of its selectors, by which a machine names what it gets.
        """
        for device in devices:
            assembled, record = self._assembled.get(device.id), self._records.get(device.id)
            known = (
                assembled.nodes if assembled else {record.node: record.device.attributes} if record else {}
            )
            nodes = [node for node, attributes in known.items() if is_usb_device(attributes)]
            if not nodes:
                raise AllocationError(f"{device.id}: {NO_USB_DEVICE[KUBEVIRT]}")
            yield from nodes

    def _missing(self, edits: Edits) -> Iterator[str]:
        paths = [node.path for node in edits.nodes if node.required]
        paths += [mount.host_path for mount in edits.mounts if mount.required]
        for path in paths:
            if not os.path.exists(self._prefix + path):  # noqa: PTH110 - any error means "no"
                yield path

    def watch(self) -> AsyncIterator[Event]:
        """Changes of nodes that cause no uevent, such as creating or removing one by hand."""
        return node_events(self.context, self.options.groups)
