"""`inject: cdi` over time: names that pods got stay valid as long as the pods run, and no longer."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
from cdi_scene import OTHER, OTHER_LINE, TOY, TOY_LINE
from status_values import status

from devhost.backend import Device, unhealthy
from devhost.host.shown.problems import problems


async def test_a_device_that_vanishes_while_a_pod_has_it_stays_in_the_specification(rig, kubelet, specs):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        (held,) = (await kubelet.admit("pod", "main", TOY, 1)).device_ids
        rig.change("toy", [Device(id="d2", attributes={"model": "x100", "index": 2})])
        await rig.until(lambda: specs.devices().keys() == {held, "d2"})
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 2})


@pytest.mark.conformance(52)
async def test_a_stop_and_a_restart_keep_the_file_as_it_is(rig, kubelet, specs):
    rig.write(TOY_LINE)
    for _ in range(2):
        async with rig.running(allocatable={TOY: 2}):
            identity = specs.path().stat().st_ino
        assert specs.path().stat().st_ino == identity
    assert specs.devices().keys() == {"d0", "d1"}
    good = rig.scripts["toy"].devices
    rig.scripts["toy"].devices = [good[0], replace(good[1], health=unhealthy("too hot"))]
    async with rig.running(allocatable={TOY: 1}):
        assert specs.path().stat().st_ino == identity  # a pod may still hold the unhealthy device


async def test_the_file_is_removed_when_the_resource_leaves_the_configuration(rig, kubelet, specs):
    async with rig.running(TOY_LINE, OTHER_LINE + ", inject: cdi", allocatable={TOY: 2, OTHER: 1}):
        rig.write(OTHER_LINE + ", inject: cdi")
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 0, OTHER: 1})
        await rig.until(lambda: not specs.path().exists())
        assert specs.path(OTHER).exists()


RENAMED = "name: example.com/renamed, backend: toy, inject: cdi"


@pytest.mark.parametrize("lines", [(), (RENAMED,), ("name: example.com/toy, backend: toy",)])
async def test_names_that_a_pod_got_stay_valid_when_its_resource_changes(rig, kubelet, specs, lines):
    """The resource is removed, renamed or injected directly; a restarted container gets the old names."""
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        response = (await kubelet.admit("pod", "main", TOY, 1)).response
        before = specs.resolve(response)
        rig.write(*lines)
        await rig.until(lambda: rig.host.configuration.generation == 2)
        if RENAMED in lines:
            await rig.until(lambda: kubelet.capacity().get("example.com/renamed"))
        assert specs.resolve(response) == before
    async with rig.running():
        await rig.until(lambda: rig.host.allocations.known)
        assert specs.resolve(response) == before  # also after devhost was restarted
        kubelet.release("pod")
        await rig.until(lambda: not specs.path().exists())


async def test_a_name_survives_a_resource_that_leaves_and_comes_back_with_other_devices(rig, kubelet, specs):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        response = (await kubelet.admit("pod", "main", TOY, 2)).response
        before = specs.resolve(response)
        held = rig.scripts["toy"].devices
        rig.write()
        await rig.until(lambda: rig.host.configuration.generation == 2 and not rig.host.services)
        rig.write(TOY_LINE + ", where: {index: 7}")
        await rig.until(lambda: rig.host.configuration.generation == 3)
        rig.change("toy", [*held, Device(id="d7", attributes={"model": "x100", "index": 7})])
        await rig.until(lambda: "d7" in specs.devices())
        assert specs.resolve(response) == before


async def test_stale_files_are_removed_at_the_start_and_foreign_ones_never(rig, kubelet, specs):
    rig.cdi.mkdir()
    stale = specs.path("example.com/old")
    foreign = [rig.cdi / "nvidia.com_gpu.json", rig.cdi / "devhost_example.com_old.json", rig.cdi / "x.yaml"]
    for path in (stale, *foreign):
        path.write_text("{}")
    async with rig.running(TOY_LINE):
        await rig.until(lambda: not stale.exists())
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
        rig.write(OTHER_LINE)
        await rig.until(lambda: not specs.path().exists())
    assert all(path.read_text() == "{}" for path in foreign)


async def test_a_stale_file_that_cannot_be_removed_is_a_problem_until_it_is(rig, kubelet, specs, monkeypatch):
    unlink = Path.unlink

    def refuse(self, missing_ok=False):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    rig.cdi.mkdir()
    specs.path("example.com/old").write_text("{}")
    monkeypatch.setattr(Path, "unlink", refuse)
    async with rig.running("name: example.com/toy, backend: toy") as host:
        await rig.until(lambda: problems(host.now()).shown)
        (problem,) = problems(host.now()).shown
        assert (problem.kind, problem.subject) == ("resource", "cdi.directory")
        assert "stale CDI specifications may be left: cannot clear" in problem.reason
        monkeypatch.setattr(Path, "unlink", unlink)
        await rig.until(lambda: not problems(host.now()).shown)


async def test_no_file_is_removed_while_holders_are_unknown(rig, specs):
    """No kubelet can report that the pod with these names has ended."""
    rig.cdi.mkdir()
    stale = specs.path("example.com/old")
    stale.write_text("{}")
    rig.write()
    async with rig.running(pod_resources=rig.pod_resources / "absent.sock"):
        await rig.until(lambda: rig.host.ready()[0])
        rig.host.reload()
        await rig.until(lambda: rig.host.configuration.generation == 2)
    assert stale.exists()


async def test_names_of_an_earlier_version_stay_valid_while_pods_have_them(rig, kubelet, specs):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}):
        await kubelet.admit("pod", "main", TOY, 1)
    old = specs.document() | {"kind": TOY}
    specs.path().write_text(json.dumps(old))
    async with rig.running(allocatable={TOY: 2}):
        assert specs.document()["kind"] == specs.kind()
        (aside,) = set(rig.cdi.glob("*.json")) - {specs.path()}
        assert json.loads(aside.read_text()) == old
    async with rig.running():  # also over another restart
        await rig.until(lambda: rig.host.allocations.known)
        assert json.loads(aside.read_text()) == old
        kubelet.release("pod")
        await rig.until(lambda: not aside.exists())
        assert specs.path().exists()


async def test_an_unreadable_earlier_file_is_never_overwritten(rig, kubelet, specs, monkeypatch):
    async with rig.running(TOY_LINE):
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 2})
    written = specs.path().read_text()
    read = Path.read_bytes

    def failing(path):
        if path == specs.path():
            raise OSError(errno.EIO, "Input/output error")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    rig.scripts["toy"].devices = [Device(id="d2", attributes={"model": "x100", "index": 2})]
    async with rig.running():
        await kubelet.wait_for(lambda: kubelet.capacity() == {TOY: 1})
        (device,) = status(rig.host)["resources"][0]["devices"]
        assert device["reason"].startswith(f"cannot read {specs.path()}: Input/output error")
        assert specs.path().read_text() == written
        monkeypatch.setattr(Path, "read_bytes", read)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {TOY: 1})
        assert "d2" in specs.devices()


async def test_files_in_a_former_directory_are_removed_with_their_last_pod(rig, kubelet, specs, tmp_path):
    async with rig.running(TOY_LINE, allocatable={TOY: 2}) as host:
        (token,) = (await kubelet.admit("pod", "main", TOY, 1)).device_ids
        await rig.until(lambda: host.allocations.of(TOY).leases.holder(token))
        left = specs.path()
        rig.write(OTHER_LINE)
        await rig.until(lambda: host.configuration.generation == 2)
        rig.cdi = tmp_path / "another"
        rig.write(OTHER_LINE)
        await rig.until(lambda: host.configuration.generation == 3)
        assert left.exists()
        kubelet.release("pod")
        await rig.until(lambda: not left.exists())
