"""GPUs are partitioned by the options, and never while a container has a part of them."""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from devhost_gpu import Gpu
from devhost_gpu.environment import STANDARD
from devhost_gpu.nvidia.layout import steps
from devhost_gpu.nvml.reports import GpuInstance, Partitions, Placement, Profile
from devhost_gpu.options import GpuOptions, Layout
from devhost_gpu.partitioning import FIRST_RETRY, LAST_RETRY, LEAVING
from devhost_testing.fixtures import BackendFixture, by_id
from gpu_amd_modes import AmdDriver
from gpu_mig import MODELS
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk
from gpu_setup import gpu_with
from hypothesis import given, strategies
from kit.machine import Provisioned

from devhost.backend import Device, NotYet
from devhost.backend.errors import BackendError, ConfigError
from devhost.backend.where import Block, Term, Text
from devhost.config import loads
from devhost.discovery import catalog

FIRST, SECOND = "0000:0c:00.0", "0000:1c:00.0"
GPU, GPU_REPORTED = DGX[0], "NVML has not answered"
CPX = Layout(compute="CPX")


class Machine(Provisioned):
    """devhost on MI300X: its options, and what pods hold."""

    def __init__(self, root: Path, looking: BackendFixture[Gpu]) -> None:
        super().__init__()
        self.driver = AmdDriver(root)
        self.now = 1000.0
        self._looking = looking

    def backend(self, *layouts: Layout) -> Gpu:
        """The backend with these options; a new one if they differ."""
        if self.running is None or self.running[0] != layouts:
            kind = gpu_with(replace(STANDARD, write=self.driver.write, clock=lambda: self.now))
            made = self._looking(
                self.driver.tree, GpuOptions(partitions=layouts), held=self.ask_held, kind=kind
            )
            made.discover()
            self.running = layouts, made
        return self.running[1]

    def once(self, *layouts: Layout) -> None:
        """One call, and the scan after it."""
        backend = self.backend(*layouts)
        try:
            backend.provision()
        finally:
            backend.discover()

    def devices(self) -> dict[str, Device]:
        """What is found now."""
        assert self.running
        return by_id(self.running[1])

    def hold(self, *devices: str) -> None:
        """Pods have these devices."""
        found = self.devices()
        claims = (found[one].claims | found[one].part_of | {f"device:gpu/{one}"} for one in devices)
        self.held = frozenset().union(*claims)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with BackendFixture(Gpu) as looking:
        yield Machine(tmp_path, looking)


def only(address: str, compute: str = "CPX") -> Layout:
    """A layout of one GPU."""
    where = (Block((Term("pciBusID", (Text(address, fold=True),)),)),)
    return Layout(where=where, compute=compute)  # type: ignore[arg-type]


def withheld(devices: dict[str, Device]) -> Sequence[str]:
    return [name for name, device in devices.items() if device.withheld]


# AMD


def test_a_gpu_is_withdrawn_and_then_gets_its_compute_mode(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "devhost.backend.gpu")
    with pytest.raises(NotYet, match=f"{FIRST} must be withdrawn first"):
        machine.once(only(FIRST))
    assert machine.driver.written == []
    assert {name: one.withheld for name, one in machine.devices().items()} == {FIRST: LEAVING, SECOND: None}
    machine.once(only(FIRST))
    assert machine.driver.written == [(FIRST, "CPX")]
    found = machine.devices()
    assert len(found) == 9 and withheld(found) == []
    assert {one.attributes["profile"] for one in found.values() if one.attributes.get("parent") == FIRST} == {
        "cpx_nps1"
    }
    assert f"{FIRST} was changed from SPX to CPX" in caplog.messages


def test_a_second_call_and_a_restart_write_nothing(machine: Machine) -> None:
    machine.bring(CPX)
    assert machine.driver.written == [(FIRST, "CPX"), (SECOND, "CPX")]
    machine.bring(CPX)
    machine.restart()
    machine.bring(CPX)
    assert machine.driver.tried == 2


