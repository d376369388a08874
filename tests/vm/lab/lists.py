"""The lists that a kubelet receives, and what must be true for them on a machine of any speed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise

from devhost_testing.kubelet import events

from .node import Node
from .waiting import until

Shown = tuple[set[str], set[str]]
"""The devices of a list, and the healthy ones among them."""


def shown(lists: Sequence[events.ListReceived]) -> list[Shown]:
    """The content of lists: the devices, and the healthy ones among them."""
    return [
        (
            {device.id for device in one.devices},
            {device.id for device in one.devices if device.health == "Healthy"},
        )
        for one in lists
    ]


async def quiet(node: Node, resource: str) -> None:
    """Waits until no further list comes for two seconds. That all have come then is likely, and not sure."""
    count = -1
    while count != len(node.lists(resource)):
        count = len(node.lists(resource))
        await asyncio.sleep(2)


async def changed(
    node: Node, resource: str, after: Callable[[], set[str]], change: Callable[[], object]
) -> list[Shown]:
    """The lists from a change to the first one that is right.

    Args:
        after: returns the devices after the change, all of them healthy; called when the change is done.

    Raises:
        TimeoutError: no list is right.
    """
    await quiet(node, resource)
    since = node.kubelet.events.position
    await asyncio.to_thread(change)

    def lists() -> list[Shown]:
        return shown(node.lists(resource, since))

    def is_right() -> bool:
        return lists()[-1:] == [(after(), after())]

    await until(f"{resource} has what there is", is_right, seen=lambda: f"{lists()}, {node.said()[-4000:]}")
    await quiet(node, resource)
    await until(f"{resource} has it still", is_right, seen=lists)
    return lists()


def check(lists: Sequence[Shown], before: set[str], after: set[str]) -> None:
    """Checks lists for what must be true for any speed of the machine and any number of lists.

    Every listed device existed before or after the change. A device that stays is never missing, one that was
    added stays, one that was removed does not come back, and the last list is right.

    Raises:
        AssertionError: they are not so.
    """
    for ids, well in lists:
        assert well <= ids, lists
        assert before & after <= ids <= before | after, lists
    for (one, _), (other, _) in pairwise(lists):
        assert one & after <= other, f"somebody came and went: {lists}"
        assert other - after <= one, f"somebody who had gone came back: {lists}"
    assert lists, "there was no list"
    assert lists[-1] == (after, after), lists
