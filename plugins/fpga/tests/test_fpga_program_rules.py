"""When a region is programmed, when nothing is done, when it is refused.

The process that programs, and the driver behind it, are a stand-in here (``FakeKernel``).
"""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from devhost_fpga.model import DeviceKind, Unit
from devhost_fpga.options import Program
from devhost_fpga.programming.loader import ProgrammingResult
from devhost_fpga.programming.programmer import PATIENCE
from fpga_programming import (
    AFU,
    BITSTREAM,
    ENGINE,
    INTERFACE,
    OLD_AFU,
    OTHER_INTERFACE,
    Machine,
    gbs,
    machine,
    show,
)

from devhost.backend import AllocationError, Device
from devhost.backend.process import Leftover, TimedOut

CORE_DEADLINE = 25.0
"""Seconds that the core gives PreStartContainer (``devhost.allocation.allocator``)."""


@pytest.fixture
def card(tmp_path: Path) -> Machine:
    return machine(tmp_path)


@pytest.fixture
def two_ports(tmp_path: Path) -> Machine:
    return machine(tmp_path, ports=2)


def refusal(card: Machine, program: Program, *units: Unit) -> str:
    """Why programming is refused, in one line as the pod shows it."""
    with pytest.raises(AllocationError) as caught:
        card.programmer.program(units or (card.region(),), program)
    message = str(caught.value)
    assert "\n" not in message and len(message) <= 500, "the core shows one line of 500 characters"
    assert str(program.bitstream) in message
    assert (units or (card.region(),))[0].device.id in message
    return message


# what happens


def test_a_region_gets_the_image_of_its_resource_and_shows_its_id(card: Machine) -> None:
    content = gbs(image=b"image")
    card.programmer.program([card.region()], card.put(content))
    [request] = card.kernel.requests
    assert request["do"] == "dfl"
    assert request["node"] == f"{card.root}/dev/null" and request["number"] == [1, 3]
    assert request["port"] == 0
    assert bytes.fromhex(request["head"]) + b"image" == content
    assert request["size"] == len(content)


def test_opae_gets_its_own_request(card: Machine) -> None:
    unit = card.region()
    slots = tuple(replace(slot, interface=type(slot.interface).OPAE) for slot in unit.slots)
    card.programmer.program([replace(unit, slots=slots)], card.put(gbs()))
    assert card.kernel.requests[0]["do"] == "opae"


def test_a_container_restart_programs_nothing(card: Machine) -> None:
    program = card.put(gbs())
    card.programmer.program([card.region()], program)
    card.programmer.program([card.region()], program)
    assert card.kernel.ports == [0]


def test_a_region_with_the_image_is_not_programmed_again(card: Machine) -> None:
    show(card.root, 0, AFU)
    card.held = None
    card.programmer.program([card.region()], card.put(gbs()))
    assert card.kernel.requests == []


def test_a_restart_does_not_need_the_file_if_the_resource_names_its_id(card: Machine) -> None:
    show(card.root, 0, AFU)
    card.programmer.program([card.region()], Program(Path("/srv/gone.gbs"), afu_id=AFU))
    assert card.kernel.requests == []


def test_every_port_of_a_region_is_programmed(two_ports: Machine) -> None:
    two_ports.programmer.program([two_ports.region(2)], two_ports.put(gbs()))
    assert two_ports.kernel.ports == [0, 1]


def test_only_the_ports_that_lack_the_image_are_programmed(two_ports: Machine) -> None:
    show(two_ports.root, 0, AFU)
    two_ports.programmer.program([two_ports.region(2)], two_ports.put(gbs()))
    assert two_ports.kernel.ports == [1]


def test_several_devices_of_one_container_are_programmed_though_each_holds_a_part(two_ports: Machine) -> None:
    units = [two_ports.af(0), two_ports.af(1)]
    two_ports.held = {claim for unit in units for claim in unit.device.claims}
    two_ports.programmer.program(units, two_ports.put(gbs()))
    assert two_ports.kernel.ports == [0, 1]


def test_a_raw_image_is_programmed_if_the_resource_names_its_ids(card: Machine) -> None:
    program = replace(card.put(b"\0" * 99, "/srv/x.rbf"), interface_id=INTERFACE, afu_id=AFU)
    card.programmer.program([card.region()], program)
    assert card.kernel.requests[0]["head"] == ""


# what is refused before anything is touched