def test_an_edited_layout_is_applied_and_a_removed_one_leaves_the_gpu_as_it_is(machine: Machine) -> None:
    machine.bring(CPX)
    machine.bring(Layout(compute="DPX"))
    assert machine.driver.compute == ["DPX", "DPX"]
    machine.bring()
    assert machine.driver.compute == ["DPX", "DPX"]


def test_the_first_layout_that_selects_a_gpu_counts(machine: Machine) -> None:
    machine.bring(only(SECOND, "DPX"), CPX)
    assert machine.driver.compute == ["CPX", "DPX"]


@pytest.mark.parametrize("part", [FIRST, "amdgpu_xcp_3"])
def test_a_gpu_of_which_a_pod_has_a_part_waits_and_the_other_does_not(machine: Machine, part: str) -> None:
    machine.bring(CPX)
    machine.hold(part)
    waits = rf"^{FIRST} keeps CPX instead of SPX while pods hold {part}$"
    with pytest.raises(NotYet, match="must be withdrawn"):
        machine.once(Layout(compute="SPX"))
    with pytest.raises(NotYet, match=waits) as caught:
        machine.once(Layout(compute="SPX"))
    assert f"device:gpu/{part}" in caught.value.held
    assert machine.driver.compute == ["CPX", "SPX"]
    assert withheld(machine.devices()) == []
    machine.held = frozenset()
    machine.bring(Layout(compute="SPX"))
    assert machine.driver.compute == ["SPX", "SPX"]


def test_at_most_three_held_parts_are_named(machine: Machine) -> None:
    machine.bring(CPX)
    machine.hold(*machine.devices())
    with pytest.raises(NotYet, match=rf"while pods hold {FIRST}, amdgpu_xcp_0, amdgpu_xcp_1 and 5 more"):
        machine.bring(Layout(compute="SPX"))


def test_a_gpu_that_another_backend_gave_to_a_pod_waits(machine: Machine) -> None:
    machine.held = frozenset({f"pci:{FIRST}", "device:sriov/0000:0c:00.0"})
    with pytest.raises(NotYet, match=f"{FIRST} keeps SPX instead of CPX while pods hold {FIRST}"):
        machine.bring(only(FIRST))


def test_nothing_changes_while_the_holders_are_unknown(machine: Machine) -> None:
    machine.held = None
    with pytest.raises(NotYet, match="it is not yet known which containers hold devices"):
        machine.bring(CPX)
    assert machine.driver.tried == 0 and withheld(machine.devices()) == []


def test_a_pod_that_gets_the_gpu_at_the_last_moment_keeps_it(machine: Machine) -> None:
    with pytest.raises(NotYet, match="must be withdrawn"):
        machine.once(only(FIRST))
    taken = frozenset({f"pci:{FIRST}"})
    machine.held_first, machine.held = [frozenset(), frozenset(), taken, taken], taken
    with pytest.raises(NotYet, match="while pods hold"):
        machine.once(only(FIRST))
    assert machine.driver.tried == 0 and withheld(machine.devices()) == []


def test_what_the_kernel_refuses_is_one_problem_that_is_tried_again_with_back_off(machine: Machine) -> None:
    machine.driver.refuses[FIRST] = errno.EBUSY
    with pytest.raises(NotYet):
        machine.once(CPX)
    reason = rf"^the kernel refuses CPX for {FIRST}: Device or resource busy \(a process outside the pods"
    with pytest.raises(BackendError, match=reason):
        machine.once(CPX)
    assert machine.driver.compute == ["SPX", "CPX"]  # the other GPU is not concerned
    delays, last, step = [], machine.now, FIRST_RETRY / 4
    while len(delays) < 6:
        machine.now += step
        tried = machine.driver.tried
        with pytest.raises(BackendError, match=reason):
            machine.once(CPX)
        if machine.driver.tried > tried:
            delays.append(machine.now - last)
            last = machine.now
        elif machine.now - last < FIRST_RETRY / 2:
            assert withheld(machine.devices()) == []  # it is offered meanwhile
    # each delay is shortened at random by up to one half; the call after its end withdraws the GPU
    longest = [FIRST_RETRY, 2 * FIRST_RETRY, 4 * FIRST_RETRY, 8 * FIRST_RETRY, LAST_RETRY, LAST_RETRY]
    assert all(one / 2 < delay <= one + 2 * step for one, delay in zip(longest, delays, strict=True)), delays
    machine.driver.refuses.clear()
    machine.now += LAST_RETRY
    with pytest.raises(BackendError, match=reason):
        machine.once(CPX)
    machine.once(CPX)
    assert machine.driver.compute == ["CPX", "CPX"]


