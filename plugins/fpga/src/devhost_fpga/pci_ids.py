"""PCI ids of XRT functions, for functions without a driver.

Taken from ``XOCL_USER_XDMA_PCI_IDS`` and ``XOCL_MGMT_PCI_IDS`` in src/runtime_src/core/pcie/driver/linux/
xocl/devices.h of XRT. Amazon and Xilinx also use these vendor ids for network adapters, disks and customers'
designs, so a function belongs to XRT only if it is listed here, or if XRT's driver is bound to it.
"""

from __future__ import annotations

USER_FILE, MANAGEMENT_FILE = "user_pf", "mgmt_pf"
"""Files that identify a function; XRT's drivers create them in its directory since 2018.3."""

USER_DRIVER, MANAGEMENT_DRIVER, AMI_DRIVER = "xocl", "xclmgmt", "ami"

ZOCL, ZOCL_NODE = "zocl", "zyxclmm_drm"
"""Prefix of drivers for embedded chips (``zocl``, ``zocl-drm``), and part of the name of their device tree
node (``amba:zyxclmm_drm`` or ``axi:zyxclmm_drm``)."""

AMA = "ama_transcoder"
"""The driver of transcoders, and the prefix of their misc devices."""

U30_SHELL = "xilinx_u30"
"""Part of the name of every shell of an Alveo U30."""

U30 = ("10ee", ("513d", "513c"))
"""Vendor id of the functions of a U30, and the device ids of user and management function."""

VENDORS = frozenset({"10ee", "13fe", "1d0f", "3475"})
"""Xilinx, Advantech, Amazon, Arista: vendors whose functions may belong to XRT."""

_USER = {
    "10ee": (
        "5001 5005 5009 500d 5011 5015 5019 501d 5021 5025 5029 5031 5035 503d 5045 5049 504f 5051 5059 505d"
        " 5061 506d 5075 5079 5086 5095 513d 6099"
    ),
    "13fe": "0065 0077",
    "1d0f": "1042 f000 f010 f011",
}

_MANAGEMENT = {
    "10ee": (
        "5000 5004 5008 500c 5010 5014 5018 501c 5020 5024 5028 5030 5034 503c 5044 5048 504e 5050 5058 505c"
        " 5060 506c 5074 5078 5094 513c 6098"
    ),
    "13fe": "006c 0078",
}


def is_user(vendor: str, device: str) -> bool:
    """Whether these ids are those of a user function. Digits in lower case, without ``0x``."""
    return device in _USER.get(vendor, "").split()


def is_management(vendor: str, device: str) -> bool:
    """Whether these ids are those of a management function."""
    return device in _MANAGEMENT.get(vendor, "").split()
