"""The health of an XRT card, from files of its drivers in sysfs.

Only files that do not block are read. On a user function, xocl answers reads of ``firewall.u.*``, ``mig.u.*``
and sensors by asking xclmgmt through a mailbox, and logs each read in the kernel log. So these are read on
the management function, which has the registers. Its ``error`` is never read, since reading clears it.
"""

from __future__ import annotations

from collections.abc import Iterator

from devhost.backend import HEALTHY, Health, unhealthy
from devhost.backend.frozen import frozen
from devhost.backend.sysfs import Sysfs

from . import model, xrt_cards

SHUTDOWN = 97
"""Degrees Celsius at which a card shuts down (``check_temp_within_range``, mgmt-core.c of XRT)."""

RESETTING = "it is being reset, or its driver is still probing it"


@frozen
class Condition:
    """A health with the files that it depends on; ``is_passing`` if it changes without a uevent."""

    health: Health
    is_passing: bool = False
    watched: tuple[str, ...] = ()


def user(sysfs: Sysfs, path: str, render: str) -> Condition:
    """The condition of a user function of xocl with this render node; empty if it has none."""
    watched = offline, ready = f"{path}/dev_offline", f"{path}/ready"
    if sysfs.is_dead(path):
        return Condition(unhealthy(model.LOST))
    reason, is_passing = "", True
    # during a hot reset, xocl keeps `user_pf` and removes all other files (xocl_init_persist_sysfs)
    if not any(map(sysfs.exists, watched)) or not xrt_cards.part(sysfs, path, "rom"):
        reason = RESETTING
    elif sysfs.integer(offline):
        reason = "it is being reset: xocl has set it offline"
    elif sysfs.exists(ready) and not sysfs.integer(ready):  # older drivers have no such file
        reason = "its management function does not answer xocl (are xclmgmt and mpd running on its machine?)"
        is_passing = False
    elif not render:
        reason = "xocl created no render node for it"
    return (
        Condition(unhealthy(reason), is_passing, watched) if reason else Condition(HEALTHY, watched=watched)
    )


def management(sysfs: Sysfs, path: str) -> Condition:
    """The condition of a card by its management function, which xclmgmt drives."""
    watched = [f"{path}/dev_offline", f"{path}/ready"]
    if sysfs.is_dead(path):
        return Condition(unhealthy(f"its management function failed: {model.LOST}"))
    if sysfs.integer(f"{path}/dev_offline"):
        return Condition(unhealthy("it is being reset: xclmgmt has set it offline"), True, tuple(watched))
    if sysfs.integer(f"{path}/ready") == 0:
        reason = "xclmgmt could not start it: it has an unknown shell, or its factory image"
        return Condition(unhealthy(reason), watched=tuple(watched))
    for file, reason in _alarms(sysfs, path):
        if file:
            watched.append(file)
        if reason:
            # behind a tripped firewall, other registers may hang or be wrong
            return Condition(unhealthy(reason), watched=tuple(watched))
    return Condition(HEALTHY, watched=tuple(watched))


def control(sysfs: Sysfs, path: str) -> Condition:
    """The condition of a function of the ``ami`` driver, by its ``dev_state`` (ami_sysfs.c, ami_top.h)."""
    watched = (f"{path}/dev_state",)
    if sysfs.is_dead(path):
        return Condition(unhealthy(model.LOST))
    state = sysfs.text(watched[0])
    if state in ("READY", "COMPAT"):
        return Condition(HEALTHY, watched=watched)
    passing = state in ("INIT", "SHUTDOWN")
    return Condition(unhealthy(f"the ami driver reports state {state or 'unknown'}"), passing, watched)


def _alarms(sysfs: Sysfs, path: str) -> Iterator[tuple[str, str]]:
    """Files of a management function to watch, with the fault that each shows; both may be empty."""
    for name in sysfs.names(path):
        place, kind = f"{path}/{name}", name.split(".")[0]
        if kind == "firewall":
            status = sysfs.integer(f"{place}/status")
            where = sysfs.text(f"{place}/level")
            text = f"AXI firewall {where} has tripped, status {status:#x}: reset the card" if status else ""
            yield f"{place}/status", text
    for name in sysfs.names(path):
        place, kind = f"{path}/{name}", name.split(".")[0]
        if kind == "xmc":
            celsius = sysfs.integer(f"{place}/xmc_fpga_temp")
            hot = celsius is not None and celsius >= SHUTDOWN
            # not watched: it changes constantly
            yield "", f"its FPGA has {celsius} °C and shuts down" if hot else ""
        elif kind == "mig":
            # bit 0: uncorrectable, bit 1: corrected (`ecc_status_show`, mig.c)
            status = sysfs.integer(f"{place}/ecc_status") or 0
            bank = sysfs.text(f"{place}/name") or name
            yield (
                f"{place}/ecc_status",
                f"uncorrectable memory error in {bank}: reset it" if status & 1 else "",
            )
