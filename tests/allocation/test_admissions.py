"""Which pods may still get more: known from the order of Allocates and the pauses between them."""

from __future__ import annotations

import math

from kit.clock import FakeClock

from devhost.allocation.leases import Admissions
from devhost.backend.model import Holder
from devhost.planning.timing import AllocationTiming

VM, OTHER = Holder("default", "vm", "main"), Holder("default", "other", "main")
POD = ("default", "vm")


def allocate(admissions: Admissions) -> int:
    admissions.begin()
    admissions.end()
    return admissions.number


def test_an_admission_is_over_when_nothing_follows_for_a_while() -> None:
    clock = FakeClock(100.0)
    admissions = Admissions(clock, AllocationTiming(admission=2.0))
    number = allocate(admissions)
    assert admissions.ends([(VM, number)])(POD) == 102.0
    assert admissions.is_recent(number)
    clock.now = 101.9
    second = allocate(admissions)  # the kubelet has not named its pod yet
    assert admissions.ends([(VM, number), (None, second)])(POD) == 103.9
    clock.now = 103.9
    third = allocate(admissions)
    assert admissions.ends([(VM, number), (None, third)])(POD) == -math.inf
    assert not admissions.is_recent(number)


def test_an_allocate_for_another_pod_ends_an_admission_at_once() -> None:
    admissions = Admissions(FakeClock(100.0), AllocationTiming(admission=2.0))
    first, second = allocate(admissions), allocate(admissions)
    end = admissions.ends([(VM, first), (OTHER, second)])
    assert end(POD) == -math.inf
    assert end(("default", "other")) == 102.0


def test_an_admission_goes_on_while_an_allocate_takes_long() -> None:
    clock = FakeClock(100.0)
    admissions = Admissions(clock, AllocationTiming(admission=2.0))
    number = allocate(admissions)
    admissions.begin()
    clock.now = 110.0
    assert admissions.ends([(VM, number)])(POD) == 112.0
    allocate(admissions)
    assert admissions.ends([(VM, number)])(POD) == 112.0
    admissions.end()
    assert admissions.ends([(VM, number)])(POD) == 112.0


def test_what_only_a_list_named_is_over() -> None:
    admissions = Admissions(FakeClock(), AllocationTiming())
    assert admissions.ends([(VM, 0)])(POD) == -math.inf
    allocate(admissions)
    assert admissions.ends([(VM, 0)])(POD) == -math.inf
