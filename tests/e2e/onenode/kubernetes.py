"""Kubernetes, built from its Go module: control plane, kubelet and kubectl, as one program."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from .fetching import Unavailable, persistently, say
from .golang import CannotBuild, compilers, go

VERSION = "v1.37.1"
"""The newest tested release; the environment variable ``KUBERNETES`` selects another one."""

PARTS = ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "kubectl")

SOURCE = Path(__file__).parent / "kube" / "main.go"

DOWNLOAD_LIMIT = 600.0
BUILD_LIMIT = 3600.0
"""Seconds: a first build takes minutes on two idle cores. Compiled packages stay in Go's cache."""


def version() -> str:
    """The release to build, such as ``v1.37.1``.

    Raises:
        CannotBuild: the environment variable is not a release.
    """
    wanted = os.environ.get("KUBERNETES", VERSION)
    if not re.fullmatch(r"v1\.\d+\.\d+(-[a-z]+\.\d+)?", wanted):
        raise CannotBuild(f"KUBERNETES={wanted} is not a release such as {VERSION}")
    return wanted


def programs(cache: Path) -> dict[str, Path]:
    """The directory for the programs of that version."""
    directory = cache / f"kubernetes-{version()}"
    return {part: directory / part for part in PARTS}


def is_built(cache: Path) -> bool:
    """Whether they are built, from the present main.go."""
    found = programs(cache)
    source = cache / f"kubernetes-{version()}" / SOURCE.name
    return all(program.exists() for program in found.values()) and source.read_bytes() == SOURCE.read_bytes()


def why_not() -> str:
    """Why it cannot be built here; empty if a build can be tried."""
    return "" if shutil.which("go") else "Kubernetes is not built yet, and there is no Go to build it with"


def build(cache: Path, limit: float = BUILD_LIMIT) -> dict[str, Path]:
    """Programs by name; built only if ``cache`` does not hold that version yet.

    Args:
        limit: seconds for compiling.

    Raises:
        Unavailable: Go is missing or too old, a module cannot be downloaded, or it takes too long.
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
    for program in found.values():  # so that no program seems to be built from the new source
        program.unlink(missing_ok=True)
    shutil.copy(SOURCE, directory / "main.go")
    say(f"fetching the modules of Kubernetes {wanted}")
    (directory / "go.mod").write_text(persistently(lambda: _module(directory, wanted)))
    persistently(lambda: go(directory, DOWNLOAD_LIMIT, "mod", "tidy", progress=_fetched))
    say(f"compiling Kubernetes {wanted}, some thousand packages, with {compilers()} at a time")
    stamp = f"-s -w -X k8s.io/component-base/version.gitVersion={wanted}"
    options = [
        "-v",
        "-p",
        str(compilers()),
        "-trimpath",
        "-buildvcs=false",
        "-ldflags",
        stamp,
        "-o",
        "kube.new",
    ]
    go(directory, limit, "build", *options, ".", progress=_compiled)
    (directory / "kube.new").rename(directory / "kube")
    for program in found.values():
        program.symlink_to("kube")
    return found


def _module(directory: Path, wanted: str) -> str:
    """A go.mod that requires Kubernetes and repeats its replacements.

    Kubernetes' own go.mod points at folders of its repository, which are published as modules of their
    own; replacements count in the main module only.
    """
    (directory / "go.mod").unlink(missing_ok=True)
    answer = go(directory, DOWNLOAD_LIMIT, "mod", "download", "-json", f"k8s.io/kubernetes@{wanted}")
    theirs = go(directory, 60, "mod", "edit", "-json", json.loads(answer)["GoMod"])
    staged = wanted.replace("v1.", "v0.", 1)
    parsed = json.loads(theirs)
    lines = ["module onenode", f"go {parsed['Go']}", f"require k8s.io/kubernetes {wanted}"]
    for replacement in parsed["Replace"]:
        old, new = replacement["Old"]["Path"], replacement["New"]
        target = f"{old} {staged}" if new["Path"].startswith("./") else f"{new['Path']} {new['Version']}"
        lines.append(f"replace {old} => {target}")
    return "\n".join(lines) + "\n"


def _fetched(errors: str) -> str:
    return f"fetching: {errors.count('downloading ')} modules so far"


def _compiled(errors: str) -> str:
    return f"compiling: {len(errors.splitlines())} packages so far"
