"""NVIDIA's driver is released on request, and when it is being unloaded."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from devhost_gpu import Gpu
from devhost_gpu.environment import Environment, Timings
from devhost_gpu.nvidia.gpus import Nvidia
from devhost_gpu.nvidia.unloading import CONTAINER_READY, READY, UVM
from devhost_gpu.options import GpuOptions
from devhost_testing.node import QUICK, Node
from gpu_nvidia import NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk
from gpu_setup import gpu_with

from devhost.backend.errors import BackendError, UsageError

A, B = "0000:3b:00.0", "0000:86:00.0"
GPU = "nvidia.com/gpu"
OPERATOR = GpuOptions(driver_root="/run/nvidia/driver")
CONFIG = "resources: [{name: nvidia.com/gpu, backend: gpu, where: {vendor: nvidia}}]"
RELEASED = "its driver is released until "


class Machine(Node):
    """A machine with two GPUs, devhost and a kubelet."""

    def __init__(self, place: Path, machine: NvidiaMachine, environment: Environment) -> None:
        timing = replace(QUICK, first_plan=0.2, discovery=replace(QUICK.discovery, resync=600.0))
        super().__init__(place, gpu_with(environment), root=machine.root, timing=timing)
        self.machine = machine
        self.configure(CONFIG)

    def nvidia(self) -> Nvidia:
        """The code for NVIDIA's cards in the running devhost."""
        backend = self.host.scanners["gpu"].runner.backend
        assert isinstance(backend, Gpu)
        vendor = backend.vendors["nvidia"]
        assert isinstance(vendor, Nvidia)
        return vendor

    def reload_driver(self) -> None:
        """Unloads the driver and loads another version."""
        shutil.rmtree(self.root / "sys/module/nvidia")
        self.machine.load_driver("580.65.06")

    def reasons(self) -> set[str]:
        """Why GPUs are not offered, as the problems of the status show it."""
        service = self.host.services[GPU]
        return {entry.health.reason or "" for entry in service.inventory.snapshot.entries.values()}


def unkillable(pid: int) -> None:
    """As a process in a call of the kernel: a signal does not end it."""


@pytest.fixture
def environment() -> Environment:
    return Environment(Timings(check=0.1, compare=0.2))


@pytest.fixture
async def node(tmp_path: Path, nvidia: NvidiaMachine, environment: Environment) -> AsyncIterator[Machine]:
    nvidia.gpu(A)
    nvidia.gpu(B)
    async with Machine(tmp_path, nvidia, environment) as made:
        yield made


async def test_no_process_has_the_driver_open_when_a_release_returns(node: Machine) -> None:
    async with node.served({GPU: 2}):
        assert len(node.machine.users()) == 1
        until = await node.host.backends.release("gpu", 600)
        assert node.machine.users() == []
        await node.offers({GPU: 0})
        assert node.reasons() == {f"{RELEASED}{until} (to end that: devhost resume gpu)"}
        scanner = node.host.scanners["gpu"]
        before = scanner.condition.last_scan
        node.look("gpu")
        await node.until(lambda: scanner.condition.last_scan != before)
        assert node.nvidia().client.processes == []
        await node.host.backends.release("gpu", 900)  # again: only its end changes
        assert node.machine.users() == []
        assert await node.host.backends.resume("gpu")
        await node.offers({GPU: 2})
        assert not await node.host.backends.resume("gpu")


async def test_a_pod_keeps_its_gpu_over_a_release(node: Machine) -> None:
    async with node.served({GPU: 2}):
        pod = await node.kubelet.admit("trainer", "main", GPU, 1)
        await node.host.backends.release("gpu", 600)
        await node.offers({GPU: 0})
        await node.host.backends.resume("gpu")
        await node.offers({GPU: 2})
        assert await node.kubelet.start_container("trainer", "main")
        assert len(pod.device_ids) == 1


async def test_a_release_survives_a_restart_of_devhost(node: Machine) -> None:
    async with node.served({GPU: 2}):
        until = await node.host.backends.release("gpu", 600)
    async with node.served():
        await node.until(lambda: len(node.devices("gpu")) == 2)
        await node.until(lambda: GPU in node.host.services and node.reasons())
        assert {reason[: len(RELEASED + until)] for reason in node.reasons()} == {RELEASED + until}
        assert node.machine.users() == []
        node.reload_driver()
        await node.offers({GPU: 2})
        assert len(node.machine.users()) == 1


async def test_a_release_survives_an_edit_of_the_options(node: Machine) -> None:
    async with node.served({GPU: 2}):
        await node.host.backends.release("gpu", 600)
        node.configure(f"{CONFIG}\nbackends: {{gpu: {{ignoreXids: [63]}}}}")
        await node.reload()
        await node.until(lambda: node.host.scanners["gpu"].condition.last_scan is not None)
        await node.offers({GPU: 0})
        assert node.machine.users() == []
        await node.host.backends.resume("gpu")
        await node.offers({GPU: 2})


async def test_a_release_ends_when_the_driver_was_loaded_again_and_not_while_it_is_away(
    node: Machine,
) -> None:
    async with node.served({GPU: 2}):
        await node.host.backends.release("gpu", 600)
        module = node.root / "sys/module/nvidia"
        away = module.rename(node.root / "sys/module/.nvidia")
        await node.until(lambda: "gpu" in node.host.backends.releases)
        assert node.host.backends.releases.over({"gpu": ("nvidia",)}) == {}
        away.rename(module)  # even under the same number
        await node.offers({GPU: 2})


