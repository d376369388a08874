"""The ready configuration of AWS EFA."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import rdma_machines as machines
from devhost_testing.node import Node
from devhost_testing.trees import Tree
from program import devhost

EFA = Path(__file__).parents[3] / "config/examples/accelerators/aws-efa.yaml"
NAME = "vpc.amazonaws.com/efa"


@pytest.fixture
async def efa(tmp_path: Path) -> AsyncIterator[Node]:
    """A node with an adapter and the file."""
    async with Node(tmp_path) as node:
        machines.efa(node.root)
        node.configure(EFA.read_text(encoding="utf-8").replace("version: 1\n", ""))
        yield node


async def test_a_container_gets_the_verbs_node_of_its_efa_and_no_other(efa: Node) -> None:
    async with efa.served({NAME: 1}, only=True):
        started = await efa.container({NAME: 1})
        assert [(one.host_path, one.container_path, one.permissions) for one in started.devices] == [
            ("/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0", "rw")
        ]
        names = ("RDMA_DEVICES", "RDMA_DEVICES_VPC_AMAZONAWS_COM_EFA")
        assert dict(started.envs) == dict.fromkeys(names, "rdmap0s6")
        assert not (started.mounts or started.annotations or started.cdi_devices)


async def test_an_efa_is_unhealthy_while_its_verbs_node_is_missing(efa: Node) -> None:
    node, aside = efa.root / "dev/infiniband/uverbs0", efa.root / "aside"
    async with efa.served({NAME: 1}):
        node.rename(aside)
        efa.look()
        await efa.offers({NAME: 0})
        aside.rename(node)
        efa.look()
        await efa.offers({NAME: 1})


def test_without_an_efa_explain_gives_the_reason(tmp_path: Path) -> None:
    Tree(tmp_path)
    done = devhost("explain", NAME, "--config", EFA, "--root", tmp_path)
    assert done.stdout.startswith(f"{NAME} (resources[0]): 0 devices; ")
