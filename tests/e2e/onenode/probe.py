"""Tests whether this machine can run a node, before anything is downloaded or built.

A container may run as root and still not be allowed to create namespaces, mounts, cgroups or devices. So the
probe creates once what a cluster creates, and removes it again, in less than a second.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from . import cgroups
from .namespaces import Namespaces

PROGRAMS = ("unshare", "nsenter", "mount", "ip", "openssl", "dpkg")

DEVICES = ("/dev/fuse", "/dev/kmsg")
"""Pods request the first one; a kubelet reads the second one."""

ADDRESS = "10.99.0.2"

SANDBOX = """\
set -e
mkdir /run/low /run/up /run/work /run/merged
mount -t overlay -o lowerdir=/run/low,upperdir=/run/up,workdir=/run/work overlay /run/merged
ip link add one type veth peer name other
"""
"""What a container runtime needs in a node's namespaces."""


def why_not() -> str:
    """Why this machine cannot run a node; empty if it can."""
    if os.geteuid() != 0:
        return "a node needs root"
    for program in PROGRAMS:
        if shutil.which(program) is None:
            return f"there is no program {program}"
    return _devices() or _cgroups() or _namespaces()


def _devices() -> str:
    for device in DEVICES:
        try:
            os.close(os.open(device, os.O_RDWR | os.O_NONBLOCK))
        except OSError as error:
            return f"{device} cannot be opened: {error.strerror}"
    return ""


def _cgroups() -> str:
    try:
        with cgroups.made(f"{cgroups.NAME}-probe-{os.getpid()}"):
            return ""
    except cgroups.Refused as error:
        return str(error)


def _namespaces() -> str:
    with tempfile.TemporaryDirectory(prefix="devhost-e2e-") as directory:
        try:
            with Namespaces(ADDRESS, "probe", Path(directory) / "log") as namespaces:
                done = namespaces.run("sh", "-c", SANDBOX)
        except (OSError, RuntimeError) as error:
            return f"cannot create a node's namespaces: {_line(str(error))}"
    return f"cannot run a container: {_line(done.stderr)}" if done.returncode else ""


def _line(text: str) -> str:
    """The last line, which has the error."""
    return (text.strip().splitlines() or ["no reason was given"])[-1].strip()
