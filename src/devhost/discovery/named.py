"""The devices that a text names: by id, by an attribute value that identifies them, or by a claimed node."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from devhost.backend.base import declared
from devhost.backend.model import Device
from devhost.backend.sysfs import natural
from devhost.planning.claims import binds_pod

from .scanner import BackendNow

Match = tuple[str, Device]
"""The name of a backend, and a device of it."""

_Values = Callable[[str, BackendNow, Device], Collection[str]]


def named(backends: Mapping[str, BackendNow], texts: Collection[str]) -> dict[str, list[Match]]:
    """The devices with this id, or else with this attribute value or claimed node; only texts that match.

    If nothing matches exactly, ids match without regard to case as long as only one device matches, and so
    do the attributes that ``where`` compares without regard to case.
    """
    texts, found = frozenset(texts), {}
    for text in texts:
        if exact := _with_id(backends, text):
            found[text] = exact
    found |= _having(backends, texts - found.keys(), _values, str)
    found |= {text: one for text, one in alike(backends, texts - found.keys()).items() if len(one) == 1}
    return found | _having(backends, texts - found.keys(), _hex_values, str.lower)


def alike(backends: Mapping[str, BackendNow], texts: Collection[str]) -> dict[str, list[Match]]:
    """The devices whose ids differ from a text at most in case."""
    return _having(backends, texts, _folded_ids, str.lower)


def whole(matches: Sequence[Match]) -> Sequence[Match]:
    """The one device that a name means, as each backend finds it; empty if it means several, or none.

    The claims show what is the same device, and what is only a part of it.
    """
    claims = {claim for _, device in matches for claim in device.claims}
    rest = [match for match in matches if claims.isdisjoint(match[1].part_of)]
    found, together = rest[:1], {claim for _, device in rest[:1] for claim in device.claims}
    while joined := [match for match in rest[1:] if not together.isdisjoint(match[1].claims)]:
        found += joined
        together.update(claim for _, device in joined for claim in device.claims)
        rest = [match for match in rest if match not in joined]
    return found if len(rest) == 1 else []


class Parts:
    """The devices that are parts of others: MIG instances, virtual functions."""

    def __init__(self, backends: Mapping[str, BackendNow]) -> None:
        self._of: dict[str, list[Match]] = {}
        for name, backend in backends.items():
            for device in backend.devices.values():
                for claim in device.part_of:
                    self._of.setdefault(claim, []).append((name, device))

    def of(self, matches: Iterable[Match]) -> Iterator[Match]:
        """The parts of one device; one may come more than once."""
        for _, device in matches:
            for claim in device.claims:
                if not binds_pod(claim):
                    yield from self._of.get(claim, ())


def _with_id(backends: Mapping[str, BackendNow], text: str) -> list[Match]:
    found = []
    for name, backend in backends.items():
        for own in (text, text.removeprefix(f"{name}/")):
            if (device := backend.devices.get(own)) is not None:
                found.append((name, device))
                break
    return found


def _having(
    backends: Mapping[str, BackendNow], texts: Collection[str], values: _Values, form: Callable[[str], str]
) -> dict[str, list[Match]]:
    """The devices of which a value equals a text in this form. Looks at each device once."""
    wanted: dict[str, list[str]] = {}
    for text in texts:
        wanted.setdefault(form(text), []).append(text)
    found: dict[str, list[Match]] = {}
    for name, backend in backends.items() if wanted else ():
        own: dict[str, list[Match]] = {}
        for device in backend.devices.values():
            for value in wanted.keys() & values(name, backend, device):
                own.setdefault(value, []).append((name, device))
        for value, matches in own.items():
            matches.sort(key=lambda match: natural(match[1].id))
            for text in wanted[value]:
                found.setdefault(text, []).extend(matches)
    return found


def _values(name: str, backend: BackendNow, device: Device) -> set[str]:
    found = {claim.removeprefix("node:") for claim in device.claims if claim.startswith("node:")}
    for value in device.attributes.values():
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, tuple):
            found.update(value)
    return found


def _folded_ids(name: str, backend: BackendNow, device: Device) -> set[str]:
    return {device.id.lower(), f"{name}/{device.id}".lower()}


def _hex_values(name: str, backend: BackendNow, device: Device) -> set[str]:
    """The values of attributes that are compared without regard to case."""
    found: set[str] = set()
    for key, value in device.attributes.items():
        attribute = declared(backend.attributes, key)
        if attribute is not None and attribute.hex:
            found.update(map(str.lower, value if isinstance(value, tuple) else (str(value),)))
    return found