def test_interface_ids_that_differ_are_refused_at_allocate_and_again_when_programming(card: Machine) -> None:
    program, unit = card.put(gbs()), card.region(interface=OTHER_INTERFACE)
    with pytest.raises(AllocationError) as caught:
        card.programmer.check(unit, program)
    for message in (str(caught.value), refusal(card, program, unit)):
        assert INTERFACE in message and OTHER_INTERFACE in message
    assert card.kernel.requests == []


def test_a_region_with_an_unknown_interface_is_not_programmed(card: Machine) -> None:
    assert "is unknown" in refusal(card, card.put(gbs()), card.region(interface=""))
    assert card.kernel.requests == []


@pytest.mark.parametrize("missing", ["interface_id", "afu_id"])
def test_a_raw_image_without_ids_is_refused_at_allocate(card: Machine, missing: str) -> None:
    ids = {"interface_id": INTERFACE, "afu_id": AFU} | {missing: ""}
    program = replace(card.put(b"\0" * 99, "/srv/x.rbf"), **ids)
    with pytest.raises(AllocationError, match="interfaceId"):
        card.programmer.check(card.region(), program)


def test_check_accepts_what_fits_and_touches_nothing(card: Machine) -> None:
    card.held = None
    card.programmer.check(card.region(), card.put(gbs()))
    assert card.kernel.requests == []


def test_check_names_a_missing_file(card: Machine) -> None:
    with pytest.raises(AllocationError, match=r"/srv/none\.gbs does not exist on the node"):
        card.programmer.check(card.region(), Program(Path("/srv/none.gbs")))


@pytest.mark.parametrize(
    ("kind", "words"), [(DeviceKind.CARD, "XRT programs"), (DeviceKind.REGION, "has no interface")]
)
def test_a_device_that_cannot_be_programmed_is_refused_with_the_reason(
    card: Machine, kind: DeviceKind, words: str
) -> None:
    unit = Unit(Device("0000:65:00.1", {"kind": kind.value}))
    with pytest.raises(AllocationError, match=words):
        card.programmer.check(unit, card.put(gbs()))
    assert words in refusal(card, card.put(gbs()), unit)


def test_a_port_whose_engine_belongs_to_another_function_is_refused(card: Machine) -> None:
    unit = card.region()
    unit = replace(unit, slots=(replace(unit.slots[0], engine=""),))
    assert "virtual function" in refusal(card, card.put(gbs()), unit)


def test_a_port_without_a_visible_id_is_refused(card: Machine) -> None:
    unit = card.region()
    unit = replace(unit, slots=(replace(unit.slots[0], function=""),))
    assert "shows no AFU id" in refusal(card, card.put(gbs()), unit)


# who holds it


@pytest.mark.parametrize(
    "claim", ["fpga:0000:3b:00.0/port1", "fpga:0000:3b:00.0/dfl-port.7", "fpga:0000:3b:00.0"]
)
def test_nothing_is_programmed_while_another_container_holds_a_part_of_the_fpga(
    two_ports: Machine, claim: str
) -> None:
    unit = two_ports.af(0)
    two_ports.held = {*unit.device.claims, claim}
    assert "another container uses" in refusal(two_ports, two_ports.put(gbs()), unit)
    assert two_ports.kernel.requests == []


def test_what_others_hold_of_other_hardware_does_not_matter(card: Machine) -> None:
    unit = card.region()
    card.held = {
        *unit.device.claims,
        "device:fpga/0000:3b:00.0-fme",
        "pci:0000:3b:00.0",
        "fpga:0000:3b:00.1/port0",
    }
    card.programmer.program([unit], card.put(gbs()))
    assert card.kernel.ports == [0]


def test_nothing_is_programmed_while_the_holders_are_unknown(card: Machine) -> None:
    card.held = None
    assert "not yet known" in refusal(card, card.put(gbs()))
    assert card.kernel.requests == []


def test_holders_are_asked_again_before_each_port(two_ports: Machine) -> None:
    unit = two_ports.region(2)
    two_ports.held = set(unit.device.claims)
    two_ports.kernel.meanwhile = lambda: (two_ports.held or set()).add("fpga:0000:3b:00.0/port9")
    assert "another container uses port9" in refusal(two_ports, two_ports.put(gbs()), unit)
    assert two_ports.kernel.ports == [0]


