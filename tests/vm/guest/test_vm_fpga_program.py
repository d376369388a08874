"""Programming: the kernel's own interface, from Allocate to the new function, on an emulated card.

The card's engine (``lab/dfl.py``) tells bitstreams apart by their last word.
"""

from __future__ import annotations

import asyncio
import json
import struct
import time

import pytest
from devhost_testing.kubelet import ContainerStartError, UnexpectedAdmissionError
from lab import dfl
from lab.functions import bind
from lab.kernel import text
from lab.node import Node
from lab.waiting import LIMIT, until

PLAIN, CRYPTO, WHOLE = "example.com/plain", "example.com/crypto", "example.com/whole"
IMAGE = b"not a word of this matters" * 4096
WORD, STRANGE = 0x0C0FFEE0, 0x0BADF00D
PROGRAMMED = "0fedcba9876543210123456789abcdef"
"""The function that the bitstream with :data:`WORD` holds."""

SLOW = ("there is no time left", "took too long", "reconfigured")
"""What a container's start may fail with on a machine that is slow; a kubelet tries again."""


@pytest.fixture
async def node(tmp_path):
    """A kubelet that says who holds what, and devhost."""
    async with Node(tmp_path, tells=True) as node:
        yield node


@pytest.fixture
def bitstream(tmp_path):
    """Writes a GBS file; where it is."""
    path = tmp_path / "crypto.gbs"

    def write(word=WORD, interface=dfl.INTERFACE, function=PROGRAMMED):
        about = {"interface-uuid": interface, "accelerator-clusters": [{"accelerator-type-uuid": function}]}
        metadata = json.dumps({"version": 1, "afu-image": about}).encode()
        image = IMAGE.ljust(-(-len(IMAGE) // 4) * 4, b"\0") + struct.pack("<I", word)
        new = path.with_suffix(".new")
        new.write_bytes(b"XeonFPGA\xb7GBSv001" + struct.pack("<I", len(metadata)) + metadata + image)
        new.chmod(0o644)
        new.replace(path)
        return str(path)

    return write


@pytest.fixture
def engine(card):
    """Answers the driver; ``engine.done`` tells what was programmed."""
    with dfl.Engine(card, {WORD: PROGRAMMED}) as engine:
        yield engine


def entry(name, kind, where=None, **more):
    chosen = {"kind": kind, "driver": "dfl-pci", **(where or {})}
    return {"name": name, "backend": "fpga", "where": chosen, "whenEmpty": "register", **more}


def program(path):
    return {"program": {"bitstream": path}}


async def started(node, pod):
    """The container runs; a start that took too long on a slow machine is tried again, as a kubelet does."""
    end = time.monotonic() + LIMIT
    while True:
        try:
            return await node.kubelet.start_container(pod, "main")
        except ContainerStartError as error:
            if not any(word in str(error) for word in SLOW) or time.monotonic() > end:
                raise
            await asyncio.sleep(1)


async def test_a_container_starts_with_its_bitstream_and_starts_again_without_programming(
    node, card, engine, bitstream
):
    await node.serve(entry(CRYPTO, "af", {"afuId": [dfl.OTHER_FUNCTION, PROGRAMMED]}, **program(bitstream())))
    await node.shows(CRYPTO, healthy=1)
    allocation = await node.admit("pod", CRYPTO)
    (token,) = allocation.device_ids
    assert token == f"{card.address}-port1"
    assert engine.done == []  # nothing yet: the pod may still be rejected
    await started(node, "pod")
    assert text(card.port(1) / "afu_id") == PROGRAMMED
    assert text(card.port(0) / "afu_id") == dfl.FUNCTION
    done = list(engine.done)
    assert set(done) == {(1, WORD)}
    await started(node, "pod")
    assert engine.done == done
    # the list shows what is in it now, and it is in order
    await node.shows(CRYPTO, healthy=1)
    assert (await node.look())[token].attributes["afuId"] == PROGRAMMED


async def test_all_ports_of_a_region_are_programmed(node, card, engine, bitstream):
    await node.serve(entry(WHOLE, "region", **program(bitstream())))
    await node.shows(WHOLE, healthy=1)
    await node.admit("pod", WHOLE)
    await started(node, "pod")
    assert [text(card.port(number) / "afu_id") for number in range(2)] == [PROGRAMMED] * 2
    assert set(engine.done) == {(0, WORD), (1, WORD)}


async def test_a_bitstream_for_another_interface_is_refused_before_anything_happens(
    node, card, engine, bitstream
):
    other = "1" * 32
    await node.serve(entry(CRYPTO, "af", **program(bitstream(interface=other))))
    await node.shows(CRYPTO, healthy=2)
    with pytest.raises(UnexpectedAdmissionError) as refusal:
        await node.admit("pod", CRYPTO)
    assert other in str(refusal.value) and dfl.INTERFACE in str(refusal.value)
    assert engine.done == []
    assert text(card.port(0) / "afu_id") == dfl.FUNCTION


async def test_nothing_is_programmed_while_another_pod_has_a_port_of_the_card(node, card, engine, bitstream):
    await node.serve(
        entry(PLAIN, "af", {"afuId": dfl.FUNCTION}),
        entry(CRYPTO, "af", {"not": {"afuId": dfl.FUNCTION}}, **program(bitstream())),
    )
    await node.shows(PLAIN, healthy=1)
    await node.shows(CRYPTO, healthy=1)
    (first,) = (await node.admit("first", PLAIN)).device_ids
    await node.known(PLAIN, first)
    await node.admit("second", CRYPTO)
    with pytest.raises(ContainerStartError, match="another container"):
        await node.kubelet.start_container("second", "main")
    assert engine.done == []
    assert text(card.port(1) / "afu_id") == dfl.OTHER_FUNCTION

    node.kubelet.release("first")
    end = time.monotonic() + LIMIT
    while text(card.port(1) / "afu_id") != PROGRAMMED:  # once devhost has heard that the first one has ended
        assert time.monotonic() < end
        try:
            await node.kubelet.start_container("second", "main")
        except ContainerStartError:
            await asyncio.sleep(1)
    assert set(engine.done) == {(1, WORD)}


async def test_a_bitstream_that_does_not_fit_fails_with_the_kernels_reason_until_the_card_is_bound_again(
    node, card, engine, bitstream
):
    await node.serve(entry(CRYPTO, "af", {"not": {"afuId": dfl.FUNCTION}}, **program(bitstream(STRANGE))))
    await node.shows(CRYPTO, healthy=1)
    (token,) = (await node.admit("pod", CRYPTO)).device_ids
    with pytest.raises(ContainerStartError) as failure:
        await started(node, "pod")
    assert "incompatible" in str(failure.value)
    assert set(engine.done) == {(1, STRANGE)}

    # the kernel leaves the port disabled, and programming it again would not enable it
    engine.forget()
    bitstream()
    await node.shows(CRYPTO, healthy=0, total=1)
    assert "bind" in (await node.device(CRYPTO, token))["reason"]
    with pytest.raises(ContainerStartError, match="bind"):
        await node.kubelet.start_container("pod", "main")
    assert set(engine.done) == {(1, STRANGE)}
    assert text(card.port(0) / "afu_id") == dfl.FUNCTION

    await asyncio.to_thread(bind, card.address, "dfl-pci")
    await card.ready()
    await node.shows(CRYPTO, healthy=1)
    await started(node, "pod")
    assert text(card.port(1) / "afu_id") == PROGRAMMED


async def test_a_card_that_went_while_a_pod_has_it_is_programmed_when_it_is_back(
    node, card, slots, bitstream
):
    await node.serve(entry(CRYPTO, "af", {"not": {"afuId": dfl.FUNCTION}}, **program(bitstream())))
    await node.shows(CRYPTO, healthy=1)
    await node.admit("pod", CRYPTO)
    await card.pull()
    await node.shows(CRYPTO, healthy=0, total=1)
    with pytest.raises(ContainerStartError):
        await node.kubelet.start_container("pod", "main")
    await card.plug()
    await card.ready()
    await node.shows(CRYPTO, healthy=1)
    with dfl.Engine(card, {WORD: PROGRAMMED}) as engine:
        await started(node, "pod")
    assert set(engine.done) == {(1, WORD)}
    await until("it shows", lambda: text(card.port(1) / "afu_id") == PROGRAMMED)
