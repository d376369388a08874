"""Handing out: what may be asked for, what a backend may answer, and who is to blame for what is missing."""

from __future__ import annotations

import asyncio
import errno
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from kit.allocator import Supply, allocated, own_nodes

from devhost.allocation.allocator import Allocator, LatePreference, TooMany, UnhealthyDevice, UnknownDevice
from devhost.allocation.preferred import PreferredAllocation
from devhost.allocation.resource_backend import MAX_NODES, Granted, MissingPath
from devhost.backend import (
    AllocationError,
    Device,
    DeviceNode,
    Edits,
    Mount,
)
from devhost.backend.errors import BackendError
from devhost.backend.model import unhealthy
from devhost.planning.plan import Offer
from devhost.planning.settings import ResourceSettings, Share


@pytest.fixture
def rig(rig: Supply) -> Supply:
    """Also has a sick device and one that two containers share."""
    rig.show(*"abc", Device("sick", health=unhealthy("too hot")), Offer(Device("shared"), 2))
    return rig


async def test_a_container_gets_the_edits_of_its_devices_and_the_tokens_count_as_taken(rig: Supply) -> None:
    assert await rig.allocate("a", "c") == Granted(own_nodes([Device("a"), Device("c")]))
    assert [token in rig.inventory.allocations for token in "abc"] == [True, False, True]


async def test_from_the_answer_until_it_is_recorded_the_tokens_stay_reserved(rig: Supply) -> None:
    rig.runner.discover([])
    answer = await rig.allocator.allocate(["a"])
    allocations = rig.inventory.allocations
    assert allocations.holds("a")
    assert "a" not in allocations
    assert [held.device.id for held in allocations.held()] == ["a"]
    await answer.record()
    assert "a" in allocations
    allocations.release(["a"])
    assert not allocations.holds("a"), "no reservation is left"


async def test_an_allocate_takes_one_other_thread_and_few_function_calls(rig: Supply) -> None:
    rig.answer = lambda devices: Edits((DeviceNode("/dev/a", shared=True),))
    await rig.allocator.prefer(["a"], [], 1)  # imports what remembers allocations
    calls = Counter[str]()

    def note(frame: FrameType, event: str, argument: object) -> None:
        calls[threading.current_thread().name] += event == "call"

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        await rig.allocate("a")
        calls.clear()
        await rig.allocator.allocate(["a"])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    loop = calls.pop(threading.current_thread().name)
    assert calls.keys() == {"card-serve"}
    assert loop <= 117  # of them two are in the selector of the tests
    assert calls["card-serve"] <= 110


async def test_two_first_requests_at_one_time_prefer_by_the_same_memory() -> None:
    late = LatePreference(PreferredAllocation)
    late.settle()  # nothing has been preferred yet
    one, other = await asyncio.gather(late.get(), late.get())
    assert one is other is await late.get()


async def test_a_container_gets_its_devices_when_no_descriptor_is_left_to_remember_that(rig: Supply) -> None:
    def make() -> PreferredAllocation:
        raise OSError(errno.EMFILE, "Too many open files")

    rig.runner.discover([])
    allocator = Allocator(rig.inventory, rig.backend, rig.entry, preferred=LatePreference(make))
    assert await allocated(allocator, ["a"]) == Granted(own_nodes([Device("a")]))
    assert "a" in rig.inventory.allocations


async def test_two_replicas_of_a_device_are_one_device_to_the_backend(rig: Supply) -> None:
    rig.answer = lambda devices: Edits(env={"N": str(len(devices))})
    assert (await rig.allocate("shared::0", "shared::1")).edits.env == {"N": "1"}
    assert rig.asked == [["shared"]]


async def test_one_node_of_several_devices_is_given_once(rig: Supply) -> None:
    rig.answer = lambda devices: Edits(nodes=tuple(DeviceNode("/dev/a") for _ in devices))
    assert (await rig.allocate("a", "b")).edits.nodes == (DeviceNode("/dev/a"),)


async def test_a_container_gets_as_many_tokens_as_the_entry_allows_and_not_one_more(rig: Supply) -> None:
    entry = ResourceSettings(0, "example.com/card", "card", share=Share(max_per_container=2))
    rig.allocator.follow(rig.scanner, entry)
    assert await rig.allocate("a", "b") == Granted(own_nodes([Device("a"), Device("b")]))
    with pytest.raises(TooMany, match=r"the container requests 3, but share.maxPerContainer .* is 2"):
        await rig.allocate("a", "b", "c")


