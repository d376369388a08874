"""The hooks of examples/hooks do what they say, and report what fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devhost.backend import ContainerRequest, Device
from devhost.discovery import catalog

EXAMPLES = Path(__file__).parents[2] / "examples" / "hooks"
NAMES = ["burn_in", "device_group", "nvme_format", "pci_reset"]
BEFORE, AFTER = "devhost_before_container", "devhost_after_release"

PROGRAM = """#!/bin/sh
echo "$@" >> {log}
[ -e {fail} ] && {{ echo "no luck" >&2; exit 1; }}
[ "$1" = create ] && echo /dev/group7
exit 0
"""


class Program:
    """A program that notes its arguments, and fails while there is a file."""

    def __init__(self, place: Path) -> None:
        self.path, self._log, self.fail = place / "program", place / "log", place / "fail"
        self.path.write_text(PROGRAM.format(log=self._log, fail=self.fail))
        self.path.chmod(0o755)

    def calls(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path)


def loaded(name: str, **constants: object) -> catalog.InstalledObserver:
    """An example as devhost loads it, with other constants."""
    found = catalog.load([EXAMPLES])
    assert [one for one in found.refused if "hooks" in one.origin] == []
    (plugin,) = [one for one in found.observers if one.name == name]
    vars(plugin.plugin).update(constants)
    return plugin


def request(*devices: Device) -> ContainerRequest:
    return ContainerRequest("udev", "example.com/npu", devices)


def test_every_example_is_a_plugin_for_udev() -> None:
    found = [one for one in catalog.load([EXAMPLES]).observers if one.origin.startswith(str(EXAMPLES))]
    assert [one.name for one in found] == NAMES
    assert {one.backends for one in found} == {("udev",)}


def test_a_pci_device_is_reset_and_another_one_is_left_alone(tmp_path: Path) -> None:
    place = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    place.mkdir(parents=True)
    devices = (Device("a", {"pciBusID": "0000:01:00.0"}), Device("b", {}))
    loaded("pci_reset", ROOT=tmp_path).call(AFTER, backend="udev", devices=devices)
    assert (place / "reset").read_text() == "1"


def test_a_namespace_is_erased_and_a_failure_has_its_reason(program: Program) -> None:
    plugin = loaded("nvme_format", PROGRAM=str(program.path))
    disk, other = Device("a", {"devNode": "/dev/nvme0n1"}), Device("b", {"devNode": "/dev/nvme0"})
    plugin.call(AFTER, backend="udev", devices=(disk, other))
    assert program.calls() == ["format /dev/nvme0n1 --ses=1 --force"]
    program.fail.touch()
    with pytest.raises(RuntimeError, match="no luck"):
        plugin.call(AFTER, backend="udev", devices=(disk,))


def test_a_device_is_tested_until_it_has_passed_once(program: Program, tmp_path: Path) -> None:
    plugin = loaded("burn_in", PROGRAM=str(program.path), PASSED=tmp_path / "run")
    program.fail.touch()
    with pytest.raises(RuntimeError, match=r"d0: burn-in .*no luck"):
        plugin.call(BEFORE, request=request(Device("d0")))
    program.fail.unlink()
    for _ in range(2):
        plugin.call(BEFORE, request=request(Device("d0")))
    assert program.calls() == ["d0", "d0"]


def test_a_group_is_made_for_a_container_and_destroyed_once_afterwards(
    program: Program, tmp_path: Path
) -> None:
    plugin = loaded("device_group", PROGRAM=str(program.path), GROUPS=tmp_path / "run")
    devices = Device("d0"), Device("d1")
    added: list[Any] = plugin.call(BEFORE, request=request(*devices))
    assert [node.path for node in added[0].nodes] == ["/dev/group7"]
    plugin.call(AFTER, backend="udev", devices=devices)
    assert program.calls() == ["create d0 d1", "destroy /dev/group7"]
