"""Compares what the backends find in the tree with what they find on the machine. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from devhost.backend.model import Device
from devhost.backend.where import show
from devhost.cli.scan_once import ScanResult
from devhost.discovery.scanner import BackendCondition


def differences(machine: ScanResult, tree: ScanResult) -> Iterator[str]:
    """Each difference in one clause; empty if ``discover`` shows the same for both."""
    for name, scanner in machine.scanners.items():
        here, there = scanner.condition, tree.scanners[name].condition
        if (here.state, here.reason) != (there.state, there.reason):
            yield f"backend {name} is {_state(here)}, with the tree {_state(there)}"
    real = {(name, device.id): device for name, device in machine.devices()}
    shown = {(name, device.id): device for name, device in tree.devices()}
    for key in sorted(real.keys() | shown.keys()):
        label = f"{key[0]}: {key[1]}"
        if key not in shown:
            yield f"{label} is not in the tree"
        elif key not in real:
            yield f"{label} is only in the tree"
        else:
            yield from (f"{label}: {text}" for text in _apart(real[key], shown[key]))


def _state(condition: BackendCondition) -> str:
    return f"{condition.state} ({condition.reason})" if condition.reason else condition.state


def _apart(real: Device, shown: Device) -> Iterator[str]:
    for name in sorted(real.attributes.keys() | shown.attributes.keys()):
        here, there = real.attributes.get(name), shown.attributes.get(name)
        if here != there:
            texts = ("absent" if value is None else show(value) for value in (here, there))
            yield f"{name} is {', in the tree '.join(texts)}"
    for field in fields(Device):
        if field.name != "attributes" and getattr(real, field.name) != getattr(shown, field.name):
            yield f"{field.name.replace('_', ' ')} differs"
