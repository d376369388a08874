"""The status page: what ``devhost status`` shows, live in a browser.

``content`` and the modules below it convert a status document to HTML without side effects; ``serving``
makes routes of the HTTP server from it. ``page.css`` and ``page.js`` are embedded in the page, so that it
loads nothing else.
"""

from __future__ import annotations

import os
import random
import socket
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from devhost.runtime.http import Answer, Response, Route, Stream
from devhost.telemetry.status import INTERVAL, REST, Newest

if TYPE_CHECKING:
    from devhost.telemetry.document import StatusDocument, StatusSource

    from .content import Rendering


STALE = 1.0
"""Seconds during which all requests get the same answer, unless there is a change."""
REFRESH = 15.0
"""Seconds after which a stream sends the state even without a change. A page that gets nothing for three
times as long considers the connection lost. This also updates values without notification, such as the last
discovery."""

POLL = (4.0, 6.0)
"""Seconds after which a watcher without a stream polls: a random number between these two, so that watchers
spread out."""

EVENTS = "text/event-stream"

OWN = {"Cross-Origin-Resource-Policy": "same-origin"}
"""Prevents other sites from embedding the answer."""


class StatusPage:
    """The page of one host. ``node`` is the name of the machine on it.

    ``document`` describes the host now; it is called only if a page is open. ``interval`` is the minimum
    number of seconds between two renderings for one page. For ``rest`` see :class:`Newest`.
    """

    def __init__(
        self,
        document: StatusSource,
        *,
        node: str | None = None,
        pods: bool = True,
        interval: float = INTERVAL,
        rest: float = REST,
    ) -> None:
        name = node or node_name()

        def shown(found: StatusDocument | Callable[[], StatusDocument]) -> StatusDocument:
            from devhost.telemetry.document import complete, without_holders

            document = complete(found)
            return document if pods else without_holders(document)

        def rendered(found: StatusDocument | Callable[[], StatusDocument]) -> Rendering:
            from .content import render  # on a thread, and only while a page is open: 1 MB

            return render(shown(found), name, datetime.now(UTC), pods=pods)

        def encoded(found: StatusDocument | Callable[[], StatusDocument]) -> bytes:
            from devhost.telemetry.document import json_line  # on a thread, as above

            return json_line(shown(found))

        self._live = Newest(
            document,
            rendered,
            interval=interval,
            rest=rest,
            stale=STALE,
            refresh=REFRESH,
        )
        self._json = Newest(document, encoded, stale=STALE, rest=rest)

    def changed(self) -> None:
        """The document changed: open pages are updated. This is inexpensive."""
        self._live.changed()
        self._json.changed()

    def routes(self) -> Mapping[str, Route]:
        """The routes for the HTTP server."""
        return {"/": self._page, "/status.json": self._document, "/events": self._events}

    async def _page(self) -> Answer:
        rendering = await self._live.now()
        from .content import headers, whole

        return Response(whole(rendering), "text/html; charset=utf-8", headers=headers())

    async def _document(self) -> Answer:
        return Response(await self._json.now(), "application/json", headers=OWN)

    async def _events(self) -> Answer:
        return Stream(self._parts, self._once, EVENTS)

    async def _parts(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._live.follow()) as renderings:
            async for rendering in renderings:
                yield b"data: %b\n\n" % rendering.part.encode()

    async def _once(self) -> Response:
        """The state for a watcher without a stream, after which a browser's EventSource reconnects."""
        rendering = await self._live.recent(STALE)
        retry = round(1000 * random.uniform(*POLL))
        body = b"event: poll\nretry: %d\ndata: %d\n\ndata: %b\n\n" % (retry, retry, rendering.part.encode())
        return Response(body, EVENTS)


def node_name() -> str:
    """``$NODE_NAME``, which a DaemonSet can set, else the host name (in a pod: that of the pod)."""
    return os.environ.get("NODE_NAME") or socket.gethostname()
