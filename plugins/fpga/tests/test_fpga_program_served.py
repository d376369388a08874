"""A resource with `program:` through a whole host: what a pod meets.

Only the process that programs is a stand-in, for no FPGA is here to be programmed.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path
from typing import Any

import fpga_cards as cards
import pytest
from devhost_fpga.backend import Fpga
from devhost_fpga.options import FpgaOptions
from devhost_fpga.programming.loader import ProgrammingResult, run
from devhost_testing.kubelet import ContainerStartError, UnexpectedAdmissionError
from devhost_testing.node import PATIENCE, Node
from fpga_programming import gbs
from fpga_tree import ARRIA, NLB, OTHER, STRATIX

from devhost.backend import Context
from devhost.kubelet.api import api_pb2 as pb

CRYPTO, PLAIN = "example.com/crypto", "example.com/plain"
AFU = "0123456789abcdef0123456789abcdef"
FILE = "srv/fpga/crypto.gbs"

PROGRAMMED = f"""
resources:
- name: {CRYPTO}
  backend: fpga
  where: {{kind: region}}
  program: {{bitstream: /{FILE}}}
"""


class Kernel:
    """Represents the process and the driver: each programmed port shows the id."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ports: list[int] = []
        self.verdict = ProgrammingResult()
        self.is_real = False
        """Whether the real process runs after all."""

    def __call__(
        self, request: Mapping[str, Any], descriptors: Collection[int], patience: float
    ) -> ProgrammingResult:
        if self.is_real:
            return run(request, descriptors, patience)
        self.ports.append(request["port"])
        if not self.verdict.step:
            (place,) = self.root.glob(f"sys/devices/**/dfl-port.{request['port']}/afu_id")
            place.write_text(f"{AFU}\n")
        return self.verdict


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path / "root")


@pytest.fixture
async def node(tmp_path: Path, kernel: Kernel) -> AsyncIterator[Node]:
    class Programmed(Fpga):
        def __init__(self, options: FpgaOptions, context: Context) -> None:
            super().__init__(options, context, run=kernel)

    async with Node(tmp_path, Programmed) as made:
        cards.two_ports(made.root)
        put(made, ARRIA)
        (number,) = made.root.glob("sys/devices/**/dfl-fme.0/dev")
        (made.root / "dev/dfl-fme.0").write_text(f"c{number.read_text()}")
        yield made


def put(node: Node, interface: str) -> None:
    """The file that the configuration names, for cards with this interface."""
    file = node.root / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gbs(interface, AFU))
    file.chmod(0o644)


async def pod(node: Node, resource: str) -> pb.ContainerAllocateResponse:
    """Starts a pod, which bears the name of its resource; again, while devhost knows of no pods."""
    await node.kubelet.admit(resource, "main", resource, 1)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await node.kubelet.start_container(resource, "main")
            except ContainerStartError as error:
                if "not yet known" not in str(error):
                    raise
            await asyncio.sleep(0.05)


async def test_a_container_starts_with_its_region_programmed_and_restarts_with_it(
    node: Node, kernel: Kernel
) -> None:
    node.configure(PROGRAMMED)
    async with node.served({CRYPTO: 1}):
        started = await pod(node, CRYPTO)
        assert [device.host_path for device in started.devices] == ["/dev/dfl-port.0", "/dev/dfl-port.1"]
        assert kernel.ports == [0, 1]
        await node.kubelet.start_container(CRYPTO, "main")
        assert kernel.ports == [0, 1]
        await node.offers({CRYPTO: 1})  # its AFU is another one now, the resource has it still


async def test_a_file_for_another_card_is_refused_at_admission(node: Node, kernel: Kernel) -> None:
    put(node, STRATIX)
    node.configure(PROGRAMMED)
    async with node.served({CRYPTO: 1}):
        with pytest.raises(UnexpectedAdmissionError) as caught:
            await node.container({CRYPTO: 1})
        assert f"the file is for interface {STRATIX}, but port 0 has {ARRIA}" in str(caught.value)
    assert kernel.ports == []


async def test_a_container_whose_region_cannot_be_programmed_does_not_start_and_may_try_again(
    node: Node, kernel: Kernel
) -> None:
    kernel.verdict = ProgrammingResult("program", errno.EIO)
    node.configure(PROGRAMMED)
    async with node.served({CRYPTO: 1}):
        with pytest.raises(ContainerStartError) as caught:
            await pod(node, CRYPTO)
        assert f"cannot be programmed with /{FILE}: port 0: the FPGA reports an error" in str(caught.value)
        kernel.verdict = ProgrammingResult()
        await node.kubelet.start_container(CRYPTO, "main")
        assert kernel.ports == [0, 0, 1]


async def test_a_pod_on_the_next_port_keeps_a_port_from_being_programmed(node: Node, kernel: Kernel) -> None:
    node.configure(
        f"""
resources:
- {{name: {PLAIN}, backend: fpga, where: {{kind: af, afuId: {OTHER}}}}}
- name: {CRYPTO}
  backend: fpga
  where: {{kind: af, interfaceId: {ARRIA}}}
  program: {{bitstream: /{FILE}}}
"""
    )
    async with node.served({PLAIN: 1, CRYPTO: 1}):
        await pod(node, PLAIN)
        with pytest.raises(ContainerStartError, match="another container uses port1 of the same FPGA"):
            await pod(node, CRYPTO)
        assert kernel.ports == []


async def test_the_real_process_refuses_a_file_in_place_of_a_node(node: Node, kernel: Kernel) -> None:
    kernel.is_real = True
    node.configure(PROGRAMMED)
    async with node.served({CRYPTO: 1}):
        with pytest.raises(ContainerStartError, match="its node now belongs to another device"):
            await pod(node, CRYPTO)


async def test_resources_without_program_are_not_asked_before_a_container_starts(
    node: Node, kernel: Kernel
) -> None:
    node.configure(f"resources: [{{name: {PLAIN}, backend: fpga, where: {{kind: af, afuId: {NLB}}}}}]")
    async with node.served({PLAIN: 1}):
        await node.container({PLAIN: 1})
    assert kernel.ports == []
