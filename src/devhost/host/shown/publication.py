"""Shows what has changed, after the lists: log, observers, node labels, status and metrics.

A plan ends with what the kubelet gets. What people and programs see follows in one step, so that it delays no
list: right after, or before a reader gets the status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from devhost.planning.plan import Plan


class Publication:
    """What is to be shown.

    ``explained`` shows why lists change, before they are shown, ``planned`` a new plan, ``changed`` what may
    differ after any change.
    """

    def __init__(
        self, explained: Callable[[], None], planned: Callable[[Plan], None], changed: Callable[[], None]
    ) -> None:
        self._explained = explained
        self._planned = planned
        self._changed = changed
        self._lists: list[Callable[[], None]] = []
        self._plan: Plan | None = None
        self._due: asyncio.Handle | None = None

    def list_changed(self, show: Callable[[], None]) -> None:
        self._lists.append(show)
        self.soon()

    def plan_made(self, plan: Plan) -> None:
        """There is a new plan, and the lists follow it."""
        self._plan = plan
        self.soon()

    def soon(self) -> None:
        """Something has changed, such as who holds what."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._behind)

    def _behind(self) -> None:
        """Waits for the streams that were woken after the first change, which are in the queue by now."""
        self._due = asyncio.get_running_loop().call_soon(self.now)

    def now(self) -> None:
        """Shows everything that has changed. Without effect if nothing has."""
        if self._due is None:
            return
        self.close()
        lists, self._lists = self._lists, []
        self._explained()
        for show in lists:
            show()
        plan, self._plan = self._plan, None
        if plan is not None:
            self._planned(plan)
        self._changed()

    def close(self) -> None:
        """Shows nothing that has changed until now."""
        if self._due is not None:
            self._due.cancel()
        self._due = None
