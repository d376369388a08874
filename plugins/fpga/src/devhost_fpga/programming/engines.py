"""What goes on with each engine: one programming at a time, and none while an earlier one cannot be ended.

An engine is what programs: a management engine, or an fpga_manager; it is known by its directory in sysfs.
The backend is made anew when its options change while a programming may go on, so this outlives it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from devhost.backend import AllocationError

Loaded = tuple[object, ...]
"""What an fpga_manager was loaded with, and which manager it was."""


@dataclass(slots=True)
class _Engine:
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_free: Callable[[], bool] = lambda: True
    loaded: dict[str, Loaded] = field(default_factory=dict)


class Engines:
    """All engines of the machine that were ever programmed. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[str, _Engine] = {}

    @contextmanager
    def alone(self, engine: str, patience: float) -> Iterator[None]:
        """Nobody else programs through this engine meanwhile.

        Raises:
            AllocationError: somebody does, and did so for ``patience`` seconds; or a process that was killed
                is still held by the kernel.
        """
        mine = self._engine(engine)
        if not mine.lock.acquire(timeout=max(0.0, patience)):
            raise AllocationError("its FPGA is being programmed for another container")
        try:
            if not mine.is_free():
                raise AllocationError(
                    "an earlier programming hangs in the kernel: nothing is done until it ends"
                )
            yield
        finally:
            mine.lock.release()

    def hangs(self, engine: str, is_gone: Callable[[], bool]) -> None:
        """A process that programs cannot be ended: the engine is taken until it has gone."""
        self._engine(engine).is_free = is_gone

    def loaded(self, engine: str, device: str) -> Loaded | None:
        """What a device was last loaded with; ``None`` if nobody knows. For who is alone with it."""
        return self._engine(engine).loaded.get(device)

    def forget(self, engine: str, device: str = "") -> None:
        """Whatever that device holds, or every one of this engine, is not known any more."""
        loaded = self._engine(engine).loaded
        if device:
            loaded.pop(device, None)
        else:
            loaded.clear()

    def remember(self, engine: str, device: str, what: Loaded) -> None:
        """A device was loaded with this."""
        self._engine(engine).loaded[device] = what

    def _engine(self, engine: str) -> _Engine:
        with self._lock:
            return self._engines.setdefault(engine, _Engine())


ENGINES = Engines()
"""Those of this process."""
