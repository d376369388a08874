"""Kubernetes, built from its Go module: the parts of the control plane and the kubelet, as one program."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from .fetching import Unavailable, Unreachable, persistently, run, say

VERSION = "v1.37.1"
"""The newest release that was seen to run. ``KUBERNETES`` in the environment names another one."""

PARTS = ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager")

SOURCE = Path(__file__).parent / "kube" / "main.go"

DOWNLOAD_LIMIT = 600.0
BUILD_LIMIT = 3600.0
"""Seconds: a cold build takes minutes on two idle cores, and longer where others use them. What was compiled
until then stays in Go's cache."""

MEMORY_OF_A_COMPILER = 1 << 20
"""Kilobytes; the largest package takes about that."""

NETWORK = re.compile(
    r"dial (tcp|udp)|no such host|connection (refused|reset)|i/o timeout|TLS handshake|\bEOF\b"
    r"|(network|host) is unreachable|no route to host|server misbehaving|proxyconnect|Client\.Timeout"
    r"|\b(403|408|429|50\d) [A-Z]"
)
"""How Go says that it could not fetch something."""

MACHINE = re.compile(
    r"requires go >= \S+|toolchain not available|GOPROXY=off|signal: killed|no space left on device"
    r"|cannot allocate memory"
)
"""How Go says that the machine has too little of something, or too old a Go."""


class CannotBuild(Exception):
    """Why Kubernetes does not compile; one line."""


def version() -> str:
    """The release to build, such as ``v1.37.1``.

    Raises:
        CannotBuild: what the environment names is not a release.
    """
    wanted = os.environ.get("KUBERNETES", VERSION)
    if not re.fullmatch(r"v1\.\d+\.\d+(-[a-z]+\.\d+)?", wanted):
        raise CannotBuild(f"KUBERNETES={wanted} is not a release such as {VERSION}")
    return wanted


def programs(cache: Path) -> dict[str, Path]:
    """Where the programs of that version are, or will be."""
    directory = cache / f"kubernetes-{version()}"
    return {part: directory / part for part in PARTS}


def is_built(cache: Path) -> bool:
    """Whether nothing is left to do."""
    return all(program.exists() for program in programs(cache).values())


def why_not() -> str:
    """Why it cannot be built here; empty if it can be tried."""
    return "" if shutil.which("go") else "Kubernetes is not built yet, and there is no Go to build it with"


def build(cache: Path, limit: float = BUILD_LIMIT) -> dict[str, Path]:
    """Programs by name; built only if ``cache`` does not hold that version yet.

    Args:
        limit: seconds for compiling.

    Raises:
        Unavailable: there is no Go, or too old a one; a module cannot be fetched; or it takes too long.
        CannotBuild: it does not compile.
    """
    found = programs(cache)
    if is_built(cache):
        return found
    if reason := why_not():
        raise Unavailable(reason)
    wanted = version()
    directory = cache / f"kubernetes-{wanted}"
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, directory / "main.go")
    say(f"fetching the modules of Kubernetes {wanted}")
    (directory / "go.mod").write_text(persistently(lambda: _module(directory, wanted)))
    persistently(lambda: _go(directory, DOWNLOAD_LIMIT, "mod", "tidy", progress=_fetched))
    say(f"compiling Kubernetes {wanted}, some thousand packages, with {_compilers()} at a time")
    stamp = f"-s -w -X k8s.io/component-base/version.gitVersion={wanted}"
    options = [
        "-v",
        "-p",
        str(_compilers()),
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        stamp,
        "-o",
        "kube.new",
    ]
    _go(directory, limit, "build", *options, ".", progress=_compiled)
    (directory / "kube.new").rename(directory / "kube")
    for program in found.values():
        program.unlink(missing_ok=True)
        program.symlink_to("kube")
    return found


def _module(directory: Path, wanted: str) -> str:
    """A go.mod that requires Kubernetes and repeats its replacements.

    Kubernetes' own go.mod points at folders of its repository, which are published as modules of their
    own; replacements count in the main module only.
    """
    (directory / "go.mod").unlink(missing_ok=True)
    answer = _go(directory, DOWNLOAD_LIMIT, "mod", "download", "-json", f"k8s.io/kubernetes@{wanted}")
    theirs = _go(directory, 60, "mod", "edit", "-json", json.loads(answer)["GoMod"])
    staged = wanted.replace("v1.", "v0.", 1)
    parsed = json.loads(theirs)
    lines = ["module onenode", f"go {parsed['Go']}", f"require k8s.io/kubernetes {wanted}"]
    for replacement in parsed["Replace"]:
        old, new = replacement["Old"]["Path"], replacement["New"]
        target = f"{old} {staged}" if new["Path"].startswith("./") else f"{new['Path']} {new['Version']}"
        lines.append(f"replace {old} => {target}")
    return "\n".join(lines) + "\n"


def _compilers() -> int:
    """How many may run at once without filling the memory that is free."""
    available = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    assert available, "Linux has said so since 3.14"
    room = int(available[1]) // MEMORY_OF_A_COMPILER
    return max(1, min(len(os.sched_getaffinity(0)), room))


def _fetched(errors: str) -> str:
    return f"fetching: {errors.count('downloading ')} modules so far"


def _compiled(errors: str) -> str:
    return f"compiling: {len(errors.splitlines())} packages so far"


def _go(
    directory: Path, limit: float, *arguments: str, progress: Callable[[str], str] = lambda _: "fetching"
) -> str:
    """Runs Go; what it prints.

    Raises:
        Unreachable: it could not fetch something.
        Unavailable: the machine has too little of something; or it took too long.
        CannotBuild: it failed for another reason.
    """
    name = f"go {' '.join(arguments[: 1 + (arguments[0] == 'mod')])}"
    environment = {"HOME": str(Path.home()), **os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    try:
        done = run(
            ["nice", "go", *arguments],
            directory=directory,
            environment=environment,
            limit=limit,
            progress=progress,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{name} took longer than {limit:.0f} s") from None
    if done.returncode:
        log = directory / "failure.log"
        log.write_text(done.stdout + done.stderr)
        raise _error(name, done.stdout + done.stderr, log)
    return done.stdout


def _error(name: str, output: str, log: Path) -> Exception:
    lines = output.strip().splitlines() or ["it did not say why"]
    for kind, pattern in ((Unavailable, MACHINE), (Unreachable, NETWORK)):
        if telling := [line.strip('\t ",') for line in lines if pattern.search(line)]:
            said = telling[-1].removeprefix('Error": "')  # go mod download -json
            return kind(f"{name}: {said}")
    return CannotBuild(f"{name}: {lines[-1].strip()} (see {log})")
