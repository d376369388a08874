"""The hooks before a container and after a release, for devices of claims."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from kit.dra import DRIVER, DraNode

RESOURCE = "example.com/card"
HOOK = """
import json, time
from pathlib import Path
from devhost.backend import Edits, hookimpl

PLACE = Path(__file__).parent
for_backends = ("cards",)

@hookimpl
def devhost_before_container(request):
    if (PLACE / "refuse").exists():
        raise RuntimeError("burn-in failed")
    return Edits(env={"GROUP": f"{request.claim.name}/{len(request.devices)}"})

@hookimpl
def devhost_after_release(devices):
    end = time.monotonic() + 60
    while not (PLACE / "go").exists() and time.monotonic() < end:
        time.sleep(0.01)
    (PLACE / "done").write_text(json.dumps([device.id for device in devices]))
"""


@pytest.fixture
async def node(place: Path) -> AsyncIterator[DraNode]:
    made = DraNode(place)
    drop_ins = place / "hooks"
    drop_ins.mkdir()
    (drop_ins / "hook.py").write_text(HOOK)
    entry = f"{{name: {RESOURCE}, backend: cards, serve: dra}}"
    made.node.configure(f"dra: {{driver: {DRIVER}}}\nbackendPaths: [{drop_ins}]\nresources:\n  - {entry}\n")
    async with made:
        yield made


async def test_a_claim_gets_what_the_hook_adds_and_its_devices_are_prepared_afterwards(
    node: DraNode, place: Path
) -> None:
    async with node.served(published={RESOURCE: {"c0", "c1"}}):
        names = [node.name_of(card) for card in ("c0", "c1")]
        claim, later = node.allocate("one", *names), node.allocate("two", names[0])
        await node.prepared(claim)
        texts = [file.read_text() for file in node.node.root.parent.rglob("*.json") if claim.uid in file.name]
        assert any("GROUP=one/2" in text for text in texts)
        await node.released(claim)
        refused = await node.refusal(later)
        assert "being prepared for the next container" in refused
        (place / "hooks" / "go").touch()
        await node.until(lambda: (place / "hooks" / "done").exists())
        assert sorted(json.loads((place / "hooks" / "done").read_text())) == ["c0", "c1"]

        async def is_prepared() -> bool:
            return not await node.refusal(later)

        async with asyncio.timeout(60):
            while not await is_prepared():  # each waits for the hook for some time
                pass


async def test_an_error_of_the_hook_refuses_the_claim_with_its_text(node: DraNode, place: Path) -> None:
    (place / "hooks" / "refuse").touch()
    (place / "hooks" / "go").touch()
    async with node.served(published={RESOURCE: {"c0", "c1"}}):
        claim = node.allocate("one", node.name_of("c0"))
        assert "burn-in failed" in await node.refusal(claim)
