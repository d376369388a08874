"""A device that another DRA driver gave to a pod is not free, and is free again when the pod has ended."""

from __future__ import annotations

import pytest
from kit.allocator import CARD as NAME
from kit.allocator import Ledger
from kit.plan import offered

from devhost.allocation.claims import ClaimedDevice, DeviceHeld
from devhost.allocation.leases import ClaimUse, ClaimUseDevice
from devhost.backend.model import ClaimHolder, Device, Holder
from devhost.planning.plan import Plan, RefusalKind
from devhost.planning.settings import ResourceSettings, Serve
from devhost.planning.timing import ALLOCATION as NODE

OURS = "devhost.example.com"
THEIRS = "nic.example.com"
ADDRESS = "0000:3b:00.0"
CARD = Device("card0", claims=frozenset({f"pci:{ADDRESS}"}))
PART = Device("part0", part_of=frozenset({f"pci:{ADDRESS}"}))
POD = Holder("team", "job", "main")
REASON = "a pod holds it through nic.example.com; it is free when that pod ends"


def use(
    device: str = "0000-3b-00-0", *cdi_names: str, driver: str = THEIRS, holder: Holder = POD
) -> ClaimUse:
    return ClaimUse((holder,), (ClaimUseDevice(driver, "node-1", device, "", cdi_names),))


class Node(Ledger):
    """A node with a card, whose kubelet lists what claims have."""

    def __init__(self, *devices: Device, driver: str = OURS) -> None:
        super().__init__(*(devices or (CARD,)))
        self.driver = driver
        self.made()

    def made(self, serve: Serve = Serve.PLUGIN) -> Plan:
        return self.plan(ResourceSettings(0, NAME, "card", serve=serve), driver=self.driver)

    def offered(self, serve: Serve = Serve.PLUGIN) -> list[str]:
        return offered(self.made(serve), NAME)

    def lists(self, *uses: ClaimUse, kubelet: int = 1, running: tuple[Holder, ...] = ()) -> bool:
        """The kubelet lists these uses of claims; ``running`` have devices of plugins only."""
        containers = {holder: False for one in uses for holder in one.holders} | dict.fromkeys(running, True)
        claims = {("team", f"claim-{number}"): one for number, one in enumerate(uses)}
        return self.hear(kubelet=kubelet, containers=containers, claims=claims)

    def prepare(self, device: Device = CARD) -> None:
        wanted = ClaimedDevice("card", "pool", device.id, "", ("card", device.id), NAME)
        self.claim(ClaimHolder("team", "mine", "uid-1"), wanted)


@pytest.mark.parametrize("serve", Serve)
def test_a_device_of_another_driver_is_offered_by_no_resource(serve: Serve) -> None:
    node = Node()
    assert node.offered(serve) == ["card0"]
    node.lists(use())
    [refusal] = node.made(serve).refusals
    assert (refusal.kind, refusal.reason, refusal.held_by) == (RefusalKind.HELD, REASON, (POD,))
    assert not node.offered(serve)


def test_the_plan_is_made_again_when_a_list_names_a_device_and_when_it_is_free() -> None:
    node = Node()
    node.lists(use())
    assert node.replans == 1
    node.lists(use())
    assert node.replans == 1
    node.lists()
    node.lists()
    assert node.replans == 2


@pytest.mark.parametrize("device", [CARD, PART])
def test_a_container_and_a_claim_are_refused_a_device_of_another_driver_and_its_hardware(
    device: Device,
) -> None:
    node = Node(CARD, PART)
    node.lists(use())
    with pytest.raises(DeviceHeld, match=r"nic\.example\.com") as by_plugin:
        node.give(device)
    with pytest.raises(DeviceHeld, match=r"nic\.example\.com") as by_claim:
        node.prepare(device)
    assert by_plugin.value.held_by == by_claim.value.held_by == (POD,)
    assert not node.allocations.of(NAME).tokens()


@pytest.mark.parametrize(
    "listed",
    [
        use("card0"),
        use("CARD0"),
        use("0000-3B-00-0"),
        use("other", "nic.example.com/nic=0000:3b:00.0"),
        use("other", "nic.example.com/nic=all", "nic.example.com/nic=card0"),
    ],
)
def test_a_device_is_named_by_its_id_or_its_address_or_in_a_cdi_name(listed: ClaimUse) -> None:
    node = Node()
    node.lists(listed)
    assert not node.offered()


