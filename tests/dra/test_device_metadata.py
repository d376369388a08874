"""What containers can read about the devices of their claims."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import kubevirt_reader
import pytest
from devhost_testing import runtime
from kit.claims import DRIVER, POOL, RESOURCE, Scene, result, uid
from kit.dra import Cards, DraNode
from test_refresher import Node

from devhost.allocation.cdi.claim_files import ClaimFiles
from devhost.allocation.claims import ClaimedDevice
from devhost.backend import Attribute, Device, claim
from devhost.backend.model import ClaimHolder
from devhost.dra.aliases import Aliased
from devhost.dra.slices import Accepted, Offered, Pool

HOUR = 3600.0


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    made = await Scene(tmp_path).start()
    made.preparer.metadata = True
    card(made, "a", "0000:3b:00.0")
    yield made
    made.close()


def card(scene: Scene, name: str, address: str, **attributes: str) -> None:
    """Makes a card a PCI function, with these attributes."""
    device = Device(name, attributes, claims=frozenset({claim.pci(address)}))
    found = replace(scene.resources.offered[name], device=device)
    scene.resources.offered[name] = found
    scene.scanner.devices = {one: found.device for one, found in scene.resources.offered.items()}


def directory(scene: Scene) -> Path:
    return scene.place / "plugins" / DRIVER / "dra-device-metadata"


def left(scene: Scene) -> list[str]:
    """The metadata files on the host, hidden ones too."""
    return sorted(one.name for one in directory(scene).iterdir()) if directory(scene).exists() else []


def mounts(scene: Scene, devices: Sequence[ClaimedDevice]) -> dict[str, Path]:
    """The metadata files of a container with these devices, by their paths in it."""
    names = [name for one in devices for name in one.cdi_ids]
    found = runtime.by_cdi(scene.place / "cdi", names).mounts
    assert all(read_only for _, read_only in found.values())
    return {path: Path(host) for path, (host, _) in found.items()}


def content(scene: Scene, ref: ClaimHolder, request: str) -> dict[str, Any]:
    """What the file of a request says in the newest version."""
    text = (directory(scene) / f"devhost-dra_{ref.uid}_{request}.json").read_text()
    newest, *older = kubevirt_reader.objects(text)
    assert newest.pop("apiVersion") == "metadata.resource.k8s.io/v1beta1"
    assert [one.pop("apiVersion") for one in older] == ["metadata.resource.k8s.io/v1alpha1"]
    assert older == [newest]
    return newest


@pytest.mark.conformance(119)
async def test_kubevirt_finds_the_address_of_a_passed_through_device(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    found = mounts(scene, await scene.devices(ref))
    assert kubevirt_reader.address(found, "resourceclaims", "claim-1", "gpu") == "0000:3b:00.0"


@pytest.mark.conformance(119)
async def test_kubevirt_finds_the_uuid_of_a_mediated_device_in_the_claim_of_a_template(scene: Scene) -> None:
    card(scene, "a", "0000:3b:00.0", mdevUUID="83b8f4f2-509f-382f-3c1e-e6bfe0fa1001")
    ref = scene.claim(1, result("gpu", "a"), name="pod-gpu-x7k2p", pod_claim="gpu")
    found = mounts(scene, await scene.devices(ref))
    read = kubevirt_reader.address(found, "resourceclaimtemplates", "gpu", "gpu", kubevirt_reader.MDEV)
    assert read == "83b8f4f2-509f-382f-3c1e-e6bfe0fa1001"


async def test_a_file_has_what_the_slice_has(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"), name="pod-gpu-x7k2p", pod_claim="gpu")
    await scene.devices(ref)
    device = scene.resources.offered["a"].device
    ((slice,), _) = Pool(DRIVER, "node-1", RESOURCE, "cards").slices([Offered(device, device.health)])
    attributes = slice.devices[0]["attributes"]
    assert content(scene, ref, "gpu") == {
        "kind": "DeviceMetadata",
        "metadata": {"name": ref.name, "namespace": "team", "uid": ref.uid, "generation": 1},
        "podClaimName": "gpu",
        "requests": [
            {
                "name": "gpu",
                "devices": [{"driver": DRIVER, "pool": POOL, "name": "a", "attributes": attributes}],
            }
        ],
    }
    (path,) = directory(scene).iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


MANY: dict[str, str | int] = {f"a{number}": number for number in range(40)}
CAPACITY = (("memory", "80Gi"), ("cores", "8"))


@pytest.mark.conformance(119)
@pytest.mark.parametrize("replicas", [1, 4])
@pytest.mark.parametrize("only", [False, True])
async def test_a_file_has_the_names_that_the_slice_has(scene: Scene, replicas: int, only: bool) -> None:
    names = Aliased((("type", "gpu"), ("ports", ("a", "b")), ("id", "x")), CAPACITY, only)
    found = replace(
        scene.resources.offered["a"],
        device=Device("a", MANY),
        replicas=replicas,
        aliased=names,
        driver=DRIVER,
    )
    scene.resources.offered["a"] = found
    ref = scene.claim(1, result("gpu", "a"))
    await scene.devices(ref)
    offered = Offered(found.device, found.health, replicas, names)
    ((slice,), _) = Pool(DRIVER, "node-1", RESOURCE, "cards").slices([offered])
    published = json.loads(json.dumps(slice.devices[0]["attributes"]))
    ((device,),) = [one["devices"] for one in content(scene, ref, "gpu")["requests"]]
    assert published["type"] == {"string": "gpu"} and device["attributes"] == published


async def test_a_claim_without_metadata_has_no_file_and_no_word_of_it(scene: Scene) -> None:
    await scene.devices(scene.claim(1, result("gpu", "a"), pod_claim="gpu"))
    scene.preparer.metadata = False
    ref = scene.claim(2, result("gpu", "b"), pod_claim="gpu")
    found = mounts(scene, await scene.devices(ref))
    assert found == {} and "metadata" not in scene.file(ref).read_text()
    assert [name for name in left(scene) if ref.uid in name] == []
    scene.preparer.metadata = True
    assert mounts(scene, await scene.devices(ref)) == {}  # it stays as it was prepared


@pytest.mark.parametrize("name", ["../../../etc", "a/b", "A", "-", "x" * 64])
async def test_a_name_of_a_pod_that_is_none_does_not_become_a_path(scene: Scene, name: str) -> None:
    ref = scene.claim(1, result("gpu", "a"), pod_claim=name)
    assert list(mounts(scene, await scene.devices(ref))) == [
        f"{kubevirt_reader.BASE}/resourceclaims/claim-1/gpu/{DRIVER}-metadata.json"
    ]


@pytest.mark.conformance(119)
async def test_each_request_has_a_file_that_only_its_containers_get(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"), result("nic", "b"), result("gpu", "c"))
    devices = await scene.devices(ref)
    assert len(left(scene)) == 2
    only = mounts(scene, [one for one in devices if one.request == "nic"])
    assert [path.split("/")[-2] for path in only] == ["nic"]
    assert [path.split("/")[-2] for path in mounts(scene, devices)] == ["gpu", "nic"]
    (request,) = content(scene, ref, "gpu")["requests"]
    assert [one["name"] for one in request["devices"]] == ["a", "c"]


async def test_an_alternative_of_a_request_is_named_in_its_file_and_not_in_the_path(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu/small", "a"))
    (path,) = mounts(scene, await scene.devices(ref))
    assert path.endswith(f"/claim-1/gpu/{DRIVER}-metadata.json")
    assert [one["name"] for one in content(scene, ref, "gpu")["requests"]] == ["gpu/small"]


async def test_shares_and_admin_access_are_described_like_other_devices(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a", shareID="s-1"), result("all", "a", adminAccess=True))
    await scene.devices(ref)
    for request in ("gpu", "all"):
        ((device,),) = [one["devices"] for one in content(scene, ref, request)["requests"]]
        assert device["name"] == "a" and "id" in device["attributes"]


@pytest.mark.conformance(120)
async def test_the_files_end_with_the_claim_after_a_restart_as_well(scene: Scene) -> None:
    ref, other = scene.claim(1, result("gpu", "a")), scene.claim(2, result("gpu", "b"))
    await scene.prepare(ref, other)
    scene.restart()
    await scene.files.read_all()
    assert await scene.unprepare(ref) == [""]
    assert left(scene) == [f"devhost-dra_{other.uid}_gpu.json"]
    assert await scene.unprepare(other) == [""]
    assert left(scene) == scene.left == []


@pytest.mark.conformance(120)
@pytest.mark.parametrize("end", ["released", "prepared"])
async def test_a_crash_between_the_two_files_leaves_nothing(scene: Scene, end: str) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    await scene.devices(ref)
    scene.file(ref).unlink()
    scene.restart()
    assert await scene.files.read_all() == []
    assert len(left(scene)) == 1  # another process may be about to write the claim's file
    scene.preparer.metadata = True
    if end == "prepared":
        await scene.devices(ref)
        assert content(scene, ref, "gpu")["metadata"]["generation"] == 1
    assert await scene.unprepare(ref) == [""]
    assert left(scene) == scene.left == []


@pytest.mark.conformance(120)
async def test_old_files_without_a_claim_are_removed_at_the_start(scene: Scene) -> None:
    ref, other = scene.claim(1, result("gpu", "a")), scene.claim(2, result("gpu", "b"))
    await scene.prepare(ref, other)
    newer = scene.file(other).with_name(f"devhost-dra_{uid(3)}.json")
    newer.write_text('{"of": "another version"}')
    (directory(scene) / f"devhost-dra_{uid(3)}_gpu.json").write_text("{}")
    foreign = directory(scene) / "another_program.json"
    foreign.write_text("{}")
    for file in directory(scene).iterdir():
        os.utime(file, (file.stat().st_atime, file.stat().st_mtime - HOUR))
    scene.file(ref).unlink()
    scene.restart()
    assert [one.claim.uid for one in await scene.files.read_all()] == [other.uid]
    kept = [f"devhost-dra_{one}_gpu.json" for one in (other.uid, uid(3))]
    assert left(scene) == [foreign.name, *kept]


async def test_nothing_is_prepared_if_metadata_cannot_be_written(scene: Scene) -> None:
    directory(scene).parent.mkdir(parents=True)
    directory(scene).write_text("")
    ref = scene.claim(1, result("gpu", "a"))
    error = await scene.error(ref)
    assert error.startswith(f"cannot write {directory(scene)}") and "--plugins-dir" in error
    assert scene.left == [] and scene.held == []
    directory(scene).unlink()
    assert await scene.devices(ref)


async def test_no_metadata_is_left_if_the_file_of_the_claim_cannot_be_written(scene: Scene) -> None:
    (scene.place / "cdi").write_text("")
    assert "cannot write" in await scene.error(scene.claim(1, result("gpu", "a")))
    assert left(scene) == [] and scene.held == []


async def test_a_claim_of_an_earlier_boot_gets_new_files(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    await scene.devices(ref)
    scene.boot = "boot-2"
    scene.restart()
    assert await scene.files.read_all() == []
    scene.preparer.metadata = True
    assert mounts(scene, await scene.devices(ref))
    assert content(scene, ref, "gpu")["requests"]


async def test_a_record_without_metadata_is_read_by_files_that_have_none(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    devices = await scene.devices(ref)
    files = ClaimFiles(scene.place / "cdi", boot_id=scene.place / "boot_id")
    (record,) = await files.read_all()
    assert record.devices == tuple(devices) and record.metadata == "resourceclaims/claim-1"
    files.close()


async def test_removed_files_are_written_again_at_the_next_prepare(scene: Scene) -> None:
    ref = scene.claim(1, result("gpu", "a"))
    await scene.devices(ref)
    before = content(scene, ref, "gpu")
    for file in directory(scene).iterdir():
        file.unlink()
    assert await scene.devices(ref)
    assert content(scene, ref, "gpu") == before


@pytest.fixture
async def node(scene: Scene) -> Node:
    return Node(scene)


async def prepared(node: Node) -> ClaimHolder:
    """A claim with the card ``a``."""
    node.scene.preparer.metadata = True
    ref = node.scene.claim(1, result("gpu", "a"))
    await node.scene.devices(ref)
    return ref


def addresses(found: dict[str, Any]) -> list[str]:
    """The addresses of the devices in a file."""
    return [
        one.get("attributes", {}).get(kubevirt_reader.PCI, {}).get("string", "")
        for request in found["requests"]
        for one in request["devices"]
    ]


async def test_a_file_follows_its_device_with_a_new_generation(node: Node) -> None:
    ref = await prepared(node)
    assert await node.refresh()
    assert content(node.scene, ref, "gpu")["metadata"]["generation"] == 1
    card(node.scene, "a", "0000:5e:00.0")
    assert await node.refresh()
    found = content(node.scene, ref, "gpu")
    assert addresses(found) == ["0000:5e:00.0"] and found["metadata"]["generation"] == 2


async def test_a_file_follows_the_names_of_its_device(node: Node) -> None:
    """They change with the configuration, and with the device that has an attribute of this one."""
    ref = await prepared(node)
    named = replace(node.scene.resources.offered["a"], aliased=Aliased((("type", "gpu"),)))
    node.scene.resources.offered["a"] = named
    assert await node.refresh()
    ((device,),) = [one["devices"] for one in content(node.scene, ref, "gpu")["requests"]]
    assert device["attributes"]["type"] == {"string": "gpu"}


async def test_a_file_follows_what_the_api_server_accepts(node: Node) -> None:
    found = node.scene.resources.offered["a"]
    named = replace(found, aliased=Aliased((("ports", ("x",)), ("type", "gpu"))))
    for accepted, ports in (
        (Accepted(lists=False), {"string": "x"}),
        (Accepted(), {"strings": ["x"]}),
        (Accepted(frozenset({"ports"})), None),
    ):
        node.scene.resources.offered["a"] = replace(named, accepted=accepted)
        ref = await prepared(node)
        assert await node.refresh()
        ((device,),) = [one["devices"] for one in content(node.scene, ref, "gpu")["requests"]]
        assert device["attributes"]["type"] == {"string": "gpu"}
        assert device["attributes"].get("ports") == ports


class Ported(Cards):
    """Cards with ports."""

    attributes: ClassVar = {"ports": Attribute(list, "ports", ("p0",)), "model": Attribute(str, "model", "x")}

    def discover(self) -> list[Device]:
        return [Device("c0", {"ports": ("p0",), "model": "x"})]


async def test_a_file_has_lists_and_names_only_as_the_api_server_takes_them(place: Path) -> None:
    made = DraNode(place, kind=Ported)
    names = "{attributes: {port: ports}, lists: true}"
    entry = f"{{name: {RESOURCE}, backend: cards, serve: dra, dra: {names}}}"
    made.node.configure(f"dra: {{driver: {DRIVER}, metadata: true}}\nresources: [{entry}]\n")
    async with made:
        made.server.drop_fields("strings")
        made.server.refuse_attribute("model")
        async with made.node.served():
            # slices without the card agree with what the API server takes until the attribute is known
            await made.node.until(lambda: any(spec.get("devices") for spec in made.slices()))
            claim = made.allocate("one", made.name_of("c0"))
            assert not (await made.prepare(claim))[claim.uid].error
            (file,) = (made.options.plugins_dir / DRIVER / "dra-device-metadata").iterdir()
            newest, _ = kubevirt_reader.objects(file.read_text())
            ((device,),) = [one["devices"] for one in newest["requests"]]
            assert device["attributes"]["port"] == {"string": "p0"}
            assert device["attributes"] == made.slices()[0]["devices"][0]["attributes"]


async def test_a_restart_changes_no_file(node: Node) -> None:
    ref = await prepared(node)
    before = content(node.scene, ref, "gpu"), node.scene.spec(ref)
    for configured in (True, False):  # without its entry, the names give what they gave
        node.configured = configured
        node.restart()
        await node.scene.files.read_all()
        await node.refresh()
        assert (content(node.scene, ref, "gpu"), node.scene.spec(ref)) == before


async def test_a_file_follows_a_device_that_moved_while_devhost_was_down(node: Node) -> None:
    ref = await prepared(node)
    card(node.scene, "a", "0000:5e:00.0")
    node.restart()
    await node.scene.files.read_all()
    assert await node.refresh()
    found = content(node.scene, ref, "gpu")
    assert addresses(found) == ["0000:5e:00.0"] and found["metadata"]["generation"] == 2


async def test_a_file_that_was_removed_while_devhost_was_down_is_written_again(node: Node) -> None:
    ref = await prepared(node)
    for file in directory(node.scene).iterdir():
        file.unlink()
    node.restart()
    await node.scene.files.read_all()
    assert await node.refresh()
    assert addresses(content(node.scene, ref, "gpu")) == ["0000:3b:00.0"]


async def test_a_file_stays_while_its_device_is_away(node: Node) -> None:
    ref = await prepared(node)
    before = content(node.scene, ref, "gpu")
    node.finds(b="")
    assert await node.refresh()
    assert content(node.scene, ref, "gpu") == before
    card(node.scene, "a", "0000:3b:00.0")
    assert await node.refresh()
    assert content(node.scene, ref, "gpu") == before
    assert mounts(node.scene, node.scene.files.records[ref.uid].devices)


async def test_a_lost_file_of_a_device_that_is_away_has_the_names_of_the_record(node: Node) -> None:
    ref = await prepared(node)
    for file in directory(node.scene).iterdir():
        file.unlink()
    node.restart()
    await node.scene.files.read_all()
    node.finds(b="")
    assert await node.refresh()
    ((device,),) = [one["devices"] for one in content(node.scene, ref, "gpu")["requests"]]
    assert device == {"driver": DRIVER, "pool": POOL, "name": "a"}
