"""What happens to a kubelet, and to the plugins beside it, from outside: files lost, strangers calling.

Faults (:mod:`.faults`) make the kubelet itself misbehave. Here it is in order and its surroundings are not.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import aclosing, suppress

from devhost.kubelet.api import RECEIVE_LIMIT

from . import wire
from .simulator import KubeletSimulator


def lose_socket(kubelet: KubeletSimulator) -> None:
    """Somebody deletes ``kubelet.sock``: the kubelet goes on, and no plugin finds it until it restarts."""
    kubelet.socket.unlink(missing_ok=True)


def lose_pod_resources(kubelet: KubeletSimulator) -> None:
    """Somebody deletes the podresources socket: nobody can ask any more until the kubelet restarts."""
    if kubelet.pod_resources is not None:
        kubelet.pod_resources.unlink(missing_ok=True)


def wipe(kubelet: KubeletSimulator) -> tuple[str, ...]:
    """Somebody deletes every socket in the directory, the kubelet's too; returns their names."""
    return wire.wipe(kubelet.directory)


def replace_directory(kubelet: KubeletSimulator) -> None:
    """Somebody removes the whole directory and makes an empty one in its place.

    Streams that are open stay so. The kubelet's checkpoint is gone; a running kubelet writes it again.
    """
    shutil.rmtree(kubelet.directory)
    kubelet.directory.mkdir(mode=0o750)


async def flood(kubelet: KubeletSimulator, resource: str, callers: int = 20) -> int:
    """Strangers call the plugin of ``resource`` all at once, then hang up; returns how many there were.

    Each connects, opens a list stream of its own, asks for the options, and asks for a preference and for
    devices that do not exist. A kubelet does none of this to a resource that is registered.
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
