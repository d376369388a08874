"""Claims that a backend forgets or misspells: no device node goes to two pods through two backends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import ClassVar

import pytest
from devhost_testing.node import Node

from devhost.allocation.allocations import Allocations
from devhost.allocation.claims import DeviceHeld
from devhost.backend import AllocateRequest, Backend, Device, DeviceNode, Edits, Mount, claim
from devhost.backend.model import ClaimHolder

PLAIN, OWNER, OTHER = "example.com/plain", "example.com/owner", "example.com/other"
FUSE = "/dev/fuse"


class Script:
    edits: Edits = Edits(nodes=(DeviceNode(FUSE),))
    claims: frozenset[str] = frozenset()
    count = 2


class Plain(Backend):
    """Hands out a node and claims what the script says."""

    name = "plain"
    script: ClassVar = Script()

    def discover(self) -> list[Device]:
        return [Device(f"p{n}", claims=self.script.claims) for n in range(self.script.count)]

    def allocate(self, request: AllocateRequest) -> Edits:
        return self.script.edits


class Other(Plain):
    name = "other"


class Owner(Backend):
    """Claims the node that it hands out."""

    name = "owner"

    def discover(self) -> list[Device]:
        return [Device("o0", claims=frozenset({claim.node(FUSE)}))]

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits(nodes=(DeviceNode(FUSE),))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    Plain.script = Other.script = Script()
    async with Node(tmp_path, Plain, Owner, Other) as made:
        (made.root / "dev").mkdir(parents=True)
        for name in ("fuse", "common", "null"):
            (made.root / "dev" / name).touch()
        (made.root / "dev/link").symlink_to("fuse")
        yield made


def entries(*names: str) -> str:
    lines = [f"- {{name: {name}, backend: {name.partition('/')[2]}}}\n" for name in names]
    return "resources:\n" + "".join(lines)


GIVING = [
    Edits(nodes=(DeviceNode(FUSE),)),
    Edits(mounts=(Mount(FUSE, FUSE),)),
    Edits(mounts=(Mount("/dev/link", "/dev/x"),)),
    Edits(nodes=(DeviceNode("/dev/link", FUSE),)),
]


@pytest.mark.parametrize("edits", GIVING, ids=["node", "mount", "mounted link", "link"])
async def test_a_node_in_use_is_not_given_by_a_backend_that_forgot_its_claim(
    node: Node, edits: Edits
) -> None:
    Plain.script.edits = edits
    node.configure(entries(PLAIN, OWNER))
    async with node.served({PLAIN: 2, OWNER: 1}):
        await node.container({OWNER: 1})
        with pytest.raises(Exception, match="node:/dev/fuse is in use") as caught:
            await node.container({PLAIN: 1})
        assert "o0 of backend owner" in str(caught.value)
        assert "backend plain gives it without a claim" in str(caught.value)


@pytest.mark.parametrize("edits", GIVING, ids=["node", "mount", "mounted link", "link"])
async def test_a_node_that_a_backend_gave_without_a_claim_is_offered_by_no_other(
    node: Node, edits: Edits
) -> None:
    Plain.script.edits = edits
    node.configure(entries(PLAIN, OWNER))
    async with node.served({PLAIN: 2, OWNER: 1}):
        await node.container({PLAIN: 1})
        await node.offers({OWNER: 0})
        await node.container({PLAIN: 1})  # its own devices may have it in common


async def test_two_backends_that_forgot_the_claim_never_give_the_node_to_two_pods(node: Node) -> None:
    node.configure(entries(PLAIN, OTHER))
    async with node.served({PLAIN: 2, OTHER: 2}):
        await node.container({PLAIN: 1})
        with pytest.raises(Exception, match="node:/dev/fuse is in use"):
            await node.container({OTHER: 1})


async def test_nodes_that_are_common_do_not_exclude_anyone(node: Node) -> None:
    Plain.script.edits = Edits(
        nodes=(DeviceNode("/dev/common", shared=True), DeviceNode("/dev/null")),
        mounts=(Mount("/dev/null", "/etc/masked"), Mount("/dev", "/host/dev")),
    )
    node.configure(entries(PLAIN, OTHER, OWNER))
    async with node.served({PLAIN: 2, OTHER: 2, OWNER: 1}):
        for name in (PLAIN, OTHER, OWNER, PLAIN, OTHER):
            await node.container({name: 1})


async def test_a_device_with_a_misspelled_claim_is_refused_with_the_way_to_write_it(node: Node) -> None:
    Plain.script.claims = frozenset({"nod:/dev/fuse"})
    node.configure(entries(PLAIN, OWNER))
    async with node.served({OWNER: 1}, only=True):
        refused = {one.device: one.reason for one in node.host.scanners["plain"].condition.refused}
        assert set(refused) == {"p0", "p1"}
        assert 'did you mean claim.node("/dev/fuse")?' in refused["p0"]


def test_a_resource_claim_is_refused_a_node_in_use_unless_its_containers_run_already() -> None:
    allocations = Allocations(lambda: 0.0)
    nodes = frozenset({claim.node(FUSE)})
    allocations.of(OWNER).allocated("owner", {"o0": [Device("o0", claims=nodes)]})
    wanted, holder = {("plain", "p0"): Device("p0")}, ClaimHolder("default", "claim", "uid")
    with pytest.raises(DeviceHeld, match="node:/dev/fuse is in use"):
        allocations.give(PLAIN, wanted, nodes, holder)
    allocations.give(PLAIN, wanted, nodes, holder, running=True)
