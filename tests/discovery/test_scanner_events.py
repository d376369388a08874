"""Which events make a backend look."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from devhost.backend import Event
from devhost.discovery.runner import Abilities
from devhost.discovery.scanner import ANYTHING, Scanner
from devhost.telemetry.metrics import Metrics


@pytest.mark.parametrize(
    ("subsystems", "event", "concerned"),
    [
        (("tty", "block"), Event("tty"), True),
        (("tty", "block"), Event("usb"), False),
        (("tty", "block"), ANYTHING, True),
        (("*",), Event("usb"), True),
        ((), Event("usb"), False),
    ],
)
def test_only_events_of_its_subsystems_concern_a_backend(
    subsystems: tuple[str, ...], event: Event, concerned: bool
) -> None:
    source: Any = SimpleNamespace(
        name="toy", backend_class=SimpleNamespace(subsystems=subsystems), abilities=Abilities()
    )
    assert Scanner(cast("Any", source), Metrics(), lambda at: None).concerns(event) is concerned
