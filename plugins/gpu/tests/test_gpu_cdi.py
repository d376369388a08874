"""The strategy ``cdi``: which specification names NVIDIA GPUs, and what happens where none does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from devhost_gpu.discovery import NVIDIA
from devhost_gpu.environment import Timings
from devhost_gpu.nvidia.allocation import edits
from devhost_gpu.nvidia.cards import NvidiaFacts
from devhost_gpu.nvidia.cdi import CdiNames
from devhost_gpu.nvidia.specifications import FILE, KIND, GpuSpecification, Specifications, Wanted
from devhost_gpu.options import GpuOptions
from devhost_gpu.vendor import Card, ContainerRequest
from gpu_ctk import install
from kit.waiting import background, until

from devhost.backend import HEALTHY, Device, Health, unhealthy
from devhost.backend.errors import BackendError
from devhost.backend.process import kill_group
from devhost.backend.sysfs import Sysfs
from devhost.discovery.runner import ServiceContext

A, B, M = "GPU-aaaa", "GPU-bbbb", "MIG-mmmm"
THEIRS = "nvidia.com/gpu"
ONE = Wanted(frozenset({A}), frozenset({A}))
ACCESS = ["/dev/nvidia-caps/nvidia-cap66", "/dev/nvidia-caps/nvidia-cap67"]
"""The nodes that give access to the MIG instance: to its GPU instance, and to its compute instance."""


def card(uuid: str, health: Health = HEALTHY, driver: str = "") -> Card:
    device = Device(uuid, {"driverVersion": driver} if driver else {}, health=health)
    return Card(device, NVIDIA, NvidiaFacts(uuid, uuid, "0000:01:00.0", "0", 0))


def instance() -> Card:
    """A MIG instance as of a driver that reports its capabilities."""
    one = card(M)
    assert isinstance(one.facts, NvidiaFacts)
    return replace(one, facts=replace(one.facts, instance=(7, 0), capabilities=(66, 67)))


def specification(kind: str, names: Iterable[str]) -> str:
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": [{"name": name} for name in names]})


class Place:
    """A machine with a driver, perhaps with nvidia-ctk, and one watching backend on it."""

    def __init__(self, root: Path) -> None:
        self.root = root / "root"
        self.own = root / "cdi"
        self.here = root / "ctk"
        self.here.mkdir()
        for path in ("dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia0", "usr/lib/libcuda.so.570.1"):
            self.file(path)
        self.options = GpuOptions(
            device_list_strategy="cdi", cdi_directories=("/etc/cdi", "/var/run/cdi", str(self.own))
        )
        self.held: frozenset[str] | None = frozenset()
        self.cards = [card(A), card(B)]
        self.checks = 0
        self.specified = self.begun()

    def _asked_for_held(self) -> frozenset[str] | None:
        self.checks += 1  # each check of the files asks once
        return self.held

    async def checked_again(self, times: int = 3) -> None:
        """Waits until the files have been checked so many times."""
        enough = self.checks + times
        await until(lambda: self.checks >= enough)

    def begun(self, **seconds: float) -> CdiNames:
        """As after a start of devhost."""
        context = ServiceContext("gpu", self.root, held=self._asked_for_held)
        self.context = context
        return CdiNames(self.options, context, Timings(**seconds))

    def file(self, path: str, text: str = "") -> Path:
        made = self.root / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)
        return made

    def install(self, **what: object) -> None:
        """Puts nvidia-ctk there, or makes it do something else."""
        usual = {
            "names": [A, B],
            "control": ["/dev/nvidiactl", "/dev/nvidia-uvm"],
            "mounts": [{"hostPath": "/usr/lib/libcuda.so.570.1", "containerPath": "/usr/lib/libcuda.so.1"}],
        }
        install(self.root, self.here, **(usual | what))

    @property
    def calls(self) -> list[list[str]]:
        try:
            return [json.loads(line) for line in (self.here / "calls").read_text().splitlines()]
        except FileNotFoundError:
            return []

    @property
    def written(self) -> Path:
        return self.own / FILE

    def scan(self) -> list[Card]:
        return self.specified.named(self.cards, is_closed=False)

    def look(self) -> dict[str, tuple[str, str]]:
        """What a scan finds: the name of each card, and why it is unhealthy."""
        cards = self.scan()
        facts = [(card, card.facts) for card in cards if isinstance(card.facts, NvidiaFacts)]
        return {card.id: (own.cdi, card.device.health.reason or "") for card, own in facts}

    @asynccontextmanager
    async def kept(self, **what: object) -> AsyncIterator[None]:
        """Watched, with nvidia-ctk there, which has written the specification."""
        self.install(**what)
        async with self.watched():
            await until(self.written.exists)
            yield

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Looks whenever an event asks for it, as the core does."""

        async def follow() -> None:
            async for _ in self.specified.watch():
                self.look()

        self.look()
        try:
            async with background(follow()):
                yield
        finally:
            self.context.close()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def checked(place: Place) -> Place:
    """One that compares the specification with the machine all the time."""
    place.specified = place.begun(specification_check=0.05)
    return place


