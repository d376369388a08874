"""A physical function is offered together with its virtual functions, with counters that keep them apart."""

from __future__ import annotations

import sriov_network as network

from devhost.config import loads
from devhost.discovery import catalog
from devhost.planning.counters import counted
from devhost.planning.planner import make_plan

FILE = """
version: 1
dra: {driver: devhost.example.com}
resources: [{name: a.b/nic, backend: sriov, where: {kind: [pf, vf]}, serve: dra, dra: {counters: true}}]
"""


def test_a_claim_gets_a_physical_function_or_its_virtual_functions(looking, tmp_path):
    settings = loads(FILE, "f.yaml", catalog.load)
    plan = make_plan({"sriov": looking(network.igb(tmp_path, 2)).discover()}, settings)
    devices = [offer.device for offer in plan.resources["a.b/nic"].offers]
    (one,), apart = counted(devices)
    assert apart == {} and one.name == "0000-02-00-0"
    amounts = {name: [*taken.values()] for name, taken in one.taken.items()}
    kinds = {device.id: device.attributes["kind"] for device in devices}
    assert {kinds[name]: amount for name, amount in amounts.items()} == {"pf": [2], "vf": [1]}
    assert len(devices) == 3 == len(amounts)
