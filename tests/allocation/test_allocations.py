"""What containers hold of all resources, and how it is read back after a restart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from kit.allocator import POD, Ledger
from kit.plan import offered
from work import Work

from devhost.allocation.allocations import Reservation
from devhost.allocation.given import Gift, Node
from devhost.allocation.inventory import Inventory
from devhost.backend.model import HEALTHY, Device
from devhost.backend.where import Block, Term, Text, Where
from devhost.planning.claims import Reason
from devhost.planning.plan import Plan, RefusalKind, units
from devhost.planning.settings import Of, ResourceSettings, Settings, Share
from devhost.planning.timing import ALLOCATION as NODE
from devhost.planning.tokens import device_of, represents_all, token, unit_of

EMPTY_PATIENCE = NODE.no_pods

OLD, NEW = "example.com/old", "example.com/new"
LONG = "x" * 63


def entry(index: int, name: str, **more: object) -> ResourceSettings:
    return ResourceSettings(index, name, str(more.pop("backend", "card")), **more)  # type: ignore[arg-type]


def named_only(name: str) -> Where:
    """Selects one device by its attribute ``name``."""
    return (Block((Term("name", (Text(name),)),)),)


def device(name: str, **more: Any) -> Device:
    """A device that says its own name."""
    return Device(name, {"name": name}, **more)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("a", "a"),
        ("a::3", "a"),
        (token(LONG, 12, 20), LONG),
        ("b", None),
        ("b::1", None),
        ("a::", None),
        ("", None),
        ("y" * 53 + "-01234567::1", None),
    ],
)
def test_a_token_is_read_back_to_the_device_it_was_made_from(name: str, device: str | None) -> None:
    found = device_of(name, {"a": Device("a"), LONG: Device(LONG), LONG[:-1]: Device(LONG[:-1])})
    assert (found.id if found else None) == device


def test_what_a_token_is_named_after() -> None:
    assert [unit_of(name) for name in ("a", "a::3", "a::b", "all::0")] == ["a", "a", "a::b", "all"]
    assert [represents_all(name) for name in ("all::0", "all", "a::0")] == [True, False, False]


def test_a_device_called_all_is_no_token_for_all_devices() -> None:
    assert not represents_all("all")
    assert represents_all("all::0")


def test_after_a_start_tokens_are_read_among_the_devices_of_the_resources_backend() -> None:
    rig = Ledger("a", "b")
    rig.plug("a", backend="net")
    rig.hear(old="a b::3 unknown")
    rig.plan(entry(0, OLD))
    assert rig.held() == {("a", "card", "a"), ("b::3", "card", "b")}


def test_after_a_start_tokens_that_a_container_got_together_mean_only_their_own_devices() -> None:
    rig = Ledger("a", "b")
    nodes = [Node(f"/dev/{name}", "c1:1", ("card", name)) for name in "ab"]
    rig.allocations.given.gave(OLD, ("a", "b"), nodes)
    rig.plan(entry(0, OLD))
    rig.hear(old="a b")
    rig.plan(entry(0, OLD))
    assert rig.held() == {("a", "card", "a"), ("b", "card", "b")}


def test_a_resource_that_is_not_configured_may_be_of_any_backend() -> None:
    rig = Ledger("a", "b")
    rig.plug("a", backend="net")
    rig.hear(gone="a")
    plan = rig.plan(entry(0, NEW), entry(1, "example.com/net", backend="net"))
    assert rig.held() == {("a", "card", "a"), ("a", "net", "a")}
    assert offered(plan, NEW) == ["b"]
    assert {r.kind for r in plan.refusals} == {RefusalKind.HELD}


def test_another_plugins_tokens_that_are_no_device_of_ours_are_not_kept() -> None:
    rig = Ledger("a")
    rig.hear(foreign=" ".join(f"x{n}" for n in range(100)))
    rig.plan(entry(0, OLD))
    assert not rig.allocations.held()
    assert rig.allocations.due(rig.now) is None


def test_a_device_that_is_found_later_is_held_from_then_on() -> None:
    rig = Ledger()
    rig.hear(old="a", gone="b")
    rig.plan(entry(0, OLD))
    rig.plug("a", "b")
    plan = rig.plan(entry(0, NEW), entry(1, OLD))
    assert (offered(plan, NEW), offered(plan, OLD)) == ([], ["a"])


def test_a_token_for_all_counts_for_every_device_the_resource_has_had_since_the_start() -> None:
    rig = Ledger()
    together = Share(2, of=Of.ALL)
    rig.plug("a", "b")
    rig.hear(old="all::1")
    rig.plan(entry(0, OLD, share=together))
    assert rig.held() == {("all::1", "card", "a"), ("all::1", "card", "b")}
    plan = rig.plan(entry(0, NEW), entry(1, OLD, share=together))
    assert (offered(plan, NEW), offered(plan, OLD)) == ([], ["a", "b"])
    rig.hear()
    rig.hear()
    assert offered(rig.plan(entry(0, NEW), entry(1, OLD)), NEW) == ["a", "b"]


def with_node(name: str, path: str, **more: Any) -> Device:
    return Device(name, {"module": "m"}, claims=frozenset({f"node:{path}"}), **more)


@pytest.mark.parametrize(
    ("share", "token"),
    [(Share(2, of=Of.ALL), "all::0"), (Share(2, of="module"), "m::0")],
    ids=["all", "unit"],
)
def test_after_a_start_a_container_does_not_hold_a_device_that_appeared_since_its_allocate(
    share: Share, token: str
) -> None:
    rig = Ledger()
    rig.allocations.given.gave(OLD, [token], [Node(f"/dev/{one}", "c1:1", ("card", one)) for one in "ab"])
    rig.plug(*(with_node(one, f"/dev/{one}") for one in "abc"), Device("d", {"module": "m"}))
    rig.hear(old=token)
    rig.plan(entry(0, OLD, share=share))
    assert {device for _, _, device in rig.held()} == {"a", "b", "d"}, "d may be given without a node"


def test_after_a_start_a_container_does_not_hold_the_device_that_replaced_the_one_it_was_given() -> None:
    rig = Ledger(with_node("new", "/dev/new"))
    rig.allocations.given.gave(OLD, ["all::0"], [Node("/dev/a", "c1:1", ("card", "a"))])
    rig.hear(old="all::0")
    rig.plan(entry(0, OLD, share=Share(2, of=Of.ALL)))
    assert {device for _, _, device in rig.held()} == {"a"}


@pytest.mark.parametrize(
    "now",
    [with_node("new", "/dev/new", former_ids=("b",)), with_node("new", "/dev/answered")],
    ids=["former id", "in the checkpoint"],
)
def test_after_a_start_a_container_holds_a_device_that_may_be_one_that_it_was_given(now: Device) -> None:
    rig = Ledger()
    given = rig.allocations.given
    nodes = [Node(f"/dev/{one}", "c1:1", ("card", one)) for one in "ab"]
    given.checkpointed = {(OLD, "all::0"): [Gift((*nodes, Node("/dev/answered")), container="main")]}
    given.recall({(OLD, "all::0"): Gift(tuple(nodes))}, {})
    rig.plug(with_node("a", "/dev/a"), now)
    rig.hear(old="all::0")
    rig.plan(entry(0, OLD, share=Share(2, of=Of.ALL)))
    assert {"a", "new"} <= {device for _, _, device in rig.held()}


def test_the_devices_of_a_token_for_all_of_a_removed_resource_are_unknown() -> None:
    rig = Ledger("a")
    rig.hear(gone="all::0")
    assert offered(rig.plan(entry(0, NEW)), NEW) == ["a"]


def test_a_release_notifies_subscribers_and_remakes_the_plan() -> None:
    rig, heard = Ledger(), list[tuple[str, tuple[str, ...]]]()
    leave = rig.allocations.subscribe(lambda resource, tokens: heard.append((resource, tokens)))
    rig.plug("a", "b")
    rig.plan(entry(0, OLD))
    rig.hear(old="a b")
    assert rig.replans == 1
    rig.hear(old="b")
    rig.hear(old="b")
    assert heard == [(OLD, ("a",))] and rig.replans == 2
    leave()
    rig.hear()
    rig.hear()
    assert len(heard) == 1 and not rig.allocations.held()


def test_an_allocation_needs_no_other_plan() -> None:
    rig = Ledger("a")
    plan = rig.plan(entry(0, OLD))
    inventory = Inventory(lambda: 0.0, lambda: rig.now, allocations=rig.allocations.of(OLD), backend="card")
    inventory.update(units(Of.EACH, plan.resources[OLD].offers), lambda _: HEALTHY, Reason)
    with inventory.reserved({"a": [Device("a")]}):
        assert rig.held() == {("a", "card", "a")}
        inventory.allocated(["a"])
    assert rig.held() == {("a", "card", "a")}
    assert rig.replans == 0
    assert rig.plan(entry(0, OLD)).resources == plan.resources


def test_what_is_held_now_is_one_value_until_that_changes() -> None:
    rig = Ledger("a", "b", "c")
    rig.hear(old="c")
    rig.plan(entry(0, OLD))
    old = rig.allocations.of(OLD)
    old.allocated("card", {"a": [Device("a")]})
    before = old.now()
    assert old.now() is before and before.tokens() == {"a", "c"}
    # which device another devhost gave by a token is only a conclusion
    assert before.leased() == {"a": ((("card", "a"),), None), "c": ((), POD)}
    with Reservation(old, "card") as reservation:
        reservation.add({"b": [Device("b")]})
        assert old.now().tokens() == {"a", "b", "c"} and old.now().leased() == before.leased()
    assert before.tokens() == {"a", "c"} == old.now().tokens()


def test_a_plan_looks_at_no_resource_of_which_no_container_has_anything() -> None:
    lines = []
    for resources in (2, 100):
        rig, work = Ledger(), Work()
        rig.plug("a")
        rig.allocations.of(OLD).allocated("card", {"a": [Device("a")]})
        for number in range(resources):
            unused = rig.allocations.of(f"example.com/unused-{number}")
            with Reservation(unused, "card") as reservation:
                reservation.add({"b": [Device("b")]})
        settings = Settings()
        rig.allocations.observe(rig.found, settings)
        with work.counted():
            rig.allocations.observe(rig.found, settings)
            rig.allocations.learn(Plan())
            assert [one.resource for one in rig.allocations.held()] == [OLD]
        lines.append(work.lines)
    assert lines[0] == lines[1]


def test_an_allocate_that_fails_releases_its_devices_and_remakes_the_plan() -> None:
    rig = Ledger()
    allocations = rig.allocations.of(OLD)
    with pytest.raises(ValueError, match="no"), Reservation(allocations, "card") as reservation:
        reservation.add({"a": [Device("a")]})
        raise ValueError("no")
    assert not rig.allocations.held() and rig.replans == 1


def test_a_release_during_the_allocate_of_the_next_container_leaves_its_reservation() -> None:
    rig = Ledger("a")
    rig.plan(entry(0, OLD))
    resource = rig.allocations.of(OLD)
    rig.hear(old="a")
    with Reservation(resource, "card") as reservation:
        reservation.add({"a": [Device("a")]}, (), listed=True)
        rig.hear()
        rig.hear()
        assert "a" not in resource
        assert not resource.is_unshared("a")
    assert rig.held() == set()


def test_a_claim_that_a_device_ever_had_while_held_counts_until_it_is_released() -> None:
    rig = Ledger()
    group = frozenset({"pci:7"})
    rig.plug(Device("a", claims=group), Device("b"))
    rig.plan(entry(0, OLD))
    rig.hear(old="a")
    rig.plug(Device("a"), Device("b", claims=group))
    plan = rig.plan(entry(0, OLD))
    assert offered(plan, OLD) == ["a"]
    (refusal,) = plan.refusals
    assert refusal.reason == (
        "pci:7 is in use: a pod holds a of backend card through example.com/old; "
        "it is free when that pod ends"
    )


def test_who_holds_what_is_not_known_from_a_kubelet_that_names_no_pods_until_it_goes_on_doing_so() -> None:
    rig = Ledger()
    rig.plan()
    rig.hear(pods=0)
    assert rig.allocations.claims_in_use() is None
    rig.now += EMPTY_PATIENCE
    rig.hear(pods=0)
    assert rig.allocations.claims_in_use() == frozenset()


def test_claims_include_devices_that_no_backend_has_found() -> None:
    rig = Ledger()
    rig.hear(old="a::1", foreign="b")
    assert rig.allocations.claims_in_use() is None  # what exists has not been told yet
    rig.plan(entry(0, OLD))
    assert rig.allocations.claims_in_use() == {"device:card/a", "device:card/b", "device:net/b"}


def test_what_is_in_use_names_the_pods_as_soon_as_the_kubelet_does() -> None:
    rig = Ledger("a")
    rig.plan(entry(0, OLD))
    rig.hear()
    rig.allocations.of(OLD).allocated("card", {"a": [rig.found["card"]["a"]]})
    assert "holder::card/a" in (rig.allocations.claims_in_use() or ())
    rig.hear(old="a")
    found = rig.allocations.claims_in_use() or frozenset()
    assert {one for one in found if one.startswith("holder:")} == {f"holder:{POD.namespace}/{POD.pod}:card/a"}


def test_a_resource_that_shares_is_known_to_share_also_when_it_has_left_the_configuration() -> None:
    rig = Ledger("a")
    rig.plan(entry(0, OLD, exclusive=False))
    rig.hear(old="a")
    assert offered(rig.plan(entry(0, NEW, exclusive=False)), NEW) == ["a"]
    assert offered(rig.plan(entry(0, NEW)), NEW) == []


def test_what_containers_hold_is_shared_or_not_as_its_entry_is_now() -> None:
    rig = Ledger("a")
    rig.plan(entry(0, OLD))
    rig.hear(old="a")
    for exclusive in (True, False, True):
        rig.plan(entry(0, OLD, exclusive=exclusive))
        assert [one.exclusive for one in rig.allocations.held()] == [exclusive]
        key, card = ("card", "a"), rig.found["card"]["a"]
        refused = rig.allocations.through_tokens.objection(key, card, NEW, False)
        assert (refused is not None) is exclusive


def test_while_a_resource_waits_for_a_release_the_kubelet_is_asked_sooner() -> None:
    rig = Ledger("a")
    rig.hear(old="a")
    rig.plan(entry(0, OLD))
    usual = rig.allocations.due(rig.now)
    rig.plan(entry(0, NEW), entry(1, OLD))
    sooner = rig.allocations.due(rig.now)
    assert usual is not None and sooner is not None and sooner < usual


def test_the_plan_does_not_depend_on_the_order_in_which_things_became_known() -> None:
    entries = entry(0, NEW), entry(1, OLD), entry(2, "example.com/net", backend="net")
    card = frozenset({"pci:1"})
    devices: Mapping[str, Device] = {n: Device(n, part_of=card) for n in "abc"}
    plans = []
    for order in ("abc", "cba", "bca"):
        rig = Ledger()
        rig.plug(Device("whole", claims=card), backend="net")
        for end in range(1, 4):
            rig.plug(*(devices[name] for name in order[:end]))
            rig.plan(*entries)
        rig.hear(**{"old": " ".join(order)})
        plans.append(rig.plan(*entries))
    assert plans[0] == plans[1] == plans[2]


def test_a_token_by_a_former_id_holds_every_device_it_may_mean_also_of_an_unknown_resource() -> None:
    former = ("dsa", "dsa.*")
    rig = Ledger()
    rig.plug(Device("q0", former_ids=former), "other", Device("q1", former_ids=former))
    rig.hear(old="dsa.1", gone="dsa")
    rig.plan(entry(0, OLD))
    assert rig.held() == {(one, "card", queue) for one in ("dsa.1", "dsa") for queue in ("q0", "q1")}
    rig.plug(Device("q0", former_ids=former), Device("q2", former_ids=former))
    rig.plan(entry(0, OLD))
    assert ("dsa.1", "card", "q2") in rig.held()
    claimed = rig.allocations.claims_in_use()
    assert claimed is not None
    assert {"device:card/q0", "device:card/q1", "device:card/q2"} <= claimed
    rig.hear()
    rig.hear()
    assert rig.held() == set()


def test_a_list_is_judged_by_its_own_tokens_and_not_by_those_of_an_earlier_one() -> None:
    rig = Ledger()
    rig.hear(foreign="a")
    rig.plan(entry(0, OLD))  # there is no such device yet
    rig.hear(foreign="x")
    rig.plug("a")
    rig.plan(entry(0, OLD))
    assert list(rig.allocations.in_use()) == []
    assert rig.allocations.due(rig.now) is None


def test_devices_that_a_plan_shows_to_be_held_count_in_that_plan() -> None:
    """A container has all devices of a resource whose name also fits an exclusive template."""
    rig = Ledger()
    rig.hear(**{"k-x": "all::0"})
    rig.plug(Device("a", {"kind": "x", "model": "m"}))
    together = entry(0, "example.com/k-{kind}", share=Share(2, of=Of.ALL), exclusive=False)
    plan = rig.plan(together, entry(1, NEW, exclusive=False), entry(2, "example.com/k-{colour}"))
    assert rig.held() == {("all::0", "card", "a")}
    assert offered(plan, "example.com/k-x") == ["a"]
    assert offered(plan, NEW) == []


def test_a_part_stays_a_part_while_a_container_has_it() -> None:
    rig = Ledger()
    whole = device("whole", claims=frozenset({"card:1"}))
    rig.plug(device("part", part_of=frozenset({"card:1"})))
    rig.hear(old="part")
    rig.plan(entry(0, OLD))
    rig.plug(device("part"), whole)  # its driver no longer says what it is a part of
    plan = rig.plan(entry(0, NEW, where=named_only("whole")), entry(1, OLD, where=named_only("part")))
    assert offered(plan, NEW) == []
    rig.hear()
    rig.hear()  # the pod has ended
    plan = rig.plan(entry(0, NEW, where=named_only("whole")), entry(1, OLD, where=named_only("part")))
    assert offered(plan, NEW) == ["whole"]


def test_what_a_device_used_up_in_an_earlier_pod_is_forgotten() -> None:
    rig = Ledger()
    rig.plug(device("a", claims=frozenset({"group:1"})))
    rig.hear(old="a")
    rig.plan(entry(0, OLD))
    rig.plug(device("a"), device("b", claims=frozenset({"group:1"})))
    entries = entry(0, NEW, where=named_only("b")), entry(1, OLD, where=named_only("a"))
    assert offered(rig.plan(*entries), NEW) == []
    rig.hear()
    rig.hear()  # the pod has ended
    rig.plan(*entries)
    rig.hear(old="a")  # another pod has the device, which is in no group by now
    assert offered(rig.plan(*entries), NEW) == ["b"]
