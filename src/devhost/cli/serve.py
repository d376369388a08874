"""What ``devhost run`` does, and its options, without the library for command lines: it takes 1.3 MB."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from devhost.backend import threads
from devhost.backend.errors import ConfigError, EnvironmentFailure
from devhost.cli.memory import (
    collect_as_usual,
    import_grpc_without_typing_extensions,
    import_protobuf_without_python_messages,
    late_patterns,
)
from devhost.missing import missing_package
from devhost.runtime import descriptors
from devhost.runtime import log as logging
from devhost.telemetry.ending import failure_of

if TYPE_CHECKING:
    from devhost.config.loader import Loaded
    from devhost.host.shown.problems import Look

log = logging.get(__name__)

TEXT = """Serves every device that the configuration selects to the kubelet of this node.

Runs until SIGTERM or SIGINT. Reads its configuration again on SIGHUP and when the file changes.

With --root of a tree that is not this machine, such as a recorded one, everything is written below that
tree, except what other options name, and the status socket.
"""

CONFIG = "Configuration file.  [default: /etc/devhost/devhost.yaml]"
ROOT = "Directory to use as /: a recorded tree, or the host's root mounted in a container."


class Option(NamedTuple):
    """An option of ``devhost run``; a flag that can be switched off has two names with ``/``."""

    names: tuple[str, ...]
    type: type
    help: str
    metavar: str | None = None
    default: Any = None
    choices: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The name of the argument of :func:`serve`."""
        return self.names[0].partition("/")[0].removeprefix("--").replace("-", "_")


OPTIONS = (
    Option(("--config",), Path, CONFIG, "FILE"),
    Option(
        ("--kubelet-dir",),
        Path,
        "The kubelet's device plugin directory.  [default: /var/lib/kubelet/device-plugins]",
        "DIR",
    ),
    Option(
        ("--pod-resources",),
        Path,
        "The kubelet's socket for which pod holds which device.  "
        "[default: ../pod-resources/kubelet.sock beside --kubelet-dir]",
        "SOCKET",
    ),
    Option(("--root",), Path, ROOT, "DIR", Path("/")),
    Option(
        ("--state-dir",),
        Path,
        "Directory for a copy of the last accepted configuration and the record of what containers were "
        "given, and for verdicts.  [default: /var/lib/devhost]",
        "DIR",
    ),
    Option(
        ("--strict-config",),
        bool,
        "Exit with 2 if the file is refused at the start, even if there is such a copy.",
        default=False,
    ),
    Option(
        ("--patience",),
        str,
        "How long /readyz fails while an entry has no devices that had some before an edit, so that a "
        "rollout stops at this node: 90s, 10m, 1h. `devhost accept` ends it.  [default: off]",
        "TIME",
        "",
    ),
    Option(
        ("--take-turns",),
        bool,
        "For upgrades without a gap, from kubelet 1.37: wait while another devhost of this node acts, and "
        "serve, when stopped, until the next one does.",
        default=False,
    ),
    Option(
        ("--listen",),
        str,
        "Address for HTTP: the status page at /, /status.json, /metrics, /healthz and /readyz. "
        "Example: :9400.  [default: off]",
        "HOST:PORT",
        "",
    ),
    Option(
        ("--pod-metrics",),
        bool,
        "Show in /metrics which pod holds which device; the names of pods become labels.",
        default=False,
    ),
    Option(
        ("--use-metrics",),
        bool,
        "Show in /metrics how busy GPUs are and how much of their memory is in use.",
        default=False,
    ),
    Option(
        ("--show-pods/--hide-pods",),
        bool,
        "Whether the status page and /status.json name pods. `devhost status` always does."
        "  [default: --hide-pods]",
    ),
    Option(
        ("--status-socket", "--socket"),
        Path,
        "Socket for `devhost status`.  [default: a socket in /run/devhost]",
        "PATH",
    ),
    Option(
        ("--plugins-registry",),
        Path,
        "Directory in which the kubelet finds DRA drivers.  "
        "[default: ../plugins_registry beside --kubelet-dir]",
        "DIR",
    ),
    Option(
        ("--plugins-dir",),
        Path,
        "Directory for the driver's socket and records.  [default: ../plugins beside --kubelet-dir]",
        "DIR",
    ),
    Option(
        ("--node-condition",),
        bool,
        "Keep the condition DevicesReady of the Node object.",
        default=False,
    ),
    Option(
        ("--startup-taints",),
        str,
        "With --node-condition: taints of the Node object to remove once all devices are there, separated by "
        "commas.",
        "KEY[:EFFECT]",
        "",
    ),
    Option(
        ("--node-name",),
        str,
        "Name of the Node object, for DRA and the condition.  [default: $NODE_NAME, else the host's name]",
        "NAME",
        "",
    ),
    Option(
        ("--kubeconfig",),
        Path,
        "Access to the API server, for the same.  [default: the pod's service account]",
        "FILE",
    ),
    Option(
        ("--log-format",),
        str,
        "Text for people, or one JSON object per line.",
        default="text",
        choices=get_args(logging.Format),
    ),
    Option(
        ("--log-level",),
        str,
        "What to log; info logs only changes of state.",
        default="info",
        choices=get_args(logging.Level),
    ),
)
"""In the order of the help."""