def own(uuid: str) -> tuple[str, str]:
    return f"{KIND}={uuid}", ""


async def test_cards_are_unhealthy_until_nvidia_ctk_has_named_them(place: Place) -> None:
    place.install()
    assert place.look()[A] == ("", "its CDI specification is not written yet")
    async with place.watched():
        await until(lambda: place.look() == {A: own(A), B: own(B)})
    (call,) = place.calls
    assert call[:2] == ["cdi", "generate"]
    assert {"--format=json", "--device-name-strategy=uuid", "--driver-root=/", "--dev-root=/"} <= set(call)
    given = edits(place.scan(), ContainerRequest(place.options, Sysfs(place.root)))
    assert given.cdi_devices == (own(A)[0], own(B)[0])
    assert not given.nodes and not given.env and not given.mounts


async def test_a_start_of_devhost_finds_what_is_written_and_writes_nothing(place: Place) -> None:
    async with place.kept():
        pass
    place.specified = place.begun()
    assert place.look() == {A: own(A), B: own(B)}
    before = place.written.stat()
    async with place.watched():
        place.cards.append(card(M))
        place.install(names=[A, B, M])
        await until(lambda: place.look()[M] == own(M))
    assert len(place.calls) == 2
    assert place.written.stat().st_ino != before.st_ino


async def test_missing_driver_files_cause_another_specification(checked: Place) -> None:
    async with checked.kept():
        checked.file("usr/lib/libcuda.so.580.2")
        checked.install(
            mounts=[{"hostPath": "/usr/lib/libcuda.so.580.2", "containerPath": "/usr/lib/libcuda.so.1"}]
        )
        (checked.root / "usr/lib/libcuda.so.570.1").unlink()
        await until(lambda: "580.2" in checked.written.read_text())


async def test_a_new_driver_version_causes_another_specification(place: Place) -> None:
    place.cards = [card(A, driver="570.1")]
    place.install(names=[A])
    async with place.watched():
        await until(lambda: place.look()[A] == own(A))
        await until(lambda: len(place.calls) == 1)
        place.cards = [card(A, driver="580.2")]
        place.look()
        await until(lambda: len(place.calls) == 2)


async def test_a_new_control_node_causes_another_specification(checked: Place) -> None:
    async with checked.kept():
        checked.install(control=["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-modeset"])
        checked.file("dev/nvidia-modeset")
        await until(lambda: "nvidia-modeset" in checked.written.read_text())


