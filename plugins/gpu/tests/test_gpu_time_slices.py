"""The time slices of shared NVIDIA GPUs: set before containers start, or refused with the reason."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from devhost_gpu.environment import Environment, Timings
from devhost_gpu.options import GpuOptions, GpuResourceOptions
from devhost_testing.kubelet import ContainerStartError
from devhost_testing.node import Node
from gpu_nvidia import DGX, NvidiaMachine
from gpu_nvidia_desk import NvidiaDesk
from gpu_setup import gpu_with
from kit.claims import config, uid
from kit.clock import AheadClock
from kit.dra import DRIVER, QUICK, DraNode

from devhost.backend import AllocateRequest, AllocationError, Device
from devhost.backend.errors import ConfigError
from devhost.config import load
from devhost.discovery import catalog
from devhost.dra.api import dra_v1_pb2 as v1

GPU = "nvidia.com/gpu"
LONG = GpuResourceOptions(time_slice="long")


class Smi:
    """NVIDIA's program on a machine: it writes down how it was called, and fails where a test wants that."""

    def __init__(self, root: Path, path: str = "usr/bin/nvidia-smi") -> None:
        self._calls, self._failure = root / "smi.calls", root / "smi.failure"
        program = root / path.lstrip("/")
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(
            "#!/bin/sh\n"
            f'[ -e "{self._failure}" ] && cat "{self._failure}" && exit 4\n'
            f'echo "$*" >> "{self._calls}"\n'
        )
        program.chmod(0o755)
        self._calls.touch()

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines()

    def fail(self, text: str) -> None:
        self._failure.write_text(text)

    def work(self) -> None:
        self._failure.unlink()


def gpus(nvidia: NvidiaMachine, desk: NvidiaDesk) -> tuple[Device, ...]:
    return tuple(device for device in desk.look().values() if not device.withheld)


@pytest.mark.parametrize(("wanted", "number"), [("default", 0), ("short", 1), ("medium", 2), ("long", 3)])
def test_each_gpu_of_a_container_gets_the_time_slice_of_its_entry(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk], wanted: str, number: int
) -> None:
    """The command is that of NVIDIA's DRA driver."""
    for address in DGX[:2]:
        nvidia.gpu(address)
    smi = Smi(nvidia.root)
    desk = at(nvidia)
    devices = gpus(nvidia, desk)
    desk.backend.prepare(AllocateRequest(devices, GpuResourceOptions(time_slice=wanted), GPU))  # type: ignore[arg-type]
    assert smi.calls == [f"compute-policy -i {one.id} --set-timeslice={number}" for one in devices]


@pytest.mark.parametrize(
    ("driver_root", "path"),
    [("/run/nvidia/driver", "usr/bin"), ("/home/kubernetes/bin/nvidia", "bin"), ("/", "usr/bin")],
)
def test_nvidia_smi_is_found_in_the_root_of_the_driver(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk], driver_root: str, path: str
) -> None:
    nvidia.gpu(DGX[0])
    smi = Smi(nvidia.root, f"{driver_root}/{path}/nvidia-smi")
    if driver_root != "/":
        Smi(nvidia.root)  # the host's is not that of the driver
    desk = at(nvidia, GpuOptions(driver_root=driver_root))
    desk.look()
    (card,) = (card for card in desk.backend.cards.values())
    desk.backend.prepare(AllocateRequest((card.device,), LONG, GPU))
    assert smi.calls


def test_without_the_key_nothing_is_set(nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk]) -> None:
    nvidia.gpu(DGX[0])
    smi = Smi(nvidia.root)
    desk = at(nvidia)
    assert not GpuResourceOptions().prepares
    desk.backend.prepare(AllocateRequest(gpus(nvidia, desk), GpuResourceOptions(), GPU))
    assert not smi.calls


def test_nothing_opens_the_driver_while_it_is_released(
    nvidia: NvidiaMachine, at: Callable[..., NvidiaDesk]
) -> None:
    nvidia.gpu(DGX[0])
    smi = Smi(nvidia.root)
    sign = "/run/nvidia/validations/.driver-ctr-ready"
    nvidia.tree.file(sign)
    Smi(nvidia.root, "/run/nvidia/driver/usr/bin/nvidia-smi")
    desk = at(nvidia, GpuOptions(driver_root="/run/nvidia/driver"))
    desk.look()
    (nvidia.root / sign[1:]).unlink()  # the GPU operator replaces the driver
    desk.look()
    (card,) = desk.backend.cards.values()
    with pytest.raises(AllocationError, match="cannot be set: the driver is released, or is being unloaded"):
        desk.backend.prepare(AllocateRequest((card.device,), LONG, GPU))
    assert not smi.calls


