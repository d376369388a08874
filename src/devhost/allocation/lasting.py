"""Answers that count for the next container too, so that it need not wait for the backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from devhost.backend.frozen import frozen
from devhost.backend.model import Device
from devhost.backend.sysfs import node_number

from .device_info import Document
from .injection import Rendered
from .resource_backend import Answer, ResourceBackend, Terms

MOST = 256
"""Most answers that are kept for one resource; then all of them are dropped."""

DEVICES = 16
"""Most devices of an answer that is kept."""


@frozen
class Answered:
    """A backend's answer for one container, as it is handed out; ``numbers`` are those of its nodes."""

    answer: Answer
    rendered: Rendered | None
    documents: Mapping[str, Document]
    numbers: Mapping[str, str]

    @property
    def lasts(self) -> bool:
        """Whether all of it is known again once the numbers of its nodes are compared.

        A path that is no device node may be on a file system that blocks, and an optional node may be in
        place of another one.
        """
        granted, devices = self.answer.granted, self.answer.devices
        return (
            granted.edits.lasting
            and (self.rendered is not None and self.rendered.lasting)
            and not (granted.edits.mounts or granted.left_out or self.answer.left_out)
            and len(devices) <= DEVICES
            and all(node.required and self.numbers.get(node.path) for node in granted.edits.nodes)
        )


class LastingAnswers:
    """The answers for one resource that last (:attr:`devhost.backend.Edits.lasting`).

    An answer counts as long as the devices are the same objects as in the backend's last scan, and the terms,
    the backend and the numbers of the nodes are the same.
    """

    def __init__(self, backend: ResourceBackend) -> None:
        self._backend = backend
        self._kept: dict[tuple[int, ...], tuple[Answered, Terms, object]] = {}
        """Each with its terms, and the backend object that answered."""

    def find(self, wanted: Sequence[Sequence[Device]], terms: Terms) -> Answered | None:
        """The answer for the devices behind some tokens; ``None`` if the backend must be asked."""
        kept = self._kept.get(_key(wanted)) if self._kept and len(wanted) <= DEVICES else None
        if kept is None or kept[1] != terms or kept[2] is not self._backend.runner.serving:
            return None
        answered = kept[0]
        listed, prefix = self._backend.scanner.devices, self._backend.runner.prefix
        if any(listed.get(one.id) is not one for one in answered.answer.devices):
            return None
        same = all(node_number(prefix + path) == number for path, number in answered.numbers.items())
        return answered if same else None

    def keep(self, wanted: Sequence[Sequence[Device]], terms: Terms, answered: Answered) -> None:
        described = self._backend.runner.abilities.device_info  # and by something that may have changed
        if answered.lasts and not described and all(len(some) == 1 for some in wanted):
            if len(self._kept) >= MOST:
                self._kept.clear()
            self._kept[_key(wanted)] = answered, terms, self._backend.runner.serving


def _key(wanted: Sequence[Sequence[Device]]) -> tuple[int, ...]:
    """The identities of the devices; an answer keeps them alive."""
    return tuple(id(device) for some in wanted for device in some)
