"""Watches ``/dev`` with inotify for changes that cause no uevent.

An event only has ``dev_node``: it concerns that node, and nothing else is read again.
"""

from __future__ import annotations

import asyncio
import fnmatch
import os
from collections.abc import AsyncIterator, Mapping, Sequence

from devhost.backend import Context, Event
from devhost.backend.errors import BackendError
from devhost.backend.files import by_soname, explained
from devhost.backend.sysfs import prefix_of

from .nodes import DEV, SKIPPED
from .options import Group, is_glob

with by_soname():
    import asyncinotify
    from asyncinotify import Mask

MAX_WATCHES = 512
"""The most directories that are watched; changes in others are found at the resync."""

REARM = 30.0
"""Seconds after which directories are watched that did not exist before."""

SETTLE = 0.02
"""Seconds from a change to its event. The uevent of a device comes within this time and is more precise: the
node is created before all attributes of the device exist, and removed before the device."""

_CHANGES = Mask.CREATE | Mask.DELETE | Mask.MOVED_FROM | Mask.MOVED_TO | Mask.ATTRIB


async def node_events(
    context: Context, groups: Sequence[Group], *, rearm: float = REARM
) -> AsyncIterator[Event]:
    """Yields an event for each name that changes in ``/dev``, or in other directories with paths of groups.

    ``rearm`` is seconds after which directories are watched that did not exist before.
    """
    watcher = _Watcher(context, _other_directories(groups), rearm)
    try:
        while True:
            await watcher.arm()
            async for event in watcher.until_rearm():
                yield event
    finally:
        watcher.close()


class _Watcher:
    def __init__(self, context: Context, others: Mapping[str, Sequence[str]], rearm: float) -> None:
        self._context = context
        self._prefix = prefix_of(context.root)
        self._others = others
        self._rearm = rearm
        self._inotify: asyncinotify.Inotify | None = None

    def close(self) -> None:
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None

    async def arm(self) -> None:
        """Watches all directories that exist and are not watched yet.

        Raises ``BackendError`` if inotify does not work. The core then reports that this event source has
        failed, and restarts it with back-off.
        """
        directories = await self._context.run_blocking(_directories, self._prefix)
        try:
            if self._inotify is None:
                self._inotify = asyncinotify.Inotify(sync_timeout=0)
            for directory in [*self._others, *directories][:MAX_WATCHES]:
                self._add(self._inotify, directory)
        except OSError as error:
            raise BackendError(
                f"cannot watch /dev, changes without a uevent are seen once a minute: {explained(error)}"
            ) from error

    def _add(self, inotify: asyncinotify.Inotify, directory: str) -> None:
        try:
            inotify.add_watch(self._prefix + directory, _CHANGES | Mask.ONLYDIR)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return  # it was removed, or is not accessible

    async def until_rearm(self) -> AsyncIterator[Event]:
        """Yields events until a directory is created, or nothing happens for ``rearm`` seconds."""
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
            return None  # a temporary name of a link that udevd creates
        patterns = self._others.get(directory)
        if patterns is not None and not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            return None
        return Event(action="node", dev_node=f"{directory}/{name}")


async def _next(inotify: asyncinotify.Inotify, seconds: float) -> list[asyncinotify.Event]:
    """Waits for changes and returns a batch; an empty one if there are none for this many seconds."""
    try:
        async with asyncio.timeout(seconds):
            batch = [await inotify.get()]
    except TimeoutError:
        return []
    await asyncio.sleep(SETTLE)
    while (more := inotify.sync_get()) is not None:
        batch.append(more)
    return batch


def _other_directories(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Directories outside ``/dev`` with paths of groups, each with the names or patterns in it."""
    found: dict[str, list[str]] = {}
    paths = [member.path for group in groups for member in group.members if member.path]
    paths += [mount.path for group in groups for mount in group.mounts]
    for path in paths:
        directory, _, name = path.rpartition("/")
        if directory and not is_glob(directory) and directory != DEV and not directory.startswith(f"{DEV}/"):
            found.setdefault(directory, []).append(name)
    return found


def _directories(prefix: str) -> list[str]:
    """``/dev`` and the directories below it, parents first."""
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
