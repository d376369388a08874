"""``devhost run``: a host with its status socket and, if asked for, its metrics and probes."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from socket import gethostname
from typing import TYPE_CHECKING, Any

from devhost.backend.errors import ConfigError, Diagnostic, EnvironmentFailure, UsageError, exhausted
from devhost.backend.frozen import frozen
from devhost.backend.incident import Recurring
from devhost.config.last_good import LastGood
from devhost.config.loader import DEFAULT, Loaded, load, load_or_copy
from devhost.config.root_directory import below, state_directory, tree_of
from devhost.kubelet.server import CONNECTIONS
from devhost.planning.naming import is_subdomain
from devhost.planning.settings import DraOptions
from devhost.runtime import descriptors, rundir
from devhost.runtime.http import HttpServer, Limits, Listen, Route, page, parse_listen, probe
from devhost.runtime.log import duration, get
from devhost.runtime.sockets import too_long
from devhost.runtime.systemd import SystemdNotifier
from devhost.runtime.watchdog import Watchdog
from devhost.telemetry.exposition import CONTENT_TYPE
from devhost.telemetry.metrics import Metrics, Used
from devhost.telemetry.status import LIMITS, Command, StatusServer

from . import startup_signals
from .dra_side import access, front_end_class
from .host import KUBELET_DIRECTORY, Host
from .shown.problems import Look, rehearsed, status_line

if TYPE_CHECKING:
    from devhost.discovery.usage import UsageReader
    from devhost.dra.node_condition import NodeCondition
    from devhost.runtime.turns import Turns
    from devhost.telemetry.document import StatusDocument
    from devhost.telemetry.page import StatusPage

    from .shown.now import Fault

log = get(__name__)

SWITCH = 0.001
"""Seconds a thread may keep the interpreter's lock while another wants it.

