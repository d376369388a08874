"""DeviceClasses for the resources that pods get with claims: what ``devhost dra classes`` prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from devhost.backend.frozen import frozen

from .naming import device_class, resource_attribute
from .settings import ResourceSettings

API_VERSION = "resource.k8s.io/v1"
"""The API group and version of the objects, in Kubernetes since 1.34."""


@frozen
class DeviceClass:
    """One class: its name, and the resources whose devices it selects, by their driver.

    ``extended_name`` is the resource whose name pods without claims may request; empty if they may not.
    ``amounts`` is what a claim may request of each device, in words, if claims share by amount. ``counters``
    is whether devices that exclude each other are offered together.
    """

    name: str
    resources: Mapping[str, Sequence[str]]
    extended_name: str = ""
    amounts: tuple[str, ...] = ()
    counters: bool = False

    def expression(self) -> str:
        """The CEL expression that is true for the devices of the class.

        Each part protects the next: an attribute that a device lacks would stop the scheduler otherwise.
        """
        parts = [_selects(driver, resources) for driver, resources in self.resources.items()]
        return parts[0] if len(parts) == 1 else " || ".join(f"({part})" for part in parts)

    def manifest(self) -> dict[str, Any]:
        """The object in the terms of JSON."""
        spec: dict[str, Any] = {"selectors": [{"cel": {"expression": self.expression()}}]}
        if self.extended_name:
            spec["extendedResourceName"] = self.extended_name
        return {
            "apiVersion": API_VERSION,
            "kind": "DeviceClass",
            "metadata": {"name": self.name},
            "spec": spec,
        }


class ClassesOverlap(Exception):
    """Two resources have one class, which must not be: ``reason`` is why."""

    def __init__(self, name: str, resources: Sequence[str], reason: str) -> None:
        super().__init__(name)
        self.name = name
        self.resources = resources
        self.reason = reason


def _selects(driver: str, resources: Sequence[str]) -> str:
    attribute = f'device.attributes["{driver}"].resource'
    values = [f'"{resource_attribute(resource)}"' for resource in resources]
    wanted = f"== {values[0]}" if len(values) == 1 else f"in [{', '.join(values)}]"
    return f'device.driver == "{driver}" && has({attribute}) && {attribute} {wanted}'


def device_classes(resources: Iterable[tuple[str, ResourceSettings]]) -> list[DeviceClass]:
    """The classes of resources, in the order of their first resource.

    ``resources`` are names without a template, each with its entry. Raises ``ClassesOverlap`` if a class with
    an extended name has several resources, or the same class is made of the names of several.
    """
    members: dict[str, dict[str, bool]] = {}
    drivers: dict[str, dict[str, list[str]]] = {}
    amounts: dict[str, dict[str, None]] = {}
    counted: set[str] = set()
    made: dict[str, dict[str, None]] = {}
    for name, entry in resources:
        if not (title := entry.dra.device_class):
            title = device_class(name)
            made.setdefault(title, {})[name] = None
        amounts.setdefault(title, {}).update((one.words, None) for one in entry.share.amounts)
        if entry.counts:
            counted.add(title)
        found = members.setdefault(title, {})
        if name not in found:
            drivers.setdefault(title, {}).setdefault(entry.driver, []).append(name)
        found[name] = found.get(name, False) or entry.dra.extended_name
    classes = []
    for title, found in members.items():
        extended = [name for name, wanted in found.items() if wanted]
        if extended and len(found) > 1:
            raise ClassesOverlap(title, tuple(found), "extendedName allows one of them")
        if len(alike := made.get(title, ())) > 1:
            raise ClassesOverlap(title, tuple(alike), "claims could get devices of both")
        classes.append(
            DeviceClass(title, drivers[title], "".join(extended), tuple(amounts[title]), title in counted)
        )
    return classes
