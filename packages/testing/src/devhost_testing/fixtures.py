"""A backend on a modelled machine, as right after the start of devhost.

::

    @pytest.fixture
    def looking():
        with BackendFixture(MyCard) as looking:
            yield looking


    def test_a_card_without_firmware_is_unhealthy(looking, tmp_path):
        backend = looking(tree(tmp_path))
        assert by_id(backend)["A1"].health.reason == "it has no firmware"

Use :class:`devhost_testing.node.Node` to test what devhost does with the devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from types import TracebackType
from typing import Generic, Self, TypeVar

from devhost.backend import AllocateRequest, Backend, Device, Event
from devhost.discovery.runner import ServiceContext

from .trees import Tree

B = TypeVar("B", bound=Backend)


class BackendFixture(Generic[B]):
    """Makes backends of one class, and stops what they started when it is left."""

    def __init__(self, kind: type[B]) -> None:
        self._kind = kind
        self._contexts: list[ServiceContext] = []

    def __call__(
        self,
        machine: Tree | Path,
        options: object = None,
        wanted: Collection[str] = ("*",),
        held: Callable[[], frozenset[str] | None] = frozenset,
        kind: type[B] | None = None,
        entries: Collection[object] = (),
    ) -> B:
        """A backend that has not scanned yet.

        Args:
            machine: the tree, or the directory to use as ``/``.
            options: its ``Options``; the defaults if not given.
            wanted: the attributes that the configuration uses, see ``Context.wanted``; all by default.
            held: returns what containers use, see ``Context.held``; nothing by default.
            kind: a different class, for example one that the test defines.
            entries: the options of the entries of the configuration, see ``Context.entries``.
        """
        made = kind or self._kind
        root = machine if isinstance(machine, Path) else machine.root
        self._contexts.append(ServiceContext(made.name, root, wanted, held, entries))
        return made(made.Options() if options is None else options, self._contexts[-1])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stops what its backends started. It can make more backends afterwards."""
        while self._contexts:
            self._contexts.pop().close()


def request(
    backend: Backend,
    devices: Iterable[Device],
    options: object = None,
    resource: str = "example.com/resource",
) -> AllocateRequest:
    """The argument with which the core calls ``allocate``, ``prepare`` and ``device_info``.

    ``options`` is a value of the backend's ``ResourceOptions``; the defaults if not given.
    """
    own = type(backend).ResourceOptions() if options is None else options
    return AllocateRequest(tuple(devices), own, resource)


def by_id(backend: Backend, *events: Event) -> dict[str, Device]:
    """Every current device, after the backend was notified of the events."""
    for event in events:
        backend.notice(event)
    return {device.id: device for device in backend.discover()}
