"""What containers were given, compared with what is there; and the record of it."""

from __future__ import annotations

import pytest

from devhost.allocation import given_record
from devhost.allocation.given import Gift, Given, Node, owned
from devhost.allocation.given_record import GivenRecord, Recorded, Unusable
from devhost.backend import Device
from devhost.backend.claim import node
from devhost.backend.model import Holder
from devhost.planning.claims import Held

TTY = "example.com/serial"
POD = Holder("default", "one", "main")


def device(name: str, *paths: str) -> Device:
    return Device(name, claims=frozenset(map(node, paths)))


def held(*tokens: str) -> list[Held]:
    return [Held(TTY, (token,), "udev", Device(token), True, POD) for token in tokens]


def there(*devices: Device) -> dict[str, dict[str, Device]]:
    return {"udev": {one.id: one for one in devices}}


def reasons(given: Given) -> dict[str, str]:
    return {key[1]: difference.reason for (_, key), difference in given.differences.items()}


def test_a_node_that_the_device_does_not_claim_is_in_no_gift():
    numbers = {"/dev/vfio/17": "c511:0", "/dev/vfio/vfio": "c10:196"}
    assert owned(numbers, "sriov", [device("vf", "/dev/vfio/17")]) == (
        Node("/dev/vfio/17", "c511:0", ("sriov", "vf")),
    )


def test_several_devices_of_one_answer_that_change_places_are_each_a_difference():
    a, b = device("A", "/dev/ttyUSB0"), device("B", "/dev/ttyUSB1")
    given = Given()
    given.gave(TTY, ["A", "B"], owned({"/dev/ttyUSB0": "", "/dev/ttyUSB1": ""}, "udev", [a, b]))
    assert given.compare(held("A", "B"), there(a, b)) == {}
    given.compare(held("A", "B"), there(device("A", "/dev/ttyUSB1"), device("B", "/dev/ttyUSB0")))
    assert set(reasons(given)) == {"A", "B"}


def test_nodes_of_an_answer_of_which_only_the_paths_are_known_count_if_another_device_has_them():
    """A checkpoint also has nodes that belong to no device, and that other backends may claim."""
    paths = ("/dev/ttyUSB0", "/dev/vfio/vfio")
    given = Given(checkpointed={(TTY, "A"): [Gift(tuple(map(Node, paths)), container="main")]})
    other = {"other": {"V": device("V", "/dev/vfio/vfio")}}
    given.compare(held("A"), there(device("A", "/dev/ttyUSB0")) | other)
    assert reasons(given) == {}
    given = Given(checkpointed=given.checkpointed)
    swapped = there(device("A", "/dev/ttyUSB1"), device("B", "/dev/ttyUSB0")) | other
    more = given.compare(held("A"), swapped)
    assert more == {("udev", "A"): {"node:/dev/ttyUSB0"}}
    assert reasons(given)["A"].startswith(
        "a container was given /dev/ttyUSB0 for A, which is /dev/ttyUSB1 now"
    )


def test_an_answer_for_another_container_of_the_pod_does_not_count():
    first, second = (
        Gift((Node(path),), container=name) for name, path in (("init", "/dev/a"), ("main", "/dev/b"))
    )
    given = Given(checkpointed={(TTY, "A"): [second, first]})
    assert given.of_token((TTY, "A"), held("A")[0].holder) == second


def test_a_record_that_disagrees_with_the_checkpoint_is_of_an_earlier_pod():
    old = Gift((Node("/dev/ttyUSB7", "c188:7", ("udev", "A")),))
    now = Gift((Node("/dev/ttyUSB0"),), container="main")
    given = Given(checkpointed={(TTY, "A"): [now]})
    given.recall({(TTY, "A"): old, (TTY, "B"): old}, {})
    assert (
        given.of_token((TTY, "A"), held("A")[0].holder),
        given.of_token((TTY, "B"), held("B")[0].holder),
    ) == (now, old)


