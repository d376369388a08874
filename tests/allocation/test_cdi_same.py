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
from functools import partial
from pathlib import Path

import pytest
from devhost_testing import runtime
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.allocator import Supply

from devhost.allocation.cdi.files import SpecFiles
from devhost.backend import (
    AllocationError,
    Device,
    DeviceNode,
    Edits,
    Mount,
)
from devhost.backend.model import HEALTHY
from devhost.kubelet.server import container_response
from devhost.planning.plan import Offer, units
from devhost.planning.settings import Of

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


def answers(wanted: Mapping[str, Edits], listed: bool, devices: Sequence[Device]) -> Edits:
    """What each device needs, and a list of them all if ``listed``."""
    edits = Edits.merge(wanted[device.id] for device in devices)
    return replace(edits, env={**edits.env, "ALL": ",".join(d.id for d in devices)}) if listed else edits


async def answer(supply: Supply, tokens: Sequence[str]):
    granted = await supply.allocate(*tokens)
    return container_response(granted.edits, granted.left_out)


async def both_ways(
    wanted: Mapping[str, Edits],
    tokens: Sequence[str],
    replicas: int = 1,
    of: Of = Of.EACH,
    listed: bool = False,
):
    with tempfile.TemporaryDirectory() as place:
        directory = SpecFiles(Path(place))
        plain, named = Supply(Path("/")), Supply(Path("/"), specs=directory)
        offers = [Offer(Device(device), replicas) for device in sorted(wanted)]
        for supply in (plain, named):
            supply.answer = partial(answers, wanted, listed)
            supply.show(*offers, of=of)
        injection = named.injection
        running = asyncio.create_task(injection.run())
        named.runner.discover([])
        injection.want(offers, lambda device: HEALTHY)
        try:
            try:
                directly = await answer(plain, tokens)
            except AllocationError as refusal:
                with pytest.raises(AllocationError, match=re.escape(str(refusal))):
                    await answer(named, tokens)
                return
            by_name = await answer(named, tokens)
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
            plain.runner.close()
            named.runner.close()


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
    asyncio.run(both_ways(wanted, tokens, replicas, of, listed))


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
    asyncio.run(both_ways(needs, list(needs)))
