"""The options of an entry for its backend: from the file to Allocate, PreStartContainer and CDI."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
from devhost_testing.kubelet import Point, events, fail
from devhost_testing.node import PATIENCE, Node
from devhost_testing.trees import Tree

from devhost.backend import AllocateRequest, Attribute, Backend, Device, DeviceNode, Edits, option

A, B = "example.com/a", "example.com/b"


@dataclass(frozen=True)
class Use:
    mode: str = option("plain", "How it is used.")
    program: str | None = option(None, "What is programmed before a container starts.")

    @property
    def prepares(self) -> bool:
        return self.program is not None


class Region(Backend):
    name = "region"
    ResourceOptions = Use
    attributes: ClassVar = {"index": Attribute(int, "index", 0)}
    prepared: ClassVar[list[tuple[str, str | None]]] = []

    def discover(self) -> list[Device]:
        return [Device(f"d{n}", {"index": n}) for n in range(4)]

    def allocate(self, request: AllocateRequest) -> Edits:
        nodes = tuple(DeviceNode(f"/dev/{device.id}") for device in request.devices)
        return Edits(
            nodes,
            env={"MODE": request.options.mode}
            | {f"HAS_{d.id}": request.options.mode for d in request.devices},
        )

    def prepare(self, request: AllocateRequest) -> None:
        self.prepared.extend((device.id, request.options.program) for device in request.devices)


@pytest.fixture
async def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Node]:
    monkeypatch.setattr(Region, "prepared", [])
    async with Node(tmp_path, Region) as made:
        tree = Tree(made.root)
        for number in range(4):
            tree.device(f"virtual/misc/d{number}", "misc", f"d{number}", f"10:{number}")
        yield made


def entry(name: str, where: str, more: str = "") -> str:
    return f'- {{name: {name}, backend: region, where: {{index: "{where}"}}{more}}}\n'


def configure(node: Node, *entries: str) -> None:
    node.configure("resources:\n" + "".join(entries))


def registrations(node: Node, name: str) -> list[bool]:
    """Whether PreStartContainer is required, for each registration."""
    return [one.pre_start_required for one in node.kubelet.events.of(events.OptionsRead, name)]


async def started_again(node: Node, pod: str) -> dict[str, str]:
    return dict((await node.kubelet.start_container(pod, "main")).envs)


async def test_each_resource_is_served_with_the_options_of_its_entry(node: Node) -> None:
    configure(node, entry(A, "0-1", ", mode: fast, program: x"), entry(B, "2-3"))
    async with node.served({A: 2, B: 2}):
        started = await node.container({A: 2})
        assert started.envs["MODE"] == "fast"
        assert sorted(Region.prepared) == [("d0", "x"), ("d1", "x")]
        assert (await node.container({B: 1})).envs["MODE"] == "plain"


async def test_prestart_is_required_only_if_the_options_need_it(node: Node) -> None:
    configure(node, entry(A, "0-1", ", program: x"), entry(B, "2-3"))
    async with node.served({A: 2, B: 2}):
        assert (registrations(node, A), registrations(node, B)) == ([True], [False])
        await node.container({B: 2})
        assert Region.prepared == []


async def test_an_edited_value_changes_the_resource_in_place(node: Node) -> None:
    configure(node, entry(A, "0-1", ", mode: one, program: x"), entry(B, "2-3"))
    async with node.served({A: 2, B: 2}):
        first = await node.container({A: 1}, keep=True)
        configure(node, entry(A, "0-1", ", mode: two, program: y"), entry(B, "2-3"))
        assert not await node.reload()
        Region.prepared.clear()
        second = await node.container({A: 1}, keep=True)
        assert (first.envs["MODE"], second.envs["MODE"]) == ("one", "two")
        assert [program for _, program in Region.prepared] == ["y"]
        assert (registrations(node, A), registrations(node, B)) == ([True], [False])
        assert node.kubelet.allocatable() == {A: 2, B: 2}


async def test_a_restarted_container_is_prepared_with_the_options_of_its_allocation(node: Node) -> None:
    configure(node, entry(A, "0-1", ", mode: one, program: x"))
    async with node.served({A: 2}):
        await node.container({A: 1}, keep=True)
        (before,) = Region.prepared
        configure(node, entry(A, "0-1", ", mode: two, program: y"))
        assert not await node.reload()
        assert (await started_again(node, "pod-0"))["MODE"] == "one"
        assert Region.prepared == [before, before]


async def test_a_resource_that_now_needs_prestart_registers_again_and_keeps_running_pods(
    node: Node,
) -> None:
    configure(node, entry(A, "0-1", ", mode: one"))
    async with node.served({A: 2}):
        await node.container({A: 1}, keep=True)
        configure(node, entry(A, "0-1", ", mode: two, program: y"))
        assert not await node.reload()
        await node.until(lambda: registrations(node, A) == [False, True])
        await node.offers({A: 2})
        await started_again(node, "pod-0")
        assert Region.prepared == []
        assert (await node.container({A: 1})).envs["MODE"] == "two"
        assert [program for _, program in Region.prepared] == ["y"]


async def test_an_invalid_value_changes_nothing_and_is_reported(node: Node) -> None:
    configure(node, entry(A, "0-1", ", mode: one"))
    async with node.served({A: 2}):
        configure(node, entry(A, "0-1", ", mode: [two]"))
        (complaint,) = await node.reload()
        assert "resources[0].mode: must be text, not a list" in complaint
        assert (await node.container({A: 1})).envs["MODE"] == "one"


async def test_each_cdi_specification_has_the_options_of_its_entry(node: Node) -> None:
    configure(node, entry(A, "0-1", ", inject: cdi, mode: fast"), entry(B, "2-3", ", inject: cdi"))
    async with node.served({A: 2, B: 2}):
        for resource, mode in ((A, "fast"), (B, "plain")):
            started = await node.container({resource: 1})
            (edits,) = node.specified([one.name for one in started.cdi_devices])
            assert f"MODE={mode}" in edits["env"]


async def test_a_restarted_container_finds_its_cdi_specification(node: Node) -> None:
    configure(node, entry(A, "0-1", ", inject: cdi, mode: one"))
    async with node.served({A: 2}):
        started = await node.container({A: 1}, keep=True)
        (name,) = [one.name for one in started.cdi_devices]
        others = {f"{name.partition('=')[0]}=d{number}" for number in (0, 1)} - {name}
        configure(node, entry(A, "0-1", ", inject: cdi, mode: two"))
        assert not await node.reload()
        await node.until(lambda: "MODE=two" in node.specified(others)[0]["env"])
        assert "MODE=one" in node.specified([name])[0]["env"]
        assert registrations(node, A) == [False]
        node.kubelet.release("pod-0")
        started = await node.container({A: 2})
        for edits in node.specified([one.name for one in started.cdi_devices]):
            assert "MODE=two" in edits["env"]


async def test_a_container_finds_what_it_got_before_that_is_recorded(node: Node) -> None:
    """The kubelet has the answer first. It has not said yet that the former container of the device ended."""
    configure(node, entry(A, "0-1", ", inject: cdi, mode: one"))
    async with node.served({A: 2}):
        (token,) = (await node.kubelet.admit("former", "main", A, 1)).device_ids
        configure(node, entry(A, "0-1", ", inject: cdi, mode: two"))
        assert not await node.reload()
        node.kubelet.faults.inject(Point.POD_RESOURCES, fail("it is busy"), times=None)
        node.kubelet.release("former")
        got = await node.host.services[A].allocator.allocate([token])
        configure(node, entry(A, "0-2", ", inject: cdi, mode: two"))
        assert not await node.reload()
        await node.offers({A: 3})  # the file has been written again
        (edits,) = node.specified(got.granted.edits.cdi_devices)
        assert "MODE=two" in edits["env"]
        await got.record()


@pytest.mark.parametrize("ended", [True, False], ids=["the-token-of-one-that-ended", "a-free-token"])
async def test_a_container_finds_what_it_got_of_a_device_that_an_earlier_one_shares(
    node: Node, ended: bool
) -> None:
    shared = ", inject: cdi, share: {replicas: 3}"
    configure(node, entry(A, "0-0", f"{shared}, mode: one"))
    async with node.served({A: 3}):
        (token,) = (await node.kubelet.admit("former", "main", A, 1)).device_ids
        (other,) = (await node.kubelet.admit("other", "main", A, 1)).device_ids
        if not ended:
            (token,) = node.kubelet.healthy(A) - {token, other}
        configure(node, entry(A, "0-0", f"{shared}, mode: two"))
        assert not await node.reload()
        node.kubelet.faults.inject(Point.POD_RESOURCES, fail("it is busy"), times=None)
        if ended:
            node.kubelet.release("former")
        got = await node.host.services[A].allocator.allocate([token])
        configure(node, entry(A, "0-1", f"{shared}, mode: two"))
        assert not await node.reload()
        await node.offers({A: 6})  # the file has been written again
        (edits,) = node.specified(got.granted.edits.cdi_devices)
        assert "MODE=two" in edits["env"]
        await got.record()


DROP_IN = """
from dataclasses import dataclass
from devhost.backend import Backend, Device, Edits, hookimpl, option