def test_an_edit_after_a_refusal_is_tried_at_once(machine: Machine) -> None:
    machine.driver.refuses[FIRST] = errno.EPERM
    with pytest.raises(BackendError, match="Operation not permitted"):
        machine.bring(only(FIRST))
    machine.driver.refuses.clear()
    machine.bring(only(FIRST, "DPX"))
    assert machine.driver.compute[0] == "DPX"


def test_a_read_only_sysfs_is_named(machine: Machine) -> None:
    machine.driver.refuses[FIRST] = errno.EROFS
    with pytest.raises(BackendError, match=r"Read-only file system \(devhost needs a writable /sys\)"):
        machine.bring(only(FIRST))


def test_a_mode_that_the_gpu_does_not_have_is_refused_before_anything_is_withdrawn(machine: Machine) -> None:
    with pytest.raises(
        BackendError, match=f"{FIRST} cannot change from SPX to TPX, only to SPX, DPX, QPX, CPX"
    ):
        machine.once(only(FIRST, "TPX"))
    assert machine.driver.tried == 0 and withheld(machine.devices()) == []


def test_a_driver_that_ignores_a_write_is_a_failure(machine: Machine) -> None:
    machine.driver.ignores = True
    with pytest.raises(BackendError, match=f"{FIRST} stays in SPX, not CPX"):
        machine.bring(only(FIRST))


def test_a_memory_mode_is_noted_once_and_takes_effect_when_the_driver_is_loaded_again(
    machine: Machine,
) -> None:
    both = Layout(compute="CPX", memory="NPS4")
    waits = (
        rf"{FIRST} changes to NPS4 when its driver is loaded again \(drain the node, run modprobe -r amdgpu"
    )
    for _ in range(3):
        with pytest.raises(NotYet, match=waits):
            machine.once(both)
    assert machine.driver.written == [(FIRST, "NPS4"), (SECOND, "NPS4")]
    assert withheld(machine.devices()) == []  # until then it is used as it is
    machine.driver.reload()
    machine.bring(both)
    assert machine.driver.compute == ["CPX", "CPX"] and machine.driver.memory == ["NPS4", "NPS4"]


def test_a_memory_mode_that_was_lost_with_the_driver_is_noted_again(machine: Machine) -> None:
    layout = Layout(memory="NPS4")
    with pytest.raises(NotYet, match="loaded again"):
        machine.once(layout)
    machine.driver.forget()
    machine.driver.reload()
    with pytest.raises(NotYet, match="loaded again"):
        machine.once(layout)
    assert machine.driver.written == [(FIRST, "NPS4"), (SECOND, "NPS4")] * 2


def test_a_gpu_without_modes_is_a_problem_and_one_of_another_driver_is_not(machine: Machine) -> None:
    place = machine.driver.path(FIRST)
    for kind in ("current", "available"):
        (machine.driver.tree.root / f"{place[1:]}/{kind}_compute_partition").unlink()
    with pytest.raises(BackendError, match=f"{FIRST} has no compute modes"):
        machine.bring(only(FIRST))
    machine.driver.tree.bind(place, "vfio-pci")
    machine.restart()
    machine.bring(only(FIRST))


def test_gpus_that_vanish_are_forgotten(machine: Machine) -> None:
    machine.driver.refuses[FIRST] = errno.EBUSY
    with pytest.raises(BackendError):
        machine.bring(only(FIRST))
    machine.driver.tree.remove(machine.driver.path(FIRST))
    machine.once(only(FIRST))  # the scan after this call no longer finds it
    machine.once(only(FIRST))


# NVIDIA


