"""PCI functions that a backend knows by their ids are found, and the others are read once."""

from __future__ import annotations

from pathlib import Path

import pytest

from devhost.backend.sysfs import PciFilter, PciIds, Sysfs


class Bus:
    """PCI functions below a directory, and which of them were compared."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sysfs = Sysfs(root)
        self.compared: list[str] = []

    def add(self, address: str, vendor: str, device: str, *files: str) -> Path:
        path = self.root / "sys/bus/pci/devices" / address
        path.mkdir(parents=True)
        for name, text in {"vendor": vendor, "device": device, "class": "0x20000"}.items():
            (path / name).write_text(f"{text}\n")
        for name in files:
            (path / name).touch()
        return path

    def filter(self) -> PciFilter:
        def concerns(ids: PciIds) -> bool:
            self.compared.append(ids.address)
            return ids.vendor == "15b3"

        return PciFilter(self.sysfs, concerns)


@pytest.fixture
def bus(tmp_path: Path) -> Bus:
    found = Bus(tmp_path)
    found.add("0000:02:00.0", "0x8086", "0x1563")
    found.add("0000:01:00.0", "0x15b3", "0x1017")
    return found


def test_a_matching_function_is_returned_with_its_ids(bus: Bus) -> None:
    path = "/sys/bus/pci/devices/0000:01:00.0"
    assert list(bus.filter().scan()) == [PciIds("0000:01:00.0", path, "15b3", "1017", "020000")]


def test_another_function_is_checked_once_until_it_is_replaced(bus: Bus) -> None:
    found = bus.filter()
    for _ in range(3):
        list(found.scan())
    assert bus.compared.count("0000:02:00.0") == 1
    old = bus.root / "sys/bus/pci/devices/0000:02:00.0"
    old.rename(bus.root / "gone")  # sysfs never gives an inode again
    bus.add("0000:02:00.0", "0x15b3", "0x1019")
    assert [ids.device for ids in found.scan()] == ["1017", "1019"]


def test_virtual_functions_and_those_left_out_are_not_found(bus: Bus) -> None:
    bus.add("0000:01:00.2", "0x15b3", "0x1018", "physfn")
    found = bus.filter()
    assert [ids.address for ids in found.scan()] == ["0000:01:00.0"]
    assert not list(found.scan(leave_out={"0000:01:00.0"}))


def test_a_driver_that_the_user_has_chosen_is_not_a_missing_driver(bus: Bus) -> None:
    path = "/sys/bus/pci/devices/0000:01:00.0"
    assert bus.sysfs.lacks_driver(path)
    override = bus.root / path.lstrip("/") / "driver_override"
    override.write_text("(null)\n")
    assert bus.sysfs.lacks_driver(path)
    override.write_text("vfio-pci\n")
    assert not bus.sysfs.lacks_driver(path)
    override.unlink()
    (override.parent / "driver").symlink_to("../../../bus/pci/drivers/mlx5_core")
    assert not bus.sysfs.lacks_driver(path)
