"""``devhost run``: a host with its status socket and, if asked for, its metrics and probes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import EnvironmentFailure, UsageError
from .host import Host, on_signals
from .kubelet.api import PLUGIN_DIRECTORY
from .kubelet.ownsockets import OwnSockets
from .loading import DEFAULT, load
from .pace import Backoff
from .report import holders, status
from .telemetry.http import HttpServer, Listen, page, parse_listen, probe
from .telemetry.log import get
from .telemetry.status import StatusServer
from .watchdog import Watchdog

if TYPE_CHECKING:
    from .telemetry.prometheus import Held, PrometheusMetrics

log = get(__name__)

SWITCH = 0.001
"""Seconds a thread may keep the interpreter's lock while another wants it.

A backend that computes in Python is on a thread of its own and yet shares that lock: each hop of a request
to or from the event loop may wait so long. With Python's default of 0.005 an Allocate beside a thread that
never rests takes about 12 ms, with this less than half of it (``docs/performance.md``)."""


@dataclass(frozen=True, slots=True)
class Options:
    """What ``devhost run`` was asked for; ``listen`` is empty for no HTTP.

    ``pod_metrics`` is whether metrics may name pods.
    """

    config: Path = DEFAULT
    kubelet_dir: Path = Path(PLUGIN_DIRECTORY)
    root: Path = Path("/")
    listen: str = ""
    status_socket: Path | None = None
    pod_resources: Path | None = None
    pod_metrics: bool = False


async def serve(options: Options) -> None:
    """Runs until SIGTERM or SIGINT.

    Raises:
        ConfigError: the configuration is wrong.
        UsageError: ``listen`` cannot be read, or there is none for the metrics that are asked for.
        EnvironmentFailure: the kubelet's directory or the address to listen on cannot be used.
    """
    sys.setswitchinterval(SWITCH)
    listen = parse_listen(options.listen) if options.listen else None
    if options.pod_metrics and listen is None:
        raise UsageError("--pod-metrics has no metrics to add to", "add --listen HOST:PORT")
    loaded = load(options.config)
    metrics = None
    if listen is not None:
        from .telemetry.prometheus import PrometheusMetrics  # 3 MB, only where somebody reads them

        metrics = PrometheusMetrics()
    host = Host(
        options.config,
        loaded,
        lambda: load(options.config),
        options.kubelet_dir,
        options.root,
        metrics,
        lambda: status_server.changed(),
        options.pod_resources,
    )
    if metrics is not None and options.pod_metrics:
        metrics.name_holders(lambda: _held(host))
    status_server = StatusServer(
        lambda: status(host), kubelet_dir=options.kubelet_dir, socket=options.status_socket
    )
    on_signals(host)
    async with AsyncExitStack() as stack:
        if listen is not None and metrics is not None:
            http = _http(listen, metrics, host)
            stack.push_async_callback(http.stop)
            log.info("listening", address=str(await http.start()))
        showing = asyncio.create_task(_show(status_server))
        stack.push_async_callback(status_server.stop)
        stack.callback(showing.cancel)
        stack.enter_context(Watchdog())
        await host.run()


def _held(host: Host) -> Iterator[Held]:
    for resource, device, holder in holders(host):
        yield resource, device, (holder.namespace, holder.pod, holder.container) if holder else None


def _http(listen: Listen, metrics: PrometheusMetrics, host: Host) -> HttpServer:
    from .telemetry.prometheus import CONTENT_TYPE

    routes = {
        "/metrics": page(metrics.render, CONTENT_TYPE),
        "/healthz": probe(OwnSockets(host.serving).answer),
        "/readyz": probe(host.ready),
    }
    return HttpServer(listen, routes)


async def _show(server: StatusServer) -> None:
    """Offers the status. While another devhost serves the same directory (a rolling update) it waits."""
    backoff = Backoff(1.0, 10.0)
    said = ""
    while True:
        try:
            await server.start()
        except EnvironmentFailure as error:
            if str(error) != said:
                log.warning("no status socket for now", reason=str(error))
                said = str(error)
            await asyncio.sleep(backoff.delay())
        else:
            return
