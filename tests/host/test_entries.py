"""The nearest devices of an entry without devices, and the outcome of each entry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from devhost.backend import MissingDriver
from devhost.backend.model import AttributeValue, Device, unhealthy
from devhost.backend.where import Block, Flag, Range, Term, Text, may_hold
from devhost.discovery.scanner import BackendCondition, BackendNow, BackendState
from devhost.discovery.unserved import dead_links
from devhost.discovery.validation import RefusedDevice
from devhost.host.shown.entries import UNKNOWN, EntryOutcomes, EntryState, near_misses, nearest, wanted
from devhost.planning.planner import make_plan
from devhost.planning.settings import ResourceSettings, Settings, Share


def term(attribute: str, *patterns: str) -> Term:
    return Term(attribute, tuple(map(Text, patterns)))


def machine(*each: Mapping[str, AttributeValue]) -> list[Device]:
    return [Device(f"d{number}", attributes) for number, attributes in enumerate(each)]


ADAPTERS = machine(
    {"subsystem": "tty", "idVendor": "1a86", "idProduct": "5523"},
    {"subsystem": "tty", "idVendor": "1a86", "idProduct": "7523"},
    {"subsystem": "usb", "idVendor": "0403"},
)


@pytest.mark.parametrize(
    ("where", "reason"),
    [
        pytest.param(
            [Block((term("subsystem", "TTY"), term("idVendor", "1a86")))],
            '2 match all but subsystem ("tty", not "TTY")',
            id="one condition fails",
        ),
        pytest.param(
            [Block((term("subsystem", "TTY"),))],
            '2 match all but subsystem ("tty", not "TTY")',
            id="nothing but case differs",
        ),
        pytest.param(
            [Block((term("subsystem", " tty"),))],
            '2 match all but subsystem ("tty", not " tty")',
            id="nothing but white space differs",
        ),
        pytest.param(
            [Block((term("subsystem", "usb"), term("idProduct", "6001")))],
            '1 matches all but idProduct (has none, not "6001")',
            id="the attribute is missing",
        ),
        pytest.param(
            [Block((term("subsystem", "tty"), term("serial", "A")))],
            '2 match all but serial (all have none, not "A")',
            id="the attribute is missing in all",
        ),
        pytest.param(
            [Block((term("subsystem", "tty"), term("idProduct", "1", "2*", "3", "4", "5")))],
            '2 match all but idProduct ("5523" or "7523", not "1", "2*", "3" or 2 others)',
            id="many patterns",
        ),
        pytest.param(
            [Block((term("subsystem", "tty"),), (Block((term("idVendor", "1a86"),)),))],
            "2 match all but not: {idVendor: 1a86}",
            id="a not refuses them",
        ),
        pytest.param(
            [
                Block((term("driver", "ch340"),)),
                Block((term("subsystem", "tty"), term("idVendor", "1a86"), term("idProduct", "9999"))),
            ],
            '2 match all of block 2 but idProduct ("5523" or "7523", not "9999")',
            id="the nearest of several blocks",
        ),
        pytest.param(
            [Block((term("subsystem", "net"),))],
            'none of the 3 devices has subsystem "net", they have "tty" and "usb"',
            id="no device meets the only condition",
        ),
        pytest.param(
            [Block((term("driver", "ch341"),))],
            "none of the 3 devices has the attribute driver",
            id="no device has the only attribute",
        ),
        pytest.param(
            [Block((term("driver", "ch341"), term("serial", "A")))],
            "none of the 3 devices meets any condition",
            id="no device meets any condition",
        ),
        pytest.param(
            [Block((term("subsystem", "tty"), Term("index", (Range(1, 3),)), Term("isVf", (Flag(True),))))],
            "2 match all but index (all have none, not 1-3) and isVf (all have none, not true)",
            id="numbers and flags",
        ),
    ],
)
def test_the_nearest_miss_names_what_fails_with_both_values(where: list[Block], reason: str) -> None:
    """Other plugins omit the resource of a selector without devices, and give no reason."""
    assert nearest(tuple(where), ADAPTERS) == reason


def test_without_any_device_that_is_the_reason() -> None:
    assert nearest((Block((term("subsystem", "tty"),)),), []) == "the backend sees no devices"


def test_one_device_is_named_in_the_singular() -> None:
    where = (Block((term("subsystem", "net"),)),)
    assert nearest(where, ADAPTERS[:1]) == 'the only device has subsystem "tty", not "net"'
    assert nearest((Block((term("driver", "x"),)),), ADAPTERS[:1]) == "the only device has no driver"


def test_groups_of_devices_that_fail_differently_are_listed_separately() -> None:
    devices = machine(
        {"subsystem": "tty", "idVendor": "0403"},
        {"subsystem": "tty", "idVendor": "067b"},
        {"subsystem": "usb", "idVendor": "1a86"},
    )
    where = (Block((term("subsystem", "tty"), term("idVendor", "1a86"))),)
    assert nearest(where, devices) == (
        '2 match all but idVendor ("0403" or "067b", not "1a86"); '
        '1 matches all but subsystem ("usb", not "tty")'
    )


def test_of_many_values_the_most_similar_are_shown() -> None:
    devices = machine(*({"driver": f"driver-{n}"} for n in range(50)), {"driver": "ch341-uart"})
    reason = nearest((Block((term("driver", "ch340-uart"),)),), devices)
    assert reason.startswith('none of the 51 devices has driver "ch340-uart", they have "ch341-uart", ')
    assert reason.endswith("and 48 others")


def test_a_long_value_is_truncated() -> None:
    reason = nearest(
        (Block((term("driver", "y"), term("name", "x"))),), machine({"name": "x", "driver": "z" * 4096})
    )
    assert len(reason) < 200


def test_an_inherited_attribute_counts_only_in_a_block_that_names_its_source() -> None:
    device = Device("d0", {"group": "video", "driver": "uvc"}, inherited=frozenset({"driver"}))
    where = (Block((term("driver", "uvc"),), without="group"),)
    assert nearest(where, [device]) == "1 matches all but driver (counts only in a block that names group)"


def test_ten_thousand_devices_are_all_counted() -> None:
    devices = machine(*({"subsystem": "tty", "idVendor": f"{n:04x}"} for n in range(10_000)))
    reason = nearest((Block((term("subsystem", "TTY"), term("idVendor", "*"))),), devices)
    assert reason == '10000 match all but subsystem ("tty", not "TTY")'


def listed(devices: list[Device]) -> BackendNow:
    """A backend that has listed its devices."""
    return BackendNow(BackendCondition(BackendState.OK), True, {device.id: device for device in devices})


def test_an_entry_without_devices_names_what_its_backend_reports_incorrectly() -> None:
    settings = Settings((ResourceSettings(0, "a/0", "toy", optional=True),))
    refused = tuple(RefusedDevice(name, "attribute 'a' is int, declared as str") for name in ("d0", "d1"))
    condition = BackendCondition(BackendState.OK, refused=refused)
    plan = make_plan({"toy": []}, settings)
    backends = {"toy": BackendNow(condition, True, {})}
    (outcome,) = EntryOutcomes(settings, plan, backends).all()
    assert outcome.state is EntryState.NONE
    assert outcome.reason == (
        "0 devices; the backend reports its devices incorrectly: "
        "d0: attribute 'a' is int, declared as str; 1 more device"
    )


def test_the_reasons_of_one_plan_make_a_bounded_number_of_comparisons() -> None:
    """A node with very many devices and entries must not be blocked by working out reasons."""
    where = (Block((term("subsystem", "TTY"), term("idVendor", "*"))),)
    settings = Settings(tuple(ResourceSettings(n, f"a/{n}", "toy", where) for n in range(3)))
    backends = {"toy": listed(ADAPTERS)}
    plan = make_plan({"toy": ADAPTERS}, settings)
    reasons = [
        one.reason for one in EntryOutcomes(settings, plan, backends, comparisons=2 * len(ADAPTERS)).all()
    ]
    miss = '0 devices; 2 match all but subsystem ("tty", not "TTY")'
    assert reasons == [miss, miss, f"0 devices; {UNKNOWN}"]
    assert [one.reason for one in EntryOutcomes(settings, plan, backends).all()] == [miss] * 3


def test_a_device_that_fails_the_only_condition_is_no_near_miss() -> None:
    only, two = (
        Block((term("subsystem", "usb"),)),
        Block((term("subsystem", "usb"), term("idVendor", "1a86"))),
    )
    assert near_misses((only,), ADAPTERS) == ""
    assert near_misses((two,), ADAPTERS[:1]) == "1 more matches all but subsystem (d0: it is tty)"


def test_a_cordoned_unit_is_one_device_less() -> None:
    devices = machine(*({"board": board} for board in ("a", "a", "b", "b")))
    entry = ResourceSettings(0, "example.com/x", "toy", share=Share(of="board"), expect=(Range(2, 2),))
    cordons = dict.fromkeys(("d0", "d1"), unhealthy("it is replaced"))
    backend = BackendNow(BackendCondition(BackendState.OK), True, {one.id: one for one in devices}, cordons)
    settings = Settings((entry,))
    (outcome,) = EntryOutcomes(settings, make_plan({"toy": devices}, settings), {"toy": backend}).all()
    assert outcome.reason == ""
    assert outcome.cordoned == "1 of 2 devices; d0: it is replaced; d1: it is replaced"


def test_a_link_that_leads_to_nothing_is_named_although_no_device_has_changed() -> None:
    settings = Settings((ResourceSettings(0, "a/0", "toy", (Block((term("devNode", "/dev/by-id/x"),)),)),))
    backends = {"toy": listed(ADAPTERS)}
    plan = make_plan({"toy": ADAPTERS}, settings)
    before = EntryOutcomes(settings, plan, backends)
    assert "leads to" not in before.all()[0].reason
    now = EntryOutcomes(settings, plan, backends, before=before, dead_links={0: "/dev/by-id/x leads to y"})
    assert now.all()[0].reason == "0 devices; /dev/by-id/x leads to y"


def test_a_link_that_leads_to_nothing_is_the_reason_for_a_missing_device(tmp_path: Path) -> None:
    where = (Block((term("devNode", "/dev/ttyUSB0", "/dev/by-id/x"),)),)
    lacking = ResourceSettings(0, "a/0", "toy", where, expect=(Range(2, 2),), exclusive=False)
    settings = Settings((lacking, replace(lacking, index=1, name="a/1", expect=())))
    backend = listed(machine({"devNode": "/dev/ttyUSB0"}))
    (tmp_path / "dev/by-id").mkdir(parents=True)
    (tmp_path / "dev/by-id/x").symlink_to("../tty7")
    plan = make_plan({"toy": [*backend.devices.values()]}, settings)
    links = dead_links(tmp_path, settings, plan)
    outcomes = EntryOutcomes(settings, plan, {"toy": backend}, dead_links=links).all()
    assert outcomes[0].reason == "1 of 2 devices; /dev/by-id/x leads to /dev/tty7, which does not exist"
    assert (outcomes[1].devices, outcomes[1].reason, links.keys()) == (1, "", {0})


@pytest.mark.parametrize(
    ("where", "is_wanted"),
    [
        ((), True),
        ((Block((term("vendor", "nvidia"),)),), True),
        ((Block((term("vendor", "amd"),)),), False),
        ((Block((term("vendor", "nvidia"), term("product", "NVIDIA A100*"))),), True),
        ((Block((term("vendor", "amd"),)), Block((term("product", "A*"),))), True),
        ((Block((), (Block((term("vendor", "nvidia"),)),)),), False),
        ((Block((), (Block((term("product", "T4"),)),)),), True),
    ],
)
def test_hardware_without_a_driver_matches_entries_that_it_does_not_contradict(
    where: tuple[Block, ...], *, is_wanted: bool
) -> None:
    """What only a driver reports, such as the product, is unknown without it and contradicts nothing."""
    lacking = MissingDriver("0000:3b:00.0", "no driver is bound to it", {"vendor": "nvidia"})
    assert may_hold(where, lacking.attributes) is is_wanted
    assert wanted(lacking, [ResourceSettings(0, "example.com/gpu", "gpu", where)]) is is_wanted
