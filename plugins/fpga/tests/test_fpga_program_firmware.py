"""Chips behind an fpga_manager that has a ``firmware`` file, as Xilinx's kernels have it.

The kernel's part is played by a stand-in (``FakeKernel``).
"""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest
from devhost_fpga.options import Program
from devhost_fpga.programming.loader import ProgrammingResult
from fpga_programming import AFU, INTERFACE, MANAGER, OTHER_INTERFACE, Machine, gbs, machine

from devhost.backend import AllocationError

IMAGE = "/lib/firmware/devhost/top.bit.bin"


@pytest.fixture
def board(tmp_path: Path) -> Machine:
    return machine(tmp_path)


def refusal(board: Machine, program: Program) -> str:
    with pytest.raises(AllocationError) as caught:
        board.programmer.program([board.chip()], program)
    return str(caught.value)


def test_the_kernel_gets_the_name_of_the_file(board: Machine) -> None:
    board.programmer.program([board.chip()], board.put(b"image", IMAGE))
    assert board.kernel.requests == [
        {"do": "firmware", "manager": f"{board.root}{MANAGER}", "name": "devhost/top.bit.bin", "flags": "0"}
    ]


def test_a_partial_image_is_announced_by_the_flag(board: Machine) -> None:
    board.programmer.program([board.chip()], replace(board.put(b"image", IMAGE), partial=True))
    assert board.kernel.requests[0]["flags"] == "1"


def test_kernels_without_flags_take_whole_images_only(board: Machine) -> None:
    (board.root / MANAGER[1:] / "flags").unlink()
    program = board.put(b"image", IMAGE)
    assert "remove `partial`" in refusal(board, replace(program, partial=True))
    board.programmer.program([board.chip()], program)
    assert board.kernel.requests[0]["flags"] == ""


def test_a_container_restart_loads_nothing(board: Machine) -> None:
    program = board.put(b"image", IMAGE)
    board.programmer.program([board.chip()], program)
    board.programmer.program([board.chip()], program)
    assert len(board.kernel.requests) == 1


@pytest.mark.parametrize("change", ["file", "state", "partial", "failure", "other"])
def test_it_is_loaded_again_when_anything_has_changed(board: Machine, change: str) -> None:
    program = board.put(b"image", IMAGE)
    board.programmer.program([board.chip()], program)
    if change == "file":
        place = board.root / IMAGE[1:]
        place.write_bytes(b"IMAGE")
        os.utime(place, ns=(1, 1))
    elif change == "state":
        (board.root / MANAGER[1:] / "state").write_text("power off\n")
    elif change == "partial":
        program = replace(program, partial=True)
    elif change == "failure":
        board.kernel.verdicts[0] = ProgrammingResult("firmware", errno.EIO)
        refusal(board, replace(program, partial=True))
        board.kernel.verdicts.clear()
    else:
        board.programmer.program([board.chip()], board.put(b"other", "/lib/firmware/other.bin"))
    before = len(board.kernel.requests)
    board.programmer.program([board.chip()], program)
    assert len(board.kernel.requests) == before + 1


def test_a_file_outside_the_firmware_directories_is_refused_at_allocate(board: Machine) -> None:
    program = board.put(b"image", "/srv/top.bin")
    with pytest.raises(AllocationError, match="move it below /lib/firmware"):
        board.programmer.check(board.chip(), program)


def test_the_directory_that_the_node_added_counts_first(board: Machine) -> None:
    parameter = board.root / "sys/module/firmware_class/parameters/path"
    parameter.parent.mkdir(parents=True)
    parameter.write_text("/srv/firmware\n")
    board.programmer.program([board.chip()], board.put(b"image", "/srv/firmware/top.bin"))
    assert board.kernel.requests[0]["name"] == "top.bin"


@pytest.mark.parametrize("place", ["updates", f"updates/{os.uname().release}", os.uname().release])
def test_a_file_of_the_same_name_that_the_kernel_finds_first_is_not_loaded_instead(
    board: Machine, place: str
) -> None:
    program = board.put(b"image", IMAGE)
    board.put(b"another", f"/lib/firmware/{place}/devhost/top.bit.bin")
    assert f"would load /lib/firmware/{place}/devhost/top.bit.bin instead" in refusal(board, program)
    assert board.kernel.requests == []


def test_usr_lib_is_lib_where_the_one_links_to_the_other(board: Machine) -> None:
    (board.root / "usr/lib/firmware").mkdir(parents=True)
    (board.root / "lib").symlink_to("usr/lib")
    program = board.put(b"image", "/usr/lib/firmware/top.bin")
    board.programmer.program([board.chip()], program)
    assert board.kernel.requests[0]["name"] == "top.bin"