def test_a_node_that_appears_or_vanishes_while_a_specification_is_made_is_no_flaw_that_stays(
    place: Place,
) -> None:
    kit = GpuSpecification(place.root, place.options)
    nodes = [{"path": path} for path in ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia0")]
    text = json.dumps(
        json.loads(specification(KIND, [A])) | {"containerEdits": {"deviceNodes": nodes}},
    )
    kit.write(text, ONE, kit.present())
    before = kit.present()
    appeared = place.file("dev/nvidia-modeset")
    kit.write(text, ONE, before)
    assert not kit.fits(ONE)
    kit.write(text, ONE, kit.present())  # nvidia-ctk does not name it, although it has seen it
    assert kit.fits(ONE)
    appeared.unlink()
    before = kit.present()
    (place.root / "dev/nvidia0").unlink()
    kit.write(text, ONE, before)
    assert not kit.fits(ONE)


async def test_a_flaw_that_writing_does_not_fix_causes_no_further_writes(checked: Place) -> None:
    nowhere = [{"hostPath": "/nowhere", "containerPath": "/nowhere"}]
    async with checked.kept(names=[A, B, M], mounts=nowhere):
        await checked.checked_again()
    assert len(checked.calls) == 1


async def test_a_gpu_for_the_display_causes_no_further_writes(checked: Place) -> None:
    """nvidia-ctk omits it, so that no specification would ever name it."""
    ordinary = card(B)
    display = replace(ordinary.device, attributes={"purpose": "display"}, reserved="it drives the display")
    checked.cards = [card(A), replace(ordinary, device=display)]
    async with checked.kept(names=[A]):
        await checked.checked_again()
        assert checked.look()[A] == own(A)
    assert len(checked.calls) == 1


async def test_a_lost_gpu_costs_the_others_nothing(place: Place) -> None:
    place.cards = [card(A), card(B, unhealthy("fell off the bus"))]
    place.install(fails="GPU is lost", picks=True)
    async with place.watched():
        await until(lambda: place.look()[A] == own(A))
    assert place.calls[-1][-1] == f"--device-id={A}"
    assert place.look()[B] == ("", "fell off the bus")


async def test_an_error_of_nvidia_ctk_is_shown_as_it_wrote_it(place: Place) -> None:
    """An old one knows no single devices, and says so; that is not what is wrong."""
    place.install(fails="NVML: Driver Not Loaded")
    async with place.watched():
        await until(lambda: place.look()[A][1].endswith("failed: NVML: Driver Not Loaded"))
    assert any(word.startswith("--device-id=") for word in place.calls[-1])


async def test_an_mig_instance_that_is_gone_leaves_the_file(place: Place) -> None:
    place.cards = [card(A), card(M)]
    place.install(names=[A, M])
    async with place.watched():
        await until(lambda: place.look()[M] == own(M))
        place.cards = [card(A)]
        place.install(names=[A])
        place.look()
        await until(lambda: M not in place.written.read_text())


async def test_an_instance_waits_until_the_nodes_that_give_access_to_it_are_in_the_file(
    checked: Place,
) -> None:
    """nvidia-ctk names an instance also without them, and a container could not use it."""
    checked.cards = [card(A), instance()]
    async with checked.kept(names=[A, M], nodes={M: ["/dev/nvidia0"]}):
        gone = f"{ACCESS[0]}, which gives access to it, does not exist"
        await until(lambda: checked.look() == {A: own(A), M: ("", gone)})
        await checked.checked_again()
        assert len(checked.calls) == 1  # another file would not have them either
        checked.install(names=[A, M], nodes={M: ["/dev/nvidia0", *ACCESS]})
        for path in ACCESS:
            checked.file(path.lstrip("/"))
        await until(lambda: checked.look() == {A: own(A), M: own(M)})


async def test_nvidia_ctk_that_leaves_out_nodes_of_an_instance_is_asked_again(place: Place) -> None:
    place.cards = [instance()]
    for path in ACCESS:
        place.file(path.lstrip("/"))
    async with place.kept(names=[M], nodes={M: ["/dev/nvidia0", ACCESS[0]]}):
        await until(lambda: place.look()[M] == ("", f"/usr/bin/nvidia-ctk left out {ACCESS[1]}"))
        place.install(names=[M], nodes={M: ["/dev/nvidia0", *ACCESS]})
        await until(lambda: place.look()[M] == own(M))


def test_a_specification_of_others_without_the_nodes_of_an_instance_does_not_name_it(place: Place) -> None:
    place.cards = [instance()]
    for path in ACCESS:
        place.file(path.lstrip("/"))
    node = {"hostPath": f"/run/nvidia/driver{ACCESS[0]}", "path": ACCESS[0]}
    document = {"kind": THEIRS, "containerEdits": {"deviceNodes": [node]}, "devices": [{"name": M}]}
    file = place.file("etc/cdi/nvidia.json", json.dumps(document))
    assert "no CDI specification in" in place.look()[M][1]
    document["devices"] = [{"name": M, "containerEdits": {"deviceNodes": [{"path": ACCESS[1]}]}}]
    file.write_text(json.dumps(document))
    assert place.look()[M] == (f"{THEIRS}={M}", "")


def test_the_time_for_a_large_specification_grows_with_its_size(place: Place) -> None:
    """The part for all devices is looked at once, not again for each device."""
    edits = {"mounts": [{"hostPath": f"/lib/{n}", "containerPath": f"/lib/{n}"} for n in range(5000)]}
    document = json.loads(specification(THEIRS, [f"GPU-{n}" for n in range(5000)]))
    place.file("etc/cdi/nvidia.json", json.dumps(document | {"containerEdits": edits}))
    start = time.process_time()
    assert len(Specifications(place.root, ["/etc/cdi"], THEIRS).names()) == 5000
    assert time.process_time() - start < 10  # a tenth of a second on an idle machine


async def test_without_nvidia_ctk_names_of_others_are_taken(place: Place) -> None:
    file = place.file("etc/cdi/nvidia.yaml", f"kind: {THEIRS}\ndevices:\n- name: '0'\n- name: {A}\n")
    place.file("run/cdi/nvidia.json", specification(THEIRS, [B]))
    assert place.look() == {A: (f"{THEIRS}={A}", ""), B: (f"{THEIRS}={B}", "")}
    async with place.watched():
        file.unlink()
        place.cards.append(card(M))
        await until(lambda: "there is no /usr/bin/nvidia-ctk" in place.look()[A][1])
    assert not place.own.exists()


async def test_a_card_that_no_specification_names_has_a_clear_reason(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    reason = (
        "there is no /usr/bin/nvidia-ctk on this machine, and no CDI specification in "
        f"/etc/cdi or /var/run/cdi or {place.own} names it"
    )
    assert place.look()[A][1] == reason  # `devhost explain` has but one look
    async with place.watched():
        await until(lambda: bool(caplog.records))
    assert place.look()[B][1] == reason
    assert [record.levelname for record in caplog.records].count("WARNING") == 1


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ({"fails": "no NVML"}, "nvidia-ctk failed: no NVML"),
        ({"names": [A]}, f"nvidia-ctk left out {B}"),
        ({"hangs": True}, "nvidia-ctk did not end within 0.5 s"),
    ],
)
async def test_a_failure_of_nvidia_ctk_is_the_reason_of_the_card(
    place: Place, what: dict[str, object], words: str
) -> None:
    if "hangs" in what:
        place.specified = place.begun(nvidia_ctk=0.5)
    place.install(**what)
    async with place.watched():
        await until(lambda: words in place.look()[B][1])


