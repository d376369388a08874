"""Makes a base like ``debian:trixie-slim`` from Debian packages, if no registry is available."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path

from running import Unavailable, run

from . import access, machine
from .telling import say

EXCLUDED = ("doc", "groff", "info", "linda", "lintian", "locale", "man")
"""Directories of /usr/share that Debian's slim images omit, except for licences."""

MARKED = 315619200
"""The timestamp of files in the base: constant, so that the layer does not change with devhost."""

FRESH = 7 * 24 * 3600.0
"""Seconds after which a base is rebuilt, to include Debian updates."""

LIMIT = 600.0

TIDY = """\
set -eu
cd "$1"
rm -f etc/hostname etc/resolv.conf etc/machine-id etc/apt/sources.list etc/apt/sources.list.d/*
rm -f etc/apt/apt.conf.d/99mmdebstrap var/cache/ldconfig/aux-cache
find var/log var/cache/debconf -type f \\( -name '*.log' -o -name '*-old' \\) -delete
"""
"""Removes files that depend on this machine or the time; mmdebstrap runs it with the directory of the
base."""


def make(work: Path, *, fresh: bool) -> Path:
    """The base as a tar: the one in the cache, or a new one.

    Args:
        work: a directory for temporary files.
        fresh: rebuild it even if the one in the cache is recent.

    Raises:
        Unavailable: the mirror does not answer, and there is no older base.
        Failed: mmdebstrap failed.
    """
    tar = machine.cache() / f"base-{access.SUITE}-{os.uname().machine}.tar"
    if not fresh and tar.exists() and time.time() - tar.stat().st_mtime < FRESH:
        return tar
    say(f"making the base: Debian {access.SUITE} from {access.mirror()}")
    try:
        _make(tar, work)
    except Unavailable as error:
        if not tar.exists():
            raise
        say(f"{error}; using the existing base")
    return tar


def _make(tar: Path, work: Path) -> None:
    new, standard, here = work / "base.tar", work / "standard.sources", work / "here.sources"
    standard.write_text(access.sources(access.MIRROR), encoding="utf-8")
    sources = access.sources(access.mirror())
    here.write_text(sources.replace(access.KEYRING_INSIDE, str(machine.KEYRING)), encoding="utf-8")
    install = 'install -m 644 {} "$1/etc/apt/sources.list.d/debian.sources"'
    run(
        [
            "mmdebstrap",
            "--mode=root",
            "--variant=minbase",
            "--format=tar",
            # otherwise the owner of some directories of apt would depend on this machine
            '--aptopt=APT::Sandbox::User "root";',
            *(f"--aptopt={line}" for line in access.apt_settings()),
            *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in EXCLUDED),
            "--dpkgopt=path-include=/usr/share/doc/*/copyright",
            f"--customize-hook={TIDY}",
            "--customize-hook=" + install.format(shlex.quote(str(standard))),
            access.SUITE,
            str(new),
            str(here),
        ],
        limit=LIMIT,
        environment={**os.environ, "SOURCE_DATE_EPOCH": str(MARKED), "TMPDIR": str(work)},
    )
    new.replace(tar)
