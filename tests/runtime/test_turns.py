"""When the turn of a devhost comes, and why it is not ready for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kit.waiting import background, until

from devhost.runtime.turns import Lock, Turns


class Waiting:
    """What would act. Others serve the same kubelet."""

    def serves(self) -> bool:
        return False

    def others(self) -> bool:
        return True

    def reload(self) -> None:
        """Has no configuration, and nothing to end."""

    rest = stop = reload

    async def stopped(self) -> None:
        await asyncio.Event().wait()


async def nothing() -> None:
    """There is nothing to free."""


async def ready() -> str:
    return ""


async def test_there_is_no_next_one_while_the_one_before_leaves(tmp_path: Path) -> None:
    """It ends when it finds that no process waits: one that began to wait now would hold it up."""
    acting, leaving = (Lock(tmp_path / f"turn-node.{one}") for one in ("acting", "leaving"))
    assert acting.take()
    assert leaving.take()
    turns = Turns(tmp_path, "node", Waiting(), nothing, ready)
    async with background(turns.come()):
        await until(lambda: not turns.reason)
        waiting = Lock(tmp_path / "turn-node.waiting")
        assert waiting.free()
        leaving.release()
        await until(lambda: not waiting.free())
    acting.release()


async def test_the_one_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    """It serves the kubelet until the next one does."""
    acting, leaving = (Lock(tmp_path / f"turn-node.{one}") for one in ("acting", "leaving"))
    assert acting.take()
    turns = Turns(tmp_path, "node", Waiting(), nothing, ready)
    coming = asyncio.create_task(turns.come())
    await until(lambda: not turns.reason)
    assert leaving.take()
    acting.release()
    assert await asyncio.wait_for(coming, 60)
    leaving.release()


async def test_a_rehearsal_that_fails_unexpectedly_is_a_reason_and_not_the_end(
    tmp_path: Path,
) -> None:
    async def rehearse() -> str:
        raise ZeroDivisionError

    acting = Lock(tmp_path / "turn-node.acting")
    assert acting.take()
    turns = Turns(tmp_path, "node", Waiting(), nothing, rehearse)
    async with background(turns.come()) as coming:
        await until(lambda: turns.reason != "looking for devices")
        assert turns.reason == "the look at the devices failed, see the log"
        assert not coming.done()
    acting.release()