# what goes wrong


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (ProgrammingResult("node", errno.EBUSY), "another program has its management engine open"),
        (ProgrammingResult("node", errno.EPERM), "privileged"),
        (ProgrammingResult("node", errno.EACCES), "privileged"),
        (ProgrammingResult("node", errno.ENOENT), "management engine is gone"),
        (ProgrammingResult("node", errno.ENODEV), "management engine is gone"),
        (ProgrammingResult("node", errno.ENXIO), "management engine is gone"),
        (ProgrammingResult("node"), "now belongs to another device"),
        (ProgrammingResult("program", errno.EBUSY), "the FPGA is busy"),
        (ProgrammingResult("program", errno.EINVAL), "the driver refuses the request"),
        (ProgrammingResult("program", errno.ETIMEDOUT), "did not finish in time"),
        (ProgrammingResult("program", errno.EIO), "the FPGA reports an error"),
        (ProgrammingResult("program", errno.EIO, 0b110), "CRC error, incompatible image"),
        (ProgrammingResult("program", errno.EPERM), "privileged"),
        (ProgrammingResult("program", errno.EACCES), "privileged"),
        (ProgrammingResult("program", errno.ENOENT), "the device is gone"),
        (ProgrammingResult("program", errno.ENODEV), "the device is gone"),
        (ProgrammingResult("program", errno.ENXIO), "the device is gone"),
        (ProgrammingResult("program", errno.ENOTTY), "does not know the request"),
        (ProgrammingResult("program", errno.EFAULT), "the file became shorter"),
        (ProgrammingResult("program", errno.ENOMEM), "not enough memory"),
        (ProgrammingResult("program", errno.ERANGE), "Numerical result out of range"),
        (ProgrammingResult("file"), "the file changed meanwhile"),
        (ProgrammingResult("file", errno.ENODEV), "No such device"),
        (ProgrammingResult("start", errno.EAGAIN), "cannot be started: Resource temporarily unavailable"),
        (ProgrammingResult("time"), "took too long"),
        (ProgrammingResult("crash", text="was killed by SIGBUS"), "the file became shorter"),
        (
            ProgrammingResult("crash", text="was killed by SIGKILL"),
            "the programming process was killed by SIGKILL",
        ),
    ],
)
def test_each_failure_has_a_readable_reason(card: Machine, verdict: ProgrammingResult, words: str) -> None:
    card.kernel.verdicts[0] = verdict
    assert words in refusal(card, card.put(gbs()))
    card.kernel.verdicts.clear()
    card.programmer.program([card.region()], card.put(gbs()))  # and the next try is as good as any


def test_an_error_of_the_hardware_comes_with_what_its_manager_reports(card: Machine) -> None:
    status = card.root / ENGINE[1:] / "dfl-fme-mgr.0/fpga_manager/fpga1/status"
    status.write_text("reconfig CRC error\nreconfig incompatible image\n")
    card.kernel.verdicts[0] = ProgrammingResult("program", errno.EIO)
    assert "(reconfig CRC error, reconfig incompatible image)" in refusal(card, card.put(gbs()))


def test_a_failure_in_the_second_port_reports_that_the_first_is_programmed(two_ports: Machine) -> None:
    two_ports.kernel.verdicts[1] = ProgrammingResult("program", errno.EIO)
    program, unit = two_ports.put(gbs()), two_ports.region(2)
    message = refusal(two_ports, program, unit)
    assert "port 1: the FPGA reports an error" in message and "already programmed: port 0" in message
    two_ports.kernel.verdicts.clear()
    two_ports.programmer.program([unit], program)
    assert two_ports.kernel.ports == [0, 1, 1], "the retry goes on with the port that failed"


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (OLD_AFU, f"its AFU id is {OLD_AFU} instead of {AFU}"),
        ("f" * 32, "reads as ones"),
        ("0x1", "expected 32 hexadecimal digits"),
        ("", "is empty"),
    ],
)
def test_a_different_id_after_programming_is_an_error(card: Machine, shown: str, words: str) -> None:
    card.kernel.shows = shown
    assert words in refusal(card, card.put(gbs()))


def test_a_port_that_is_gone_afterwards_is_an_error(card: Machine) -> None:
    unit = card.region()
    unit = replace(unit, slots=(replace(unit.slots[0], function=f"{unit.slots[0].function}9"),))
    assert "its AFU id cannot be read: No such file" in refusal(card, card.put(gbs()), unit)


def test_an_engine_without_a_node_is_reported(card: Machine) -> None:
    (card.root / ENGINE[1:] / "dev").write_text("1:2999\n")
    assert "no node in /dev" in refusal(card, card.put(gbs()))
    (card.root / ENGINE[1:] / "dev").unlink()
    assert "no node in /dev" in refusal(card, card.put(gbs()))


# busy, slow and stuck; the clock is a fake one


