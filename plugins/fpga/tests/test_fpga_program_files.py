"""Which files can be programmed, and why others are refused."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from descriptors import open_descriptors
from devhost_fpga.options import Program
from devhost_fpga.programming.bitstream import FILES, OPENCL, Files, opened
from fpga_programming import AFU, BITSTREAM, INTERFACE, OTHER_INTERFACE, Machine, gbs, machine

from devhost.backend import AllocationError


@pytest.fixture
def node(tmp_path: Path) -> Machine:
    return machine(tmp_path)


def why(node: Machine, program: Program, files: Files = FILES) -> str:
    """Why a file is refused."""
    with pytest.raises(AllocationError) as caught, opened(str(node.root), program, files=files):
        pass
    assert "\n" not in caught.value.message
    assert str(program.bitstream) in caught.value.message
    return caught.value.message


def test_a_gbs_file_gives_its_ids_and_the_start_of_its_image(node: Machine) -> None:
    upper = "69528DB6-EB31-577A-8C36-68F9FAA081F6"
    content = gbs(upper, AFU, b"\x00\x01\x02")
    with opened(str(node.root), node.put(content)) as image:
        assert (image.interface_id, image.afu_id) == (INTERFACE, AFU)
        assert image.is_gbs
        assert content[len(image.head) :] == b"\x00\x01\x02"
        assert image.size == len(content)


def test_metadata_padded_with_zeros_is_read(node: Machine) -> None:
    content = gbs()
    length = int.from_bytes(content[16:20], "little")
    padded = content[:16] + (length + 3).to_bytes(4, "little") + content[20 : 20 + length] + b"\0\0\0image"
    with opened(str(node.root), node.put(padded)) as image:
        assert image.afu_id == AFU


def test_a_raw_image_has_the_ids_of_the_resource(node: Machine) -> None:
    program = replace(node.put(b"\x00" * 64, "/srv/x.rbf"), interface_id=INTERFACE, afu_id=AFU)
    with opened(str(node.root), program) as image:
        assert (image.interface_id, image.afu_id, image.head) == (INTERFACE, AFU, b"")


def test_the_file_is_always_closed(node: Machine) -> None:
    before = open_descriptors()
    why(node, node.put(b""))
    with opened(str(node.root), node.put(gbs())):
        pass
    assert open_descriptors() <= before


def test_a_missing_file_is_named(node: Machine) -> None:
    assert why(node, Program(Path("/srv/none.gbs"))) == "/srv/none.gbs does not exist on the node"


def test_a_missing_permission_is_reported(node: Machine) -> None:
    def refuse(path: str) -> NoReturn:
        raise PermissionError(13, "Permission denied", path)

    reason = why(node, node.put(gbs()), Files(open=refuse))
    assert reason.endswith("cannot be read: Permission denied")


def test_a_read_error_is_reported(node: Machine) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(5, "Input/output error")

    reason = why(node, node.put(gbs()), Files(pread=fail))
    assert reason.endswith("cannot be read: Input/output error")


@pytest.mark.parametrize("kind", ["directory", "pipe"])
def test_only_regular_files_are_opened_and_none_blocks(node: Machine, kind: str) -> None:
    place = node.root / "srv/x.gbs"
    place.parent.mkdir()
    if kind == "directory":
        place.mkdir()
    else:
        os.mkfifo(place)
    assert "is not a regular file" in why(node, Program(Path("/srv/x.gbs")))


def test_a_file_that_others_can_change_is_refused_with_its_path_on_the_node(node: Machine) -> None:
    program = node.put(gbs())
    for mode, whom in ((0o666, "its group and others"), (0o664, "its group")):
        (node.root / BITSTREAM[1:]).chmod(mode)
        assert why(node, program) == (
            f"{BITSTREAM} is writable by {whom}, who can change it (run `chmod go-w {BITSTREAM}`)"
        )


def test_a_file_in_a_directory_that_others_can_write_to_is_refused(node: Machine) -> None:
    """They could put another file in its place."""
    program = node.put(gbs())
    (node.root / "srv").chmod(0o775)
    assert why(node, program) == (
        f"{BITSTREAM} is not trusted: /srv is writable by its group, who can put files into it "
        "(run `chmod go-w /srv`)"
    )


def test_a_link_is_followed_on_the_node_and_not_out_of_it(
    node: Machine, tmp_path_factory: pytest.TempPathFactory
) -> None:
    node.put(gbs())
    inside, outside = node.root / "srv/inside.gbs", node.root / "srv/outside.gbs"
    inside.symlink_to("fpga/crypto.gbs")
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "x.gbs"
    elsewhere.write_bytes(gbs())
    elsewhere.chmod(0o644)
    outside.symlink_to(elsewhere)
    with opened(str(node.root), Program(Path("/srv/inside.gbs"))) as image:
        assert image.afu_id == AFU
    assert "leads out of" in why(node, Program(Path("/srv/outside.gbs")))


def test_an_empty_file_and_one_that_is_too_large_are_refused(node: Machine) -> None:
    assert why(node, node.put(b"")).endswith("is empty")
    assert "is too large" in why(node, node.put(gbs()), Files(largest=10))


@pytest.mark.parametrize("length", [1, 15, 16, 19, 20, 100, len(gbs(image=b""))])
def test_a_truncated_gbs_file_is_refused_wherever_it_ends(node: Machine, length: int) -> None:
    assert "truncated" in why(node, node.put(gbs()[:length]))


def test_an_invalid_file_named_gbs_is_refused(node: Machine) -> None:
    assert "is not a GBS file" in why(node, node.put(b"\x00" * 4096))


def damaged(text: bytes, length: int | None = None) -> bytes:
    size = len(text) if length is None else length
    return b"XeonFPGA\xb7GBSv001" + size.to_bytes(4, "little") + text + b"image"


@pytest.mark.parametrize(
    "content",
    [
        damaged(b"{}"),
        damaged(b"[1]"),
        damaged(b"nonsense"),
        damaged(b"\xff\xfe"),
        damaged(b'{"afu-image": {"interface-uuid": 7, "accelerator-clusters": []}}'),
        damaged(b'{"afu-image": null}'),
        damaged(b"[" * 4000),
        damaged(b"", 0),
        damaged(b"{}", 4096) + b"\0" * 5000,
        damaged(b"{}", 0xFFFFFFFF) + b"\0" * 5000,
        gbs(interface=""),
        gbs(interface="nonsense"),
        gbs(afu=""),
    ],
)
def test_damaged_metadata_is_refused(node: Machine, content: bytes) -> None:
    assert "damaged" in why(node, node.put(content))


@pytest.mark.parametrize("number", [0, 2])
def test_an_image_with_another_number_of_accelerators_is_refused(node: Machine, number: int) -> None:
    image = {"interface-uuid": INTERFACE, "accelerator-clusters": [{"accelerator-type-uuid": AFU}] * number}
    assert f"names {number} accelerators" in why(node, node.put(gbs(**{"afu-image": image})))


@pytest.mark.parametrize(
    ("start", "words"),
    [
        (b"\x7fELF\x02\x01", "OpenCL"),
        (b"xclbin2\0", "XRT"),
        (b"\x19\xfd\xea\xb6", "fpgasupdate"),
        (b"\x1f\x8b\x08", "unpack"),
    ],
)
def test_other_kinds_of_files_are_refused_by_their_beginning(node: Machine, start: bytes, words: str) -> None:
    assert words in why(node, node.put(start + b"\0" * 100, "/srv/x.bin"))


def test_opencl_images_are_refused_because_of_their_common_id(node: Machine) -> None:
    assert "OpenCL" in why(node, node.put(gbs(afu=OPENCL)))


def test_ids_of_the_resource_must_match_the_file(node: Machine) -> None:
    program = node.put(gbs())
    message = why(node, replace(program, interface_id=OTHER_INTERFACE))
    assert INTERFACE in message and OTHER_INTERFACE in message
    message = why(node, replace(program, afu_id=OTHER_INTERFACE))
    assert AFU in message and OTHER_INTERFACE in message
