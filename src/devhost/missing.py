"""What to install when an import fails. It imports nothing, because anything may be what is missing."""

from __future__ import annotations

import sys

PACKAGES = {
    "asyncinotify": "asyncinotify",
    "click": "click",
    "google": "protobuf",
    "grpc": "grpcio",
    "h11": "h11",
    "markupsafe": "markupsafe",
    "pluggy": "pluggy",
    "pyroute2": "pyroute2",
    "pyudev": "pyudev",
    "yaml": "pyyaml",
}
"""The package of each module that devhost and its own plugins cannot do without."""


def missing_package(error: BaseException) -> tuple[str, str] | None:
    """The error in one sentence, and a hint how to fix it; ``None`` if no package of these is missing."""
    if not isinstance(error, ImportError):
        return None
    name = error.name or ""
    package = PACKAGES.get(name.partition(".")[0])
    if package is None:
        return None
    install = f"run `{sys.executable} -m pip install"
    if isinstance(error, ModuleNotFoundError):
        return f"the Python package {package} is not installed", f"{install} {package}`"
    text = f"the Python package {package} cannot be imported: {' '.join(str(error).split())}"
    return text, f"{install} --force-reinstall {package}`"
