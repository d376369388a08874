"""Every entry of the file is visible, and what keeps devices from an entry is a problem."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import pytest
from status_values import status

from devhost.backend import Device, MissingDriver, unhealthy
from devhost.host.shown.problems import problems
from devhost.host.shown.status import captured
from devhost.telemetry.page.content import verdict

TOY, OTHER = "example.com/toy", "example.com/other"
MISS = '0 devices; 2 match all but model ("x100", not "X100")'


def entry(host, number=0):
    return status(host)["entries"][number]


def wrong(host):
    """The problems, once there is a plan: a backend may have one before."""
    if not host.planned:
        return []
    return [(one.kind, one.subject, one.reason) for one in problems(host.now()).shown if one.kind != "pods"]


@pytest.fixture
def records(caplog):
    """Level and fields of the log lines with a message."""
    caplog.set_level(logging.INFO, "devhost")

    class Records:
        def of(self, message):
            found = [one for one in caplog.records if one.getMessage() == message]
            return [(one.levelname, vars(one)["fields"]) for one in found]

    return Records()


async def test_an_entry_that_nothing_matches_is_shown_with_its_nearest_miss(rig, kubelet, records):
    """Other plugins report nothing about a selector without devices; devhost shows the reason everywhere."""
    async with rig.running(f"name: {TOY}, backend: toy, where: {{model: X100, index: 0-9}}") as host:
        await rig.until(lambda: wrong(host))
        assert entry(host) == {
            "entry": "resources[0]",
            "name": TOY,
            "backend": "toy",
            "optional": False,
            "devices": 0,
            "resources": [],
            "state": "none",
            "reason": MISS,
            "remark": "",
            "cordoned": "",
        }
        assert wrong(host) == [("entry", TOY, MISS)]
        assert verdict(captured(host)()) != "No problems"
        assert records.of("entry has no devices") == [
            ("WARNING", {"entry": "resources[0]", "resource": TOY, "backend": "toy", "reason": MISS})
        ]


async def test_two_entries_with_one_template_are_both_logged(rig, kubelet, records):
    line = "name: 'example.com/toy-{model}', backend: toy, where: {model: nothing-%s}"
    async with rig.running(line % 1, line % 2) as host:
        await rig.until(lambda: len(records.of("entry has no devices")) >= 2)
        host.replan(None)  # the outcome of one is not used for the other
        logged = [fields["entry"] for _, fields in records.of("entry has no devices")]
        assert logged == ["resources[0]", "resources[1]"]


async def test_an_optional_entry_without_devices_is_no_problem(rig, kubelet, records):
    rig.write(f"name: {TOY}, backend: toy, optional: true, where: {{model: X100, index: 0-9}}")
    async with rig.running() as host:
        await rig.until(lambda: entry(host)["state"] == "absent")
        assert wrong(host) == []
        assert entry(host)["reason"] == MISS
        assert [level for level, _ in records.of("entry has no devices")] == ["INFO"]


async def test_an_entry_without_devices_does_not_fail_readiness(rig, kubelet):
    async with rig.running(f"name: {TOY}, backend: toy, where: {{model: X100}}") as host:
        await rig.until(lambda: wrong(host))
        assert host.ready() == (True, "")


async def test_each_change_is_logged_once(rig, kubelet, records):
    async with rig.running(f"name: {TOY}, backend: toy", allocatable={TOY: 2}) as host:
        assert entry(host)["state"] == "served"
        assert entry(host)["resources"] == [TOY]
        assert records.of("entry has no devices") == []
        found, rig.scripts["toy"].devices = rig.scripts["toy"].devices, []
        host.scanners["toy"].request_scan()
        await rig.until(lambda: wrong(host))
        # at once, while the device list still has the vanished devices
        assert wrong(host)[0] == ("entry", TOY, "0 devices; the backend sees no devices")
        rig.scripts["toy"].devices = found
        host.scanners["toy"].request_scan()
        await rig.until(lambda: entry(host)["devices"] == 2)
        assert not any(kind == "entry" for kind, *_ in wrong(host))
        assert len(records.of("entry has no devices")) == 1
        assert records.of("entry has devices") == [
            ("INFO", {"entry": "resources[0]", "resource": TOY, "backend": "toy", "devices": 2})
        ]


async def test_a_new_reason_is_logged_when_another_device_is_nearest(rig, kubelet, records):
    rig.scripts["toy"].devices = []
    async with rig.running(f"name: {TOY}, backend: toy, where: {{model: X100, index: 0-9}}") as host:
        await rig.until(lambda: wrong(host))
        rig.scripts["toy"].devices = [Device("d0", {"model": "x100", "index": 1})]
        host.scanners["toy"].request_scan()
        await rig.until(lambda: len(records.of("entry has no devices")) >= 2)
        logged = [fields["reason"] for _, fields in records.of("entry has no devices")]
        assert logged == [
            "0 devices; the backend sees no devices",
            '0 devices; 1 matches all but model ("x100", not "X100")',
        ]


async def test_an_entry_that_waits_for_its_backend_is_not_ready(rig, kubelet):
    """A page must not report that all is healthy before the first scan."""
    rig.timing = replace(rig.timing, first_plan=0.3)
    go = threading.Event()
    rig.scripts["toy"].on_discover = lambda: go.wait(60)
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        try:
            await rig.until(lambda: host.planned)
            assert entry(host)["state"] == "waiting"
            assert entry(host)["reason"] == "0 devices; the backend has not answered yet"
            assert not any(kind == "entry" for kind, *_ in wrong(host))
            assert verdict(replace(captured(host)(), problems=[])) == "Looking for devices"
        finally:
            go.set()
        await rig.until(lambda: entry(host)["state"] == "served")


async def test_a_reload_shows_the_entries_of_the_new_file(rig, kubelet):
    async with rig.running(f"name: {TOY}, backend: toy, where: {{model: X100}}") as host:
        await rig.until(lambda: wrong(host))
        rig.write(f"name: {TOY}, backend: toy", f"name: {OTHER}, backend: other, where: {{model: none}}")
        await rig.until(lambda: entry(host)["state"] == "served" and len(status(host)["entries"]) == 2)
        await rig.until(lambda: entry(host, 1)["state"] == "none")
        assert [subject for kind, subject, _ in wrong(host) if kind == "entry"] == [OTHER]


async def test_an_entry_names_the_earlier_one_that_takes_its_devices(rig, kubelet):
    rig.write(
        f"name: {TOY}, backend: toy, where: {{index: 0-9}}",
        f"name: {OTHER}, backend: toy, where: {{model: x*}}",
    )
    async with rig.running() as host:
        await rig.until(lambda: wrong(host))
        reason = f"0 devices; 2 match, but resources[0] ({TOY}) took them"
        assert wrong(host) == [("entry", OTHER, reason)]


async def test_an_overlap_that_leaves_both_entries_devices_is_no_problem(rig, kubelet, records):
    """Configurations have specific entries before a catch-all."""
    rig.write(f"name: {TOY}, backend: toy, where: {{index: 0}}", f"name: {OTHER}, backend: toy")
    async with rig.running(allocatable={TOY: 1, OTHER: 1}) as host:
        assert not any(kind in ("entry", "plan") for kind, *_ in wrong(host))
        assert [refusal["kind"] for refusal in status(host)["refusals"]] == ["taken"]
        assert [fields["earlier"] for _, fields in records.of("an earlier entry takes devices")] == [
            "resources[0]"
        ]


async def test_sharing_that_only_the_later_entry_allows_is_a_problem(rig, kubelet, records):
    rig.write(
        f"name: {TOY}, backend: toy, where: {{index: 0}}", f"name: {OTHER}, backend: toy, exclusive: false"
    )
    async with rig.running(allocatable={TOY: 1, OTHER: 1}) as host:
        reason = f"resources[1]: entry 1 ({TOY}) already took it and does not have exclusive: false"
        await rig.until(lambda: ("plan", "toy d0", reason) in wrong(host))
        assert [one["reason"] for one in status(host)["refusals"]] == [reason]
        assert records.of("device refused by the plan") == [
            ("WARNING", {"backend": "toy", "device": "d0", "reason": reason})
        ]


async def test_a_missing_attribute_of_a_template_is_a_problem_until_it_exists(rig, kubelet, records):
    complete, lacking = rig.scripts["toy"].devices
    rig.scripts["toy"].devices = [complete, replace(lacking, attributes={"index": 1})]
    async with rig.running("name: 'example.com/{model}', backend: toy") as host:
        reason = "resources[0]: it has no model, which the name example.com/{model} needs"
        await rig.until(lambda: ("plan", "toy d1", reason) in wrong(host))
        assert entry(host)["resources"] == ["example.com/x100"]
        rig.scripts["toy"].devices = [complete, lacking]
        host.scanners["toy"].request_scan()
        await rig.until(lambda: not any(kind == "plan" for kind, *_ in wrong(host)))
        assert len(records.of("device refused by the plan")) == 1
        assert len(records.of("device no longer refused by the plan")) == 1


async def test_two_values_that_result_in_one_name_are_a_problem(rig, kubelet):
    rig.scripts["toy"].devices = [Device("d0", {"model": "a b"}), Device("d1", {"model": "a/b"})]
    async with rig.running("name: 'example.com/{model}', backend: toy") as host:
        await rig.until(lambda: any(kind == "plan" for kind, *_ in wrong(host)))
        ((_, subject, reason),) = [one for one in wrong(host) if one[0] == "plan"]
        assert subject == "toy d1"
        assert "the name example.com/a-b already represents a b" in reason


LACK = MissingDriver(
    "0000:3b:00.0 (10de:2330)", "no driver is bound to it (run modprobe toy)", {"model": "x100"}
)


@pytest.fixture
def lacking(rig):
    """What the toy backend reports as missing; the test changes it."""
    found = [LACK]
    rig.classes["toy"] = type("Lacking", (rig.classes["toy"],), {"missing_drivers": lambda self: found})
    return found


async def test_hardware_without_its_driver_is_a_problem_until_the_driver_is_loaded(
    rig, kubelet, records, lacking
):
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        await rig.until(lambda: wrong(host))
        assert wrong(host) == [("driver", f"toy {LACK.subject}", LACK.reason)]
        lacking.clear()
        host.scanners["toy"].request_scan()
        await rig.until(lambda: not wrong(host))
        assert records.of("hardware lacks its driver") == [
            ("WARNING", {"backend": "toy", "hardware": LACK.subject, "reason": LACK.reason})
        ]
        assert len(records.of("hardware no longer lacks its driver")) == 1


async def test_an_optional_entry_whose_hardware_lacks_a_driver_is_not_absent(rig, kubelet, lacking):
    rig.scripts["toy"].devices = []
    rig.write(f"name: {TOY}, backend: toy, optional: true, where: {{model: x100, index: 4}}")
    async with rig.running() as host:
        await rig.until(lambda: wrong(host))
        assert entry(host)["state"] == "none"
        assert entry(host)["reason"] == f"0 devices; {LACK.subject}: {LACK.reason}"
        assert [kind for kind, *_ in wrong(host)] == ["driver"]


async def test_an_option_without_effect_is_a_problem_and_no_reason_for_an_entry(rig, kubelet, lacking):
    lacking[:] = [replace(LACK, subject="198.51.100.7", attributes={}, makes_device=False)]
    rig.scripts["toy"].devices = []
    async with rig.running(f"name: {TOY}, backend: toy, optional: true") as host:
        await rig.until(lambda: wrong(host))
        assert entry(host)["state"] == "absent"
        assert "198.51.100.7" not in entry(host)["reason"]
        assert wrong(host) == [("driver", "toy 198.51.100.7", LACK.reason)]


async def test_more_devices_than_expected_name_no_missing_one(rig, kubelet):
    rig.scripts["toy"].devices = [
        *(Device(f"d{n}", {"model": "x", "index": 1}) for n in range(2)),
        Device("d9", {"model": "x", "index": 7}),
    ]
    async with rig.running(f"name: {TOY}, backend: toy, expect: 0, where: {{model: x, index: 0-3}}") as host:
        await rig.until(lambda: wrong(host))
        assert wrong(host) == [("entry", TOY, "2 devices, expected 0")]


async def test_a_device_withheld_without_a_driver_names_the_fix(rig, kubelet, lacking):
    rig.scripts["toy"].devices = [
        Device("0000:3b:00.0", {"model": "x100"}, withheld="no driver is bound to it")
    ]
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        await rig.until(lambda: wrong(host))
        assert entry(host)["reason"] == f"0 devices; {LACK.subject}: {LACK.reason}"
        assert [kind for kind, *_ in wrong(host)] == ["driver", "entry"]


async def test_hardware_that_no_entry_selects_may_lack_a_driver(rig, kubelet, lacking):
    lacking.append(replace(LACK, subject="x", attributes={"model": "y"}))
    rig.scripts["toy"].devices = [Device("d0", {"model": "y"})]
    async with rig.running(f"name: {TOY}, backend: toy, where: {{model: y}}") as host:
        await rig.until(lambda: wrong(host))
        assert [subject for _, subject, _ in wrong(host)] == ["toy x"]


async def test_an_invalid_missing_driver_degrades_the_backend(rig, kubelet, lacking):
    lacking[:] = ["0000:3b:00.0"]
    async with rig.running(f"name: {TOY}, backend: toy") as host:
        await rig.until(lambda: any(kind == "backend" for kind, *_ in wrong(host)))
        assert "missing_drivers()" in host.scanners["toy"].condition.reason
        assert entry(host)["state"] == "waiting"
        assert entry(host)["reason"].startswith("0 devices; the backend is degraded: ")


async def test_a_number_of_devices_that_the_file_does_not_expect_is_a_problem(rig, kubelet, records):
    rig.scripts["toy"].devices = [Device(f"d{n}", {"model": "x", "index": 1}) for n in range(2)]
    odd = Device("d9", {"model": "x", "index": 7}, health=unhealthy("it has no driver"))
    rig.scripts["toy"].devices.append(odd)
    rig.write(f"name: {TOY}, backend: toy, expect: 3, where: {{model: x, index: 0-3}}")
    reason = "2 of 3 devices; 1 more matches all but index (d9: it has no driver)"
    async with rig.running() as host:
        await rig.until(lambda: wrong(host))
        assert wrong(host)[0] == ("entry", TOY, reason)
        assert entry(host)["state"] == "served"
        assert records.of("entry has an unexpected number of devices") == [
            ("WARNING", {"entry": "resources[0]", "resource": TOY, "backend": "toy", "reason": reason})
        ]
        rig.scripts["toy"].devices = [
            *rig.scripts["toy"].devices[:2],
            Device("d9", {"model": "x", "index": 3}),
        ]
        host.scanners["toy"].request_scan()
        await rig.until(lambda: not wrong(host))
        assert [fields["devices"] for _, fields in records.of("entry has devices")] == [3]


@pytest.mark.parametrize(
    ("expect", "optional", "devices", "reason"),
    [
        ("8", False, 8, ""),
        ("8", False, 9, "9 devices, expected 8"),
        ("'2-4'", False, 5, "5 devices, expected 2-4"),
        ("'2-4'", False, 1, "1 device, expected 2-4"),
        ("'2,4'", False, 4, ""),
        ("'1-'", False, 300, ""),
        ("8", True, 0, ""),
        ("8", True, 7, "7 of 8 devices"),
    ],
)
async def test_an_expectation_is_a_number_or_a_range(rig, kubelet, expect, optional, devices, reason):
    rig.scripts["toy"].devices = [Device(f"d{n}") for n in range(devices)]
    rig.write(f"name: {TOY}, backend: toy, expect: {expect}, optional: {str(optional).lower()}")
    async with rig.running() as host:
        await rig.until(lambda: entry(host)["state"] != "waiting")
        assert [text for kind, _, text in wrong(host) if kind == "entry"] == ([reason] if reason else [])


async def test_a_device_that_a_filled_entry_just_misses_is_named_without_being_a_problem(rig, kubelet):
    rig.scripts["toy"].devices = [
        Device("d0", {"model": "x", "index": 1}),
        Device("d1", {"model": "x", "index": 5}),
        Device("d2", {"model": "x", "index": 6}),
        Device("d3", {"model": "y", "index": 9}),
    ]
    rig.write(
        f"name: {TOY}, backend: toy, where: {{model: x, index: 1}}",
        "name: example.com/other, backend: toy, where: {index: 6}",
    )
    async with rig.running() as host:
        await rig.until(lambda: entry(host)["devices"])
        assert wrong(host) == []
        assert entry(host)["remark"] == "1 more matches all but index (d1: it is 5)"


async def test_a_device_without_its_driver_may_lack_what_the_driver_gives(rig, kubelet):
    rig.scripts["toy"].devices = [
        Device("d0", {"model": "x", "index": 1, "driver": "toy"}),
        Device("d1", {"model": "x", "index": 5}, health=unhealthy("no driver is bound to it")),
        Device("d2", {"model": "x", "index": 5}),
    ]
    async with rig.running(f"name: {TOY}, backend: toy, where: {{model: x, index: 1, driver: toy}}") as host:
        await rig.until(lambda: entry(host)["devices"])
        assert (
            entry(host)["remark"] == "1 more matches all but index and driver (d1: no driver is bound to it)"
        )


async def test_what_is_offered_as_something_else_is_no_near_miss(rig, kubelet):
    rig.scripts["toy"].devices = [
        Device("d0", {"model": "x", "index": 1}, claims=frozenset({"pci:0000:00:01.0"})),
        Device("d1", {"model": "x", "index": 2}, claims=frozenset({"pci:0000:00:01.0"})),
        Device("d2", {"model": "x", "index": 3}, withheld="its parts are offered instead"),
    ]
    async with rig.running(f"name: {TOY}, backend: toy, where: {{model: x, index: 1}}") as host:
        await rig.until(lambda: entry(host)["devices"])
        assert entry(host)["remark"] == ""


async def test_an_entry_that_may_expect_no_device_is_no_problem_without_one(rig, kubelet):
    rig.scripts["toy"].devices = []
    async with rig.running(f"name: {TOY}, backend: toy, expect: '0-4'") as host:
        await rig.until(lambda: entry(host)["state"] == "absent")
        assert wrong(host) == []


async def test_hardware_without_its_driver_is_named_beside_the_devices_of_an_entry(rig, kubelet, lacking):
    rig.scripts["toy"].devices = [Device("d0", {"model": "x100"})]
    async with rig.running(f"name: {TOY}, backend: toy, where: {{model: x100}}") as host:
        await rig.until(lambda: entry(host)["devices"])
        assert "no driver is bound to it" in entry(host)["remark"]
