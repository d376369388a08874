"""``devhost run``: serves the kubelet until it is stopped."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import get_args

import click

from devhost.backend import descriptors, threads
from devhost.backend.errors import ConfigError, DevhostError
from devhost.telemetry import log as telemetry

from . import options as shared
from .memory import (
    collecting_often,
    import_grpc_without_typing_extensions,
    import_protobuf_without_python_messages,
)

log = telemetry.get(__name__)


@click.command("run")
@shared.config
@click.option(
    "--kubelet-dir",
    type=shared.path,
    metavar="DIR",
    help="The kubelet's device plugin directory.  [default: /var/lib/kubelet/device-plugins]",
)
@click.option(
    "--pod-resources",
    type=shared.path,
    metavar="SOCKET",
    help="The kubelet's socket for which pod holds which device.  "
    "[default: ../pod-resources/kubelet.sock beside --kubelet-dir]",
)
@shared.root
@click.option(
    "--state-dir",
    type=shared.path,
    metavar="DIR",
    help="Directory for a copy of the last accepted configuration and the record of what containers were "
    "given.  [default: /var/lib/devhost]",
)
@click.option(
    "--strict-config",
    is_flag=True,
    help="Exit with 2 if the file is refused at the start, even if there is such a copy.",
)
@click.option(
    "--listen",
    default="",
    metavar="HOST:PORT",
    help="Address for HTTP: the status page at /, /status.json, /metrics, /healthz and /readyz. "
    "Example: :9400.  [default: off]",
)
@click.option(
    "--pod-metrics",
    is_flag=True,
    help="Show in /metrics which pod holds which device; the names of pods become labels.",
)
@click.option(
    "--show-pods/--hide-pods",
    default=None,
    help="Whether the status page and /status.json name pods. `devhost status` always does."
    "  [default: --hide-pods]",
)
@click.option(
    "--status-socket",
    "--socket",
    type=shared.path,
    metavar="PATH",
    help="Socket for `devhost status`.  [default: a socket in /run/devhost]",
)
@click.option(
    "--plugins-registry",
    type=shared.path,
    metavar="DIR",
    help="Directory in which the kubelet finds DRA drivers.  "
    "[default: ../plugins_registry beside --kubelet-dir]",
)
@click.option(
    "--plugins-dir",
    type=shared.path,
    metavar="DIR",
    help="Directory for the driver's socket and records.  [default: ../plugins beside --kubelet-dir]",
)
@click.option(
    "--node-name",
    default="",
    metavar="NAME",
    help="Name of the Node object, for DRA.  [default: $NODE_NAME, else the host's name]",
)
@click.option(
    "--kubeconfig",
    type=shared.path,
    metavar="FILE",
    help="Access to the API server, for DRA.  [default: the pod's service account]",
)
@click.option(
    "--log-format",
    type=click.Choice(get_args(telemetry.Format)),
    default="text",
    show_default=True,
    help="Text for people, or one JSON object per line.",
)
@click.option(
    "--log-level",
    type=click.Choice(get_args(telemetry.Level)),
    default="info",
    show_default=True,
    help="What to log; info logs only changes of state.",
)
def command(
    config: Path | None,
    kubelet_dir: Path | None,
    pod_resources: Path | None,
    root: Path,
    state_dir: Path | None,
    strict_config: bool,
    listen: str,
    pod_metrics: bool,
    show_pods: bool | None,
    status_socket: Path | None,
    plugins_registry: Path | None,
    plugins_dir: Path | None,
    node_name: str,
    kubeconfig: Path | None,
    log_format: telemetry.Format,
    log_level: telemetry.Level,
) -> None:
    """Serves every device that the configuration selects to the kubelet of this node.

    Runs until SIGTERM or SIGINT. Reads its configuration again on SIGHUP and when the file changes.

    With --root of a tree that is not this machine, such as a recorded one, everything is written below that
    tree, except what other options name, and the status socket.
    """
    telemetry.configure(log_format, log_level)  # before gRPC is imported, which reads its verbosity then
    try:
        descriptors.provide(descriptors.SERVING)
        with collecting_often():
            import_grpc_without_typing_extensions()
            import_protobuf_without_python_messages()
            import asyncio

            from devhost.config.loader import DEFAULT
            from devhost.host import daemon
            from devhost.host.host import KUBELET_DIRECTORY

        threads.provide()
        shared.check_root(root)
        if kubelet_dir is None:
            kubelet_dir = KUBELET_DIRECTORY
            if not daemon.is_this_machine(root):
                kubelet_dir = daemon.below(root, kubelet_dir)
        options = daemon.Options(
            config or DEFAULT,
            kubelet_dir,
            root,
            listen,
            status_socket,
            pod_resources,
            pod_metrics,
            show_pods,
            state_dir,
            strict_config,
            daemon.dra_options(kubelet_dir, plugins_registry, plugins_dir, node_name, kubeconfig),
        )
        asyncio.run(daemon.serve(options))
    except (DevhostError, OSError) as failure:
        error = failure if isinstance(failure, DevhostError) else descriptors.exhausted(failure)
        if error is None:
            raise
        if log_format == "text":
            raise error from failure
        for reason in error.diagnostics if isinstance(error, ConfigError) else (error,):
            log.error("cannot start", reason=str(reason))
        sys.exit(error.exit_code)