@dataclass(frozen=True)
class Use:
    {field}: str = option("x", "Something.")

class Card(Backend):
    name = "card"
    ResourceOptions = Use
    def discover(self): return [Device("c0")]
    def allocate(self, request): return Edits(env={{"SAID": "{field} " + request.options.{field}}})

@hookimpl
def devhost_backends(): return [Card]
"""


async def test_an_edited_drop_in_gets_the_options_of_its_new_class(node: Node, tmp_path: Path) -> None:
    directory = tmp_path / "backends"
    directory.mkdir()
    text = f"backendPaths: [{directory}]\nresources: [{{name: {A}, backend: card, FIELD: y}}]"
    (directory / "card.py").write_text(DROP_IN.format(field="old"))
    node.configure(text.replace("FIELD", "old"))
    async with node.served({A: 1}):
        assert (await node.container({A: 1})).envs["SAID"] == "old y"
        (directory / "card.py").write_text(DROP_IN.format(field="new"))
        node.configure(text.replace("FIELD", "new"))
        assert not await node.reload()
        seen = ["old y"]
        async with asyncio.timeout(PATIENCE):  # until its first scan, the previous object serves
            while seen[-1] != "new y":
                seen.append((await node.container({A: 1})).envs["SAID"])
        assert set(seen) == {"old y", "new y"}
