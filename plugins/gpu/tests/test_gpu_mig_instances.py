"""Creating and destroying MIG instances through NVML: against the stub library, with the real binding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from devhost_gpu.environment import STANDARD
from devhost_gpu.nvml.client import NvmlClient, binding
from devhost_gpu.nvml.reports import Partitions, Placement
from gpu_mig import MODELS
from gpu_nvidia import DGX, NvidiaMachine

from devhost.backend.errors import BackendError
from devhost.discovery.runner import ServiceContext

A = DGX[0]
PATIENCE = 60.0
Client = Callable[[], NvmlClient]


@pytest.fixture
def client(nvidia: NvidiaMachine) -> Iterator[Client]:
    made: list[NvmlClient] = []

    def make() -> NvmlClient:
        made.append(NvmlClient(ServiceContext("gpu", nvidia.root), "/", lambda _: None))
        return made[-1]

    yield make
    for one in made:
        one.close()
        assert all(process.wait(PATIENCE) for process in one.processes)


def place(name: str, start: int) -> Placement:
    """Where an H100 can have an instance of a profile."""
    one = next(one for one in MODELS["H100-80"] if one.name == name)
    return Placement(one.id, start, one.size, name)


def read(client: NvmlClient) -> Partitions:
    return client.placements(A, PATIENCE)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_profiles_and_placements_are_those_of_the_model(
    nvidia: NvidiaMachine, client: Client, model: str
) -> None:
    nvidia.divisible(A, model)
    found = read(client())
    assert {one.name: one.profile for one in found.profiles} == {one.name: one.id for one in MODELS[model]}
    places = {(one.name, at.start, at.size) for one in found.profiles for at in one.placements}
    assert places == {(one.name, start, one.size) for one in MODELS[model] for start in one.starts}
    assert {(one.name, one.multiprocessors, one.memory, one.ofa_engines) for one in found.profiles} == {
        (one.name, one.sm, one.memory, one.ofa) for one in MODELS[model]
    }


def test_an_instance_is_created_where_it_was_asked_for_and_destroyed(
    nvidia: NvidiaMachine, client: Client
) -> None:
    nvidia.divisible(A)
    nvml = client()
    wanted = place("2g.20gb", 4)
    made = nvml.create(A, wanted, PATIENCE)
    assert [(one.gi, one.placement, len(one.computes)) for one in read(nvml).instances] == [
        (made.gi, wanted, 1)
    ]
    assert [one["uuid"] for one in nvidia.nvml.instances() if one["word"] == "mig"] == [made.uuid]
    assert nvml.destroy(A, wanted, PATIENCE)
    assert not nvml.destroy(A, wanted, PATIENCE)
    assert nvidia.nvml.instances() == []


def test_an_instance_that_overlaps_another_is_refused_with_the_reason(
    nvidia: NvidiaMachine, client: Client
) -> None:
    nvidia.nvml.partition(nvidia.divisible(A), "3g.40gb", 0)
    nvml = client()
    with pytest.raises(BackendError) as refused:
        nvml.create(A, place("1g.10gb", 2), PATIENCE)
    assert (
        refused.value.message
        == "cannot create a GPU instance 1g.10gb at memory slice 2: not enough of the GPU is free"
    )


def test_an_instance_of_others_is_not_taken_over(nvidia: NvidiaMachine, client: Client) -> None:
    nvidia.nvml.partition(nvidia.divisible(A), "3g.40gb", 0)
    nvml = client()
    with pytest.raises(BackendError, match="there is one already"):
        nvml.create(A, place("3g.40gb", 0), PATIENCE)
    assert len(read(nvml).instances) == 1


@pytest.mark.parametrize("crash", ["before", "after"])
@pytest.mark.parametrize(
    "call", ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceCreateComputeInstance"]
)
def test_a_creation_that_was_interrupted_is_resumed(
    nvidia: NvidiaMachine, client: Client, call: str, crash: str
) -> None:
    nvidia.divisible(A)
    nvml = client()
    wanted = place("3g.40gb", 4)
    fault = nvidia.nvml.fault(call, crash=crash)
    with pytest.raises(BackendError):
        nvml.create(A, wanted, PATIENCE)
    nvidia.nvml.fix(fault)
    made = nvml.create(A, wanted, PATIENCE, resume=True)
    assert made == nvml.create(A, wanted, PATIENCE, resume=True)
    assert [one.placement for one in read(nvml).instances] == [wanted]


def test_an_instance_that_others_replaced_is_neither_completed_nor_destroyed(
    nvidia: NvidiaMachine, client: Client
) -> None:
    nvidia.divisible(A)
    nvml = client()
    wanted = place("3g.40gb", 4)
    made = nvml.create(A, wanted, PATIENCE)
    assert [one.uuids for one in read(nvml).instances] == [(made.uuid,)]
    nvidia.nvml.made.unlink()
    theirs = nvidia.nvml.partition(nvidia.uuids[A], "3g.40gb", 4, gi=9)
    with pytest.raises(BackendError, match="there is one already"):
        nvml.create(A, wanted, PATIENCE, resume=True, uuid=made.uuid)
    assert not nvml.destroy(A, wanted, PATIENCE, uuid=made.uuid)
    assert [one.uuids for one in read(nvml).instances] == [(theirs,)]


@pytest.mark.parametrize("crash", ["before", "after"])
@pytest.mark.parametrize("call", ["nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"])
def test_a_destruction_that_was_interrupted_is_resumed(
    nvidia: NvidiaMachine, client: Client, call: str, crash: str
) -> None:
    nvidia.divisible(A)
    nvml = client()
    wanted = place("3g.40gb", 4)
    nvml.create(A, wanted, PATIENCE)
    fault = nvidia.nvml.fault(call, crash=crash)
    with pytest.raises(BackendError):
        nvml.destroy(A, wanted, PATIENCE)
    nvidia.nvml.fix(fault)
    nvml.destroy(A, wanted, PATIENCE)
    assert nvidia.nvml.instances() == []


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (4, "permission denied (run devhost as root)"),
        (19, "it is in use by a process"),
        (999, "NVML: Unknown"),
    ],
)
def test_an_error_of_the_driver_is_the_reason(
    nvidia: NvidiaMachine, client: Client, number: int, reason: str
) -> None:
    nvidia.divisible(A)
    nvml = client()
    wanted = place("1g.10gb", 0)
    nvidia.nvml.fault("nvmlDeviceCreateGpuInstanceWithPlacement", error=number)
    with pytest.raises(BackendError) as refused:
        nvml.create(A, wanted, PATIENCE)
    assert reason in refused.value.message
    assert "\n" not in refused.value.message


def test_a_gpu_with_mig_off_has_profiles_and_no_instances(nvidia: NvidiaMachine, client: Client) -> None:
    uuid = nvidia.divisible(A)
    nvidia.nvml.gpus[uuid]["mig"] = 0
    nvidia.nvml.write()
    nvml = client()
    found = read(nvml)
    assert found.instances == ()
    with pytest.raises(BackendError, match="MIG mode is off"):
        nvml.create(A, place("1g.10gb", 0), PATIENCE)


def test_a_series_of_requests_starts_nvml_once_and_then_releases_the_driver(nvidia: NvidiaMachine) -> None:
    nvidia.divisible(A)
    starts: list[str] = []

    def find_binding() -> str:
        starts.append(binding())
        return starts[-1]

    environment = replace(STANDARD, find_binding=find_binding)
    nvml = NvmlClient(ServiceContext("gpu", nvidia.root), "/", lambda _: None, environment)
    with nvml.series(A, PATIENCE):
        for wanted in (place("3g.40gb", 0), place("3g.40gb", 4)):
            nvml.create(A, wanted, PATIENCE)
        assert nvml.destroy(A, wanted, PATIENCE)
        assert len(nvml.processes) == len(starts) == 1
    assert nvml.processes == []
    assert [one.placement.start for one in read(nvml).instances] == [0]


def test_a_call_that_hangs_is_killed_at_the_deadline(nvidia: NvidiaMachine, client: Client) -> None:
    nvidia.divisible(A)
    nvml = client()
    wanted = place("1g.10gb", 0)
    hang = nvidia.nvml.fault("nvmlDeviceCreateGpuInstanceWithPlacement", hang=600)
    with pytest.raises(BackendError, match="NVML did not answer within 1 s"):
        nvml.create(A, wanted, 1.0)
    assert nvml.processes == []
    nvidia.nvml.fix(hang)
    assert nvidia.nvml.instances() == []