async def test_nvidia_ctk_ends_with_devhost(place: Place) -> None:
    place.install(hangs=True)
    async with place.watched():
        await until(lambda: len(place.calls) == 1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((place.here / "pid").read_text()), 0)


async def test_no_second_nvidia_ctk_is_started_beside_one_that_cannot_be_killed(place: Place) -> None:
    place.install(hangs=True)
    killable = False

    def kill(process: subprocess.Popen[bytes]) -> None:
        if killable:
            kill_group(process)

    timings = Timings(nvidia_ctk=0.02, nvidia_ctk_grace=0.02)
    kit = GpuSpecification(place.root, place.options, timings, kill)

    async def failure() -> str:
        with pytest.raises(BackendError) as caught:
            await kit.run(())
        return caught.value.message

    assert "nvidia-ctk did not end within 0.02 s and cannot be killed" in await failure()
    refusal = await failure()
    assert "an earlier /usr/bin/nvidia-ctk" in refusal
    killable = True
    os.kill(int(refusal.partition("(pid ")[2].partition(")")[0]), signal.SIGKILL)
    end = time.monotonic() + 60
    while not (await failure()).endswith("nvidia-ctk did not end within 0.02 s"):
        assert time.monotonic() < end


async def test_an_invalid_specification_leaves_the_old_one(place: Place) -> None:
    kit = GpuSpecification(place.root, place.options)
    kit.write(specification(KIND, [A]), ONE, kit.present())
    for text in ("", "[]", "{}", specification(THEIRS, [A, B])):
        with pytest.raises(BackendError, match="wrote no CDI specification"):
            kit.write(text, ONE, kit.present())
    assert kit.names() == {A: own(A)[0]}