def test_a_claim_that_names_a_time_slice_for_an_instance_is_refused(
    station: NvidiaMachine, at: Callable[..., NvidiaDesk]
) -> None:
    desk = at(station)
    instance = next(one for one in desk.look().values() if one.attributes.get("kind") == "mig")
    with pytest.raises(AllocationError, match="timeSlice is for whole NVIDIA GPUs, which this is not"):
        desk.backend.prepare(AllocateRequest((instance,), LONG, GPU))


class SlicedNode(Node):
    """A machine with GPUs that containers share."""

    def __init__(self, place: Path, root: Path | None = None) -> None:
        self.clock = AheadClock()
        super().__init__(place, gpu_with(Environment(Timings(mps_check=0.1), clock=self.clock)), root=root)

    def share(self, where: str = "{vendor: nvidia, kind: gpu}", **entries: str) -> None:
        lines = "".join(f", timeSlice: {wanted}" for wanted in entries.values())
        entry = f"{{name: {GPU}, backend: gpu, where: {where}, share: {{replicas: 2}}{lines}}}"
        self.configure(f"labels: {{write: false}}\nresources: [{entry}]\n")

    def reasons(self) -> set[str]:
        """Why entries with a time slice cannot have the devices."""
        offered = [one for one in self.devices("gpu").values() if not one.withheld]
        return {one.unusable_for.get("timeSlice", "") for one in offered}


@pytest.fixture
async def node(tmp_path: Path, nvidia: NvidiaMachine) -> AsyncIterator[SlicedNode]:
    nvidia.gpu(DGX[0])
    async with SlicedNode(tmp_path) as made:
        yield made


async def test_a_container_that_starts_finds_its_gpu_with_the_time_slice(
    node: SlicedNode, nvidia: NvidiaMachine
) -> None:
    smi = Smi(nvidia.root)
    node.share(wanted="medium")
    async with node.served({GPU: 2}):
        await node.container({GPU: 1})
        (call,) = smi.calls
        assert call.endswith("--set-timeslice=2")


async def test_gpus_are_unhealthy_in_the_entry_while_nvidia_smi_is_missing(
    node: SlicedNode, nvidia: NvidiaMachine
) -> None:
    node.share(wanted="long")
    async with node.served({GPU: 0}):
        await node.until(
            lambda: "timeSlice needs nvidia-smi, which was not found below /" in min(node.reasons())
        )
        Smi(nvidia.root)
        await node.offers({GPU: 2})


async def test_a_gpu_that_refuses_its_time_slice_is_unhealthy_until_it_takes_it(
    node: SlicedNode, nvidia: NvidiaMachine
) -> None:
    smi = Smi(nvidia.root)
    smi.fail("\n\x1b[1mFailed to set it: Insufficient Permissions\nFailed: Insufficient Permissions\n")
    node.share(wanted="long")
    async with node.served({GPU: 2}):
        with pytest.raises(ContainerStartError, match="Failed to set it: Insufficient Permissions"):
            await node.container({GPU: 1})
        await node.offers({GPU: 0})
        failure = "nvidia-smi: \\x1b[1mFailed to set it: Insufficient Permissions"
        cure = "(run devhost as root with the capability SYS_ADMIN)"
        assert node.reasons() == {f"its time slice cannot be set: {failure} {cure}"}
        node.clock.ahead += 300
        await node.offers({GPU: 0})
        smi.work()
        node.clock.ahead += 300
        await node.offers({GPU: 2})
        assert smi.calls[-1].endswith("--set-timeslice=3")


async def test_instances_are_unhealthy_in_an_entry_with_a_time_slice(
    tmp_path: Path, station: NvidiaMachine
) -> None:
    Smi(station.root)
    async with SlicedNode(tmp_path, station.root) as node:
        node.share("{vendor: nvidia}", wanted="long")
        async with node.served():
            await node.until(
                lambda: node.reasons() == {"timeSlice is for whole NVIDIA GPUs, which this is not", ""}
            )
            offered = [one for one in node.devices("gpu").values() if not one.withheld]
            whole = [one for one in offered if one.attributes["kind"] == "gpu"]
            assert len(whole) < len(offered)
            await node.offers({GPU: 2 * len(whole)})


