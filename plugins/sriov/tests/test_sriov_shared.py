"""One function, known to two backends: never does it serve two pods, whichever comes first in the file."""

from __future__ import annotations

import pytest
import sriov_network as network
from devhost_rdma import Rdma
from devhost_rdma.options import RdmaOptions

from devhost.plan import RefusalKind, make_plan
from devhost.settings import ResourceSettings, Settings
from devhost.source import ServiceContext


@pytest.mark.parametrize("first", ["sriov", "rdma"])
@pytest.mark.parametrize("device", ["0000:3b:00.2", "mlx5_core.sf.2"])
def test_a_function_and_its_rdma_devices_go_to_one_resource(looking, tmp_path, first, device):
    tree = network.mlx5_switchdev(tmp_path)
    tree.file("/sys/devices/virtual/misc/rdma_cm/uevent", "DEVNAME=infiniband/rdma_cm")
    context = ServiceContext("rdma", tmp_path, ("*",))
    try:
        found = {
            "sriov": [one for one in looking(tree).discover() if one.id == device],
            "rdma": [one for one in Rdma(RdmaOptions(), context).discover() if one.id == device],
        }
    finally:
        context.close()
    order = [first, "rdma" if first == "sriov" else "sriov"]
    entries = [ResourceSettings(index, f"r/{name}", name) for index, name in enumerate(order)]
    plan = make_plan(found, Settings(tuple(entries)))
    assert [*plan.resources] == [f"r/{first}"]
    (refusal,) = plan.refusals
    assert (refusal.kind, refusal.backend) == (RefusalKind.CLAIMED, order[1])
