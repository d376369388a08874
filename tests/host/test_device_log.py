"""The log has a line for each change of a device, and few lines if very many change at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.allocator import Listed
from moments import Steps, served
from moments import now as moment

from devhost.allocation.inventory import Inventory
from devhost.backend.model import HEALTHY, Device, Holder, unhealthy
from devhost.discovery.health import HealthTracker
from devhost.host.shown import device_log
from devhost.host.shown.device_log import REASONS
from devhost.host.shown.now import Changes, changes
from devhost.planning.claims import Reason
from devhost.planning.plan import Offer, units
from devhost.planning.settings import Of, Serve
from devhost.planning.sides import Move
from devhost.planning.timing import ALLOCATION as NODE
from devhost.runtime.log import NAMED

GRACE = NODE.grace
WAIT = "it is moving from the device plugin to DRA: devhost waits"


class Rig(Listed):
    """The list of a resource, and the log lines about its devices since the last read."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__()
        self.caplog = caplog
        self.caplog.set_level(logging.INFO, "devhost")
        self.steps = Steps(device_log.write, moment())

    def logs(self, devices: Sequence[str], replicas: int = 1, of: Of = Of.EACH) -> list[str]:
        """The lines that a list with these devices leads to."""
        self.show(*devices, replicas=replicas, of=of)
        self.follow()
        return self.lines()

    def follow(self) -> None:
        """Logs what has changed since the last call."""
        self.steps.step(resources=served(self.inventory.snapshot), backends={})

    def lines(self) -> list[str]:
        """Level, message and fields without the resource, which is checked for each line."""
        lines = []
        for record in self.caplog.records:
            fields = dict(vars(record)["fields"])
            assert fields.pop("resource") == "example.com/toy"
            words = [f"{key}={value}" for key, value in fields.items()]
            lines.append(" ".join([record.levelname, record.getMessage(), *words]))
        self.caplog.clear()
        return lines


@pytest.fixture
def rig(caplog: pytest.LogCaptureFixture) -> Rig:
    return Rig(caplog)


def test_a_device_that_becomes_unhealthy_is_a_warning_and_its_recovery_a_line(rig: Rig) -> None:
    rig.logs("ab")
    rig.sick["a"] = "port 1 is down"
    assert rig.logs("ab") == ["WARNING device is unhealthy device=a reason=port 1 is down"]
    assert rig.logs("ab") == []
    rig.sick.clear()
    assert rig.logs("ab") == ["INFO device is healthy again device=a"]
    assert rig.logs("ab") == []


def test_the_devices_of_the_first_list_are_not_logged_one_by_one(rig: Rig) -> None:
    assert rig.logs("abc") == []


def test_a_device_that_is_unhealthy_from_the_start_is_logged_with_its_reason(rig: Rig) -> None:
    rig.sick["a"] = "port 1 is down"
    assert rig.logs("abc") == ["WARNING device is unhealthy device=a reason=port 1 is down"]
    rig.sick.clear()
    assert rig.logs("abc") == ["INFO device is healthy again device=a"]


def test_devices_of_a_list_that_was_empty_at_first_appear(rig: Rig) -> None:
    assert rig.logs("") == []
    assert rig.logs("a") == ["INFO device appeared device=a"]


def test_a_new_reason_for_an_unhealthy_device_is_logged(rig: Rig) -> None:
    rig.logs("a")
    rig.sick["a"] = "hot"
    rig.logs("a")
    rig.sick["a"] = "lost"
    assert rig.logs("a") == ["WARNING device is unhealthy for another reason device=a reason=lost"]
    assert rig.logs("a") == []
    rig.sick.clear()
    assert rig.logs("a") == ["INFO device is healthy again device=a"]


