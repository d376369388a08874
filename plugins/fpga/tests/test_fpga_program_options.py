"""The keys below `program:` of a resource."""

from __future__ import annotations

from pathlib import Path

import pytest
from devhost_fpga.options import Program
from fpga_programming import AFU, INTERFACE

from devhost.backend import OptionError

FILE = Path("/srv/fpga/x.gbs")


@pytest.mark.parametrize(
    "text",
    [
        INTERFACE,
        INTERFACE.upper(),
        "69528db6-eb31-577a-8c36-68f9faa081f6",
        "69528DB6-EB31-577A-8C36-68F9FAA081F6",
    ],
)
def test_an_id_may_be_written_with_dashes_or_without_and_in_any_case(text: str) -> None:
    program = Program(FILE, interface_id=text, afu_id=text)
    assert program.interface_id == INTERFACE
    assert program.afu_id == INTERFACE
    assert program == Program(FILE, interface_id=INTERFACE, afu_id=INTERFACE)


@pytest.mark.parametrize(
    "text", ["x", "0" * 31, "0" * 33, f"{AFU[:-1]}g", f"{AFU[:4]}-{AFU[4:]}", f"0x{AFU}"]
)
@pytest.mark.parametrize("key", ["interfaceId", "afuId"])
def test_an_invalid_id_is_refused_with_its_key_and_a_hint(text: str, key: str) -> None:
    with pytest.raises(OptionError, match="is not an id") as caught:
        Program(FILE, **{"interface_id" if key == "interfaceId" else "afu_id": text})
    assert caught.value.key == key
    assert "32 hexadecimal digits" in caught.value.hint


@pytest.mark.parametrize("path", ["srv/x.gbs", "/srv/../etc/x.gbs", "x.gbs"])
def test_a_bitstream_is_named_by_its_absolute_path_on_the_node(path: str) -> None:
    with pytest.raises(OptionError, match="absolute path") as caught:
        Program(Path(path))
    assert caught.value.key == "bitstream"
    assert "/srv/fpga/crypto.gbs" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "words"), [("a.xclbin", "XRT"), ("a.XCLBIN", "XRT"), ("a.aocx", "not supported")]
)
def test_unsupported_files_are_refused_when_the_configuration_is_checked(name: str, words: str) -> None:
    with pytest.raises(OptionError, match=words) as caught:
        Program(Path("/srv") / name)
    assert caught.value.hint


def test_a_path_must_fit_into_one_line_of_a_message() -> None:
    with pytest.raises(OptionError, match="unprintable"):
        Program(Path("/srv/a\nb.gbs"))
