"""Backends of tests in files, for a devhost that runs as another process."""

from __future__ import annotations

BEFORE = """\
import asyncio, json, os, subprocess, sys, time
from dataclasses import dataclass, replace
from pathlib import Path

from devhost.backend import *


class Plain(Backend):
    def discover(self):
        return ()

    def allocate(self, request):
        return Edits()

"""

AFTER = """

@hookimpl
def devhost_backends():
    found = [one for one in globals().values() if isinstance(one, type) and issubclass(one, Backend)]
    return [one for one in found if "name" in vars(one)]
"""


def drop_in(classes: str) -> str:
    """The file for these classes: with everything they may import, and the hook for those with a name.

    One derived from ``Plain`` finds nothing and gives nothing by default.
    """
    return BEFORE + classes + AFTER
