"""The devices that a text names: by id, by an attribute value that identifies them, or by a claimed node.

What the kernel knows by a name that no backend lists has a reason why no resource can have it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from devhost.backend.base import declared
from devhost.backend.model import Device
from devhost.backend.sysfs import BDF, PCI_BUS, Sysfs, natural, pci_path
from devhost.planning.claims import binds_pod

from .scanner import Scanner

Match = tuple[str, Device]
"""The name of a backend, and a device of it."""

_Values = Callable[[str, Scanner, Device], Collection[str]]


def named(scanners: Mapping[str, Scanner], texts: Collection[str]) -> dict[str, list[Match]]:
    """The devices with this id, or else with this attribute value or claimed node; only texts that match.

    If nothing matches exactly, ids match without regard to case as long as only one device matches, and so
    do the attributes that ``where`` compares without regard to case.
    """
    texts, found = frozenset(texts), {}
    for text in texts:
        if exact := _with_id(scanners, text):
            found[text] = exact
    found |= _having(scanners, texts - found.keys(), _values, str)
    found |= {text: one for text, one in alike(scanners, texts - found.keys()).items() if len(one) == 1}
    return found | _having(scanners, texts - found.keys(), _hex_values, str.lower)


def alike(scanners: Mapping[str, Scanner], texts: Collection[str]) -> dict[str, list[Match]]:
    """The devices whose ids differ from a text at most in case."""
    return _having(scanners, texts, _folded_ids, str.lower)


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

    def __init__(self, scanners: Mapping[str, Scanner]) -> None:
        self._of: dict[str, list[Match]] = {}
        for backend, scanner in scanners.items():
            for device in scanner.devices.values():
                for claim in device.part_of:
                    self._of.setdefault(claim, []).append((backend, device))

    def of(self, matches: Iterable[Match]) -> Iterator[Match]:
        """The parts of one device; one may come more than once."""
        for _, device in matches:
            for claim in device.claims:
                if not binds_pod(claim):
                    yield from self._of.get(claim, ())


def _with_id(scanners: Mapping[str, Scanner], text: str) -> list[Match]:
    found = []
    for backend, scanner in scanners.items():
        for name in (text, text.removeprefix(f"{backend}/")):
            if (device := scanner.devices.get(name)) is not None:
                found.append((backend, device))
                break
    return found


def _having(
    scanners: Mapping[str, Scanner], texts: Collection[str], values: _Values, form: Callable[[str], str]
) -> dict[str, list[Match]]:
    """The devices of which a value equals a text in this form. Looks at each device once."""
    wanted: dict[str, list[str]] = {}
    for text in texts:
        wanted.setdefault(form(text), []).append(text)
    found: dict[str, list[Match]] = {}
    for backend, scanner in scanners.items() if wanted else ():
        own: dict[str, list[Match]] = {}
        for device in scanner.devices.values():
            for value in wanted.keys() & values(backend, scanner, device):
                own.setdefault(value, []).append((backend, device))
        for value, matches in own.items():
            matches.sort(key=lambda match: natural(match[1].id))
            for text in wanted[value]:
                found.setdefault(text, []).extend(matches)
    return found


def _values(backend: str, scanner: Scanner, device: Device) -> set[str]:
    found = {claim.removeprefix("node:") for claim in device.claims if claim.startswith("node:")}
    for value in device.attributes.values():
        if isinstance(value, str):
            found.add(value)
        elif isinstance(value, tuple):
            found.update(value)
    return found


def _folded_ids(backend: str, scanner: Scanner, device: Device) -> set[str]:
    return {device.id.lower(), f"{backend}/{device.id}".lower()}


def _hex_values(backend: str, scanner: Scanner, device: Device) -> set[str]:
    """The values of attributes that are compared without regard to case."""
    known = scanner.runner.kind.attributes
    found: set[str] = set()
    for key, value in device.attributes.items():
        attribute = declared(known, key)
        if attribute is not None and attribute.hex:
            found.update(map(str.lower, value if isinstance(value, tuple) else (str(value),)))
    return found


_NET = "/sys/class/net"

_MAX_LINKED = 40
"""The most links from one to the next, as in the kernel (path_resolution(7))."""

_LINK_TYPES = {"1": "Ethernet", "32": "InfiniBand", "280": "CAN", "772": "loopback", "801": "wireless"}
"""Types of network interfaces (include/uapi/linux/if_arp.h)."""


def resolved(root: Path, path: str) -> str:
    """The path below ``root`` that a path leads to through symbolic links; itself if they form a loop.

    A PCI address without its domain gets the domain 0000; other texts are unchanged.
    """
    if not path.startswith("/"):
        return full if BDF.fullmatch(full := f"0000:{path.lower()}") else path
    way = _followed(Sysfs(root).prefix, path)
    return path if way.links > _MAX_LINKED else way.end


def dead_link(root: Path, path: str) -> str:
    """Why a symbolic link below ``/dev`` leads to nothing; empty if it is none, or leads to something.

    Looks at nothing outside ``/dev``, which may hang.
    """
    way = _followed(Sysfs(root).prefix, path, "/dev/")
    if way.links > _MAX_LINKED:
        return f"{path} leads nowhere: its symbolic links form a loop"
    return f"{path} leads to {way.end}, which does not exist" if way.links and not way.exists else ""


class _Way(NamedTuple):
    """Where a path leads to: its end, the links on the way, and whether the end exists."""

    end: str
    links: int
    exists: bool = True


def _followed(prefix: str, path: str, inside: str = "/") -> _Way:
    """Follows the symbolic links in a path, as for a process whose root is ``prefix``: none leads out of it.

    Nothing outside the directory ``inside`` is looked at.
    """
    done, rest, links = "", path.split("/"), 0
    while rest:
        if (name := rest.pop(0)) in ("", "."):
            continue
        done = done.rpartition("/")[0] if name == ".." else f"{done}/{name}"
        if not f"{done}/".startswith(inside):
            return _Way("/".join((done, *rest)), links)
        try:
            target = os.readlink(f"{prefix}{done}")  # noqa: PTH115 - a plain string path
        except FileNotFoundError:
            return _Way("/".join((done, *rest)), links, exists=False)
        except (OSError, ValueError):
            continue  # it is no link
        if (links := links + 1) > _MAX_LINKED:
            break
        done = "" if target.startswith("/") else done.rpartition("/")[0]
        rest = [*target.removeprefix(prefix).split("/"), *rest]
    return _Way(done or "/", links)


def why_unserved(root: Path, text: str) -> tuple[str, str] | None:
    """Why no backend lists what the kernel knows by this name, and what to do; ``None`` for unknown names.

    A name is a path below ``/dev``, a PCI address, or the name of any device in sysfs.
    """
    sysfs = Sysfs(root)
    if text.startswith("/dev/"):
        return _path(sysfs, root, text)
    if "/" in text or text in ("", ".", ".."):
        return None
    if sysfs.exists(f"{_NET}/{text}"):
        return _interface(sysfs, text)
    address = resolved(root, text.lower())
    if BDF.fullmatch(address) and sysfs.exists(f"{PCI_BUS}/{address}"):
        function = sysfs.pci(sysfs.device(f"{PCI_BUS}/{address}"))
        ids = f" {function.vendor}:{function.device}" if function else ""
        driver = function.driver if function else ""
        bound = f"with driver {driver}" if driver else "without a driver"
        return f"it is a PCI function{ids} {bound}", ""
    for kind, below in (("class", ""), ("bus", "/devices")):
        for name in sysfs.names(f"/sys/{kind}"):
            if sysfs.exists(f"/sys/{kind}/{name}{below}/{text}"):
                return f"it is a device of {kind} {name} without a device node", ""
    return None


def _interface(sysfs: Sysfs, name: str) -> tuple[str, str]:
    link = _LINK_TYPES.get(sysfs.text(f"{_NET}/{name}/type"), "")
    what = f"it is a network interface{f' ({link})' if link else ''}"
    address = pci_path(sysfs.device(f"{_NET}/{name}")).rpartition("/")[2]
    if address:
        return f"{what} on the PCI function {address}", "backends sriov and rdma offer PCI functions"
    return f"{what}, which has no device node and is not on PCI", "a CNI plugin can move it into a pod"


def _path(sysfs: Sysfs, root: Path, path: str) -> tuple[str, str] | None:
    real = resolved(root, path)
    leads = "" if real == path else f"it leads to {real}, which "
    try:
        mode = os.stat(f"{sysfs.prefix}{real}").st_mode  # noqa: PTH116 - a plain string path
    except FileNotFoundError:
        return (f"{leads}does not exist", "") if leads else None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return "its symbolic links form a loop", "correct the links, or the rule of udevd that makes them"
        return f"{leads or 'it '}cannot be accessed", "run the command as root"
    except ValueError:
        return f"{leads or 'it '}cannot be accessed", "run the command as root"
    if stat.S_ISDIR(mode):
        return f"{leads or 'it '}is a directory", "name a node in it, or make a group of the backend udev"
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode) or (sysfs.prefix and stat.S_ISREG(mode)):
        return f"{leads or 'it '}is a device node that no backend lists", ""
    return f"{leads or 'it '}is not a device node", ""
