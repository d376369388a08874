"""`give` of an entry: a container has the same by the device plugin, by CDI and by a claim."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kit.dra import DraNode

from devhost.backend import AllocateRequest, Attribute, Backend, Device, DeviceNode, Edits
from devhost.backend.claim import node as node_claim

GIVE = (
    "give: {nodes: [{path: /dev/ctl, permissions: r}, {path: /dev/absent, optional: true},"
    ' {path: /dev/log, containerPath: "/dev/log{slot}"}], mounts: [{path: /opt/lib, readOnly: false}],'
    ' env: {"CARD{index}": "{slot}", CARDS: "{slot}", COUNT: "{count}", "OF_{RESOURCE}": "{model}",'
    ' SOME: {value: "{slot}", when: partial}}, cdiDevices: ["vendor.com/net=all"]}'
)


class Npu(Backend):
    """Three cards of each model, with a node each."""

    name = "npu"
    attributes: ClassVar = {"model": Attribute(str, "model", "a"), "slot": Attribute(str, "slot", "s0")}

    def discover(self) -> list[Device]:
        return [
            Device(
                f"{model}{n}",
                {"model": model, "slot": f"s{n}"},
                claims=frozenset({node_claim(f"/dev/{model}{n}")}),
            )
            for model in ("direct", "cdi", "claim")
            for n in range(3)
        ]

    def allocate(self, request: AllocateRequest) -> Edits:
        slots = [str(one.attributes["slot"]) for one in request.devices]
        nodes = [
            DeviceNode(f"/dev/{one.id}", f"/dev/card-{slot}")
            for one, slot in zip(request.devices, slots, strict=True)
        ]
        return Edits(tuple(nodes), env={"OWN": "yes"})


@pytest.fixture
def place() -> Iterator[Path]:
    # tmp_path is too long for a socket; a thread of devhost may still write
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
async def node(place: Path) -> AsyncIterator[DraNode]:
    made = DraNode(place, kind=Npu)
    root = made.node.root
    for path in ("dev/ctl", "dev/log", "opt/lib", *(f"dev/{device.id}" for device in Npu.discover(None))):  # type: ignore[arg-type]
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    entry = "{{name: example.com/{0}, backend: npu, where: {{model: {0}}}, {1}, {2}}}"
    made.configure(
        entry.format("direct", "inject: direct", GIVE),
        entry.format("cdi", "inject: cdi", GIVE),
        entry.format("claim", "serve: dra", GIVE),
    )
    async with made, made.node.served():
        await made.node.offers({"example.com/direct": 3, "example.com/cdi": 3})
        await made.node.until(lambda: len(made.published().get("example.com/claim", ())) == 3)
        yield made


def described(edits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a container has after a runtime applied edits of a specification."""
    found: dict[str, Any] = {"env": {}, "nodes": {}, "mounts": {}}
    for one in edits:
        found["env"] |= dict(text.split("=", 1) for text in one.get("env", ()))
        for device in one.get("deviceNodes", ()):
            found["nodes"][device["path"]] = device.get("hostPath", device["path"]), device["permissions"]
        for mount in one.get("mounts", ()):
            found["mounts"][mount["containerPath"]] = mount["hostPath"], "ro" in mount["options"]
    return found


async def by_plugin(node: DraNode, way: str, count: int) -> dict[str, Any]:
    answer = await node.node.container({f"example.com/{way}": count}, keep=True)
    names = [one.name for one in answer.cdi_devices]
    assert names.pop() == "vendor.com/net=all"
    found = described(node.node.specified(names))
    found["env"] |= dict(answer.envs)
    found["nodes"] |= {one.container_path: (one.host_path, one.permissions) for one in answer.devices}
    found["mounts"] |= {one.container_path: (one.host_path, one.read_only) for one in answer.mounts}
    return found


async def by_claim(node: DraNode, count: int) -> dict[str, Any]:
    cards = sorted(node.published()["example.com/claim"])[:count]
    claim = node.allocate("one", *map(node.name_of, cards))
    answer = (await node.prepare(claim))[claim.uid]
    assert not answer.error
    names = [name for device in answer.devices for name in device.cdi_device_ids]
    assert names.count("vendor.com/net=all") == 1
    found = described(node.node.specified([name for name in names if name != "vendor.com/net=all"]))
    found["env"].pop("DEVHOST", None)  # of a name that gives nothing else
    return found


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_a_container_has_the_same_directly_by_cdi_and_by_a_claim(node: DraNode, count: int) -> None:
    slots = [f"s{n}" for n in range(count)]
    for way in ("direct", "cdi", "claim"):
        found = await (by_claim(node, count) if way == "claim" else by_plugin(node, way, count))
        some = {} if count == 3 else {"SOME": ",".join(slots)}
        assert found == {
            "env": {
                "OWN": "yes",
                "CARDS": ",".join(slots),
                "COUNT": str(count),
                f"OF_EXAMPLE_COM_{way.upper()}": way,
            }
            | {f"CARD{n}": slot for n, slot in enumerate(slots)}
            | some,
            "nodes": {f"/dev/card-{slot}": (f"/dev/{way}{slot[1:]}", "rw") for slot in slots}
            | {f"/dev/log{slot}": ("/dev/log", "rw") for slot in slots}
            | {"/dev/ctl": ("/dev/ctl", "r")},
            "mounts": {"/opt/lib": ("/opt/lib", False)},
        }


async def test_a_request_never_has_two_values_of_a_variable_that_is_given(node: DraNode) -> None:
    """Of two CDI devices that set a variable, the last one would win."""

    def entry(model: str, value: str) -> str:
        give = f"give: {{env: {{A: '{value}'}}}}"
        return f"{{name: example.com/{model}, backend: npu, where: {{model: {model}}}, serve: dra, {give}}}"

    node.configure(entry("cdi", "one"), entry("claim", "{slot}"))
    assert not await node.reload()
    await node.until(lambda: {"example.com/cdi", "example.com/claim"} <= node.published().keys())

    async def prepared(name: str, *cards: str) -> str:
        claim = node.allocate(name, *map(node.name_of, cards))
        return str((await node.prepare(claim))[claim.uid].error)

    both = "example.com/cdi and example.com/claim give containers of one request different values of A"
    assert f"{both} (give it in one entry, or make two requests)" in await prepared("both", "cdi0", "claim0")
    node.configure(entry("cdi", "s1"), entry("claim", "{slot}"))
    assert not await node.reload()
    assert await prepared("same", "cdi1", "claim1") == ""
    assert await prepared("one", "cdi2") == ""
