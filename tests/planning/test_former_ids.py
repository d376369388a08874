"""Ids that an earlier version gave: read back to every device that may have had them, and to no other."""

from __future__ import annotations

import hashlib

import pytest

from devhost.backend.model import MAX_DEVICE_ID, Device
from devhost.planning.tokens import DeviceIds, is_former, token

LONG = "block-" + "x" * 70


def cut(text: str) -> str:
    return f"{text[: MAX_DEVICE_ID - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def known(*devices: Device) -> DeviceIds:
    return DeviceIds({device.id: device for device in devices})


def ids(known: DeviceIds, name: str) -> list[str]:
    return sorted(device.id for device in known.named(name))


QUEUES = known(
    Device("dsa-wq0.0", former_ids=("dsa", "dsa.*")),
    Device("dsa-wq0.1", former_ids=("dsa", "dsa.*")),
    Device("tty-port1", former_ids=("tty",)),
    Device("plain"),
)


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("dsa", ["dsa-wq0.0", "dsa-wq0.1"]),
        ("dsa.17", ["dsa-wq0.0", "dsa-wq0.1"]),
        ("dsa::3", ["dsa-wq0.0", "dsa-wq0.1"]),
        ("dsa.1::3", ["dsa-wq0.0", "dsa-wq0.1"]),
        ("tty", ["tty-port1"]),
        ("tty.1", []),
        ("dsa.", []),
        ("dsa.x", []),
        ("dsa.*", []),
        ("dsa-wq0.0", ["dsa-wq0.0"]),
        ("plain::1", ["plain"]),
        ("", []),
    ],
)
def test_a_former_id_counts_for_every_device_that_may_have_had_it(name: str, devices: list[str]) -> None:
    assert ids(QUEUES, name) == devices


@pytest.mark.parametrize("rank", ["", ".1", ".12"])
def test_a_former_id_that_had_to_be_cut_is_recognised(rank: str) -> None:
    devices = known(
        Device("a", former_ids=(LONG, f"{LONG}.*")), Device("b", former_ids=(f"{LONG}y", f"{LONG}y.*"))
    )
    assert ids(devices, cut(LONG + rank)) == ["a"]
    assert ids(devices, token(cut(LONG + rank), 7, 10)) == ["a"]


def test_a_former_id_that_only_its_rank_made_too_long_is_recognised() -> None:
    base = "y" * 62
    assert ids(known(Device("a", former_ids=(base, f"{base}.*"))), cut(f"{base}.1")) == ["a"]


def test_an_id_of_today_is_never_taken_for_a_former_one() -> None:
    devices = known(Device("dsa"), Device("dsa-wq0.1", former_ids=("dsa", "dsa.*")))
    assert ids(devices, "dsa") == ["dsa"]
    assert ids(devices, "dsa.1") == ["dsa-wq0.1"]


def test_a_token_for_all_devices_is_none_of_a_former_id() -> None:
    device = Device("now", former_ids=("before",))
    assert is_former("before::0", device)
    assert not is_former("all::0", device)
    assert not is_former("now::0", device)
