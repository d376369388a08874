"""`give` of an entry on a whole node: what is missing, what conflicts, and what counts as held."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from string import ascii_letters
from typing import ClassVar

import pytest
from devhost_testing.kubelet import UnexpectedAdmissionError, events
from devhost_testing.node import Node
from status_values import status

from devhost.backend import AllocateRequest, Attribute, Backend, Device, DeviceNode, Edits
from devhost.backend.claim import node as node_claim
from devhost.runtime.worker import MAX_ABANDONED

CARD, CTL, MORE = "example.com/card", "example.com/ctl", "example.com/more"


class Card(Backend):
    """Cards, each with a node ``dev/card<n>``; a card whose node has content also has a variable."""

    name = "card"
    attributes: ClassVar = {
        "serial": Attribute(str, "serial", "A"),
        "board": Attribute(str, "board", "b0"),
        "slot": Attribute(str, "slot, as text in the file slot", "A"),
    }

    def discover(self) -> list[Device]:
        paths = sorted((self.context.root / "dev").glob("card?"))
        slot = self.context.root / "slot"
        more = {"slot": slot.read_text()} if slot.exists() and "slot" in self.context.wanted else {}
        return [
            Device(
                path.name,
                {"serial": path.name[-1], "board": "b0" if path.name < "card2" else "b1", **more},
                claims=frozenset({node_claim(f"/dev/{path.name}")}),
            )
            for path in paths
        ]

    def allocate(self, request: AllocateRequest) -> Edits:
        text = [(self.context.root / "dev" / one.id).read_text() for one in request.devices]
        nodes = tuple(DeviceNode(f"/dev/{one.id}") for one in request.devices)
        return Edits(nodes, env={"MODE": "".join(text)} if any(text) else {})


class Function(Backend):
    """Functions without a node, such as network interfaces."""

    name = "function"

    def discover(self) -> list[Device]:
        return [Device("f0"), Device("f1")]

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits(env={"FUNCTIONS": ",".join(one.id for one in request.devices)})


class Control(Backend):
    """The control node of the cards as a device."""

    name = "control"

    def discover(self) -> list[Device]:
        there = (self.context.root / "dev" / "ctl").exists()
        return [Device("ctl", claims=frozenset({node_claim("/dev/ctl")}))] if there else []

    def allocate(self, request: AllocateRequest) -> Edits:
        return Edits((DeviceNode("/dev/ctl"),))


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with Node(tmp_path, Card, Function, Control) as made:
        (made.root / "dev").mkdir(parents=True)
        for name in ("card0", "card1", "ctl"):
            (made.root / "dev" / name).touch()
        yield made


def configure(node: Node, *entries: str) -> None:
    node.configure("resources:\n" + "".join(f"- {{{entry}}}\n" for entry in entries))


def card(give: str, more: str = "") -> str:
    return f"name: {CARD}, backend: card, give: {give}{more}"


async def refusal(node: Node, count: int = 1) -> str:
    with pytest.raises(UnexpectedAdmissionError) as refused:
        await node.container({CARD: count})
    return str(refused.value)


async def test_a_pod_is_refused_if_a_path_has_just_gone_and_devices_are_unhealthy_until_it_is_back(
    node: Node,
) -> None:
    kfd = node.root / "dev" / "kfd"
    kfd.touch()
    configure(node, card("{nodes: [{path: /dev/kfd}]}"))
    async with node.served({CARD: 2}):
        kfd.unlink()
        assert "/dev/kfd does not exist on the node" in await refusal(node)
        node.look()
        await node.offers({CARD: 0})
        kfd.touch()
        node.look()
        await node.offers({CARD: 2})
        assert "/dev/kfd" in {one.host_path for one in (await node.container({CARD: 2})).devices}


async def test_devices_whose_pods_would_be_refused_are_unhealthy_in_that_resource_only(node: Node) -> None:
    configure(
        node,
        card("{nodes: [{path: /dev/kfd}, {path: /dev/more, optional: true}], mounts: [{path: /opt/lib}]}"),
        f"name: {CTL}, backend: control",
    )
    async with node.served({CTL: 1}):
        await node.until(lambda: len(node.kubelet.devices(CARD)) == 2)
        assert not node.kubelet.healthy(CARD)
        (device, _) = status(node.host)["resources"][0]["devices"]
        assert device["reason"] == "/dev/kfd, /opt/lib do not exist on the node: give needs them"
        (node.root / "dev" / "kfd").touch()
        (node.root / "opt" / "lib").mkdir(parents=True)
        node.look()
        await node.offers({CARD: 2, CTL: 1})


async def test_a_path_on_a_file_system_that_hangs_concerns_only_the_entry_that_gives_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, exists = threading.Event(), os.path.exists

    def hanging(path: str) -> bool:
        return ("/net/" not in os.fspath(path) or answers.wait(600)) and exists(path)

    monkeypatch.setattr(os.path, "exists", hanging)
    every = [f"{{path: /net/{letter}" for letter in ascii_letters[:9]]
    optional = ", optional: true}, "
    configure(
        node,
        card(f"{{mounts: [{'}, '.join(every)}}}]}}", ", where: {serial: '0'}"),
        f"name: {MORE}, backend: card, give: {{mounts: [{optional.join(every)}{optional}]}}",
    )
    try:
        async with node.served({MORE: 1}):
            (node.root / "dev" / "card2").touch()
            node.look()
            await node.offers({MORE: 2})
            (device,) = status(node.host)["resources"][0]["devices"]
            silent = ", ".join(f"/net/{letter}" for letter in ascii_letters[:9])
            assert device["reason"] == f"the file system of {silent} does not answer: give needs them"
            for _ in range(MAX_ABANDONED + 1):
                started = await node.container({MORE: 1})
                assert started.devices and not started.mounts
            answers.set()
            for letter in ascii_letters[:9]:
                (node.root / "net" / letter).mkdir(parents=True)
            node.look()
            await node.offers({CARD: 1})
            assert len((await node.container({CARD: 1})).mounts) == 9
    finally:
        answers.set()


@pytest.mark.parametrize(
    ("give", "slot", "reason"),
    [
        (
            "{nodes: [{path: /dev/ctl, containerPath: '/dev/{slot}'}]}",
            "../y",
            "/dev/ctl would be at /dev/../y in the container, where the slash in its slot would lead to "
            "another directory",
        ),
        (
            "{mounts: [{path: /dev/ctl, containerPath: '/{slot}'}]}",
            ".",
            "/dev/ctl would be at /. in the container, which has no name at {slot}",
        ),
        (
            "{mounts: [{path: /dev/ctl, containerPath: '/x{slot}'}]}",
            "",
            "it has no slot, which containerPath /x{slot} of give needs",
        ),
        (
            "{cdiDevices: ['a.b/c={slot}']}",
            "y=",
            "a.b/c=y= in give.cdiDevices is not the name of a CDI device",
        ),
        ("{cdiDevices: ['a.b/c={slot}']}", "", "it has no slot, which a.b/c={slot} in give.cdiDevices needs"),
        (
            "{cdiDevices: ['a.b/c={slot}']}",
            'y"z',
            'a.b/c=y"z in give.cdiDevices is not the name of a CDI device',
        ),
        ("{env: {'A{slot}': x, A9: y}}", "9", "the variables A{slot} and A9 are both A9 (rename one)"),
    ],
)
async def test_devices_whose_facts_make_no_path_or_name_are_unhealthy_until_they_do(
    node: Node, give: str, slot: str, reason: str
) -> None:
    file = node.root / "slot"
    if slot:
        file.write_text(slot)
    configure(node, card(give))
    async with node.served():
        await node.until(lambda: len(node.kubelet.devices(CARD)) == 2)
        assert not node.kubelet.healthy(CARD)
        (device, _) = status(node.host)["resources"][0]["devices"]
        assert device["reason"] == reason
        file.write_text("7")
        node.look()
        await node.offers({CARD: 2})
        await node.container({CARD: 1})


async def test_an_edit_with_an_attribute_that_was_not_read_yet_makes_no_device_unhealthy(node: Node) -> None:
    (node.root / "slot").write_text("7")
    configure(node, card("{}"))
    async with node.served({CARD: 2}):
        before = node.kubelet.events.position
        configure(node, card("{mounts: [{path: /dev/ctl, containerPath: '/x{slot}'}]}"))
        assert not await node.reload()
        await node.until(lambda: all("slot" in one.attributes for one in node.devices("card").values()))
        started = await node.container({CARD: 1})
        assert [one.container_path for one in started.mounts] == ["/x7"]
        lists = node.kubelet.events.of(events.ListReceived, since=before)
        assert all(one.healthy for received in lists for one in received.devices)


async def test_an_edit_that_gives_more_is_checked_before_the_next_pod(node: Node) -> None:
    configure(node, card("{env: {A: b}}"))
    async with node.served({CARD: 2}):
        configure(node, card("{env: {A: b}, nodes: [{path: /dev/kfd}]}"))
        node.host.reload()
        await node.offers({CARD: 0})
        configure(node, card("{env: {A: b}, nodes: [{path: /dev/kfd, optional: true}]}"))
        node.host.reload()
        await node.offers({CARD: 2})


async def test_with_cdi_devices_are_unhealthy_until_a_path_exists(node: Node) -> None:
    configure(node, card("{mounts: [{path: /opt/lib}]}", ", inject: cdi"))
    async with node.served():
        await node.until(lambda: len(node.kubelet.devices(CARD)) == 2)
        assert not node.kubelet.healthy(CARD)
        (node.root / "opt" / "lib").mkdir(parents=True)
        node.look()
        await node.offers({CARD: 2})


async def test_what_is_optional_is_left_out_if_it_is_missing(node: Node) -> None:
    configure(
        node,
        card("{nodes: [{path: /dev/kfd, optional: true}], mounts: [{path: /opt, optional: true}]}"),
    )
    async with node.served({CARD: 2}):
        started = await node.container({CARD: 1})
        assert [one.host_path for one in started.devices] == ["/dev/card0"]
        assert not started.mounts


async def test_a_variable_that_the_backend_sets_sometimes_refuses_the_pod_then(node: Node) -> None:
    configure(node, card("{env: {MODE: slow}}"))
    async with node.served({CARD: 2}):
        assert (await node.container({CARD: 1})).envs["MODE"] == "slow"
        (node.root / "dev" / "card0").write_text("x")
        expected = f"{CARD}: the backend sets MODE, and so does give.env of the entry (remove it there)"
        assert expected in await refusal(node, 2)


@pytest.mark.parametrize("path", ["/dev/card0", "/dev//card0", "/dev/./card0"])
@pytest.mark.parametrize("kind", ["nodes", "mounts"])
async def test_another_thing_at_the_path_of_a_device_refuses_the_pod(
    node: Node, kind: str, path: str
) -> None:
    configure(node, card(f"{{{kind}: [{{path: /dev/ctl, containerPath: {path}}}]}}"))
    async with node.served({CARD: 2}):
        assert "are both to be /dev/card0 in the container" in await refusal(node, 2)


async def test_devices_are_unhealthy_if_two_variables_have_one_name(node: Node) -> None:
    give = "{env: {'{RESOURCE}': '{id}', EXAMPLE_COM_B0: x}}"
    configure(node, f"name: 'example.com/{{board}}', backend: card, give: {give}")
    async with node.served():
        await node.until(lambda: len(node.kubelet.devices("example.com/b0")) == 2)
        assert not node.kubelet.healthy("example.com/b0")
        (device, _) = status(node.host)["resources"][0]["devices"]
        expected = "the variables {RESOURCE} and EXAMPLE_COM_B0 are both EXAMPLE_COM_B0 (rename one)"
        assert device["reason"] == expected


async def test_two_variables_with_one_name_refuse_the_pod_if_only_its_number_makes_them_one(
    node: Node,
) -> None:
    (node.root / "dev" / "card0").rename(node.root / "dev" / "card-")
    configure(node, card("{env: {'CARD{index}': '{id}', 'CARD{serial}': x}}"))
    async with node.served({CARD: 2}):
        await node.container({CARD: 1})
        expected = "the variables CARD{index} and CARD{serial} are both CARD1 (rename one)"
        assert expected in await refusal(node, 2)


@pytest.mark.parametrize(("length", "times"), [(200_000, 1), (400, 500)])
async def test_devices_are_unhealthy_if_linux_would_not_take_a_variable_of_theirs(
    node: Node, length: int, times: int
) -> None:
    (node.root / "slot").write_text("x" * length)
    configure(node, card(f"{{env: {{SLOT: '{'{slot}' * times}'}}}}"))
    async with node.served():
        await node.until(lambda: len(node.kubelet.devices(CARD)) == 2)
        assert not node.kubelet.healthy(CARD)
        (device, _) = status(node.host)["resources"][0]["devices"]
        assert device["reason"] == "the variable SLOT has 200006 bytes, and Linux takes at most 131072"


async def test_a_pod_is_refused_with_a_reason_if_linux_would_not_take_a_variable_of_the_backend(
    node: Node,
) -> None:
    configure(node, f"name: {CARD}, backend: card")
    async with node.served({CARD: 2}):
        (node.root / "dev" / "card0").write_text("x" * 200_000)
        assert f"{CARD}: the variable MODE has 200006 bytes, and Linux takes" in await refusal(node, 2)


async def test_more_nodes_than_a_container_may_have_refuse_the_pod(node: Node) -> None:
    for letter in ascii_letters[:40]:
        (node.root / "dev" / f"card{letter}").touch()
    nodes = ", ".join(f"{{path: /dev/ctl, containerPath: '/x{n}/{{serial}}'}}" for n in range(25))
    configure(node, card(f"{{nodes: [{nodes}]}}"))
    async with node.served({CARD: 42}):
        assert len((await node.container({CARD: 39})).devices) == 26 * 39
        expected = f"{CARD}: with give, a container would get 1040 device nodes, more than 1024"
        assert expected in await refusal(node, 40)


@pytest.mark.parametrize("backend", ["card", "function"])
async def test_any_number_of_pods_hold_a_node_that_is_given(node: Node, backend: str) -> None:
    """A node such as /dev/kfd belongs to no device, also for a device that has no node."""
    configure(
        node,
        f"name: {CARD}, backend: {backend}, give: {{nodes: [{{path: /dev/ctl}}]}}",
        f"name: {CTL}, backend: control",
    )
    async with node.served({CARD: 2, CTL: 1}):
        for _ in range(2):
            started = await node.container({CARD: 1}, keep=True)
            assert "/dev/ctl" in {one.host_path for one in started.devices}
        node.look()
        started = await node.container({CTL: 1}, keep=True)
        assert [one.host_path for one in started.devices] == ["/dev/ctl"]
        assert status(node.host)["problems"] == []
        assert node.kubelet.allocatable() == {CARD: 2, CTL: 1}


async def variables(node: Node, count: int) -> dict[str, str]:
    started = await node.container({CARD: count})
    edits = node.specified([one.name for one in started.cdi_devices])
    return dict(started.envs) | dict(text.split("=", 1) for one in edits for text in one.get("env", ()))


@pytest.mark.parametrize("inject", ["direct", "cdi"])
async def test_a_unit_is_one_device(node: Node, inject: str) -> None:
    for name in ("card2", "card3"):
        (node.root / "dev" / name).touch()
    give = "{env: {'ID{index}': '{id}', 'SERIALS{index}': '{serial}', COUNT: '{count}'}}"
    configure(node, card(give, f", share: {{of: board}}, inject: {inject}"))
    both = {"ID0": "b0", "ID1": "b1", "SERIALS0": "0,1", "SERIALS1": "2,3", "COUNT": "2"}
    async with node.served({CARD: 2}):
        assert await variables(node, 1) == {"ID0": "b0", "SERIALS0": "0,1", "COUNT": "1"}
        assert await variables(node, 2) == both


@pytest.mark.parametrize("inject", ["direct", "cdi"])
async def test_partial_follows_the_number_of_devices(node: Node, inject: str) -> None:
    configure(node, card("{env: {SERIALS: {value: '{serial}', when: partial}}}", f", inject: {inject}"))

    async def serials(count: int) -> str | None:
        return (await variables(node, count)).get("SERIALS")

    async with node.served({CARD: 2}):
        assert await serials(1) in ("0", "1")
        assert await serials(2) is None
        (node.root / "dev" / "card2").touch()
        node.look()
        await node.offers({CARD: 3})
        assert len(str(await serials(2)).split(",")) == 2
        assert await serials(3) is None


async def test_an_edit_of_give_applies_to_new_containers(node: Node) -> None:
    configure(node, card("{env: {A: one}}"))
    async with node.served({CARD: 2}):
        await node.container({CARD: 1}, keep=True)
        configure(node, card("{env: {A: two}}"))
        assert not await node.reload()
        assert (await node.container({CARD: 1}, keep=True)).envs["A"] == "two"
        assert (await node.kubelet.start_container("pod-0", "main")).envs["A"] == "one"
