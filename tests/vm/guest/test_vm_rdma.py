"""The backend for RDMA, with RoCE and iWARP devices of the kernel itself."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from lab.kernel import run, settle, unload
from lab.links import devices, nodes
from lab.waiting import until

HCA = "rdma/hca"
MANAGER = "/dev/infiniband/rdma_cm"
ENTRY = {"name": HCA, "backend": "rdma", "where": {}, "whenEmpty": "register"}
CYCLES = 20
SHARED = {**ENTRY, "share": {"replicas": 3}}


@pytest.fixture(params=["with pyverbs", "without pyverbs"])
def verbs(request, node):
    """devhost finds pyverbs, or does not."""
    if request.param == "without pyverbs":
        node.hide_pyverbs()


@pytest.fixture
def card(links):
    """A network interface for RDMA devices."""
    return links.dummy("dummy0")


def given(allocation):
    """The host paths of the nodes that a container gets."""
    return {spec.host_path for spec in allocation.response.devices}


def verbs_open(node):
    """The nodes of RDMA devices that devhost has open."""
    return [path for path in node.open_files() if "infiniband" in path]


async def test_devices_appear_as_they_are_made_each_with_its_own_attributes(node, links, card):
    await node.serve(ENTRY)
    await node.shows(HCA, healthy=0)
    links.rxe("rxe0", card)
    await node.shows(HCA, healthy=1)
    links.siw("siw0", card)
    await node.shows(HCA, healthy=2)
    assert node.kubelet.healthy(HCA) == {"rxe0", "siw0"}

    found = {name: device.attributes for name, device in (await node.look()).items()}
    alike = {
        "linkLayer": "ethernet",
        "portState": "active",
        "physState": "link_up",
        "netDevs": (card,),
        "isVf": False,
        "hasIssm": False,
        "hasRdmaCm": True,
        "netnsMode": "shared",
    }
    own = {
        "rxe0": {"nodeType": "ca", "transport": "ib", "driver": "rdma_rxe", "hasUmad": True},
        "siw0": {"nodeType": "rnic", "transport": "iwarp", "driver": "siw", "hasUmad": False},
    }
    for name, expected in own.items():
        wanted = {**alike, **expected, "ibDevice": name, "ibDevices": (name,)}
        assert {key: found[name].get(key) for key in wanted} == wanted
        assert not {"pciBusID", "vendor", "numaNode"} & found[name].keys()


async def test_a_container_gets_the_nodes_of_its_one_device(node, links, card):
    links.rxe("rxe0", card)
    links.siw("siw0", card)
    await node.serve(SHARED)
    await node.shows(HCA, healthy=6)
    owned = {name: nodes(name) for name in ("rxe0", "siw0")}
    assert len(owned["rxe0"]) == 2 and len(owned["siw0"]) == 1
    seen = set()
    for number in range(6):
        allocation = await node.admit(f"pod{number}", HCA)
        device = allocation.device_ids[0].partition("::")[0]
        seen.add(device)
        assert given(allocation) == {*owned[device], MANAGER}
        assert allocation.response.envs["RDMA_DEVICES"] == device
    assert seen == owned.keys()


@pytest.mark.usefixtures("verbs")
async def test_a_link_that_goes_down_makes_its_device_unhealthy_until_it_is_up_again(node, links, card):
    """No uevent tells of that."""
    other = links.dummy("dummy1")
    links.rxe("rxe0", card)
    links.siw("siw0", other)
    await node.serve(ENTRY)
    await node.shows(HCA, healthy=2)
    for interface, device in ((card, "rxe0"), (other, "siw0")):
        links.down(interface)
        await node.shows(HCA, healthy=1, total=2)
        sick = await node.device(HCA, device)
        assert (sick["health"], "down" in sick["reason"]) == ("Unhealthy", True), sick
        links.up(interface)
        await node.shows(HCA, healthy=2)
        assert (await node.device(HCA, device))["reason"] == ""


@pytest.mark.usefixtures("verbs")
async def test_a_device_can_be_deleted_because_devhost_never_holds_it_open(node, links, card):
    """`rdma link delete` would wait for ever for a program that has the device open."""
    links.rxe("rxe0", card)
    await node.serve(ENTRY)
    await node.shows(HCA, healthy=1)
    assert verbs_open(node) == []
    links.delete("rxe0")
    await node.shows(HCA, healthy=0)
    assert devices() == set()


async def test_deleting_and_making_it_again_20_times_leaves_nothing_behind(node, links, card):
    await node.serve(SHARED)

    async def once(*, seen):
        links.rxe("rxe0", card)
        if seen:
            await node.shows(HCA, healthy=3)
        links.delete("rxe0")
        if seen:
            await node.shows(HCA, healthy=0)

    await once(seen=True)
    files, threads = node.open_files(), node.threads()
    sockets = set(node.kubelet.directory.iterdir())
    for number in range(CYCLES):
        await once(seen=number % 4 == 3)
    await until("no more files are open", lambda: len(node.open_files()) <= len(files), seen=node.open_files)
    assert verbs_open(node) == []
    assert node.threads() < threads + CYCLES  # gRPC has more or fewer; each time leaving one would be as many
    assert set(node.kubelet.directory.iterdir()) == sockets
    (resource,) = (await node.status())["resources"]
    assert (resource["capacity"], resource["devices"], resource["registrations"]) == (0, [], 1)

    links.rxe("rxe0", card)
    await node.shows(HCA, healthy=3)
    assert given(await node.admit("pod", HCA)) == {*nodes("rxe0"), MANAGER}


async def test_a_device_with_another_number_serves_by_its_new_node(node, links, card):
    links.rxe("rxe0", card)
    await node.serve(ENTRY)
    await node.shows(HCA, healthy=1)
    before = nodes("rxe0")
    links.delete("rxe0")
    links.siw("siw0", card)
    links.rxe("rxe0", card)
    await until("the nodes are there", lambda: len(nodes("rxe0")) == 2)
    await node.shows(HCA, healthy=2)
    assert nodes("rxe0") != before
    allocations = {one.device_ids: given(one) for one in [await node.admit(f"pod{n}", HCA) for n in (1, 2)]}
    assert allocations == {(name,): {*nodes(name), MANAGER} for name in ("rxe0", "siw0")}


async def test_without_the_connection_manager_a_device_is_unhealthy_with_the_reason(node, links, card):
    links.rxe("rxe0", card)
    await node.serve(ENTRY)
    await node.shows(HCA, healthy=1)
    unload("rdma_ucm")
    try:
        await node.shows(HCA, healthy=0, total=1)
        assert "rdma_ucm" in (await node.device(HCA, "rxe0"))["reason"]
    finally:
        run("modprobe", "rdma_ucm")
    settle()
    await node.shows(HCA, healthy=1)


async def test_a_device_that_is_moved_into_a_pod_stays_healthy_and_listed(node, links, card):
    links.make_movable()
    links.share_devices(False)
    links.rxe("rxe0", card)
    await node.serve(ENTRY)
    await node.shows(HCA, healthy=1)
    assert (await node.look())["rxe0"].attributes["netnsMode"] == "exclusive"
    assert (await node.admit("pod", HCA)).device_ids == ("rxe0",)

    links.move("rxe0", links.namespace("pod"))
    assert devices() == set()
    links.siw("siw0", card)  # once this one is listed, devhost has looked after the move
    await node.shows(HCA, healthy=2)
    assert node.kubelet.healthy(HCA) == {"rxe0", "siw0"}

    links.remove_namespace("pod")
    await until("the kernel has given it back", lambda: "rxe0" in devices())
    links.delete("siw0")
    await node.shows(HCA, healthy=1)
    node.kubelet.release("pod")
    assert given(await node.admit("next", HCA)) == {*nodes("rxe0"), MANAGER}


async def test_a_device_that_is_deleted_while_it_is_in_a_pod_is_gone(node, links, card):
    links.make_movable()
    links.share_devices(False)
    links.rxe("rxe0", card)
    await node.serve(ENTRY)
    await node.shows(HCA, healthy=1)
    pod = links.namespace("pod")
    links.move("rxe0", pod)
    run("ip", "netns", "exec", pod, "rdma", "link", "delete", "rxe0")
    await node.shows(HCA, healthy=0)


async def test_a_recorded_tree_shows_what_the_machine_has(node, links, card, tmp_path):
    other = links.dummy("dummy1")
    links.rxe("rxe0", card)
    links.siw("siw0", other)
    links.down(other)
    node.write(ENTRY)
    settle()
    tree = tmp_path / "tree"
    run(sys.executable, "-m", "devhost", "record", str(tree), "--config", str(node.config))
    machine, recorded = await node.look(), await node.look(tree)
    assert machine.keys() == {"rxe0", "siw0"}
    for name, device in machine.items():
        expected = {key: value for key, value in device.attributes.items() if key != "netnsMode"}
        assert recorded[name].attributes == expected  # of the mode only the running kernel tells
        assert recorded[name].health == device.health
        assert recorded[name].claims == device.claims


def test_the_machine_has_pyverbs():
    """Without it the tests above would not say what they seem to say."""
    assert list(Path("/usr/lib/python3/dist-packages/pyverbs").glob("device.*.so"))
