"""Directly or by CDI: a container has the same in the end, whatever a backend asks for.

Both ways are followed to their end: the answer to Allocate through the kubelet, the names through the file
on the disk and the library that a runtime reads it with.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from allocator_scene import NotingScanner
from devhost_testing import runtime
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.allocation.allocator import Allocator
from devhost.allocation.cdi.files import SpecFiles
from devhost.allocation.cdi.injector import CdiInjection
from devhost.allocation.inventory import Inventory
from devhost.allocation.resource_backend import ResourceBackend
from devhost.backend import (
    AllocateRequest,
    AllocationError,
    Backend,
    Device,
    DeviceNode,
    Edits,
    Mount,
    NoOptions,
)
from devhost.backend.model import HEALTHY
from devhost.discovery.runner import BackendRunner
from devhost.kubelet.server import container_response
from devhost.planning.claims import Reason
from devhost.planning.plan import Offer, units
from devhost.planning.settings import Of, ResourceSettings

RESOURCE = "example.com/card"
NODES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

somewhere = st.sampled_from(["/dev/a", "/dev/b", "/dev/null"])
permissions = st.sampled_from(["r", "rw", "rwm", "wm"])
nodes = st.builds(DeviceNode, st.sampled_from(NODES), st.just("") | somewhere, permissions)
mounts = st.builds(Mount, st.sampled_from(["/", "/dev"]), st.sampled_from(["/x", "/y"]), st.booleans())
absent = st.builds(DeviceNode, st.just("/dev/absent"), somewhere, permissions, st.just(False)) | st.builds(
    Mount, st.just("/absent"), st.just("/x"), required=st.just(False)
)


@st.composite
def needs(draw: st.DrawFn) -> Edits:
    """What one device needs; paths, variables and nodes of the host often meet those of another."""
    parts = draw(st.lists(nodes | mounts | absent, max_size=5))
    return Edits(
        nodes=tuple(part for part in parts if isinstance(part, DeviceNode)),
        mounts=tuple(part for part in parts if isinstance(part, Mount)),
        env=draw(st.dictionaries(st.sampled_from("ABC"), st.text("xé😀\n=", max_size=3), max_size=2)),
        annotations=draw(st.dictionaries(st.just("example.com/note"), st.text("xy", max_size=1))),
    )


def backend(wanted: Mapping[str, Edits], listed: bool) -> type[Backend]:
    """A backend that answers with what each device needs, and with a list of them all if ``listed``."""

    class Card(Backend):
        name = "card"

        def discover(self) -> list[Device]:
            return []

        def allocate(self, request: AllocateRequest) -> Edits:
            edits = Edits.merge(wanted[device.id] for device in request.devices)
            if not listed:
                return edits
            return replace(edits, env={**edits.env, "ALL": ",".join(device.id for device in request.devices)})

    return Card


class Resource:
    """One resource, its devices in the order of their ids."""

    def __init__(self, kind: type[Backend], ids: Sequence[str], replicas: int, of: Of) -> None:
        self.inventory = Inventory(lambda: 1e9, lambda: 100.0)
        self.source = BackendRunner(kind, NoOptions(), Path("/"))
        self.offers = [Offer(Device(device), replicas) for device in sorted(ids)]
        self.entry = ResourceSettings(0, RESOURCE, "card")
        self.backend = ResourceBackend(RESOURCE, NotingScanner(self.source), self.entry)
        self.allocator = Allocator(self.inventory, self.backend, self.entry)
        self.inventory.update(units(of, self.offers), lambda device: HEALTHY, Reason)

    async def answer(self, tokens: Sequence[str]):
        self.source.discover([])
        granted = await self.allocator.allocate(tokens)
        return container_response(granted.edits, granted.left_out)


async def both_ways(kind: type[Backend], ids: Sequence[str], tokens: Sequence[str], replicas: int, of: Of):
    with tempfile.TemporaryDirectory() as place:
        plain, named = Resource(kind, ids, replicas, of), Resource(kind, ids, replicas, of)
        directory = SpecFiles(Path(place))
        injection = CdiInjection(named.backend, named.inventory, directory, lambda: None)
        named.allocator = Allocator(named.inventory, named.backend, named.entry, injection)
        running = asyncio.create_task(injection.run())
        named.source.discover([])
        injection.want(named.offers, lambda device: HEALTHY)
        try:
            try:
                directly = await plain.answer(tokens)
            except AllocationError as refusal:
                with pytest.raises(AllocationError, match=re.escape(str(refusal))):
                    await named.answer(tokens)
                return
            by_name = await named.answer(tokens)
            names = [device.name for device in by_name.cdi_devices]
            for name in names:
                runtime.parse(name)
            _, refused = runtime.resolve(directory.directory)
            assert not refused
            assert not by_name.devices
            assert not by_name.mounts
            assert not by_name.envs
            assert dict(by_name.annotations) == dict(directly.annotations)
            assert runtime.by_cdi(directory.directory, names) == runtime.direct([directly])
        finally:
            injection.stop()
            await running
            directory.close()
            plain.source.close()
            named.source.close()


@pytest.mark.conformance(52)
@settings(deadline=None, derandomize=True, max_examples=2 * settings().max_examples)
@given(
    wanted=st.dictionaries(st.sampled_from(["d0", "0000:3b:00.0", "a/b", "z"]), needs(), min_size=1),
    listed=st.booleans(),
    replicas=st.integers(1, 3),
    of=st.sampled_from(Of),
    data=st.data(),
)
def test_both_ways_give_a_container_the_same(wanted, listed, replicas, of, data):
    every = [
        entry
        for unit in units(of, [Offer(Device(device), replicas) for device in sorted(wanted)])
        for entry in ([f"{unit.id}::{n}" for n in range(unit.replicas)] if unit.numbered else [unit.id])
    ]
    tokens = data.draw(st.lists(st.sampled_from(every), min_size=1, unique=True))
    asyncio.run(both_ways(backend(wanted, listed), list(wanted), tokens, replicas, of))


NULL, ZERO = (Edits((DeviceNode(host, "/dev/a"),)) for host in NODES[:2])


@pytest.mark.parametrize(
    "wanted",
    [
        (NULL, ZERO),
        (NULL, ZERO, NULL),  # the node is the same in the end, and what may be done with the other is not
        (NULL, Edits((DeviceNode("/dev/null", "/dev/a", "r"),))),
        (Edits(env={"A": "first"}), Edits(env={"A": "second"})),
        (Edits(mounts=(Mount("/", "/x"),)), Edits(mounts=(Mount("/dev", "/x", read_only=False),))),
        (Edits(), Edits(env={"A": "b"})),
    ],
)
def test_where_devices_disagree_both_ways_decide_alike(wanted):
    needs = {f"d{number}": edits for number, edits in enumerate(wanted)}
    asyncio.run(both_ways(backend(needs, listed=False), list(needs), list(needs), 1, Of.EACH))
