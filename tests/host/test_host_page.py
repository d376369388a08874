"""The status page of a running host shows changes of devices without a reload."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace

from kit.http import get

from devhost.backend import unhealthy
from devhost.host.shown.status import captured
from devhost.runtime.http import HttpServer, Listen
from devhost.telemetry.page import StatusPage

WAIT = 60.0


async def test_an_open_page_receives_changes_of_health_and_the_end(rig, kubelet):
    rig.write("name: example.com/toy, backend: toy")
    page = StatusPage(lambda: captured(rig.host), node="n1")
    server = HttpServer(page.routes())
    async with asyncio.timeout(WAIT), rig.running(changed=page.changed):
        address = await server.start(Listen("127.0.0.1", 0))
        reader, writer = await asyncio.open_connection(address.host, address.port, limit=1 << 24)
        writer.write(b"GET /events HTTP/1.0\r\n\r\n")
        while "example.com/toy: registered, 2 of 2 healthy" not in await _event(reader):
            pass
        devices = rig.scripts["toy"].devices
        rig.change("toy", [replace(devices[0], health=unhealthy("it <b>smokes</b>")), devices[1]])
        while "example.com/toy d0: unhealthy: it &lt;b&gt;smokes&lt;/b&gt;" not in (
            text := await _event(reader)
        ):
            pass
        assert "example.com/toy: registered, 1 of 2 healthy" in text
        _, body = await asyncio.to_thread(get, address, "/status.json")
        problems = [problem for problem in json.loads(body)["problems"] if problem["kind"] == "device"]
        assert [(one["subject"], one["reason"]) for one in problems] == [
            ("example.com/toy d0", "it <b>smokes</b>")
        ]
        await server.stop()
        with suppress(ConnectionResetError):
            assert not await reader.read()
        writer.close()


async def _event(reader: asyncio.StreamReader) -> str:
    return (await reader.readuntil(b"\n\n")).decode()
