"""`share: {of: <attribute>}` over real sockets: a pod gets all devices of a unit, or none of them."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from kit.allocator import allocated
from status_values import status

from devhost.allocation.allocator import UnhealthyDevice
from devhost.allocation.cdi.injector import WRITING
from devhost.backend import Device
from devhost.backend.model import unhealthy
from devhost.host.shown.status import captured
from devhost.planning.claims import IN_USE
from devhost.telemetry.page.devices import Counts, counted

TOY = "example.com/toy"
LINE = "name: example.com/toy, backend: toy"
UNITS = f"{LINE}, share: {{of: model, members: 2}}"


def half(name: str, chip: str, **more: object) -> Device:
    claims = frozenset({f"usb:{name}"})
    return Device(name, {"model": chip}, claims, numa_nodes=(int(name[-1]),), **more)  # type: ignore[arg-type]


CHIPS = [half(f"{chip}-{n}", chip) for chip in ("chip0", "chip1") for n in range(2)]


@pytest.fixture
def chips(rig):
    """Two chips of two functions each."""
    rig.scripts["toy"].devices = list(CHIPS)
    rig.scripts["toy"].nodes = {"chip0-0": "/dev/null", "chip0-1": "/dev/zero"}
    rig.write(UNITS)
    return rig


async def given(kubelet, pod: str, count: int = 1) -> str:
    return (await kubelet.admit(pod, "main", TOY, count)).response.envs["DEVICES"]


def reason(host, token: str) -> str:
    """Why a token is Unhealthy, as the status shows it."""
    (resource,) = status(host)["resources"]
    return {one["id"]: one["reason"] for one in resource["devices"]}.get(token, "not listed")


def shown(host) -> list[tuple[str, str]]:
    """The problems with devices and entries."""
    found = [one for one in status(host)["problems"] if one["kind"] in ("device", "entry")]
    return [(one["subject"], one["reason"]) for one in found]


async def test_a_pod_gets_every_member_of_a_unit_in_one_answer(chips, kubelet):
    async with chips.running():
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"chip0", "chip1"})
        assert {one.numa_nodes for one in kubelet.devices(TOY)} == {(0, 1)}
        admitted = await kubelet.admit("one", "main", TOY, 1)
        (token,) = admitted.device_ids
        assert admitted.response.envs["DEVICES"] == f"{token}-0,{token}-1"
        paths = {node.host_path for node in admitted.response.devices}
        assert paths == ({"/dev/null", "/dev/zero"} if token == "chip0" else {"/dev/null"})
        assert len((await given(kubelet, "two")).split(",")) == 2
        assert not kubelet.healthy(TOY) - kubelet.in_use(TOY)


async def test_a_container_that_requests_all_units_gets_every_device(chips, kubelet):
    async with chips.running(allocatable={TOY: 2}):
        assert sorted((await given(kubelet, "one", 2)).split(",")) == [one.id for one in CHIPS]


async def test_a_unit_is_unhealthy_until_all_of_its_members_have_arrived(chips, kubelet):
    chips.scripts["toy"].devices = CHIPS[:3]
    async with chips.running() as host:
        await kubelet.wait_for(lambda: {one.id for one in kubelet.devices(TOY)} == {"chip0", "chip1"})
        assert kubelet.healthy(TOY) == {"chip0"}
        assert reason(host, "chip1") == "1 of 2 members"
        assert shown(host) == [(f"{TOY} chip1-0", "1 of 2 members")]
        chips.change("toy", CHIPS)
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"chip0", "chip1"})
        assert not shown(host)
        chips.change("toy", [*CHIPS, half("chip1-2", "chip1")])
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"chip0"})
        assert reason(host, "chip1") == "3 members, expected 2"


async def test_one_unhealthy_member_makes_the_unit_unhealthy_and_is_named(chips, kubelet):
    async with chips.running(allocatable={TOY: 2}) as host:
        chips.change("toy", [replace(CHIPS[0], health=unhealthy("it is hot")), *CHIPS[1:]])
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"chip1"})
        assert reason(host, "chip0") == "chip0-0: it is hot"
        (resource,) = status(host)["resources"]
        assert [(m["device"], m["reason"]) for m in resource["together"] if m["reason"]] == [
            ("chip0-0", "it is hot")
        ]
        with pytest.raises(UnhealthyDevice, match="chip0-0: it is hot"):
            await allocated(host.services[TOY].allocator, ["chip0"])


async def test_a_pod_is_refused_if_one_member_lacks_its_node(chips, kubelet):
    chips.scripts["toy"].nodes = {"chip0-1": "/dev/none", "chip1-1": "/dev/none"}
    async with chips.running(allocatable={TOY: 2}) as host:
        with pytest.raises(Exception, match="/dev/none does not exist on the node"):
            await given(kubelet, "one", 2)
        await kubelet.wait_for(lambda: not kubelet.healthy(TOY))
        assert reason(host, "chip0").startswith("chip0-1: /dev/none does not exist")


async def test_a_held_unit_that_loses_a_member_is_unhealthy_until_it_is_back(chips, kubelet):
    async with chips.running(allocatable={TOY: 2}) as host:
        held = (await kubelet.admit("pod", "main", TOY, 1)).device_ids[0]
        chips.change("toy", [one for one in CHIPS if one.id != f"{held}-1"])
        await chips.until(lambda: reason(host, held) == "1 of 2 members")
        chips.change("toy", CHIPS)
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"chip0", "chip1"})


async def test_a_member_that_a_pod_holds_is_in_no_other_unit_until_that_pod_ends(chips, kubelet):
    async with chips.running(f"{LINE}, share: {{of: model}}", allocatable={TOY: 2}) as host:
        held = (await kubelet.admit("pod", "main", TOY, 1)).device_ids[0]
        other = ({"chip0", "chip1"} - {held}).pop()
        moved = [half(one.id, other) if one.id == f"{held}-1" else one for one in CHIPS]
        chips.change("toy", moved)
        await kubelet.wait_for(lambda: other not in kubelet.healthy(TOY))
        assert f"as {held}, from before it was shared in this way" in reason(host, other)
        await chips.until(lambda: host.allocations.of(TOY).leases.holder(held))
        kubelet.release("pod")
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"chip0", "chip1"})


async def test_an_edit_from_single_devices_to_units_waits_for_those_that_pods_hold(chips, kubelet):
    async with chips.running(LINE, allocatable={TOY: 4}) as host:
        held = (await kubelet.admit("old", "main", TOY, 1)).device_ids[0]
        chip = held.partition("-")[0]
        chips.write(UNITS)
        await kubelet.wait_for(lambda: {one.id for one in kubelet.devices(TOY)} == {"chip0", "chip1", held})
        assert kubelet.healthy(TOY) == {"chip0", "chip1"} - {chip}
        assert f"as {held}, from before it was shared in this way" in reason(host, chip)
        await chips.until(lambda: host.allocations.of(TOY).leases.holder(held))
        kubelet.release("old")
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"chip0", "chip1"})
        unit = (await kubelet.admit("new", "main", TOY, 1)).device_ids[0]
        chips.write(LINE)
        await kubelet.wait_for(lambda: {one.id for one in CHIPS} <= {one.id for one in kubelet.devices(TOY)})
        assert kubelet.healthy(TOY) == {one.id for one in CHIPS if not one.id.startswith(unit)}
        assert host.services[TOY].registration.condition.registrations == 1


async def test_a_unit_that_a_pod_holds_goes_to_no_other_entry_after_a_restart(chips, kubelet):
    async with chips.running(allocatable={TOY: 2}):
        held = (await kubelet.admit("pod", "main", TOY, 1)).device_ids[0]
    async with chips.running("name: example.com/single, backend: toy, where: {model: chip*}", UNITS) as host:
        await kubelet.wait_for(lambda: kubelet.healthy("example.com/single"))
        members = {f"{held}-0", f"{held}-1"}
        assert kubelet.healthy("example.com/single") == {one.id for one in CHIPS} - members
        assert {one.device.id for one in host.allocations.held()} == members


async def test_a_pod_gets_the_members_of_a_unit_by_cdi(rig, kubelet, specs):
    rig.scripts["toy"].devices = [half("d0", "chip0"), half("d1", "chip0")]
    async with rig.running(f"{UNITS}, inject: cdi"):
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"chip0"})
        response = (await kubelet.admit("pod", "main", TOY, 1)).response
        assert [device.name.partition("=")[2] for device in response.cdi_devices] == ["d0", "d1"]


async def test_a_unit_is_unhealthy_until_the_specification_of_every_member_is_written(rig, kubelet, specs):
    late = threading.Event()
    rig.scripts["toy"].on_allocate = lambda devices: any(one.id == "d1" for one in devices) and late.wait(60)
    rig.scripts["toy"].devices = [half("d0", "chip0")]
    async with rig.running(f"{UNITS}, inject: cdi") as host:
        try:
            await kubelet.wait_for(lambda: kubelet.devices(TOY))
            assert reason(host, "chip0") == "1 of 2 members"
            rig.change("toy", [half("d0", "chip0"), half("d1", "chip0")])
            await rig.until(lambda: reason(host, "chip0") != "1 of 2 members")
            assert reason(host, "chip0") == f"d1: {WRITING}"
        finally:
            late.set()
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"chip0"})


async def test_a_unit_is_unhealthy_while_another_pod_has_the_iommu_group_of_a_member(chips, kubelet):
    def in_group(device: Device) -> Device:
        return replace(device, claims=device.claims | {"iommu:10"})

    chips.scripts["toy"].devices = [in_group(CHIPS[0]), *CHIPS[1:]]
    chips.scripts["other"].devices = [in_group(Device("d0", {"model": "x"}))]
    chips.write(UNITS, "name: example.com/other, backend: other")
    async with chips.running(allocatable={TOY: 2, "example.com/other": 1}) as host:
        await kubelet.admit("pod", "main", "example.com/other", 1)
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"chip1"})
        found = {one["name"]: one["devices"] for one in status(host)["resources"]}
        assert [one["reason"] for one in found[TOY]] == [IN_USE, ""]


async def test_a_unit_is_shared_as_one_device(chips, kubelet):
    async with chips.running(f"{LINE}, share: {{of: model, replicas: 2, maxPerContainer: 1}}"):
        tokens = {"chip0::0", "chip0::1", "chip1::0", "chip1::1"}
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == tokens)
        got = [await given(kubelet, pod) for pod in ("one", "two", "three", "four")]
        assert sorted(got) == ["chip0-0,chip0-1"] * 2 + ["chip1-0,chip1-1"] * 2


async def test_a_unit_is_unhealthy_while_a_member_does_not_meet_the_condition_of_its_entry(chips, kubelet):
    wrong = replace(CHIPS[3], attributes={"model": "chip1", "driver": "other"})
    chips.scripts["toy"].devices = [
        *(replace(one, attributes={**one.attributes, "driver": "toy"}) for one in CHIPS[:3]),
        wrong,
    ]
    async with chips.running(f"{UNITS}, healthyWhile: {{driver: toy}}") as host:
        await kubelet.wait_for(lambda: kubelet.healthy(TOY) == {"chip0"})
        assert reason(host, "chip1").startswith("chip1-1: driver is ")


async def test_the_page_counts_units(chips, kubelet):
    async with chips.running(allocatable={TOY: 2}) as host:
        await kubelet.admit("pod", "main", TOY, 1)
        (resource,) = captured(host)().resources
        assert counted(resource) == Counts(2, 2, 1)


async def test_entries_count_units(chips, kubelet):
    async with chips.running(f"{UNITS}, expect: 2", allocatable={TOY: 2}) as host:
        assert not shown(host)
        assert [entry["devices"] for entry in status(host)["entries"]] == [2]