def test_usr_lib_is_used_only_where_the_kernel_searches(board: Machine) -> None:
    assert "does not find firmware top.bin" in refusal(
        board, board.put(b"image", "/usr/lib/firmware/top.bin")
    )


def test_a_name_longer_than_the_drivers_buffer_is_refused(board: Machine) -> None:
    program = board.put(b"image", f"/lib/firmware/{'d' * 200}/{'f' * 60}.bin")
    assert "too long" in refusal(board, program)
    assert board.kernel.requests == []


def test_gbs_files_and_afu_ids_are_for_other_hardware(board: Machine) -> None:
    assert "raw image" in refusal(board, board.put(gbs(), "/lib/firmware/x.gbs"))
    program = replace(board.put(b"image", IMAGE), afu_id=AFU)
    assert "remove `afuId`" in refusal(board, program)


def test_the_interface_is_checked_if_the_resource_names_it(board: Machine) -> None:
    program = replace(board.put(b"image", IMAGE), interface_id=INTERFACE)
    board.programmer.check(board.chip(INTERFACE), program)
    with pytest.raises(AllocationError, match=OTHER_INTERFACE):
        board.programmer.check(board.chip(OTHER_INTERFACE), program)
    with pytest.raises(AllocationError, match="is unknown"):
        board.programmer.check(board.chip(), program)


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (ProgrammingResult("firmware", errno.ENOENT), "did not find the file"),
        (ProgrammingResult("firmware", errno.EROFS), "/sys is mounted read-only"),
        (ProgrammingResult("firmware", errno.EPERM), "privileged"),
        (ProgrammingResult("firmware", errno.EACCES), "privileged"),
        (ProgrammingResult("firmware", errno.EBUSY), "the FPGA is busy"),
        (ProgrammingResult("firmware", errno.EINVAL), "the driver refuses the image"),
        (ProgrammingResult("firmware", errno.ETIMEDOUT), "did not finish in time"),
        (ProgrammingResult("firmware", errno.EIO), "the FPGA reports an error"),
        (ProgrammingResult("flags", errno.ENODEV), "the device is gone"),
    ],
)
def test_each_failure_has_a_readable_reason(board: Machine, verdict: ProgrammingResult, words: str) -> None:
    board.kernel.verdicts[0] = verdict
    assert words in refusal(board, board.put(b"image", IMAGE))


def test_a_manager_that_does_not_operate_afterwards_is_an_error(board: Machine) -> None:
    board.kernel.state = "write error"
    (board.root / MANAGER[1:] / "status").write_text("reconfig CRC error\n")
    message = refusal(board, board.put(b"image", IMAGE))
    assert "'write error' (reconfig CRC error)" in message


def test_a_file_that_is_replaced_while_the_kernel_reads_it_is_an_error(board: Machine) -> None:
    program = board.put(b"image", IMAGE)

    def replaced() -> None:
        (board.root / IMAGE[1:]).unlink()

    board.kernel.meanwhile = replaced
    assert "changed meanwhile" in refusal(board, program)


@pytest.mark.parametrize("held", [None, {"fpga:fpga-full/region1"}])
def test_nothing_is_loaded_while_others_use_the_chip(board: Machine, held: set[str] | None) -> None:
    board.held = held
    refusal(board, board.put(b"image", IMAGE))
    assert board.kernel.requests == []


def test_a_whole_image_is_not_loaded_while_another_region_of_the_chip_is_in_use(board: Machine) -> None:
    program = board.put(b"image", IMAGE)
    board.units = [board.chip(), board.chip(name="region1")]
    board.held = {"fpga:fpga-full", "fpga:region1"}
    assert "another container uses region1" in refusal(board, program)
    assert board.kernel.requests == []
    board.programmer.program([board.chip()], replace(program, partial=True))
    assert len(board.kernel.requests) == 1, "a partial one leaves the other regions alone"


def test_two_regions_of_one_chip_are_remembered_apart(board: Machine) -> None:
    program = replace(board.put(b"image", IMAGE), partial=True)
    other = replace(board.put(b"other", "/lib/firmware/other.bin"), partial=True)
    for _ in range(2):
        board.programmer.program([board.chip()], program)
        board.programmer.program([board.chip(name="region1")], other)
    assert len(board.kernel.requests) == 2


def test_a_whole_image_takes_the_place_of_all_partial_ones(board: Machine) -> None:
    program = replace(board.put(b"image", IMAGE), partial=True)
    whole = board.put(b"whole", "/lib/firmware/whole.bin")
    board.programmer.program([board.chip(name="region1")], program)
    board.programmer.program([board.chip()], whole)
    board.programmer.program([board.chip(name="region1")], program)
    assert len(board.kernel.requests) == 3
