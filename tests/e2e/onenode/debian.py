"""Programs from Debian packages, unpacked into a cache and not installed.

apt runs with a separate configuration, which has the machine's mirror with several suites of Debian. The
newest version of a package that runs here is used: one of a newer suite may need a newer libc.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .fetching import Unavailable, Unreachable, persistently, say

SUITES = ("sid", "trixie", "bookworm")
"""Newest first."""

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

UPDATE_LIMIT = 300.0
FETCH_LIMIT = 300.0


class Packages:
    """Unpacked packages in ``directory``; apt downloads only missing ones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._updated = False

    def program(self, package: str, path: str, check: Sequence[str]) -> Path:
        """A program of a package that runs with the arguments ``check``, which only print something.

        Raises:
            Unavailable: no suite has a version that runs here, the mirror is unreachable, or apt does not
                work.
        """
        root = self._directory / package
        if (root / path).exists():
            return root / path
        self._know_the_suites()
        say(f"fetching {package}")
        reasons = []
        for suite in SUITES:
            try:
                candidate = self._unpacked(package, suite)
            except Unavailable as error:
                reasons.append(f"{suite}: {error}")
                continue
            if not runs(candidate / path, check):
                reasons.append(f"{suite}: it does not run here")
                continue
            shutil.rmtree(root, ignore_errors=True)
            candidate.rename(root)
            return root / path
        raise Unavailable(f"{package}: {'; '.join(reasons)}")

    def _unpacked(self, package: str, suite: str) -> Path:
        target = self._directory / "new" / f"{package}-{suite}"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        persistently(lambda: self._apt("download", f"{package}/{suite}", cwd=target, limit=FETCH_LIMIT))
        for archive in target.glob("*.deb"):
            if subprocess.run(["dpkg", "-x", archive, target], timeout=120, check=False).returncode:
                raise Unavailable(f"dpkg cannot unpack {archive.name}")
            archive.unlink()
        return target

    def _know_the_suites(self) -> None:
        if self._updated:
            return
        self._configure()
        say("reading the lists of Debian's packages")
        lists = self._directory / "apt" / "lists"
        try:
            persistently(lambda: self._apt("update", cwd=lists, limit=UPDATE_LIMIT))
        except Unreachable:
            if not any(lists.glob("*Packages*")):
                raise
            # A mirror may lack suites, and older lists are sufficient.
        self._updated = True

    def _apt(self, *arguments: str, cwd: Path, limit: float) -> None:
        options = {
            "Dir::Etc::SourceList": self._directory / "apt" / "sources.list",
            "Dir::Etc::SourceParts": "/dev/null",
            "Dir::State::Lists": self._directory / "apt" / "lists",
            "Dir::State::Status": self._directory / "apt" / "status",
            "Dir::Cache": self._directory / "apt" / "cache",
            "APT::Sandbox::User": "root",
            "APT::Update::Error-Mode": "any",
        }
        command = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items()), *arguments]
        try:
            done = subprocess.run(
                command,
                cwd=cwd,
                capture_output=True,
                text=True,
                timeout=limit,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"apt-get {arguments[0]} took longer than {limit:.0f} s") from None
        if done.returncode:
            said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            unfetched = [line for line in said if "Failed to fetch" in line]
            kind, line = (Unreachable, unfetched[0]) if unfetched else (Unavailable, said[-1])
            raise kind(f"apt-get {arguments[0]}: {line}")

    def _configure(self) -> None:
        if shutil.which("apt-get") is None or not KEYRING.exists():
            raise Unavailable("this machine does not run Debian")
        apt = self._directory / "apt"
        for part in ("lists/partial", "cache/archives/partial"):
            (apt / part).mkdir(parents=True, exist_ok=True)
        (apt / "status").touch()
        mirror = _mirror()
        (apt / "sources.list").write_text(
            "".join(f"deb [signed-by={KEYRING}] {mirror} {suite} main\n" for suite in SUITES)
        )


def _mirror() -> str:
    """The Debian mirror that this machine uses."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    targets = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout.split()
    for uri in targets:
        if uri.rstrip("/").endswith("/debian"):
            return uri
    raise Unavailable("apt has no Debian mirror")


def runs(program: Path, arguments: Sequence[str]) -> bool:
    """Whether the program can be linked and run on this machine."""
    if not os.access(program, os.X_OK):
        return False
    try:
        return not subprocess.run(
            [program, *arguments], capture_output=True, timeout=120, check=False
        ).returncode
    except (OSError, subprocess.TimeoutExpired):
        return False