@pytest.mark.parametrize(
    ("keys", "message", "hint"),
    [
        ("timeSlice: longer", "timeSlice", "default, short, medium, long"),
        (
            "timeSlice: long, mps: {root: /run/mps}",
            "timeSlice: has no effect with mps, whose server runs all programs together",
            "remove one of them",
        ),
        (
            "timeSlice: long, where: {vendor: amd}",
            "timeSlice: is only for devices with vendor: nvidia, kind: gpu, and where selects none",
            "remove it, or change where",
        ),
        (
            "timeSlice: default, where: [{kind: mig}, {vendor: intel}]",
            "timeSlice: is only for devices with vendor: nvidia, kind: gpu, and where selects none",
            "remove it, or change where",
        ),
        (
            "share: {replicas: 2, timeSlice: long}",
            'unknown key "timeSlice"',
            "write timeSlice in the entry, next to share",
        ),
    ],
)
def test_a_wrong_time_slice_is_refused(tmp_path: Path, keys: str, message: str, hint: str) -> None:
    file = tmp_path / "devhost.yaml"
    file.write_text(f"version: 1\nresources: [{{name: {GPU}, backend: gpu, {keys}}}]\n")
    with pytest.raises(ConfigError) as caught:
        load(file, catalog.load)
    text = str(caught.value)
    assert message in text and hint in text, text


@pytest.mark.parametrize("where", ['{product: "*H100*"}', "[{vendor: amd}, {kind: gpu}]"])
def test_a_time_slice_is_accepted_if_its_entry_could_get_a_whole_nvidia_gpu(
    tmp_path: Path, where: str
) -> None:
    file = tmp_path / "devhost.yaml"
    entry = f"{{name: {GPU}, backend: gpu, timeSlice: long, where: {where}}}"
    file.write_text(f"version: 1\nresources: [{entry}]\n")
    (resource,) = load(file, catalog.load).resources
    assert resource.options.time_slice == "long"


class ClaimedNode(DraNode):
    """A machine with a GPU that claims get."""

    def __init__(self, place: Path, more: str) -> None:
        super().__init__(place, QUICK, gpu_with(Environment(Timings(mps_check=0.1))))
        entry = f"{{name: {GPU}, backend: gpu, serve: dra, share: {{replicas: 2}}{more}}}"
        self.node.configure(f"dra: {{driver: {DRIVER}}}\nresources: [{entry}]\n")

    def claim(self, gpu: str, name: str, **configs: str) -> v1.Claim:
        """A claim for a slot, whose time slices come from a class or the claim."""
        found = [config({"timeSlice": wanted}, source) for source, wanted in configs.items()]
        return self.allocate(name, self.name_of(gpu), share=uid(len(name)), pod=name, config=found)


CLAIMS = ", dra: {claimOptions: [timeSlice]}"


@pytest.mark.parametrize(
    ("more", "configs", "number"),
    [
        (", timeSlice: short", {}, 1),
        ("", {"FromClass": "medium"}, 2),
        (CLAIMS, {"FromClass": "medium", "FromClaim": "long"}, 3),
        (f", timeSlice: short{CLAIMS}", {"FromClaim": "default"}, 0),
    ],
)
async def test_a_claim_sets_the_time_slice_of_its_entry_its_class_or_itself(
    tmp_path: Path, nvidia: NvidiaMachine, more: str, configs: dict[str, str], number: int
) -> None:
    nvidia.gpu(DGX[0])
    smi = Smi(nvidia.root)
    async with ClaimedNode(tmp_path, more) as node, node.node.served():
        gpu = nvidia.uuids[DGX[0]]
        await node.node.until(lambda: node.published().get(GPU))
        claim = node.claim(gpu, "a", **configs)
        answer = (await node.prepare(claim))[claim.uid]
        assert node.edits(answer)
        assert smi.calls == [f"compute-policy -i {gpu} --set-timeslice={number}"]
        await node.prepare(claim)
        assert len(smi.calls) == 1, "a claim sets it once"


async def test_a_claim_must_not_set_a_time_slice_that_its_entry_does_not_allow(
    tmp_path: Path, nvidia: NvidiaMachine
) -> None:
    nvidia.gpu(DGX[0])
    smi = Smi(nvidia.root)
    async with ClaimedNode(tmp_path, "") as node, node.node.served():
        await node.node.until(lambda: node.published().get(GPU))
        claim = node.claim(nvidia.uuids[DGX[0]], "a", FromClaim="long")
        error = await node.refusal(claim)
        assert "options.timeSlice: a claim must not set this option" in error
        assert not smi.calls