def test_a_backend_that_claims_no_nodes_is_asked_what_its_device_has():
    given = Given()
    given.gave(TTY, ["A"], owned({"/dev/zram0": "b252:0"}, "udev", [Device("A")]))
    found = there(Device("A"))
    assert given.must_ask(held("A")[0], found["udev"]["A"])
    given.asked = {("udev", "A"): frozenset({"/dev/zram0"})}
    given.compare(held("A"), found)
    assert reasons(given) == {}
    given.asked = {("udev", "A"): frozenset({"/dev/zram1"})}
    given.compare(held("A"), found)
    assert reasons(given) == {
        "A": "a container was given /dev/zram0 for A, which is /dev/zram1 now: delete the pod"
    }
    assert given.in_use([], [("/dev/zram0", "")]) == "/dev/zram0"
    assert given.in_use([(TTY, "A")], [("/dev/zram0", "")]) == ""


def test_a_node_with_the_number_that_another_container_has_is_refused_under_any_path():
    given = Given()
    given.gave(TTY, ["A"], [Node("/dev/zram0", "b252:0", ("udev", "A"))])
    given.numbers = {"/dev/zram0": "b252:5"}
    given.compare(held("A"), there(device("A", "/dev/zram0")))
    assert given.in_use([], [("/dev/zram9", "b252:0")]) == "/dev/zram9"
    assert given.in_use([], [("/dev/zram0", "b252:5")]) == ""


def test_a_path_at_which_nothing_is_left_is_named():
    given = Given()
    given.gave(TTY, ["A"], [Node("/dev/ttyUSB0", "c188:0", ("udev", "A"))])
    given.numbers = {"/dev/ttyUSB0": None}
    given.compare(held("A"), there(device("A", "/dev/ttyUSB1")))
    assert reasons(given)["A"].endswith("which is /dev/ttyUSB1 now: delete the pod (nothing is there now)")


@pytest.fixture
def boot(tmp_path):
    file = tmp_path / "boot_id"
    file.write_text("boot-1\n")
    return file


def record(tmp_path, boot, kubelet="kubelet") -> GivenRecord:
    return GivenRecord(tmp_path / "state", tmp_path / kubelet, boot)


DIRECT = Gift((Node("/dev/ttyUSB0", "c188:0", ("udev", "A")), Node("/dev/x")))
NAMED = Gift((Node("/dev/ttyUSB1", "c188:1", ("udev", "B")),), frozenset({"devhost.example.com/serial=B"}))


def test_a_record_is_read_back(tmp_path, boot):
    tokens, claims = {(TTY, "A"): DIRECT, (TTY, "B"): NAMED}, {"uid-1": NAMED}
    record(tmp_path, boot).write(tokens, claims)
    assert record(tmp_path, boot).read() == Recorded(tokens, claims)


def test_after_a_boot_neither_numbers_nor_the_meaning_of_names_count(tmp_path, boot):
    record(tmp_path, boot).write({(TTY, "A"): DIRECT, (TTY, "B"): NAMED}, {"uid-1": NAMED})
    boot.write_text("boot-2\n")
    assert record(tmp_path, boot).read() == Recorded(
        {(TTY, "A"): Gift((Node("/dev/ttyUSB0", "", ("udev", "A")), Node("/dev/x")))}, {}
    )


def test_a_record_of_another_kubelet_or_of_a_file_that_others_can_change_is_not_used(tmp_path, boot):
    mine = record(tmp_path, boot)
    mine.write({(TTY, "A"): DIRECT}, {})
    other = record(tmp_path, boot, "other")
    assert other.read() == Recorded()
    mine.file.rename(other.file)
    with pytest.raises(Unusable, match="of another version of devhost, or of another kubelet"):
        other.read()
    other.file.chmod(0o666)
    with pytest.raises(Unusable, match="writable"):
        other.read()


def test_a_record_has_a_limit_that_a_full_node_does_not_reach(tmp_path, boot):
    many = {(TTY, f"0000:3b:00.{n}::{n}"): DIRECT for n in range(100_000)}
    mine = record(tmp_path, boot)
    mine.write(many, {})
    assert len(record(tmp_path, boot).read().tokens) == 100_000
    huge = {(TTY, f"{n:063}"): Gift((Node(f"/dev/{n:0200}"),)) for n in range(40_000)}
    with pytest.raises(Unusable, match="would be larger than 8 MiB"):
        mine.write(huge, {})
    assert len(record(tmp_path, boot).read().tokens) == 100_000
    with mine.file.open("ab") as file:
        file.truncate(given_record.MAX_BYTES + 1)
    with pytest.raises(Unusable, match="is larger than 8 MiB"):
        record(tmp_path, boot).read()
