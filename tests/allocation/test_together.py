"""`share: {of: all}`: tokens that stand for every device, of use as long as one of them is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.allocator import Listed, Supply, own_nodes

from devhost.allocation.allocator import UnhealthyDevice
from devhost.allocation.leases import Listing
from devhost.allocation.resource_backend import MissingPath
from devhost.backend import AllocateRequest, AllocationError, Backend, Device
from devhost.backend.errors import BackendError
from devhost.backend.model import Holder
from devhost.kubelet.server import device_list
from devhost.planning.claims import IN_USE, Reason
from devhost.planning.plan import Membership, Offer, units
from devhost.planning.settings import Of
from devhost.planning.timing import ALLOCATION as NODE

GRACE = NODE.grace

promise = settings(deadline=None, derandomize=True)


def show(
    rig: Listed,
    names: str,
    replicas: int = 2,
    of: Of = Of.ALL,
    numa: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> bool:
    return rig.show(
        *(Offer(Device(name, numa_nodes=numa.get(name, ())), replicas) for name in names),
        of=of,
    )


async def given_by(rig: Supply, *tokens: str) -> str:
    """The devices whose nodes the next container gets."""
    return ",".join(path.removeprefix("/dev/") for path in (await rig.allocate(*tokens)).nodes())


def refuse_by(rig: Supply, refuse: Callable[[Sequence[Device]], object]) -> None:
    """``refuse`` may raise before the backend answers."""
    rig.answer = lambda devices: (refuse(devices), own_nodes(devices))[1]


def test_the_number_of_tokens_does_not_depend_on_the_number_of_devices() -> None:
    for names in ("a", "abc"):
        rig = Listed()
        show(rig, names)
        assert rig.health() == {"all::0": "", "all::1": ""}


def test_a_single_token_keeps_its_name_when_there_are_more() -> None:
    rig = Listed()
    show(rig, "ab", replicas=1)
    assert rig.health() == {"all::0": ""}
    show(rig, "ab", replicas=2)
    assert rig.health() == {"all::0": "", "all::1": ""}


def test_tokens_are_healthy_while_one_device_is_and_else_name_the_unhealthy_ones() -> None:
    rig = Listed()
    rig.sick["a"] = "port 1 is down"
    show(rig, "ab")
    assert rig.health() == {"all::0": "", "all::1": ""}
    rig.sick["b"] = "too hot"
    assert show(rig, "ab")
    reason = "none of its devices is healthy: a: port 1 is down; b: too hot"
    assert rig.health() == {"all::0": reason, "all::1": reason}
    del rig.sick["a"]
    assert show(rig, "ab")
    assert set(rig.health().values()) == {""}


def test_of_many_unhealthy_devices_the_reason_names_some_and_counts_the_rest() -> None:
    rig, names = Listed(), "abcdefgh"
    rig.sick = dict.fromkeys(names, "down")
    show(rig, names)
    (reason,) = set(rig.health().values())
    assert reason.count("down") == 4 and reason.endswith("; and 4 more")


def test_devices_that_come_and_go_make_no_new_list() -> None:
    rig = Listed()
    show(rig, "ab", numa={"a": (0,), "b": (1,)})
    for names in ("a", "abc", "c", "bc"):
        assert not show(rig, names, numa={"a": (0,), "b": (1,)})
    assert device_list(rig.inventory.snapshot.entries.values()).devices[0].topology.nodes == []


def test_the_tokens_leave_when_the_last_device_does_and_come_back_with_the_first() -> None:
    rig = Listed()
    show(rig, "ab")
    show(rig, "")
    assert set(rig.health().values()) == {"a is gone; b is gone"}
    rig.now += GRACE
    show(rig, "")
    assert rig.health() == {}
    show(rig, "c")
    assert rig.health() == {"all::0": "", "all::1": ""}


def test_from_one_by_one_to_together_and_back_the_old_tokens_leave() -> None:
    rig = Listed()
    show(rig, "ab", of=Of.EACH)
    rig.inventory.allocated(["a::1"])
    show(rig, "ab", of=Of.ALL)
    rig.now += GRACE
    show(rig, "ab", of=Of.ALL)
    assert rig.health() == {"all::0": "", "all::1": "", "a::1": "a is gone"}
    show(rig, "ab", of=Of.EACH)
    rig.now += GRACE
    show(rig, "ab", of=Of.EACH)
    assert sorted(rig.health()) == ["a::0", "a::1", "b::0", "b::1"]
    assert set(rig.health().values()) == {""}


def test_an_unchanged_token_is_the_same_object() -> None:
    rig, offers = Listed(), [Offer(Device("a"), 3), Offer(Device("b"), 3)]
    for _ in range(2):
        before = rig.inventory.snapshot.entries
        rig.inventory.update(units(Of.ALL, offers), rig.verdict, str)
    after = rig.inventory.snapshot.entries
    assert [after[name] is before[name] for name in after] == [True] * 3
    assert len({id(entry.members) for entry in after.values()}) == 1


States = st.dictionaries(st.sampled_from("abcd"), st.booleans())


@promise
@given(st.lists(st.tuples(States, st.sampled_from([0.0, 1.0, 5.0])), max_size=10))
def test_a_new_list_comes_only_when_the_kubelet_would_see_a_difference(
    history: list[tuple[dict[str, bool], float]],
) -> None:
    rig = Listed()
    show(rig, "")
    for step, wait in history:
        rig.now += wait
        before = rig.inventory.snapshot
        rig.sick = {name: "hot" for name, well in step.items() if not well}
        told = show(rig, "".join(sorted(step)), numa={name: (ord(name) % 2,) for name in step})
        seen = [
            sorted(device_list(s.entries.values()).devices, key=lambda d: d.ID)
            for s in (before, rig.inventory.snapshot)
        ]
        assert told == (seen[0] != seen[1])
        if step:
            assert rig.inventory.snapshot.healthy == (2 if any(step.values()) else 0)
            assert rig.inventory.snapshot.devices().items() >= step.items()


async def test_one_token_gives_every_healthy_device_and_several_give_the_same_once(rig: Supply) -> None:
    rig.sick["b"] = "port 1 is down"
    show(rig, "abc")
    assert await given_by(rig, "all::0") == "a,c"
    assert await given_by(rig, "all::0", "all::1") == "a,c"
    assert rig.allocator.given(["all::1"]) == ["a", "c"]
    assert rig.allocator.given(["all::0", "all::1"]) == ["a", "c"]
    assert rig.asked == [["a", "c"], ["a", "c"]]


async def test_devices_that_were_only_inferred_are_known_after_an_allocate(rig: Supply) -> None:
    show(rig, "ab")
    named = {rig.inventory.allocations.resource: {"all::0": Holder("default", "pod", "main")}}
    rig.inventory.allocations.apply(Listing((1,), 0.0, 1, named))
    rig.inventory.allocations.infer(["all::0"], {("card", "b"): Device("b")})
    assert rig.allocator.given(["all::0"]) == []
    show(rig, "a")
    assert await given_by(rig, "all::0") == "a"
    assert rig.allocator.given(["all::0"]) == ["a"]
    assert rig.inventory.allocations.unresolved() == []


async def test_a_device_that_appears_is_given_from_then_on(rig: Supply) -> None:
    show(rig, "a")
    assert await given_by(rig, "all::0") == "a"
    show(rig, "ab")
    assert await given_by(rig, "all::1") == "a,b"
    assert rig.allocator.given(["all::0"]) == ["a"]


async def test_no_pod_fails_because_one_device_lacks_its_node(rig: Supply) -> None:
    (rig.root / "dev/b").unlink()
    show(rig, "abc")
    assert await given_by(rig, "all::0") == "a,c"
    assert rig.scanner.denied == {"b": ["/dev/b"]}
    assert rig.allocator.given(["all::0"]) == ["a", "c"]
    assert rig.scanner.rechecks == 1


async def test_no_pod_fails_because_the_backend_refuses_one_device(
    rig: Supply, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(devices: Sequence[Device]) -> None:
        if any(device.id == "b" for device in devices):
            raise AllocationError("b is in another network namespace")

    refuse_by(rig, refuse)
    show(rig, "abc")
    assert await given_by(rig, "all::1") == "a,c"
    assert rig.scanner.rechecks == 1
    (record,) = caplog.records
    assert record.getMessage() == "a container does not get a device"


async def test_no_pod_fails_because_the_backend_fails_at_one_device(
    rig: Supply, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(devices: Sequence[Device]) -> None:
        if any(device.id == "b" for device in devices):
            raise OSError(5, "Input/output error")

    refuse_by(rig, fail)
    show(rig, "abc")
    assert await given_by(rig, "all::1") == "a,c"
    (record,) = caplog.records
    assert "backend card failed: Input/output error" in str(vars(record))


async def test_a_backend_that_fails_for_every_device_is_reported_as_failed(rig: Supply) -> None:
    def fail(devices: Sequence[Device]) -> None:
        raise OSError(5, "Input/output error")

    refuse_by(rig, fail)
    show(rig, "abc")
    with pytest.raises(BackendError, match=r"^backend card failed: Input/output error$") as told:
        await rig.allocate("all::0")
    assert not isinstance(told.value, AllocationError)


async def test_a_pod_is_refused_when_no_device_can_be_given(rig: Supply) -> None:
    for name in "abc":
        (rig.root / "dev" / name).unlink()
    show(rig, "abc")
    with pytest.raises(MissingPath, match="/dev/a, /dev/b, /dev/c do not exist"):
        await rig.allocate("all::0")
    assert rig.scanner.denied.keys() == {"a", "b", "c"}
    assert "all::0" not in rig.inventory.allocations


async def test_the_reason_of_each_refusal_is_reported_once(rig: Supply) -> None:
    def refuse(devices: Sequence[Device]) -> None:
        raise AllocationError(f"{devices[0].id.replace('c', 'b')} is busy")

    refuse_by(rig, refuse)
    show(rig, "abc")
    with pytest.raises(AllocationError, match=r"^a is busy; b is busy$"):
        await rig.allocate("all::0")


async def test_what_only_the_whole_set_cannot_have_refuses_the_pod(rig: Supply) -> None:
    def refuse(devices: Sequence[Device]) -> None:
        if len(devices) > 1:
            raise AllocationError("they do not go together")

    refuse_by(rig, refuse)
    show(rig, "abc")
    with pytest.raises(AllocationError, match=r"^they do not go together$"):
        await rig.allocate("all::0")


async def test_tokens_without_a_healthy_device_are_refused_with_the_reason(rig: Supply) -> None:
    rig.sick = {"a": "hot", "b": "hot"}
    show(rig, "ab")
    with pytest.raises(UnhealthyDevice, match=r"all::0 is unhealthy: none of its devices .*a: hot; b: hot"):
        await rig.allocate("all::0")


async def test_a_container_that_starts_again_is_prepared_with_what_it_got(tmp_path: Path) -> None:
    prepared: list[list[str]] = []

    class Prepares(Backend):
        def prepare(self, request: AllocateRequest) -> None:
            prepared.append([device.id for device in request.devices])

    rig = Supply(tmp_path, Prepares)
    rig.make("abc")
    show(rig, "ab")
    await rig.allocate("all::0")
    rig.sick["a"] = "hot"
    show(rig, "abc")
    await rig.allocator.prepare(["all::0"])
    await rig.allocator.prepare(["all::1"])  # of which nobody remembers an allocation
    rig.runner.close()
    assert prepared == [["a", "b"], ["b", "c"]]


async def test_which_of_the_tokens_is_preferred_makes_no_difference_and_is_always_the_same(
    rig: Supply,
) -> None:
    show(rig, "abc", replicas=12)
    available: Any = [f"all::{number}" for number in (11, 2, 5, 0)]
    assert await rig.allocator.prefer(available, ["all::5"], 3) == ["all::5", "all::0", "all::2"]


async def test_a_unit_is_refused_whole_before_its_list_shows_that_a_member_is_bound_to_another_pod(
    rig: Supply,
) -> None:
    group = frozenset({"iommu:1"})
    devices = Device("a", claims=group), Device("b")
    offers = [Offer(device, 1, Membership("u")) for device in devices]
    rig.inventory.update(units("slot", offers), rig.verdict, Reason)
    everything = rig.inventory.allocations.everything
    everything.of("example.com/other").allocated("card", {"x": (Device("x", claims=group),)})
    holder = Holder("default", "vm", "main")
    everything.apply(Listing((1, 1, 1), rig.now, 1, {"example.com/other": {"x": holder}}))
    rig.now += 100
    with pytest.raises(UnhealthyDevice, match=IN_USE):
        await rig.allocate("u")
