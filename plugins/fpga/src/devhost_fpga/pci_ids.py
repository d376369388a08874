"""Which PCI functions are XRT's, by their ids alone: for functions that no driver is bound to.

Taken from ``XOCL_USER_XDMA_PCI_IDS`` and ``XOCL_MGMT_PCI_IDS`` in src/runtime_src/core/pcie/driver/linux/
xocl/devices.h of XRT. Amazon and Xilinx have network adapters, disks and designs of others under the same
vendor ids, so a vendor says nothing: a function is XRT's when it is in here, or when XRT's driver has it.
"""

from __future__ import annotations

USER_FILE, MANAGEMENT_FILE = "user_pf", "mgmt_pf"
"""Files that XRT's drivers make in the directory of a function since 2018.3, and that tell what it is."""

USER_DRIVER, MANAGEMENT_DRIVER, AMI_DRIVER = "xocl", "xclmgmt", "ami"

ZOCL, ZOCL_NODE = "zocl", "zyxclmm_drm"
"""What the names of the drivers for embedded chips begin with (``zocl``, ``zocl-drm``), and the node of the
device tree that they are bound to: ``amba:zyxclmm_drm`` or ``axi:zyxclmm_drm``."""

AMA = "ama_transcoder"
"""What the names of the misc devices of transcoders begin with, and their driver."""

U30_SHELL = "xilinx_u30"
"""What the names of all shells of an Alveo U30 contain."""

U30 = ("10ee", ("513d", "513c"))
"""Vendor id of the functions of a U30, and the device ids of user and management function."""

VENDORS = frozenset({"10ee", "13fe", "1d0f", "3475"})
"""Xilinx, Advantech, Amazon, Arista: whose functions are looked at more closely."""

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
