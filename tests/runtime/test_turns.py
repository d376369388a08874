"""A devhost that waits for its turn states why it is not ready for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from devhost.runtime.turns import Lock, Turns


class Waiting:
    """What would act; nothing of it is called while another devhost acts."""

    def serves(self) -> bool:
        return False

    def others(self) -> bool:
        return False

    def reload(self) -> None:
        """Its turn does not come here."""

    rest = stop = reload

    async def stopped(self) -> None:
        await asyncio.Event().wait()


async def nothing() -> None:
    """There is nothing to free."""


async def test_a_rehearsal_that_fails_unexpectedly_is_a_reason_and_not_the_end(
    tmp_path: Path,
) -> None:
    async def rehearse() -> str:
        raise ZeroDivisionError

    acting = Lock(tmp_path / "turn-node.acting")
    assert acting.take()
    turns = Turns(tmp_path, "node", Waiting(), nothing, rehearse)
    coming = asyncio.create_task(turns.come())
    async with asyncio.timeout(10):
        while turns.reason == "looking for devices":
            await asyncio.sleep(0.01)
    assert turns.reason == "the look at the devices failed, see the log"
    assert not coming.done()
    coming.cancel()
    await asyncio.wait([coming])
    acting.release()