@pytest.mark.parametrize(
    ("tokens", "kind", "text"),
    [
        ([], UnknownDevice, "example.com/card: the request names no device"),
        (["a", "b", "a"], UnknownDevice, "example.com/card: the request names 'a' more than once"),
        (["nobody"], UnknownDevice, "example.com/card: there is no device 'nobody'"),
        (["x\n" * 200], UnknownDevice, "example.com/card: there is no device 'x\\nx\\n"),
        (["a", "sick"], UnhealthyDevice, "example.com/card: sick is unhealthy: too hot"),
    ],
)
async def test_a_request_that_cannot_be_served_is_refused_in_one_line(
    rig: Supply, tokens: list[str], kind: type[AllocationError], text: str
) -> None:
    with pytest.raises(kind) as caught:
        await rig.allocate(*tokens)
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200
    assert rig.asked == []


A = DeviceNode("/dev/a")
UNUSABLE: list[tuple[Any, str]] = [
    (None, "NoneType, not Edits"),
    ({"nodes": []}, "dict, not Edits"),
    (Edits(nodes=(replace(A, path="dev/a"),)), "a device node whose path is not absolute: 'dev/a'"),
    (Edits(nodes=(replace(A, path=""),)), "a device node whose path is not absolute: ''"),
    (Edits(nodes=(replace(A, container_path="a"),)), "a device node whose path is not absolute: '/dev/a'"),
    (Edits(nodes=(replace(A, permissions="rx"),)), "permissions 'rx'; it takes each of r, w and m once"),
    (Edits(nodes=(replace(A, permissions=""),)), "permissions ''; it takes each of r, w and m once"),
    (Edits(nodes=(replace(A, permissions="rr"),)), "permissions 'rr'; it takes each of r, w and m once"),
    (Edits(mounts=(Mount("lib", "/lib"),)), "a mount whose path is not absolute: 'lib'"),
    (Edits(mounts=(Mount("/lib", "lib"),)), "a mount whose path is not absolute: '/lib'"),
    (Edits(env={"A=B": "x"}), "an unusable variable name 'A=B'"),
    (Edits(env={"": "x"}), "an unusable variable name ''"),
    (Edits(env={"A\0": "x"}), "an unusable variable name 'A\\x00'"),
    *(
        (
            Edits(env={name: "x"}),
            f"a brace that is neither {{RESOURCE}} nor {{RESOURCE-}} in the variable name '{name}'",
        )
        for name in ("A_{resource}", "{RESOURCE", "{{RESOURCE}}")
    ),
    (Edits(env={"A": "\0"}), "a variable 'A' whose value holds a NUL character"),
    *(
        (edits, f"{text}, which has a NUL, a control character or half a character in it")
        for edits, text in (
            (Edits(nodes=(replace(A, path="/dev/a\x1b[2J"),)), "'/dev/a\\x1b[2J'"),
            (Edits(nodes=(replace(A, container_path="/dev/a\nb"),)), "'/dev/a\\nb'"),
            (Edits(mounts=(Mount("/lib\u2028", "/lib"),)), "'/lib\\u2028'"),
            (Edits(mounts=(Mount("/lib", "/lib\u202e"),)), "'/lib\\u202e'"),
            (Edits(env={"A\nB": "x"}), "'A\\nB'"),
            (Edits(env={"A": "x\x1b[2J"}), "'x\\x1b[2J'"),
            (Edits(env={"A": "x\x7f"}), "'x\\x7f'"),
            (Edits(env={"A": "x\udc80"}), "'x\\udc80'"),
            (Edits(annotations={"a": "\x9b1m"}), "'\\x9b1m'"),
            (Edits(annotations={"a\t": "x"}), "'a\\t'"),
        )
    ),
    (
        Edits(nodes=(replace(A, container_path="/dev/x/../../etc"),)),
        "'/dev/x/../../etc' for a path in the container, which goes up with ..",
    ),
    (Edits(mounts=(Mount("/lib", "/.."),)), "'/..' for a path in the container, which goes up with .."),
    (Edits(cdi_devices=("gpu0",)), "'gpu0' for a CDI name; it reads vendor/class=device"),
    (Edits(cdi_devices=("a/b=c\x1b",)), "'a/b=c\\x1b' for a CDI name; it reads vendor/class=device"),
    (Edits(nodes=(A,) * (MAX_NODES + 1)), f"{MAX_NODES + 1} device nodes, more than {MAX_NODES}"),
    (Edits(nodes="/dev/a"), "nodes that are not a tuple of DeviceNode"),  # type: ignore[arg-type]
    (Edits(nodes=("/dev/a",)), "nodes that are not a tuple of DeviceNode"),  # type: ignore[arg-type]
    (Edits(nodes=iter([A])), "nodes that are not a tuple of DeviceNode"),  # type: ignore[arg-type]
    (Edits(mounts=(A,)), "mounts that are not a tuple of Mount"),  # type: ignore[arg-type]
    (Edits(env={"A": 1}), "env that is not a mapping of str to str"),  # type: ignore[dict-item]
    (Edits(env=[("A", "1")]), "env that is not a mapping of str to str"),  # type: ignore[arg-type]
    (Edits(annotations={1: "x"}), "annotations that is not a mapping of str to str"),  # type: ignore[dict-item]
    (Edits(cdi_devices=(1,)), "cdi_devices that are not a tuple of str"),  # type: ignore[arg-type]
    (Edits(nodes=(replace(A, path=Path("/dev/a")),)), "a path or permissions that are not a str"),  # type: ignore[arg-type]
    (Edits(nodes=(replace(A, permissions=None),)), "a path or permissions that are not a str"),  # type: ignore[arg-type]
    (Edits(nodes=(replace(A, required="no"),)), "required, shared, read_only or lasting that is not a bool"),  # type: ignore[arg-type]
    (Edits(nodes=(replace(A, shared=1),)), "required, shared, read_only or lasting that is not a bool"),  # type: ignore[arg-type]
    (Edits(mounts=(Mount("/a", "/a", "no"),)), "required, shared, read_only or lasting that is not a bool"),  # type: ignore[arg-type]
    (Edits(lasting="no"), "required, shared, read_only or lasting that is not a bool"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("answer", "text"), UNUSABLE)
async def test_an_unusable_answer_is_reported_as_an_error_of_the_backend(
    rig: Supply, answer: Any, text: str
) -> None:
    rig.answer = lambda devices: answer
    with pytest.raises(BackendError) as caught:
        await rig.allocate("a")
    assert str(caught.value) == f"backend card answered {text}"
    assert not isinstance(caught.value, AllocationError)
    assert "a" not in rig.inventory.allocations
    assert not rig.scanner.denied


async def test_everything_a_runtime_understands_passes(rig: Supply) -> None:
    answer = Edits(
        (DeviceNode("/dev/a", "/dev/card", "mrw"),),
        (Mount("/dev", "/host/dev"),),
        {"A.b-c": "x=y\n"},
        {"example.com/a": ""},
        ("example.com/card=0",),
    )
    rig.answer = lambda devices: answer
    assert await rig.allocate("a") == Granted(answer)


async def test_optional_parts_that_do_not_exist_are_left_out(rig: Supply) -> None:
    rig.answer = lambda devices: Edits(
        nodes=(A, DeviceNode("/dev/extra", required=False), DeviceNode("/dev/b", required=False)),
        mounts=(Mount("/lib/absent", "/lib/x", required=False),),
    )
    assert (await rig.allocate("a")).left_out == {"/dev/extra", "/lib/absent"}
    assert not rig.scanner.denied


async def test_a_missing_node_fails_whole_and_names_it(rig: Supply) -> None:
    (rig.root / "dev/a").unlink()
    with pytest.raises(MissingPath, match=r"^example\.com/card: /dev/a does not exist on the node$"):
        await rig.allocate("a")
    assert rig.scanner.denied == {"a": ["/dev/a"]}
    assert "a" not in rig.inventory.allocations


async def test_of_several_devices_only_the_one_that_lacks_its_node_is_blamed(rig: Supply) -> None:
    (rig.root / "dev/b").unlink()
    with pytest.raises(MissingPath, match="/dev/b does not exist"):
        await rig.allocate("a", "b", "c")
    assert rig.scanner.denied == {"b": ["/dev/b"]}


async def test_what_several_devices_lack_together_is_blamed_on_each(rig: Supply) -> None:
    rig.answer = lambda devices: Edits(nodes=(DeviceNode("/dev/control"),))
    with pytest.raises(MissingPath):
        await rig.allocate("a", "b")
    assert rig.scanner.denied == {"a": ["/dev/control"], "b": ["/dev/control"]}


async def test_what_only_the_set_lacks_is_blamed_on_the_whole_set(rig: Supply) -> None:
    def together(devices: Sequence[Device]) -> Edits:
        return Edits(nodes=(DeviceNode("/dev/bridge"),)) if len(devices) > 1 else own_nodes(devices)

    rig.answer = together
    with pytest.raises(MissingPath):
        await rig.allocate("a", "b")
    assert rig.scanner.denied == {"a": ["/dev/bridge"], "b": ["/dev/bridge"]}


async def test_a_missing_mount_counts_as_a_missing_node_does(rig: Supply) -> None:
    rig.answer = lambda devices: Edits(mounts=(Mount("/opt/lib", "/opt/lib"),))
    with pytest.raises(MissingPath, match="/opt/lib does not exist"):
        await rig.allocate("c")
    assert rig.scanner.denied == {"c": ["/opt/lib"]}


async def test_a_backend_that_refuses_a_pod_is_asked_to_look_again(rig: Supply) -> None:
    def refuse(devices: Sequence[Device]) -> Edits:
        raise AllocationError("a is in use by the host")

    rig.answer = refuse
    with pytest.raises(AllocationError, match=r"^a is in use by the host$"):
        await rig.allocate("a")
    assert rig.scanner.rechecks == 1


async def test_the_same_request_gets_the_same_answer_again(rig: Supply) -> None:
    assert await rig.allocate("a", "b") == await rig.allocate("a", "b")


async def test_a_preference_is_one_of_the_available_tokens(rig: Supply) -> None:
    assert await rig.allocator.prefer(["b", "a", "nobody"], ["b"], 2) == ["b", "a"]


async def test_a_container_may_restart_on_a_device_that_became_unhealthy(rig: Supply) -> None:
    rig.runner.discover([])
    await rig.allocator.prepare(["sick"])
    with pytest.raises(UnknownDevice):
        await rig.allocator.prepare(["nobody"])


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            [Edits((DeviceNode("/dev/a", "/dev/x"),)), Edits((DeviceNode("/dev/b", "/dev/x"),))],
            "/dev/a and /dev/b are both to be /dev/x in the container",
        ),
        (
            [Edits((DeviceNode("/dev/a", "/dev/b"),)), Edits((DeviceNode("/dev/b"),))],
            "/dev/a and /dev/b are both to be /dev/b in the container",
        ),
        (
            [Edits(mounts=(Mount("/dev/a", "/x"),)), Edits(mounts=(Mount("/dev/b", "/x"),))],
            "/dev/a and /dev/b are both to be /x in the container",
        ),
        (
            [Edits((DeviceNode("/dev/a", "/x"),)), Edits(mounts=(Mount("/dev/b", "/x"),))],
            "/dev/a and /dev/b are both to be /x in the container",
        ),
    ],
)
@pytest.mark.parametrize("merged", [False, True])
async def test_two_things_for_one_place_in_a_container_are_refused_and_none_is_dropped(
    rig: Supply, parts: list[Edits], said: str, merged: bool
) -> None:
    def answer(devices: Sequence[Device]) -> Edits:
        own = [parts["ab".index(device.id)] for device in devices]
        if merged:
            return Edits.merge(own)
        nodes, mounts = (one.nodes for one in own), (one.mounts for one in own)
        return Edits(tuple(chain(*nodes)), tuple(chain(*mounts)))

    rig.answer = answer
    with pytest.raises(AllocationError, match=said):
        await rig.allocate("a", "b")
    for token in "ab":
        assert (await rig.allocate(token)).edits == parts["ab".index(token)]