@pytest.fixture
def h100(nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk]) -> MigDesk:
    nvidia.divisible(GPU)
    return MigDesk(nvidia, at)


class MigDesk(Provisioned):
    """devhost on an H100 in MIG mode: its options, and what pods hold."""

    def __init__(self, machine: NvidiaMachine, make: Callable[..., NvidiaDesk]) -> None:
        super().__init__()
        self.machine = machine
        self._make = make
        self._desks: dict[tuple[str, ...], NvidiaDesk] = {}

    def desk(self, *mig: str) -> NvidiaDesk:
        """The backend with this layout."""
        if mig not in self._desks:
            options = GpuOptions(partitions=(Layout(mig=mig),))
            made = self._desks[mig] = self._make(self.machine, options, held=self.ask_held)
            made.until(lambda: GPU_REPORTED not in str(made.reasons().values()))
        return self._desks[mig]

    def once(self, *mig: str) -> None:
        desk = self.desk(*mig)
        desk.look()
        desk.backend.provision()
        desk.look()

    @property
    def uuids(self) -> dict[str, str]:
        """The profile of each MIG device that the driver has, by its UUID."""
        found = [one for one in self.machine.nvml.instances() if one["word"] == "mig"]
        return {one["uuid"]: one["name"].rpartition(" ")[2] for one in found}

    @property
    def profiles(self) -> list[str]:
        """The profiles of the MIG devices that the driver has."""
        return sorted(self.uuids.values(), reverse=True)


def test_a_gpu_gets_its_mig_instances_and_keeps_them(h100: MigDesk) -> None:
    h100.bring("1g.10gb", "3g.40gb", "2g.20gb")
    assert h100.profiles == ["3g.40gb", "2g.20gb", "1g.10gb"]
    before = h100.uuids
    offered = h100.desk("1g.10gb", "3g.40gb", "2g.20gb").look()
    assert {name for name, one in offered.items() if not one.withheld} == before.keys()
    h100.bring("2g.20gb", "1g.10gb", "3g.40gb")  # another order, as after a restart
    assert h100.uuids == before


def test_an_edited_layout_keeps_instances_that_it_also_has(h100: MigDesk) -> None:
    h100.bring("3g.40gb", "1g.10gb", "1g.10gb")
    before = h100.uuids
    h100.bring("3g.40gb", "2g.20gb", "1g.10gb")
    assert h100.profiles == ["3g.40gb", "2g.20gb", "1g.10gb"]
    assert len(before.items() & h100.uuids.items()) == 2


def test_instances_in_the_way_of_a_layout_are_replaced(h100: MigDesk) -> None:
    h100.machine.nvml.partition(h100.machine.uuids[GPU], "1g.10gb", 2)
    h100.bring("4g.40gb", "1g.10gb")
    assert h100.profiles == ["4g.40gb", "1g.10gb"]


def test_an_empty_layout_removes_all_instances(h100: MigDesk) -> None:
    h100.bring("1g.10gb", "1g.10gb")
    h100.bring()
    assert h100.profiles == []


@pytest.mark.parametrize(
    ("mig", "reason"),
    [
        (("1g.5gb",), f"{GPU} has no MIG profile 1g.5gb, only 1g.10gb, 2g.20gb"),
        (("3g.40gb", "3g.40gb", "1g.10gb"), f"3g.40gb, 3g.40gb, 1g.10gb do not fit on {GPU} together"),
        (("1g.10gb+me", "1g.10gb+me"), "do not fit"),
        (("1g.20gb",) * 5, "do not fit"),
    ],
)
def test_an_impossible_layout_is_refused_before_anything_is_destroyed(
    h100: MigDesk, mig: tuple[str, ...], reason: str
) -> None:
    h100.bring("2g.20gb")
    before = h100.uuids
    with pytest.raises(BackendError, match=re.escape(reason)):
        h100.bring(*mig)
    assert h100.uuids == before
    assert [*h100.desk(*mig).reasons().values()] == ["MIG is on: its 1 instance is offered instead"]


