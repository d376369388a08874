"""Kubernetes, built from its Go module: the parts of the control plane and the kubelet, as one program."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

VERSION = "v1.37.1"
"""The newest release that was seen to run. ``KUBERNETES`` in the environment names another one."""

PARTS = ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager")

SOURCE = Path(__file__).parent / "kube" / "main.go"

DOWNLOAD_LIMIT = 600.0
BUILD_LIMIT = 3600.0
"""Seconds: a cold build takes minutes on two idle cores, and longer where others use them."""


class CannotBuild(Exception):
    """Why there is no Kubernetes; one line."""


def version() -> str:
    """The release to build, such as ``v1.37.1``."""
    return os.environ.get("KUBERNETES", VERSION)


def build(cache: Path) -> dict[str, Path]:
    """Programs by name; built only if ``cache`` does not hold that version yet.

    Raises:
        CannotBuild: Go is missing or too old, the module cannot be had, or it does not compile.
    """
    wanted = version()
    if not re.fullmatch(r"v1\.\d+\.\d+(-[a-z]+\.\d+)?", wanted):
        raise CannotBuild(f"KUBERNETES={wanted} is not a release such as {VERSION}")
    directory = cache / f"kubernetes-{wanted}"
    programs = {part: directory / part for part in PARTS}
    if all(program.exists() for program in programs.values()):
        return programs
    if shutil.which("go") is None:
        raise CannotBuild("Kubernetes is not built yet, and there is no Go to build it with")
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(SOURCE, directory / "main.go")
    (directory / "go.mod").write_text(_module(directory, wanted))
    _go(directory, DOWNLOAD_LIMIT, "mod", "tidy")
    stamp = f"-s -w -X k8s.io/component-base/version.gitVersion={wanted}"
    _go(directory, BUILD_LIMIT, "build", "-trimpath", "-ldflags", stamp, "-o", "kube.new", ".")
    (directory / "kube.new").rename(directory / "kube")
    for program in programs.values():
        program.unlink(missing_ok=True)
        program.symlink_to("kube")
    return programs


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


def _go(directory: Path, limit: float, *arguments: str) -> str:
    command = ["nice", "go", *arguments]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CannotBuild(f"go {arguments[0]} took longer than {limit:.0f} s") from None
    if done.returncode:
        (directory / "failure.log").write_text(done.stdout + done.stderr)
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CannotBuild(f"go {arguments[0]}: {said[-1].strip()} (see {directory / 'failure.log'})")
    return done.stdout
