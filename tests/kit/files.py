"""Files without threads, those that a program reads while a test changes them, and a disk that is full."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from devhost.runtime.worker import FileWorker

T = TypeVar("T")


def replace(file: Path, text: str) -> None:
    """Gives a file another text in one step: no reader finds it empty or half written."""
    new = file.with_name(f"{file.name}.new")
    new.write_text(text)
    new.replace(file)


class AtOnce(FileWorker):
    """Makes calls without a thread, for which a clock that stands still would have to wait."""

    async def file(self, what: str, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        return call(*args, **kwargs)


@contextmanager
def limited(kind: int, most: int) -> Iterator[None]:
    """A limit of this process: ``RLIMIT_FSIZE`` is like a full disk, for files that it writes."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)
