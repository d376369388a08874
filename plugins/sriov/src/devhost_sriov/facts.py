"""What only netlink tells of a function: absent where it cannot be asked, so sysfs alone is always enough."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Facts:
    """About one function. Texts are empty where nothing was told.

    ``eswitch_mode`` is ``legacy`` or ``switchdev`` (devlink, ``DEVLINK_ATTR_ESWITCH_MODE``), of the function
    itself if physical, else of the one it is of. ``mac`` is the address that the physical function has set
    for a virtual one (rtnetlink, ``IFLA_VF_MAC``), for when it has no interface here. ``representor`` is
    the interface that stands for it in the embedded switch, where devlink names it. ``in_use`` says, as
    a clause, what the node uses it for: ``"it carries the IPv4 default route, through bond0"``.
    """

    eswitch_mode: str = ""
    mac: str = ""
    ddp_profile: str = ""
    representor: str = ""
    in_use: str = ""


NOTHING = Facts()
"""Nothing was told."""