A backend that computes in Python has its own thread but shares that lock: each hop of a request to or from
the event loop may wait so long. With Python's default of 0.005, an Allocate beside a thread that never rests
takes about 12 ms, with this less than half of that (``docs/performance.md``)."""


@frozen
class Options:
    """The options of ``devhost run``.

    ``listen`` is the HTTP address; empty for no HTTP. ``pod_metrics`` is whether metrics name pods,
    ``use_metrics`` whether they show how much of the devices is in use, ``show_pods`` whether the status page
    and ``/status.json`` name pods; ``None``, not chosen, means no. ``state_dir`` is for a copy of the last
    accepted configuration, from which ``strict_config`` never starts. ``dra`` is what Dynamic Resource
    Allocation needs. ``patience`` is how long a file that leaves entries without devices fails readiness;
    empty for never. ``node_condition`` is whether to keep the condition of the node, ``startup_taints`` the
    taints to remove with it, as on the command line. ``take_turns`` looks at the devices once; with it, this
    devhost waits while another one acts, and serves until the next one does.
    """

    config: Path = DEFAULT
    kubelet_dir: Path = KUBELET_DIRECTORY
    root: Path = Path("/")
    listen: str = ""
    status_socket: Path | None = None
    pod_resources: Path | None = None
    pod_metrics: bool = False
    use_metrics: bool = False
    show_pods: bool | None = None
    state_dir: Path | None = None
    strict_config: bool = False
    dra: DraOptions | None = None
    patience: str = ""
    node_condition: bool = False
    startup_taints: str = ""
    take_turns: Callable[[Loaded, Path], Awaitable[Look]] | None = None


def dra_options(
    kubelet_dir: Path,
    plugins_registry: Path | None = None,
    plugins_dir: Path | None = None,
    node: str = "",
    kubeconfig: Path | None = None,
    tag: str = "",
) -> DraOptions:
    """The options of Dynamic Resource Allocation, with their defaults; see :class:`.DraOptions`.

    The directories of plugins are by default beside ``kubelet_dir``, the kubelet's device plugin directory.
    ``node`` is the name of the Node object; by default ``$NODE_NAME``, else the host's name, which kubelets
    use in lower case. ``kubeconfig`` has the access to the API server; by default the pod's service account.
    """
    beside = kubelet_dir.absolute().parent
    return DraOptions(
        (plugins_registry or beside / "plugins_registry").absolute(),
        (plugins_dir or beside / "plugins").absolute(),
        node or os.environ.get("NODE_NAME") or gethostname().strip().lower(),
        kubeconfig,
        tag,
    )


TURN = 5.0
"""Seconds for which the address to listen on may still be in use when the turn has come."""

STEADY = 5.0
"""Seconds after which what exists is exempt from garbage collection: most of it stays to the end, and to look
at all of it takes as long as ten Allocates if there are 200 resources."""


def _in_tree(loaded: Loaded, tree: Path | None) -> Loaded:
    """The same configuration; the directories to write into are in the tree, if there is one."""
    if tree is None:
        return loaded
    settings = loaded.settings
    return replace(
        loaded,
        settings=replace(
            settings,
            cdi_directory=below(tree, settings.cdi_directory),
            label_directory=below(tree, settings.label_directory),
            device_info_directory=settings.device_info_directory
            and below(tree, settings.device_info_directory),
        ),
    )


async def serve(options: Options) -> None:
    """Runs until SIGTERM or SIGINT.

    Raises ``ConfigError`` if the configuration is invalid, and there is no copy of an accepted one to start
    from; ``UsageError`` if ``listen`` is invalid or missing, or options contradict each other; and
    ``EnvironmentFailure`` if the kubelet's directory or the address to listen on cannot be used, or the limit
    of open files is too low.
    """
    notify = SystemdNotifier()
    sys.setswitchinterval(SWITCH)
    listen = parse_listen(options.listen) if options.listen else None
    _check_pods(options)
    patience = _seconds(options.patience) if options.patience else None
    tree = tree_of(options.root)
    directory = options.state_dir or state_directory(options.root)
    if directory is None:
        reason = "this user has no home directory (name a directory with --state-dir)"
        log.warning("the configuration is not copied", file=str(options.config), reason=reason)
    last_good = LastGood(options.config, directory)
    loaded = load(options.config) if options.strict_config else load_or_copy(options.config, last_good)
    loaded = check_dra(_in_tree(loaded, tree), options)
    resources = len(loaded.settings.resources)
    always = descriptors.SERVING + len(loaded.settings.drivers[1:]) * descriptors.DRIVER
    connections = resources * CONNECTIONS + LIMITS.open + (Limits().open if listen is not None else 0)
    least = always + resources * descriptors.RESOURCE
    descriptors.provide(least, least + connections)
    asyncio.get_running_loop().set_exception_handler(_loop_failed())
    metrics, status_page = Metrics(), None
    if listen is not None:
        from devhost.telemetry.page import StatusPage

        status_page = StatusPage(lambda: _captured(host), pods=bool(options.show_pods))

    def read() -> Loaded:
        return check_dra(_in_tree(load(options.config), tree), options)

    async def rehearse() -> str:
        assert options.take_turns is not None
        return await rehearsed(read, options.take_turns, options.root, host.rollout)

    async def alone() -> None:
        assert turns is not None
        await turns.alone()

    def changed() -> None:
        status_server.changed()
        notify.changed()
        if status_page is not None:
            status_page.changed()
        if host.node_condition is not None:
            host.node_condition.wake()

    host = Host(
        options.config,
        loaded,
        read,
        options.kubelet_dir,
        options.root,
        metrics,
        changed,
        options.pod_resources,
        notify.reloading,
        last_good,
        directory,
        dra=options.dra,
        released=_socket(options).with_suffix(".released"),
        patience=patience,
        alone=alone if options.take_turns is not None else None,
        pod_metrics=options.pod_metrics,
    )
    turns = (
        _turns(host, options, directory, lambda: http, rehearse) if options.take_turns is not None else None
    )
    probes = _probes(host, turns)
    http = _http(metrics, status_page, probes) if status_page is not None else None
    host.node_condition = _node_condition(host, options, directory, changed)
    usage = _usage_reader(host) if options.use_metrics else None
    if usage is not None:
        metrics.name_usage(_usage(host, usage))
    status_server = StatusServer(
        lambda: _captured(host),
        kubelet_dir=options.kubelet_dir,
        socket=options.status_socket,
        commands=_commands(host),
        probes=probes,
    )
    status_server.failures.changed = changed

    def outside() -> Iterator[Fault]:
        if status_server.failures.failing:
            yield "task", "status socket", status_server.failures.failing
        for backend, failing in usage.failing() if usage is not None else ():
            yield "backend", backend, failing

    host.outside = outside
    on_signals(host, turns.leave if turns is not None else None)
    async with AsyncExitStack() as stack:
        if http is not None and listen is not None:
            stack.push_async_callback(http.stop)
            # the one before may have the address, and frees it when the turn passes
            with suppress(EnvironmentFailure) if turns is not None else nullcontext():
                await _listen(http, listen)
        showing = asyncio.create_task(status_server.run())
        stack.push_async_callback(status_server.stop)
        stack.callback(showing.cancel)
        stack.enter_context(Watchdog())
        telling = notify.run(lambda: host.planned, lambda: status_line(host.now()), host.stopped)
        stack.callback(asyncio.create_task(telling).cancel)
        stack.callback(asyncio.get_running_loop().call_later(STEADY, gc.freeze).cancel)
        if turns is not None:
            if not await turns.come():
                return
            if http is not None and listen is not None:
                await _listen(http, listen, TURN)
        await host.run()


async def _listen(http: HttpServer, at: Listen, within: float = 0.0) -> None:
    """Listens; ``within`` are the seconds for which the address may still be in use."""
    until = asyncio.get_running_loop().time() + within
    while not http.listens:
        try:
            log.info("listening", address=str(await http.start(at)))
        except EnvironmentFailure:
            if asyncio.get_running_loop().time() >= until:
                raise
            await asyncio.sleep(0.1)


def _turns(
    host: Host,
    options: Options,
    directory: Path | None,
    http: Callable[[], HttpServer | None],
    rehearse: Callable[[], Awaitable[str]],
) -> Turns:
    """The turn of this devhost; only if it takes turns, their code is imported."""
    from devhost.runtime.turns import Turns

    if directory is None:
        raise UsageError("--take-turns has no directory to do so", "name one with --state-dir")

    async def quiet() -> None:
        if (server := http()) is not None:
            await server.stop()

    return Turns(
        directory, rundir.socket_name(options.kubelet_dir).removesuffix(".sock"), host, quiet, rehearse
    )


def _node_condition(
    host: Host, options: Options, directory: Path | None, changed: Callable[[], None]
) -> NodeCondition | None:
    """What keeps the condition of the node, if it is wanted; only then its code is imported."""
    if not options.node_condition:
        if options.startup_taints:
            raise UsageError("--startup-taints has no condition to wait for", "add --node-condition")
        return None
    assert options.dra is not None
    from devhost.dra.node_condition import node_condition

    def capture() -> Callable[[], StatusDocument] | None:
        return _captured(host) if host.planned else None

    return node_condition(options.dra, options.startup_taints, directory, capture, changed)


def _socket(options: Options) -> Path:
    return options.status_socket or rundir.runtime_dir() / rundir.socket_name(options.kubelet_dir)


def _commands(host: Host) -> Mapping[str, Command]:
    """What a client of the status socket may request."""

    async def release(parameters: Mapping[str, str]) -> Mapping[str, object]:
        try:
            seconds = float(parameters.get("seconds", ""))
        except ValueError:
            raise UsageError("the request has no number of seconds") from None
        return {"until": await host.backends.release(_backend(parameters), seconds)}

    async def resume(parameters: Mapping[str, str]) -> Mapping[str, object]:
        return {"resumed": await host.backends.resume(_backend(parameters))}

    async def accept(parameters: Mapping[str, str]) -> Mapping[str, object]:
        if host.rollout is None:
            raise UsageError("this devhost runs without --patience, so it waits for nothing")
        return {"accepted": list(host.rollout.accept())}

    return {"release": release, "resume": resume, "accept": accept}


def _seconds(patience: str) -> float:
    if (seconds := duration(patience)) is None:
        raise UsageError(f"--patience {patience} is not a duration", "write 90s, 10m or 1h")
    return seconds


def _backend(parameters: Mapping[str, str]) -> str:
    if not (name := parameters.get("backend")):
        raise UsageError("the request names no backend")
    return name


def on_signals(host: Host, leave: Callable[[], None] | None = None) -> None:
    """SIGTERM and SIGINT stop the host, SIGHUP makes it read its configuration again.

    This includes a SIGHUP that came while the process started (:mod:`.startup_signals`). ``leave`` stops the
    host in another way.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, host.reload)
    if startup_signals.reload_wanted():
        host.reload()

    def stop(number: int) -> None:
        (leave or host.stop)()
        loop.remove_signal_handler(number)  # a second one ends the process at once

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)


