"""Disturbances of a kubelet and its plugins from outside: files are removed, other processes call.

Faults (:mod:`.faults`) make the kubelet itself misbehave. Here it works correctly, but its environment does
not.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import aclosing, suppress

from devhost.kubelet.api import RECEIVE_LIMIT

from . import wire
from .simulator import KubeletSimulator


def lose_socket(kubelet: KubeletSimulator) -> None:
    """Deletes ``kubelet.sock``: the kubelet keeps running, but no plugin can connect until it restarts."""
    kubelet.socket.unlink(missing_ok=True)


def lose_pod_resources(kubelet: KubeletSimulator) -> None:
    """Deletes the podresources socket: no client can connect until the kubelet restarts."""
    if kubelet.pod_resources is not None:
        kubelet.pod_resources.unlink(missing_ok=True)


def wipe(kubelet: KubeletSimulator) -> tuple[str, ...]:
    """Deletes every socket in the directory, including that of the kubelet; returns their names."""
    return wire.wipe(kubelet.directory)


def replace_directory(kubelet: KubeletSimulator) -> None:
    """Removes the whole directory and creates an empty one in its place.

    Open streams stay open. The kubelet's checkpoint is lost; a running kubelet writes it again.
    """
    shutil.rmtree(kubelet.directory)
    kubelet.directory.mkdir(mode=0o750)


async def flood(kubelet: KubeletSimulator, resource: str, callers: int = 20) -> int:
    """Other clients call the plugin of ``resource`` at the same time, then disconnect; returns their number.

    Each one connects, opens its own list stream, gets the options, and requests a preference and devices that
    do not exist. A kubelet does none of this to a registered resource.
    """
    sockets = kubelet.endpoints(resource)
    calls = [_stranger(kubelet, resource, socket) for socket in sockets for _ in range(callers)]
    await asyncio.gather(*calls)
    return len(calls)


async def _stranger(kubelet: KubeletSimulator, resource: str, socket: str) -> None:
    path = str(kubelet.directory / socket)
    connection = wire.PluginConnection(resource, socket, path, RECEIVE_LIMIT)
    try:
        with suppress(wire.CallError):
            await connection.dial(5.0)
            async with aclosing(connection.lists()) as lists:
                await anext(lists, None)
            await connection.options()
            await connection.preference(["no-such-device"], ["nor-this"], 3)
            await connection.allocate(["no-such-device"])
    finally:
        await connection.close()