def test_a_directory_that_cannot_be_written_to_is_named(place: Place) -> None:
    place.own.write_text("a file")
    kit = GpuSpecification(place.root, place.options)
    with pytest.raises(BackendError, match=f"cannot write {place.written}: "):
        kit.write(specification(KIND, [A]), ONE, kit.present())


async def test_the_file_is_removed_with_the_last_card_once_no_container_has_one(
    place: Place,
) -> None:
    place.specified = place.begun(specification_check=0.02)
    place.install()
    async with place.watched():
        await until(place.written.exists)
        place.held = frozenset({f"device:gpu/{A}"})
        place.cards = []
        place.look()
        await place.checked_again()
        assert place.written.exists()
        place.held = frozenset()
        await until(lambda: not place.written.exists())


# What goes with GPUs

OWN = "toolkit.devhost.nvidia.com"
CHANNEL = "dev/nvidia-caps-imex-channels/channel"
EXTRAS = {
    "gds": {"names": ["all"], "node": "/dev/nvidia-fs0"},
    "mofed": {"names": ["all"], "node": "/dev/infiniband/uverbs0"},
    "gdrcopy": {"names": ["all"], "node": "/dev/gdrdrv"},
    "imex": {"names": ["0", "1"], "node": f"/{CHANNEL}0"},
}
EVERYTHING = {
    "gds_enabled": True,
    "mofed_enabled": True,
    "gdrcopy_enabled": True,
    "imex_channel_IDs": (0, 7),
}


@pytest.fixture
def asking(place: Place) -> Place:
    """One that is asked for all that goes with GPUs, and has it."""
    for path in ("dev/nvidia-fs0", "dev/infiniband/uverbs0", "dev/gdrdrv", f"{CHANNEL}0", f"{CHANNEL}1"):
        place.file(path)
    place.options = replace(place.options, **EVERYTHING)
    place.specified = place.begun()
    return place


def extra(place: Place, mode: str) -> Path:
    return place.own / f"toolkit.devhost-nvidia-{mode}.json"


async def test_additional_devices_get_names_and_variables_for_the_runtime(asking: Place) -> None:
    """NVIDIA's plugin does the same with CDI, and sets the variables as with any other strategy."""
    asking.install(modes=EXTRAS)
    assert asking.look()[A] == ("", "its CDI specification is not written yet")
    async with asking.watched():
        await until(lambda: asking.look() == {A: own(A), B: own(B)})
    given = edits(asking.scan(), ContainerRequest(asking.options, Sysfs(asking.root)))
    assert given.cdi_devices == (
        own(A)[0],
        own(B)[0],
        f"{OWN}/imex-channel=0",
        f"{OWN}/gdrcopy=all",
        f"{OWN}/gds=all",
        f"{OWN}/mofed=all",
    )
    assert given.env == {"NVIDIA_GDS": "enabled", "NVIDIA_MOFED": "enabled", "NVIDIA_GDRCOPY": "enabled"}
    modes = {word for call in asking.calls for word in call if word.startswith("--mode=")}
    assert modes == {"--mode=gds", "--mode=mofed", "--mode=gdrcopy", "--mode=imex"}
    assert all(extra(asking, mode).exists() for mode in EXTRAS)


async def test_an_additional_device_without_a_name_makes_cards_unhealthy_with_its_option(
    asking: Place, caplog: pytest.LogCaptureFixture
) -> None:
    asking.install(modes=EXTRAS | {"gds": {"fails": "no permission"}})
    async with asking.watched():
        await until(lambda: "gdsEnabled" in asking.look()[A][1])
        reason = asking.look()[A][1]
        await until(lambda: bool(caplog.records))
    assert reason.startswith("gdsEnabled: nvidia-ctk cdi generate --mode=gds: ")
    assert reason.endswith("nvidia-ctk failed: no permission")
    assert extra(asking, "mofed").exists() and not extra(asking, "gds").exists()


