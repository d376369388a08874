"""Another driver of the same name, as far as it disturbs the first one."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Self


class Rival:
    """Listens on a driver's service socket while it is entered, and answers nothing.

    It takes the path as drivers do: a socket that is there is removed first.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.unlink(missing_ok=True)
        self._socket.bind(str(self._path))
        self._socket.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
