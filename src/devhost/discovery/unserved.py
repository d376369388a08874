"""What the kernel knows by a name that no backend lists, and why no resource can have it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from devhost.backend.sysfs import BDF, PCI_BUS, Sysfs, pci_path
from devhost.backend.where import Text
from devhost.planning.plan import Plan
from devhost.planning.settings import Settings

_NET = "/sys/class/net"

_MAX_LINKED = 40
"""The most links from one to the next, as in the kernel (path_resolution(7))."""

NAMED = 3
"""Most links that the reason of an entry names."""

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


def dead_links(root: Path, settings: Settings, plan: Plan) -> Mapping[int, str]:
    """Which symbolic links below ``/dev`` lead to nothing that an entry names and that lacks devices.

    By the index of the entry, with the reasons of the first :data:`NAMED`. Looks at nothing outside
    ``/dev``, which may hang.
    """
    served, found = plan.served(), {}
    for entry in settings.resources:
        count = sum(one.size for one in served.get(entry.index, ()))
        if count and (not entry.unexpected(count) or entry.exceeds(count)):
            continue
        terms = (term for block in entry.where for term in block.terms)
        texts = (one for term in terms for one in term.patterns if isinstance(one, Text) and not one.is_glob)
        paths = (one.pattern for one in texts if one.pattern.startswith("/dev/"))
        if dead := "; ".join(islice(filter(None, (_dead_link(root, path) for path in paths)), NAMED)):
            found[entry.index] = dead
    return found


def _dead_link(root: Path, path: str) -> str:
    """Why a symbolic link leads to nothing; empty if it is none, or leads to something."""
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
