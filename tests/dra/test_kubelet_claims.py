"""The kubelet's own record of claims is read in each of its formats, and trusted in none."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.dra import DraState
from hypothesis import given
from hypothesis import strategies as st

from devhost.dra.upkeep import KubeletClaims, recorded_uids

UNUSABLE = (ValueError, TypeError, LookupError, RecursionError)


def since_1_32(content: Any) -> bytes:
    text = json.dumps(content)
    return json.dumps({"Data": text, "Checksum": zlib.crc32(text.encode())}).encode()


ENTRIES = [{"ClaimUID": "u-1", "PodUIDs": {"p": {}}}, {"ClaimUID": "u-2"}]


@pytest.mark.parametrize(
    ("data", "uids"),
    [
        (since_1_32({"kind": "DRACheckpoint", "ClaimInfoStateList": ENTRIES}), {"u-1", "u-2"}),
        (since_1_32({"kind": "DRACheckpoint", "Entries": ENTRIES}), {"u-1", "u-2"}),
        (since_1_32({"kind": "DRACheckpoint", "ClaimInfoStateList": None}), set()),
        (json.dumps({"version": "v1", "entries": ENTRIES, "checksum": 1}).encode(), {"u-1", "u-2"}),
    ],
)
def test_each_format_of_the_record_is_read(data: bytes, uids: set[str]) -> None:
    assert recorded_uids(data) == uids


def test_a_record_with_a_wrong_checksum_is_none() -> None:
    found = json.loads(since_1_32({"ClaimInfoStateList": ENTRIES})) | {"Checksum": 1}
    with pytest.raises(ValueError, match="checksum"):
        recorded_uids(json.dumps(found).encode())


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["ClaimInfoStateList", "Entries", "ClaimUID"]), inner, max_size=3)
    ),
)


@given(JSON, st.sampled_from(["Data", "entries", ""]))
def test_no_content_is_more_than_no_record(content: Any, where: str) -> None:
    text = json.dumps(content)
    whole = {
        "Data": {"Data": text, "Checksum": zlib.crc32(text.encode())},
        "entries": {"entries": content},
        "": content,
    }[where]
    try:
        assert all(isinstance(uid, str) for uid in recorded_uids(json.dumps(whole).encode()))
    except UNUSABLE:
        return


async def test_the_record_is_in_the_directory_above_the_drivers_sockets(tmp_path: Path) -> None:
    claims = KubeletClaims(tmp_path / "plugins")
    assert await claims.uids() == frozenset()
    DraState(tmp_path).write("u-1")
    assert await claims.uids() == {"u-1"}