async def test_the_same_thing_for_one_place_is_there_once(rig: Supply) -> None:
    rig.answer = lambda devices: Edits.merge(
        Edits((DeviceNode("/dev/c", "/dev/x"),), (Mount("/dev/c", "/x"),)) for _ in devices
    )
    granted = await rig.allocate("a", "b")
    assert granted.edits == Edits((DeviceNode("/dev/c", "/dev/x"),), (Mount("/dev/c", "/x"),))


async def test_of_two_things_for_one_place_of_which_one_can_be_done_without_the_first_is_there(
    rig: Supply,
) -> None:
    first, second = DeviceNode("/dev/a", "/dev/x"), DeviceNode("/dev/b", "/dev/x", required=False)
    rig.answer = lambda devices: Edits.merge([Edits((first,)), Edits((second,))])
    assert (await rig.allocate("a")).edits.nodes == (first,)


async def test_of_two_things_for_one_place_that_can_be_done_without_the_one_that_exists_is_there(
    rig: Supply,
) -> None:
    absent, there = (DeviceNode(path, "/dev/x", required=False) for path in ("/dev/none", "/dev/a"))
    rig.answer = lambda devices: Edits.merge([Edits((absent,)), Edits((there,))])
    assert (await rig.allocate("a")).edits.nodes == (there,)
    needed = DeviceNode("/dev/b", "/dev/x")
    rig.answer = lambda devices: Edits.merge([Edits((absent, there)), Edits((needed,))])
    assert (await rig.allocate("b")).edits.nodes == (needed,)


@pytest.mark.parametrize("first", [True, False])
def test_what_two_parts_give_is_required_if_one_of_them_requires_it(*, first: bool) -> None:
    parts = [
        Edits((DeviceNode("/dev/a", required=one),), (Mount("/b", "/b", required=one),))
        for one in (first, not first)
    ]
    merged = Edits.merge(parts)
    assert [one.required for one in (*merged.nodes, *merged.mounts)] == [True, True]
