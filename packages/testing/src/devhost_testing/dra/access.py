"""A kubeconfig and the files that it names, which a test replaces as a cluster does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def kubeconfig_text(cluster: Mapping[str, object], user: Mapping[str, object]) -> str:
    """The text of a kubeconfig with one cluster and one user."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": user}],
    }
    return json.dumps(content)


class AccessFiles:
    """The files in a directory; there is no kubeconfig until :meth:`write`.

    Args:
        place: the directory.

    Attributes:
        file: the kubeconfig.
        token: the file with the token, if the kubeconfig names one; a test writes it.
        authority: the file with the certificate authority.
        certificate: the file with the client's certificate and key, if the kubeconfig names one.
    """

    def __init__(self, place: Path) -> None:
        self.file = place / "kubeconfig"
        self.token = place / "token"
        self.authority = place / "ca.pem"
        self.certificate = place / "client.pem"

    def write(self, server: str) -> None:
        """Writes the kubeconfig; it names the files that exist now."""
        user: dict[str, Any] = {}
        if self.token.exists():
            user["tokenFile"] = self.token.name
        if self.certificate.exists():
            user |= {"client-certificate": self.certificate.name, "client-key": self.certificate.name}
        cluster = {"server": server, "certificate-authority": self.authority.name}
        self.file.write_text(kubeconfig_text(cluster, user))

    def trust(self, authority: Path) -> None:
        """Makes this certificate authority the one that the kubeconfig names, also while clients use it."""
        self.authority.write_bytes(authority.read_bytes())

    def certify(self, certificate: Path, key: Path) -> None:
        """Makes these the client's certificate and key, as a kubelet that rotates its certificate."""
        self.certificate.write_bytes(b"\n".join((certificate.read_bytes(), key.read_bytes())))
