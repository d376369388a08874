"""The models and families of Intel GPUs by PCI device id, as Intel's DRA driver names them. Pure.

Source: ``pkg/gpu/device/models.go`` in ``intel/intel-resource-drivers-for-kubernetes`` at 1da939fa.
"""

from __future__ import annotations

from collections.abc import Mapping

from devhost.backend.model import AttributeValue

UNKNOWN = "Unknown"
"""The model and the family of any other GPU."""

_MODELS: Mapping[str, Mapping[str, str]] = {
    "Iris Xe": {"Alder Lake-P": "4626", "Raptor Lake-P": "a7a0"},
    "Intel Graphics": {"Arrow Lake-S": "7d67"},
    "Arc A-Series": {"A770": "56a0", "A750": "56a1", "A580": "56a2", "A380": "56a5", "A310": "56a6"},
    "Arc Pro A-Series": {"A30M": "56b0", "A40/A50": "56b1", "A60M": "56b2", "A60": "56b3"},
    "Arc B-Series": {
        "B390": "b080 b082 b084 b086",
        "B370": "b081 b083 b085 b087",
        "B580": "e20b",
        "B570": "e20c",
    },
    "Arc Pro B-Series": {"B60": "e211", "B50": "e212", "B65": "e222", "B70": "e223"},
    "Data Center Flex": {"Flex 170": "56c0", "Flex 140": "56c1"},
    "Data Center Max": {"Max 1550": "0b69 0bd0 0bd5", "Max 1450": "0bd6", "Max 1100": "0bd9 0bda 0bdb"},
}

_BY_ID = {
    number: (model, family)
    for family, models in _MODELS.items()
    for model, numbers in models.items()
    for number in numbers.split()
}


def model(device: AttributeValue) -> str:
    """The model with this PCI device id: ``Flex 170``."""
    return _BY_ID.get(str(device), (UNKNOWN, UNKNOWN))[0]


def family(device: AttributeValue) -> str:
    """Its family: ``Data Center Flex``."""
    return _BY_ID.get(str(device), (UNKNOWN, UNKNOWN))[1]
