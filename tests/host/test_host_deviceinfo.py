"""Device-info files over real sockets: written before the answer, kept while the pod lives, then removed."""

from __future__ import annotations

import errno
import json
from contextlib import suppress
from pathlib import Path

import pytest

from devhost.backend import Device
from devhost.host.shown.problems import problems

NET = "example.com/net"
LINE = "name: example.com/net, backend: toy"


def info(device):
    return {"type": "pci", "version": "1.1.0", "pci": {"pci-address": device}}


@pytest.fixture
def files(rig, tmp_path):
    """The files in the directory by name, without hidden ones."""
    directory = tmp_path / "devinfo" / "dp"
    rig.classes["toy"].device_info = lambda self, device, request: info(device.id)
    write = rig.write

    def with_directory(*resources):
        write(*resources)
        rig.config.write_text(rig.config.read_text() + f"deviceInfo: {{directory: {directory}}}\n")

    rig.write = with_directory
    rig.infos = directory

    def seen():
        if not directory.exists():
            return {}
        found = {}
        for path in directory.iterdir():
            with suppress(FileNotFoundError):  # it has just been removed
                found |= {} if path.name.startswith(".") else {path.name: json.loads(path.read_text())}
        return found

    return seen


async def pod(rig, kubelet, name="pod"):
    """Starts a pod, waits until the kubelet reports it, and returns its token."""
    (token,) = (await kubelet.admit(name, "main", NET, 1)).device_ids
    await rig.until(lambda: any(token in held.tokens and held.holder for held in rig.host.allocations.held()))
    return token


async def test_a_file_exists_while_its_pod_runs(rig, kubelet, files):
    async with rig.running(LINE, allocatable={NET: 2}):
        assert files() == {}
        device = await pod(rig, kubelet)
        assert files() == {f"example.com-net-{device}-device.json": info(device)}
        kubelet.release("pod")
        await rig.until(lambda: files() == {})


async def test_a_file_that_cannot_be_removed_is_a_problem_until_it_is(rig, kubelet, files, monkeypatch):
    unlink = Path.unlink

    def refuse(self, missing_ok=False):
        raise OSError(errno.EROFS, "Read-only file system", str(self))

    async with rig.running(LINE, allocatable={NET: 2}) as host:
        await pod(rig, kubelet)
        monkeypatch.setattr(Path, "unlink", refuse)
        kubelet.release("pod")
        await rig.until(lambda: problems(host.now()).shown)
        (problem,) = problems(host.now()).shown
        assert (problem.kind, problem.subject) == ("resource", "deviceInfo.directory")
        assert "cannot remove a device-info file: cannot remove files from" in problem.reason
        monkeypatch.setattr(Path, "unlink", unlink)
        await rig.until(lambda: files() == {} and not problems(host.now()).shown)


async def test_a_restart_keeps_the_files_of_running_pods_and_removes_the_others(rig, kubelet, files):
    async with rig.running(LINE, allocatable={NET: 2}):
        stays = await pod(rig, kubelet, "stays")
        await pod(rig, kubelet, "ends")
        assert len(files()) == 2
    assert len(files()) == 2  # the pods continue without devhost
    kubelet.release("ends")
    foreign = rig.infos / "other.com-net-x-device.json"
    foreign.write_text("{}")
    async with rig.running():
        names = {f"example.com-net-{stays}-device.json", foreign.name}
        await rig.until(lambda: files().keys() == names)
        await kubelet.wait_for(lambda: kubelet.allocatable() == {NET: 2})
        assert files().keys() == names


async def test_a_file_stays_after_its_resource_until_the_pod_ends(rig, kubelet, files):
    async with rig.running(LINE, allocatable={NET: 2}) as host:
        await pod(rig, kubelet)
        rig.write()
        host.reload()
        await kubelet.wait_for(lambda: not any(kubelet.allocatable().values()))
        assert len(files()) == 1
        kubelet.release("pod")
        await rig.until(lambda: files() == {})


async def test_a_pod_whose_resource_was_removed_while_devhost_was_stopped_keeps_its_file(rig, kubelet, files):
    """Its device is unknown by now; the kubelet's list is enough."""
    async with rig.running(LINE, allocatable={NET: 2}):
        await pod(rig, kubelet)
    before = files()
    rig.scripts["other"].devices = [Device("x0")]  # another name than that of the device that is held
    async with rig.running("name: example.com/other, backend: other"):
        await kubelet.wait_for(lambda: kubelet.allocatable().get("example.com/other") == 1)
        await rig.until(lambda: rig.host.allocations.known)
        # followed only because a file depends on it
        await rig.until(lambda: NET in [held.resource for held in rig.host.allocations.in_use()])
        assert files() == before
        kubelet.release("pod")
        await rig.until(lambda: files() == {})


async def test_a_new_directory_takes_effect_without_a_restart(rig, kubelet, files, tmp_path):
    async with rig.running(LINE, allocatable={NET: 2}) as host:
        await pod(rig, kubelet)
        text = rig.config.read_text()
        rig.config.write_text(text.replace(str(rig.infos), str(tmp_path / "elsewhere")))
        host.reload()
        await rig.until(lambda: host.configuration.generation == 2)
        await pod(rig, kubelet, "second")
        assert len(files()) == 1
        elsewhere = [
            path for path in (tmp_path / "elsewhere").iterdir() if path.name.endswith("-device.json")
        ]
        assert len(elsewhere) == 1


async def test_with_write_false_no_file_is_written_and_pods_start(rig, kubelet, files):
    rig.write(LINE)
    rig.config.write_text(
        rig.config.read_text().replace("}\n", ", write: false}\n").replace("toy, write: false", "toy")
    )
    async with rig.running(allocatable={NET: 2}):
        await pod(rig, kubelet)
        assert files() == {}