def test_an_id_that_is_busy_is_read_again_with_growing_pauses(card: Machine) -> None:
    card.busy_until = 3.0
    card.programmer.program([card.region()], card.put(gbs()))
    assert card.kernel.ports == [0]
    assert card.clock.pauses[:3] == [0.02, 0.04, 0.08]
    assert max(card.clock.pauses) <= 0.5


def test_the_pauses_are_spread(card: Machine) -> None:
    card.clock.drawn = 1.0
    card.busy_until = 3.0
    card.programmer.program([card.region()], card.put(gbs()))
    assert card.clock.pauses[:3] == [0.01, 0.02, 0.04]


def test_a_region_that_stays_busy_is_given_up_in_time_and_not_programmed(card: Machine) -> None:
    card.busy_until = 1e9
    assert "has been busy with programming for too long" in refusal(card, card.put(gbs()))
    assert card.clock.time <= PATIENCE < CORE_DEADLINE
    assert card.kernel.requests == []


def test_a_port_that_a_failed_programming_left_in_reset_is_not_waited_for(card: Machine) -> None:
    """The driver keeps it in reset, also after another programming."""
    (card.root / ENGINE[1:] / "dfl-fme-mgr.0/fpga_manager/fpga1/state").write_text("write error\n")
    card.busy_until = 1e9
    message = refusal(card, card.put(gbs()))
    assert "port 0: its FPGA manager is in state 'write error', and its driver holds the port" in message
    assert "unbind the card from its driver and bind it again" in message
    assert card.clock.time == 0
    assert card.kernel.requests == []


def test_a_region_that_stays_busy_after_programming_is_an_error_in_time(card: Machine) -> None:
    card.kernel.meanwhile = card.stays_busy
    assert "it was programmed, but its AFU id cannot be read" in refusal(card, card.put(gbs()))
    assert card.clock.time <= PATIENCE


def test_a_slow_first_port_leaves_the_second_to_the_next_try(two_ports: Machine) -> None:
    def slow() -> None:
        two_ports.clock.time += PATIENCE - 1.5

    two_ports.kernel.meanwhile = slow
    program, unit = two_ports.put(gbs()), two_ports.region(2)
    message = refusal(two_ports, program, unit)
    assert "port 1: there is no time left" in message and "already programmed: port 0" in message
    two_ports.programmer.program([unit], program)
    assert two_ports.kernel.ports == [0, 1]


class Stuck(Leftover):
    """A process that a call into the kernel holds until it is released."""

    def __init__(self) -> None:
        self.is_held = True

    @property
    def is_gone(self) -> bool:
        return not self.is_held


def test_a_process_that_cannot_be_ended_keeps_its_fpga_refused_until_it_is_gone(card: Machine) -> None:
    process = Stuck()

    def hang() -> None:
        raise TimedOut("too late", leftover=process)

    program = card.put(gbs())
    card.kernel.meanwhile = hang
    assert "cannot be stopped" in refusal(card, program)
    card.kernel.meanwhile = lambda: None
    assert "hangs in the kernel" in refusal(card, program)
    assert card.kernel.ports == [0], "nothing was started beside it"
    process.is_held = False
    card.programmer.program([card.region()], program)
    assert card.kernel.ports == [0, 0]


def test_two_containers_that_start_at_once_are_programmed_one_after_the_other(two_ports: Machine) -> None:
    running, most = 0, 0
    lock, second = threading.Lock(), threading.Event()

    def meanwhile() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
            if running > 1:
                second.set()
        second.wait(0.2)  # time for the other one to come in, if nothing keeps it out
        with lock:
            running -= 1

    two_ports.kernel.meanwhile = meanwhile
    program, unit = two_ports.put(gbs()), two_ports.region(2)
    # a fresh programmer each, as when the configuration was reloaded meanwhile
    threads = [
        threading.Thread(target=two_ports.programmer.program, args=([unit], program), daemon=True)
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert two_ports.kernel.ports == [0, 1], "the second one found it done"


def test_waiting_too_long_for_another_container_is_reported(card: Machine) -> None:
    card.patience = 0.01
    with card.engines.locked(ENGINE, 0.0):
        assert "being programmed for another container" in refusal(card, card.put(gbs()))
    assert card.kernel.requests == []


def test_the_message_fits_where_the_core_shows_it(two_ports: Machine) -> None:
    two_ports.kernel.verdicts[1] = ProgrammingResult("program", errno.EIO, 0x7F)
    two_ports.put(gbs(), BITSTREAM)
    refusal(two_ports, two_ports.put(gbs()), two_ports.region(2))
