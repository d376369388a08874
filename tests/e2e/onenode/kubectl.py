"""The real kubectl, called inside the node."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .namespaces import Namespaces

TIMEOUT = 240.0
"""Seconds for one command; waits within it have shorter limits."""


class Refused(Exception):
    """A command failed; the message is its output."""


class Kubectl:
    """kubectl with the rights of the administrator, unless told otherwise.

    Args:
        directory: for manifests and kubectl's files; nothing is read from the home directory.
    """

    def __init__(self, namespaces: Namespaces, program: Path, kubeconfig: Path, directory: Path) -> None:
        self._namespaces = namespaces
        self._directory = directory
        self._program: Sequence[str | Path] = (
            "env",
            "KUBERC=off",
            program,
            f"--kubeconfig={kubeconfig}",
            f"--cache-dir={directory / 'kubectl'}",
        )

    def try_(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs kubectl, which may fail."""
        return self._namespaces.run(*self._program, *arguments, timeout=TIMEOUT)

    def run(self, *arguments: str) -> str:
        """Its output.

        Raises:
            Refused: it failed.
        """
        done = self.try_(*arguments)
        if done.returncode:
            raise Refused(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """The objects of ``kubectl get``; raises as :meth:`run`."""
        return json.loads(self.run("get", "--output=json", *arguments))

    def apply(self, manifests: str, *arguments: str) -> str:
        """Applies YAML; raises as :meth:`run`."""
        return self.run("apply", f"--filename={self._file(manifests)}", *arguments)

    def create(self, manifests: str, *arguments: str) -> str:
        """Creates what YAML describes, with the right to create it only; raises as :meth:`run`."""
        return self.run("create", f"--filename={self._file(manifests)}", *arguments)

    def delete(self, manifests: str, *arguments: str) -> None:
        """Deletes the objects of the YAML and their dependents, and waits until they are gone.

        Raises:
            Refused: they still exist after the limit.
        """
        self.run(
            "delete",
            f"--filename={self._file(manifests)}",
            "--ignore-not-found",
            "--cascade=foreground",
            f"--timeout={TIMEOUT / 2:.0f}s",
            *arguments,
        )

    def patch(self, what: str, patch: Mapping[str, Any], *arguments: str) -> None:
        """Applies a merge patch; raises as :meth:`run`."""
        self.run("patch", what, "--type=merge", f"--patch={json.dumps(patch)}", *arguments)

    def _file(self, manifests: str) -> Path:
        file = self._directory / "manifests.yaml"
        file.write_text(manifests)
        return file