def test_alternating_reasons_are_logged_once_each_until_the_device_is_healthy(rig: Rig) -> None:
    rig.logs("a")
    for _ in range(2):
        rig.sick["a"] = "hot"
        assert rig.logs("a") == ["WARNING device is unhealthy device=a reason=hot"]
        rig.sick["a"] = "lost"
        assert rig.logs("a") == ["WARNING device is unhealthy for another reason device=a reason=lost"]
        for reason in ("hot", "lost"):
            rig.sick["a"] = reason
            assert rig.logs("a") == []
        rig.sick.clear()
        rig.logs("a")


def test_a_reason_with_another_number_each_time_does_not_fill_the_log(rig: Rig) -> None:
    rig.logs("a")
    lines = []
    for degrees in range(100):
        rig.sick["a"] = f"it has {degrees} °C"
        lines += rig.logs("a")
    assert len(lines) == REASONS


def test_a_device_that_comes_back_unhealthy_is_logged_again(rig: Rig) -> None:
    rig.logs("ab")
    rig.sick["a"] = "hot"
    rig.logs("ab")
    rig.sick["a"] = "lost"
    rig.logs("ab")
    rig.logs("b")
    assert rig.logs("ab") == [
        "INFO device appeared device=a",
        "WARNING device is unhealthy device=a reason=lost",
    ]
    rig.sick["a"] = "hot"
    assert rig.logs("ab") == ["WARNING device is unhealthy for another reason device=a reason=hot"]


def test_a_device_that_vanishes_is_logged_once_and_at_once(rig: Rig) -> None:
    rig.logs("ab")
    assert rig.logs("a") == ["INFO device left device=b reason=the device is gone"]
    assert rig.logs("a") == []
    rig.now += GRACE
    assert rig.logs("a") == []
    assert rig.logs("ab") == ["INFO device appeared device=b"]


def test_a_device_that_returns_while_still_listed_is_logged_as_appeared(rig: Rig) -> None:
    rig.logs("ab")
    rig.logs("a")
    assert rig.logs("ab") == ["INFO device appeared device=b"]


def test_a_device_that_appears_unhealthy_is_logged_with_its_reason(rig: Rig) -> None:
    rig.logs("a")
    rig.sick["b"] = "port 1 is down"
    assert rig.logs("ab") == [
        "INFO device appeared device=b",
        "WARNING device is unhealthy device=b reason=port 1 is down",
    ]


@pytest.mark.parametrize("of", Of)
def test_a_device_shared_a_hundred_times_is_one_line_for_each_change(rig: Rig, of: Of) -> None:
    rig.logs("ab", 100, of)
    rig.sick["a"] = "hot"
    assert rig.logs("ab", 100, of) == ["WARNING device is unhealthy device=a reason=hot"]
    rig.sick.clear()
    assert rig.logs("ab", 100, of) == ["INFO device is healthy again device=a"]
    assert rig.logs("b", 100, of) == ["INFO device left device=a reason=the device is gone"]
    assert rig.logs("", 100, of) == ["INFO device left device=b reason=the device is gone"]
    assert rig.logs("b", 100, of) == ["INFO device appeared device=b"]


def test_another_way_of_sharing_is_no_change_of_devices(rig: Rig) -> None:
    rig.logs("ab")
    for replicas, of in ((100, Of.EACH), (50, Of.EACH), (3, Of.ALL), (1, Of.EACH), (100, Of.EACH)):
        assert rig.logs("ab", replicas, of) == []
    rig.sick["a"] = "hot"
    assert rig.logs("ab", 50) == ["WARNING device is unhealthy device=a reason=hot"]


@pytest.mark.parametrize("of", Of)
def test_ten_thousand_changes_at_once_are_a_few_lines_and_a_count(rig: Rig, of: Of) -> None:
    many = [f"d{n}" for n in range(10_000)]
    rig.logs(many, of=of)
    rig.sick = dict.fromkeys(many, "backend toy does not answer")
    lines = rig.logs(many, of=of)
    assert lines[0] == "WARNING device is unhealthy device=d0 reason=backend toy does not answer"
    assert lines[NAMED:] == ["WARNING more devices are unhealthy devices=9980"]
    rig.sick = {}
    assert rig.logs(many, of=of)[NAMED:] == ["INFO more devices are healthy again devices=9980"]
    assert rig.logs([], of=of)[NAMED:] == ["INFO more devices left devices=9980"]
    assert rig.logs(many, of=of)[NAMED:] == ["INFO more devices appeared devices=9980"]


