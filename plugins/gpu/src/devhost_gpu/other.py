"""Every DRM device of another vendor: virtual machines' GPUs, GPUs of a SoC, graphics of a BMC."""

from __future__ import annotations

from .card import OTHER
from .plain import Plain


class Other(Plain):
    """The cards of no vendor that has code of its own."""

    vendor = OTHER
