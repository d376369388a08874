"""What a supply tells: variables that bear the resource's name, and files for network plugins."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from kit.allocator import Supply, allocated

from devhost.allocation.allocations import Allocations
from devhost.allocation.device_info import DeviceInfoFiles
from devhost.backend import AllocateRequest, AllocationError, Backend, Device, Edits
from devhost.backend.errors import BackendError
from devhost.planning.plan import Offer
from devhost.planning.settings import Of


def document(device: Device) -> dict[str, object]:
    return {"type": "pci", "version": "1.1.0", "pci": {"pci-address": device.id}}


class Port(Backend):
    """Tells what the test wants."""

    tell: ClassVar[Any] = staticmethod(document)

    def device_info(self, device: Device, request: AllocateRequest) -> Any:
        return self.tell(device)


class Desk:
    """Supplies whose variables are called ``env``, and whose files go below ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env: Sequence[str] = ()
        self.kind: Any = type("Port", (Port,), {})
        self.infos = DeviceInfoFiles(directory / "dp", Allocations(time.monotonic))
        self.supplies: list[Supply] = []

    def answer(self, devices: Sequence[Device]) -> Edits:
        return Edits(env=dict.fromkeys(self.env, ",".join(device.id for device in devices)))

    def supply(self, name: str, *offers: Offer, of: Of = Of.EACH) -> Supply:
        made = Supply(self.directory, self.kind, resource=name, infos=self.infos)
        made.answer = self.answer
        made.show(*(offers or "ab"), of=of)
        self.supplies.append(made)
        return made

    def files(self) -> dict[str, object]:
        if not (self.directory / "dp").exists():
            return {}
        paths = (path for path in (self.directory / "dp").iterdir() if not path.name.startswith("."))
        return {path.name: json.loads(path.read_text()) for path in sorted(paths)}


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    made = Desk(tmp_path)
    yield made
    for supply in made.supplies:
        supply.runner.close()
    made.infos.close()


async def test_two_resources_in_one_container_do_not_set_the_same_variable(desk: Desk) -> None:
    desk.env = ("CARDS_{RESOURCE}", "CARDS")
    first = (await desk.supply("example.com/x").allocate("a")).edits.env
    second = (await desk.supply("example.com/y-2").allocate("b")).edits.env
    assert first == {"CARDS_EXAMPLE_COM_X": "a", "CARDS": "a"}
    assert second == {"CARDS_EXAMPLE_COM_Y_2": "b", "CARDS": "b"}


async def test_where_both_words_for_the_resource_are_the_same_there_is_one_variable(desk: Desk) -> None:
    desk.env = ("CARDS_{RESOURCE}", "CARDS_{RESOURCE-}")
    assert (await desk.supply("a.b/c").allocate("a")).edits.env == {"CARDS_A_B_C": "a"}
    assert (await desk.supply("a.b/c-d").allocate("a")).edits.env == {
        "CARDS_A_B_C_D": "a",
        "CARDS_A_B_C-D": "a",
    }


async def test_what_is_asked_for_cdi_bears_the_same_names(desk: Desk) -> None:
    desk.env = ("CARDS_{RESOURCE}",)
    supply = desk.supply("a.b/c")
    supply.runner.discover([])
    assert supply.backend.ask([Device("a")]).edits.env == {"CARDS_A_B_C": "a"}


async def test_another_brace_is_the_backends_fault(desk: Desk) -> None:
    desk.env = ("CARDS_{resource}",)
    with pytest.raises(BackendError) as caught:
        await desk.supply("a.b/c").allocate("a")
    assert str(caught.value) == (
        "backend card answered a brace that is neither {RESOURCE} nor {RESOURCE-} "
        "in the variable name 'CARDS_{resource}'"
    )


async def test_network_plugins_get_a_file_for_each_device_by_its_token(desk: Desk) -> None:
    supply = desk.supply("example.com/net", Offer(Device("0000:3b:02.0")), Offer(Device("x"), 3))
    await supply.allocate("0000:3b:02.0", "x::1")
    assert desk.files() == {
        "example.com-net-0000:3b:02.0-device.json": document(Device("0000:3b:02.0")),
        "example.com-net-x::1-device.json": document(Device("x")),
    }


async def test_a_second_allocate_brings_a_lost_file_back(desk: Desk) -> None:
    supply = desk.supply("a.b/c")
    for _ in range(2):
        await supply.allocate("a")
        (file,) = desk.files()
        (desk.directory / "dp" / file).unlink()


async def test_a_token_for_all_devices_has_no_file(desk: Desk) -> None:
    await desk.supply("a.b/c", Offer(Device("a"), 2), Offer(Device("b"), 2), of=Of.ALL).allocate("all::0")
    assert desk.files() == {}


async def test_a_device_that_network_plugins_have_nothing_to_do_with_has_no_file(desk: Desk) -> None:
    desk.kind.tell = staticmethod(lambda device: document(device) if device.id == "b" else None)
    await desk.supply("a.b/c").allocate("a", "b")
    assert desk.files().keys() == {"a.b-c-b-device.json"}


async def test_a_backend_is_not_asked_where_no_files_are_wanted(desk: Desk) -> None:
    desk.infos.move(None)
    desk.kind.tell = staticmethod(lambda device: 1 / 0)
    await desk.supply("a.b/c").allocate("a")
    assert desk.files() == {}


@pytest.mark.parametrize(
    ("tell", "text"),
    [
        (lambda device: {"type": "usb"}, "backend card gave unusable device-info: its type is none of pci"),
        (lambda device: 1 / 0, "backend card failed: ZeroDivisionError: division by zero"),
    ],
)
async def test_an_unusable_document_fails_the_pod_as_an_error_of_the_backend(
    desk: Desk, tell: Callable[[Device], object], text: str
) -> None:
    desk.kind.tell = staticmethod(tell)
    supply = desk.supply("a.b/c")
    with pytest.raises(BackendError) as caught:
        await supply.allocate("a")
    assert str(caught.value).startswith(text)
    assert "a" not in supply.inventory.allocations


async def test_a_pod_whose_file_cannot_be_written_is_refused_and_holds_nothing(desk: Desk) -> None:
    (desk.directory / "dp").write_text("a file")
    supply = desk.supply("a.b/c")
    with pytest.raises(AllocationError, match=r"^a\.b/c: cannot write to"):
        await supply.allocate("a")
    assert "a" not in supply.inventory.allocations


async def test_pods_that_start_together_all_get_their_files(desk: Desk) -> None:
    offers = [Offer(Device(f"d{number}")) for number in range(20)]
    supply = desk.supply("a.b/c", *offers)
    supply.runner.discover([])
    await asyncio.gather(*(allocated(supply.allocator, [offer.device.id]) for offer in offers))
    assert len(desk.files()) == 20