def test_a_gpu_whose_instance_a_pod_has_keeps_all_of_them(h100: MigDesk) -> None:
    h100.bring("3g.40gb", "1g.10gb")
    first = min(h100.uuids)
    h100.held = frozenset({f"device:gpu/{first}", f"mig:{first}", f"pci:{GPU}"})
    with pytest.raises(
        NotYet, match=f"^{GPU} keeps 3g.40gb, 1g.10gb instead of 7g.80gb while pods hold {first}$"
    ):
        h100.bring("7g.80gb")
    assert h100.profiles == ["3g.40gb", "1g.10gb"]
    h100.held = frozenset()
    h100.bring("7g.80gb")
    assert h100.profiles == ["7g.80gb"]


def test_an_instance_in_use_by_another_process_is_one_problem_and_its_gpu_is_offered(h100: MigDesk) -> None:
    h100.bring("3g.40gb")
    fault = h100.machine.nvml.fault("nvmlComputeInstanceDestroy", error=19)
    with pytest.raises(BackendError, match=f"{GPU}: cannot destroy .* 3g.40gb .*: it is in use by a process"):
        h100.bring("7g.80gb")
    desk = h100.desk("7g.80gb")
    assert [*desk.reasons().values()] == ["MIG is on: its 1 instance is offered instead"]
    h100.machine.nvml.fix(fault)
    with pytest.raises(BackendError, match="in use"):
        desk.backend.provision()
    desk.clock.ahead += LAST_RETRY
    with pytest.raises(BackendError, match="in use"):
        desk.backend.provision()
    desk.look()
    desk.backend.provision()
    assert h100.profiles == ["7g.80gb"]


@pytest.mark.parametrize("call", ["nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceDestroy"])
@pytest.mark.parametrize("crash", ["before", "after"])
def test_a_change_that_was_interrupted_is_completed_after_a_restart(
    h100: MigDesk, call: str, crash: str
) -> None:
    h100.bring("3g.40gb", "1g.10gb")
    fault = h100.machine.nvml.fault(call, crash=crash)
    with pytest.raises(BackendError):
        h100.bring("4g.40gb", "1g.10gb", "1g.10gb")
    h100.machine.nvml.fix(fault)
    h100.bring("1g.10gb", "4g.40gb", "1g.10gb")  # a new backend, as after a restart
    assert h100.profiles == ["4g.40gb", "1g.10gb", "1g.10gb"]


def test_mig_that_is_off_is_a_problem_that_names_the_command(h100: MigDesk) -> None:
    h100.machine.nvml.gpus[h100.machine.uuids[GPU]].update(mig=0, mig_next=0)
    h100.machine.nvml.write()
    with pytest.raises(BackendError, match=rf"^MIG is off on {GPU} \(run nvidia-smi -i 0 -mig 1\)$"):
        h100.bring("1g.10gb")
    h100.bring()


MODEL_LAYOUTS = [
    (model, [MODELS[model][index].name for index in chosen])
    for model in MODELS
    for chosen in ((6,), (4, 4), (5, 3), (5, 4), (4, 3, 0), (3, 3, 3, 0), (0,) * 7, (1, 0, 0), (2,) * 4)
]


@pytest.mark.parametrize(("model", "mig"), MODEL_LAYOUTS)
def test_each_possible_layout_of_each_model_is_placed_without_overlap(model: str, mig: list[str]) -> None:
    found = steps(geometry(model), [], mig)
    assert found is not None and found.destroy == ()
    assert sorted(one.name for one in found.create) == sorted(mig)
    for number, one in enumerate(found.create):
        assert not any(map(one.overlaps, found.create[:number]))


