"""``devhost ready`` and ``devhost status --exit-code``: one line and an exit code for each state."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from devhost_testing.node import Node
from kit.backend import Plain
from status_document import device, document
from status_values import Json, document_of

from devhost.backend import Device
from devhost.backend.errors import UsageError
from devhost.cli.program import COMMANDS
from devhost.host.shown.status import captured
from devhost.telemetry.tables import unready

NAME = "example.com/serial"


def entry(found: Json, **values: Any) -> None:
    found["entries"][0].update(values)  # type: ignore[typeddict-item]


def resource(found: Json, **values: Any) -> None:
    found["resources"][0].update(values)  # type: ignore[typeddict-item]


def copied(found: Json) -> None:
    found["devhost"]["copy"] = {"file": "/copy", "acceptedAt": "2026-11-20T09:00:00Z"}
    found["devhost"]["lastReload"]["complaints"] = ["devhost.yaml:3:1: unknown key", "another one"]


def offered(found: Json, **values: Any) -> None:
    """The same device through DRA."""
    found["resources"] = []
    one = {"device": "FT1", "name": "ft1", "slice": "s1", "health": "Healthy", "replicas": 1}
    pool: Any = {"resource": NAME, "entry": "resources[0]", "devices": [{**one, **values.pop("one", {})}]}
    found["dra"] = {"driver": "gpu.example.com", "state": "registered", "pools": [pool], **values}


def driver(name: str, state: str = "registered") -> dict[str, str]:
    """One of several drivers."""
    return {"driver": name, "state": state, "reason": "" if state == "registered" else "no socket"}


STATES: dict[str, tuple[Callable[[Json], None], list[str]]] = {
    "all is there": (lambda _: None, []),
    "one of two is unhealthy": (lambda one: resource(one, allocatable=1), []),
    "still looking": (lambda one: entry(one, state="waiting", resources=[]), ["looking for devices"]),
    "no device": (
        lambda one: entry(one, state="none", reason="0 devices; no driver"),
        ["0 devices; no driver"],
    ),
    "changes sides": (
        lambda one: entry(one, state="moving", reason="2 devices are moving"),
        ["2 devices are moving"],
    ),
    "too few": (lambda one: entry(one, reason="7 of 8 devices; no driver"), ["7 of 8 devices; no driver"]),
    "not served": (lambda one: one["resources"].clear(), [f"{NAME} is not served yet"]),
    "lost": (lambda one: resource(one, state="lost", lastError="refused"), [f"{NAME} is lost: refused"]),
    "waits": (lambda one: resource(one, state="waiting"), [f"{NAME} is waiting"]),
    "unread": (lambda one: resource(one, streams=0), [f"the kubelet does not read the list of {NAME}"]),
    "none is healthy": (
        lambda one: resource(one, allocatable=0),
        [f"no device of {NAME} is healthy: node is gone"],
    ),
    "refused": (copied, ["refused, a copy is in use: devhost.yaml:3:1: unknown key"]),
    "offered by DRA": (offered, []),
    "DRA is unknown to the kubelet": (
        lambda one: offered(one, state="waiting", reason="no socket"),
        ["the DRA driver gpu.example.com is not registered: no socket"],
    ),
    "another driver is unknown to the kubelet": (
        lambda one: offered(
            one, state="waiting", drivers=[driver("gpu.example.com"), driver("d.e", "waiting")]
        ),
        [],
    ),
    "its driver is unknown to the kubelet": (
        lambda one: offered(
            one, state="waiting", drivers=[driver("d.e"), driver("gpu.example.com", "waiting")]
        ),
        ["the DRA driver gpu.example.com is not registered: no socket"],
    ),
    "no slice": (lambda one: offered(one, one={"slice": ""}, error="403"), ["FT1 is not published: 403"]),
    "offered by DRA and not healthy": (
        lambda one: offered(one, one={"health": "Unhealthy", "reason": "XID 79"}),
        [f"no device of {NAME} is healthy: XID 79"],
    ),
}


@pytest.mark.parametrize(("change", "reasons"), STATES.values(), ids=STATES)
def test_a_node_is_ready_if_pods_can_request_what_its_file_asks_for(
    change: Callable[[Json], None], reasons: list[str]
) -> None:
    found = document()
    change(found)
    assert [reason for _, reason in unready(document_of(found))] == reasons


def test_an_optional_entry_counts_only_if_it_is_named() -> None:
    found = document()
    entry(found, optional=True, state="absent", reason="0 devices", resources=[])
    assert unready(document_of(found)) == []
    for name in (NAME, "resources[0]"):
        assert unready(document_of(found), [name]) == [(NAME, "0 devices")]


def test_a_template_is_named_by_any_of_its_resources() -> None:
    found = document([device("FT1")])
    entry(found, name="example.com/{model}")
    resource(found, streams=0)
    assert (
        len(unready(document_of(found), [NAME]))
        == len(unready(document_of(found), ["example.com/{model}"]))
        == 1
    )


def test_a_name_that_no_entry_has_is_an_error_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match="no entry is called nvidia") as caught:
        unready(document_of(document()), [NAME, "nvidia.com/gpu"])
    assert NAME in caught.value.hint


class Cards(Plain):
    """As many cards as a file says."""

    name = "cards"

    def discover(self) -> list[Device]:
        return [Device(f"c{number}") for number in range(int((self.context.root / "count").read_text()))]


async def test_expect_decides_on_a_running_node(tmp_path: Path) -> None:
    async with Node(tmp_path, Cards) as node:
        node.root.mkdir(exist_ok=True)
        count = node.root / "count"
        count.write_text("7")
        node.configure("resources: [{name: example.com/card, backend: cards, expect: 8}]")
        async with node.served({"example.com/card": 7}):
            ((name, reason),) = unready(captured(node.host)())
            assert (name, reason.split(";")[0]) == ("example.com/card", "7 of 8 devices")
            count.write_text("8")
            node.look("cards")
            await node.offers({"example.com/card": 8})
            await node.until(lambda: not unready(captured(node.host)()))


def test_a_host_that_does_not_answer_is_unknown_to_a_monitor(toys: Any) -> None:
    """The rest of the way, with a real process, is in tests/cli/test_running.py."""
    assert "ready" in COMMANDS
    absent = f"--status-socket={toys.config.parent / 'absent.sock'}"
    for arguments in (
        ["ready", absent],
        ["ready", absent, "--output", "json"],
        ["status", "--exit-code", absent],
    ):
        asked = toys.call(*arguments)
        assert asked.returncode == 2, asked
        told = asked.stdout + asked.stderr
        assert "no process listens" in told or "absent.sock" in told
    assert json.loads(toys.call("ready", absent, "--output", "json").stdout)["ready"] is None
    refused = toys.call("status", "--exit-code", "--watch")
    assert refused.returncode == 2 and "--watch has no --exit-code" in refused.stderr
