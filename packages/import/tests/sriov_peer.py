"""The functions that sriov-network-device-plugin would offer, concluded from sysfs and its JSON.

Written from what that plugin does, not from what devhost does: one function here for each of its steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Selectors = Mapping[str, Any]


@dataclass(frozen=True)
class Thing:
    """A PCI function, or a scalable function on the auxiliary bus."""

    id: str
    path: Path
    pci: Path
    number: int


def text(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def entries(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir()) if path.is_dir() else []


@cache  # no test changes a tree
def things(root: Path, kind: str) -> list[Thing]:
    """What it considers for a type of device, without any selector."""
    found = []
    for link in sorted((root / "sys/bus/pci/devices").iterdir()):
        pci = link.resolve()
        base = text(pci / "class").removeprefix("0x")[:2]
        if base != ("12" if kind == "accelerator" else "02"):
            continue
        if kind == "auxNetDevice":
            parts = [path for path in pci.iterdir() if ".sf." in path.name]
            found += [Thing(one.name, one, pci, int(text(one / "sfnum"))) for one in parts]
        elif kind == "accelerator" or not int(text(pci / "sriov_numvfs") or "0"):
            found.append(Thing(pci.name, pci, pci, virtual_number(pci)))
    return found


def virtual_number(pci: Path) -> int:
    for link in (pci / "physfn").resolve().glob("virtfn*") if (pci / "physfn").exists() else ():
        if link.resolve() == pci:
            return int(link.name.removeprefix("virtfn"))
    return -1


@cache
def whole(thing: Thing) -> Path:
    return (thing.pci / "physfn").resolve() if (thing.pci / "physfn").exists() else thing.pci


@cache
def whole_name(thing: Thing) -> str:
    """The interface of the physical function: in switchdev mode that of its uplink."""
    net = whole(thing) / "net"
    uplinks = [name for name in entries(net) if text(net / name / "phys_port_name")[:1] == "p"]
    uplinks = [name for name in uplinks if text(net / name / "phys_port_name")[1:].isdigit()]
    names = uplinks or entries(net)
    return names[0] if names else ""


@cache
def link_type(thing: Thing) -> str:
    for path in (thing.path, whole(thing)):
        for name in entries(path / "net"):
            return {"1": "ether", "32": "infiniband"}.get(text(path / "net" / name / "type"), "")
    return ""


@cache
def vdpa_type(thing: Thing) -> str:
    for path in thing.path.iterdir():
        driver = (path / "driver").resolve().name if (path / "driver").exists() else ""
        if driver in ("vhost_vdpa", "virtio_vdpa"):
            return driver.removesuffix("_vdpa")
    return ""


def ranged(items: Iterable[str], name: str, number: int) -> bool:
    """A name with an optional range; of several for one name the first decides."""
    for item in items:
        wanted, _, numbers = item.partition("#")
        if wanted.lower() != name.lower():
            continue
        for part in numbers.split(",") if numbers else ():
            low, _, high = part.partition("-")
            if int(low) <= number <= int(high or low):
                return True
        return not numbers
    return False


@cache
def compared(thing: Thing) -> dict[str, str]:
    """By a selector that lists values, the one that it has to list."""
    path = thing.path
    pkey = [text(one / "ports/1/pkeys/0") for one in sorted((path / "infiniband").glob("*"))]
    return {
        "vendors": text(thing.pci / "vendor").removeprefix("0x"),
        "devices": text(thing.pci / "device").removeprefix("0x"),
        "drivers": (path / "driver").resolve().name if (path / "driver").exists() else "",
        "pciAddresses": thing.id,
        "acpiIndexes": text(path / "acpi_index"),
        "linkTypes": link_type(thing),
        "pKeys": pkey[0] if pkey else "",
    }


def takes(selectors: Selectors, thing: Thing, kind: str) -> bool:
    for key, value in compared(thing).items():
        if selectors.get(key) and value not in selectors[key]:
            return False
    if kind == "accelerator":
        return True
    name = whole_name(thing)
    if selectors.get("pfNames") and not (name and ranged(selectors["pfNames"], name, thing.number)):
        return False
    if selectors.get("rootDevices") and not ranged(selectors["rootDevices"], whole(thing).name, thing.number):
        return False
    if selectors.get("isRdma") and not entries(thing.path / "infiniband"):
        return False
    return not selectors.get("vdpaType") or vdpa_type(thing) == selectors["vdpaType"]


def offered(root: Path, config: str) -> dict[str, set[str]]:
    """The functions of each resource, by the resource's name; first come, first served."""
    taken: set[str] = set()
    found: dict[str, set[str]] = {}
    for resource in json.loads(config)["resourceList"]:
        kind = resource.get("deviceType", "netDevice")
        several = resource["selectors"]
        name = f"{resource.get('resourcePrefix') or 'intel.com'}/{resource['resourceName']}"
        pool = found[name] = set()
        for selectors in several if isinstance(several, list) else [several]:
            pool |= {
                one.id for one in things(root, kind) if one.id not in taken and takes(selectors, one, kind)
            }
            taken |= pool
    return found