@pytest.mark.parametrize(
    "listed",
    [
        use("gpu-0"),
        use("card"),
        use("card01"),
        use("my-card0"),
        use("3b-00-0"),
        use("0000-3b-00-1"),
        use(""),
        use("other", "card0/claim=uid-1-0000-3b-00-0"),
        use("other", "card0"),
    ],
)
def test_a_name_that_differs_means_no_device(listed: ClaimUse) -> None:
    node = Node()
    node.lists(listed)
    assert node.replans == 0
    assert node.offered() == ["card0"]
    assert node.allocations.due(node.now) is None


def test_every_device_that_a_name_may_mean_counts() -> None:
    node = Node(Device("a.1"), Device("a-1"), Device("b"))
    node.lists(use("a-1"))
    assert node.offered() == ["b"]


@pytest.mark.parametrize("was_there", [False, True], ids=["new", "back while its pod runs"])
def test_a_device_that_appears_after_the_list_is_held_at_once(was_there: bool) -> None:
    node = Node()
    if was_there:
        node.lists(use())
    node.plug()
    node.made()
    node.lists(use())
    node.plug(CARD)
    assert not node.offered()


def test_devices_of_devhosts_driver_are_left_to_the_claims_that_are_prepared() -> None:
    node = Node()
    node.lists(use(driver=OURS))
    node.prepare()
    assert [str(one.holder) for one in node.allocations.held()] == ["ResourceClaim team/mine"]


def test_a_driver_stays_known_when_it_leaves_the_configuration() -> None:
    node = Node()
    node.driver = ""
    node.made()
    node.lists(use(driver=OURS))
    assert node.offered() == ["card0"]


def test_a_driver_that_turns_out_to_be_devhosts_holds_nothing() -> None:
    node = Node(driver="")
    node.lists(use(driver=OURS))
    assert not node.offered()
    before = node.replans
    node.allocations.own_driver(OURS)
    assert node.replans == before + 1
    assert node.offered() == ["card0"]


def test_without_a_driver_every_driver_is_another_one() -> None:
    node = Node(driver="")
    node.lists(use(driver=OURS))
    assert not node.offered()


def test_one_list_without_the_device_does_not_free_it_but_two_do() -> None:
    node = Node()
    node.lists(use())
    node.lists()
    assert not node.offered()
    assert node.allocations.due(node.now) == node.now + NODE.release_gap
    assert node.lists()
    assert node.offered() == ["card0"]
    node.give(CARD)


def test_a_device_stays_held_by_the_pod_that_remains_of_two_with_one_claim() -> None:
    other = Holder("team", "other", "main")
    node = Node()
    node.lists(ClaimUse((POD, other), use().devices))
    for _ in range(3):
        node.lists(use(holder=other))
    assert [one.holder for one in node.allocations.held()] == [other]


def test_a_new_kubelet_that_has_forgotten_the_claim_of_a_running_container_does_not_free_the_device() -> None:
    node = Node()
    node.lists(use())
    for _ in range(5):
        node.now += NODE.unnamed
        node.lists(kubelet=2, running=(POD,))
    assert not node.offered()
    node.lists(kubelet=2)
    node.lists(kubelet=2)
    assert node.offered() == ["card0"]


def test_lists_are_wanted_while_a_pod_has_a_device_of_another_driver() -> None:
    node = Node()
    node.lists()
    assert node.allocations.due(node.now) is None
    node.lists(use())
    assert node.allocations.due(node.now) == node.now + NODE.list_held


def test_what_other_drivers_gave_is_in_use_and_no_resource() -> None:
    node = Node()
    node.lists(use())
    assert node.allocations.claims_in_use() == {
        "device:card/card0",
        "holder::card/card0",
        f"pci:{ADDRESS}",
    }
    assert node.allocations.resources() == frozenset()
    assert list(node.allocations.in_use()) == []


def test_a_claim_names_the_containers_that_use_it() -> None:
    node = Node()
    side = Holder("team", "job", "side")
    claims = node.allocations.claims
    assert claims.users(ClaimHolder("team", "claim-0", "uid")) == ()
    node.lists(ClaimUse((POD, side), use(driver=OURS).devices))
    assert claims.users(ClaimHolder("team", "claim-0", "uid")) == (POD, side)
    assert claims.users(ClaimHolder("other", "claim-0", "uid")) == ()
    assert claims.users(ClaimHolder("team", "claim-1", "uid")) == ()


def test_the_containers_of_a_claim_of_the_same_name_that_was_deleted_are_not_users() -> None:
    old, new = "11111111-2222-3333-4444-555555555555", "99999999-2222-3333-4444-555555555555"
    node = Node()
    node.lists(use("card0", f"{OURS}/claim={old}-card-0", driver=OURS))
    assert node.allocations.claims.users(ClaimHolder("team", "claim-0", old)) == (POD,)
    assert node.allocations.claims.users(ClaimHolder("team", "claim-0", new)) == ()