@given(data=strategies.data())
def test_steps_lead_from_any_instances_to_exactly_the_wanted_ones(data: strategies.DataObject) -> None:
    model = data.draw(strategies.sampled_from(sorted(MODELS)))
    found = geometry(model)
    names = strategies.lists(strategies.sampled_from([one.name for one in found.profiles]), max_size=7)
    instances: list[GpuInstance] = []
    for name in data.draw(names):
        places = next(one.placements for one in found.profiles if one.name == name)
        free = [one for one in places if not any(one.overlaps(other.placement) for other in instances)]
        if free:
            place, computes = data.draw(strategies.sampled_from(free)), data.draw(strategies.integers(0, 2))
            instances.append(GpuInstance(len(instances) + 1, place, tuple(range(computes))))
    wanted = data.draw(names)
    todo = steps(Partitions(found.profiles, tuple(instances)), [], wanted)
    if todo is None:
        assert steps(found, [], wanted) is None  # it does not depend on what is there
        return
    kept = [one for one in instances if one.placement not in todo.destroy]
    after = {one.placement for one in kept} | {*todo.create}
    assert sorted(one.name for one in after) == sorted(wanted)
    assert not any(one.overlaps(other) for one in after for other in after if one != other)
    assert all(one.placement in todo.create for one in kept if not one.computes)
    assert all(len(one.computes) < 2 for one in kept)


def geometry(model: str) -> Partitions:
    """The profiles of a model without any instance."""
    return Partitions(
        tuple(
            Profile(
                *(one.id, one.name, one.slices, one.sm, one.copy, one.decoder, 0, one.jpeg, one.ofa),
                memory=one.memory,
                placements=tuple(Placement(one.id, start, one.size, one.name) for start in one.starts),
            )
            for one in MODELS[model]
        ),
        (),
    )


# The configuration


def complaints(partitions: str) -> list[str]:
    """Path and message of each error in a file with these partitions."""
    found = catalog.load()
    text = f"version: 1\nbackends: {{gpu: {{partitions: {partitions}}}}}\nresources: []\n"
    with pytest.raises(ConfigError) as caught:
        loads(text, "devhost.yaml", lambda paths, wanted: found)
    return [f"{one.path}: {one.message}" for one in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("partitions", "complaint"),
    [
        ("[{where: {vendor: amd}}]", "[0]: must have mig, compute or memory"),
        ("[{mig: [1g.10gb], compute: CPX}]", "[0].compute: is for AMD GPUs, and mig for those of NVIDIA"),
        ("[{where: {vendor: amd}, mig: []}]", "[0].where: selects no NVIDIA GPU"),
        ("[{where: {vendor: nvidia}, memory: NPS1}]", "[0].where: selects no AMD GPU"),
        ("[{compute: XPX}]", "[0].compute: must be one of SPX, DPX, TPX, QPX, CPX"),
        ("[{memory: NPS3}]", "[0].memory: must be one of NPS1, NPS2, NPS4, NPS8"),
        ("[{compute: SPX, memory: NPS2}]", "[0].memory: is impossible with compute: SPX"),
        ("[{mig: [1g.10gb, big]}]", '[0].mig[1]: "big" is not the name of a MIG profile'),
        ("[{mig: [1c.3g.40gb]}]", '[0].mig[0]: "1c.3g.40gb" is not the name of a MIG profile'),
        ("[{mig: [4g.40gb, 4g.40gb]}]", "[0].mig[1]: does not fit: a GPU has 7 compute slices"),
        ("[{where: {profile: spx_nps1}, compute: CPX}]", "[0].where: backend gpu has no attribute"),
        (
            "[{compute: CPX}, {where: {product: x}, memory: NPS1}]",
            "[1]: has no effect: partitions[0] selects",
        ),
        ("[{mig: []}], mig: dynamic", "[0].mig: cannot be together with mig: dynamic, which creates"),
        (f"[{', '.join(['{where: {uuid: a}, compute: CPX}'] * 101)}]", ": must have at most 100 members"),
    ],
)
def test_an_impossible_layout_is_refused_with_its_place(partitions: str, complaint: str) -> None:
    (found,) = complaints(partitions)
    assert found.startswith(f"backends.gpu.partitions{complaint}")


def test_possible_layouts_are_accepted() -> None:
    GpuOptions(
        partitions=(
            Layout(mig=("1g.10gb+me", "1g.10gb", "1g.20gb", "4g.40gb")),
            Layout(compute="QPX", memory="NPS4"),
        )
    )
    Layout(mig=())
    assert not GpuOptions().provisions and GpuOptions(partitions=(CPX,)).provisions
