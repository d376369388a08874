"""MIG instances that devhost creates for claims: on the stub NVML, with the geometry of real GPUs."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable

import pytest
from devhost_gpu.nvidia.partitions import FILE
from devhost_gpu.options import NO_OPTIONS, GpuOptions
from gpu_mig import MODELS
from gpu_mig_node import DYNAMIC, A, Node
from gpu_nvidia import NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk

from devhost.backend import AllocateRequest, AllocationError, Device, OptionError

Open = Callable[..., NvidiaDesk]


@pytest.fixture
def node(nvidia: NvidiaMachine, at: Open) -> Node:
    nvidia.divisible(A)
    return Node(nvidia, at)


def offered(devices: dict[str, Device]) -> set[tuple[str, int]]:
    """The profiles and places that are offered on demand."""
    return {
        (str(one.attributes["profile"]), int(name.rpartition("-")[2]))
        for name, one in devices.items()
        if one.divided
    }


# What is offered


@pytest.mark.parametrize("model", sorted(MODELS))
def test_every_profile_is_offered_at_every_place(nvidia: NvidiaMachine, at: Open, model: str) -> None:
    nvidia.divisible(A, model)
    node = Node(nvidia, at)
    assert offered(node.desk.look()) == {(one.name, start) for one in MODELS[model] for start in one.starts}
    assert all(len(name) <= 63 for name in node.desk.look())


def test_the_whole_gpu_is_not_offered_while_it_is_divided(node: Node) -> None:
    whole = node.desk.look()[node.machine.uuids[A]]
    assert whole.withheld == "MIG is on: its partitions are offered instead"
    assert not whole.divided


def test_nothing_is_offered_on_demand_without_the_key(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.divisible(A)
    assert [*at(nvidia).look()] == [nvidia.uuids[A]]


def test_an_instance_of_an_administrator_is_offered_as_it_is_and_takes_its_place(node: Node) -> None:
    theirs = node.machine.nvml.partition(node.machine.uuids[A], "3g.40gb", 0)
    found = node.desk.look()
    assert found[theirs].withheld is None
    assert offered(found) == {
        (one.name, start) for one in MODELS["H100-80"] for start in one.starts if start >= 4
    }
    whole = MODELS["H100-80"][-1]
    free = node.device("1g.10gb", 4).counters
    assert free["multiprocessors"] == whole.sm - 60
    assert "which devhost did not create" in str(node.device("1g.10gb", 3).withheld)


def test_labels_count_the_instances_of_an_administrator_only(node: Node) -> None:
    node.machine.nvml.partition(node.machine.uuids[A], "3g.40gb", 0)
    node.prepare("2g.20gb", 4)
    labels = node.desk.backend.labels([*node.desk.look().values()], {})
    counts = {name: value for name, value in labels.items() if name.endswith("count")}
    assert counts == {"nvidia.com/gpu.count": 1, "nvidia.com/mig-3g.40gb.count": 1}
    assert labels["nvidia.com/mig.capable"] == "true"


def test_media_engines_of_which_there_is_one_are_given_once(node: Node) -> None:
    node.machine.nvml.partition(node.machine.uuids[A], "1g.10gb+me", 0)
    reason = node.device("1g.10gb+me", 5).withheld
    assert reason == "the rest of the GPU has no free ofa-engines"


def test_profiles_that_cannot_be_read_are_the_reason(nvidia: NvidiaMachine, at: Open) -> None:
    uuid = nvidia.divisible(A)
    nvidia.nvml.fault("nvmlDeviceGetGpuInstanceProfileInfoV", error=999)
    reason = at(nvidia, DYNAMIC).look()[uuid].withheld
    assert reason == (
        "MIG is on, but its profiles cannot be read: cannot read the MIG profiles: NVML: Unknown Error"
    )


# What claims get


def test_a_claim_gets_an_instance_that_is_created_for_it(node: Node) -> None:
    edits = node.prepare("2g.20gb", 4)
    (made,) = [one for one in node.machine.nvml.instances() if one["word"] == "mig"]
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == made["uuid"]
    assert node.instances() == [(4, 2)]
    assert made["uuid"] not in node.desk.look()


def test_device_nodes_are_those_of_the_instance(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.divisible(A)
    options = GpuOptions(mig="dynamic", device_list_strategy="device-specs")
    held: set[str] = set()
    desk = at(nvidia, options, held=lambda: frozenset(held))
    device = next(one for one in desk.look().values() if one.divided)
    held.add(f"device:gpu/{device.id}")
    nodes = {one.path for one in desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS)).nodes}
    assert {"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap3", "/dev/nvidia-caps/nvidia-cap4"} <= nodes


def test_preparing_again_gives_the_same_and_creates_nothing(node: Node) -> None:
    first = node.prepare("1g.10gb", 0)
    node.machine.nvml.fault("nvmlDeviceCreateGpuInstanceWithPlacement", error=999)
    assert node.prepare("1g.10gb", 0) == first
    node.crash()
    node.start()
    assert node.prepare("1g.10gb", 0) == first


def test_an_instance_is_destroyed_once_its_claim_is_released(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.prepare("3g.40gb", 4)
    node.unprepare("1g.10gb", 0)
    node.settle()
    assert node.instances() == [(4, 4)]
    assert node.device("1g.10gb", 0).health


def test_a_claim_that_follows_at_once_does_not_wait_for_the_one_before(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.prepare("1g.10gb", 1)
    node.unprepare("1g.10gb", 0)
    node.unprepare("1g.10gb", 1)
    node.prepare("2g.20gb", 0)
    assert node.instances() == [(0, 2)]


def test_what_a_prepare_that_took_too_long_created_is_there_for_the_next(
    nvidia: NvidiaMachine, at: Open
) -> None:
    nvidia.divisible(A)
    held: set[str] = set()
    desk = at(nvidia, DYNAMIC, held=lambda: frozenset(held))
    device = next(one for one in desk.look().values() if one.divided)
    held.add(f"device:gpu/{device.id}")
    first = desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS))
    held.clear()
    desk.settle()
    desk.until(lambda: all(one.name != "mig-instances" for one in threading.enumerate()))
    nvidia.nvml.fault("nvmlDeviceCreateGpuInstanceWithPlacement", error=999)
    held.add(f"device:gpu/{device.id}")
    assert desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS)) == first
    held.clear()
    desk.clock.ahead += 30
    desk.until(lambda: (desk.look(), desk.settle(), not nvidia.nvml.instances())[2])


def test_nothing_is_destroyed_while_it_is_unknown_what_claims_hold(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.crash()
    node.held = None
    node.start()
    node.try_to_settle()
    assert node.instances() == [(0, 1)]


def test_an_instance_in_use_makes_its_place_unhealthy_until_it_is_destroyed(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.unprepare("1g.10gb", 0)
    busy = node.machine.nvml.fault("nvmlComputeInstanceDestroy", error=19)
    reason = "cannot destroy the GPU instance 1g.10gb at memory slice 0: it is in use by a process"

    def stuck() -> bool:
        node.desk.settle()
        return node.device("3g.40gb", 0).health.reason == reason

    node.desk.until(stuck)
    assert node.device("1g.10gb", 0).health.reason == reason
    assert node.device("3g.40gb", 4).health
    with pytest.raises(AllocationError, match="in use by a process"):
        node.prepare("2g.20gb", 0)
    node.machine.nvml.fix(busy)
    node.settle()
    assert node.instances() == []
    assert node.device("3g.40gb", 0).health


def test_an_error_of_the_driver_is_the_reason_of_the_claim(node: Node) -> None:
    node.machine.nvml.fault("nvmlDeviceCreateGpuInstanceWithPlacement", error=4)
    with pytest.raises(AllocationError) as refused:
        node.prepare("1g.10gb", 0)
    assert str(refused.value) == (
        f"{node.id('1g.10gb', 0)}: cannot create a GPU instance 1g.10gb at memory slice 0: permission denied "
        "(run devhost as root)"
    )


def test_a_driver_that_hangs_is_given_up_at_the_deadline(nvidia: NvidiaMachine, at: Open) -> None:
    nvidia.divisible(A)
    held: set[str] = set()
    desk = at(nvidia, DYNAMIC, held=lambda: frozenset(held), instances=3.0)
    device = next(one for one in desk.look().values() if one.divided)
    held.add(f"device:gpu/{device.id}")
    hang = nvidia.nvml.fault("nvmlDeviceCreateGpuInstanceWithPlacement", hang=600)
    with pytest.raises(AllocationError, match="NVML did not answer within 3 s"):
        desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS))
    nvidia.nvml.fix(hang)
    desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS))
    assert len(nvidia.nvml.instances()) == 2


def test_without_a_claim_that_holds_it_nothing_is_created_or_destroyed(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    for name, start in (("7g.80gb", 0), ("1g.10gb", 1)):  # what admin access asks for
        device = node.device(name, start)
        with pytest.raises(AllocationError, match="admin access does not create it"):
            node.desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS))
    assert node.instances() == [(0, 1)]


def test_an_instance_of_a_claim_is_not_destroyed_for_another_one(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    with pytest.raises(AllocationError, match="a claim may still use the MIG instance"):
        node.prepare("3g.40gb", 0)
    assert node.instances() == [(0, 1)]


def test_a_claim_gets_no_instance_that_is_being_destroyed(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.desk.look()
    node.unprepare("1g.10gb", 0)
    hang = node.machine.nvml.fault("nvmlComputeInstanceDestroy", hang=600)
    node.desk.settle()
    node.desk.until(lambda: node.desk.nvidia.client.processes[1:])  # of this destruction
    ends = threading.Timer(0.5, lambda: node.machine.nvml.fix(hang))
    ends.start()
    edits = node.prepare("1g.10gb", 0)
    ends.join()
    node.settle()
    (made,) = [one for one in node.machine.nvml.instances() if one["word"] == "mig"]
    assert edits.env["NVIDIA_VISIBLE_DEVICES"] == made["uuid"]


def test_a_claim_that_waits_for_another_instance_too_long_is_refused_with_the_reason(
    nvidia: NvidiaMachine, at: Open
) -> None:
    nvidia.divisible(A)
    held: set[str] = set()
    desk = at(nvidia, DYNAMIC, held=lambda: frozenset(held), instances=6.0, kept=0.0)
    first, other = [one for one in desk.look().values() if one.attributes.get("profile") == "3g.40gb"]
    held.add(f"device:gpu/{first.id}")
    desk.backend.allocate(AllocateRequest((first,), NO_OPTIONS))
    held.clear()
    nvidia.nvml.fault("nvmlComputeInstanceDestroy", hang=600)
    desk.settle()
    desk.until(lambda: desk.nvidia.client.processes[1:])  # of the destruction
    held.add(f"device:gpu/{other.id}")
    with pytest.raises(AllocationError, match="another MIG instance is being created or destroyed"):
        desk.backend.allocate(AllocateRequest((other,), NO_OPTIONS))


@pytest.mark.parametrize("end", ["release", "close"])
def test_no_further_instance_is_destroyed_after_the_driver_is_released(node: Node, end: str) -> None:
    node.prepare("1g.10gb", 0)
    node.prepare("1g.10gb", 1)
    node.desk.look()
    node.unprepare("1g.10gb", 0)
    node.unprepare("1g.10gb", 1)
    hang = node.machine.nvml.fault("nvmlComputeInstanceDestroy", hang=600)
    node.desk.settle()
    node.desk.until(lambda: node.desk.nvidia.client.processes[1:])  # of the first destruction
    node.desk.nvidia.release() if end == "release" else node.desk.nvidia.close()
    node.machine.nvml.fix(hang)
    node.desk.until(lambda: all(one.name != "mig-instances" for one in threading.enumerate()))
    assert len(node.instances()) == (2 if end == "release" else 1)
    assert len(node.recorded()) == 2, "what comes after it finds out what was destroyed"
    node.crash()
    node.start()
    node.settle()
    assert not node.instances()


# Crashes, restarts and others


CREATING = ("nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance")
DESTROYING = ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", CREATING)
def test_what_an_interrupted_creation_left_is_destroyed_at_the_next_start(
    node: Node, call: str, when: str
) -> None:
    fault = node.machine.nvml.fault(call, crash=when)
    with pytest.raises(AllocationError):
        node.prepare("3g.40gb", 4)
    node.crash()
    node.machine.nvml.fix(fault)
    node.start()
    node.settle()
    assert node.instances() == []


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", CREATING)
def test_an_interrupted_creation_is_completed_by_the_next_try(node: Node, call: str, when: str) -> None:
    fault = node.machine.nvml.fault(call, crash=when)
    with pytest.raises(AllocationError):
        node.prepare("3g.40gb", 4)
    node.machine.nvml.fix(fault)
    node.prepare("3g.40gb", 4)
    assert node.instances() == [(4, 4)]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", DESTROYING)
def test_an_interrupted_destruction_is_completed_after_a_restart(node: Node, call: str, when: str) -> None:
    node.prepare("3g.40gb", 4)
    node.unprepare("3g.40gb", 4)
    fault = node.machine.nvml.fault(call, crash=when)
    node.desk.until(lambda: node.desk.settle() or not node.device("3g.40gb", 4).health or not node.recorded())
    node.crash()
    node.machine.nvml.fix(fault)
    node.start()
    node.settle()
    assert node.instances() == []


def test_the_record_is_written_before_an_instance_is_created(node: Node) -> None:
    node.machine.nvml.fault("nvmlDeviceCreateGpuInstanceWithPlacement", crash="after")
    with pytest.raises(AllocationError):
        node.prepare("1g.10gb", 6)
    assert node.recorded() == [{"device": node.id("1g.10gb", 6)}]


def test_without_a_record_nothing_is_created(node: Node) -> None:
    directory = node.machine.root / "run"
    directory.mkdir(exist_ok=True)
    (directory / "devhost").write_text("not a directory")
    with pytest.raises(AllocationError, match="devhost creates no MIG instance without it"):
        node.prepare("1g.10gb", 0)
    assert node.instances() == []


@pytest.mark.parametrize("damage", ["lost", "broken", "other boot", "other version"])
def test_without_its_record_devhost_destroys_nothing(node: Node, damage: str) -> None:
    node.prepare("1g.10gb", 0)
    node.crash()
    file = node.machine.root / FILE.lstrip("/")
    document = json.loads(file.read_bytes())
    if damage == "lost":
        file.unlink()
    elif damage == "broken":
        file.write_text("{")
    else:
        key = {"other boot": "boot", "other version": "version"}[damage]
        file.write_text(json.dumps({**document, key: "another"}))
    node.held = set()
    node.start()
    node.try_to_settle()
    assert node.instances() == [(0, 1)]
    assert "which devhost did not create" in str(node.device("1g.10gb", 0).withheld)


def test_an_instance_of_others_in_the_place_is_neither_used_nor_destroyed(node: Node) -> None:
    device = node.device("3g.40gb", 0)
    node.machine.nvml.partition(node.machine.uuids[A], "3g.40gb", 0)  # after the scan
    node.held = {f"device:gpu/{device.id}"}
    with pytest.raises(AllocationError, match="there is one already"):
        node.desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS))
    node.held = set()
    node.crash()
    node.start()
    node.settle()
    assert node.instances() == [(0, 4)]


def test_what_others_create_in_the_place_of_a_creation_that_was_refused_is_theirs(node: Node) -> None:
    fault = node.machine.nvml.fault("nvmlDeviceCreateGpuInstanceWithPlacement", error=23)
    with pytest.raises(AllocationError, match="not enough of the GPU is free"):
        node.prepare("3g.40gb", 0)
    theirs = node.machine.nvml.partition(node.machine.uuids[A], "3g.40gb", 0)  # before the next scan
    node.machine.nvml.fix(fault)
    node.settle()
    assert node.instances() == [(0, 4)]
    assert node.desk.look()[theirs].withheld is None


def test_nothing_is_recorded_of_a_creation_that_does_not_begin(node: Node) -> None:
    device = node.device("1g.10gb", 0)
    node.held = {f"device:gpu/{device.id}"}
    node.desk.nvidia.client.close()
    with pytest.raises(AllocationError, match="NVML is released"):
        node.desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS))
    assert node.recorded() == []


@pytest.mark.parametrize("call", ["nvmlInit_v2", "nvmlDeviceGetGpuInstances"])
def test_what_others_put_in_the_place_of_an_instance_is_theirs_although_completing_it_failed(
    node: Node, call: str
) -> None:
    node.prepare("1g.10gb", 0)
    node.crash()
    held, node.held = node.held, None  # as long as this is unknown, nothing is forgotten
    node.machine.nvml.made.unlink()
    node.start()
    device = node.device("1g.10gb", 0)
    theirs = node.machine.nvml.partition(node.machine.uuids[A], "1g.10gb", 0, gi=9)
    node.held = held
    fault = node.machine.nvml.fault(call, crash="before")
    with pytest.raises(AllocationError):
        node.desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS))
    node.machine.nvml.fix(fault)
    node.held = set()
    node.settle()
    assert node.instances() == [(0, 1)]
    assert node.desk.look()[theirs].withheld is None


def test_an_instance_that_is_gone_is_created_again_for_a_claim(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.crash()
    held, node.held = node.held, None
    node.machine.nvml.made.unlink()
    node.start()
    device = node.device("1g.10gb", 0)
    node.held = held
    node.desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS))
    assert node.instances() == [(0, 1)]
    node.held = set()
    node.settle()
    assert node.instances() == []


def test_an_instance_that_others_destroyed_is_forgotten(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.machine.nvml.made.unlink()
    node.desk.until(lambda: node.desk.look() and not node.recorded())
    theirs = node.machine.nvml.partition(node.machine.uuids[A], "1g.10gb", 0)
    node.held = set()
    node.settle()
    assert node.desk.look()[theirs].withheld is None


def replaced(node: Node) -> str:
    """Replaces the only instance by one of another program in the same place; its UUID."""
    node.machine.nvml.made.unlink()
    return node.machine.nvml.partition(node.machine.uuids[A], "1g.10gb", 0, gi=9)


def test_what_others_created_in_the_same_place_while_devhost_was_down_is_theirs(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.crash()
    theirs = replaced(node)
    node.held = set()
    node.start()
    node.settle()
    assert node.instances() == [(0, 1)]
    assert node.desk.look()[theirs].withheld is None


def test_a_claim_whose_instance_others_replaced_has_lost_it(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    theirs = replaced(node)
    node.desk.until(lambda: not node.device("1g.10gb", 0).health)
    assert "no longer exists" in str(node.device("1g.10gb", 0).health.reason)
    with pytest.raises(AllocationError, match="which devhost did not create"):
        node.prepare("1g.10gb", 0)
    node.held = set()
    node.settle()
    assert node.instances() == [(0, 1)]
    assert node.desk.look()[theirs].withheld is None


def test_a_record_without_uuids_is_that_of_an_earlier_version(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.crash()
    file = node.machine.root / FILE.lstrip("/")
    document = json.loads(file.read_bytes())
    del document["uuids"]
    file.write_text(json.dumps(document))
    node.held = set()
    node.start()
    node.settle()
    assert node.instances() == []


def test_the_instance_of_a_claim_is_not_offered_when_its_record_was_lost(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.crash()
    (node.machine.root / FILE.lstrip("/")).unlink()
    node.start()
    (mig,) = [one["uuid"] for one in node.machine.nvml.instances() if one["word"] == "mig"]
    device = node.id("1g.10gb", 0)
    assert node.desk.look()[mig].withheld == f"it may be the instance of a claim, which got {device}"
    node.held = set()
    assert node.desk.look()[mig].withheld is None


def test_a_claim_whose_instance_others_destroyed_has_an_unhealthy_device(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.machine.nvml.made.unlink()  # as a reset of the GPU does
    reason = "its MIG instance no longer exists (delete the pods that hold it)"
    node.desk.until(lambda: node.device("1g.10gb", 0).health.reason == reason)
    assert node.device("1g.10gb", 1).health
    node.unprepare("1g.10gb", 0)
    node.desk.settle()
    assert node.device("1g.10gb", 0).health
    node.prepare("1g.10gb", 0)
    node.machine.nvml.made.unlink()
    node.desk.until(lambda: not node.device("1g.10gb", 0).health)
    node.prepare("1g.10gb", 0)
    assert node.device("1g.10gb", 0).health


def test_a_reboot_leaves_nothing_to_destroy(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    node.crash()
    node.machine.nvml.made.unlink()
    node.machine.tree.file("/proc/sys/kernel/random/boot_id", "another-boot")
    theirs = node.machine.nvml.partition(node.machine.uuids[A], "1g.10gb", 0)
    node.held = set()
    node.start()
    node.try_to_settle()
    assert node.instances() == [(0, 1)]
    assert node.desk.look()[theirs].withheld is None


def test_instances_that_were_lost_when_mig_was_switched_off_are_forgotten(node: Node) -> None:
    node.prepare("1g.10gb", 0)
    gpu = node.machine.nvml.gpus[node.machine.uuids[A]]
    gpu["mig"] = 0
    node.machine.nvml.made.unlink()
    node.machine.nvml.write()
    node.desk.until(lambda: node.desk.look() and not node.recorded())
    gpu["mig"] = 1
    node.machine.nvml.write()
    theirs = node.machine.nvml.partition(node.machine.uuids[A], "1g.10gb", 0)
    node.held = set()
    node.settle()
    assert node.instances() == [(0, 1)]
    assert node.desk.look()[theirs].withheld is None


@pytest.mark.parametrize(
    "hostile", ["nested", "infinite", "large", "a pipe", "a directory", "of a writable file"]
)
def test_a_record_that_devhost_did_not_write_is_ignored(node: Node, hostile: str) -> None:
    node.prepare("1g.10gb", 0)
    node.crash()
    file = node.machine.root / FILE.lstrip("/")
    document = json.loads(file.read_bytes())
    text = json.dumps(document)
    if hostile == "of a writable file":
        file.chmod(0o666)
    else:
        file.unlink()
    if hostile == "nested":
        file.write_text("[" * 500_000)
    elif hostile == "infinite":
        document["made"][0][2] = float("inf")
        file.write_text(json.dumps(document))
    elif hostile == "large":
        file.write_text(" " * (2 << 20) + text)
    elif hostile == "a pipe":
        os.mkfifo(file)
    elif hostile == "a directory":
        file.mkdir()
    node.held = set()
    node.start()
    node.try_to_settle()
    assert node.instances() == [(0, 1)]


def test_a_driver_that_is_being_unloaded_is_not_opened_to_create_an_instance(node: Node) -> None:
    device = node.device("1g.10gb", 0)
    node.machine.tree.file("/sys/module/nvidia/initstate", "going")
    node.desk.look()
    with pytest.raises(AllocationError):
        node.desk.backend.allocate(AllocateRequest((device,), NO_OPTIONS))
    assert node.instances() == []


def test_the_next_devhost_knows_what_the_one_before_created_while_it_waited(node: Node, at: Open) -> None:
    held: set[str] | None = None
    following = at(node.machine, DYNAMIC, held=lambda: None if held is None else frozenset(held), check=0.05)
    following.look()
    node.prepare("2g.20gb", 4)
    assert offered(following.look()) == offered(node.desk.look())
    assert all(one.withheld or one.attributes["kind"] == "gpu" for one in following.look().values())
    node.crash()
    held = node.held
    following.settle()
    following.look()
    assert node.instances() == [(4, 2)]
    held = set()
    following.until(lambda: (following.look(), following.settle(), not node.instances())[2])


def test_what_is_being_created_by_the_devhost_before_is_not_forgotten(node: Node, at: Open) -> None:
    following = at(node.machine, DYNAMIC, held=lambda: None)
    following.look()
    fault = node.machine.nvml.fault("nvmlDeviceCreateGpuInstanceWithPlacement", crash="before")
    with pytest.raises(AllocationError):
        node.prepare("2g.20gb", 4)
    node.machine.nvml.fix(fault)
    for _ in range(3):
        following.look()
    assert [one["device"] for one in node.recorded()] == [node.id("2g.20gb", 4)]


# The configuration


def test_cdi_names_are_refused_with_instances_on_demand() -> None:
    with pytest.raises(OptionError, match="dynamic cannot be together with cdi"):
        GpuOptions(mig="dynamic", device_list_strategy="cdi")
