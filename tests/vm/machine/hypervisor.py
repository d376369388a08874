"""QEMU, and mmdebstrap that makes root file systems: Debian packages, unpacked and not installed."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from . import command, debian
from .store import Part, Store, Unavailable

PACKAGES = ("qemu-system-x86", "mmdebstrap")
BACKPORTS = {"bookworm": "bookworm-backports"}
"""Where a release's own QEMU is too old: before 9 it has no igb with working virtual functions."""

FETCH_LIMIT = 600.0
LIBRARIES = "usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True, slots=True)
class Hypervisor:
    """The unpacked programs."""

    part: Part

    @property
    def command(self) -> tuple[str, ...]:
        """How QEMU is called; its firmware and modules are those beside it."""
        root = self.part.path
        libraries = f"LD_LIBRARY_PATH={root / LIBRARIES}:{root / 'lib/x86_64-linux-gnu'}"
        modules = f"QEMU_MODULE_DIR={root / LIBRARIES / 'qemu'}"
        qemu = ["env", libraries, modules, str(root / "usr/bin/qemu-system-x86_64")]
        for base in (root, Path("/")):
            for place in ("usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"):
                if (base / place).is_dir():
                    qemu += ["-L", str(base / place)]
        return tuple(qemu)

    @property
    def mmdebstrap(self) -> Path:
        return self.part.path / "usr/bin/mmdebstrap"

    def version(self) -> str:
        """What QEMU says of itself: ``10.0.2 (Debian …)``."""
        said = subprocess.run(
            [*self.command, "--version"], capture_output=True, text=True, timeout=60, check=True
        )
        return said.stdout.splitlines()[0].removeprefix("QEMU emulator version ")


def hypervisor(store: Store) -> Hypervisor:
    """The programs, fetched if the store has none.

    Raises:
        Unavailable: apt cannot fetch them.
    """
    return Hypervisor(store.part("hypervisor", _make, Path(__file__), debian.release()))


def _make(directory: Path, log: Path) -> None:
    apt = directory / "apt"
    for place in ("lists/partial", "cache/archives/partial"):
        (apt / place).mkdir(parents=True)
    own = debian.release()
    suites = [own, BACKPORTS[own]] if own in BACKPORTS else [own]
    (apt / "sources.list").write_text("".join(f"{debian.source(suite)}\n" for suite in suites))
    options = {
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": apt / "lists",
        "Dir::Cache": apt / "cache",
        "APT::Sandbox::User": "root",
    }
    base = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    command.run(*base, "update", log=log, limit=FETCH_LIMIT, error=Unavailable)
    command.run(
        *base,
        *("--yes", "--download-only", "--reinstall", "--no-install-recommends"),
        f"--target-release={suites[-1]}",
        "install",
        *PACKAGES,
        log=log,
        limit=FETCH_LIMIT,
        error=Unavailable,
    )
    versions = []
    for archive in sorted((apt / "cache/archives").glob("*.deb")):
        command.run("dpkg", "-x", archive, directory, log=log, limit=FETCH_LIMIT)
        fields = ["dpkg-deb", "--show", "--showformat=${Package}\t${Version}\n", str(archive)]
        versions.append(subprocess.run(fields, capture_output=True, text=True, timeout=60, check=True).stdout)
    (directory / "versions").write_text("".join(versions))
    command.run("rm", "-r", apt, log=log, limit=60)
