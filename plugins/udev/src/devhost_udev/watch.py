"""Changes in ``/dev`` that no uevent reports, by inotify.

An event carries only ``dev_node``: it concerns that one node and makes nothing else be read again.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
from collections.abc import AsyncIterator, Mapping, Sequence

from devhost.backend import Context, Event
from devhost.backend.errors import BackendError
from devhost.backend.inotify import explained
from devhost.backend.sonames import by_soname
from devhost.backend.sysfs import prefix_of

from .nodes import DEV, SKIPPED
from .options import Group, is_glob

with by_soname():
    import asyncinotify
    from asyncinotify import Mask

MAX_WATCHES = 512
"""Directories watched at most; for the others the core's slow resync remains."""

REARM = 30.0
"""Seconds until directories are looked for that could not be watched before."""

SETTLE = 0.02
"""Seconds to wait before a change is told: a device's own uevent comes within, and tells it better.
Its node is made before all its attributes are, and goes before it does."""

_CHANGES = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.ATTRIB


async def node_events(
    context: Context, groups: Sequence[Group], *, rearm: float = REARM
) -> AsyncIterator[Event]:
    """Yields an event for each name that changes in ``/dev``, or beside it where a group names paths.

    Args:
        context: of the backend.
        groups: the configured groups.
        rearm: seconds after which directories are looked for that could not be watched before.
    """
    watcher = _Watcher(context, _beside(groups), rearm)
    try:
        while True:
            await watcher.arm()
            async for event in watcher.until_rearm():
                yield event
    finally:
        watcher.close()


class _Watcher:
    def __init__(self, context: Context, beside: Mapping[str, Sequence[str]], rearm: float) -> None:
        self._context = context
        self._prefix = prefix_of(context.root)
        self._beside = beside
        self._rearm = rearm
        self._inotify: asyncinotify.Inotify | None = None

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    async def arm(self) -> None:
        """Watches every directory there is; one that is watched already stays so.

        Raises:
            BackendError: inotify does not work. The core then reports that this event source has failed, and
                starts it again with back-off.
        """
        directories = await self._context.run_blocking(_directories, self._prefix)
        try:
            if self._inotify is None:
                self._inotify = asyncinotify.Inotify(sync_timeout=0)
            for directory in [*self._beside, *directories][:MAX_WATCHES]:
                self._add(self._inotify, directory)
        except OSError as error:
            raise BackendError(
                f"cannot watch /dev, changes without a uevent are seen once a minute: {explained(error)}"
            ) from error

    def _add(self, inotify: asyncinotify.Inotify, directory: str) -> None:
        try:
            inotify.add_watch(self._prefix + directory, _CHANGES | Mask.ONLYDIR)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # it went away meanwhile, or is none of ours

    async def until_rearm(self) -> AsyncIterator[Event]:
        """Yields events until a directory was made, or nothing happened for a while."""
        assert self._inotify is not None
        while batch := await _next(self._inotify, self._rearm):
            for event in dict.fromkeys(map(self._event, batch)):
                if event is not None:
                    yield event
            if any(Mask.ISDIR in one.mask and one.mask & (Mask.CREATE | Mask.MOVED_TO) for one in batch):
                return

    def _event(self, found: asyncinotify.Event) -> Event | None:
        if Mask.Q_OVERFLOW in found.mask:
            return Event(action="node")
        if found.path is None or found.name is None:
            return None  # the directory itself
        directory, _, name = str(found.path)[len(self._prefix) :].rpartition("/")
        if name.startswith("."):
            return None  # a link that udevd prepares under a temporary name
        patterns = self._beside.get(directory)
        if patterns is not None and not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            return None
        return Event(action="node", dev_node=f"{directory}/{name}")


async def _next(inotify: asyncinotify.Inotify, seconds: float) -> list[asyncinotify.Event]:
    """The changes of the next moment in which there are any; none after so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            batch = [await inotify.get()]
    except TimeoutError:
        return []
    await asyncio.sleep(SETTLE)
    while (more := inotify.sync_get()) is not None:
        batch.append(more)
    return batch


def _beside(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Directories outside ``/dev`` in which groups name paths, with the names that matter there."""
    found: dict[str, list[str]] = {}
    paths = [member.path for group in groups for member in group.members if member.path]
    paths += [mount.path for group in groups for mount in group.mounts]
    for path in paths:
        directory, _, name = path.rpartition("/")
        if directory and not is_glob(directory) and directory != DEV and not directory.startswith(f"{DEV}/"):
            found.setdefault(directory, []).append(name)
    return found


def _directories(prefix: str) -> list[str]:
    """``/dev`` and the directories below it, the top ones first."""
    found = [DEV]
    for directory in found:
        try:
            with os.scandir(prefix + directory) as entries:
                below = [f"{directory}/{e.name}" for e in entries if e.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        found += sorted(path for path in below if path not in SKIPPED)
        if len(found) > MAX_WATCHES:
            break
    return found[:MAX_WATCHES]
