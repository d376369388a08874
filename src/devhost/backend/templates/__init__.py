"""Texts with placeholders: ``{devNode}`` is an attribute of a device, ``{index}`` a number.

What hardware reports is data. The core has removed values that are not one line of printable text
(:mod:`devhost.discovery.validation`). In the name of a variable, a value has letters, digits and ``_`` only.
A path that a value leads elsewhere is :func:`unfit`.
"""

from __future__ import annotations

from .checks import check, check_path, check_variables
from .texts import (
    INDEX,
    RESOURCE,
    as_glob,
    attributes,
    fields,
    fill,
    joined,
    lacking,
    place,
    ranked,
    unfit,
    variables,
)

__all__ = [
    "INDEX",
    "RESOURCE",
    "as_glob",
    "attributes",
    "check",
    "check_path",
    "check_variables",
    "fields",
    "fill",
    "joined",
    "lacking",
    "place",
    "ranked",
    "unfit",
    "variables",
]