async def test_a_node_without_devices_of_a_kind_offers_its_gpus_without_them(
    asking: Place, caplog: pytest.LogCaptureFixture
) -> None:
    """NVIDIA's plugin leaves out what it finds nothing of, too."""
    asking.install(modes={name: what for name, what in EXTRAS.items() if name != "gds"})
    async with asking.watched():
        await until(lambda: asking.look() == {A: own(A), B: own(B)})
    given = edits(asking.scan(), ContainerRequest(asking.options, Sysfs(asking.root)))
    assert f"{OWN}/gds=all" not in given.cdi_devices and f"{OWN}/mofed=all" in given.cdi_devices
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith("gdsEnabled: nvidia-ctk cdi generate --mode=gds found nothing")


async def test_a_channel_that_appears_later_is_named_then(asking: Place) -> None:
    (asking.root / f"{CHANNEL}0").unlink()
    asking.install(modes=EXTRAS)
    async with asking.watched():
        await until(lambda: asking.look() == {A: own(A), B: own(B)})
        assert not extra(asking, "imex").exists()
        asking.file(f"{CHANNEL}0")
        assert asking.look()[A][1] == "its CDI specification is not written yet"
        await until(lambda: asking.look() == {A: own(A), B: own(B)})
    assert extra(asking, "imex").exists()


async def test_files_of_options_that_are_off_go_when_no_container_has_a_gpu(
    asking: Place,
) -> None:
    asking.install(modes=EXTRAS)
    async with asking.watched():
        await until(lambda: asking.look() == {A: own(A), B: own(B)})
    asking.options = replace(asking.options, gds_enabled=False)
    asking.held = frozenset({f"device:gpu/{A}"})
    asking.specified = asking.begun(specification_check=0.02)
    async with asking.watched():
        await asking.checked_again()
        assert extra(asking, "gds").exists()
        asking.held = frozenset()
        await until(lambda: not extra(asking, "gds").exists())
        assert extra(asking, "mofed").exists()


async def test_without_nvidia_ctk_other_programs_may_name_additional_devices(asking: Place) -> None:
    asking.file("etc/cdi/gpu.json", specification(THEIRS, [A, B]))
    for name, devices in {"gds": ["all"], "mofed": ["all"], "imex-channel": ["0"]}.items():
        asking.file(f"etc/cdi/{name}.json", specification(f"nvidia.com/{name}", devices))
    async with asking.watched():
        await until(lambda: "gdrcopyEnabled" in asking.look()[A][1])
        assert "nvidia.com/gdrcopy=all" in asking.look()[A][1]
        asking.file("etc/cdi/gdrcopy.json", specification("nvidia.com/gdrcopy", ["all"]))
        await until(lambda: asking.look()[A] == (f"{THEIRS}={A}", ""))
    given = edits(asking.scan(), ContainerRequest(asking.options, Sysfs(asking.root)))
    assert given.cdi_devices[2:] == (
        "nvidia.com/imex-channel=0",
        "nvidia.com/gdrcopy=all",
        "nvidia.com/gds=all",
        "nvidia.com/mofed=all",
    )


def test_files_that_are_no_specifications_do_no_harm(tmp_path: Path) -> None:
    directory = tmp_path / "etc/cdi"
    directory.mkdir(parents=True)
    for name, text in {
        "a.json": "{",
        "b.yaml": "a: [",
        "c.yaml": "- 1",
        "d.json": json.dumps({"kind": THEIRS, "devices": {"name": A}}),
        "e.json": json.dumps({"kind": THEIRS, "devices": [1, {"name": 2}, {}]}),
        "f.txt": specification(THEIRS, [A]),
        "g.json": "[" * 100_000,
        "h.json": "x" * (5 << 20),
    }.items():
        (directory / name).write_text(text)
    (directory / "i.json").mkdir()
    assert Specifications(tmp_path, ("/etc/cdi", "/nowhere"), THEIRS).names() == {}


def test_a_card_that_two_files_of_one_directory_name_has_no_name(tmp_path: Path) -> None:
    for place, names in {"etc/cdi/a.json": [A, B], "etc/cdi/b.json": [B], "run/cdi/a.json": [M]}.items():
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(specification(THEIRS, names))
    seen = Specifications(tmp_path, ("/etc/cdi", "/var/run/cdi"), THEIRS)
    assert seen.names().keys() == {A, M}
    (tmp_path / "etc/cdi/b.json").unlink()
    assert seen.names().keys() == {A, B, M}
