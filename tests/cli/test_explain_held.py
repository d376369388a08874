"""``devhost explain`` beside a devhost that runs: what containers hold goes to nobody else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from devhost.cli._held import held_here, listing
from devhost.loading import load_or_everything
from devhost.plan import explain
from devhost.survey import survey
from devhost.telemetry.document import StatusDocument

HOLDER = {"namespace": "default", "pod": "meter-0", "container": "main"}


def told(**device: Any) -> StatusDocument:
    """The parts of a status document that tell who holds what."""
    listed = {"id": "one", "allocated": True, "holder": HOLDER, **device}
    unlisted = {"resource": "example.com/gone", "id": "two::3", "holder": None}
    document = {"resources": [{"name": "example.com/old", "devices": [listed]}], "held": [unlisted]}
    return cast("StatusDocument", document)


def test_explain_counts_what_a_running_host_says_is_held(toys: Any) -> None:
    loaded = load_or_everything(toys.config)
    found = asyncio.run(survey(loaded, toys.root, heard=listing(told())))
    reasons = {
        name: explain(found.plan, found.settings, "toy", found.discoveries["toy"].devices[name])[0].reason
        for name in ("one", "two")
    }
    assert reasons["one"] == (
        "default/meter-0/main holds it through example.com/old; it is free when that pod ends"
    )
    assert reasons["two"] == (
        "a container that the kubelet has not named yet holds it through example.com/gone; "
        "it is free when that pod ends"
    )


def test_what_is_not_held_is_explained_as_ever(toys: Any) -> None:
    loaded = load_or_everything(toys.config)
    found = asyncio.run(survey(loaded, toys.root, heard=listing(told(allocated=False))))
    (verdict,) = explain(found.plan, found.settings, "toy", found.discoveries["toy"].devices["one"])
    assert verdict.taken


def test_where_no_devhost_runs_nothing_is_held(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path))
    assert asyncio.run(held_here()) is None
