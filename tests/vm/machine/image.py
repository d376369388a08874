"""The parts put together: a kernel, an initramfs that reaches the root disk, and the root disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import command
from .store import Part, Store

SIZE = "2G"
"""Of the root disk, most of which is a hole in the file. The guest writes into memory and keeps nothing."""

MAKE = Path(__file__).parent / "recipes" / "image"
INITRAMFS, FIRST = (Path(__file__).parent / "inside" / name for name in ("initramfs", "first"))
LIMIT = 300.0


@dataclass(frozen=True, slots=True)
class Image:
    """What QEMU boots."""

    part: Part

    @property
    def kernel(self) -> Path:
        return self.part.path / "vmlinuz"

    @property
    def initramfs(self) -> Path:
        return self.part.path / "initramfs"

    @property
    def disk(self) -> Path:
        return self.part.path / "disk"


def image(store: Store, root: Part, modules: Part, packages: Part) -> Image:
    """The image.

    Raises:
        CannotMake: a program failed; most likely the disk is full.
    """

    def make(directory: Path, log: Path) -> None:
        parts = (root.path / "root", modules.path, packages.path / "site")
        command.run(MAKE, directory, *parts, INITRAMFS, FIRST, SIZE, log=log, limit=LIMIT)

    return Image(store.part("image", make, Path(__file__), MAKE, INITRAMFS, FIRST, root, modules, packages))
