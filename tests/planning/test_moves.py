"""Devices that change sides are one group for each resource, and a problem only without progress."""

from __future__ import annotations

from collections.abc import Sequence

from kit.clock import FakeClock

from devhost.backend.model import Holder
from devhost.planning.claims import UNNAMED
from devhost.planning.settings import PLUGIN
from devhost.planning.sides import PATIENCE, Move, Moves, Moving

WAIT = "it is moving from the device plugin to DRA: devhost waits"


def moving(*devices: str, resource: str = "example.com/card") -> list[Moving]:
    return [Moving(("cards", one), resource, PLUGIN, WAIT) for one in devices]


class Scene:
    """The moves of a node whose time a test sets."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.moves = Moves(self.clock.time, lambda: self.clock.now + 10_000)
        self._now: Sequence[Moving] = ()

    def now(self, *moving: Moving) -> None:
        self._now = moving
        self.moves.follow(moving)

    def described(self) -> Sequence[Move]:
        return self.moves.follow(self._now)

    def stuck(self) -> list[str]:
        return [one.stuck for one in self.described() if one.stuck]


def test_many_devices_that_leave_one_resource_are_one_move() -> None:
    scene = Scene()
    scene.now(*moving(*(f"c{n}" for n in range(400))), *moving("x", resource="example.com/other"))
    assert [(one.resource, len(one.devices)) for one in scene.described()] == [
        ("example.com/card", 400),
        ("example.com/other", 1),
    ]


def test_a_move_is_a_problem_after_two_minutes_without_progress() -> None:
    scene = Scene()
    scene.now(*moving("c0", "c1", "c2", "c3", "c4"))
    assert scene.moves.next_change() == PATIENCE == 120
    scene.clock.now += PATIENCE - 1
    assert scene.stuck() == []
    scene.clock.now += 1
    assert scene.stuck() == [
        f"5 devices have not left the device plugin within 120 s: {WAIT} (c0, c1, c2 and 2 more)"
    ]
    assert scene.moves.next_change() is None


def test_a_device_that_has_moved_gives_the_others_of_its_resource_two_more_minutes() -> None:
    scene = Scene()
    other = moving("x", resource="example.com/other")
    scene.now(*moving("c0", "c1"), *other)
    scene.clock.now += PATIENCE - 1
    scene.now(*moving("c1"), *other)
    assert scene.described()[0].since == scene.clock.now + 10_000
    scene.clock.now += PATIENCE - 1
    (stuck,) = scene.stuck()
    assert stuck.endswith("(x)"), "what moves elsewhere is no progress of this resource"
    scene.clock.now += 1
    assert len(scene.stuck()) == 2


def test_a_plan_without_a_change_is_no_progress() -> None:
    scene = Scene()
    for _ in range(4):
        scene.now(*moving("c0"))
        scene.clock.now += PATIENCE / 4
    assert scene.stuck() == [f"1 device has not left the device plugin within 120 s: {WAIT} (c0)"]


def test_a_device_that_joins_a_move_has_its_own_two_minutes() -> None:
    scene = Scene()
    scene.now(*moving("c0"))
    scene.clock.now += PATIENCE - 10
    scene.now(*moving("c0", "c1"))
    scene.clock.now += 10
    assert scene.stuck()[0].startswith("1 device has")
    assert scene.moves.next_change() == PATIENCE - 10
    scene.clock.now += PATIENCE
    assert scene.stuck()[0].startswith("2 devices have")


def test_a_move_that_begins_again_later_is_no_problem_at_once() -> None:
    scene = Scene()
    scene.now(*moving("c0"))
    scene.clock.now += PATIENCE
    scene.now()
    assert scene.described() == ()
    scene.now(*moving("c0"))
    assert scene.stuck() == []


def test_a_move_names_the_holders_of_its_reason_only() -> None:
    scene = Scene()
    one, another, holder = f"{UNNAMED} holds it", "a pod holds it", Holder("default", "train", "main")
    unnamed = [Moving(("cards", name), "example.com/card", PLUGIN, one) for name in ("c0", "c1")]
    held = Moving(("cards", "c2"), "example.com/card", PLUGIN, another, (holder,))
    scene.now(*unnamed, held)
    assert [(one.reason, one.held_by) for one in scene.described()] == [(f"2 of 3: {one}", ())]
    scene.now(held)
    assert [(one.reason, one.held_by) for one in scene.described()] == [(another, (holder,))]
