"""``devhost explain`` beside a devhost that runs: what containers hold goes to nobody else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from devhost.cli._held import held_here, listing
from devhost.cli.explain import command
from devhost.errors import DevhostError
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


def test_where_no_devhost_runs_there_is_nobody_to_ask(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path))
    with pytest.raises(DevhostError):
        asyncio.run(held_here())


@pytest.mark.parametrize(
    ("root", "why"),
    [("tree", "with --root nobody is asked"), ("/", "no devhost is running here")],
)
def test_explain_says_where_what_containers_hold_does_not_count(
    toys: Any, tmp_path: Path, monkeypatch: Any, root: str, why: str
) -> None:
    monkeypatch.setenv("DEVHOST_RUNTIME_DIR", str(tmp_path))
    backend = tmp_path / "backends" / "toy.py"
    elsewhere = f"__import__('pathlib').Path({str(toys.root)!r})"
    backend.write_text(backend.read_text().replace("self.context.root", elsewhere))
    arguments = ["one", "--config", str(toys.config), "--root", str(toys.root) if root == "tree" else root]
    said = CliRunner().invoke(command, arguments)
    assert said.stdout.splitlines()[-1] == f"What containers hold is not counted: {why}."
    said = CliRunner().invoke(command, [*arguments, "--output", "json"])
    assert json.loads(said.stdout)[0]["id"] == "one"
    assert said.stderr == f"What containers hold is not counted: {why}.\n"