def test_the_largest_number_of_logged_changes_has_no_count(rig: Rig) -> None:
    many = [f"d{n}" for n in range(NAMED)]
    rig.logs([])
    assert len(rig.logs(many)) == NAMED


def test_changes_are_logged_in_the_order_of_the_list(rig: Rig) -> None:
    names = [f"d{number:02}" for number in range(NAMED)]
    rig.logs(names)
    rig.sick = dict.fromkeys(reversed(names), "hot")
    assert rig.logs(names) == [f"WARNING device is unhealthy device={name} reason=hot" for name in names]


def test_a_flapping_device_does_not_fill_the_log(rig: Rig) -> None:
    tracker = HealthTracker()
    written = []
    for second in range(600):
        rig.now += 1.0
        device = Device("a", health=unhealthy("port 1 is down") if second % 2 else HEALTHY)
        rig.inventory.update(
            units(Of.EACH, [Offer(device)]), lambda device: tracker.of(device, rig.now), Reason
        )
        rig.follow()
        written += rig.lines()
    assert 0 < len(written) <= 2 * 3 + REASONS


def test_a_move_that_does_not_get_on_is_logged_once_and_when_it_does_again(rig: Rig) -> None:
    fine = Move("example.com/toy", Serve.PLUGIN, ("a",), WAIT, 1.0, "")
    stuck = Move(*fine[:5], "1 device has not left", (Holder("default", "train", "main"),))

    def show(*moves: Move) -> list[str]:
        rig.steps.step(moves=moves)
        return rig.lines()

    warning = "WARNING devices do not change sides reason=1 device has not left holder=default/train/main"
    assert show(fine) == []
    assert show(stuck) == [warning]
    assert show(Move(*fine[:5], "2 devices have not left")) == []
    assert show(fine) == ["INFO devices change sides again"]
    assert show(stuck) == [warning]
    assert show() == ["INFO devices change sides again"]
    assert show() == []


State = tuple[frozenset[str], frozenset[str], int, Of]
states = st.tuples(
    st.frozensets(st.sampled_from("abcd")), st.frozensets(st.sampled_from("abcd")), st.sampled_from((1, 2)),
    st.sampled_from(Of),
)  # fmt: skip


@settings(deadline=None, derandomize=True)
@given(st.lists(st.tuples(states, st.sampled_from((0.0, GRACE))), min_size=1))
def test_the_logged_changes_add_up_to_the_list(history: list[tuple[State, float]]) -> None:
    """The first list and the logged changes give every later list."""
    now = 100.0
    known: dict[str, bool] = {}

    def follow(changes: Changes) -> None:
        for device in changes.left:
            assert known.pop(device) is not None
        for device in changes.appeared:
            assert device not in known
            known[device] = True
        for device in changes.unhealthy:
            assert known[device]
            known[device] = False
        for device in changes.other_reason:
            assert not known[device]
        for device in changes.healthy_again:
            assert not known[device]
            known[device] = True

    inventory = Inventory(lambda: now, lambda: now)
    before = moment()
    for number, ((present, failing, replicas, of), wait) in enumerate(history):
        now += wait
        offers = [Offer(Device(device), replicas) for device in sorted(present)]
        inventory.update(
            units(of, offers),
            lambda device, failing=failing: unhealthy("hot") if device.id in failing else HEALTHY,  # type: ignore[misc]
            Reason,
        )
        shown, before = before, moment(resources=served(inventory.snapshot))
        for one in changes(shown, before):
            follow(one)
        right = {device: device not in failing for device in present}
        if not number:
            known.update(right)
        assert known == right
