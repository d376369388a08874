"""What the lists that a kubelet receives say, and what holds for them on a machine of any speed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise

from devhost.testing.kubelet import events

from .node import Node
from .waiting import until

Shown = tuple[set[str], set[str]]
"""The devices of a list, and those of them that are well."""


def shown(lists: Sequence[events.ListReceived]) -> list[Shown]:
    """What lists say: who is there, and who of them is well."""
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
    """What the lists say that a change leads to, from there until one that is right and no other.

    Args:
        after: the devices that there are then, all of them well; asked when the change is done.

    Raises:
        TimeoutError: none is right.
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
    """Holds lists to what is true however slow the machine is and however many lists there are.

    Nobody is listed who is neither of before nor of after, nobody who stays is missing, who has come stays,
    who has gone does not come back, and the last list is right.

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
