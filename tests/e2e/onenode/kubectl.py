"""The real kubectl, called inside the node as somebody at the node's console would call it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .namespaces import Namespaces

TIMEOUT = 240.0
"""Seconds for one command. What waits in it has a limit of its own, below this."""


class Refused(Exception):
    """A command that failed; what it said."""


class Kubectl:
    """kubectl with the one user's rights.

    Args:
        directory: for what is applied, and for kubectl's own files; nothing of the user's home is read.
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
        """Runs it; it may fail."""
        return self._namespaces.run(*self._program, *arguments, timeout=TIMEOUT)

    def run(self, *arguments: str) -> str:
        """What it prints.

        Raises:
            Refused: it failed.
        """
        done = self.try_(*arguments)
        if done.returncode:
            raise Refused(f"kubectl {' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """What ``kubectl get`` finds, as objects; raises as :meth:`run`."""
        return json.loads(self.run("get", "--output=json", *arguments))

    def apply(self, manifests: str, *arguments: str) -> str:
        """``kubectl apply`` of YAML; raises as :meth:`run`."""
        return self.run("apply", f"--filename={self._file(manifests)}", *arguments)

    def delete(self, manifests: str, *arguments: str) -> None:
        """Deletes what the YAML names, and what belongs to it, and waits until it is gone.

        Raises:
            Refused: it is not gone in time.
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
        """``kubectl patch`` by a merge patch; raises as :meth:`run`."""
        self.run("patch", what, "--type=merge", f"--patch={json.dumps(patch)}", *arguments)

    def _file(self, manifests: str) -> Path:
        file = self._directory / "manifests.yaml"
        file.write_text(manifests)
        return file
