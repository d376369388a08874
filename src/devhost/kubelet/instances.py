"""Other instances of devhost that serve the same resource, as during a rolling update."""

from __future__ import annotations

import os
from pathlib import Path

from .kubelet_socket import KubeletSocket
from .server import server_stem, socket_name
from .sockets import dead, described


class Instances:
    """The sockets of other instances for one resource, sorted by whether they are older than the own one."""

    def __init__(self, kubelet: KubeletSocket, resource: str) -> None:
        self.older: set[str] = set()
        self.newer: set[str] = set()
        self.stem = server_stem(socket_name(resource))
        self._kubelet = kubelet
        self._own = ""

    def begin(self, own: Path) -> None:
        """The resource is served on a socket of this process now: all others that exist are older."""
        self._own = own.name
        self.older, self.newer = set(self.others()), set()

    def end(self) -> None:
        """This process has no socket for the resource."""
        self._own = ""

    def others(self) -> frozenset[str]:
        """The sockets of other instances."""
        return self._kubelet.servers.get(self.stem, frozenset()) - {self._own}

    def live(self) -> list[str]:
        """Those on which a process listens."""
        return sorted(name for name in self.others() if not self.dead(name))

    def sort(self, *, settled: bool) -> None:
        """Sorts sockets that are new: ``settled`` is whether all of them must be newer than the own one."""
        for name in self.others() - self.older - self.newer:
            later = settled or self.born(name) > self.born(self._own)
            (self.newer if later else self.older).add(name)

    def gone(self, known: frozenset[str]) -> frozenset[str]:
        """Those of the known sockets that are gone, or on which no process listens."""
        others = self.others()
        return known - others | {name for name in known & others if self.dead(name)}

    def dead(self, name: str) -> bool:
        """Whether no process listens on this socket."""
        return dead(self._kubelet.directory / name)

    def born(self, name: str) -> tuple[int, str]:
        """When a socket was made; the name decides between those of one tick of the clock."""
        try:
            return os.stat(self._kubelet.directory / name).st_mtime_ns, name  # noqa: PTH116 - called in loops
        except OSError:
            return 0, name

    def displaced_by(self, name: str) -> str:
        """Why this process does not serve the resource: that instance registered it later."""
        return (
            f"another devhost registered it after this one: {described(self._kubelet.directory / name)}; "
            "run only one devhost for this resource on the node"
        )