def _loop_failed() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Handles errors of the event loop that reach no task, as while it accepts connections."""
    recurring = Recurring(60.0)

    def failed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        lack = exhausted(error) if error else None
        if lack is None:
            loop.default_exception_handler(context)
        else:
            recurring.report(
                lambda more: log.error("connections cannot be accepted", reason=str(lack), more=more)
            )

    return failed


def _captured(host: Host) -> Callable[[], StatusDocument]:
    from .shown.status import captured  # 0.2 MB, only when the status is read

    return captured(host)


def _usage_reader(host: Host) -> UsageReader:
    """Reads how much of the devices is in use; only if it is wanted, its code is imported."""
    from devhost.discovery.usage import UsageReader

    return UsageReader(lambda: host.backends.scanners)


def _usage(host: Host, reader: UsageReader) -> Callable[[], Awaitable[Iterable[Used]]]:
    """Reads how much of the devices in the plan is in use."""

    async def read() -> list[Used]:
        found = await reader.read()
        return [
            (name, offer.device.id, usage)
            for name, resource in host.replanner.plan.resources.items()
            for offer in resource.offers
            if (usage := found.get(resource.entry.backend, {}).get(offer.device.id)) is not None
        ]

    return read


def _flaw(driver: str, dra: DraOptions) -> tuple[str, str]:
    """Why a driver cannot be served with these options, and how to fix it; empty if it can."""
    for path, option in (
        (dra.registration_socket(driver), "--plugins-registry"),
        (dra.service_socket(driver), "--plugins-dir"),
    ):
        if wrong := too_long(path):
            return wrong, f"choose a shorter driver name or {option}"
    if not is_subdomain(dra.node):
        return (
            f"{dra.node[:80]!r} is not the name of a node in Kubernetes",
            "give it with --node-name NAME or in NODE_NAME",
        )
    return "", ""


def check_dra(loaded: Loaded, options: Options) -> Loaded:
    """The same configuration, if its DRA drivers can be served with the options; else ``ConfigError``."""
    settings, dra = loaded.settings, options.dra
    if not settings.dra_driver or dra is None:
        return loaded
    paths = {entry.driver: f"resources[{entry.index}].dra.driver" for entry in settings.resources}
    path, message, hint = "", "", ""
    for driver in dict.fromkeys((settings.dra_driver, *settings.drivers)):
        message, hint = _flaw(driver, dra)
        path = "dra.driver" if driver == settings.dra_driver else paths[driver]
        if message:
            break
    if not message and settings.drivers:
        front_end_class()  # in this thread, which may block
        try:
            access(dra)
        except EnvironmentFailure as error:
            path, message, hint = "dra", f"no access to the API server: {error.message}", error.hint
    if message:
        file = str(loaded.copied.file if loaded.copied else options.config)
        raise ConfigError((Diagnostic(file, 0, 0, path, message, hint),))
    return loaded


def _check_pods(options: Options) -> None:
    if not options.listen:
        for asked, option, what in (
            (options.pod_metrics, "--pod-metrics", "no metrics to add to"),
            (options.use_metrics, "--use-metrics", "no metrics to add to"),
            (options.show_pods, "--show-pods", "no page to show them on"),
            (options.show_pods is False, "--hide-pods", "no page to hide them from"),
        ):
            if asked:
                raise UsageError(f"{option} has {what}", "add --listen HOST:PORT")
    if options.pod_metrics and options.show_pods is False:
        raise UsageError("--pod-metrics and --hide-pods contradict each other", "omit one of them")


def _probes(host: Host, turns: Turns | None) -> Mapping[str, Route]:
    async def alive() -> tuple[bool, str]:
        if turns is not None and not turns.came:
            return True, ""  # it has no sockets yet
        usable, reason = host.kubelet.usable()
        return await host.self_check.answer() if usable else (False, reason)

    def ready() -> tuple[bool, str]:
        return host.ready() if turns is None or turns.came else (not turns.reason, turns.reason)

    return {"/healthz": probe(alive), "/readyz": probe(ready)}


def _http(metrics: Metrics, status_page: StatusPage, probes: Mapping[str, Route]) -> HttpServer:
    return HttpServer({**status_page.routes(), "/metrics": page(metrics.render, CONTENT_TYPE), **probes})
