"""The sources of events: uevents and changes of files, and why one of them does not work."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from devhost.backend.files import missing_host_reason
from devhost.discovery.manager import BackendManager
from devhost.discovery.uevents import UeventMonitor
from devhost.kubelet.kubelet_socket import KubeletSocket
from devhost.kubelet.podresources_poller import PodResourcesPoller
from devhost.runtime.log import get

log = get(__name__)


class Monitors:
    """Receives uevents, and keeps why an event source does not work."""

    def __init__(self, backends: BackendManager, root: Path, changed: Callable[[], None]) -> None:
        self.uevents_failure = ""
        """Why there are no uevents; empty if there are."""
        self.polled: dict[str, str] = {}
        """Why inotify does not watch a file or directory, by its path."""
        self._backends = backends
        self._root = root
        self._changed = changed
        self._uevents: UeventMonitor | None = None

    def open(self) -> None:
        """Starts to receive uevents, if that is possible."""
        if reason := missing_host_reason(self._root):
            log.warning("the host's directories are not below --root", reason=reason)
        try:
            self._uevents = UeventMonitor(self._backends.dispatch, self._root)
        except (OSError, ImportError) as error:  # pyudev finds libudev only when it is first used
            self.uevents_failure = str(error)
            log.warning("no uevents; devices are scanned once a minute", reason=self.uevents_failure)
        else:
            log.info("listening for uevents", source=self._uevents.source)

    def close(self) -> None:
        """Stops receiving uevents."""
        if self._uevents is not None:
            self._uevents.close()

    def reporter(self, path: Path) -> Callable[[str], None]:
        """A function to call when inotify stops working for a path, with the reason, or works again."""
        return partial(self._report, str(path))

    def _report(self, path: str, reason: str) -> None:
        self.polled[path] = reason
        self._changed()


class RestartMonitor:
    """Notices a restart of the kubelet, and then asks it who holds what."""

    def __init__(self, kubelet: KubeletSocket, pod_resources: PodResourcesPoller) -> None:
        self._kubelet = kubelet
        self._pod_resources = pod_resources
        self._known = kubelet.identity

    def look(self) -> None:
        """Call it after each change in the kubelet's directory."""
        if self._kubelet.identity not in (self._known, None):
            self._known = self._kubelet.identity
            self._pod_resources.restarted()