async def test_a_release_ends_when_its_time_is_over(node: Machine) -> None:
    async with node.served({GPU: 2}):
        await node.host.backends.release("gpu", 3)  # long enough for a list, also on a busy machine
        await node.offers({GPU: 0})
        await node.offers({GPU: 2})


async def test_a_process_that_does_not_end_makes_the_release_fail_and_starts_no_other(
    tmp_path: Path, nvidia: NvidiaMachine
) -> None:
    nvidia.gpu(A)
    stuck = Environment(Timings(check=0.1, grace=0.2, releases=0.5), kill=unkillable)
    async with Machine(tmp_path, nvidia, stuck) as node, node.served():
        await node.offers({GPU: 1})
        hang = nvidia.nvml.fault("*", hang=600)
        node.look("gpu")
        await node.until(lambda: bool(node.machine.users()))
        with pytest.raises(BackendError, match=r"devhost-nvml \(pid \d+\) has not ended: a call into the"):
            await node.host.backends.release("gpu", 600)
        await node.offers({GPU: 0})
        nvidia.nvml.fix(hang)
        await node.until(lambda: not node.nvidia().client.processes)


async def test_a_release_names_a_backend_that_keeps_a_driver_in_use(node: Machine) -> None:
    async with node.served({GPU: 2}):
        with pytest.raises(UsageError, match="backend udev does not run") as refused:
            await node.host.backends.release("udev", 60)
        assert refused.value.hint == "those that release a driver here: gpu"
        for seconds in (0, 86401, -5):
            with pytest.raises(UsageError, match="a release lasts from 1 to 86400 seconds"):
                await node.host.backends.release("gpu", seconds)
        await node.host.backends.release("gpu", 86400)
        await node.host.backends.resume("gpu")


def operators(machine: NvidiaMachine) -> None:
    """The driver as the GPU operator has it, in a container that is ready."""
    place = machine.root / "run/nvidia/driver/usr/lib64"
    place.mkdir(parents=True)
    (machine.root / "usr/lib64/libnvidia-ml.so.1").rename(place / "libnvidia-ml.so.1")
    machine.tree.file(READY, "IS_HOST_DRIVER=false")
    machine.tree.file(CONTAINER_READY)


@pytest.mark.parametrize("sign", [READY, CONTAINER_READY])
def test_the_driver_is_released_while_the_gpu_operator_replaces_it(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk], sign: str
) -> None:
    uuid = nvidia.gpu(A)
    operators(nvidia)
    desk = at(nvidia, OPERATOR)
    assert desk.reasons() == {}
    assert desk.is_open()
    (nvidia.root / sign[1:]).unlink()
    assert desk.reasons() == {uuid: f"the GPU operator is replacing NVIDIA's driver: {sign} does not exist"}
    desk.until(lambda: not desk.is_open())
    nvidia.tree.file(sign)
    assert desk.reasons() == {}


def test_a_devhost_that_starts_meanwhile_waits_for_the_operators_validation(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk]
) -> None:
    uuid = nvidia.gpu(A)
    operators(nvidia)
    (nvidia.root / READY[1:]).unlink()
    (nvidia.root / CONTAINER_READY[1:]).unlink()
    desk = at(nvidia, OPERATOR, unloading=100.0)
    assert list(desk.reasons()) == [uuid]
    desk.clock.ahead += 99.0
    assert list(desk.reasons()) == [uuid]
    desk.clock.ahead += 2.0  # the operator has no validator, or has gone
    assert desk.reasons() == {}


def test_files_of_the_operator_mean_nothing_for_a_driver_of_the_host(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk]
) -> None:
    nvidia.gpu(A)
    nvidia.tree.file(CONTAINER_READY)
    desk = at(nvidia)
    (nvidia.root / CONTAINER_READY[1:]).unlink()
    assert desk.reasons() == {}


def test_the_driver_is_released_when_modules_that_use_it_are_unloaded(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk]
) -> None:
    uuid = nvidia.gpu(A)
    desk = at(nvidia)
    assert desk.reasons() == {}  # a machine on which nvidia_uvm was not loaded yet
    nvidia.tree.file(f"{UVM}/initstate", "live")
    assert desk.reasons() == {}
    shutil.rmtree(nvidia.root / UVM[1:])
    assert desk.reasons() == {uuid: "NVIDIA's driver is being unloaded: its module nvidia_uvm is gone"}
    desk.until(lambda: not desk.is_open())
    shutil.rmtree(nvidia.root / "proc/driver/nvidia")
    assert desk.reasons() == {uuid: "NVIDIA's driver is not loaded"}
    nvidia.load_driver("580.65.06")
    nvidia.inform(A, 0, uuid)
    assert desk.reasons() == {}


def test_a_module_that_was_loaded_again_ends_it_as_well(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk]
) -> None:
    nvidia.gpu(A)
    nvidia.tree.file(f"{UVM}/initstate", "live")
    desk = at(nvidia)
    assert desk.reasons() == {}
    shutil.rmtree(nvidia.root / UVM[1:])
    assert desk.reasons()
    nvidia.tree.file(f"{UVM}/initstate", "live")
    assert desk.reasons() == {}


async def test_signs_are_noticed_without_an_event(node: Machine) -> None:
    node.machine.tree.file(f"{UVM}/initstate", "live")
    async with node.served({GPU: 2}):
        shutil.rmtree(node.root / UVM[1:])
        await node.offers({GPU: 0})
        await node.until(lambda: not node.machine.users())
