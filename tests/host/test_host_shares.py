"""What a backend learns about requested shares, the entries of the file, and their names."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

import pytest
from devhost_testing.node import Node

from devhost.backend import AllocateRequest, Attribute, Backend, Device, Edits, OptionError, option

A, B = "example.com/a", "example.com/b"


@dataclass(frozen=True)
class Use:
    mode: str = option("plain", "How it is used.")
    resource: str = field(default="", init=False)

    def named(self, resource: str) -> Self:
        if "{" in resource:
            raise OptionError("needs a name without a template", key="mode")
        made = replace(self)
        object.__setattr__(made, "resource", resource)
        return made


class Card(Backend):
    name = "card"
    ResourceOptions = Use
    takes_shares = True
    attributes: ClassVar = {
        "index": Attribute(int, "index", 0),
        "asked": Attribute(str, "modes that entries ask for", "plain"),
    }

    def discover(self) -> list[Device]:
        asked = ",".join(use.mode for use in self.context.entries if isinstance(use, Use))
        return [Device(f"c{n}", {"index": n, "asked": asked}) for n in range(2)]

    def allocate(self, request: AllocateRequest) -> Edits:
        parts = ",".join(f"{device.id}={request.shares.get(device.id, 1)}" for device in request.devices)
        return Edits(env={"SHARES": parts, "RESOURCE": request.options.resource})


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path, Card) as made:
        yield made


def entry(name: str, where: str, more: str = "") -> str:
    return f'- {{name: "{name}", backend: card, where: {{{where}}}{more}}}\n'


async def test_a_backend_learns_how_much_of_each_device_a_container_requests(node: Node) -> None:
    shared = entry(A, "index: 0", ", share: {replicas: 4}")
    node.configure("resources:\n" + shared + entry(B, "index: 1"))
    async with node.served({A: 4, B: 1}):
        assert (await node.container({A: 1})).envs["SHARES"] == "c0=1/4"
        assert (await node.container({A: 2})).envs["SHARES"] == "c0=1/2"
        assert (await node.container({A: 4})).envs["SHARES"] == "c0=1"
        assert (await node.container({B: 1})).envs["SHARES"] == "c1=1"


async def test_overrides_of_replicas_apply_to_their_devices(node: Node) -> None:
    share = ", share: {replicas: 2, overrides: [{where: {index: 1}, replicas: 8}]}"
    node.configure("resources:\n" + entry(A, "index: 0-1", share))
    async with node.served({A: 10}):
        everything = (await node.container({A: 10})).envs["SHARES"]
        assert sorted(everything.split(",")) == ["c0=1", "c1=1"]
        two = (await node.container({A: 3})).envs["SHARES"]
        assert all(part in {"c0=1/2", "c0=1", "c1=1/8", "c1=1/4", "c1=3/8"} for part in two.split(","))


async def test_containers_with_different_shares_of_a_device_get_different_cdi_names(
    node: Node,
) -> None:
    node.configure("resources:\n" + entry(A, "index: 0", ", inject: cdi, share: {replicas: 4}"))
    async with node.served({A: 4}):
        names = [
            [one.name for one in (await node.container({A: count}, keep=True)).cdi_devices]
            for count in (1, 2, 1)
        ]
        env = [[line for edits in node.specified(some) for line in edits["env"]] for some in names]
        assert ["SHARES=c0=1/4" in lines for lines in env] == [True, False, True]
        assert "SHARES=c0=1/2" in env[1]


async def test_a_running_backend_learns_the_entries_of_a_new_file(node: Node) -> None:
    node.configure("resources:\n" + entry(A, "index: 0, asked: one", ", mode: one"))
    async with node.served({A: 1}):
        node.configure(
            "resources:\n"
            + entry(A, 'index: 0, asked: "one,two"', ", mode: one")
            + entry(B, "index: 1", ", mode: two")
        )
        assert not await node.reload()
        await node.offers({A: 1, B: 1})


async def test_the_options_of_an_entry_have_its_name(node: Node) -> None:
    node.configure("resources:\n" + entry(A, "index: 0"))
    async with node.served({A: 1}):
        assert (await node.container({A: 1})).envs["RESOURCE"] == A
        node.configure("resources:\n" + entry("example.com/card-{index}", "index: 0", ", mode: fast"))
        (complaint,) = await node.reload()
        assert "resources[0].mode: needs a name without a template" in complaint
