"""``occupied: refuse``: a GPU that a process uses whose pod does not hold it is Unhealthy."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import replace
from pathlib import Path

import gpu_amd
import pytest
from devhost_gpu import Gpu
from devhost_gpu.environment import STANDARD, Timings
from devhost_gpu.occupied import Occupied, sees_node
from devhost_gpu.options import GpuOptions, Strategy
from devhost_testing.fixtures import BackendFixture
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import PATIENCE
from gpu_setup import gpu_with
from kit.clock import AheadClock
from kit.waiting import listening

from devhost.backend import claim
from devhost.backend.errors import BackendError
from devhost.backend.sysfs import Sysfs

A, B = DGX[:2]
REFUSE = GpuOptions(occupied="refuse")
UID = "3f2e1a60-9a1f-4a53-8f0e-0123456789ab"
OTHER = "aaaaaaaa-9a1f-4a53-8f0e-0123456789ab"
HASH = "0123456789abcdef0123456789abcdef"
SYSTEM = "0::/system.slice/jupyter.service\n"
PODS = [
    f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/"
    "cri-containerd-0f.scope\n",
    f"0::/kubepods/besteffort/pod{UID}/0f\n",
    f"0::/kubepods/pod{UID}/0f (deleted)\n",
    f"0::/../../pod{UID}/0f\n",
    f"12:devices:/kubepods/burstable/pod{UID}/0f\n1:name=systemd:/kubepods/burstable/pod{UID}/0f\n",
    f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID.replace('-', '_')}.slice/crio-0f",
]


class Held:
    """What containers hold, as the core reports it."""

    def __init__(self) -> None:
        self.now: frozenset[str] | None = frozenset()

    def __call__(self) -> frozenset[str] | None:
        return self.now

    def by(self, device: str, *pods: str) -> None:
        """Pods hold a device; an empty name is one that the kubelet has not named yet."""
        self.now = frozenset(
            {claim.device("gpu", device), *(claim.holder(pod, "gpu", device) for pod in pods)}
        )


class Scene:
    """A backend on a machine with processes, and a clock that a test can put forward."""

    def __init__(self, root: Path, options: GpuOptions = REFUSE, **seconds: float) -> None:
        self.root, self.held, self.clock = root, Held(), AheadClock()
        kind = gpu_with(replace(STANDARD, clock=self.clock, timings=Timings(**seconds)))
        self.fixture = BackendFixture[Gpu](kind)
        self.backend = self.fixture(root, options, held=self.held)
        self.sees_node()

    def sees_node(self, pid: int = 0) -> None:
        link = self.root / "proc/self"
        link.unlink(missing_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(str(pid or os.getpid()))

    def process(self, pid: int, cgroup: str = SYSTEM, comm: bytes = b"python") -> None:
        place = self.root / f"proc/{pid}"
        place.mkdir(parents=True, exist_ok=True)
        (place / "comm").write_bytes(comm + b"\n")
        (place / "cgroup").write_text(cgroup)

    def ends(self, pid: int) -> None:
        for file in (self.root / f"proc/{pid}").iterdir():
            file.unlink()

    def pod(self, name: str = "ns_a", uid: str = UID) -> None:
        (self.root / f"var/log/pods/{name}_{uid}").mkdir(parents=True)

    def reasons(self) -> dict[str, str]:
        """Why devices are Unhealthy, after another look at the processes."""
        self.backend.discover()
        assert self.backend.occupied is not None
        with suppress(BackendError):
            self.backend.occupied.check()
        return {one.id: one.health.reason or "" for one in self.backend.discover() if not one.health}

    def watched(self) -> AbstractAsyncContextManager[asyncio.Event]:
        """Listens to the backend; the event is set whenever it asks for a scan."""
        return listening(self.backend.watch())

    def close(self) -> None:
        self.backend.close()
        self.fixture.close()


Open = Callable[..., Scene]


@pytest.fixture
def on() -> Iterator[Open]:
    scenes: list[Scene] = []

    def make(root: Path, options: GpuOptions = REFUSE, **seconds: float) -> Scene:
        scenes.append(Scene(root, options, **{"occupied_check": 0.01, "new_vendor": 0.01} | seconds))
        return scenes[-1]

    yield make
    for scene in scenes:
        scene.close()


LATER = Timings().occupied_pod
AMD = "0000:63:00.0"


def amd(root: Path, pid: int, gpu: int = 51001, *, vram: int = 0, queue: bool = False) -> None:
    """A process of the compute driver, as kfd_process.c shows it: each GPU has files, used or not."""
    place = root / f"sys/devices/virtual/kfd/kfd/proc/{pid}"
    (place / "queues").mkdir(parents=True)
    for number in range(51001, 51005):
        (place / f"vram_{number}").write_text(f"{vram if number == gpu else 0}\n")
    if queue:
        (place / "queues/0").mkdir()
        (place / "queues/0/gpuid").write_text(f"{gpu}\n")


@pytest.fixture
def nodes(on: Open, tmp_path: Path) -> Scene:
    gpu_amd.mi210(tmp_path)
    return on(tmp_path)


@pytest.fixture
def dual(nvidia: NvidiaMachine, on: Open) -> Scene:
    nvidia.gpu(A)
    nvidia.gpu(B)
    return on(nvidia.root)


def test_a_process_outside_pods_makes_an_nvidia_gpu_unhealthy_until_it_ends(
    nvidia: NvidiaMachine, dual: Scene
) -> None:
    uuid = nvidia.uuids[A]
    assert dual.reasons() == {}
    nvidia.nvml.gpus[uuid]["compute"] = "4711"
    nvidia.nvml.write()
    dual.process(4711)
    assert dual.reasons() == {uuid: "process 4711 (python) uses it"}
    nvidia.nvml.gpus[uuid]["compute"] = ""
    nvidia.nvml.write()
    assert dual.reasons() == {}


def test_no_pod_gets_an_occupied_gpu_before_the_first_look(nvidia: NvidiaMachine, dual: Scene) -> None:
    uuid = nvidia.uuids[B]
    nvidia.nvml.gpus[uuid]["graphics"] = "7"
    nvidia.nvml.write()
    dual.process(7, comm=b"Xorg")
    first = {one.id: one.health.reason for one in dual.backend.discover()}
    assert first[uuid] == "process 7 (Xorg) uses it"


def test_several_processes_are_counted_and_the_first_is_named(nvidia: NvidiaMachine, dual: Scene) -> None:
    nvidia.nvml.gpus[nvidia.uuids[A]] |= {"compute": "9,8", "graphics": "8,10"}
    nvidia.nvml.write()
    for pid in (8, 9, 10):
        dual.process(pid)
    assert dual.reasons() == {nvidia.uuids[A]: "process 8 (python) and 2 more use it"}


def test_a_gpu_with_very_many_processes_is_read_up_to_a_bound(nvidia: NvidiaMachine, dual: Scene) -> None:
    nvidia.nvml.gpus[nvidia.uuids[A]]["compute"] = ",".join(map(str, range(1000, 1200)))
    nvidia.nvml.write()
    for pid in range(1000, 1200):
        dual.process(pid)
    assert dual.reasons() == {nvidia.uuids[A]: "process 1000 (python) and 127 more use it"}


def test_only_the_mig_instance_that_is_used_is_occupied(nvidia: NvidiaMachine, on: Open) -> None:
    nvidia.gpu(A)
    used, free = nvidia.mig(A, 1, 0), nvidia.mig(A, 2, 0)
    nvidia.nvml.gpus[nvidia.uuids[A]]["compute"] = "4711/1/0"
    nvidia.nvml.write()
    scene = on(nvidia.root)
    scene.process(4711)
    reasons = scene.reasons()
    assert reasons[used] == "process 4711 (python) uses it"
    assert free not in reasons


def test_an_older_driver_reports_processes_by_its_older_function(nvidia: NvidiaMachine, dual: Scene) -> None:
    nvidia.nvml.gpus[nvidia.uuids[A]]["compute"] = "4711"
    nvidia.nvml.fault("nvmlDeviceGetComputeRunningProcesses_v3", error=13)
    dual.process(4711)
    assert dual.reasons() == {nvidia.uuids[A]: "process 4711 (python) uses it"}


def test_a_gpu_whose_driver_does_not_answer_keeps_its_reason(nvidia: NvidiaMachine, dual: Scene) -> None:
    uuid = nvidia.uuids[A]
    nvidia.nvml.gpus[uuid]["compute"] = "4711"
    nvidia.nvml.write()
    dual.process(4711)
    assert dual.reasons() == {uuid: "process 4711 (python) uses it"}
    nvidia.nvml.gpus[uuid]["compute"] = ""
    nvidia.nvml.fault("nvmlDeviceGetComputeRunningProcesses_v3", uuid, error=999)
    assert dual.reasons() == {uuid: "process 4711 (python) uses it"}


def test_the_name_of_a_process_is_data(nodes: Scene) -> None:
    amd(nodes.root, 66, vram=4096)
    nodes.process(66, comm=b"\x1b[2J\xff\nx")
    assert nodes.reasons() == {AMD: r"process 66 (\x1b[2J\udcff\nx) uses it"}


@pytest.mark.parametrize("use", [{"vram": 4096}, {"queue": True}])
def test_a_process_on_an_amd_gpu_occupies_that_gpu_only(nodes: Scene, use: dict[str, int]) -> None:
    amd(nodes.root, 66, **use)
    nodes.process(66)
    assert nodes.reasons() == {AMD: "process 66 (python) uses it"}
    nodes.ends(66)
    assert nodes.reasons() == {}


def test_a_process_that_only_opened_the_compute_driver_occupies_nothing(nodes: Scene) -> None:
    amd(nodes.root, 66)
    nodes.process(66)
    assert nodes.reasons() == {}


def test_no_process_uses_mig_instances_on_demand_that_do_not_exist(nvidia: NvidiaMachine, on: Open) -> None:
    gpu = nvidia.divisible(A)
    used = nvidia.nvml.partition(gpu, "1g.10gb", 0)
    nvidia.nvml.gpus[gpu]["compute"] = "4711/1/0"
    nvidia.nvml.write()
    scene = on(nvidia.root, replace(REFUSE, mig="dynamic"))
    scene.process(4711)
    assert scene.reasons().keys() == {gpu, used}


def test_a_process_on_a_partition_occupies_that_partition_only(on: Open, tmp_path: Path) -> None:
    gpu_amd.mi300x(tmp_path, "CPX", "NPS4", count=1)
    scene = on(tmp_path)
    amd(tmp_path, 66, gpu=51002, queue=True)
    scene.process(66)
    assert list(scene.reasons().values()) == ["process 66 (python) uses it"]


@pytest.mark.parametrize("cgroup", PODS)
def test_the_pod_of_a_process_is_found_with_each_layout_of_control_groups(nodes: Scene, cgroup: str) -> None:
    nodes.pod()
    nodes.held.by(AMD, "ns/a")
    amd(nodes.root, 66, vram=1)
    nodes.process(66, cgroup)
    nodes.reasons()
    nodes.clock.ahead += LATER
    assert nodes.reasons() == {}


@pytest.mark.parametrize("cgroup", [SYSTEM, "0::/\n", f"0::/machine.slice/libpod_pod_{HASH * 2}.slice\n"])
def test_a_process_outside_pods_occupies_a_gpu_that_a_pod_holds(nodes: Scene, cgroup: str) -> None:
    nodes.held.by(AMD, "ns/a")
    amd(nodes.root, 66, vram=1)
    nodes.process(66, cgroup)
    assert nodes.reasons() == {AMD: "process 66 (python) uses it"}


def left(scene: Scene, *, after: float = LATER) -> dict[str, str]:
    """The reasons after a process of the pod ``ns/a`` has used a GPU for some time."""
    amd(scene.root, 66, vram=1)
    scene.process(66, PODS[0])
    assert scene.reasons() == {}, "pods start and end"
    scene.clock.ahead += after
    return scene.reasons()


def test_a_process_of_a_pod_that_has_ended_occupies_a_gpu_that_is_free_again(nodes: Scene) -> None:
    assert left(nodes) == {AMD: "process 66 (python) uses it"}


def test_the_processes_of_a_pod_that_ends_have_some_time(nodes: Scene) -> None:
    assert left(nodes, after=LATER - 5) == {}


def test_a_process_of_a_pod_that_has_ended_occupies_a_gpu_that_others_share(nodes: Scene) -> None:
    nodes.pod()
    nodes.held.by(AMD, "ns/b", "ns/c")
    assert left(nodes) == {AMD: "process 66 (python) uses it"}


def test_a_gpu_is_not_occupied_by_one_of_the_pods_that_share_it(nodes: Scene) -> None:
    nodes.pod()
    nodes.held.by(AMD, "ns/b", "ns/a")
    assert left(nodes) == {}


@pytest.mark.parametrize("names", [("",), ("ns/b", "")])
def test_a_pod_that_the_kubelet_has_not_named_yet_may_be_any(nodes: Scene, names: tuple[str, ...]) -> None:
    """Also a ResourceClaim, which several pods may use."""
    nodes.pod()
    nodes.held.by(AMD, *names)
    assert left(nodes) == {}


def test_without_the_names_of_pods_only_a_free_gpu_is_occupied(nodes: Scene) -> None:
    nodes.held.by(AMD, "ns/b")
    assert left(nodes) == {}
    nodes.held.now = frozenset()
    nodes.reasons()
    nodes.clock.ahead += LATER
    assert nodes.reasons() == {AMD: "process 66 (python) uses it"}


def test_a_card_that_is_held_through_another_backend_is_not_free(nodes: Scene) -> None:
    nodes.held.now = frozenset({claim.pci(AMD)})
    assert left(nodes) == {}


def test_while_holders_are_unknown_only_processes_outside_pods_count(nodes: Scene) -> None:
    nodes.held.now = None
    assert left(nodes) == {}


def test_a_static_pod_has_a_hash_in_place_of_a_uid(nodes: Scene) -> None:
    nodes.pod("kube-system_a-node", HASH)
    nodes.held.by(AMD, "kube-system/a-node")
    amd(nodes.root, 66, vram=1)
    nodes.process(66, f"0::/kubepods/pod{HASH}/0f\n")
    nodes.reasons()
    nodes.clock.ahead += LATER
    assert nodes.reasons() == {}


def test_the_server_of_mps_does_not_occupy_the_gpu_that_it_shares(nvidia: NvidiaMachine, dual: Scene) -> None:
    nvidia.nvml.gpus[nvidia.uuids[A]]["compute"] = "5"
    nvidia.nvml.write()
    dual.process(5, comm=b"nvidia-cuda-mps-server"[:15])
    assert dual.reasons() == {}


def test_without_the_ids_of_the_node_nothing_is_guessed_and_that_is_a_problem(
    nvidia: NvidiaMachine, dual: Scene
) -> None:
    nvidia.nvml.gpus[nvidia.uuids[A]]["compute"] = "4711"
    nvidia.nvml.write()
    dual.process(4711)
    dual.sees_node(pid=99)
    assert dual.reasons() == {}
    (problem,) = dual.backend.missing_drivers()
    assert problem.reason == (
        "backends.gpu.occupied has no effect: devhost does not share the process ids of the node "
        "(set hostPID: true in its pod, ProtectProc=default in its unit)"
    )
    dual.sees_node()
    assert dual.reasons() == {nvidia.uuids[A]: "process 4711 (python) uses it"}
    assert list(dual.backend.missing_drivers()) == []


@pytest.mark.parametrize("use", [{"vram": 1}, {"queue": True}])
def test_a_further_context_of_a_process_counts(nodes: Scene, use: dict[str, int]) -> None:
    amd(nodes.root, 66)
    place = nodes.root / "sys/devices/virtual/kfd/kfd/proc"
    amd(nodes.root, 67, **use)
    (place / "67").rename(place / "66/context_1")  # kfd_create_process_sysfs in kfd_process.c
    nodes.process(66)
    assert nodes.reasons() == {AMD: "process 66 (python) uses it"}


@pytest.mark.parametrize(
    ("options", "is_seen"),
    [
        ("rw", True),
        ("rw,hidepid=invisible", False),  # ProtectProc=invisible, since Linux 5.8
        ("rw,gid=4,hidepid=2", False),
    ],
)
def test_a_node_whose_processes_are_hidden_from_devhost_is_not_seen(
    tmp_path: Path, dual: Scene, options: str, is_seen: bool
) -> None:
    mounts = tmp_path / "mountinfo"
    proc = f"{dual.root}/proc"
    mounts.write_text(
        f"22 1 0:21 / {proc} rw,nosuid - proc proc {options}\n"
        f"23 1 0:22 / {proc}/other rw - proc proc rw,hidepid=2\n"
    )
    assert sees_node(Sysfs(dual.root), str(mounts)) is is_seen


@pytest.mark.parametrize("strategy", ["envvar", "cdi"])
def test_a_process_is_found_with_every_strategy(nvidia: NvidiaMachine, on: Open, strategy: Strategy) -> None:
    nvidia.gpu(A, compute="4711")
    uuid = nvidia.uuids[A]
    nvidia.tree.file(
        "/etc/cdi/nvidia.yaml", f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{{name: {uuid}}}]\n"
    )
    scene = on(nvidia.root, replace(REFUSE, device_list_strategy=strategy))
    scene.process(4711)
    assert scene.reasons() == {uuid: "process 4711 (python) uses it"}


def test_the_kernel_names_amd_processes_by_the_ids_of_the_node(nodes: Scene) -> None:
    nodes.sees_node(pid=99)
    amd(nodes.root, 66, vram=1)
    nodes.process(66)
    assert nodes.reasons() == {AMD: "process 66 (python) uses it"}
    assert list(nodes.backend.missing_drivers()) == []


def test_amd_gpus_whose_processes_the_kernel_hides_are_a_problem(nodes: Scene) -> None:
    for file in (nodes.root / "sys/devices/virtual/kfd/kfd/topology/nodes").glob("*/properties"):
        file.write_text("")
        file.with_name("gpu_id").write_text("")
    amd(nodes.root, 66, vram=1)
    nodes.process(66)
    assert nodes.reasons() == {}
    (problem,) = nodes.backend.missing_drivers()
    assert problem.subject == "AMD GPUs"
    assert "the kernel hides which processes use them" in problem.reason


def test_without_the_key_no_process_is_looked_at(nvidia: NvidiaMachine, on: Open) -> None:
    nvidia.gpu(A, compute="4711")
    scene = on(nvidia.root, GpuOptions())
    scene.process(4711)
    assert all(one.health for one in scene.backend.discover())
    assert scene.backend.occupied is None


def test_a_new_process_causes_a_scan(nodes: Scene) -> None:
    async def work() -> None:
        nodes.backend.discover()
        async with nodes.watched() as changed, asyncio.timeout(PATIENCE):
            nodes.process(66)
            amd(nodes.root, 66, queue=True)
            await changed.wait()

    asyncio.run(work())
    assert nodes.reasons() == {AMD: "process 66 (python) uses it"}


def test_a_driver_that_does_not_answer_is_asked_ever_less_often_with_jitter(nodes: Scene) -> None:
    pauses: list[float] = []
    over = asyncio.CancelledError

    def ask() -> dict[str, list[int]]:
        if 12 <= len(pauses) < 14:
            return {}
        raise BackendError("no driver answers")

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            raise over

    async def work() -> None:
        timings = Timings(occupied_check=5.0, occupied_retry=60.0)
        occupied = Occupied(nodes.backend.context, replace(STANDARD, timings=timings), dict, ask, sleep=sleep)
        with suppress(over):
            async for _ in occupied.watch():
                pass

    asyncio.run(work())
    longest = [10, 20, 40, *[60] * 8]
    assert pauses[0] == pauses[12] == pauses[13] == 5
    assert all(one / 2 <= pause <= one for one, pause in zip(longest, pauses[1:12], strict=True))
    assert 5 <= pauses[14] <= 10, "it begins again"
    assert len(set(pauses[4:12])) > 1, "GPUs of many nodes are not asked at the same moments"
