"""The node's own addresses, in one spelling."""

from __future__ import annotations

import pytest

from devhost.backend.traffic import normal, spelled


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:DB8:0:0:0::1", "2001:db8::1"),
        ("fe80:0::01%eth0", "fe80::1"),
        ("2001:db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.1"),
    ],
)
def test_an_address_has_one_spelling(text: str, wanted: str) -> None:
    assert normal(text) == wanted


@pytest.mark.parametrize("text", ["", "%", "node-1", "192.0.2", "192.0.02.1", "1::2::3", "\u0661.2.3.4"])
def test_what_is_no_address_is_unchanged(text: str) -> None:
    assert normal(text) == text


@pytest.mark.parametrize("packed", [b"", b"\xc0\0\2", b"\0" * 15])
def test_bytes_of_another_length_are_no_address(packed: bytes) -> None:
    assert spelled(packed) == ""
    assert spelled(b"\xc0\0\2\1") == "192.0.2.1"
