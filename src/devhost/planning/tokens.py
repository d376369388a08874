"""What the kubelet counts: the ids of a resource's tokens, made from devices and parsed again. Pure.

A *token* represents a device (``<id>``), one replica of a shared device (``<id>::<n>``), or all devices of a
resource together (``all::<n>``). A *stand-in* (``~<token>``) is a second id of a token, see :func:`stand_in`.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import lru_cache

from devhost.backend.model import MAX_DEVICE_ID, Device

from .naming import digest

ALL = "all"
"""The prefix of tokens that represent all devices of a resource: ``all::0``, ``all::1``, …

They always have a number, so they are never equal to a device's id, which cannot contain a double colon."""

STAND_IN = "~"
"""The prefix of the id of a stand-in. No device's id begins with it, and it sorts after all of them."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+/=#-]*")
_NUMBER = re.compile(r"(.+)::(\d+)", re.DOTALL)
_ANY_NUMBER = ".*"
_LONGEST_NUMBER = "::999999"
_RANKS = 256
"""How many numbers are tried for a former id that was cut."""

_HASHED = 9
"""Characters of the hash at the end of a cut id, with its hyphen."""

_CUT = re.compile(r"(.+)-[0-9a-f]{8}", re.DOTALL)
_FIRST = string.ascii_letters + string.digits  # of a device's id, and so of a token


def id_flaw(text: str) -> str:
    """Why a text cannot be the id of a device; empty if it can."""
    if len(text) > MAX_DEVICE_ID:
        return f"has {len(text)} characters, more than {MAX_DEVICE_ID}"
    if not _ID.fullmatch(text) or "::" in text:
        return "has characters other than letters, digits and ._:@+/=#-, or a double colon"
    return ""


def token(device: str, number: int, replicas: int) -> str:
    """The id of a replica for the kubelet: the device's id if it is not shared.

    An id longer than 63 characters is cut and ends in a hash, as the proto's comment on ``ID`` requires.
    """
    return device if replicas == 1 else numbered(device, number)


def numbered(unit: str, number: int) -> str:
    """The id of the token with this number, see :func:`token`."""
    suffix = f"::{number}"
    if len(unit) + len(suffix) > MAX_DEVICE_ID:
        unit = _cut(unit, len(suffix))
    return unit + suffix


@lru_cache(64)  # a resource has very many tokens of one device
def _cut(unit: str, suffix: int) -> str:
    """A unit that is too long for a number of so many characters after it."""
    return f"{unit[: MAX_DEVICE_ID - suffix - _HASHED]}-{digest(unit)}"


def unit_of(name: str) -> str:
    """A token without its number; cut if the token is."""
    found = _NUMBER.fullmatch(name)
    return name if found is None else found[1]


def alike(names: Iterable[str]) -> Collection[Sequence[str]]:
    """The tokens in groups: those of one group differ only in the number, and mean the same devices."""
    groups: dict[tuple[str, int], list[str]] = {}
    for name in names:
        unit = unit_of(name)
        groups.setdefault((unit, len(name) - len(unit)), []).append(name)
    return groups.values()


def represents_all(name: str) -> bool:
    """Whether a token represents all devices of its resource."""
    return name != ALL and unit_of(name) == ALL


def stand_in(name: str) -> str:
    """The id of the stand-in for a token.

    While a container holds a token that the kubelet has forgotten, the token is Unhealthy and its stand-in
    Healthy. The scheduler still subtracts the container's request from what the node offers, but the kubelet
    no longer counts the container's device. Without the stand-in, the device would be missing twice.
    """
    return STAND_IN + name if len(name) < MAX_DEVICE_ID else STAND_IN + name[1:]


def stood_for(name: str, tokens: Container[str]) -> str | None:
    """The token of these to which a stand-in belongs; ``None`` if it belongs to none of them."""
    if not name.startswith(STAND_IN):
        return None
    if name[1:] in tokens:
        return name[1:]
    if len(name) == MAX_DEVICE_ID:  # its first character was replaced by the prefix
        return next((c + name[1:] for c in _FIRST if c + name[1:] in tokens), None)
    return None


def device_of(
    name: str,
    devices: Mapping[str, Device],
    of_cut: Callable[[str, int], Device | None] | None = None,
) -> Device | None:
    """The device (of these, by id) that a token was made from, even if it is shared differently now.

    ``of_cut`` finds the device of a cut id and the length of its number; without it, all are compared.
    """
    if name in devices:
        return devices[name]
    if name.startswith(STAND_IN):
        whole = (c + name[1:] for c in _FIRST) if len(name) == MAX_DEVICE_ID else ()
        found_in = (device_of(one, devices, of_cut) for one in (name[1:], *whole))
        return next((device for device in found_in if device is not None), None)
    found = _NUMBER.fullmatch(name)
    if found is None:
        return None
    if found[1] in devices:
        return devices[found[1]]
    if len(name) == MAX_DEVICE_ID and (cut := _CUT.fullmatch(found[1])):
        if of_cut is not None:
            return of_cut(found[1], len(name) - len(found[1]))
        for device in devices:
            if device.startswith(cut[1]) and numbered(device, int(found[2])) == name:
                return devices[device]
    return None


def number_of(name: str) -> int:
    """The number of a token; 0 if it has none."""
    found = _NUMBER.fullmatch(name)
    return int(found[2]) if found else 0


def is_former(name: str, device: Device) -> bool:
    """Whether a token of this device was made from one of its former ids."""
    if not device.former_ids or represents_all(name):
        return False
    return device_of(name, {device.id: device}) is None


class DeviceIds:
    """The devices of one backend by their present and former ids.

    The index of former ids is built when a token first matches no present id.
    """

    def __init__(self, devices: Mapping[str, Device]) -> None:
        self.devices = devices
        self._former: _Former | None = None
        self._cut: dict[int, Mapping[str, Device]] = {}

    def named(self, name: str) -> tuple[Device, ...]:
        """The device with this id; if there is none, every device that may have had it before."""
        device = device_of(name, self.devices, self._of_cut)
        if device is not None:
            return (device,)
        name = name.removeprefix(STAND_IN)
        if self._former is None:
            self._former = _Former(self.devices.values())
        return self._former.named(name)

    def _of_cut(self, unit: str, suffix: int) -> Device | None:
        """The device whose id was cut to ``unit``, before a number of so many characters."""
        index = self._cut.get(suffix)
        if index is None:
            long = (one for one in self.devices if len(one) + suffix > MAX_DEVICE_ID)
            index = self._cut[suffix] = {_cut(one, suffix): self.devices[one] for one in long}
        return index.get(unit)


class _Former:
    """Devices by :attr:`.Device.former_ids`."""

    def __init__(self, devices: Iterable[Device]) -> None:
        self._cuts: dict[tuple[str, int], Mapping[str, Device]] = {}
        self._plain: dict[str, dict[str, Device]] = {}
        self._ranked: dict[str, dict[str, Device]] = {}
        for device in devices:
            for former in device.former_ids:
                text = former.removesuffix(_ANY_NUMBER)
                index = self._plain if text == former else self._ranked
                index.setdefault(text, {})[device.id] = device

    def named(self, name: str) -> tuple[Device, ...]:
        if not (self._plain or self._ranked):
            return ()
        found: dict[str, Device] = {}
        for unit in (name, unit_of(name)):
            found |= self._plain.get(unit, {})
            base, dot, rank = unit.rpartition(".")
            if dot and rank.isdecimal():
                found |= self._ranked.get(base, {})
        unit = unit_of(name)
        if not found and len(unit) >= MAX_DEVICE_ID - len(_LONGEST_NUMBER):
            which = unit, len(name) - len(unit)  # computed once for all tokens that differ in the number
            if which not in self._cuts:
                self._cuts[which] = self._cut(name)
            return tuple(self._cuts[which].values())
        return tuple(found.values())

    def _cut(self, name: str) -> dict[str, Device]:
        """The same for tokens that were cut: only computing the hash shows whether an id matches."""
        number = _NUMBER.fullmatch(name)
        beginning = MAX_DEVICE_ID - _HASHED - (len(name) - len(unit_of(name)))
        found: dict[str, Device] = {}
        for index, ranks in ((self._plain, 1), (self._ranked, _RANKS)):
            for text, devices in index.items():
                if not name.startswith(text[:beginning]):
                    continue
                forms = {_fit(text if ranks == 1 else f"{text}.{rank}") for rank in range(ranks)}
                if name in forms or (number and name in {numbered(one, int(number[2])) for one in forms}):
                    found |= devices
        return found


def _fit(text: str) -> str:
    """An id, cut if it is too long, as ``Device.former_ids`` prescribes."""
    return text if len(text) <= MAX_DEVICE_ID else _cut(text, 0)
