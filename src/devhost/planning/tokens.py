"""What the kubelet counts: the ids of a resource's tokens, made from devices and read back. Pure.

A *token* is a device (``<id>``), one of the replicas it is shared as (``<id>::<n>``), or one of those as
which all devices of a resource are handed out together (``all::<n>``). A *stand-in* (``~<token>``) is a
second id of a token, see :func:`stand_in`.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Container, Iterable, Mapping

from devhost.backend.model import MAX_DEVICE_ID, Device

ALL = "all"
"""What tokens that stand for all devices of a resource are named after: ``all::0``, ``all::1``, …

Always with a number, so that none is ever a device's id, which may have no double colon."""

STAND_IN = "~"
"""How the id of a stand-in begins. No device's id begins like this, and it sorts behind all of them."""

_NUMBER = re.compile(r"(.+)::(\d+)", re.DOTALL)
_ANY_NUMBER = ".*"
_LONGEST_NUMBER = "::999999"
_RANKS = 256
"""How many numbers are tried for a former id that had to be cut."""

_HASHED = 9
"""Characters that a hash takes at the end of a cut id, with its hyphen."""

_CUT = re.compile(r"(.+)-[0-9a-f]{8}", re.DOTALL)
_FIRST = string.ascii_letters + string.digits  # of a device's id, and so of a token


def token(device: str, number: int, replicas: int) -> str:
    """The id the kubelet knows a replica by: the device's own when it is not shared.

    Longer than 63 characters it is cut and carries a hash, as the proto's comment on ``ID`` wants.
    """
    return device if replicas == 1 else numbered(device, number)


def numbered(unit: str, number: int) -> str:
    """The id of the token of that number, see :func:`token`."""
    suffix = f"::{number}"
    if len(unit) + len(suffix) > MAX_DEVICE_ID:
        digest = hashlib.sha256(unit.encode()).hexdigest()[:8]
        unit = f"{unit[: MAX_DEVICE_ID - len(suffix) - 9]}-{digest}"
    return unit + suffix


def unit_of(name: str) -> str:
    """What a token is named after, without its number; cut where the token is."""
    found = _NUMBER.fullmatch(name)
    return name if found is None else found[1]


def stands_for_all(name: str) -> bool:
    """Whether a token stands for all devices of its resource."""
    return name != ALL and unit_of(name) == ALL


def stand_in(name: str) -> str:
    """The id of the stand-in for a token.

    While a container has a token that the kubelet has forgotten, the token is Unhealthy and its stand-in
    Healthy. The scheduler still subtracts the container's request from what the node offers, and the kubelet
    no longer counts the container's device: without the stand-in the device would be missing twice.
    """
    return STAND_IN + name if len(name) < MAX_DEVICE_ID else STAND_IN + name[1:]


def stood_for(name: str, tokens: Container[str]) -> str | None:
    """The one of these tokens whose stand-in this is; ``None`` if it is none of theirs."""
    if not name.startswith(STAND_IN):
        return None
    if name[1:] in tokens:
        return name[1:]
    if len(name) == MAX_DEVICE_ID:  # its first character made room for the mark
        return next((c + name[1:] for c in _FIRST if c + name[1:] in tokens), None)
    return None


def device_of(name: str, devices: Mapping[str, Device]) -> Device | None:
    """Which of these devices (by id) a token is made from, however they are shared now."""
    if name in devices:
        return devices[name]
    if name.startswith(STAND_IN):
        whole = (c + name[1:] for c in _FIRST) if len(name) == MAX_DEVICE_ID else ()
        found_in = (device_of(one, devices) for one in (name[1:], *whole))
        return next((device for device in found_in if device is not None), None)
    found = _NUMBER.fullmatch(name)
    if found is None:
        return None
    if found[1] in devices:
        return devices[found[1]]
    if len(name) == MAX_DEVICE_ID and (cut := _CUT.fullmatch(found[1])):
        for device in devices:
            if device.startswith(cut[1]) and numbered(device, int(found[2])) == name:
                return devices[device]
    return None


def number_of(name: str) -> int:
    """The number of a token; 0 where it has none."""
    found = _NUMBER.fullmatch(name)
    return int(found[2]) if found else 0


def is_former(name: str, device: Device) -> bool:
    """Whether a token of this device is made from a former id of it."""
    if not device.former_ids or stands_for_all(name):
        return False
    return device_of(name, {device.id: device}) is None


class Known:
    """The devices of one backend as tokens name them: by their present ids, and by former ones.

    The index of former ids is built when a token first matches no present id.

    Args:
        devices: every device there is now, by id.
    """

    def __init__(self, devices: Mapping[str, Device]) -> None:
        self.devices = devices
        self._former: _Former | None = None

    def named(self, name: str) -> tuple[Device, ...]:
        """The device that has this id; without one, every device that may have had it before."""
        device = device_of(name, self.devices)
        if device is not None:
            return (device,)
        name = name.removeprefix(STAND_IN)
        if self._former is None:
            self._former = _Former(self.devices.values())
        return self._former.named(name)


class _Former:
    """Devices by :attr:`.Device.former_ids`."""

    def __init__(self, devices: Iterable[Device]) -> None:
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
        if not found and len(unit_of(name)) >= MAX_DEVICE_ID - len(_LONGEST_NUMBER):
            found = self._cut(name)
        return tuple(found.values())

    def _cut(self, name: str) -> dict[str, Device]:
        """The same for tokens whose ids had to be cut: only trying shows what hash an id has."""
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
    """An id that may be too long as ``Device.former_ids`` prescribes."""
    if len(text) <= MAX_DEVICE_ID:
        return text
    return f"{text[: MAX_DEVICE_ID - _HASHED]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
