"""Devices that exclude each other, with a real API server and scheduler: each gets a claim, never both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from onenode.claims import DRIVER, Claims, Driver
from onenode.cluster import Cluster
from onenode.pods import Pods

FUNCTIONS = '''
from devhost.backend import Attribute, Backend, Device, Edits, hookimpl


class Functions(Backend):
    """Models of physical and virtual functions, as the file lists them: an id, and that of its whole."""

    name = "functions"
    attributes = {"kind": Attribute(str, "kind", "pf")}

    def discover(self):
        for line in FILE.read_text().splitlines():
            name, whole = line.split()
            part_of = frozenset() if whole == "none" else frozenset({f"fpga:{whole}"})
            more = {} if part_of else {"withheld": "it has virtual functions", "divided": True}
            claims = frozenset({f"fpga:{name}"})
            yield Device(name, {"kind": "vf" if part_of else "pf"}, claims=claims, part_of=part_of, **more)

    def allocate(self, request):
        return Edits(env={"FUNCTIONS": ",".join(one.id for one in request.devices)})


@hookimpl
def devhost_backends():
    return [Functions]
'''
ENTRY = {"name": "example.com/nic", "backend": "functions", "serve": "dra", "dra": {"counters": True}}
MODELS = ("pf0 none", "vf0 pf0", "vf1 pf0")


@pytest.fixture
def driver(cluster: Cluster, access: None, claims: Claims) -> Iterator[Driver]:
    """A devhost with a physical function and its two virtual functions."""
    with Driver(cluster, ENTRY, cards=MODELS, backend=FUNCTIONS) as driver:
        driver.registered()
        claims.classes(driver)
        claims.shows("pf0", "vf0", "vf1")
        yield driver


def kind(name: str) -> dict[str, Any]:
    expression = f'device.attributes["{DRIVER}"].kind == "{name}"'
    return {"deviceClassName": "nic.example.com", "selectors": [{"cel": {"expression": expression}}]}


@pytest.mark.conformance(124)
@pytest.mark.parametrize(("first", "second"), [("pf", "vf"), ("vf", "pf")])
def test_of_a_function_and_a_part_of_it_only_one_is_given(
    driver: Driver, claims: Claims, pods: Pods, first: str, second: str
) -> None:
    claims.create("one", kind(first))
    claims.create("other", kind(second))
    holder = pods.create("holder", claims=["one"]).running()
    late = pods.create("late", claims=["other"])
    late.waits_for_claims()
    assert claims.offered().keys() == {"pf0", "vf0", "vf1"} and claims.allocated("other") == []
    holder.delete()
    claims.delete("one")
    assert late.running().shell("echo $FUNCTIONS").startswith(second)


@pytest.mark.conformance(124)
def test_all_parts_of_a_function_are_given_at_once(driver: Driver, claims: Claims, pods: Pods) -> None:
    for name in ("one", "other"):
        claims.create(name, kind("vf"))
    users = [pods.create(f"user-{name}", claims=[name]).running() for name in ("one", "other")]
    assert {pod.shell("echo $FUNCTIONS") for pod in users} == {"vf0", "vf1"}
    claims.create("both", kind("vf"), kind("pf"))
    pods.create("late", claims=["both"]).waits_for_claims()
