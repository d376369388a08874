"""Other instances of devhost that serve the same resource, as during a rolling update."""

from __future__ import annotations

import os
import time
from pathlib import Path

from devhost.runtime.sockets import dead, described

from .kubelet_socket import KubeletSocket
from .server import server_stem, socket_name


class Instances:
    """The sockets of other instances for one resource, sorted into older and newer than the own socket.

    For ``start`` see :class:`.KubeletTiming`.
    """

    def __init__(self, kubelet: KubeletSocket, resource: str, start: float) -> None:
        self.older: set[str] = set()
        self.newer: set[str] = set()
        self.starting = False
        """Whether there is a socket that is not sorted yet, because its process may still start."""
        self.stem = server_stem(socket_name(resource))
        self._kubelet = kubelet
        self._start = start
        self._own = ""

    def begin(self, own: Path) -> None:
        """This process now serves the resource on ``own``: all other sockets that exist are older."""
        self._own = own.name
        self.older, self.newer = set(self.others()), set()

    def end(self) -> None:
        """This process has no socket for the resource."""
        self._own = ""

    def others(self) -> frozenset[str]:
        return self._kubelet.servers.get(self.stem, frozenset()) - {self._own}

    def live(self) -> list[str]:
        """The sockets of other instances on which a process listens."""
        return sorted(name for name in self.others() if not self.dead(name))

    def sort(self, *, settled: bool) -> None:
        """Sorts new sockets: with ``settled`` all of them count as newer than the own socket."""
        self.starting = False
        for name in self.others() - self.older - self.newer:
            if self._starts(name):
                self.starting = True
                continue
            later = settled or self.born(name) > self.born(self._own)
            (self.newer if later else self.older).add(name)

    def gone(self, known: frozenset[str]) -> frozenset[str]:
        """The known sockets that no longer exist, or on which no process listens."""
        others = self.others()
        return known - others | {name for name in known & others if self.dead(name)}

    def dead(self, name: str) -> bool:
        return dead(self._kubelet.directory / name)

    def _starts(self, name: str) -> bool:
        """Whether a socket is so new that its process may not listen on it yet."""
        return self.dead(name) and 0 <= time.time() - self.born(name)[0] / 1e9 < self._start

    def born(self, name: str) -> tuple[int, str]:
        """When a socket was created; the name decides between sockets of the same clock tick."""
        try:
            return os.stat(self._kubelet.directory / name).st_mtime_ns, name  # noqa: PTH116 - called in loops
        except OSError:
            return 0, name

    def displaced_by(self, name: str) -> str:
        """The message that another instance registered the resource later."""
        return (
            f"another devhost registered it after this one: {described(self._kubelet.directory / name)}; "
            "run only one devhost for this resource on the node"
        )
