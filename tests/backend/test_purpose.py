"""Adapters for fabric management, by their vital product data."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from devhost.backend.purpose import RETRY, VPD_LIMIT, VPD_SECONDS, FabricManagers
from devhost.backend.sysfs import Sysfs

PATH = "/sys/devices/pci0000:00/0000:07:00.0"
NVIDIA = "15b3"
VPD = b"\x82\x0f\x00NVLink adapter \x90\x2c\x00PN\x05ABCDEV3\x16MLX:MN=MLNX:SMDL=SW_MNGRV\x05\xd0\0\0\0\0\x78"


class Clock:
    """A clock that a test moves: by ``step`` at each reading."""

    def __init__(self) -> None:
        self.now = self.step = 0.0

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Machine:
    """A machine with one adapter."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock()
        self.vpd = root / PATH[1:] / "vpd"
        self.vpd.parent.mkdir(parents=True)
        self.managers = FabricManagers(Sysfs(root), logging.getLogger("purpose"), self.clock)

    def has(self, content: bytes) -> bool:
        """Whether the adapter is one for fabric management, with this VPD."""
        self.vpd.write_bytes(content)
        return self.managers.include(PATH, NVIDIA)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.vpd.parent.chmod(0o755)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (VPD, True),
        (VPD.replace(b"SW_MNG", b"HW_MNG"), False),
        (b"", False),
        (b"\x90\xff\xff damaged SW_MNG", True),
        (b"x" * 61 + b"SW_MNG", True),  # it crosses the border of two reads
        (b"\0" * (VPD_LIMIT - 6) + b"SW_MNG", True),
        (b"\0" * VPD_LIMIT + b"SW_MNG", False),
    ],
)
def test_the_mark_is_found_within_the_size_that_a_vpd_may_have(
    machine: Machine, content: bytes, expected: bool
) -> None:
    assert machine.has(content) is expected


def test_an_adapter_without_vpd_or_of_another_vendor_is_ordinary(machine: Machine) -> None:
    assert not machine.managers.include(PATH, NVIDIA)
    machine.vpd.write_bytes(VPD)
    assert not machine.managers.include(PATH, "8086")
    assert not machine.managers.include("/sys/devices/gone", NVIDIA)


def test_a_virtual_function_is_what_its_adapter_is(machine: Machine) -> None:
    machine.vpd.write_bytes(VPD)
    virtual = machine.vpd.parent.parent / "0000:07:00.1"
    virtual.mkdir()
    (virtual / "physfn").symlink_to("../0000:07:00.0")
    assert machine.managers.include(PATH.replace("00.0", "00.1"), NVIDIA)


def test_a_vpd_is_read_once_for_each_adapter_at_its_place(machine: Machine) -> None:
    assert machine.has(VPD)
    assert machine.has(b"")  # not read again
    machine.vpd.parent.rename(machine.root / "away")
    machine.vpd.parent.mkdir()
    assert not machine.has(b"")


def test_a_vpd_that_takes_too_long_is_given_up_and_tried_again_later(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    machine.clock.step = VPD_SECONDS
    assert not machine.has(b"\0" * 200 + VPD)
    machine.clock.step = 0.0
    assert not machine.has(VPD)
    machine.clock.now += RETRY
    assert machine.has(VPD)
    assert caplog.messages == [
        "cannot read the VPD of 0000:07:00.0: Connection timed out; "
        "adapters for fabric management are not recognized"
    ]


def test_a_vpd_that_cannot_be_read_is_reported_once(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    machine.vpd.mkdir()
    assert not machine.managers.include(PATH, NVIDIA)
    machine.clock.now += RETRY
    assert not machine.managers.include(PATH, NVIDIA)
    assert len(caplog.records) == 1
