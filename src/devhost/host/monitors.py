"""What wakes the host: uevents, and changes of files; also why one of these sources does not work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from devhost.backend.files import hostless
from devhost.discovery.manager import BackendManager
from devhost.discovery.uevents import UeventMonitor
from devhost.kubelet.kubelet_socket import KubeletSocket
from devhost.kubelet.podresources_poller import PodResourcesPoller
from devhost.telemetry.log import get

log = get(__name__)


class Monitors:
    """The event sources of the host, and why one of them does not work.

    Args:
        backends: receive the uevents.
        root: directory that stands for ``/`` where devices are looked for.
        changed: called when the reasons have changed.
    """

    def __init__(self, backends: BackendManager, root: Path, changed: Callable[[], None]) -> None:
        self.uevents_failure = ""
        """Why there are no uevents; empty if there are."""
        self.polled: dict[str, str] = {}
        """The files and directories that inotify does not watch, and why."""
        self._backends = backends
        self._root = root
        self._changed = changed
        self._uevents: UeventMonitor | None = None

    def open(self) -> None:
        """Receives uevents from now on, if the kernel or udevd lets it."""
        if reason := hostless(self._root):
            log.warning("nothing of the host is below --root", reason=reason)
        try:
            self._uevents = UeventMonitor(self._backends.dispatch, self._root)
        except (OSError, ImportError) as error:  # pyudev finds libudev only when it is first used
            self.uevents_failure = str(error)
            log.warning("no uevents; devices are looked for once a minute", reason=self.uevents_failure)
        else:
            log.info("listening for uevents", source=self._uevents.source)

    def close(self) -> None:
        """Receives no uevents from now on."""
        if self._uevents is not None:
            self._uevents.close()

    def reporter(self, path: Path) -> Callable[[str], None]:
        """What to call when inotify stops working for a file or directory, or works again."""
        return partial(self._report, str(path))

    def _report(self, path: str, reason: str) -> None:
        self.polled[path] = reason
        self._changed()


class RestartMonitor:
    """Notices a restart of the kubelet, and has it asked who holds what."""

    def __init__(self, kubelet: KubeletSocket, pod_resources: PodResourcesPoller) -> None:
        self._kubelet = kubelet
        self._pod_resources = pod_resources
        self._known = kubelet.identity

    def look(self) -> None:
        """Call it after each change in the kubelet's directory."""
        if self._kubelet.identity not in (self._known, None):
            self._known = self._kubelet.identity
            self._pod_resources.restarted()