def parsed(arguments: Sequence[str]) -> Mapping[str, Any] | None:
    """The arguments of :func:`serve`; ``None`` if anything is not plain, such as ``--help`` or an error."""
    found = {option.key: option.default for option in OPTIONS}
    by_name = {name: option for option in OPTIONS for names in option.names for name in names.split("/")}
    rest = [*arguments]
    while rest:
        name, sign, value = rest.pop(0).partition("=")
        if (option := by_name.get(name)) is None:
            return None
        if option.type is bool:
            if sign:
                return None
            found[option.key] = not option.names[0].endswith(f"/{name}")
            continue
        if not sign:
            if not rest or rest[0].startswith("-"):
                return None
            value = rest.pop(0)
        if option.choices and value not in option.choices:
            return None
        if option.type is Path and not value:
            return None
        found[option.key] = option.type(value)
    return found


def _scan_once() -> Callable[[Loaded, Path], Awaitable[Look]]:
    from .scan_once import scan_once

    return scan_once


def serve(
    *,
    config: Path | None,
    kubelet_dir: Path | None,
    root: Path,
    take_turns: bool,
    plugins_registry: Path | None,
    plugins_dir: Path | None,
    node_name: str,
    kubeconfig: Path | None,
    log_format: logging.Format,
    log_level: logging.Level,
    **others: Any,
) -> None:
    """Serves until a signal. Raises ``DevhostError``, or ``SystemExit`` with the reason in the log.

    ``others`` are options with the same names in :class:`devhost.host.daemon.Options`.
    """
    logging.configure(log_format, log_level)  # before gRPC is imported, which reads its verbosity then
    try:
        descriptors.provide(descriptors.SERVING)
        import_grpc_without_typing_extensions()
        import_protobuf_without_python_messages()
        import asyncio

        with late_patterns():
            from devhost.config.loader import DEFAULT
            from devhost.config.root_directory import below, check_root, tree_of
            from devhost.host import daemon
            from devhost.host.host import KUBELET_DIRECTORY

        threads.provide()
        check_root(root)
        if kubelet_dir is None:
            kubelet_dir = KUBELET_DIRECTORY
            if tree_of(root):
                kubelet_dir = below(root, kubelet_dir)
        tag = f"-{os.urandom(3).hex()}" if take_turns else ""
        options = daemon.Options(
            config or DEFAULT,
            kubelet_dir,
            root,
            dra=daemon.dra_options(kubelet_dir, plugins_registry, plugins_dir, node_name, kubeconfig, tag),
            take_turns=_scan_once() if take_turns else None,
            **others,
        )
        collect_as_usual()
        asyncio.run(daemon.serve(options))
    except Exception as failure:
        error = failure_of(failure)
        if isinstance(failure, ImportError) and (missing := missing_package(failure)):
            error = EnvironmentFailure(*missing)
        if error is None:
            raise
        if log_format == "text":
            raise error from failure
        for reason in error.diagnostics if isinstance(error, ConfigError) else (error,):
            log.error("cannot start", reason=str(reason))
        sys.exit(error.exit_code)
