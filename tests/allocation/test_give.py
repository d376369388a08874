"""What an entry gives, from what hardware reports: text is never more than text."""

from __future__ import annotations

import json
import re
from posixpath import normpath

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devhost.allocation.cdi import spec
from devhost.backend import Attribute
from devhost.backend.errors import AllocationError
from devhost.backend.model import MAX_STRING, Device
from devhost.discovery.runner import checked_edits
from devhost.discovery.validation import valid_devices
from devhost.planning.give import Give, GiveMount, GiveNode
from devhost.planning.give.edits import given as gives

RESOURCE = "example.com/card"
DECLARED = {"serial": Attribute(str, "serial", "A"), "devNode": Attribute(str, "node", "/dev/x")}
EVERYWHERE = Give(
    nodes=(GiveNode("/dev/null", "/dev/x/{serial}", optional=True),),
    mounts=(GiveMount("/dev", "/mnt/{serial}/{id}", optional=True),),
    env={"SERIAL": "is {serial}", "OF_{serial}": "{id}", "{RESOURCE}_{index}": "{count}"},
    annotations={"example.com/serial": "{serial}"},
)


def found(*devices: Device) -> list[Device]:
    """The devices as the core takes them from a backend."""
    good, refused = valid_devices(devices, DECLARED, {})
    assert not refused
    return list(good.values())


serials = st.text(min_size=1, max_size=8) | st.text("./\0\n\x1b\u202e{}, =idserial", min_size=1, max_size=8)


@given(st.lists(serials, min_size=1, max_size=3))
@example(["..", "a/../b"])
@example(["."])
@example(["{id}", "{serial}"])
@example(["\ud800", "a\nSECOND=1"])
@settings(deadline=None)
def test_no_value_of_hardware_is_more_than_text(values: list[str]) -> None:
    devices = found(*(Device(f"d{n}", {"serial": value}) for n, value in enumerate(values)))
    edits = gives(EVERYWHERE, devices, RESOURCE, 0)
    checked_edits(edits, "backend card")
    for path in (*(one.container_path for one in edits.nodes), *(one.container_path for one in edits.mounts)):
        assert path.isprintable()
        assert normpath(path) == path
        assert path.startswith(("/dev/x/", "/mnt/"))
    for node in edits.nodes:
        assert node.container_path.count("/") == 3
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) for name in edits.env)
    assert all(value.isprintable() for value in (*edits.env.values(), *edits.annotations.values()))
    assert {name for name in edits.env if name.startswith("EXAMPLE_COM_CARD_")} == {
        f"EXAMPLE_COM_CARD_{n}" for n in range(len(devices))
    }
    text = spec.dumps(spec.document("a.b/c", {"d": spec.container_edits(edits, spec.host_node)}))
    (device,) = json.loads(text)["devices"]
    assert yaml.safe_load(text)["devices"] == [device]
    written = dict(one.split("=", 1) for one in device["containerEdits"]["env"])
    assert written == dict(edits.env)


@given(serials)
def test_a_required_path_or_name_that_hardware_would_change_is_refused_in_plain_text(value: str) -> None:
    (device,) = found(Device("d0", {"serial": value}))
    wanted = (
        Give(nodes=(GiveNode("/dev/null", "/dev/{serial}"),)),
        Give(cdi_devices=("vendor.com/card={serial}",)),
    )
    for give in wanted:
        try:
            edits = gives(give, [device], RESOURCE, 0)
        except AllocationError as refusal:
            assert refusal.message.startswith("d0: ")
            assert refusal.message.isprintable()
        else:
            checked_edits(edits, "backend card")


def test_a_device_without_the_attribute_gets_no_such_variable_and_no_such_path() -> None:
    edits = gives(EVERYWHERE, found(Device("d0"), Device("d1", {"serial": "B"})), RESOURCE, 0)
    assert [one.container_path for one in edits.nodes] == ["/dev/x/B"]
    assert edits.env == {
        "SERIAL": "is B",
        "OF_B": "d1",
        "EXAMPLE_COM_CARD_0": "2",
        "EXAMPLE_COM_CARD_1": "2",
    }
    needs = "d0: it has no serial, which containerPath /dev/{serial} of give needs"
    with pytest.raises(AllocationError, match=re.escape(needs)):
        gives(Give(nodes=(GiveNode("/dev/null", "/dev/{serial}"),)), found(Device("d0")), RESOURCE, 0)
    needs = "d0: it has no serial, which a.b/c={serial} in give.cdiDevices needs"
    with pytest.raises(AllocationError, match=re.escape(needs)):
        gives(Give(cdi_devices=("a.b/c={serial}",)), found(Device("d0")), RESOURCE, 0)


def test_devices_are_numbered_in_natural_order_of_their_nodes_then_by_id() -> None:
    give = Give(env={"ID{index}": "{id}", "IDS": "{id}"})
    nodes = {"c": "/dev/x10", "d": "/dev/x9"}
    devices = found(*(Device(name, {"devNode": path}) for name, path in nodes.items()))
    assert gives(give, devices, RESOURCE, 0).env == {"ID0": "d", "ID1": "c", "IDS": "d,c"}
    devices = found(Device("0000:3b:00.0"), Device("0000:10:00.0"))
    assert gives(give, devices, RESOURCE, 0).env["IDS"] == "0000:10:00.0,0000:3b:00.0"


def test_equal_values_of_several_devices_are_one() -> None:
    devices = found(*(Device(f"d{n}", {"serial": "A"}) for n in range(3)))
    edits = gives(
        Give(env={"S": "{serial}", "N": "{count}"}, cdi_devices=("a.b/c=all",)), devices, RESOURCE, 0
    )
    assert edits.env == {"S": "A", "N": "3"}


def test_variables_of_two_devices_that_only_their_number_gives_one_name_are_refused() -> None:
    give = Give(env={"A{index}": "{id}", "A{serial}": "x"})
    one, two, far = (Device(f"d{n}", {"serial": serial}) for n, serial in enumerate("177"))
    assert gives(give, [one], RESOURCE, 0).env == {"A0": "d0", "A1": "x"}
    assert gives(give, [two, far], RESOURCE, 0).env == {"A0": "d1", "A1": "d2", "A7": "x"}
    message = r"example.com/card: the variables A{serial} and A{index} are both A1 \(rename one\)"
    with pytest.raises(AllocationError, match=message):
        gives(give, [one, two], RESOURCE, 0)


def test_a_variable_that_linux_would_not_take_is_refused() -> None:
    long = found(*(Device(f"d{n}", {"serial": f"{n:03}" * 1000}) for n in range(64)))
    with pytest.raises(AllocationError, match=r": the variable S has 192066 bytes, and Linux takes at most "):
        gives(Give(env={"S": "{serial}"}), long, RESOURCE, 0)
    edits = gives(Give(env={"S": "{serial}"}), long[:43], RESOURCE, 0)
    assert len(edits.env["S"]) < MAX_STRING
