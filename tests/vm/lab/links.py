"""Network links and RDMA devices in software, and network namespaces; all of them gone after a test."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType

from .kernel import insist, run, text

MOVABLE = Path("/sys/module/rdma_rxe/parameters/movable")
"""Whether rxe devices made from now on can change their network namespace, as HCAs can
(``machine/recipes/rxe-movable.patch``)."""


class Links:
    """Creates links, RDMA devices and namespaces; on exit it removes those that are left."""

    def __init__(self) -> None:
        self._links: list[str] = []
        self._rdma: list[str] = []
        self._namespaces: list[str] = []
        self._exclusive = False

    def __enter__(self) -> Links:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self._namespaces):  # what was moved into one comes back
            self.remove_namespace(name)
        for command, names in (("rdma", self._rdma), ("ip", self._links)):
            for name in reversed(names):
                with suppress(AssertionError):  # it went with something else
                    run(command, "link", "delete", name)
        if self._exclusive:
            self.share_devices(True)
        MOVABLE.write_text("N")

    def dummy(self, name: str) -> str:
        """A network interface that leads nowhere, and is up; its name."""
        run("ip", "link", "add", name, "type", "dummy")
        self._links.append(name)
        self.up(name)
        return name

    def up(self, name: str) -> None:
        run("ip", "link", "set", name, "up")

    def down(self, name: str) -> None:
        """Takes an interface down, and with it the ports of its RDMA devices, which causes no uevent."""
        run("ip", "link", "set", name, "down")

    def rxe(self, name: str, interface: str) -> str:
        """RoCE in software on an interface; its name."""
        return self._add(name, "rxe", interface)

    def siw(self, name: str, interface: str) -> str:
        """iWARP in software on an interface; its name."""
        return self._add(name, "siw", interface)

    def delete(self, name: str) -> None:
        """``rdma link delete``, which waits as long as any program has the device open."""
        run("rdma", "link", "delete", name)
        self._rdma.remove(name)

    def namespace(self, name: str) -> str:
        """A network namespace such as a pod has; its name."""
        run("ip", "netns", "add", name)
        self._namespaces.append(name)
        return name

    def remove_namespace(self, name: str) -> None:
        """Removes a namespace; the kernel gives its RDMA devices back to the first one."""
        run("ip", "netns", "delete", name)
        self._namespaces.remove(name)

    def share_devices(self, shared: bool) -> None:
        """Whether all namespaces see all RDMA devices. Can only be changed while there is one namespace."""
        # a namespace that was deleted ends a little later
        insist("rdma", "system", "set", "netns", "shared" if shared else "exclusive", busy=("busy",))
        self._exclusive = not shared

    def make_movable(self) -> None:
        """rxe devices made from now on can be moved between namespaces."""
        MOVABLE.write_text("Y")

    def move(self, device: str, namespace: str) -> None:
        """Moves an RDMA device into a namespace, as a container runtime does for a pod."""
        run("rdma", "dev", "set", device, "netns", namespace)

    def _add(self, name: str, kind: str, interface: str) -> str:
        run("rdma", "link", "add", name, "type", kind, "netdev", interface)
        self._rdma.append(name)
        return name


def devices() -> set[str]:
    """The RDMA devices that this namespace sees."""
    directory = Path("/sys/class/infiniband")
    return {entry.name for entry in directory.iterdir()} if directory.exists() else set()


def nodes(device: str) -> set[str]:
    """The kernel's own nodes of an RDMA device, without ``rdma_cm``."""
    return {
        f"/dev/infiniband/{entry.parent.name}"
        for kind in ("infiniband_verbs", "infiniband_mad")
        for entry in Path("/sys/class", kind).glob("*/ibdev")
        if text(entry) == device
    }
