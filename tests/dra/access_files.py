"""A kubeconfig and the files that it names, which a test replaces as a cluster does."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devhost.dra.credentials import Access, from_files

TLS = Path(__file__).parent / "tls"


class AccessFiles:
    """The files in a directory; there is no kubeconfig until :meth:`write`.

    Attributes:
        file: the kubeconfig.
        token: the file with the token, if the kubeconfig names one.
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
        content = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": user}],
        }
        self.file.write_text(json.dumps(content))

    def trust(self, authority: str) -> None:
        """Makes the certificate authority the one of this name in ``tls/``."""
        self.authority.write_bytes((TLS / authority).read_bytes())

    def certify(self, name: str) -> None:
        """Makes the client's certificate the one of this name in ``tls/``."""
        parts = [(TLS / f"{name}.{kind}").read_bytes() for kind in ("pem", "key")]
        self.certificate.write_bytes(b"\n".join(parts))

    def access(self, clock: Callable[[], float] = time.monotonic) -> Access:
        """Reads them."""
        return from_files(self.file, {}, clock=clock)
