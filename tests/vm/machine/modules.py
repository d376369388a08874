"""Kernel modules that Debian leaves out, built from its own source of the same kernel."""

from __future__ import annotations

from pathlib import Path

from . import command
from .hypervisor import Hypervisor
from .root import debootstrap
from .store import Part, Store

COMPILER = ("bash", "coreutils", "gcc", "make", "libc6-dev", "libelf1t64", "pahole", "patch", "xz-utils")
RECIPES = Path(__file__).parent / "recipes"
SOURCES, BUILD = RECIPES / "kernel-sources", RECIPES / "build-modules"
PATCHES = (RECIPES / "rxe-movable.patch", RECIPES / "dfl-reset.patch")


def modules(store: Store, tools: Hypervisor, root: Part) -> Part:
    """The modules, as files ``*.ko``. Unsigned, which Debian's kernel takes.

    Raises:
        CannotMake: a package could not be fetched or a module not be built.
    """
    release, version = (root.path / "kernel").read_text().split()

    def make(directory: Path, log: Path) -> None:
        place = directory / "root"
        hooks = (
            f'{SOURCES} "$1" {release} {version}',
            f'cp {BUILD} {" ".join(map(str, PATCHES))} "$1/build/"',
            'chroot "$1" /build/build-modules',
        )
        debootstrap(tools, place, log, *COMPILER, hooks=hooks)
        for file in (*place.glob("build/built/*.ko"), place / "build/versions"):
            file.rename(directory / file.name)
        command.run("rm", "-r", place, log=log, limit=120)

    return store.part("modules", make, Path(__file__), SOURCES, BUILD, *PATCHES, root)
